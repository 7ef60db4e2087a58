"""The sections of a large JSON object: strict about everything that a lenient parser lets pass.

A file is scanned once for its syntax and given back as raw slices, a section each. A fault names
the byte offset and what stands there.
"""

import codecs
import itertools
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from schemas.faults import fault_line

MAX_NESTING = 64
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)

_UTF8_BOM = b"\xef\xbb\xbf"
_OPEN_OR_CLOSE = bytes.maketrans(b"{}", b"[]")
_NO_QUOTE_OR_BRACKET = bytes(set(range(256)) - set(b'[]{}"'))
_QUOTED = re.compile(rb'"[^"]*"')
_STRING_OR_BRACKET = re.compile(rb"(%b)\s*(:?)|[][{}]" % STRING.pattern, re.DOTALL)
_ARRAY_OF_OBJECTS = re.compile(rb"\s*\[\s*\{")
_DECODED_AT_ONCE_BYTES = 2**20
_BYTE_OFFSET = re.compile(r"\(byte (\d+)\)")
_REMEDY = "give a COCO annotation file"


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
        raise RuntimeError(fault_line("E-ANN-SECTION", self._where, what, _REMEDY))


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
    if (offset := _first_not_utf8(data)) is not None:
        what = f"no UTF-8 at byte offset {offset}, where {_standing_at(data, offset)!r} stands"
        raise _fault(where, what, "give an unpacked file, saved as UTF-8")
    decoder = msgspec.json.Decoder(dict[_EveryKey, msgspec.Raw], dec_hook=_key_hook)
    try:
        pairs = decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _fault(where, f"the file is no JSON object ({error})", _REMEDY) from None
    except msgspec.DecodeError as error:
        raise _fault(where, _what_stands_there(error, data), "repair the file") from None
    except RecursionError:
        raise _nests_too_deep(data, where) from None
    if nests_deeper(data, MAX_NESTING):
        raise _nests_too_deep(data, where)
    return Sections(pairs, data, where)


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


def nests_deeper(data: bytes, levels: int) -> bool:
    """Return whether the arrays and objects of a JSON text nest deeper than `levels`.

    Works on the quotes and brackets alone, at memory speed: what stands between two quotes goes,
    then the innermost brackets, level by level.

    Args:
        data: well-formed JSON; anything else gives any answer.
        levels: at least 1.

    >>> nests_deeper(b'{"a": [[1], "]]["]}', 3), nests_deeper(b'{"a": [[1], "]]["]}', 2)
    (False, True)
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    left = data.translate(_OPEN_OR_CLOSE, _NO_QUOTE_OR_BRACKET).replace(b'""', b"")
    if b'"' in left:
        left = _QUOTED.sub(b"", left)
    for _ in range(levels):
        if not left:
            break
        left = left.replace(b"[]", b"")
    return bool(left)


def _key_hook(_: type, text: Any) -> _EveryKey:
    return _EveryKey(text)


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


def _keys_and_brackets(data: bytes | memoryview) -> Iterator[tuple[int, int, bytes]]:
    """Yield (depth, byte offset, key or nothing): slow, for the messages of refused files."""
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        key, colon = match.groups()
        if key is None:
            depth += 1 if match[0] in b"[{" else -1
        yield depth, match.start(), key if colon else b""


def _key_offsets(data: bytes, name: str) -> Iterator[int]:
    for depth, offset, key in _keys_and_brackets(data):
        if depth == 1 and key and msgspec.json.decode(key) == name:
            yield offset


def _nests_too_deep(data: bytes, where: str) -> RuntimeError:
    offset = next(at for depth, at, _ in _keys_and_brackets(data) if depth > MAX_NESTING)
    there = _standing_at(data, offset)
    what = f"values nest deeper than {MAX_NESTING} at byte offset {offset}, where {there!r} stands"
    return _fault(where, what, _REMEDY)


def _what_stands_there(error: msgspec.DecodeError, data: bytes) -> str:
    match = _BYTE_OFFSET.search(str(error))
    offset = int(match[1]) if match else len(data)
    reason = str(error).removeprefix("JSON is malformed: ").split(" (byte")[0]
    if reason == "trailing characters":
        offset -= 1  # msgspec names the byte after the first of them
    if offset >= len(data):
        return f"the file ends at byte offset {len(data)} ({reason})"
    return f"{reason} at byte offset {offset}, where {_standing_at(data, offset)!r} stands"


def _standing_at(data: bytes, offset: int) -> str:
    return data[offset : offset + 20].decode("utf-8", "backslashreplace")


def _fault(where: str, what: str, remedy: str) -> RuntimeError:
    return RuntimeError(fault_line("E-ANN-JSON", where, what, remedy))
