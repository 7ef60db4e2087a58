"""COCO files: accepted ones, malformed JSON, missing sections, deep nesting."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.annotations.json_sections import nests_deeper
from schemas.faults import find_fault
from tests.coco_texts import SMALL, SMALL_OBJECT, malformed, parse, read, refused, small

ACCEPTED = {
    "a byte order mark": b"\xef\xbb\xbf" + SMALL,
    "sections in another order": b'{"categories":[{"id":3,"name":"cat"}],'
    + SMALL[1:].replace(b',"categories":[{"id":3,"name":"cat"}]', b""),
    "other sections and fields": small(
        b'{"images":[{', b'{"info":{"images":[]},"images":[{"x":[1],'
    ),
    "an unread number beyond float64": small(b'"area"', b'"score":1e999,"area"'),
    "sizes that are whole floats": small(b'64,"height":48}', b'64.0,"height": 48.00}'),
    "a crowd flag": small(b'"area"', b'"iscrowd":0,"area"'),
    "floats in the bbox": small(b"[1,2,3,4]", b"[1.0,2e0,30e-1,4.000]"),
    "the same category twice": small(b'[{"id":3', b'[{"id":3,"name":"cat"},{"id":3'),
}


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_files(data: bytes) -> None:
    assert read(data) == [(1, [SMALL_OBJECT], [])]


UNPACK = "give an unpacked file, saved as UTF-8"
NOT_JSON = {
    "empty": (b"", malformed("the file ends at byte offset 0 (Input data was truncated)")),
    "NaN": (
        small(b"[1,2,3,4]", b"[1,2,3,NaN]"),
        malformed('invalid character at byte offset 130, where \'NaN],"area":9.5}],"c\' stands'),
    ),
    "a comma too many": (
        small(b"4]", b"4,]"),
        malformed(
            'trailing comma in array at byte offset 132, where \'],"area":9.5}],"cate\' stands'
        ),
    ),
    "more after the end": (
        SMALL + b"\n{}",
        malformed("trailing characters at byte offset 184, where '{}' stands"),
    ),
    "no UTF-8 in unread text": (
        small(b'"area"', b'"note":"\xe9","area"'),
        malformed(
            r"no UTF-8 at byte offset 141, where '\\xe9" '","area":9.5}],"cat\' stands', UNPACK
        ),
    ),
    "UTF-16": (
        "{}".encode("utf-16")[:3],
        malformed(r"no UTF-8 at byte offset 0, where '\\xff\\xfe{' stands", UNPACK),
    ),
    "an array": (
        b"[" + SMALL + b"]",
        malformed(
            "the file is no JSON object (Expected `object`, got `array`)",
            "give a COCO annotation file",
        ),
    ),
}


@pytest.mark.parametrize(("data", "line"), NOT_JSON.values(), ids=NOT_JSON)
def test_malformed_json(data: bytes, line: str) -> None:
    refused(data, line)


@pytest.mark.parametrize("start", range(2**20 - 4, 2**20 + 2))
def test_utf8_is_checked_across_piece_borders(start: int) -> None:
    head = b'{"info":"' + b"x" * (start - 9)
    good = head + "€".encode() + b'",' + SMALL[1:]
    assert good.index("€".encode()) == start
    assert read(good) == [(1, [SMALL_OBJECT], [])]
    with pytest.raises(RuntimeError, match=f"no UTF-8 at byte offset {start + 3}, where"):
        parse(good.replace("€".encode(), "€".encode() + b"\xe2\x82"))


SECTIONS = {
    "no images": (
        small(b'"images"', b'"photos"'),
        "section 'images' is missing (found photos, annotations, categories)",
    ),
    "nothing": (b"{}", "section 'images' is missing (found nothing)"),
    "twice, once escaped": (
        rb'{"im\u0061ges":[],' + SMALL[1:],
        "section 'images' is twice (found images, images, annotations, categories)",
    ),
}


@pytest.mark.parametrize(("data", "what"), SECTIONS.values(), ids=SECTIONS)
def test_sections(data: bytes, what: str) -> None:
    refused(data, f"E-ANN-SECTION f.json: {what}; give a COCO annotation file")


def nested(levels: int, core: bytes = b"") -> bytes:
    """Return the small file with a value that nests to this level; the file itself is one."""
    inner = b"[" * (levels - 1) + core + b"]" * (levels - 1)
    return b'{"info":' + inner + b"," + SMALL[1:]


NESTING = {
    "64": nested(64),
    "64, and brackets in text": nested(64, b'"' + b"[" * 99 + b'"'),
    "closing brackets in text": nested(64, b'"]]}}", "}"'),
}


@pytest.mark.parametrize("data", NESTING.values(), ids=NESTING)
def test_nesting_up_to_64_is_accepted(data: bytes) -> None:
    assert read(data) == [(1, [SMALL_OBJECT], [])]


TOO_DEEP = {
    "65": nested(65),
    "too deep for the parser": nested(100_000),
    "too deep and cut off": b'{"a":' * 100_000,
}


@pytest.mark.parametrize("data", TOO_DEEP.values(), ids=TOO_DEEP)
def test_nesting_beyond_64_is_refused(data: bytes) -> None:
    refused(data, malformed("values nest deeper than 64", "give a COCO annotation file"))


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


TEXTS = st.text('[]{}"\\a', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers(0, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@example([[[["]["]]]], 3)
@example({'"]': ["]", {"]": None, "[[[]": [], "[[": None}]}, 3)
@given(VALUES, st.integers(1, 6))
def test_nests_deeper_counts_levels(value: Any, levels: int) -> None:
    assert nests_deeper(json.dumps(value).encode(), levels) is (depth(value) > levels)


def test_text_without_end_is_scanned_once() -> None:
    """From each of its quotes to its end it would take an hour."""
    assert nests_deeper(b'{"info": ["' + b'\\"' * 1_000_000, 1)


def read_or_refuse(data: bytes) -> str:
    """Return the code of the one line that refuses a file, or nothing; other errors pass."""
    try:
        read(data)
    except RuntimeError as error:
        text = str(error)
        code = text.split()[0]
        assert find_fault(text) == (code, text)
        assert code.startswith("E-ANN-")
        assert text.isascii() and text.isprintable()
        return code
    return ""


def test_flipped_bits_are_read_or_refused_in_one_line() -> None:
    codes = set()
    for place in range(len(SMALL)):
        for bit in range(8):
            flipped = bytearray(SMALL)
            flipped[place] ^= 1 << bit
            codes.add(read_or_refuse(bytes(flipped)))
    assert codes == {"", "E-ANN-JSON", "E-ANN-SECTION", "E-ANN-TYPE"}
