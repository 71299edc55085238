"""`make local`, as a user and a black-box test see it."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import psutil
import pytest
from websockets.asyncio.server import ServerConnection, serve

from local.api import Api, curl_line
from local.aws import Aws
from local.processes import ROOT, python_environment
from local.reader import records
from tests.support.up import PATIENCE_SECONDS, Running


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    running = Running("--workers", "2", "--capacity", "7", "--set", "LEASE_TAKEOVER_SECONDS=8", "--env", "COLOUR=red")
    yield running
    running.end(signal.SIGINT)


def test_it_says_where_everything_is_and_runs_what_it_says(running: Running) -> None:
    said = running.said

    assert [len(worker["workerPids"]) for worker in said["workers"]] == [1, 1]
    assert len({worker["taskArn"] for worker in said["workers"]}) == 2
    for worker in said["workers"]:
        for pid in (worker["supervisorPid"], *worker["workerPids"]):
            environment = psutil.Process(pid).environ()
            assert environment["WORKER_CAPACITY"] == "7"
            assert environment["LEASE_TAKEOVER_SECONDS"] == "8"
            assert environment["COLOUR"] == "red"
            assert environment["TABLE_NAME"] == said["tableName"]
            assert environment["AWS_ENDPOINT_URL"] == said["endpointUrl"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(number: signal.Signals) -> None:
    code = Running("--workers", "1").end(number)

    assert code == (-signal.SIGKILL if number is signal.SIGKILL else 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--set", "COLOUR=red"), "COLOUR: there is no such setting"),
        (("--set", "WORKER_COLOUR=1"), "WORKER_COLOUR: there is no such setting"),
        (("--set", "LEASE_HEARTBEAT_SECONDS=abc"), "LEASE_HEARTBEAT_SECONDS must be a number above 0, but is 'abc'"),
        (("--set", "LEASE_TAKEOVER_SECONDS=6"), "takeover >= rate_ratio * (self_fence + drain) is broken: 6.0 < "),
        (("--set", "WORKER_CAPACITY"), "argument --set: 'WORKER_CAPACITY' is not NAME=VALUE"),
        (("--capacity", "0"), "WORKER_CAPACITY must be a whole number above 0, but is '0'"),
        (("--env", "COLOUR"), "argument --env: 'COLOUR' is not NAME=VALUE"),
        (("--env", "=red"), "argument --env: '=red' is not NAME=VALUE"),
        (("--env", "WORKER_COLOUR=red"), "WORKER_COLOUR: there is no such setting"),
        (("--workers", "-1"), "argument --workers: '-1' is not a number of tasks"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_option_is_refused_by_name(options: tuple[str, ...], says: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "local", "up", *options],
        cwd=ROOT, env=python_environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip

    assert ran.returncode in (1, 2)
    assert ran.stdout == ""
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


async def test_a_connection_from_post_to_delete(running: Running) -> None:
    said = running.said
    arrived: asyncio.Queue[tuple[str, object]] = asyncio.Queue()

    async def upstream(connection: ServerConnection) -> None:
        await arrived.put(("subscribed", await connection.recv()))
        await connection.send("hello")
        await connection.wait_closed()
        await arrived.put(("closed", connection.close_code))

    async with serve(upstream, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        api = Api(said["apiUrl"])
        body = {"url": f"ws://127.0.0.1:{port}/", "onOpen": [{"text": "subscribe"}]}
        accepted = await asyncio.to_thread(api.call, "POST", "/connections", body)
        assert accepted.status == HTTPStatus.ACCEPTED
        assert await asyncio.wait_for(arrived.get(), PATIENCE_SECONDS) == ("subscribed", "subscribe")

        await asyncio.wait_for(asyncio.to_thread(_until_message, said, "hello"), PATIENCE_SECONDS)

        path = f"/connections/{accepted.body['connectionId']}"
        assert (await asyncio.to_thread(api.call, "DELETE", path)).status < HTTPStatus.MULTIPLE_CHOICES
        assert await asyncio.wait_for(arrived.get(), PATIENCE_SECONDS) == ("closed", 1001)


@pytest.mark.parametrize(("body", "field"), [({}, "url"), ({"url": "http://x"}, "url")])
def test_garbage_is_refused_by_the_name_of_its_field(running: Running, body: dict[str, Any], field: str) -> None:
    answer = Api(running.said["apiUrl"]).call("POST", "/connections", body)

    assert answer.status == HTTPStatus.BAD_REQUEST
    assert answer.body["error"]["field"] == field


def test_the_command_line_that_it_shows_works(running: Running) -> None:
    command = [*shlex.split(curl_line(running.said["apiUrl"])), "--silent", "--show-error"]

    ran = subprocess.run(
        command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )

    assert json.loads(ran.stdout)["connectionId"], ran


def _until_message(said: dict[str, Any], text: str) -> None:
    for batch in records(Aws(said["endpointUrl"]), said["streamName"]):
        if any(record["type"] == "message" and record["data"] == text for record in batch):
            return
