"""JSON pointers (RFC 6901) into messages: resume cursors, and what an opening step waits for."""

import json
import re
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import orjson

MAX_CURSOR_LENGTH = 256
"""Bytes. A cursor is kept in a row that stays below 1 KiB, and which DynamoDB would refuse above 400 KB: not only the
checkpoint, but every write that lets the connection go. What a server sends there that is longer is no cursor."""


NUMBER = re.compile(r"-?[0-9]+(?P<decimals>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]{1,2})?")

_EXACT = Context(prec=2 * MAX_CURSOR_LENGTH)


def value_at(message: str | bytes, pointer: str) -> Any:
    """The JSON value at a pointer. Raises `LookupError` if the message is not JSON or has nothing there."""
    try:
        value = orjson.loads(message)
    except orjson.JSONDecodeError:
        raise LookupError(pointer) from None
    return _walk(value, pointer)


def _as_written(message: str | bytes, pointer: str) -> Any:
    """The same for a number that no `float` holds exactly: its text."""
    text = message if isinstance(message, str) else message.decode()
    try:
        return _walk(json.loads(text, parse_float=str, parse_int=str), pointer)
    except RecursionError:
        raise LookupError(pointer) from None


def _walk(value: Any, pointer: str) -> Any:
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
    """A function that finds the cursor in a message: a string at the pointer, or a number as it is written there.

    It has MAX_CURSOR_LENGTH at most.
    """

    def find(message: str | bytes) -> str | None:
        try:
            value = value_at(message, pointer)
            if isinstance(value, float):
                value = _as_written(message, pointer)
        except LookupError:
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return value if isinstance(value, str) and len(value.encode()) <= MAX_CURSOR_LENGTH else None

    return find


def rewound(cursor: str, by: int) -> str:
    """A cursor some way back, if it is a number: what was missed at the seam is worth a few repetitions.

    What is not negative stays so. Leading zeros of a whole number, which are there to make all of them equally long,
    and the places behind a decimal point are kept.
    """
    number = NUMBER.fullmatch(cursor)
    if not by or number is None:
        return cursor
    value = Decimal(cursor)
    back = _EXACT.subtract(value, Decimal(by))
    if value >= 0:
        back = max(Decimal(0), back)
    result = f"{back:f}"
    padded = cursor.lstrip("-").startswith("0") and not number["decimals"] and not number["exponent"]
    return result.zfill(len(cursor)) if padded else result
