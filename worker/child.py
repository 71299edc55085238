"""A worker process's end of its supervision.

The supervisor must know every session of a process that it reaps, and it must know each before its row is written:
else a process that dies between the two leaves a session that nobody but the judges will miss.
"""

import asyncio
import ctypes
import os
import signal
import sys
import uuid
from collections.abc import Mapping
from typing import Self

SESSION_ID = "SESSION_ID"
"""Variable: the id of the process's first session, made by the supervisor."""

SUPERVISION_PIPE = "SUPERVISION_PIPE"
"""Variable: the file descriptor on which the process tells the supervisor, in lines: `session ID` or `alive`."""

SUPERVISOR_PID = "SUPERVISOR_PID"
"""Variable: the process without which this one must not go on."""

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})

LEFT_BEHIND = 3
"""Exit code of a process that has ended by itself, but could not flush and let go all that it held; 0: it could."""

ALIVE_SECONDS = 5.0
"""How often a process shows that its loop turns."""

PR_SET_PDEATHSIG = 1
"""prctl(2)."""


def new_session_id() -> str:
    """An id that no other run of any process has."""
    return uuid.uuid4().hex


class Supervision:
    """What a process owes to its supervisor. It starts with STOP_SIGNALS blocked, so that none is lost meanwhile."""

    def __init__(self, first_session: str, pipe: int) -> None:
        self._first_session: str | None = first_session
        self._pipe = pipe

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Take up the supervision that the environment describes. Raises `KeyError` in a process without a supervisor.

        From here on this process does not outlive its supervisor by a moment, not even while it is stopped (SIGSTOP):
        a process that nobody would reap must not keep connections.
        """
        die_with(int(environment[SUPERVISOR_PID]))
        pipe = int(environment[SUPERVISION_PIPE])
        os.set_inheritable(pipe, False)
        return cls(environment[SESSION_ID], pipe)

    async def new_session(self) -> str:
        """The id for a session about to be opened. Once this has returned, the supervisor is sure to know of it."""
        session, self._first_session = self._first_session, None
        if session is None:
            session = new_session_id()
            self._tell(f"session {session}")
        return session

    async def show_life(self) -> None:
        """Show that the loop of this process turns, for ever. To be begun once its first session is open: the task
        counts as healthy from then on, through outages of the store too."""
        while True:
            self._tell("alive")
            await asyncio.sleep(ALIVE_SECONDS)

    def accept_stop(self) -> None:
        """The handlers of STOP_SIGNALS are in place: let through what has arrived meanwhile. In the main thread."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def end_stop(self) -> None:
        """This process is about to end: a stop that is repeated now must not turn a clean end into a violent one."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def _tell(self, line: str) -> None:
        # Far below PIPE_BUF, into a pipe that is read at once: it neither blocks nor tears (pipe(7)).
        os.write(self._pipe, f"{line}\n".encode())


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, at once if it has ended already. Linux only.

    The kernel does it when the *thread* that started this process ends (prctl(2)); the supervisor has only that one.
    """
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
