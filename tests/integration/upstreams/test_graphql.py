"""GraphQL over WebSocket (https://github.com/enisdenjo/graphql-ws/blob/master/PROTOCOL.md), served by Ariadne."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from leases.ports import Parting
from tests.integration.engine.conftest import Bench
from tests.integration.upstreams.conftest import Command, Server, program
from tests.support.upstream import until
from worker.runner import Runner

pytestmark = [pytest.mark.asyncio(loop_factories=["uvloop"]), pytest.mark.usefixtures("quick")]

SUBSCRIBE = {"type": "subscribe", "id": "1", "payload": {"query": "subscription { count }"}}
REQUEST: dict[str, Any] = {
    "subprotocols": ["graphql-transport-ws"],
    "onOpen": [
        json.dumps({"type": "connection_init"}),
        {"waitFor": {"pointer": "/type", "equals": "connection_ack"}, "text": json.dumps(SUBSCRIBE)},
    ],
    "appPing": {"payload": json.dumps({"type": "ping"}), "intervalSeconds": 1},
}


def counts(bench: Bench, runner: Runner) -> list[int]:
    """The numbers that came."""
    messages = map(json.loads, bench.data(runner))
    return [message["payload"]["data"]["count"] for message in messages if message["type"] == "next"]


async def test_subscribes_after_the_acknowledgement_survives_a_restart_and_stops_cleanly(
    bench: Bench, serve: Callable[[Command], Server]
) -> None:
    server = serve(program("graphql_server.py"))
    await server.start()
    runner, lease = bench.run(server.url("/graphql"), **REQUEST)
    await until(lambda: len(counts(bench, runner)) >= 20)
    await until(lambda: any(json.loads(data)["type"] == "pong" for data in bench.data(runner)))
    assert json.loads(bench.data(runner)[0])["type"] == "connection_ack"

    await server.stop()
    await until(lambda: lease.state == "BACKING_OFF")
    before = counts(bench, runner)
    assert before == list(range(1, len(before) + 1))
    await server.start()
    await until(lambda: len(counts(bench, runner)) >= len(before) + 20)
    after = counts(bench, runner)[len(before) :]
    assert after == list(range(1, len(after) + 1))
    assert [kind for kind in bench.kinds(runner) if kind != "message"] == ["opened", "closed", "gap", "opened"]

    ended = server.told().count("subscription ended")
    await runner.settle(Parting.STOPPED)
    await runner.close()
    await until(lambda: server.told().count("subscription ended") == ended + 1)
