"""The vital signs of a worker process: loop lag, memory, files, load, and what went in and out, as metrics."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from telemetry import metrics
from telemetry.logs import Field
from worker.logs import logger
from worker.metering import Meter
from worker.output import Output
from worker.upstream import Intake

PROBE_SECONDS = 0.5
FLUSH_SECONDS = 60.0
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")

log = logger()


class Vitals:
    """Probes the loop and writes the metrics of the process once a minute."""

    def __init__(self, meter: Meter, output: Output, intake: Intake, load: Callable[[], float]) -> None:
        """`load` tells the share of the capacity that is in use."""
        self._meter = meter
        self._output = output
        self._intake = intake
        self._load = load
        self._probes: list[tuple[float, int]] = []
        self._messages = 0
        self._bytes = 0

    def rate(self) -> int:
        """Messages per second that came in over the last few seconds."""
        if len(self._probes) < 2:
            return 0
        (begun, before), (ended, after) = self._probes[0], self._probes[-1]
        return round((after - before) / (ended - begun)) if ended > begun else 0

    async def run(self) -> None:
        """Probe and flush, for ever."""
        loop = asyncio.get_running_loop()
        flush_at = loop.time() + FLUSH_SECONDS
        while True:
            due = loop.time() + PROBE_SECONDS
            await asyncio.sleep(PROBE_SECONDS)
            now = loop.time()
            self._meter.sample(metrics.LOOP_LAG, 1000 * (now - due))
            self._probes = [*self._probes[-9:], (now, self._intake.messages)]
            if now >= flush_at:
                flush_at = now + FLUSH_SECONDS
                self.flush()

    def flush(self) -> None:
        """Write the metrics of the process."""
        meter, counts = self._meter, self._output.counts()
        meter.sample(metrics.LOAD, 100 * self._load())
        self._sample_process()
        meter.sample(metrics.BUFFERED_BYTES, self._output.budget.used)
        meter.count(metrics.MESSAGES_IN, self._intake.messages - self._messages)
        meter.count(metrics.BYTES_IN, self._intake.bytes - self._bytes)
        self._messages, self._bytes = self._intake.messages, self._intake.bytes
        meter.count(metrics.RECORDS_OUT, counts.records)
        meter.count(metrics.BYTES_OUT, counts.bytes)
        meter.count(metrics.SINK_RETRIES, counts.retries)
        meter.count(metrics.SINK_STALLS, counts.stalls)
        meter.count(metrics.MESSAGES_DISCARDED, counts.discarded)
        for lag in counts.lags:
            meter.sample(metrics.SINK_LAG, 1000 * lag)
        meter.flush()

    def _sample_process(self) -> None:
        """Look at the process itself. That takes a descriptor, which there may not be one of: what would end the
        process for that would end all its connections."""
        try:
            open_files = sum(1 for _ in Path("/proc/self/fd").iterdir())
            resident_bytes = _resident_bytes()
        except OSError as error:
            log.warning("The process cannot look at itself", extra={Field.REASON: error.strerror})
            return
        self._meter.sample(metrics.OPEN_FILES, open_files)
        self._meter.sample(metrics.RESIDENT_MEMORY, resident_bytes)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
