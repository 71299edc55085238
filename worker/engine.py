"""What all connections of a worker process share."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from connections.url_policy import UrlPolicy
from leases.ports import Clock, Store
from leases.rows import ConnectionRow
from telemetry.metrics import Metric
from worker.adapters import ADAPTERS, Adapter
from worker.admission import Admission
from worker.collector import Collector
from worker.dial import Dialer, Resolver
from worker.keepalive import Sweeper
from worker.outbox import Outbox
from worker.runner import Runner
from worker.secrets import Secrets
from worker.upstream import Intake

BLOCKING_CALLS = 16
"""Look-ups of names and of secrets that may block at a time."""


class Output(Protocol):
    """Where records go."""

    def outbox(self, connection: str) -> Outbox:
        """The output of one connection."""
        ...


class Meter(Protocol):
    """Where metrics go."""

    def count(self, metric: Metric, amount: float = 1, label: str | None = None) -> None:
        """Add to a total."""
        ...


class Engine:
    """Makes the runners of one worker process. Lives on one event loop."""

    def __init__(
        self,
        *,
        store: Store,
        output: Output,
        read_secret: Callable[[str], str],
        policy: UrlPolicy,
        clock: Clock,
        meter: Meter,
        context: ssl.SSLContext | None = None,
        admission: Admission | None = None,
        adapters: Mapping[str, Callable[[], Adapter]] = ADAPTERS,
    ) -> None:
        """`read_secret` may block; see `worker.secrets`. `context` says whom TLS trusts: the system's CAs."""
        loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(BLOCKING_CALLS, thread_name_prefix="lookup")
        self.store = store
        self.output = output
        self.policy = policy
        self.clock = clock
        self.meter = meter
        self.adapters = adapters
        self.secrets = Secrets(read_secret, self._executor)
        self.admission = admission or Admission(loop.time)
        self.dialer = Dialer(Resolver(self._executor), context or ssl.create_default_context())
        self.sweeper = Sweeper(loop)
        self.intake = Intake()
        self.collector = Collector(loop)

    def runner(self, row: ConnectionRow) -> Runner:
        """Begin to run a connection, without a grant as yet."""
        return Runner(row, self)

    def close(self) -> None:
        """End what runs beside the runners; end those first."""
        self.sweeper.close()
        self.collector.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
