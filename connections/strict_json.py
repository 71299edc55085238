"""JSON as RFC 8259 has it and as I-JSON (RFC 7493) narrows it: what two parsers might read differently is refused."""

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

from connections.refusal import Refusal

MAX_DEPTH = 16
"""Nested arrays and objects. A connection request needs 5."""

MAX_INTEGER = 2**53 - 1
"""Integers beyond this lose digits in parsers that read numbers as doubles (RFC 7493 section 2.2)."""


def parse(body: bytes) -> Any:
    """Read one JSON text.

    Refused with code `invalid_json`: anything but UTF-8 without a byte order mark, duplicate names, NaN and Infinity,
    numbers that a double cannot hold, lone surrogates, and more than MAX_DEPTH levels. Raises `Refusal`.
    """
    if body.startswith(b"\xef\xbb\xbf"):
        raise _invalid("the body begins with a byte order mark")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not UTF-8 at byte {error.start}") from None
    if _depth(text) > MAX_DEPTH:
        raise _invalid(f"the body nests deeper than {MAX_DEPTH} levels")
    try:
        document = json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        raise _invalid(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    for string in _strings(document):
        if not string.isascii() and any("\ud800" <= character <= "\udfff" for character in string):
            raise _invalid("a string holds half of a surrogate pair")
    return document


def canonical(document: Any) -> str:
    """The one text of a document: sorted names, no spaces, no needless escapes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _invalid(message: str) -> Refusal:
    return Refusal("invalid_json", message)


def _depth(text: str) -> int:
    """The deepest nesting outside of strings, counted before parsing, since the parser itself recurses."""
    deepest = depth = 0
    quoted = escaped = False
    for character in text:
        if quoted:
            quoted = escaped or character != '"'
            escaped = not escaped and character == "\\"
        elif character == '"':
            quoted = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise _invalid("an object has the same name twice")
    return document


def _integer(digits: str) -> int:
    if len(digits) > len(str(-MAX_INTEGER)) or abs(int(digits)) > MAX_INTEGER:
        raise _invalid("an integer is outside of ±(2^53 - 1)")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _invalid("a number is too large")
    return number


def _constant(name: str) -> NoReturn:
    raise _invalid(f"{name} is not JSON")


def _strings(document: Any) -> Iterator[str]:
    match document:
        case str():
            yield document
        case list():
            for element in document:
                yield from _strings(element)
        case dict():
            for name, value in document.items():
                yield name
                yield from _strings(value)
