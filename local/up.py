"""`make local`: the whole system, kept up until it is told to stop."""

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from local.api import curl_line
from local.processes import Processes
from local.system import deployed, system

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    workers: int
    settings: Mapping[str, str]
    """Values in place of those in the template, by the name of the environment variable."""
    worker_environment: Mapping[str, str]
    """Further environment of the workers only."""
    with_parent: bool
    """Stop when the parent process is gone, however it ended."""


def up(options: Options) -> None:
    """Start everything, print one JSON line, and stay until interrupted."""
    parent = os.getppid()
    with (
        Processes("up") as processes,
        deployed(processes, options.settings, options.worker_environment) as stacks,
        system(stacks, processes, options.worker_environment) as running,
    ):
        running.start(options.workers)
        line = running.describe() | {"logs": str(processes.scratch)}
        print(json.dumps(line), flush=True)
        print(f"Up. Stop with Ctrl-C. Try: {curl_line(stacks.api_url)}", file=sys.stderr, flush=True)
        while not (options.with_parent and os.getppid() != parent):
            time.sleep(POLL_SECONDS)
