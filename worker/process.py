"""One worker process: everything wired together, on one loop, and ended in order."""

import asyncio
import importlib
import importlib.util
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from random import Random

from leases.clock import SystemClock
from leases.dynamodb import AsyncStore, Table
from leases.late import LateAnswers
from leases.member import Identity, Member
from telemetry.logs import Field
from worker import clients
from worker.admission import GROUP_IN_FLIGHT, PROCESS_IN_FLIGHT, Admission, Allowance
from worker.assignments import Assignments, Queue, QueuedHints
from worker.child import LEFT_BEHIND, STOP_SIGNALS, Supervision
from worker.clients import Clients, Purpose
from worker.engine import Engine
from worker.host import WorkerHost
from worker.logs import logger
from worker.metadata import NoMetadata, TaskMetadata
from worker.metering import Meter
from worker.observing import Watching
from worker.outbox import Budget
from worker.output import Output
from worker.secrets import secrets_manager
from worker.settings import CONNECTION_SHARE_BYTES, Settings, SettingsError, SinkKind, load
from worker.sinks import Sink
from worker.sinks.json_lines import JsonLinesSink
from worker.sinks.kinesis import KinesisSink
from worker.sinks.null import NullSink
from worker.sinks.sqs_fifo import SqsFifoSink
from worker.vitals import Vitals

log = logger()


async def serve(settings: Settings, supervision: Supervision, task: TaskMetadata) -> int:
    """Be a member of the fleet until told to stop, and drained; returns the exit code."""
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    rng = Random()
    made = Clients()
    meter = Meter(settings.service)

    def store(purpose: Purpose) -> AsyncStore:
        return AsyncStore(Table(made.dynamodb(purpose), settings.table, settings.owner_index), purpose.executor())

    queue = Queue(made.sqs(clients.HINTS), settings.queue_url)
    leases_store = store(clients.LEASES)
    hint_threads = clients.HINTS.executor()
    watching = Watching(meter, settings.timings.self_fence)
    output = Output(
        _sink(settings, made),
        worker=lambda: watching.session,
        wall=clock.wall,
        budget=Budget(settings.buffer_bytes, CONNECTION_SHARE_BYTES, settings.capacity),
        connection_bytes=settings.connection_buffer_bytes,
    )
    engine = Engine(
        store=leases_store,
        output=output,
        read_secret=secrets_manager(made.secrets(), settings.secret_prefix),
        policy=settings.url_policy,
        clock=clock,
        meter=meter,
        admission=Admission(
            loop.time,
            process=Allowance.per_second(settings.connect_rate, PROCESS_IN_FLIGHT),
            group=Allowance.per_second(settings.group_connect_rate, GROUP_IN_FLIGHT),
        ),
    )
    vitals = Vitals(meter, output, engine.intake, lambda: member.held / settings.capacity)
    member = Member(
        identity=Identity(task_arn=task.task_arn, revision=task.revision, capacity=settings.capacity),
        store=leases_store,
        heartbeat_store=LateAnswers(store(clients.HEARTBEAT)),
        judge_store=store(clients.JUDGE),
        hints=QueuedHints(queue, hint_threads),
        clock=clock,
        timings=settings.timings,
        rng=rng,
        host=WorkerHost(engine, clock, vitals.rate),
        observer=watching,
        new_session=supervision.new_session,
        new_id=lambda: uuid.uuid4().hex,
        drain_seconds=settings.drain_seconds,
    )
    assignments = Assignments(
        member,
        Queue(made.sqs(clients.ASSIGNMENTS), settings.queue_url),
        pollers=clients.ASSIGNMENTS.executor(),
        executor=hint_threads,
        rng=rng,
    )
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, member.stop)
    supervision.accept_stop()
    loops = (output.run(), vitals.run(), _show_life(member, supervision))
    async with asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(loop) for loop in loops]
        taking = tasks.create_task(assignments.run())
        await member.run()
        await taking
        for running in beside:
            running.cancel()
    supervision.end_stop()
    vitals.flush()
    engine.close()
    if member.left_behind:
        log.error(
            "Connections could not be flushed and let go in time; others claim them, messages may be missing.",
            extra={"connections": member.left_behind},
        )
        return LEFT_BEHIND
    log.info("Drained; this process ends.")
    return 0


async def _show_life(member: Member, supervision: Supervision) -> None:
    await member.joined.wait()
    await supervision.show_life()


def _sink(settings: Settings, made: Clients) -> Sink:
    match settings.sink:
        case SinkKind.KINESIS:
            return KinesisSink(made.kinesis(settings.timings.drain), settings.sink_target)
        case SinkKind.SQS_FIFO:
            return SqsFifoSink(made.fifo(settings.timings.drain), settings.sink_target)
        case SinkKind.JSON_LINES:
            return JsonLinesSink(Path(settings.sink_target))
        case SinkKind.NULL:
            return NullSink()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: less memory and CPU per connection; else the standard loop."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    uvloop = importlib.import_module("uvloop")
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def main() -> int:
    """Run a worker process as its supervisor's environment says; returns the exit code."""
    try:
        supervision = Supervision.from_environment(os.environ)
        settings = load()
        task = TaskMetadata.read(settings.metadata_uri)
    except (SettingsError, NoMetadata) as error:
        log.error("Not starting.", extra={Field.REASON: str(error)})  # noqa: TRY400 - the message says it all
        return 2
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(serve(settings, supervision, task))


if __name__ == "__main__":
    code = main()
    # A thread that still waits for an answer which nobody needs must not hold up the end.
    sys.stdout.flush()
    os._exit(code)
