"""Many clients that claim one connection at the same moment, round after round; run as a process of several threads."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier

from botocore.config import Config

from leases import writes
from leases.conditions import Written
from leases.dynamodb import Table
from leases.rows import ConnectionRow
from local.aws import Aws
from tests.integration.leases.parts import OWNER_INDEX

PATIENCE_SECONDS = 60.0

_start: list[Barrier] = []
"""Where all racers of all processes wait for each other; a barrier can be given to a process only as it starts."""


@dataclass(frozen=True, slots=True)
class Won:
    """A claim that was granted."""

    session: str
    epoch: int
    grant: str


def line_up(barrier: Barrier) -> None:
    """Give this process the barrier."""
    _start.append(barrier)


def race(endpoint: str, table: str, row: ConnectionRow, sessions: Sequence[str], rounds: int) -> list[Won]:
    """Race with a client for each session; returns what they won."""
    aws = Aws(endpoint)
    config = Config(read_timeout=PATIENCE_SECONDS, retries={"total_max_attempts": 1}, parameter_validation=False)
    clients = [
        Table(aws.session.client("dynamodb", endpoint_url=endpoint, config=config), table, OWNER_INDEX)
        for _ in sessions
    ]
    with ThreadPoolExecutor(len(sessions)) as threads:
        runs = threads.map(lambda client, session: _race(client, row, session, rounds), clients, sessions)
        return [won for run in runs for won in run]


def _race(client: Table, row: ConnectionRow, session: str, rounds: int) -> list[Won]:
    (start,) = _start
    won = []
    for number in range(rounds):
        nonce = f"{session}/{number}"
        start.wait(PATIENCE_SECONDS)
        outcome = client.write(writes.claim(row, session, nonce, strike=False))
        if outcome.image is None:
            raise LookupError("the row is gone")
        row = ConnectionRow.from_item(outcome.image)
        if isinstance(outcome, Written):
            won.append(Won(session, row.epoch, nonce))
    return won
