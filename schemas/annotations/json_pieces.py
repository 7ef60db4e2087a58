"""A large JSON object in pieces: its values one after the other, long arrays in parts.

Where an entry of an array ends is guessed, at memory speed, and not read: behind a `}` before `, {`
or `]`. Whoever decodes what comes out thereby proves the guess, since a text that is cut elsewhere,
as where entries hold such arrays themselves, is no JSON. It is to be read as a whole instead.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from schemas.annotations.json_sections import STRING

MOST_HELD_BYTES = 2**23
"""The longest value that is no array of objects, and the longest entry of one."""

_BYTES_AT_ONCE = 2**18  # what is made of so much stays in the processor's caches
_OPEN_OBJECT = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*")
_KEY = re.compile(rb"(%b)[ \t\r\n]*:[ \t\r\n]*" % STRING.pattern, re.DOTALL)
_COMMA_OR_CLOSE = re.compile(rb"[ \t\r\n]*([,}])[ \t\r\n]*")
_OPEN_ARRAY_OF_OBJECTS = re.compile(rb"\[[ \t\r\n]*(?=\{)")
_OPEN_ARRAY = re.compile(rb"\[[ \t\r\n]*(?=[^ \t\r\n])")
_NEXT_ENTRY = re.compile(rb"\}[ \t\r\n]*(,)[ \t\r\n]*\{")
_CLOSE_ARRAY = re.compile(rb"\}[ \t\r\n]*(\])[ \t\r\n]*(?=[,}])")
_SCALAR = re.compile(rb"[-+.\w]+(?=[^-+.\w])")
_STRING_BRACKET_OR_QUOTE = re.compile(rb"(%b)|[][{}]|\"" % STRING.pattern, re.DOTALL)
"""A quote is where a string begins that does not end."""


class Text(Protocol):
    """A text that can be read in pieces, and as a whole."""

    def pieces(self) -> Iterator[bytes]:
        """Yield it from its beginning, in pieces of any size.

        Raises:
            ValueError: when the pieces do not make the text.
        """

    def whole(self) -> bytes:
        """Return all of it."""


class HeldText:
    """A text in memory."""

    def __init__(self, data: bytes, bytes_at_once: int = _BYTES_AT_ONCE) -> None:
        """Take the text, and the size of its pieces."""
        self._data = data
        self._bytes_at_once = bytes_at_once

    def pieces(self) -> Iterator[bytes]:
        """Yield it from its beginning."""
        for start in range(0, len(self._data), self._bytes_at_once):
            yield self._data[start : start + self._bytes_at_once]

    def whole(self) -> bytes:
        """Return all of it."""
        return self._data


def divide_object(pieces: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield (key, JSON) of the values of an object; an array of objects in parts, arrays each.

    What comes out is the object's if every text of it is well-formed, which nobody has looked at.

    Raises:
        ValueError: when it is no object, a key stands twice, or an end cannot be found.

    >>> list(divide_object([b'{"a": [{"b": 1}, {"b"', b': 2}], "c": "x"}']))
    [('a', b'[{"b": 1}]'), ('a', b'[ {"b": 2}]'), ('c', b'"x"')]
    """
    window = _Window(pieces)
    window.take(_OPEN_OBJECT)
    seen: set[str] = set()
    closed = False
    while not closed:
        key = msgspec.json.decode(window.take(_KEY)[1], type=str)
        if key in seen:
            raise ValueError(f"key {key!r} stands twice")
        seen.add(key)
        for value in window.values():
            yield key, value
        closed = window.take(_COMMA_OR_CLOSE)[1] == b"}"
    if window.text or window.grow():
        raise ValueError("something stands behind the object")


class _Window:
    """What was read of a text and not yet taken.

    Attributes:
        text: it.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self.text = b""

    def grow(self) -> bool:
        piece = next(self._pieces, b"")
        self.text += piece
        return bool(piece)

    def take(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        """Return what stands first, which goes on until something else follows."""
        while True:
            match = pattern.match(self.text)
            if match and match.end() < len(self.text):
                break
            if not self._grow_within(MOST_HELD_BYTES):
                break
        if match is None:
            raise ValueError(f"no {pattern.pattern!r}")
        self.text = self.text[match.end() :]
        return match

    def values(self) -> Iterator[bytes]:
        """Yield the value that stands first, an array of objects in parts."""
        if self.text.startswith(b"["):
            while not _OPEN_ARRAY.match(self.text) and self._grow_within(MOST_HELD_BYTES):
                pass
        if opening := _OPEN_ARRAY_OF_OBJECTS.match(self.text):
            self.text = self.text[opening.end() :]
            yield from self._entries()
        else:
            yield self._value()

    def _entries(self) -> Iterator[bytes]:
        while True:
            end = _end_of_array(self.text)
            at = _end_of_entries(self.text) if end is None else end
            if at is not None:
                yield b"".join((b"[", memoryview(self.text)[:at], b"]"))
                self.text = self.text[at + 1 :]
            if end is not None:
                return
            if not self._grow_within(MOST_HELD_BYTES):
                raise ValueError("an array of objects does not end")

    def _value(self) -> bytes:
        at = depth = 0
        while True:
            at, depth, has_ended = _scan_value(self.text, at, depth)
            if has_ended:
                break
            if not self._grow_within(MOST_HELD_BYTES):
                raise ValueError("a value does not end")
        value, self.text = self.text[:at], self.text[at:]
        return value

    def _grow_within(self, most_bytes: int) -> bool:
        return len(self.text) <= most_bytes and self.grow()


def _scan_value(text: bytes, at: int, depth: int) -> tuple[int, int, bool]:
    """Return how far a value was looked at, how many brackets are open there, and if it ends there.

    Args:
        text: begins with the value.
        at: how far it was looked at before there was as much of it.
        depth: brackets that were open there.

    >>> _scan_value(b'["a", {"b', 0, 0), _scan_value(b'["a", {"b": "c"}], ', 7, 2)
    ((7, 2, False), (17, 0, True))
    """
    if text[:1] not in (b"[", b"{", b'"'):
        scalar = _SCALAR.match(text)
        return (scalar.end(), 0, True) if scalar else (0, 0, False)
    for match in _STRING_BRACKET_OR_QUOTE.finditer(text, at):
        if match[0] == b'"':
            return match.start(), depth, False
        if match[1] is None:
            depth += 1 if match[0] in b"[{" else -1
        if depth == 0:
            return match.end(), 0, True
        at = match.end()
    return at, depth, False


def _end_of_array(text: bytes) -> int | None:
    """Return where the bracket stands that closes an array whose entries a text begins with.

    >>> _end_of_array(b'{"a": {"b": 1}}], "c": 2}')
    15
    """
    match = _CLOSE_ARRAY.search(text)
    return match.start(1) if match else None


def _end_of_entries(text: bytes) -> int | None:
    """Return where the comma stands behind the last entry that a text has whole.

    >>> _end_of_entries(b'{"a": 1}, {"a": 2}, {"a": {}, "b')
    18
    """
    end = len(text)
    while (end := text.rfind(b"}", 0, end)) >= 0:
        if following := _NEXT_ENTRY.match(text, end):
            return following.start(1)
    return None
