"""Names and texts: names of images and shards, lines of faults, values of options."""

import posixpath
import re
import string
from fractions import Fraction

from pipelines.flags import budget_of, parse_per_split, parse_size
from schemas.annotations.coco_file import blob_name
from schemas.faults import FAULTS, fault_line, find_fault, printable
from schemas.shards import ShardNames, is_split_name
from tests.fuzz.target import Choices, Target

_CODES = sorted(FAULTS)
_EXACT_DIGITS = 15  # sizes of more may be rounded
_ROOT = "/data/root"
_URL = re.compile("[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SPLITS = ("train", "a", "a_1", "a1", "v0_", "train_train")
_NUMBERS = (0, 1, 9, 10, 99_999, 100_000, 2**31, 10**12)


def require_below_root(name: str) -> None:
    """Require that a name leads below its root, whichever system joins the two."""
    joined = posixpath.normpath(posixpath.join(_ROOT, name))
    assert joined.startswith(_ROOT + "/"), name
    assert "\0" not in name and not _URL.match(name)
    assert ".." not in name.replace("\\", "/").split("/"), name


def run_file_name(data: bytes) -> None:
    """Require that a file name of an annotation file is refused or stays below its root."""
    text = data.decode("utf-8", "replace")
    try:
        name = blob_name(text)
    except ValueError as error:
        assert printable(str(error)) == str(error)
        return
    require_below_root(name)
    assert blob_name(name) == name
    assert posixpath.normpath(name) == posixpath.normpath(text), "another file"


def run_shard_names(data: bytes) -> None:
    """Require that a template is refused, or that its names tell shards apart and are read back."""
    choices = Choices(data)
    shards = [
        (choices.one_of(_SPLITS), choices.one_of(_NUMBERS), choices.one_of(_NUMBERS))
        for _ in range(2)
    ]
    num_shards = max(1, choices.one_of(_NUMBERS))
    shards = [(split, index % num_shards, records) for split, index, records in shards]
    template = choices.rest().decode("utf-8", "replace")
    try:
        names = ShardNames(template)
        names.check_splits([split for split, _, _ in shards], {"": num_shards})
    except ValueError:
        return
    has_split = "split" in {field for _, field, _, _ in string.Formatter().parse(template)}
    files = {}
    for split, index, records in shards:
        file = names.file_name(split, index, num_shards, records)
        assert "/" not in file and file.isprintable() and file not in (".", "..")
        assert names.matches(file) == (split if has_split else ""), file
        files[split if has_split else "", index] = file
    assert len(set(files.values())) == len(files), files


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
        if len(digits) <= _EXACT_DIGITS:
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


TARGETS = (
    Target("faults", run_faults, "faults.dict", 256),
    Target("options", run_options, "options.dict", 64),
    Target("file_names", run_file_name, "names.dict", 64),
    Target("shard_names", run_shard_names, "templates.dict", 96),
)
