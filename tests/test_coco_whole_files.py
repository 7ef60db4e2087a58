"""Whole COCO files: real ones, cut off, flipped, spliced: read, or refused in one line."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.faults import find_fault
from tests.coco_texts import SMALL, malformed, read
from tests.drawn_examples import draw


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


def test_a_file_cut_off_anywhere_is_refused_with_its_end() -> None:
    for size_bytes in range(1, len(SMALL)):
        with pytest.raises(RuntimeError, match="E-ANN-JSON") as caught:
            read(SMALL[:size_bytes])
        reason = (
            "invalid number" if SMALL[:size_bytes].endswith(b"9.") else "Input data was truncated"
        )
        ends = f"the file ends at byte offset {size_bytes} ({reason})"
        assert str(caught.value) == malformed(ends)


def test_flipped_bits_are_read_or_refused_in_one_line() -> None:
    codes = set()
    for place in range(len(SMALL)):
        for bit in range(8):
            flipped = bytearray(SMALL)
            flipped[place] ^= 1 << bit
            codes.add(read_or_refuse(bytes(flipped)))
    assert codes == {"", "E-ANN-JSON", "E-ANN-SECTION", "E-ANN-TYPE"}


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from([10**400, "../a", 2**63, 1e300, "gs://b/a"])
)
NODES = SCALARS | st.lists(SCALARS, max_size=5) | st.dictionaries(st.text(max_size=3), SCALARS)


def replaced(value: Any, path: list[int], node: Any) -> Any:
    """Return a copy of a JSON value with the node at a path, modulo its lengths, replaced."""
    if not path or not isinstance(value, (dict, list)) or not value:
        return node
    if isinstance(value, dict):
        key = sorted(value)[path[0] % len(value)]
        return {**value, key: replaced(value[key], path[1:], node)}
    place = path[0] % len(value)
    return [*value[:place], replaced(value[place], path[1:], node), *value[place + 1 :]]


@draw(500)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), NODES)
@example([1, 0, 4], -1)
def test_files_with_any_value_anywhere_are_read_or_refused_in_one_line(
    path: list[int], node: Any
) -> None:
    spec = json.loads(SMALL)
    read_or_refuse(json.dumps(replaced(spec, path, node)).encode())
