"""One worker process beside a bare, tuned `websockets` client: memory, messages, connects, keepalive, bad upstreams.

    python -m bench.engine [--only CASE ...] [--repeat N] [--save DIRECTORY]

Every case runs in a process of its own, against `bench.pump` in another; the repetitions of both clients are shuffled,
so that what the machine does meanwhile hits both. Prints JSON and a table. Times are CPU time, except for those that
say otherwise.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import random
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import uvloop
from websockets.asyncio.client import ClientConnection, connect

from connections.spec import ConnectionSpec
from connections.url_policy import UrlPolicy
from leases.clock import SystemClock
from leases.ports import Store
from leases.rows import ConnectionRow, Desired, Item, Key
from tests.support.certificates import Authority
from worker.admission import GROUP_ALLOWANCE, Admission, Allowance
from worker.engine import Engine
from worker.metering import Meter
from worker.outbox import Budget
from worker.output import Output
from worker.records import Entry
from worker.runner import Runner
from worker.sinks import Outcome, Sink, Verdict
from worker.sinks.null import NullSink

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
WIDE = Allowance(rate=1e6, burst=10**6, in_flight=256)
PAGE = os.sysconf("SC_PAGESIZE")

Result = dict[str, float]
Medians = dict[str, dict[str, Result]]
"""By case and client."""


class StalledSink(NullSink):
    """Takes nothing."""

    def put(self, entries: Sequence[Entry], may_send: Callable[[], bool]) -> Sequence[Verdict]:  # noqa: ARG002
        """See `worker.sinks.Sink`."""
        return [Verdict(Outcome.AGAIN, "stalled")] * len(entries)


class Lease:
    """A grant that always holds."""

    epoch = 1

    def __init__(self, connection: str) -> None:
        self.connection = connection
        self.states: list[str] = []

    def may_emit(self) -> bool:
        """See `leases.ports.Grant`."""
        return True

    async def until_emit(self) -> None:
        """See `leases.ports.Grant`."""

    def checkpoint(self, cursor: str) -> None:
        """See `leases.ports.Grant`."""

    def report(self, status: Item) -> None:
        """See `leases.ports.Grant`."""
        self.states = [status["state"]]

    def proven(self) -> None:
        """See `leases.ports.Grant`."""

    def fail(self, status: Item) -> None:
        """See `leases.ports.Grant`."""
        raise RuntimeError(f"given up: {status}")


class Specs:
    """A table with one request in it, for every connection."""

    def __init__(self, spec: ConnectionSpec) -> None:
        self._item = {"spec": spec.to_json()}

    async def get(self, key: Key) -> Item | None:  # noqa: ARG002 - the same for all
        """See `leases.ports.Store`."""
        return self._item


class Client:
    """So many connections, opened at once."""

    async def open(self, url: str, count: int) -> None:
        """Return when all are open."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close them all."""
        raise NotImplementedError

    @property
    def received(self) -> int:
        """Messages taken in so far."""
        raise NotImplementedError


class Bare(Client):
    """Tuned `websockets`: no compression, one TLS context, short queue, bytes, a reader task each."""

    def __init__(self, context: ssl.SSLContext | None = None, *, ping: float = 20) -> None:
        self._context = context
        self._ping = ping
        self._sockets: list[ClientConnection] = []
        self._readers: list[asyncio.Task[None]] = []
        self._received = 0

    async def open(self, url: str, count: int) -> None:
        gate = asyncio.Semaphore(WIDE.in_flight)

        async def one() -> None:
            async with gate:
                socket = await connect(
                    url,
                    compression=None,
                    proxy=None,
                    max_queue=(8, 2),
                    ssl=self._context,
                    ping_interval=self._ping,
                    ping_timeout=self._ping,
                    close_timeout=5,
                )
            self._sockets.append(socket)
            self._readers.append(asyncio.create_task(self._read(socket)))

        await asyncio.gather(*(one() for _ in range(count)))

    async def _read(self, socket: ClientConnection) -> None:
        while True:
            await socket.recv(decode=False)
            self._received += 1

    async def close(self) -> None:
        await asyncio.gather(*(socket.close() for socket in self._sockets))
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._sockets.clear()
        self._readers.clear()

    @property
    def received(self) -> int:
        return self._received


class Ours(Client):
    """Runners of an engine, with leases that hold and a null sink."""

    def __init__(
        self,
        context: ssl.SSLContext | None = None,
        *,
        ping: float = 20,
        sink: Sink | None = None,
        budget: int = 64 * MEBIBYTE,
        allowance: Allowance = WIDE,
    ) -> None:
        self._allowance = allowance
        self._ping = {"intervalSeconds": ping, "timeoutSeconds": ping}
        self._context = context
        clock = SystemClock()
        self.output = Output(
            sink or NullSink(),
            worker=lambda: "session",
            wall=clock.wall,
            budget=Budget(budget, 1, 1),
            connection_bytes=4 * MEBIBYTE,
        )
        self._clock = clock
        self._engine: Engine | None = None
        self._pump = asyncio.create_task(self.output.run())
        self.runners: list[Runner] = []

    async def open(self, url: str, count: int) -> None:
        specs = Specs(ConnectionSpec.from_json(json.dumps({"url": url, "wsPing": self._ping})))
        if self._engine is None:
            self._engine = Engine(
                store=cast("Store", specs),
                output=self.output,
                read_secret=lambda name: name,
                policy=UrlPolicy.parse("localhost,127.0.0.1"),
                clock=self._clock,
                meter=Meter("bench"),
                context=self._context,
                admission=Admission(asyncio.get_running_loop().time, process=WIDE, group=self._allowance),
            )
        self._engine.store = cast("Store", specs)
        before = len(self.runners)
        for number in range(count):
            connection = f"connection-{before + number:06}"
            row = ConnectionRow(connection=connection, owner="session", epoch=1, desired=Desired.RUNNING, generation=1)
            runner = self._engine.runner(row)
            runner.begin(Lease(connection), None)
            self.runners.append(runner)
        for runner in self.runners[before:]:
            await runner.ready.wait()

    async def close(self) -> None:
        await asyncio.gather(*(runner.close() for runner in self.runners))
        self.runners.clear()

    @property
    def received(self) -> int:
        return self._engine.intake.messages if self._engine is not None else 0


def client(who: str, context: ssl.SSLContext | None = None) -> Client:
    """A client by name."""
    return Bare(context) if who == "bare" else Ours(context)


# Measuring


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


class Pump:
    """The server process."""

    def __init__(self, certificate: Path | None = None) -> None:
        arguments = ["--certificate", str(certificate)] if certificate else []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.pump", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(self._process.pid, {1})
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())
        self._scheme = "wss" if certificate else "ws"

    def url(self, path: str) -> str:
        """Where to connect to."""
        return f"{self._scheme}://localhost:{self._port}{path}"

    async def ask(self, command: str) -> dict[str, Any]:
        """Have the server do something; returns what it says."""
        async with connect(self.url("/control"), compression=None, proxy=None, max_size=None) as control:
            await control.send(command)
            return cast("dict[str, Any]", json.loads(await control.recv()))

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()


@asynccontextmanager
async def opened(
    who: str, pump: Pump, path: str, count: int, context: ssl.SSLContext | None = None
) -> AsyncIterator[Client]:
    """A client whose connections are open, after a warm-up."""
    subject = client(who, context)
    await subject.open(pump.url("/idle"), 50)
    await subject.close()
    await subject.open(pump.url(path), count)
    yield subject


async def idle(who: str, pump: Pump, count: int, context: ssl.SSLContext | None = None) -> Result:
    """Memory of idle connections, and what opening them costs."""
    subject = client(who, context)
    await subject.open(pump.url("/idle"), 50)
    await subject.close()
    gc.collect()
    memory, cpu, wall = resident(), time.process_time(), time.perf_counter()
    await subject.open(pump.url("/idle"), count)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    await asyncio.sleep(3)
    gc.collect()
    return {
        "KiB per connection": (resident() - memory) / count / KIBIBYTE,
        "connect ms": 1000 * cpu / count,
        "open s (wall)": wall,
        "resident MB": resident() / MEBIBYTE,
    }


async def batched(who: str, pump: Pump) -> Result:
    """32,000 messages a second on 100 connections, 16 in each read."""
    async with opened(who, pump, "/burst", 100) as subject:
        await asyncio.sleep(2)
        count, cpu = subject.received, time.process_time()
        await asyncio.sleep(5)
        count, cpu = subject.received - count, time.process_time() - cpu
        return {"µs per message": 1e6 * cpu / count, "messages per core second": count / cpu}


async def one_each(who: str, pump: Pump) -> Result:
    """One message waiting on each of 1,000 sockets: one wake-up for each."""
    async with opened(who, pump, "/idle", 1000) as subject:
        await asyncio.sleep(1)
        started, cpu = subject.received, time.process_time()
        for _ in range(20):
            wanted = subject.received + 1000
            await pump.ask("one")
            while subject.received < wanted:  # noqa: ASYNC110 - an event would cost what is measured
                await asyncio.sleep(0.002)
        count, cpu = subject.received - started, time.process_time() - cpu
        return {"µs per message": 1e6 * cpu / count, "messages per core second": count / cpu}


async def ticking(who: str, pump: Pump) -> Result:
    """5,000 connections with a message a second each."""
    async with opened(who, pump, "/tick", 5000) as subject:
        await asyncio.sleep(5)
        lags: list[float] = []
        count, cpu, until = subject.received, time.process_time(), time.perf_counter() + 10
        while time.perf_counter() < until:
            due = time.perf_counter() + 0.01
            await asyncio.sleep(0.01)
            lags.append(1000 * (time.perf_counter() - due))
        count, cpu = subject.received - count, time.process_time() - cpu
        return {"µs per message": 1e6 * cpu / count, "lag p99 ms (wall)": statistics.quantiles(lags, n=100)[98]}


async def keepalive(who: str, pump: Pump) -> Result:
    """10,000 idle connections that are pinged every 20 s."""
    async with opened(who, pump, "/idle", 10_000):
        await asyncio.sleep(20)
        cpu = time.process_time()
        await asyncio.sleep(40)
        return {"% of a core": 100 * (time.process_time() - cpu) / 40}


async def stalled(who: str, pump: Pump) -> Result:  # noqa: ARG001 - ours only
    """1,000 connections that are flooded while the sink takes nothing, with a budget of 32 MiB."""
    subject = Ours(sink=StalledSink(), budget=32 * MEBIBYTE)
    await subject.open(pump.url("/idle"), 50)
    await subject.close()
    gc.collect()
    memory = resident()
    await subject.open(pump.url("/tick"), 1000)
    until = time.perf_counter() + 150
    most = 0
    while time.perf_counter() < until and subject.output.budget.used < 31 * MEBIBYTE:
        await asyncio.sleep(0.2)
        most = max(most, resident())
    return {
        "KiB per connection": (most - memory) / 1000 / KIBIBYTE,
        "buffered MiB": subject.output.budget.used / MEBIBYTE,
    }


async def dropped(who: str, pump: Pump) -> Result:  # noqa: ARG001 - ours only
    """1,000 connections that the server closes at once: when they come back."""
    subject = Ours(allowance=GROUP_ALLOWANCE)
    await subject.open(pump.url("/idle"), 1000)
    await pump.ask("forget")
    await pump.ask("drop")
    await asyncio.sleep(45)
    seen = await pump.ask("accepts")
    seconds = dict(seen["seconds"])
    window = max(seconds) + 1
    return {"busiest second / mean": max(seconds.values()) / (1000 / window), "window s": window, "back": seen["open"]}


async def flapping(who: str, pump: Pump) -> Result:  # noqa: ARG001 - ours only
    """20 connections to a server that accepts and closes: attempts of one of them per minute."""
    subject = Ours(allowance=GROUP_ALLOWANCE)
    opening = asyncio.create_task(subject.open(pump.url("/flap"), 20))
    await asyncio.sleep(180)
    seen = dict((await pump.ask("accepts"))["seconds"])
    opening.cancel()
    first = sum(count for second, count in seen.items() if second < 60)
    later = sum(count for second, count in seen.items() if second >= 60)
    return {"attempts in the first minute": first / 20, "a minute after": later / 2 / 20}


async def blocked(who: str, pump: Pump) -> Result:
    """The event loop stands still for 3.5 s while pings are in flight: how many of 200 connections that costs."""
    subject: Client = Bare(ping=2) if who == "bare" else Ours(ping=2)
    await subject.open(pump.url("/slow"), 200)
    # The server takes a second for each pong, so about a third of the pings are in flight at any time.
    await asyncio.sleep(5)
    await pump.ask("forget")
    time.sleep(3.5)  # noqa: ASYNC251 - the stall
    await asyncio.sleep(8)
    return {"closed": (await pump.ask("accepts"))["ended"]}


async def deaf(who: str, pump: Pump) -> Result:
    """5,000 peers that never answer a close frame: how long closing takes."""
    async with opened(who, pump, "/deaf", 5000) as subject:
        started = time.perf_counter()
        await subject.close()
        return {"close s (wall)": time.perf_counter() - started}


Case = Callable[[str, Pump], Any]
CASES: dict[str, tuple[Case, tuple[str, ...], str]] = {
    "idle": (lambda who, pump: idle(who, pump, 1000), ("bare", "ours"), "1,000 idle connections"),
    "tls": (lambda who, pump: idle(who, pump, 500), ("bare", "ours"), "500 idle connections over TLS"),
    "many": (lambda who, pump: idle(who, pump, 10_000), ("bare", "ours"), "10,000 idle connections"),
    "batched": (batched, ("bare", "ours"), "messages, 16 per read"),
    "one_each": (one_each, ("bare", "ours"), "messages, one per wake-up"),
    "ticking": (ticking, ("bare", "ours"), "5,000 connections × 1 message/s"),
    "keepalive": (keepalive, ("bare", "ours"), "10,000 idle connections, pings every 20 s"),
    "stalled": (stalled, ("ours",), "1,000 connections, stalled sink"),
    "dropped": (dropped, ("ours",), "1,000 connections dropped at once"),
    "flapping": (flapping, ("ours",), "a server that accepts, then closes"),
    "blocked": (blocked, ("bare", "ours"), "own loop stalled for 3.5 s, 200 pings in flight"),
    "deaf": (deaf, ("bare", "ours"), "5,000 peers that never answer the close"),
}


def run_one(case: str, who: str) -> None:
    """Run one case in this process, and print its result."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {0})
    run, _, _ = CASES[case]
    with tempfile.TemporaryDirectory() as directory:
        if case == "tls":
            authority = Authority(Path(directory))
            authority.server("localhost")
            context = authority.client()
            pump = Pump(Path(directory) / "localhost.pem")
            result = uvloop.run(idle(who, pump, 500, context))
        else:
            pump = Pump()
            result = uvloop.run(run(who, pump))
        pump.stop()
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    # What is still open need not be closed one by one.
    os._exit(0)


def main() -> None:
    """Run the cases, shuffled, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=sorted(CASES), default=list(CASES), metavar="CASE")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--save", type=Path, metavar="DIRECTORY", help="also write engine.json and engine.md there")
    parser.add_argument("--run", nargs=2, metavar=("CASE", "WHO"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run_one(*arguments.run)
    work = [(case, who) for case in arguments.only for who in CASES[case][1] for _ in range(arguments.repeat)]
    random.shuffle(work)
    found: dict[str, dict[str, list[Result]]] = {}
    for case, who in work:
        output = subprocess.run(
            [sys.executable, "-m", "bench.engine", "--run", case, who], capture_output=True, text=True
        )
        if output.returncode:
            sys.exit(output.stderr)
        found.setdefault(case, {}).setdefault(who, []).append(json.loads(output.stdout.splitlines()[-1]))
    medians: Medians = {
        case: {
            who: {name: statistics.median(result[name] for result in results) for name in results[0]}
            for who, results in by_who.items()
        }
        for case, by_who in found.items()
    }
    if arguments.save is not None:
        save(arguments.save, medians)
    sys.stdout.write(json.dumps(medians, indent=2, ensure_ascii=False) + "\n\n" + table(medians))


def table(medians: Medians) -> str:
    """Both clients side by side."""
    lines = [f"{'':<48}{'':<30}{'bare':>12}{'ours':>12}{'ratio':>8}"]
    for case, (_, _, title) in CASES.items():
        by_who = medians.get(case, {})
        for name, ours in by_who.get("ours", {}).items():
            bare = by_who.get("bare", {}).get(name)
            beside = (
                f"{bare:>12.2f}{ours:>12.2f}{ours / bare if bare else 0:>8.2f}"
                if bare is not None
                else f"{'':>12}{ours:>12.2f}"
            )
            lines.append(f"{title:<48}{name:<30}{beside}")
    return "\n".join(lines) + "\n"


def save(directory: Path, medians: Medians) -> None:
    """Write `engine.json` and `engine.md`; what was measured before and is not measured now stays in them."""
    directory.mkdir(exist_ok=True)
    kept = directory / "engine.json"
    merged: Medians = (json.loads(kept.read_text()) if kept.exists() else {}) | medians
    kept.write_text(json.dumps(merged, indent=2, ensure_ascii=False) + "\n")
    software = ", ".join(f"{name} {version(name)}" for name in ("websockets", "uvloop"))
    where = f"CPython {platform.python_version()}, {software}, {os.cpu_count()} shared cores"
    text = f"# One worker process beside a bare client\n\n`make bench-engine` on {where}. Medians.\n\n"
    (directory / "engine.md").write_text(f"{text}```\n{table(merged)}```\n")


if __name__ == "__main__":
    main()
