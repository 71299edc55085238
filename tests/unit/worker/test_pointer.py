"""Values and cursors in messages."""

import pytest

from worker.pointer import cursor_of, rewound, value_at

MESSAGE = '{"a": {"b": [10, {"c/d": "x", "m~n": null}]}, "": 1, "t": true, "f": 1.5, "big": 1725911162329308}'


@pytest.mark.parametrize(
    ("pointer", "value"),
    [("/a/b/0", 10), ("/a/b/1/c~1d", "x"), ("/a/b/1/m~0n", None), ("/", 1), ("/f", 1.5)],
)
def test_a_pointer_finds_its_value(pointer: str, value: object) -> None:
    assert value_at(MESSAGE, pointer) == value
    assert value_at(MESSAGE.encode(), pointer) == value


@pytest.mark.parametrize("pointer", ["/x", "/a/b/2", "/a/b/-", "/a/b/x", "/f/0", "/a/b/01x"])
def test_what_is_not_there_is_an_error(pointer: str) -> None:
    with pytest.raises(LookupError):
        value_at(MESSAGE, pointer)


@pytest.mark.parametrize("message", ["", "not json", b"\xff\x00", "[" * 10_000])
def test_what_is_not_json_has_nothing(message: str | bytes) -> None:
    with pytest.raises(LookupError):
        value_at(message, "/a")


@pytest.mark.parametrize(
    ("pointer", "cursor"),
    [
        ("/big", "1725911162329308"),
        ("/a/b/1/c~1d", "x"),
        ("/t", None),
        ("/a", None),
        ("/a/b/1/m~0n", None),
        ("/f", "1.5"),
    ],
)
def test_a_cursor_is_a_text_or_a_number(pointer: str, cursor: str | None) -> None:
    assert cursor_of(pointer)(MESSAGE) == cursor


@pytest.mark.parametrize("character", ["7", "é", "例"])
def test_what_is_too_long_for_a_row_is_no_cursor(character: str) -> None:
    longest = character * (256 // len(character.encode()))
    assert cursor_of("/a")(f'{{"a": "{longest}"}}') == longest
    assert cursor_of("/a")(f'{{"a": "{longest + character}"}}') is None
    assert cursor_of("/a")(f'{{"a": "{character * 5000}"}}') is None


@pytest.mark.parametrize(
    ("cursor", "by", "result"),
    [("100", 7, "93"), ("5", 7, "0"), ("abc", 7, "abc"), ("100", 0, "100"), ("1.5", 1, "1.5")],
)
def test_a_whole_number_is_rewound(cursor: str, by: int, result: str) -> None:
    assert rewound(cursor, by) == result
