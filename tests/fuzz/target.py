"""Fuzz targets, their kept inputs, and the check of a refusal that they share.

Kept inputs reached new code. Each target has a text file, with one base64 line per input.
"""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from beam_tfrec.schemas.faults import FAULTS, find_fault, printable

CORPUS = Path(__file__).parent / "corpus"

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """A property of the code that must hold for any bytes; `run` raises when it does not."""

    name: str
    run: Callable[[bytes], None]
    dictionary: str = ""  # a file of `dictionaries/` with tokens of the format
    max_bytes: int = 2048  # longest input
    seeds: Callable[[], Iterable[bytes]] = tuple  # inputs in our own formats

    def inputs(self) -> list[bytes]:
        """Return seeds and kept inputs."""
        return [*self.seeds(), *read_corpus(self.name)]


class Choices:
    """Turns a fuzzer's bytes into decisions, one after the other; zeros follow the last byte."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def below(self, end: int) -> int:
        """Return a number from 0 to `end - 1`, from one byte."""
        taken = self.take(1)
        return taken[0] % end if taken else 0

    def one_of(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def take(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def piece(self) -> bytes:
        """Read a length of one byte, and return so many bytes."""
        return self.take(self.below(256))

    def rest(self) -> bytes:
        return self._data


def require_fault_line(error: BaseException, codes: str | tuple[str, ...]) -> None:
    """Require that an error is one printable fault line of the run, with such a code."""
    text = str(error)
    assert printable(text) == text, text
    code = text.split(" ", 1)[0]
    assert code.startswith(codes), text
    assert FAULTS[code].exit_code, text
    assert find_fault(text) == (code, text)


def read_corpus(name: str) -> list[bytes]:
    """Return the kept inputs of a target."""
    return [base64.b64decode(line) for line in (CORPUS / f"{name}.txt").read_text().splitlines()]


def write_corpus(name: str, inputs: Iterable[bytes]) -> None:
    """Store exactly these inputs of a target, the short ones first."""
    in_order = sorted(set(inputs), key=lambda data: (len(data), data))
    lines = [base64.b64encode(data).decode() + "\n" for data in in_order]
    (CORPUS / f"{name}.txt").write_text("".join(lines))
