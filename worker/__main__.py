"""`python -m worker`: a worker task, with this process as its supervisor."""

import signal

from worker.child import STOP_SIGNALS

# What follows takes most of a second to import. As PID 1 this process would ignore a signal that came meanwhile, since
# the kernel delivers none to it without a handler; blocked, it waits.
signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

import sys  # noqa: E402

from worker.task import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
