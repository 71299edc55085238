"""The overlap of what an old owner emitted and what its successor received."""

from hypothesis import given
from hypothesis import strategies as st

from worker.handover import overlap


def go_on(emitted: list[bytes], buffered: list[bytes], later: list[bytes]) -> list[bytes]:
    """What a standby emits that buffered some messages before it became the owner and receives others after."""
    dropped, expected = overlap(emitted, buffered)
    rest = list(expected)
    out = buffered[dropped:]
    for message in later:
        if message in rest:
            rest = rest[rest.index(message) + 1 :]
        else:
            rest = []
            out.append(message)
    return out


@given(
    total=st.integers(1, 200),
    stopped=st.integers(0, 200),
    began=st.integers(0, 200),
    buffered_until=st.integers(0, 200),
    named=st.integers(1, 64),
)
def test_of_distinct_messages_none_is_lost_and_none_doubled(
    total: int, stopped: int, began: int, buffered_until: int, named: int
) -> None:
    """Wherever the old owner stopped, the standby began to listen, and its socket had come when it took over."""
    feed = [b"%d" % n for n in range(total)]
    stopped = min(stopped, total)
    began = min(began, stopped)
    if stopped - began > named and buffered_until <= stopped - named:
        buffered_until = stopped  # a socket that lags by more than what is named cannot be helped
    buffered_until = max(began, min(buffered_until, total))
    emitted = feed[:stopped]
    out = go_on(emitted[-named:] if emitted else [], feed[began:buffered_until], feed[buffered_until:])
    assert emitted + out == feed


def test_what_each_socket_has_for_itself_does_not_hide_the_overlap() -> None:
    emitted = [b"greeting 1", b"1", b"ping 1", b"2", b"3"]
    assert go_on(emitted, [b"greeting 2", b"2", b"3", b"ping 2", b"4"], [b"5"]) == [b"ping 2", b"4", b"5"]


def test_repeated_messages_next_to_the_anchor_are_dropped_with_it() -> None:
    emitted = [b"1", b"tick", b"tick"]
    assert go_on(emitted, [b"1", b"tick", b"tick", b"tick"], [b"2"]) == [b"tick", b"2"]
    assert go_on(emitted, [b"1", b"tick"], [b"tick", b"tick"]) == [b"tick"]


def test_a_feed_that_only_repeats_itself_is_matched_by_length() -> None:
    assert go_on([b"tick"] * 64, [b"tick"] * 3, [b"tick"]) == [b"tick"]


def test_nothing_in_common_drops_nothing() -> None:
    assert go_on([b"1", b"2"], [b"8", b"9"], [b"10"]) == [b"8", b"9", b"10"]
    assert go_on([], [b"1"], [b"2"]) == [b"1", b"2"]


def test_an_empty_buffer_drops_what_comes_late_unless_it_may_be_new() -> None:
    assert go_on([b"1", b"tick", b"tick"], [], [b"1", b"2"]) == [b"2"]
    assert go_on([b"tick", b"tick"], [], [b"tick"]) == [b"tick"]
