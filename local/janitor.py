"""Kills what its parent started, and removes the parent's scratch directory, once the parent is gone.

The parent holds the other end of this process's standard input, so its end is noticed however it came, by SIGKILL too.
Lines: `+<process group>`, `-<process group>`, `keep` (leave the directory, which holds the logs of a failure).
"""

import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path


def main() -> None:
    """Read lines until the end of the input, then clean up."""
    for interrupt in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(interrupt, signal.SIG_IGN)
    scratch = Path(sys.argv[1])
    groups: set[int] = set()
    keep = False
    for line in sys.stdin:
        match line[0], line[1:].strip():
            case "+", group:
                groups.add(int(group))
            case "-", group:
                groups.discard(int(group))
            case _:
                keep = True
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    if not keep:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
