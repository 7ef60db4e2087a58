"""What flags of all commands have in common, those included that import no Beam."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from schemas.shards import is_split_name
from transforms.storage import Access


class FlagParser(argparse.ArgumentParser):
    """An argument parser that raises `ValueError` and takes no abbreviations."""

    def __init__(self, prog: str, description: str) -> None:
        """Take the command's name and what it does."""
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise ValueError(f"{message}: see --help")


def add_reading_flags(parser: FlagParser) -> argparse._ArgumentGroup:
    """Add the flags by which stores are read, and return their group."""
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


def not_empty(text: str) -> str:
    """Return a flag's value, which may not be empty."""
    if not text:  # such as an unset variable of a shell script
        raise argparse.ArgumentTypeError("must not be empty")
    return text
