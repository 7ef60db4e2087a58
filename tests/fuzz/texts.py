"""Texts that pass between program and user: lines of faults, and values of options."""

from collections.abc import Iterator
from fractions import Fraction

from pipelines.flags import budget_of, parse_per_split, parse_size
from schemas.faults import FAULTS, fault_line, find_fault, printable
from schemas.shards import is_split_name
from tests.fuzz.target import Choices, Target

_CODES = sorted(FAULTS)
_EXACT_CHARACTERS = 15
"""Sizes of more digits may be rounded: with a unit of 13 digits, `Decimal` keeps 28."""


def run_faults(data: bytes) -> None:
    """Require that a fault's line is found again, in one piece, whatever texts it quotes."""
    text = data.decode("utf-8", "replace")
    found = find_fault(text)
    if found is not None:
        code, line = found
        assert (
            FAULTS[code].exit_code and line.startswith(code + " ") and len(line.splitlines()) == 1
        )
        assert line in text
    choices = Choices(data)
    code = choices.one_of(_CODES)
    where, what = (choices.piece().decode("utf-8", "replace") for _ in range(2))
    line = fault_line(code, where, what, "remove one")  # remedies quote no data
    assert printable(line) == line and line.isascii() and line.isprintable()
    told = (code, line) if FAULTS[code].exit_code else None
    if told:
        assert find_fault(f"Traceback:\nRuntimeError: {line}\n") == told
        assert find_fault(f"{line} [while running 'ReadCoco/ReadFiles']") == told


def run_options(data: bytes) -> None:
    """Require that a value of an option is refused with a ValueError, or means what it says."""
    text = data.decode("utf-8", "replace")
    try:
        size = parse_size("shard_size", text)
    except ValueError:
        pass
    else:
        digits = "".join(c for c in text if c in "0123456789.")
        if len(digits) <= _EXACT_CHARACTERS:
            assert size == int(Fraction(digits) * _unit(text))
    try:
        values = text.split("\n")
        per_split = parse_per_split("images", values, bare="train")
    except ValueError:
        pass
    else:
        assert len(per_split) == len(values) and all(map(is_split_name, per_split))
        assert all(v.endswith(p) for v, p in zip(values, per_split.values(), strict=True))
    try:
        budget = budget_of("max_rejected", text)
    except ValueError:
        return
    assert budget.allowed(1000) >= 0 and (budget.percent is None or budget.allowed(1000) <= 1000)


def _unit(text: str) -> int:
    letters = "".join(c for c in text if c in "kMGTi")
    powers = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}
    return (1024 if letters.endswith("i") else 1000) ** powers[letters.removesuffix("i")]


def fault_seeds() -> Iterator[bytes]:
    yield b"RuntimeError: E-SET-EMPTY a.json: no images; check --annotations [while running 'a']"
    yield b"E-ARG a: b; c\nE-IMG-TYPE a: b; c"
    for code in range(0, len(_CODES), 4):
        yield bytes([code, 3]) + b"a: " + bytes([5]) + b"b; \xc3\xa9"


def option_seeds() -> Iterator[bytes]:
    for text in ("150MB", "256MiB", "1.5 TB", "0.25k", "5", "1%", "0.5%", "nan%", "-1", "1e3%"):
        yield text.encode()
    yield b"train=gs://b/a\nval=/data/a=b\n/c"
    yield b"train=\nval"


TARGETS = (
    Target("faults", run_faults, fault_seeds, "faults.dict", 256),
    Target("options", run_options, option_seeds, "options.dict", 64),
)
