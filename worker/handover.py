"""Where a standby goes on in the stream of messages that it and the old owner both received."""

from collections import Counter
from collections.abc import Sequence

LAG_SECONDS = 2.0
"""How much later the slower of two sockets brings what the other one has brought. What is the same but comes later than
that is another message: a feed may well say `door open` twice."""


def overlap(emitted: Sequence[bytes], seen: Sequence[bytes]) -> tuple[int, Sequence[bytes]]:
    """Which of the messages that a standby has seen were emitted by the old owner already.

    `emitted` are the digests of the last messages that the old owner emitted, `seen` those of what the standby has
    buffered, both oldest first. Returns how many of `seen` to drop, and which of `emitted` the standby, whose socket
    may lag behind, has yet to receive and drop.

    Two sockets need not receive exactly the same: each has its own greetings and keepalives. So the anchor is the last
    message that both sides have exactly once. Where no message is unmistakable (a feed that repeats itself), the
    longest end of `emitted` that is a beginning of `seen` is taken as the overlap.
    """
    emitted_times, seen_times = Counter(emitted), Counter(seen)
    at = {digest: position for position, digest in enumerate(emitted) if emitted_times[digest] == 1}
    for last in range(len(seen) - 1, -1, -1):
        if seen[last] in at and seen_times[seen[last]] == 1:
            return _follow(emitted, seen, at[seen[last]], last)
    if not seen:
        return 0, [digest for digest in emitted if emitted_times[digest] == 1]
    for length in range(min(len(emitted), len(seen)), 0, -1):
        if list(emitted[-length:]) == list(seen[:length]):
            return length, ()
    return 0, ()


def _follow(emitted: Sequence[bytes], seen: Sequence[bytes], position: int, last: int) -> tuple[int, Sequence[bytes]]:
    """Go on from the anchor as long as both received the same."""
    while last + 1 < len(seen) and position + 1 < len(emitted) and seen[last + 1] == emitted[position + 1]:
        last += 1
        position += 1
    return last + 1, emitted[position + 1 :] if last + 1 == len(seen) else ()
