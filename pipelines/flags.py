"""Flags shared by all commands, and how their texts become values. Imports no Beam."""

import argparse
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NoReturn

from schemas.shards import is_split_name
from transforms.storage import Access

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?i?B?)")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class FlagParser(argparse.ArgumentParser):
    """An argument parser that raises `ValueError` and takes no abbreviations."""

    def __init__(self, prog: str, description: str) -> None:
        """Take the command's name and what it does."""
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise ValueError(f"{message}: see --help")


def add_reading_flags(parser: FlagParser) -> argparse._ArgumentGroup:
    """Add the flags for reading stores, and return their group."""
    group = parser.add_argument_group("Google Cloud Storage")
    group.add_argument(
        "--anonymous",
        action="store_true",
        help="send no credentials, for public buckets (default: Application Default Credentials)",
    )
    group.add_argument(
        "--billing_project",
        default="",
        metavar="PROJECT",
        help="project that pays for requests to requester-pays buckets (default: the bucket's)",
    )
    return group


def reading_access(flags: argparse.Namespace) -> Access:
    """Return how stores are read, as the flags of `add_reading_flags` say."""
    return Access(flags.anonymous, flags.billing_project)


def not_empty(text: str) -> str:
    """Return a flag's value, which may not be empty."""
    if not text:  # such as an unset variable of a shell script
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def add_per_split(
    group: argparse._ActionsContainer, flag: str, value: str, help: str, *, required: bool = True
) -> None:
    """Add a flag that takes values such as `train=PATH`, each for a split."""
    needed: dict[str, Any] = {"required": True} if required else {"default": []}
    metavar = f"[SPLIT=]{value}"
    group.add_argument(flag, nargs="+", action="extend", metavar=metavar, help=help, **needed)


def add_bare_split(group: argparse._ActionsContainer) -> None:
    """Add --split, the split of paths without SPLIT=."""
    group.add_argument(
        "--split", default="train", help="split of a path without SPLIT= (default train)"
    )


def parse_several_per_split(
    name: str, values: Sequence[str], bare: str = ""
) -> dict[str, tuple[str, ...]]:
    """Return the values per split of `train=a train=b val=c`, bare ones under `bare`.

    >>> parse_several_per_split("annotations", ["train=a.json", "b.json"], bare="train")
    {'train': ('a.json', 'b.json')}

    Raises:
        ValueError: when a value is empty.
    """
    per_split: dict[str, tuple[str, ...]] = {}
    for value in values:
        split, equals, rest = value.partition("=")
        if not equals or not is_split_name(split):
            split, rest = bare, value
        if not rest:
            raise ValueError(f"{name} of {split or 'all splits'} must not be empty: give a value")
        per_split[split] = (*per_split.get(split, ()), rest)
    return per_split


def parse_per_split(name: str, values: Sequence[str], bare: str = "") -> dict[str, str]:
    """Return the value per split of `train=a val=b`, a bare value under `bare`.

    Text before `=` that is no valid split name belongs to the value.

    >>> parse_per_split("images", ["train=gs://b/train", "/data/a=b"], bare="val")
    {'train': 'gs://b/train', 'val': '/data/a=b'}

    Raises:
        ValueError: when a split comes twice.
    """
    per_split: dict[str, str] = {}
    for split, given in parse_several_per_split(name, values, bare).items():
        if len(given) > 1:
            raise ValueError(
                f"{name} of {split or 'all splits'} must come once,"
                f" got {given[0]!r} and {given[1]!r}: remove one"
            )
        per_split[split] = given[0]
    return per_split


def parse_size(name: str, text: str) -> int:
    """Return a size in bytes; units are decimal unless they have an `i`.

    >>> parse_size("shard_size", "150MB"), parse_size("bytes_in_flight", "256MiB")
    (150000000, 268435456)
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match[2].removesuffix("B") if match else ""
    if match is None or unit not in _UNITS:
        raise ValueError(f"{name} must be a size such as 150MB or 256MiB, got {text!r}")
    return int(Decimal(match[1]) * _UNITS[unit])


def parse_numbers(name: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers of a list with commas.

    >>> parse_numbers("licenses", "4,5")
    (4, 5)

    Raises:
        ValueError: when one is no whole number.
    """
    return tuple(parse_int(name, part.strip()) for part in text.split(","))


def parse_int(name: str, text: str) -> int:
    """Return a whole number."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, got {text!r}") from None
