"""The sections of a large JSON object: strict about everything that a lenient parser lets pass.

A file is scanned once for its syntax and given back as raw slices, a section each. What is wrong
with it is told by byte offset and by what stands there.
"""

import codecs
import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from schemas.faults import fault_line

MAX_NESTING = 64
_GZIP = b"\x1f\x8b"
_UTF8_BOM = b"\xef\xbb\xbf"
_OPEN_OR_CLOSE = bytes.maketrans(b"{}", b"[]")
_NOT_A_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_STRING_OR_REST = re.compile(STRING.pattern[:-1] + rb'(?:"|\\?\Z)', re.DOTALL)
"""An end is not looked for again from each quote of a text in which there is none."""
_STRING_OR_BRACKET = re.compile(rb"(%b)\s*(:?)|[][{}]" % STRING.pattern, re.DOTALL)
_ARRAY_OF_OBJECTS = re.compile(rb"\s*\[\s*\{")
_BEGINS_AS_JSON = re.compile(rb"[\s\0\xff\xfe]*[\[{]")  # UTF-16 and UTF-32 too
_DECODED_AT_ONCE_BYTES = 2**20
_BYTE_OFFSET = re.compile(r"\(byte (\d+)\)")
_STRING_OR_NOT_FINITE = re.compile(
    rb"%b|(?<=[ \t\r\n:,[])(NaN|-?Infinity)(?=[ \t\r\n,}\]])" % STRING.pattern, re.DOTALL
)
_LONE_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})(?=[^\\]|\\[^u])")
_NOT_FINITE = b"1e999"
_WHOLE_SIZE = re.compile(rb'("(?:width|height)"[ \t\r\n]*:[ \t\r\n]*[0-9]+)\.0+(?![0-9eE])')
_AREA = re.compile(rb'("area"[ \t\r\n]*:[ \t\r\n]*)(-?[0-9][-+.0-9eE]*)')


class _EveryKey:
    """A JSON key that equals no other, so that a dict keeps a key that stands twice."""

    def __init__(self, text: str) -> None:
        self.text = text


class Sections:
    """The values of a JSON object by key, unparsed.

    Attributes:
        names: its keys in their order; one that stands twice is there twice.
    """

    def __init__(self, pairs: dict[_EveryKey, msgspec.Raw], data: bytes, where: str) -> None:
        """Take what `parse_sections` found in the bytes of a file."""
        self.names = [key.text for key in pairs]
        self._values = list(pairs.values())
        self._data = data
        self._where = where

    def find(self, name: str) -> msgspec.Raw:
        """Return the last value of a key that may be there; `null` where it is not."""
        values = dict(zip(self.names, self._values, strict=True))
        return values.get(name, msgspec.Raw(b"null"))

    def take(self, name: str) -> msgspec.Raw:
        """Return the value of a key that must be there, once.

        Raises:
            RuntimeError: `E-ANN-SECTION` when the key is missing or stands twice.
        """
        if self.names.count(name) == 1:
            return self._values[self.names.index(name)]
        what = f"section {name!r} is missing (found {', '.join(self.names[:8]) or 'nothing'})"
        if name in self.names:
            first, second = itertools.islice(_key_offsets(self._data, name), 2)
            what = f"section {name!r} stands at byte offset {first} and again at {second}"
        remedy = "give a COCO annotation file"
        raise RuntimeError(fault_line("E-ANN-SECTION", self._where, what, remedy))


def parse_sections(data: bytes, where: str) -> Sections:
    """Return the sections of a JSON object.

    Args:
        data: UTF-8 with or without a BOM.
        where: the file's name, for messages.

    Raises:
        RuntimeError: `E-ANN-JSON` when it is no well-formed JSON object nested at most 64 deep.
    """
    if data.startswith(_UTF8_BOM):
        data = b" " * len(_UTF8_BOM) + data[len(_UTF8_BOM) :]  # every byte keeps its offset
    if data.isspace() or not data:
        what, remedy = "the file is empty", "give a COCO annotation file"
        raise RuntimeError(fault_line("E-ANN-JSON", where, what, remedy))
    _refuse_other_encodings(data, where)
    try:
        pairs = _decode_pairs(data)
    except msgspec.ValidationError as error:
        what = f"the file is no JSON object ({error})"
        raise RuntimeError(
            fault_line("E-ANN-JSON", where, what, "give a COCO annotation file")
        ) from None
    except msgspec.DecodeError as error:
        raise RuntimeError(
            fault_line("E-ANN-JSON", where, _what_stands_there(error, data), "repair the file")
        ) from None
    except RecursionError:
        raise _nests_too_deep(data, where) from None
    if nests_deeper(data, MAX_NESTING):
        raise _nests_too_deep(data, where)
    return Sections(pairs, data, where)


def _decode_pairs(data: bytes) -> dict[_EveryKey, msgspec.Raw]:
    """Decode an object, in which `NaN` and `Infinity`, as Python writes them, become `1e999`."""
    decoder = msgspec.json.Decoder(dict[_EveryKey, msgspec.Raw], dec_hook=_key_hook)
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        match = _BYTE_OFFSET.search(str(error))
        at = int(match[1]) if match else len(data)
        if data[at : at + 3] not in (b"NaN", b"Inf"):
            raise
    tokens = [match for match in _STRING_OR_NOT_FINITE.finditer(data) if match[1]]

    def replaced(padded: bool) -> bytes:
        parts: list[bytes] = []
        kept = 0
        for token in tokens:
            number = b"0".ljust(len(token[1])) if padded else _NOT_FINITE
            parts += data[kept : token.start()], number
            kept = token.end()
        return b"".join((*parts, data[kept:]))

    decoder.decode(replaced(padded=True))  # other faults, at their offsets in the file
    return decoder.decode(replaced(padded=False))


def mend_numbers(text: msgspec.Raw) -> msgspec.Raw:
    """Return JSON with integers for sizes such as `640.0`, and null for areas beyond float64.

    An area that is null counts as not annotated.

    >>> bytes(mend_numbers(msgspec.Raw(b'[{"width": 640.0, "area": 1e999}]')))
    b'[{"width": 640, "area": null}]'
    """

    def finite(area: re.Match[bytes]) -> bytes:
        return area[0] if math.isfinite(float(area[2])) else area[1] + b"null"

    return msgspec.Raw(_WHOLE_SIZE.sub(rb"\1", _AREA.sub(finite, bytes(text))))


def lone_surrogate_at(data: bytes) -> int | None:
    r"""Return the byte offset of the first half of a surrogate pair without its second half.

    msgspec takes one near the end of a text for the end of the text.

    >>> lone_surrogate_at(rb'{"a": "\ud800"}'), lone_surrogate_at(rb'{"a": "\\ud800 \ud83d\ude00"}')
    (7, None)
    """
    match = _LONE_SURROGATE.search(data)
    return match.start(1) if match else None


def first_keys(array: msgspec.Raw) -> list[str]:
    """Return the keys of the first entry of an array of objects; none where there is no such.

    >>> first_keys(msgspec.Raw(b'[{"id": 1, "box": {"x": 2}}, {"name": 3}]'))
    ['id', 'box']
    """
    text = memoryview(array)
    keys: list[str] = []
    if not _ARRAY_OF_OBJECTS.match(text):
        return keys
    for bracket, (depth, _, key) in enumerate(_keys_and_brackets(text)):
        if depth == 1 and bracket:
            break
        if depth == 2 and key:
            keys.append(msgspec.json.decode(key))
    return keys


def _key_hook(_: type, text: Any) -> _EveryKey:
    return _EveryKey(text)


def _refuse_other_encodings(data: bytes, where: str) -> None:
    if data.startswith(_GZIP):
        what, remedy = "byte offset 0 holds gzip's signature, not JSON", "gunzip the file"
        raise RuntimeError(fault_line("E-ANN-JSON", where, what, remedy))
    offset = _first_not_utf8(data)
    if (offset is not None or b"\0" in data[:4]) and not _BEGINS_AS_JSON.match(data):
        what = f"byte offset 0 holds {data[:4].hex(' ')}, not JSON"
        raise RuntimeError(fault_line("E-ANN-JSON", where, what, "give a COCO annotation file"))
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:4]:
        what = f"byte offset 0 holds {data[:4].hex(' ')}: UTF-16 or UTF-32, not UTF-8"
        raise RuntimeError(fault_line("E-ANN-JSON", where, what, "save the file as UTF-8"))
    if offset is not None:
        what = f"no UTF-8 at byte offset {offset}, where {_standing_at(data, offset)!r} stands"
        raise RuntimeError(fault_line("E-ANN-JSON", where, what, "save the file as UTF-8"))


def _first_not_utf8(data: bytes) -> int | None:
    """Return the offset of the first byte that is no UTF-8; unread strings count too."""
    if data.isascii():
        return None
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), _DECODED_AT_ONCE_BYTES):
        end = min(start + _DECODED_AT_ONCE_BYTES, len(data))
        try:
            decoder.decode(data[start:end], final=end == len(data))
        except UnicodeDecodeError as error:  # its object begins with what the last piece left over
            return end - len(error.object) + error.start
    return None


def _nests_too_deep(data: bytes, where: str) -> RuntimeError:
    offset = next(at for depth, at, _ in _keys_and_brackets(data) if depth > MAX_NESTING)
    there = _standing_at(data, offset)
    what = f"values nest deeper than {MAX_NESTING} at byte offset {offset}, where {there!r} stands"
    return RuntimeError(fault_line("E-ANN-JSON", where, what, "give a COCO annotation file"))


def _key_offsets(data: bytes, name: str) -> Iterator[int]:
    for depth, offset, key in _keys_and_brackets(data):
        if depth == 1 and key and msgspec.json.decode(key) == name:
            yield offset


def _keys_and_brackets(data: bytes | memoryview) -> Iterator[tuple[int, int, bytes]]:
    """Yield (depth, byte offset, key or nothing): slow, for the messages of refused files."""
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        key, colon = match.groups()
        if key is None:
            depth += 1 if match[0] in b"[{" else -1
        yield depth, match.start(), key if colon else b""


def nests_deeper(data: bytes, levels: int) -> bool:
    """Return whether the arrays and objects of a JSON text nest deeper than `levels`.

    The brackets alone are peeled level by level, at memory speed; only where brackets stand in
    strings too are the strings taken out first.

    Args:
        data: well-formed JSON; anything else gives any answer.
        levels: at least 1.

    >>> nests_deeper(b'{"a": [[1], "]]["]}', 3), nests_deeper(b'{"a": [[1], "]]["]}', 2)
    (False, True)
    """
    brackets = data.translate(_OPEN_OR_CLOSE, _NOT_A_BRACKET)
    if not _peel(brackets, levels):
        return False
    brackets = _STRING_OR_REST.sub(b"", data).translate(_OPEN_OR_CLOSE, _NOT_A_BRACKET)
    return bool(_peel(brackets, levels))


def _peel(brackets: bytes, levels: int) -> bytes:
    for _ in range(levels):
        if not brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    return brackets


def _what_stands_there(error: msgspec.DecodeError, data: bytes) -> str:
    match = _BYTE_OFFSET.search(str(error))
    offset = int(match[1]) if match else len(data)
    if match is None and (at := lone_surrogate_at(data)) is not None:
        return (
            f"half of a surrogate pair at byte offset {at}, where {_standing_at(data, at)!r} stands"
        )
    reason = str(error).removeprefix("JSON is malformed: ").split(" (byte")[0]
    if reason == "trailing characters":
        offset -= 1  # msgspec names the byte after the first of them
    if offset >= len(data):
        return f"the file ends at byte offset {len(data)} ({reason})"
    return f"{reason} at byte offset {offset}, where {_standing_at(data, offset)!r} stands"


def _standing_at(data: bytes, offset: int) -> str:
    return data[offset : offset + 20].decode("utf-8", "backslashreplace")
