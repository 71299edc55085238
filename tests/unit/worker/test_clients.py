"""Every client has the time-outs and attempts of its purpose, not those of the SDK."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from leases.timings import Timings
from worker import clients
from worker.clients import HEARTBEAT, HEARTBEAT_PATIENCE, JUDGE, Clients, Purpose

PURPOSES = [value for value in vars(clients).values() if isinstance(value, Purpose)]


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A server that takes connections and never says anything, as the endpoint of every service."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        yield server


@pytest.mark.parametrize("purpose", PURPOSES, ids=lambda purpose: purpose.name)
def test_a_client_is_made_for_its_purpose(mute: socket.socket, purpose: Purpose) -> None:
    config: Any = Clients().dynamodb(purpose).meta.config  # its options are not in the stubs
    assert (config.connect_timeout, config.read_timeout) == (purpose.connect, purpose.read)
    assert config.retries["total_max_attempts"] == purpose.attempts
    assert config.max_pool_connections == purpose.threads
    assert config.region_name == "eu-west-1"


def test_what_emits_is_given_up_within_the_drain_time(mute: socket.socket) -> None:
    for client in (Clients().kinesis(1.0), Clients().fifo(1.0)):
        config: Any = client.meta.config
        assert config.connect_timeout + config.read_timeout <= 1.0
        assert config.retries["total_max_attempts"] == 1


def test_a_heartbeat_is_repeated_when_the_timings_say() -> None:
    assert Timings().call_timeout == HEARTBEAT_PATIENCE


def test_every_attempt_of_a_heartbeat_has_a_thread_while_its_answer_can_be_of_use() -> None:
    assert HEARTBEAT.timeout < Timings().self_fence
    assert HEARTBEAT.threads * HEARTBEAT_PATIENCE >= HEARTBEAT.timeout


def test_a_call_without_an_answer_is_one_attempt(mute: socket.socket) -> None:
    client = Clients().dynamodb(JUDGE)
    began = time.monotonic()
    with pytest.raises(ReadTimeoutError):
        client.get_item(TableName="t", Key={"pk": {"S": "p"}, "sk": {"S": "s"}})
    assert time.monotonic() - began < 3
    client.close()
    mute.settimeout(20)
    mute.accept()[0].close()
    mute.settimeout(0.2)
    with pytest.raises(TimeoutError):
        mute.accept()
