"""A real supervisor over `child_program.py`: `supervisor_program.py DIRECTORY PROCESSES KILL_AFTER HUNG_AFTER
START_WITHIN`.

Every session that it declares dead becomes a file `dead-SESSION`, every process it has to replace a line in `replaced`.
"""

import signal

from worker.child import STOP_SIGNALS

signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

import asyncio  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402
from random import Random  # noqa: E402

from worker import health  # noqa: E402
from worker.supervisor import Plan, Supervisor  # noqa: E402

directory = Path(sys.argv[1])
processes = int(sys.argv[2])
kill_after, hung_after, start_within = map(float, sys.argv[3:])


async def declare(session: str) -> None:
    while (directory / "store-down").exists():  # noqa: ASYNC110 - told by another process
        await asyncio.sleep(0.01)
    (directory / f"dead-{session}").touch()


def replaced() -> None:
    with (directory / "replaced").open("a") as file:
        file.write(f"{time.monotonic()}\n")


async def main() -> int:
    supervisor = Supervisor(
        Plan(
            command=[sys.executable, str(Path(__file__).with_name("child_program.py")), str(directory)],
            environment=os.environ,
            processes=processes,
            kill_after=kill_after,
            bury_within=2.0,
            hung_after=hung_after,
            start_within=start_within,
        ),
        declare=declare,
        replaced=replaced,
        now=time.monotonic,
        rng=Random(1),
    )
    async with health.served(lambda: supervisor.healthy):
        return await supervisor.run()


sys.exit(asyncio.run(main()))
