"""The flags of the command for tables."""

import argparse
from collections.abc import Sequence

from pipelines.class_flags import add_class_flags, first_label_of
from pipelines.data_set_flags import add_data_set_flags
from pipelines.options import FlagParser, not_empty
from schemas.columns import ColumnType, parse_type
from schemas.layouts.table import TableLayout


def parser() -> FlagParser:
    """Return the command's flags."""
    flags = FlagParser(
        "beam-tfrec table", "Rows of tables, with images or without, to .tfrec files."
    )
    group = flags.add_argument_group("sources (docs/tables.md)")
    group.add_argument(
        "--table",
        nargs="+",
        action="extend",
        required=True,
        metavar="[SPLIT=]FILE|GLOB|DIR",
        help="tables per split: files that end in .csv, .tsv, .jsonl or .parquet, or one folder or"
        " quoted glob of such files (required)",
    )
    group.add_argument(
        "--split", default="train", help="split of a path without SPLIT= (default train)"
    )
    group.add_argument(
        "--image_column",
        type=not_empty,
        metavar="COLUMN",
        help="column that names each row's image (default: rows have none)",
    )
    group.add_argument(
        "--image_root",
        nargs="+",
        action="extend",
        default=[],
        metavar="[SPLIT=]DIR",
        help="folder or URI that images lie below, per split or for all (default: the table's"
        " folder; where the first row names a URI, its bucket)",
    )
    group.add_argument(
        "--key_column",
        type=not_empty,
        metavar="COLUMN",
        help="column of text or whole numbers, each once in its split, that rows are known by"
        " (default: their number, behind the file's name where there are several)",
    )
    group.add_argument(
        "--types",
        nargs="+",
        action="extend",
        default=[],
        metavar="COLUMN=TYPE,...",
        help="types of columns: int64, float or bytes, with [] for lists ([][] for a sequence's"
        " lists of lists), with ? where cells may be missing; a cell that does not fit"
        " rejects its row (default: from all cells)",
    )
    group.add_argument(
        "--label_column",
        action="append",
        default=[],
        type=not_empty,
        metavar="COLUMN",
        help="column of classes, or one of several: it becomes image/class/label and"
        " image/class/text (default none)",
    )
    group.add_argument(
        "--sequence",
        nargs="+",
        action="extend",
        default=[],
        metavar="COLUMN,...",
        help="columns of lists, each value or inner list of which is a step: records become"
        " SequenceExamples, with all other columns as their context (default none)",
    )
    add_class_flags(flags)
    add_data_set_flags(flags)
    return flags


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


def parse_columns(flag: str, given: Sequence[str]) -> tuple[str, ...]:
    """Return names of columns, given with commas or spaces between.

    >>> parse_columns("sequence", ["tokens,frames", "times"])
    ('tokens', 'frames', 'times')

    Raises:
        ValueError: when one is empty.
    """
    names = tuple(name.strip() for text in given for name in text.split(","))
    if not all(names):
        raise ValueError(
            f"{flag} must be names of columns, got {','.join(given)!r}: remove the empty one"
        )
    return names


def layout_of(flags: argparse.Namespace) -> TableLayout:
    """Return the layout that the flags ask for.

    Raises:
        ValueError: when flags number classes that there are none of.
    """
    for name in ("label_file", "first_label"):
        if getattr(flags, name) is not None and not flags.label_column:
            raise ValueError(
                f"{name} must come with label_column, got {getattr(flags, name)}: name the column"
            )
    return TableLayout(
        types=parse_types(flags.types),
        label_columns=tuple(flags.label_column),
        with_image=flags.image_column is not None,
        first_label=first_label_of(flags),
        sequence_columns=parse_columns("sequence", flags.sequence),
    )
