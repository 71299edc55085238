"""A deployment that contradicts itself is refused at synth, by a message that names the setting and the rule."""

from typing import Any

import pytest

from infrastructure.settings import Architecture, NetworkMode, Settings, SettingsError, Stage, load


def test_the_context_of_cdk_json_is_a_legal_deployment(context: dict[str, Any]) -> None:
    settings = load(context)
    assert (settings.stage, settings.architecture, settings.network) == (
        Stage.PROD,
        Architecture.ARM64,
        NetworkMode.PUBLIC,
    )
    assert settings.allowed_hosts == ()


def test_values_from_the_command_line_are_parsed(context: dict[str, Any]) -> None:
    settings = load(
        context
        | {
            "fleet:network": "nat",
            "fleet:workerCapacity": "250",
            "fleet:leaseJudgePollSeconds": "0.25",
            "fleet:apiGatewayAccountRole": "false",
            "fleet:allowedHosts": "feeds.internal, 10.0.0.0/8,::1",
        }
    )
    assert settings.network is NetworkMode.NAT
    assert settings.worker_capacity == 250
    assert settings.lease_judge_poll_seconds == 0.25
    assert settings.api_gateway_account_role is False
    assert settings.allowed_hosts == ("feeds.internal", "10.0.0.0/8", "::1")


def test_the_shortest_legal_takeover_is_legal(context: dict[str, Any]) -> None:
    assert load(context | {"fleet:leaseTakeoverSeconds": 6.6}).lease_takeover_seconds == 6.6


def test_keys_of_others_are_not_ours_to_judge(context: dict[str, Any]) -> None:
    assert isinstance(load(context | {"@aws-cdk/core:newFlag": True}), Settings)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"name": "X"}, "fleet:name"),
        ({"stage": "test"}, "fleet:stage must be one of dev, prod"),
        ({"taskCpu": "half"}, "fleet:taskCpu must be a whole number"),
        ({"leaseHeartbeatSeconds": "soon"}, "fleet:leaseHeartbeatSeconds must be a number"),
        ({"apiGatewayAccountRole": "yes"}, "fleet:apiGatewayAccountRole must be true or false"),
        ({"workerProcesses": 0}, "fleet:workerProcesses"),
        ({"workerCapacity": 0}, "fleet:workerCapacity must be at least 1"),
        ({"workerCapacity": 65_281, "taskMemory": 8192}, "fleet:workerCapacity must be at most 65280"),
        ({"workerCapacity": 20_000}, "fleet:taskMemory"),
        ({"workerProcesses": 2}, "fleet:taskMemory"),
        ({"workerBuffer": 31}, "fleet:workerBuffer must be at least 31.25 MiB"),
        ({"minimumTasks": 1}, "fleet:minimumTasks must be at least 2"),
        ({"minimumTasks": 30}, "fleet:maximumTasks"),
        ({"targetLoadPercent": 95}, "fleet:targetLoadPercent"),
        ({"leaseTakeoverSeconds": 6.5}, "fleet:leaseTakeoverSeconds must be at least 6.6"),
        ({"leaseDrainSeconds": 0}, "fleet:leaseDrainSeconds"),
        ({"leaseHeartbeatSeconds": 1.5}, "fleet:leaseHeartbeatSeconds"),
        (
            {"leaseHeartbeatSeconds": 0.3, "leaseSelfFenceSeconds": 2.2},
            "fleet:leaseSelfFenceSeconds must be at least 3.5",
        ),
        ({"leaseTakeoverSeconds": 1e300}, "fleet:leaseTakeoverSeconds must be at most 3600"),
        ({"leaseJudgePollSeconds": 1.5}, "fleet:leaseJudgePollSeconds"),
        ({"leaseJudgePollSeconds": 0.1}, "fleet:leaseJudgePollSeconds must be at least 0.2"),
        (
            {
                "leaseHeartbeatSeconds": 5,
                "leaseJudgePollSeconds": 5,
                "leaseSelfFenceSeconds": 16.2,
                "leaseTakeoverSeconds": 18.92,
            },
            "fleet:leaseTakeoverSeconds must be at least 20 = 3 fleet:leaseHeartbeatSeconds",
        ),
        ({"workerDrainSeconds": 93}, "fleet:workerDrainSeconds must be positive and at most 92"),
        ({"workerGroupConnectRate": 0}, "fleet:workerGroupConnectRate must be positive"),
        (
            {"workerConnectRate": 20},
            "fleet:workerGroupConnectRate must be positive and at most fleet:workerConnectRate",
        ),
        ({"allowedHosts": "good.example,not a host"}, "fleet:allowedHosts"),
        ({"secretPrefix": ""}, "fleet:secretPrefix"),
        ({"apiRateLimit": 500}, "fleet:apiRateLimit"),
        ({"logLevel": "LOUD"}, "fleet:logLevel"),
        ({"logRetentionDays": 8}, "fleet:logRetentionDays"),
        ({"alarmEmail": "nobody"}, "fleet:alarmEmail"),
        ({"runbookUrl": ""}, "fleet:runbookUrl"),
        ({"colour": "blue"}, "unknown setting fleet:colour"),
    ],
)
def test_an_illegal_setting_is_refused_by_name(context: dict[str, Any], changes: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load(context | {f"fleet:{key}": value for key, value in changes.items()})


def test_a_missing_setting_is_refused_by_name(context: dict[str, Any]) -> None:
    del context["fleet:stage"]
    with pytest.raises(SettingsError, match="missing setting fleet:stage"):
        load(context)


def test_all_broken_rules_are_told_at_once(context: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"fleet:workerProcesses.*fleet:minimumTasks"):
        load(context | {"fleet:workerProcesses": 0, "fleet:minimumTasks": 1})
