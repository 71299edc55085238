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


@pytest.mark.parametrize(
    "number",
    [
        "0",
        "-5",
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775809",
        "1e2",
        "1E+2",
        "100.0",
        "1700000000.123456789",
        "1" * 256,
    ],
)
def test_a_number_is_a_cursor_as_it_is_written(number: str) -> None:
    message = f'{{"a": [{{"b": {number}}}], "c": 1.25}}'
    assert cursor_of("/a/0/b")(message) == cursor_of("/a/0/b")(message.encode()) == number


@pytest.mark.parametrize("number", ["1" * 257, "1e" + "0" * 300, "1.5" * 1 + "0" * 300])
def test_a_number_that_is_too_long_for_a_row_is_no_cursor(number: str) -> None:
    assert cursor_of("/a")(f'{{"a": {number}}}') is None


def test_a_number_in_a_message_of_any_depth_is_found_or_not_and_breaks_nothing() -> None:
    for depth in (10, 500, 1000, 2000):
        message = f'{{"deep": {"[" * depth}{"]" * depth}, "a": 1.50}}'
        assert cursor_of("/a")(message) in ("1.50", None)


@pytest.mark.parametrize("character", ["7", "é", "例"])
def test_what_is_too_long_for_a_row_is_no_cursor(character: str) -> None:
    longest = character * (256 // len(character.encode()))
    assert cursor_of("/a")(f'{{"a": "{longest}"}}') == longest
    assert cursor_of("/a")(f'{{"a": "{longest + character}"}}') is None
    assert cursor_of("/a")(f'{{"a": "{character * 5000}"}}') is None


@pytest.mark.parametrize(
    ("cursor", "by", "result"),
    [
        ("100", 7, "93"),
        ("5", 7, "0"),
        ("100", 0, "100"),
        ("00012", 2, "00010"),
        ("00012", 20, "00000"),
        ("0", 3, "0"),
        ("-5", 7, "-12"),
        ("1.5", 1, "0.5"),
        ("1.5", 2, "0"),
        ("1700000000.123456789", 5, "1699999995.123456789"),
        ("100.0", 1, "99.0"),
        ("1e2", 1, "99"),
        ("1.5E+3", 1, "1499"),
        ("5e-1", 1, "0"),
        ("18446744073709551616", 1, "18446744073709551615"),
        ("9" * 256, 9, "9" * 255 + "0"),
        ("0.5", 0, "0.5"),
        ("abc", 7, "abc"),
        ("1700000000000-0", 7, "1700000000000-0"),
        ("2026-11-29T00:00:00Z", 7, "2026-11-29T00:00:00Z"),
        ("1e999999999", 7, "1e999999999"),
        ("٣", 1, "٣"),
        ("0x10", 1, "0x10"),
        ("", 1, ""),
    ],
)
def test_a_number_is_rewound(cursor: str, by: int, result: str) -> None:
    assert rewound(cursor, by) == result
