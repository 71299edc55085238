"""Two WebSockets side by side: every message is delivered once, whichever of them is ahead."""

from collections.abc import Sequence

import pytest

from worker.rotation import Overlap


def delivered(old: Sequence[str], new: Sequence[str], later: Sequence[str]) -> list[str]:
    """What is delivered if the old one brought `old`, and the new one `new` before the cut and `later` after it."""
    overlap = Overlap()
    for part in (old[:3], old[3:]):
        overlap.delivered(part)
    for part in (new[:2], new[2:]):
        overlap.pending(part, 1.0)
    messages, echo = overlap.cut(0.0)
    fresh = [str(message) for part in (later[:1], later[1:3], later[3:]) for message in echo.without(part, 1.0)]
    return [*old, *(str(message) for message, _ in messages), *fresh]


@pytest.mark.parametrize("ahead", range(8))
@pytest.mark.parametrize("behind", range(8))
def test_every_message_once_wherever_the_two_stand_at_the_cut(ahead: int, behind: int) -> None:
    feed = [f"message {number}" for number in range(20)]
    assert delivered(feed[: 8 + ahead], feed[4 : 8 + behind], feed[8 + behind :]) == feed


def test_a_greeting_of_the_new_one_does_not_confuse() -> None:
    assert delivered(["1", "2", "3"], ["hello", "2", "3", "4"], ["5"]) == ["1", "2", "3", "4", "5"]


def test_without_anything_in_common_everything_is_delivered() -> None:
    assert delivered(["a"], ["b", "c"], ["d"]) == ["a", "b", "c", "d"]


def test_what_is_said_again_later_is_no_echo() -> None:
    overlap = Overlap()
    overlap.delivered(["door open", "door closed"])
    _, echo = overlap.cut(0.0)
    assert echo.without(["door open"], 60.0) == ["door open"]


def test_the_pending_of_one_that_ended_early_is_forgotten() -> None:
    overlap = Overlap()
    overlap.pending(["x"], 1.0)
    overlap.forget_pending()
    assert overlap.pending_bytes == 0
    assert overlap.cut(0.0)[0] == []
