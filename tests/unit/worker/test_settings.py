"""Settings: what is refused, and that the refusal names variable and rule."""

import pytest

from leases.timings import Timings
from worker.settings import Settings, SettingsError, SinkKind

NEEDED = {"TABLE_NAME": "t", "OWNER_INDEX": "by_owner", "QUEUE_URL": "http://queue", "STREAM_NAME": "s"}


def settings(**variables: str) -> Settings:
    return Settings.from_environment(NEEDED | variables, cpus=2, files=65536)


def test_what_is_not_set_has_the_documented_value() -> None:
    found = settings()
    assert found.timings == Timings()
    assert (found.capacity, found.processes, found.drain_seconds) == (1000, 2, 90)
    assert (found.sink, found.sink_target) == (SinkKind.KINESIS, "s")
    assert (found.connect_rate, found.group_connect_rate) == (100, 50)
    assert found.kill_after == 110


def test_every_timing_can_be_set() -> None:
    found = settings(
        LEASE_HEARTBEAT_SECONDS="0.9",
        LEASE_SELF_FENCE_SECONDS="4.5",
        LEASE_DRAIN_SECONDS="0.5",
        LEASE_TAKEOVER_SECONDS="6",
        LEASE_JUDGE_POLL_SECONDS="0.25",
        LEASE_GIVE_UP_SECONDS="30",
        LEASE_RATE_RATIO="1.2",
    )
    assert found.timings == Timings(
        heartbeat=0.9, self_fence=4.5, drain=0.5, takeover=6, judge_poll=0.25, give_up=30, rate_ratio=1.2
    )


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_name_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} must be set"):
        Settings.from_environment({**NEEDED, name: ""}, cpus=1, files=65536)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORKER_CAPACITY": "0"}, "WORKER_CAPACITY must be a whole number above 0"),
        ({"WORKER_CAPACITY": "many"}, "WORKER_CAPACITY must be a whole number above 0"),
        ({"WORKER_CAPACITY": "65281"}, r"WORKER_CAPACITY must be at most the limit of open files \(nofile\) - 256"),
        ({"WORKER_PROCESSES": "-1"}, "WORKER_PROCESSES must be a whole number above 0"),
        ({"WORKER_DRAIN_SECONDS": "112"}, "WORKER_DRAIN_SECONDS must be below 112"),
        ({"WORKER_DRAIN_SECONDS": "nan"}, "WORKER_DRAIN_SECONDS must be a number above 0"),
        ({"WORKER_BUFFER_BYTES": "1000"}, "WORKER_BUFFER_BYTES must be at least"),
        ({"WORKER_CONNECTION_BUFFER_BYTES": "1000"}, "WORKER_CONNECTION_BUFFER_BYTES must be at least"),
        ({"WORKER_CONNECT_RATE": "0"}, "WORKER_CONNECT_RATE must be a number above 0"),
        ({"WORKER_CONNECT_RATE": "20"}, "WORKER_GROUP_CONNECT_RATE must be at most WORKER_CONNECT_RATE = 20"),
        ({"WORKER_COLOUR": "1"}, "WORKER_COLOUR: there is no such setting"),
        ({"LEASE_TAKEOVER": "7", "OUTPUT_SINKS": "null"}, "LEASE_TAKEOVER, OUTPUT_SINKS: there is no such setting"),
        ({"OUTPUT_SINK": "kafka"}, "OUTPUT_SINK must be one of kinesis, sqs_fifo, json_lines, null"),
        ({"OUTPUT_SINK": "json_lines"}, "OUTPUT_FILE must be set"),
        ({"OUTPUT_SINK": "sqs_fifo"}, "OUTPUT_QUEUE_URL must be set"),
        ({"ALLOWED_HOSTS": "10.0.0.0/99"}, "ALLOWED_HOSTS must be"),
        ({"LEASE_HEARTBEAT_SECONDS": "0"}, "LEASE_HEARTBEAT_SECONDS must be a number above 0"),
        ({"LEASE_HEARTBEAT_SECONDS": "-1"}, "LEASE_HEARTBEAT_SECONDS must be a number above 0"),
        ({"LEASE_HEARTBEAT_SECONDS": "5"}, r"heartbeat <= \(self_fence - call_timeout\) / 3 .*LEASE_HEARTBEAT_SECONDS"),
        (
            {"LEASE_TAKEOVER_SECONDS": "6"},
            r"takeover >= rate_ratio \* \(self_fence \+ drain\) .*LEASE_TAKEOVER_SECONDS",
        ),
        (
            {"LEASE_HEARTBEAT_SECONDS": "0.3", "LEASE_SELF_FENCE_SECONDS": "2.2"},
            r"self_fence >= max\(heartbeat, 0.25\) \+ 2 \* .* 2.2 < .*LEASE_SELF_FENCE_SECONDS",
        ),
        ({"LEASE_TAKEOVER_SECONDS": "1e300"}, r"takeover must be from .* 1e\+300 .*LEASE_TAKEOVER_SECONDS"),
    ],
)
def test_what_breaks_a_rule_is_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.from_environment(NEEDED | variables, cpus=1, files=65536)


def test_variables_of_others_and_targets_of_other_sinks_are_left_alone() -> None:
    assert settings(PATH="/bin", AWS_REGION="eu-central-1", OUTPUT_FILE="/dev/null") == settings()


def test_a_longer_drain_than_fits_before_the_kill_is_cut_short() -> None:
    assert settings(WORKER_DRAIN_SECONDS="105").kill_after == 112
