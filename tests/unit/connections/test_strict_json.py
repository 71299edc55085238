"""What is JSON and what is not."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from connections.refusal import Refusal
from connections.strict_json import MAX_DEPTH, MAX_INTEGER, canonical, parse

BROKEN = [
    b"",
    b" ",
    b"{",
    b"{}x",
    b"{}{}",
    b"nul",
    b"{'a':1}",
    b'{"a":1,}',
    b'{"a":01}',
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b'{"a":"\xff"}',
    b'{"a":"\xed\xa0\x80"}',
    b'{"a":"\\ud800"}',
    b'{"\\udfff":1}',
    b'{"a":["\\ud800\\ud800"]}',
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":-Infinity}',
    b'{"a":1e999}',
    b'{"a":-1e999}',
    b'{"a":9007199254740992}',
    b'{"a":' + b"9" * 5000 + b"}",
    b'{"a":1,"a":1}',
    b'{"a":{"b":1,"b":2}}',
    b'{"a":1,"\\u0061":2}',
    b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"a":"\n"}',
]


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: ascii(body)[:40])
def test_what_two_parsers_may_read_differently_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        parse(body)
    assert refused.value.code == "invalid_json"


def test_what_is_fine() -> None:
    assert parse(b' {"a":[1,-2.5,true,null,"\\ud83d\\ude00[{\\"\\\\"]} ') == {"a": [1, -2.5, True, None, '😀[{"\\']}
    assert parse(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert parse(str(MAX_INTEGER).encode()) == MAX_INTEGER
    assert parse(str(-MAX_INTEGER).encode()) == -MAX_INTEGER


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
)
DOCUMENTS = st.recursive(
    SCALARS | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(DOCUMENTS)
def test_the_canonical_text_reads_back(document: object) -> None:
    assume(depth(document) <= MAX_DEPTH)
    assert parse(canonical(document).encode()) == document


def depth(document: object) -> int:
    if isinstance(document, dict):
        return 1 + max(map(depth, document.values()), default=0)
    return 1 + max(map(depth, document), default=0) if isinstance(document, list) else 0


@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:\\ud8019eE-+.tfn ', max_size=60).map(str.encode))
def test_any_bytes_are_either_read_as_json_reads_them_or_refused(body: bytes) -> None:
    try:
        document = parse(body)
    except Refusal:
        return
    assert document == json.loads(body)
