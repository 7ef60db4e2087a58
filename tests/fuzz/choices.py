"""Values out of a fuzzer's bytes: equal bytes give equal values, and all bytes give some."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Takes its bytes one decision after the other; behind their end come zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def below(self, end: int) -> int:
        """Return a number from 0 to `end - 1`, of one byte."""
        taken = self.take(1)
        return taken[0] % end if taken else 0

    def one_of(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def take(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        start = self._position
        self._position += size
        return self._data[start : self._position]

    def piece(self) -> bytes:
        """Return bytes behind their length, at most 255."""
        return self.take(self.below(256))

    def rest(self) -> bytes:
        return self.take(len(self._data))
