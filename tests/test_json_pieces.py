import json

import msgspec
import pytest

from schemas.annotations import json_pieces
from schemas.annotations.json_pieces import HeldText, divide_object
from tests.coco_texts import SMALL

DEEP = b' {"a" : [ {"b": [{"c": "}, {"}, {}]} , {"b": []}\n]\t, "d":null,"e\\"": {"f": [1]} }\n'


def put_together(data: bytes, piece_bytes: int) -> dict:
    """Return an object as its parts say it is."""
    found: dict = {}
    for key, part in divide_object(HeldText(data, piece_bytes).pieces()):
        value = msgspec.json.decode(part)
        found[key] = found[key] + value if key in found else value
    return found


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("piece_bytes", [*range(1, 40), 10_000])
def test_parts_make_the_object_whatever_the_pieces(indent: int | None, piece_bytes: int) -> None:
    data = json.dumps(json.loads(SMALL), indent=indent).encode()

    assert put_together(data, piece_bytes) == json.loads(SMALL)


def test_entries_that_hold_objects_come_out_in_one_part_or_as_no_json() -> None:
    data = b'{"a": [{"b": {"c": 1}}, {"b": {"c": 2}}], "d": "x"}'

    assert put_together(data, 5) == json.loads(data)
    with pytest.raises(msgspec.DecodeError):
        put_together(DEEP, 1000)


@pytest.mark.parametrize("value", ['"' * 300_000, "[[{" * 5 + '"}' * 50_000, [[1, "]"]] * 20_000])
def test_long_values_are_looked_at_once(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of quotes would else be tried from each of them to its end."""
    looked_at: list[int] = []
    scan = json_pieces._scan_value

    def scan_and_note(text: bytes, at: int, depth: int) -> tuple[int, int, bool]:
        looked_at.append(scan(text, at, depth)[0] - at)
        return scan(text, at, depth)

    monkeypatch.setattr(json_pieces, "_scan_value", scan_and_note)
    data = json.dumps({"info": value, "a": [{}]}).encode()

    assert put_together(data, 2**16) == json.loads(data)
    assert sum(looked_at) < len(data)


def test_long_arrays_of_objects_come_in_parts() -> None:
    entries = [{"id": number} for number in range(1000)]
    data = json.dumps({"a": entries}).encode()

    parts = list(divide_object(HeldText(data, 1000).pieces()))

    assert len(parts) > 10
    assert max(len(part) for _, part in parts) <= 1100
    assert [entry for _, part in parts for entry in json.loads(part)] == entries


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"a": 1',
        b'{"a": 1} 2',
        b'{"a": 1, "a": 2}',
        b'{"a": 1, "\\u0061": 2}',
        b'{"a": [{"b": 1}',
        b'{"a": [{"b": 1} ]',
        b'{"a": "x',
        b'{"a" 1}',
        b'\xef\xbb\xbf{"a": 1}',
    ],
)
def test_what_cannot_be_divided_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"stands|end|no "):
        list(divide_object([data]))
