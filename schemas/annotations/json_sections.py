"""The sections of a large JSON object: strict about everything that a lenient parser lets pass.

A file is scanned once for its syntax and given back as raw slices, a section each. A fault names
the byte offset and what stands there.
"""

import codecs
import re

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

    def __init__(self, _: type, text: str) -> None:
        self.text = text


class Sections:
    """The values of a JSON object by key, unparsed."""

    def __init__(self, pairs: dict[_EveryKey, msgspec.Raw], where: str) -> None:
        """Take what `parse_sections` found in the file `where`."""
        self._pairs = [(key.text, value) for key, value in pairs.items()]
        self._where = where

    def find(self, name: str) -> msgspec.Raw:
        """Return the last value of a key that may be there; `null` where it is not."""
        return dict(self._pairs).get(name, msgspec.Raw(b"null"))

    def take(self, name: str) -> msgspec.Raw:
        """Return the value of a key that must be there, once.

        Raises:
            RuntimeError: `E-ANN-SECTION` when the key is missing or stands twice.
        """
        names = [key for key, _ in self._pairs]
        if names.count(name) == 1:
            return dict(self._pairs)[name]
        problem = "twice" if name in names else "missing"
        what = f"section {name!r} is {problem} (found {', '.join(names[:8]) or 'nothing'})"
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
    decoder = msgspec.json.Decoder(dict[_EveryKey, msgspec.Raw], dec_hook=_EveryKey)
    try:
        pairs = decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _fault(where, f"the file is no JSON object ({error})", _REMEDY) from None
    except msgspec.DecodeError as error:
        raise _fault(where, _what_stands_there(error, data), "repair the file") from None
    except RecursionError:
        pairs = None
    if pairs is None or nests_deeper(data, MAX_NESTING):
        raise _fault(where, f"values nest deeper than {MAX_NESTING}", _REMEDY)
    return Sections(pairs, where)


def first_keys(array: msgspec.Raw) -> list[str]:
    """Return the keys of the first entry of an array of objects; none where there is no such.

    >>> first_keys(msgspec.Raw(b'[{"id": 1, "box": {"x": 2}}, {"name": 3}]'))
    ['id', 'box']
    """
    text = memoryview(array)
    keys: list[str] = []
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text) if _ARRAY_OF_OBJECTS.match(text) else ():
        key, colon = token.groups()
        if key is None:
            depth += 1 if token[0] in b"[{" else -1
            if depth == 1 and token[0] == b"}":
                break
        elif colon and depth == 2:
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
