"""Socket.IO 5 on Engine.IO 4 (https://socket.io/docs/v4/engine-io-protocol/), served by python-socketio."""

import json
from collections.abc import Callable

import pytest

from leases.ports import Parting
from tests.integration.engine.conftest import Bench
from tests.integration.upstreams.conftest import Command, Server, program
from tests.support.upstream import until
from worker.runner import Runner

pytestmark = [pytest.mark.asyncio(loop_factories=["uvloop"]), pytest.mark.usefixtures("quick")]

PATH = "/socket.io/?EIO=4&transport=websocket"
CONNECT = [{"waitFor": {"contains": '"sid"'}, "text": "40"}, {"waitFor": {"contains": "40{"}}]


def numbers(bench: Bench, runner: Runner) -> list[int]:
    """The numbers that came: `42["number",1]`."""
    return [json.loads(data[2:])[1] for data in bench.data(runner) if data.startswith("42")]


async def test_its_pings_are_answered_it_may_restart_and_the_stop_is_clean(
    bench: Bench, serve: Callable[[Command], Server]
) -> None:
    server = serve(program("socketio_server.py"))
    await server.start()
    runner, lease = bench.run(server.url(PATH), onOpen=CONNECT, adapter="engine.io")
    # Two seconds without an answer to a ping, and the server would have hung up.
    await until(lambda: bench.data(runner).count("2") >= 4)
    assert bench.data(runner)[0].startswith('0{"sid":')
    assert bench.kinds(runner).count("opened") == 1

    await server.stop()
    await until(lambda: lease.state == "BACKING_OFF")
    before = numbers(bench, runner)
    assert before == list(range(1, len(before) + 1))
    await server.start()
    await until(lambda: len(numbers(bench, runner)) >= len(before) + 20)
    after = numbers(bench, runner)[len(before) :]
    assert after == list(range(1, len(after) + 1))
    assert [kind for kind in bench.kinds(runner) if kind != "message"] == ["opened", "closed", "gap", "opened"]

    left = server.told().count("left: ")
    await runner.settle(Parting.STOPPED)
    await runner.close()
    await until(lambda: server.told().count("left: ") == left + 1)
    assert "ping timeout" not in server.told()


async def test_without_the_adapter_the_server_hangs_up(bench: Bench, serve: Callable[[Command], Server]) -> None:
    server = serve(program("socketio_server.py"))
    await server.start()
    runner, _ = bench.run(server.url(PATH), onOpen=CONNECT)
    await until(lambda: "closed" in bench.kinds(runner))
    assert "left: ping timeout" in server.told()
