"""A stand-in for a worker process, under a real supervisor: `child_program.py DIRECTORY`.

It does what files in the directory tell it: `crash` (end with 9 at once), `reopen` (announce a second session, note
it in `session-2`, end by SIGKILL), `stubborn` (ignore a stop), `slow` (take a second to be ready for signals), `hang`
(show life once, then never), `hang-import` (before anything), `hang-stopped` (stop itself before it has shown life),
`hang-open` (wait for ever for its first session). On a stop it writes `stopped-PID` and ends with 0.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from worker.child import Supervision


async def main(directory: Path) -> None:
    supervision = Supervision.from_environment(os.environ)
    stop = asyncio.Event()
    session = await supervision.new_session()
    (directory / f"started-{os.getpid()}").write_text(session)
    if (directory / "crash").exists():
        os._exit(9)
    if (directory / "hang-stopped").exists():
        os.kill(os.getpid(), signal.SIGSTOP)
    if (directory / "hang-open").exists():
        await asyncio.sleep(3600)
    if (directory / "slow").exists():
        time.sleep(1)  # noqa: ASYNC251 - an import that takes long
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    supervision.accept_stop()
    life = asyncio.create_task(supervision.show_life())
    await asyncio.sleep(0)
    (directory / f"ready-{os.getpid()}").touch()
    if (directory / "reopen").exists():
        (directory / "session-2").write_text(await supervision.new_session())
        os.kill(os.getpid(), signal.SIGKILL)
    if (directory / "hang").exists():
        time.sleep(3600)  # noqa: ASYNC251 - a loop that hangs
    await stop.wait()
    if (directory / "stubborn").exists():
        await asyncio.sleep(3600)
    life.cancel()
    (directory / f"stopped-{os.getpid()}").touch()


if (Path(sys.argv[1]) / "hang-import").exists():
    time.sleep(3600)
asyncio.run(main(Path(sys.argv[1])))
