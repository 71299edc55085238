"""Command line: `python -m local up | demo | read`."""

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from local.assembly import SynthesisError
from local.demo import demo
from local.deploy import DeploymentError
from local.emulator import EmulatorError
from local.reader import follow
from local.settings import SettingError
from local.system import NotReadyError
from local.up import Options, up

WORKERS = 3
INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m local", description="The whole system on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)

    starts = commands.add_parser("up", help="start everything and keep it up")
    starts.add_argument(
        "--workers", type=_count, default=WORKERS, metavar="N", help="worker tasks (default: %(default)s)"
    )
    starts.add_argument("--capacity", metavar="N", help="connections that a worker process takes")
    starts.add_argument(
        "--set", type=_pair, action="append", default=[], dest="settings", metavar="KEY=VALUE",
        help="a setting of worker or lease, by the name of its environment variable",
    )  # fmt: skip
    starts.add_argument(
        "--env", type=_pair, action="append", default=[], metavar="NAME=VALUE",
        help="an environment variable of the workers only",
    )  # fmt: skip
    starts.add_argument("--with-parent", action="store_true", help="stop when the parent process is gone")

    commands.add_parser("demo", help="break what may break, and check what is promised")

    reads = commands.add_parser("read", help="print the records of the output stream as they come")
    reads.add_argument("--endpoint", required=True, metavar="URL", help="`endpointUrl` of the line that `up` prints")
    reads.add_argument("--stream", required=True, metavar="NAME", help="`streamName` of that line")

    given = parser.parse_args(arguments)
    # SIGINT too: whoever starts this in the background of a shell has it ignored, and may send it all the same.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return _run(given)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return INTERRUPTED if given.command == "demo" else 0
    except (DeploymentError, EmulatorError, NotReadyError, SettingError, SynthesisError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _run(given: argparse.Namespace) -> int:
    match given.command:
        case "up":
            capacity = {} if given.capacity is None else {"WORKER_CAPACITY": given.capacity}
            up(
                Options(
                    workers=given.workers,
                    settings=dict(given.settings) | capacity,
                    worker_environment=dict(given.env),
                    with_parent=given.with_parent,
                )
            )
            return 0
        case "demo":
            return demo()
        case _:
            follow(given.endpoint, given.stream)
            return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """End the program as Ctrl-C does, with everything that it started."""
    raise KeyboardInterrupt


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tasks")
    return int(text)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
