"""What the output costs per message: `python -m bench.output`. Prints a table, or JSON with `--json`.

Messages of 200 bytes go through outbox, pump, encoder and a sink that takes everything, in this one process; the CPU
time of all its threads is counted. Beside it, in the same shuffled run, stands what the parser of the `websockets`
library costs for the same message, from memory, without a socket or a task behind it.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side

from leases.rows import Item
from worker.outbox import Budget
from worker.output import Output
from worker.sinks.null import NullSink

MESSAGE = '{"symbol":"BTCUSDT","number":123456,"x":"' + "a" * 157 + '"}'
MESSAGES = 60_000
REPEATS = 5


class OpenGrant:
    """Always allows."""

    def __init__(self, connection: str) -> None:
        self.connection = connection
        self.epoch = 1_800_000_000

    def may_emit(self) -> bool:
        """Yes."""
        return True

    async def until_emit(self) -> None:
        """At once."""

    def checkpoint(self, cursor: str) -> None:
        """Forget it."""

    def report(self, status: Item) -> None:
        """Forget it."""

    def proven(self) -> None:
        """Forget it."""

    def fail(self, status: Item) -> None:
        """Forget it."""


async def output(connections: int, burst: int) -> None:
    """MESSAGES through the output: `burst` at a time for one connection after the other, the loop turning between."""
    out = Output(
        NullSink(),
        worker=lambda: "0" * 32,
        wall=time.time,
        budget=Budget(1 << 30, 16384, connections),
        connection_bytes=1 << 26,
    )
    pump = asyncio.create_task(out.run())
    boxes = [out.outbox(f"{number:032}") for number in range(connections)]
    for number, box in enumerate(boxes):
        box.begin(OpenGrant(f"{number:032}"), None)
    now = time.time()
    for turn in range(MESSAGES // burst):
        box = boxes[turn % connections]
        box.accept([MESSAGE] * burst, now)
        if turn % max(1, 64 // burst) == 0:
            await asyncio.sleep(0)
    for box in boxes:
        await box.flush()
    pump.cancel()
    await asyncio.gather(pump, return_exceptions=True)


async def receive(burst: int) -> None:
    """MESSAGES parsed by the protocol of the library, `burst` frames in each read."""
    protocol = Protocol(Side.CLIENT)
    frames = Frame(Opcode.TEXT, MESSAGE.encode()).serialize(mask=False) * burst
    for _ in range(MESSAGES // burst):
        protocol.receive_data(frames)
        for event in protocol.events_received():
            if isinstance(event, Frame):
                bytes(event.data).decode()


def cpu_per_message(case: Callable[[], Awaitable[None]]) -> float:
    """Microseconds of CPU per message."""

    async def run() -> float:
        began = time.process_time()
        await case()
        return (time.process_time() - began) / MESSAGES * 1e6

    return asyncio.run(run())


CASES: dict[str, Callable[[], Awaitable[None]]] = {
    "receive, 16 per read": lambda: receive(16),
    "receive, 1 per read": lambda: receive(1),
    "output, 16 per read, 100 connections": lambda: output(100, 16),
    "output, 1 per read, 1000 connections": lambda: output(1000, 1),
    "output, 1 connection": lambda: output(1, 64),
}


def measure() -> dict[str, Sequence[float]]:
    """All cases, shuffled, REPEATS times."""
    runs = [name for name in CASES for _ in range(REPEATS)]
    random.shuffle(runs)
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for name in runs:
        found[name].append(cpu_per_message(CASES[name]))
    return {name: sorted(values) for name, values in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    found = measure()
    if arguments.json:
        print(json.dumps({name: statistics.median(values) for name, values in found.items()}))
        return
    print("µs CPU per message (median, least, most)")
    for name, values in found.items():
        print(f"  {name:40} {statistics.median(values):6.2f} {values[0]:6.2f} {values[-1]:6.2f}")


if __name__ == "__main__":
    main()
