"""A session is dead only by an uninterrupted watch, on the judge's own clock."""

from dataclasses import replace

from leases.judge import Judge
from leases.rows import SessionRow, SessionState

W = 7.0
P = 0.5
R = 1.0


def row(seq: int, session: str = "s", state: SessionState = SessionState.LIVE) -> SessionRow:
    return SessionRow(
        session=session, state=state, seq=seq, takeover_ms=int(W * 1000), capacity=1, held=0, rate=0, revision=1,
        task_arn="t", inbox=frozenset(), opened_at=0,
    )  # fmt: skip


def make() -> Judge:
    return Judge(gap=2 * P, own_gap=2 * R)


def watch(judge: Judge, seconds: float, seq: int, start: float = 0.0, own: bool = True) -> float:
    """Read the session every P, with own heartbeats acknowledged every R; returns the time afterwards."""
    now = start
    while now < start + seconds:
        if own:
            judge.own_heartbeat(now)
        judge.read(row(seq), now)
        now += P
    return now


def test_a_session_that_stands_still_for_w_is_dead_at_the_number_it_stood_at() -> None:
    judge = make()
    now = watch(judge, W, seq=5)
    assert judge.verdicts(now - P) == []
    judge.own_heartbeat(now)
    judge.read(row(5), now)
    (verdict,) = judge.verdicts(now)
    assert (verdict.session, verdict.seq) == ("s", 5)
    assert verdict.silent >= W


def test_a_session_that_moves_is_watched_anew() -> None:
    judge = make()
    now = watch(judge, W - P, seq=5)
    now = watch(judge, W, seq=6, start=now)
    assert judge.verdicts(now - P) == []


def test_a_number_that_goes_back_is_a_stale_read_and_does_not_restart_the_watch() -> None:
    judge = make()
    now = watch(judge, W / 2, seq=5)
    judge.own_heartbeat(now)
    judge.read(row(4), now)
    now = watch(judge, W / 2 + P, seq=5, start=now + P)
    assert [verdict.seq for verdict in judge.verdicts(now - P)] == [5]


def test_a_gap_in_the_reading_restarts_the_watch() -> None:
    judge = make()
    now = watch(judge, W - P, seq=5)
    now = watch(judge, W - P, seq=5, start=now + 2.1 * P)
    assert judge.verdicts(now - P) == []


def test_an_interrupted_judge_starts_anew() -> None:
    judge = make()
    now = watch(judge, W, seq=5)
    judge.interrupted()
    judge.own_heartbeat(now)
    judge.read(row(5), now)
    assert judge.verdicts(now) == []


def test_nobody_is_judged_while_the_own_heartbeat_is_in_doubt() -> None:
    judge = make()
    judge.own_heartbeat(0.0)
    now = watch(judge, 2 * W, seq=5, own=False)
    assert judge.verdicts(now - P) == []


def test_own_heartbeats_must_have_been_sound_for_w_first() -> None:
    judge = make()
    watch(judge, W, seq=5)
    back = W + 3 * R
    judge.own_heartbeat(back)
    now = watch(judge, W - R, seq=5, start=back)
    assert judge.verdicts(now - P) == []


def test_the_holders_takeover_time_counts_not_the_judges() -> None:
    judge = make()
    now = 0.0
    while now < 2 * W:
        judge.own_heartbeat(now)
        judge.read(replace(row(1), takeover_ms=int(3 * W * 1000)), now)
        now += P
    assert judge.verdicts(now - P) == []


def test_a_session_that_is_dead_already_is_not_judged() -> None:
    judge = make()
    now = watch(judge, W + P, seq=5)
    judge.read(row(5, state=SessionState.DEAD), now - P)
    assert judge.verdicts(now - P) == []


def test_a_session_that_is_not_read_any_more_is_not_judged() -> None:
    judge = make()
    now = watch(judge, W + P, seq=5)
    judge.keep(frozenset())
    assert judge.verdicts(now - P) == []
