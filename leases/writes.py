"""Every write of the lease protocol, one function each: a pure value of what is set, under which condition.

Whatever a retry must reuse (a sequence number, a nonce) is an argument, chosen before the first attempt, so that a lost
answer can never be mistaken for a lost lease. `docs/leases.md` has the table with the reason for each condition.
"""

from dataclasses import replace
from typing import Any

from leases.conditions import Absent, AllOf, AnyOf, Below, Condition, Equals, FewerThan, OneOf, Write
from leases.rows import (
    ALIVE,
    EVERYTHING,
    INBOX_LIMIT,
    ConnectionRow,
    DeadBy,
    Desired,
    Handoff,
    Item,
    Load,
    Offer,
    SessionRow,
    SessionState,
    connection_key,
    free_owner,
    is_free,
    is_session,
    parked_owner,
    session_key,
)

DEAD_ROW_SECONDS = 86_400
"""Dead session rows and stopped connection rows are kept for a day, then garbage-collected by the table's TTL."""


# Sessions


def open_session(row: SessionRow) -> Write:
    """Begin a session. Refused: the id is taken, so take a new one."""
    return Write(
        name="open",
        key=session_key(row.session),
        condition=Absent("pk"),
        set={
            "state": row.state.value,
            "seq": row.seq,
            "takeover_ms": row.takeover_ms,
            "capacity": row.capacity,
            "held": row.held,
            "rate": row.rate,
            "revision": row.revision,
            "task_arn": row.task_arn,
            "opened_at": row.opened_at,
        },
    )


def heartbeat(session: str, seq: int, load: Load, seen: frozenset[str]) -> Write:
    """Show life, and take out of the inbox what the last answer showed. The answer carries the inbox as it is now."""
    return Write(
        name="heartbeat",
        key=session_key(session),
        condition=AllOf((OneOf("state", ALIVE), Below("seq", seq))),
        set={"seq": seq, "held": load.held, "rate": load.rate},
        delete={"inbox": seen} if seen else {},
    )


def drain_session(session: str) -> Write:
    """Ask a session to take no more work and hand over what it holds."""
    return Write(
        name="drain",
        key=session_key(session),
        condition=OneOf("state", ALIVE),
        set={"state": SessionState.DRAINING.value},
    )


def declare_dead(session: str, by: DeadBy, seen_seq: int | None, died_at: int) -> Write:
    """End a session. A judge names the sequence number that stood still; a reaped process needs no such proof.

    `died_at` (unix seconds, as far as the writer can know it) is for display and garbage collection.
    """
    unchanged: tuple[Condition, ...] = () if seen_seq is None else (Equals("seq", seen_seq),)
    return Write(
        name="declare_dead",
        key=session_key(session),
        condition=AllOf((OneOf("state", ALIVE), *unchanged)),
        set={
            "state": SessionState.DEAD.value,
            "dead_by": by.value,
            "died_at": died_at,
            "ttl": died_at + DEAD_ROW_SECONDS,
        }
        | ({"held": 0} if by is DeadBy.SELF else {}),
    )


def tombstone(row: SessionRow, died_at: int) -> Write:
    """Say that a session is dead whose row somebody has deleted, so that what it owned is found and swept."""
    dead = declare_dead(row.session, DeadBy.SELF, None, died_at)
    return replace(open_session(row), name="tombstone", set={**open_session(row).set, **dead.set})


def inbox_hint(session: str, *connections: str) -> Write:
    """Tell a session to look at rows. Refused with a full inbox: it must be emptied first, or say `EVERYTHING`."""
    return Write(
        name="inbox_hint",
        key=session_key(session),
        condition=AllOf((OneOf("state", ALIVE), AnyOf((Absent("inbox"), FewerThan("inbox", INBOX_LIMIT))))),
        add={"inbox": frozenset(connections)},
    )


def inbox_everything(session: str) -> Write:
    """Tell a session to look at all that it holds. What others have offered to it is not among that."""
    return Write(
        name="inbox_everything",
        key=session_key(session),
        condition=OneOf("state", ALIVE),
        set={"inbox": frozenset((EVERYTHING,))},
    )


# Taking a connection


def claim(row: ConnectionRow, session: str, nonce: str, strike: bool) -> Write:
    """Take a connection from FREE, or from a session that is proven dead. The answer's image is what runs.

    `strike` counts a death by exit of the last owner against the connection. What an owner left that released it is
    kept: a standby that claims goes on behind it. What is older is of no use.
    """
    return Write(
        name="claim",
        key=connection_key(row.connection),
        condition=AllOf(
            (Equals("owner", row.owner), Equals("epoch", row.epoch), Equals("desired", Desired.RUNNING.value))
        ),
        set={"owner": session, "epoch": row.epoch + 1, "grant": nonce}
        | ({"strikes": row.strikes + 1} if strike else {}),
        remove=("next", "freed_at") if is_free(row.owner) else ("next", "freed_at", "handoff"),
    )


# Holding a connection


def _held(session: str, epoch: int) -> tuple[Condition, Condition]:
    return Equals("owner", session), Equals("epoch", epoch)


def checkpoint(connection: str, session: str, epoch: int, cursor: str) -> Write:
    """Remember how far the output has come. Refused: the lease is lost."""
    return Write(
        name="checkpoint",
        key=connection_key(connection),
        condition=AllOf(_held(session, epoch)),
        set={"cursor": cursor},
    )


def report(connection: str, session: str, epoch: int, status: Item | None, strikes: int | None = None) -> Write:
    """Show the observed state. Refused: the lease is lost. `strikes` 0 forgives, once it has stayed open."""
    return Write(
        name="status",
        key=connection_key(connection),
        condition=AllOf(_held(session, epoch)),
        set=({} if status is None else {"status": status}) | ({} if strikes is None else {"strikes": strikes}),
    )


# Letting a connection go, once what was accepted is flushed. From here on nothing of this epoch is emitted.


def release(
    connection: str, session: str, epoch: int, cursor: str | None, handoff: Handoff | None, freed_at: int
) -> Write:
    """Give a connection back, for anyone to claim. Refused: done already, or desired changed (then park or stop).

    `handoff` is for a standby that may be there: it claims, and goes on behind the last message.
    `freed_at` (unix seconds) is for display only.
    """
    return Write(
        name="release",
        key=connection_key(connection),
        condition=AllOf((*_held(session, epoch), Equals("desired", Desired.RUNNING.value))),
        set={"owner": free_owner(connection), "freed_at": freed_at}
        | ({} if cursor is None else {"cursor": cursor})
        | ({} if handoff is None else {"handoff": handoff.to_item()}),
        remove=("next", "grant", "handoff") if handoff is None else ("next", "grant"),
    )


def finalize(row: ConnectionRow, status: Item, cursor: str | None, ttl: int) -> Write:
    """Park a paused connection or end a stopped one, as `row` wants it, once its socket is closed.

    `row` may be owned by the caller, by a dead session, or be FREE. Refused: read it again and act on what it says.
    """
    stopped = row.desired is Desired.STOPPED
    return Write(
        name="stop" if stopped else "park",
        key=connection_key(row.connection),
        condition=AllOf(
            (
                Equals("owner", row.owner),
                Equals("epoch", row.epoch),
                Equals("generation", row.generation),
                Equals("desired", row.desired.value),
            )
        ),
        set={"status": status}
        | ({} if cursor is None else {"cursor": cursor})
        | ({"ttl": ttl} if stopped else {"owner": parked_owner(row.connection)}),
        remove=("next", "grant", "handoff", *(("owner",) if stopped else ())),
    )


def fail(row: ConnectionRow, status: Item, cursor: str | None) -> Write:
    """Park a connection that cannot run, with the reason in its status. A change of its request saves it."""
    return Write(
        name="fail",
        key=connection_key(row.connection),
        condition=AllOf((*_held(str(row.owner), row.epoch), Equals("generation", row.generation))),
        set={"owner": parked_owner(row.connection), "status": status} | ({} if cursor is None else {"cursor": cursor}),
        remove=("next", "grant", "handoff"),
    )


# Handing a connection over


def offer(row: ConnectionRow, session: str, nonce: str) -> Write:
    """Invite `session` to connect and stand by. Replaces only the offer that `row` shows."""
    nothing_newer: Condition = Absent("next") if row.offer is None else Equals("next.nonce", row.offer.nonce)
    made = Offer(session=session, nonce=nonce, for_epoch=row.epoch, generation=row.generation)
    return Write(
        name="offer",
        key=connection_key(row.connection),
        condition=AllOf((*_held(str(row.owner), row.epoch), nothing_newer)),
        set={"next": made.to_item()},
    )


def _standing(row: ConnectionRow, offer: Offer) -> AllOf:
    return AllOf(
        (
            Equals("owner", row.owner),
            Equals("epoch", offer.for_epoch),
            Equals("next.session", offer.session),
            Equals("next.nonce", offer.nonce),
        )
    )


def ready(row: ConnectionRow, offer: Offer) -> Write:
    """The standby is connected and buffers. Refused: the offer is gone, so close."""
    return Write(
        name="ready", key=connection_key(row.connection), condition=_standing(row, offer), set={"next.ready": True}
    )


def decline(row: ConnectionRow, offer: Offer) -> Write:
    """The standby will not or cannot. Refused: the offer is gone anyway."""
    return Write(name="decline", key=connection_key(row.connection), condition=_standing(row, offer), remove=("next",))


def withdraw(row: ConnectionRow, offer: Offer) -> Write:
    """The owner takes its offer back and goes on. Refused: it is gone, or the lease is."""
    return Write(
        name="withdraw",
        key=connection_key(row.connection),
        condition=AllOf((*_held(str(row.owner), offer.for_epoch), Equals("next.nonce", offer.nonce))),
        remove=("next",),
    )


def transfer(connection: str, session: str, offer: Offer, cursor: str | None, handoff: Handoff) -> Write:
    """Make the standby the owner, with what it needs to go on behind the last message. No state in between."""
    return Write(
        name="transfer",
        key=connection_key(connection),
        condition=AllOf(
            (
                *_held(session, offer.for_epoch),
                Equals("next.nonce", offer.nonce),
                Equals("next.ready", True),
                Equals("generation", offer.generation),
            )
        ),
        set={
            "owner": offer.session,
            "epoch": offer.for_epoch + 1,
            "grant": offer.nonce,
            "handoff": handoff.to_item(),
        }
        | ({} if cursor is None else {"cursor": cursor}),
        remove=("next",),
    )


def regrant(connection: str, session: str, epoch: int, nonce: str) -> Write:
    """Go on after a refused transfer: a new epoch, so that whatever the old one still has in flight is fenced."""
    return Write(
        name="regrant",
        key=connection_key(connection),
        condition=AllOf(_held(session, epoch)),
        set={"epoch": epoch + 1, "grant": nonce},
        remove=("next", "handoff"),
    )


# What the API asks for


def change(row: ConnectionRow, desired: Desired, status: Item | None, ttl: int) -> Write:
    """Change what is wanted. A row that a session owns keeps its owner; that session is then told by its inbox.

    The caller writes the spec of `row.generation + 1` in the same transaction. Refused, also if only the owner changed
    meanwhile: read it again. A row that a session parks while it is wanted again would else be parked for ever.
    Strikes are forgiven: what was asked for is something else now.
    """
    moved: dict[str, Any] = {}
    gone: tuple[str, ...] = ()
    if not is_session(row.owner):
        if desired is Desired.RUNNING:
            moved["owner"] = free_owner(row.connection)
            gone = ("ttl",)
        elif desired is Desired.PAUSED:
            moved["owner"] = parked_owner(row.connection)
            gone = ("ttl",)
        else:
            moved["ttl"] = ttl
            gone = ("owner",)
        if status is not None:
            moved["status"] = status
    same_owner: Condition = Absent("owner") if row.owner is None else Equals("owner", row.owner)
    return Write(
        name="change",
        key=connection_key(row.connection),
        condition=AllOf((Equals("generation", row.generation), same_owner)),
        set={"generation": row.generation + 1, "desired": desired.value} | moved,
        remove=(*gone, "strikes"),
    )


def force_release(row: ConnectionRow) -> Write:
    """Free a connection whose owner is proven dead, with a new epoch that fences whatever that owner still sends."""
    return Write(
        name="force_release",
        key=connection_key(row.connection),
        condition=AllOf((*_held(str(row.owner), row.epoch), Equals("desired", Desired.RUNNING.value))),
        set={"owner": free_owner(row.connection), "epoch": row.epoch + 1},
        remove=("next", "grant", "handoff"),
    )
