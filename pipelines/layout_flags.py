"""Flags of what records hold, where several sources have them: sizes, classes, columns."""

import argparse
from collections.abc import Sequence

from pipelines.flags import FlagParser, not_empty
from schemas.columns import ColumnType, parse_type
from schemas.layouts.pictures import SizeMismatch


def add_size_flag(parser: argparse._ActionsContainer) -> None:
    """Add the flag of what is done where an image has another size than annotated."""
    parser.add_argument(
        "--on_size_mismatch",
        choices=[policy.value for policy in SizeMismatch],
        default=SizeMismatch.AUTO.value,
        help="where an image's size is not the annotated one: auto rescales boxes if the aspect"
        " agrees within 1 px and rejects the rest; trust_image and trust_json take boxes as pixels"
        " of that size (default auto)",
    )


def feature_names(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def add_class_flags(
    parser: FlagParser, default: str = "default 0; with --layout imagenet 1"
) -> None:
    """Add the flags that number classes; `default` is the help's text on the first number."""
    group = parser.add_argument_group("classes")
    group.add_argument(
        "--label_file",
        type=not_empty,
        metavar="FILE",
        help="classes in the order of their numbers, one a line; a tab, or a space behind an"
        " ImageNet synset, parts the name from what people call it (default: the sources' classes,"
        " sorted by name)",
    )
    group.add_argument(
        "--first_label",
        type=int,
        metavar="N",
        help=f"number of the first class ({default})",
    )


def first_label_of(flags: argparse.Namespace, default: int = 0) -> int:
    """Return the number of the first class.

    Args:
        flags: as parsed.
        default: the layout's own.

    Raises:
        ValueError: when it is negative.
    """
    first: int = default if flags.first_label is None else flags.first_label
    if first < 0:
        raise ValueError(f"first_label must be at least 0, got {first}: give 0 or 1")
    return first


def parse_types(given: Sequence[str]) -> dict[str, ColumnType]:
    """Return the types of columns.

    >>> {name: str(wanted) for name, wanted in parse_types(["age=int64,tags=bytes[]"]).items()}
    {'age': 'int64', 'tags': 'bytes[]'}

    Raises:
        ValueError: when one is none, or of no column, or a second one.
    """
    types: dict[str, ColumnType] = {}
    for part in (part for text in given for part in text.split(",")):
        name, _, text = part.strip().rpartition("=")
        if not name or name in types:
            raise ValueError(
                f"types must be COLUMN=TYPE, each column once, got {part!r}: give such as age=int64"
            )
        types[name] = parse_type(name, text, may_nest=True)
    return types
