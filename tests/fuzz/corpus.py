"""Kept inputs: those that reached something new, a text file a target, one base64 line an input."""

import base64
from collections.abc import Iterable
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def read_corpus(name: str) -> list[bytes]:
    """Return the kept inputs of a target."""
    return [base64.b64decode(line) for line in _path(name).read_text().splitlines()]


def write_corpus(name: str, inputs: Iterable[bytes]) -> None:
    """Keep these inputs of a target and no others, the short ones first."""
    in_order = sorted(set(inputs), key=lambda data: (len(data), data))
    lines = [base64.b64encode(data).decode() + "\n" for data in in_order]
    CORPUS.mkdir(exist_ok=True)
    _path(name).write_text("".join(lines))


def _path(name: str) -> Path:
    return CORPUS / f"{name}.txt"
