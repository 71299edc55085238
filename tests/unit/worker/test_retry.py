"""What follows a failure."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.metrics import Reason
from worker.retry import (
    FIRST_WINDOW,
    PROVEN_SECONDS,
    RETRY_AFTER_CAP,
    SHORT_SESSIONS,
    STRIKES,
    STRIKES_FORGOTTEN_SECONDS,
    UNREACHABLE_CAP,
    Failure,
    GiveUp,
    History,
    Kind,
    Policy,
    Retry,
    retry_after_seconds,
)

POLICY = Policy()
REFUSED = Failure(kind=Kind.TCP)
LOST = Failure(kind=Kind.LOST, code=1006)
WALL = 1_900_000_000.0


def status(number: int, retry_after: str | None = None) -> Failure:
    return Failure(kind=Kind.HTTP, status=number, retry_after=retry_after)


def closed(code: int) -> Failure:
    return Failure(kind=Kind.CLOSED, code=code)


def retry(decision: Retry | GiveUp) -> Retry:
    assert isinstance(decision, Retry), decision
    return decision


def test_the_window_doubles_from_the_first_retry_up_to_the_cap() -> None:
    history = History()
    windows = [retry(history.decide(LOST, POLICY)).window for _ in range(8)]
    assert windows == [3, 6, 12, 24, 48, 96, 120, 120]
    assert retry(History(failures=10**6).decide(LOST, POLICY)).window == POLICY.cap_seconds


def test_what_does_not_answer_at_all_is_asked_more_often() -> None:
    assert retry(History(failures=50).decide(REFUSED, POLICY)).window == UNREACHABLE_CAP
    assert retry(History(failures=50).decide(REFUSED, Policy(cap_seconds=5))).window == 5


@pytest.mark.parametrize(
    ("lasted", "messages", "proven"),
    [(PROVEN_SECONDS, 0, True), (PROVEN_SECONDS - 1, 0, False), (0.1, 1, True), (0, 0, False)],
)
def test_back_off_starts_anew_only_after_proof_of_life(lasted: float, messages: int, proven: bool) -> None:
    history = History(failures=4)
    history.session_ended(lasted=lasted, messages=messages)
    assert retry(history.decide(LOST, POLICY)).window == (FIRST_WINDOW if proven else 48)


def test_greeting_and_hanging_up_is_no_proof_for_ever() -> None:
    history = History()
    for _ in range(SHORT_SESSIONS + 6):
        history.session_ended(lasted=0.5, messages=1)
        last = retry(history.decide(closed(1000), POLICY))
    assert last.floor == last.window == POLICY.cap_seconds


def test_accepting_and_closing_is_called_at_most_once_a_cap() -> None:
    history = History()
    attempts = []
    for _ in range(8):
        history.session_ended(lasted=0, messages=0)
        attempts.append(retry(history.decide(closed(1013), POLICY)).floor)
    assert attempts == [0, 0, 0, 0, 120, 120, 120, 120]


def test_try_again_later_starts_slowly() -> None:
    assert retry(History().decide(closed(1013), POLICY)).window == 24


@pytest.mark.parametrize("code", [1000, 1001, 1005, 1006, 1011, 1012, 4001, 4429])
def test_any_close_code_is_tried_again_unless_the_request_says_so(code: int) -> None:
    assert isinstance(History().decide(closed(code), POLICY), Retry)
    assert History().decide(closed(code), Policy(fatal_close_codes=frozenset({code}))) == GiveUp(f"closed_{code}")


@pytest.mark.parametrize("number", [404, 410])
def test_what_is_not_there_is_given_up(number: int) -> None:
    assert History().decide(status(number), POLICY) == GiveUp(f"http_{number}")


@pytest.mark.parametrize("number", [302, 400, 408, 425, 429, 500, 502, 503, 504, 520, 522])
def test_other_statuses_are_tried_again_unless_the_request_says_so(number: int) -> None:
    assert isinstance(History().decide(status(number), POLICY), Retry)
    fatal = Policy(fatal_http_statuses=frozenset({number}))
    assert History().decide(status(number), fatal) == GiveUp(f"http_{number}")


@pytest.mark.parametrize("number", [401, 403])
def test_unauthorised_is_tried_once_more_and_then_given_up(number: int) -> None:
    history = History()
    assert isinstance(history.decide(status(number), POLICY), Retry)
    assert history.decide(status(number), POLICY) == GiveUp("auth")


def test_a_session_that_worked_earns_another_refresh() -> None:
    history = History()
    history.decide(status(401), POLICY)
    history.session_ended(lasted=PROVEN_SECONDS, messages=1)
    assert isinstance(history.decide(status(401), POLICY), Retry)


def test_unauthorised_is_tried_for_ever_if_the_request_wants_that() -> None:
    history = History()
    policy = Policy(fatal_http_statuses=frozenset())
    assert all(isinstance(history.decide(status(401), policy), Retry) for _ in range(50))


@pytest.mark.parametrize("kind", [Kind.CERTIFICATE, Kind.BLOCKED])
def test_what_time_does_not_heal_is_given_up(kind: Kind) -> None:
    assert History().decide(Failure(kind=kind), POLICY) == GiveUp(kind.value)


@pytest.mark.parametrize(
    "failure",
    [closed(1008), Failure(kind=Kind.MESSAGE_TOO_BIG, code=1009), Failure(kind=Kind.SUBPROTOCOL)],
)
def test_three_strikes_and_it_is_out_even_if_messages_came_in_between(failure: Failure) -> None:
    history = History()
    for _ in range(STRIKES - 1):
        history.session_ended(lasted=PROVEN_SECONDS, messages=5)
        assert isinstance(history.decide(failure, POLICY), Retry)
    assert history.decide(failure, POLICY) == GiveUp(failure.reason)


def test_strikes_are_forgotten_after_a_long_session() -> None:
    history = History()
    for _ in range(10):
        history.session_ended(lasted=STRIKES_FORGOTTEN_SECONDS, messages=1)
        assert isinstance(history.decide(closed(1008), POLICY), Retry)


def test_attempts_are_limited_if_the_request_says_so() -> None:
    history = History()
    policy = Policy(max_attempts=3)
    assert isinstance(history.decide(REFUSED, policy), Retry)
    assert isinstance(history.decide(REFUSED, policy), Retry)
    assert history.decide(REFUSED, policy) == GiveUp("max_attempts: tcp")


@pytest.mark.parametrize(
    ("failure", "limited"),
    [(status(429), True), (status(429, "7"), True), (status(503, "120"), True), (status(503), False), (REFUSED, False)],
)
def test_who_is_told_to_wait_waits_with_its_group(failure: Failure, limited: bool) -> None:
    assert retry(History().decide(failure, POLICY)).rate_limited is limited


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        (" 7 ", 7),
        ("7.5", 7.5),
        ("120", 120),
        ("Tue, 17 Mar 2030 17:46:47 GMT", 7),
        (str(int(WALL) + 7), 7),
        (str(int(WALL + 7) * 1000), 7),
        ("Wed, 01 Jan 2031 00:00:00 GMT", RETRY_AFTER_CAP),
        ("1924992000", RETRY_AFTER_CAP),
        ("99999999", RETRY_AFTER_CAP),
        ("inf", RETRY_AFTER_CAP),
        ("nan", None),
        ("0", None),
        ("-5", None),
        ("soon", None),
        ("", None),
        (None, None),
        ("Mon, 01 Jan 2001 00:00:00 GMT", None),
        (str(int(WALL) - 7), None),
    ],
)
def test_retry_after_is_read_in_every_form(header: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(header, WALL) == seconds


@pytest.mark.parametrize(
    "header",
    [
        "30 \udce9",
        "30 é",
        "Fri, 01 Jan 9999999999 00:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 -2359",
        "Fri, 01 Jan 2027 00:00:00 +99999999",
        "nan",
        "-inf",
        "9" * 5000 + " x",
        "",
    ],
)
def test_a_retry_after_that_makes_no_sense_is_none(header: str) -> None:
    assert retry_after_seconds(header, WALL) in (None, RETRY_AFTER_CAP)


DAYS, MONTHS = ["Mon", "Fri", "", "x"], ["Jan", "Feb", "feb", "Foo"]
NUMBERS = st.one_of(st.integers(-100, 10**12).map(str), st.text(max_size=3))
DATES = st.builds(
    "{}, {} {} {} {}:{}:{} {}".format,
    *(st.sampled_from(DAYS), NUMBERS, st.sampled_from(MONTHS), NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    st.one_of(st.sampled_from(["GMT", "-0000", "EST", "+9999", "-99999999999"]), st.text(max_size=6)),
)


@settings(max_examples=1000, deadline=None)
@given(st.one_of(st.text(), st.floats().map(str), st.integers().map(str), DATES))
def test_any_retry_after_at_all_is_a_time_or_nothing(header: str) -> None:
    seconds = retry_after_seconds(header, WALL)
    assert seconds is None or 0 < seconds <= RETRY_AFTER_CAP


def test_a_reason_says_the_number_that_matters() -> None:
    assert status(404).reason == "http_404"
    assert closed(1008).reason == "closed_1008"
    assert Failure(kind=Kind.PING_TIMEOUT).reason == "ping_timeout"


def test_every_kind_is_counted_under_a_metric() -> None:
    assert status(429).metric is status(503).metric is Reason.RATE_LIMITED
    assert status(500).metric is Reason.HTTP
    assert Failure(kind=Kind.CERTIFICATE).metric is Reason.TLS
    assert {Failure(kind=kind).metric for kind in Kind} <= set(Reason)
