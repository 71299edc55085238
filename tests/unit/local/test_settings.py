"""What the command line may set is judged before anything starts."""

from typing import Any

import pytest

from local.assembly import Assembly, StackTemplate
from local.settings import SettingError, configured

REFERENCE = {"Fn::ImportValue": "table"}
NAMES: dict[str, Any] = dict.fromkeys(("TABLE_NAME", "OWNER_INDEX", "QUEUE_URL", "STREAM_NAME"), REFERENCE)
WORKER = NAMES | {"WORKER_CAPACITY": "100", "LEASE_SELF_FENCE_SECONDS": "5", "POWERTOOLS_LOG_LEVEL": "INFO"}


def assembly() -> Assembly:
    entries = [{"Name": name, "Value": value} for name, value in WORKER.items()]
    task = {"Type": "Task", "Properties": {"ContainerDefinitions": [{"Environment": entries}]}}
    function = {
        "Type": "Function",
        "Properties": {"Environment": {"Variables": {"TABLE_NAME": REFERENCE, "ALLOWED_HOSTS": ""}}},
    }
    stacks = [
        StackTemplate("fleet", {"Resources": {"Task": task}}, []),
        StackTemplate("api", {"Resources": {"Function": function}}, []),
    ]
    return Assembly(stacks)


def environments(settings: dict[str, str], extra: dict[str, str] | None = None) -> tuple[dict[str, Any], Any]:
    """Those of the container and of the function."""
    fleet, api = configured(assembly(), settings, extra or {}).stacks
    (container,) = fleet.template["Resources"]["Task"]["Properties"]["ContainerDefinitions"]
    return (
        {entry["Name"]: entry["Value"] for entry in container["Environment"]},
        api.template["Resources"]["Function"]["Properties"]["Environment"]["Variables"],
    )


def test_settings_go_where_their_names_are() -> None:
    container, function = environments(
        {"WORKER_CAPACITY": "7", "ALLOWED_HOSTS": "localhost", "LEASE_GIVE_UP_SECONDS": "9"}
    )

    assert container == WORKER | {"WORKER_CAPACITY": "7", "LEASE_GIVE_UP_SECONDS": "9"}
    assert function == {"TABLE_NAME": REFERENCE, "ALLOWED_HOSTS": "localhost"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"COLOUR": "red"}, "COLOUR: there is no such setting, but ALLOWED_HOSTS, LEASE_SELF_FENCE_SECONDS, "),
        ({"HEARTBEAT_SECONDS": "1"}, "HEARTBEAT_SECONDS: there is no such setting"),
        ({"WORKER_COLOUR": "1"}, "WORKER_COLOUR: there is no such setting"),
        ({"TABLE_NAME": "mine"}, "TABLE_NAME: there is no such setting"),
        ({"worker_capacity": "1"}, "worker_capacity: there is no such setting"),
        ({"LEASE_HEARTBEAT_SECONDS": "abc"}, "LEASE_HEARTBEAT_SECONDS must be a number above 0, but is 'abc'"),
        ({"LEASE_HEARTBEAT_SECONDS": "-1"}, "LEASE_HEARTBEAT_SECONDS must be a number above 0, but is '-1'"),
        ({"LEASE_HEARTBEAT_SECONDS": "5"}, r"heartbeat <= \(self_fence - call_timeout\) / 3 is broken: 5\.0 > "),
        ({"LEASE_TAKEOVER_SECONDS": "6"}, r"takeover >= rate_ratio \* \(self_fence \+ drain\) is broken: 6\.0 < "),
        ({"WORKER_CAPACITY": "0"}, "WORKER_CAPACITY must be a whole number above 0, but is '0'"),
        ({"WORKER_CAPACITY": "many"}, "WORKER_CAPACITY must be a whole number above 0, but is 'many'"),
        ({"OUTPUT_SINK": "kafka"}, "OUTPUT_SINK must be one of kinesis, sqs_fifo, json_lines, null"),
        ({"OUTPUT_SINK": "json_lines"}, "OUTPUT_FILE must be set"),
        ({"POWERTOOLS_LOG_LEVEL": "LOUD"}, "POWERTOOLS_LOG_LEVEL must be one of .*DEBUG.*, but is 'LOUD'"),
    ],
)
def test_what_is_wrong_is_named_with_its_rule_and_value(settings: dict[str, str], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        configured(assembly(), settings, {})


def test_what_workers_get_beside_it_is_judged_with_it() -> None:
    assert environments({}, {"COLOUR": "red"}) == environments({})
    with pytest.raises(SettingError, match="LEASE_COLOUR: there is no such setting"):
        configured(assembly(), {}, {"LEASE_COLOUR": "red"})
    with pytest.raises(SettingError, match="takeover >= "):
        configured(assembly(), {"LEASE_SELF_FENCE_SECONDS": "6"}, {"LEASE_TAKEOVER_SECONDS": "7"})
