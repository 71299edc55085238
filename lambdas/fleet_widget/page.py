"""The widget's page: one row per worker process, as its last heartbeat says."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from leases.rows import SessionRow, SessionState

DESCRIPTION = "### Fleet\nThe worker processes and what they hold. It takes no parameters."

ORDER = (SessionState.LIVE, SessionState.DRAINING, SessionState.DEAD)
HEADINGS = ("Worker", "State", "Held", "Load", "Messages/s", "Revision", "Task", "Since")
DEAD_SHOWN = 10


def render(rows: Sequence[SessionRow]) -> str:
    """HTML that a CloudWatch custom widget may show: no script, no form."""
    alive = sorted((row for row in rows if row.alive), key=lambda row: (ORDER.index(row.state), -row.held, row.session))
    dead = sorted((row for row in rows if not row.alive), key=lambda row: -row.opened_at)
    held, capacity = sum(row.held for row in alive), sum(row.capacity for row in alive)
    heading = "".join(f"<th>{name}</th>" for name in HEADINGS)
    lines = "".join(map(_line, [*alive, *dead[:DEAD_SHOWN]]))
    return (
        f"<p><b>{len(alive)}</b> worker processes hold <b>{held}</b> of at most <b>{capacity}</b> connections; "
        f"{len(dead)} ended within the last day.</p><table><tr>{heading}</tr>{lines}</table>"
    )


def _line(row: SessionRow) -> str:
    ended = f" ({row.dead_by.value})" if row.dead_by else ""
    cells = (
        row.session,
        row.state.value + ended,
        f"{row.held} / {row.capacity}",
        f"{100 * row.held / max(row.capacity, 1):.0f} %",
        str(row.rate),
        str(row.revision),
        row.task_arn.rpartition("/")[2],
        f"{datetime.fromtimestamp(row.opened_at, UTC):%Y-%m-%d %H:%M:%S}",
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
