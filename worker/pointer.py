"""JSON pointers (RFC 6901) into messages: resume cursors, and what an opening step waits for."""

from collections.abc import Callable
from typing import Any

import orjson

MAX_CURSOR_LENGTH = 256
"""Bytes. A cursor is kept in a row that stays below 1 KiB, and which DynamoDB would refuse above 400 KB: not only the
checkpoint, but every write that lets the connection go. What a server sends there that is longer is no cursor."""


def value_at(message: str | bytes, pointer: str) -> Any:
    """The JSON value at a pointer. Raises `LookupError` if the message is not JSON or has nothing there."""
    try:
        value = orjson.loads(message)
    except orjson.JSONDecodeError:
        raise LookupError(pointer) from None
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value[name]
        elif isinstance(value, list) and name.isdecimal():
            value = value[int(name)]
        else:
            raise LookupError(pointer)
    return value


def cursor_of(pointer: str) -> Callable[[str | bytes], str | None]:
    """A function that finds the cursor in a message: a string or a number at the pointer, MAX_CURSOR_LENGTH at most."""

    def find(message: str | bytes) -> str | None:
        try:
            value = value_at(message, pointer)
        except LookupError:
            return None
        if isinstance(value, str):
            return value if len(value.encode()) <= MAX_CURSOR_LENGTH else None
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    return find


def rewound(cursor: str, by: int) -> str:
    """A cursor some way back, if it is a whole number: what was missed at the seam is worth a few repetitions."""
    return str(max(0, int(cursor) - by)) if by and cursor.isdecimal() else cursor
