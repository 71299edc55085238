"""What a row asks for: every combination that matters, and nothing from a row that is older than what is known."""

import pytest

from leases.decisions import Act, Held, StandingBy, decide
from leases.rows import ConnectionRow, Desired, Offer

ME, OTHER = "me", "other"


def row(
    owner: str | None = ME,
    epoch: int = 7,
    desired: Desired = Desired.RUNNING,
    generation: int = 1,
    offered_to: str | None = None,
    nonce: str = "n",
) -> ConnectionRow:
    offer = None
    if offered_to is not None:
        offer = Offer(session=offered_to, nonce=nonce, for_epoch=epoch, generation=generation)
    return ConnectionRow(connection="c", owner=owner, epoch=epoch, desired=desired, generation=generation, offer=offer)


HELD = Held(epoch=7, generation=1)
STANDBY = StandingBy(for_epoch=7, nonce="n")


@pytest.mark.parametrize(
    ("what", "given", "holding", "act"),
    [
        ("own and not run", row(), None, Act.ADOPT),
        ("own, not run, paused", row(desired=Desired.PAUSED), None, Act.FINALIZE),
        ("own, not run, stopped", row(desired=Desired.STOPPED), None, Act.FINALIZE),
        ("another's", row(owner=OTHER), None, Act.NOTHING),
        ("free", row(owner="FREE#1"), None, Act.NOTHING),
        ("no row", None, None, Act.NOTHING),
        ("offered", row(owner=OTHER, offered_to=ME), None, Act.STAND_BY),
        ("offered to another", row(owner=OTHER, offered_to="third"), None, Act.NOTHING),
        ("offered but paused", row(owner=OTHER, offered_to=ME, desired=Desired.PAUSED), None, Act.NOTHING),
        ("offered by nobody", row(owner="FREE#1", offered_to=ME), None, Act.NOTHING),
        ("held as the row says", row(), HELD, Act.NOTHING),
        ("held, request changed", row(generation=2), HELD, Act.REVISE),
        ("held, older request", row(generation=1), Held(epoch=7, generation=2), Act.NOTHING),
        ("held, paused", row(desired=Desired.PAUSED, generation=2), HELD, Act.FINALIZE),
        ("held, stopped", row(desired=Desired.STOPPED, generation=2), HELD, Act.FINALIZE),
        ("held, claimed by another", row(owner=OTHER, epoch=8), HELD, Act.ABORT),
        ("held, freed by force", row(owner="FREE#1", epoch=8), HELD, Act.ABORT),
        ("held, but the row is gone", None, HELD, Act.ABORT),
        ("held, and a row from before", row(owner=OTHER, epoch=6), HELD, Act.NOTHING),
        ("held, own in a newer epoch", row(epoch=8), HELD, Act.ADOPT),
        ("standing by, still offered", row(owner=OTHER, offered_to=ME), STANDBY, Act.NOTHING),
        ("standing by, offer withdrawn", row(owner=OTHER), STANDBY, Act.NOTHING),
        ("standing by, transferred", row(epoch=8), STANDBY, Act.BEGIN),
        ("standing by, transferred, then paused", row(epoch=8, desired=Desired.PAUSED), STANDBY, Act.FINALIZE),
        ("standing by, another has it", row(owner=OTHER, epoch=8), STANDBY, Act.DISMISS),
        ("standing by, stopped", row(owner=OTHER, desired=Desired.STOPPED), STANDBY, Act.DISMISS),
        ("standing by, offered anew", row(owner=OTHER, offered_to=ME, nonce="m"), STANDBY, Act.STAND_BY),
        ("standing by, offered anew after a regrant", row(OTHER, 8, offered_to=ME, nonce="m"), STANDBY, Act.STAND_BY),
        ("standing by, offered to another now", row(owner=OTHER, offered_to="third", nonce="m"), STANDBY, Act.NOTHING),
        ("standing by, released", row(owner="FREE#1"), STANDBY, Act.CLAIM),
        ("standing by, freed by force", row(owner="FREE#1", epoch=8), STANDBY, Act.CLAIM),
        ("standing by, free but paused", row(owner="FREE#1", desired=Desired.PAUSED), STANDBY, Act.DISMISS),
        ("standing by, failed", row(owner="PARKED#1"), STANDBY, Act.DISMISS),
        ("standing by, but the row is gone", None, STANDBY, Act.DISMISS),
        ("standing by, and a row from before", row(owner="third", epoch=6), STANDBY, Act.NOTHING),
    ],
)
def test_decide(what: str, given: ConnectionRow | None, holding: Held | StandingBy | None, act: Act) -> None:
    assert decide(given, ME, holding) is act, what
