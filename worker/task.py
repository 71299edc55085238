"""The composition root of the supervisor."""

import asyncio
import os
import random
import sys
import time

from leases.clock import SystemClock
from leases.dynamodb import AsyncStore, Table
from telemetry.metrics import PROCESS_EXITS, SESSIONS_DECLARED_DEAD, Cause
from worker import health
from worker.assignments import Queue, QueuedHints
from worker.clients import HINTS, REAPING, Clients
from worker.exits import Exits
from worker.logs import logger
from worker.metering import Meter
from worker.observing import Watching
from worker.settings import BURIAL_SECONDS, Settings, SettingsError, load
from worker.supervisor import Plan, Supervisor

log = logger()

EXIT_MARGIN_SECONDS = 2
"""Of BURIAL_SECONDS: for what remains to be done at the very end."""

WORKER_PROCESS = (sys.executable, "-m", "worker.process")


def main() -> int:
    """Run the task until it is told to stop; returns the exit code."""
    try:
        settings = load()
    except SettingsError as error:
        log.error("The worker cannot start: %s", error)  # noqa: TRY400 - the message says it all
        return 2
    return asyncio.run(supervise(settings))


async def supervise(settings: Settings) -> int:
    """Run the task's supervisor; returns the exit code."""
    rng = random.Random()
    meter = Meter(settings.service)
    clients = Clients()
    table = Table(clients.dynamodb(REAPING), settings.table, settings.owner_index)
    exits = Exits(
        AsyncStore(table, REAPING.executor()),
        QueuedHints(Queue(clients.sqs(HINTS), settings.queue_url), HINTS.executor()),
        rng=rng,
        observer=Watching(meter, settings.timings.self_fence),
        wall=time.time,
    )

    async def declare(session: str) -> None:
        if await exits.declare(session):
            meter.count(SESSIONS_DECLARED_DEAD, label=Cause.EXIT)
            meter.flush()

    def replaced() -> None:
        meter.count(PROCESS_EXITS)
        meter.flush()

    supervisor = Supervisor(
        Plan(
            command=WORKER_PROCESS,
            environment=os.environ,
            processes=settings.processes,
            kill_after=settings.kill_after,
            bury_within=BURIAL_SECONDS - EXIT_MARGIN_SECONDS,
        ),
        declare=declare,
        replaced=replaced,
        now=SystemClock().now,
        rng=rng,
    )
    async with health.served(lambda: supervisor.healthy):
        return await supervisor.run()
