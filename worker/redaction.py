"""What an upstream says is shown in the status, in records and logs, and it may repeat what it was told in confidence.

A close reason has at most 123 bytes (RFC 6455 section 5.5), so of a long token it has only the beginning:
`invalid token eyJhbGciOi`.
"""

import re
from collections.abc import Iterable
from urllib.parse import unquote_plus

from worker.attempt import Attempt

REDACTED = "[redacted]"

WHOLE = 4
"""Characters: shorter values of headers and queries are no secrets, but words of everyday language."""

LONG_WORD = 12
"""Characters: shorter words of a message that we sent are the vocabulary of the upstream."""

RUN = 8
"""So many characters in a row that occur in a value are taken for a piece of it."""

_BETWEEN_WORDS = re.compile(r"[\s;,:=\"'{}\[\]]+")


class Redactor:
    """Knows what was said to one upstream in confidence. Kept as long as its WebSocket."""

    __slots__ = ("_values", "_whole")

    def __init__(self, attempt: Attempt) -> None:
        handshake = attempt.handshake
        query = handshake.url.target.partition("?")[2]
        fields = {*handshake.headers.values(), *handshake.subprotocols, *_query_values(query)}
        messages = [*(opening.data for opening in attempt.openings), attempt.app_ping]
        long_words = {word for data in messages if data for word in _words(_text(data)) if len(word) >= LONG_WORD}
        whole = {word for field in fields for word in (field, *_words(field)) if len(word) >= WHOLE}
        self._whole = tuple({*whole, *attempt.secrets} - {""})
        self._values = tuple({*fields, *long_words, *attempt.secrets})

    def redact(self, text: str) -> str:
        """The text without what is confidential in it."""
        kept: list[str] = []
        until = 0
        for at, character in enumerate(text):
            # Also within a piece: a longer one may begin there.
            until = max(until, at + self._confidential(text, at))
            if at >= until:
                kept.append(character)
            elif kept[-1:] != [REDACTED]:
                kept.append(REDACTED)
        return "".join(kept)

    def _confidential(self, text: str, at: int) -> int:
        """How many characters from `at` on must go."""
        return max(
            max((len(value) for value in self._whole if text.startswith(value, at)), default=0),
            max((_run(text, at, value) for value in self._values), default=0),
        )


def _run(text: str, at: int, value: str) -> int:
    """How much of the text from `at` on is a piece of the value; 0 if less than RUN."""
    end = at + RUN
    if end > len(text) or text[at:end] not in value:
        return 0
    while end < len(text) and text[at : end + 1] in value:
        end += 1
    return end - at


def _query_values(query: str) -> Iterable[str]:
    """The values as they were sent, and as they are meant."""
    for field in query.split("&"):
        value = field.partition("=")[2] or field
        yield value
        yield unquote_plus(value)


def _words(text: str) -> list[str]:
    return _BETWEEN_WORDS.split(text)


def _text(data: str | bytes) -> str:
    return data if isinstance(data, str) else data.decode(errors="replace")
