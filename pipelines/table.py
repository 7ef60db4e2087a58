"""Rows of tables to sharded .tfrec: `beam-tfrec table --help`."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import apache_beam as beam

from beam_tfrec.pipelines.cli import FlagParser, main, parse_several_per_split
from beam_tfrec.pipelines.data_set import DataSetConfig, check_splits_named, keys_option
from beam_tfrec.pipelines.data_set import build as build
from beam_tfrec.pipelines.flags import (
    add_class_flags,
    add_sources,
    first_label_of,
    parse_per_split,
    parse_size,
    parse_types,
)
from beam_tfrec.pipelines.run import Command
from beam_tfrec.schemas.columns import FORMATS, is_table_file, root_and_pattern
from beam_tfrec.schemas.layouts.table import TableLayout
from beam_tfrec.transforms.images.check_images import Check
from beam_tfrec.transforms.images.conversion import NO_CONVERSION
from beam_tfrec.transforms.sources.list_blobs import ListBlobs
from beam_tfrec.transforms.sources.read_samples import SourceSamples
from beam_tfrec.transforms.sources.read_table import PlanTables, TableReader
from beam_tfrec.transforms.sources.table_rows import DEFAULT_MAX_CELL_BYTES
from beam_tfrec.transforms.storage import split_uri

_OTHER_FILES = (
    *(".arrow", ".avro", ".feather", ".json", ".ndjson", ".orc", ".parq", ".tab", ".txt"),
    *(".bz2", ".gz", ".xls", ".xlsx", ".zip", ".zst"),
)


@dataclass(frozen=True)
class TableConfig(DataSetConfig):
    """A whole conversion of tables.

    Attributes:
        tables: per split URIs of files, or that of one folder or glob.
        image_column: column that names each row's image; empty for none.
        image_root: URI that images lie below, per split or for all (`""`); none for the table's
            folder.
        key_column: column of the rows' keys; empty for row numbers.
        max_cell_bytes: a row with a larger cell is rejected; in files of lines, a larger row.
        layout: what an Example holds.
    """

    tables: Mapping[str, Sequence[str]]
    image_column: str = ""
    image_root: Mapping[str, str] = field(default_factory=dict)
    key_column: str = ""
    max_cell_bytes: int = DEFAULT_MAX_CELL_BYTES
    layout: TableLayout = field(default_factory=TableLayout, kw_only=True)

    source_flag: ClassVar[str] = "--table"
    images_field: ClassVar[str] = "image_root"

    def __post_init__(self) -> None:
        """Refuse options that do not fit together."""
        for split, uris in self.tables.items():
            _check_tables(split, uris)
        layout = replace(self.layout, with_image=bool(self.image_column))
        object.__setattr__(self, "layout", layout)
        if self.image_root and not self.image_column:
            raise ValueError(
                f"image_root must come with image_column, got {[*self.image_root.values()]}"
                " alone: name the column"
            )
        plain = self.check is Check.HEADER and self.conversion == NO_CONVERSION
        if not plain and not self.image_column:
            raise ValueError("check and image options need --image_column: add it, or omit them")
        check_splits_named("image_root", self.image_root, "--table", self.given)
        if self.max_cell_bytes < 1:
            raise ValueError(
                f"max_cell_bytes must be positive, got {self.max_cell_bytes}: give such as 100MB"
            )
        super().__post_init__()

    @property
    def given(self) -> tuple[str, ...]:
        """The splits that sources are given for."""
        return tuple(self.tables)

    @property
    def split_fields(self) -> None:
        """None: only the tables show the fields that `split_by` and `group_by` may name."""
        return None

    @property
    def table_files(self) -> Mapping[str, Sequence[str]]:
        """URIs of tables per split, for splits given as files."""
        return {split: uris for split, uris in self.tables.items() if is_table_file(uris[0])}

    @property
    def table_folders(self) -> Mapping[str, tuple[str, str]]:
        """Folders of tables and their globs, by root name."""
        return {
            f"{split}/tables": root_and_pattern(uris[0])
            for split, uris in self.tables.items()
            if not is_table_file(uris[0])
        }

    @property
    def roots(self) -> Mapping[str, str]:
        """URI per root name of the samples' blobs."""
        if not self.image_column:
            return {}
        folders = {split: split_uri(uris[0])[0] for split, uris in self.table_files.items()}
        folders |= {name.rpartition("/")[0]: uri for name, (uri, _) in self.table_folders.items()}
        for_all = self.image_root.get("", "")
        return {
            split: self.image_root.get(split, for_all) or folders[split] for split in self.given
        }

    @property
    def listed_roots(self) -> Mapping[str, str]:
        """URI per root name of every folder that is listed: its listing identifies the source."""
        return {**self.roots, **{name: uri for name, (uri, _) in self.table_folders.items()}}

    @property
    def globs(self) -> dict[str, str]:
        """Globs of the sources, by root name."""
        return {name: glob for name, (_, glob) in self.table_folders.items() if glob}

    @property
    def files(self) -> Sequence[str]:
        """URIs of files that identify the sources, of any split."""
        return [*super().files, *(uri for uris in self.table_files.values() for uri in uris)]

    def check_since(self) -> None:
        """Refuse `since` if keys are row numbers, which start again in each file."""
        if self.table_files and not self.key_column:
            raise ValueError(
                "since must come with key_column where tables are given as files:"
                " name the column, or give from the first day on a folder or glob"
            )

    def read_sources(self, root: beam.Pipeline) -> SourceSamples:
        """Build the part of the graph that reads samples from rows."""
        plan = PlanTables(self.table_files, self.table_folders, self.access, self.in_order)
        pieces, tallies = root | "PlanTables" >> plan
        reader = TableReader(
            self.splitting,
            self.access,
            self.image_column,
            self.roots,
            self.layout.label_columns,
            self.key_column,
            self.layout.sequence_columns,
            self.max_cell_bytes,
        )
        listing = None
        read = pieces | "ReadTable" >> self.read_samples(reader)
        if self.image_column:
            listing = root | "ListBlobs" >> ListBlobs(self.roots, self.access)
        return read._replace(listing=listing, tallies=tallies)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        options = super().options()
        options |= {"image_column": self.image_column, "key_column": self.key_column}
        if self.max_cell_bytes != DEFAULT_MAX_CELL_BYTES:
            options["max_cell_bytes"] = str(self.max_cell_bytes)
        if self.key_column:
            return options
        alone = {split for split, uris in self.table_files.items() if len(uris) == 1}
        return options | keys_option({s: "" if s in alone else "file:row" for s in self.tables})


def _check_tables(split: str, uris: Sequence[str]) -> None:
    if not uris or isinstance(uris, str):
        raise ValueError(f"tables of {split} must be a list of paths, got {uris!r}: give one")
    others = [uri for uri in uris if not is_table_file(uri)]
    if odd := [uri for uri in others if uri.lower().endswith(_OTHER_FILES)]:
        raise ValueError(
            f"tables of {split} must be files that end in {', '.join(FORMATS)}, got {odd[0]!r}:"
            " write it as one of these, or end the path of a folder with a slash"
        )
    if others and len(uris) > 1:
        raise ValueError(
            f"tables of {split} must be {', '.join(FORMATS)} files, or one folder or glob, got"
            f" {others[0]!r} among {len(uris)}: give a glob that matches all, in quotes"
        )
    names = [split_uri(uri)[1] for uri in uris]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"tables of {split} must have different names, since keys of rows begin with them,"
            f" got {repeated[0]!r} twice: rename one, or give the folder above them"
        )


def add_flags(parser: FlagParser) -> None:
    """Add the flags of the source and its layout."""
    tables = ".csv, .tsv, .jsonl or .parquet files per split, or one folder or quoted glob"
    group = add_sources(parser, "sources (docs/tables.md)", table=("FILE|GLOB|DIR", tables))
    group.text("--image_column", "column that names each row's image", "COLUMN")
    below = "folder of images or data set, per split or for all (default: the table's folder)"
    group.several("--image_root", below, "[SPLIT=]DIR")
    keys = "column of unique keys, texts or whole numbers (default: row numbers)"
    group.text("--key_column", keys, "COLUMN")
    types = "int64, float or bytes; add [] for lists, ? for columns with missing cells"
    group.several("--types", f"{types} (default: from all cells)", "COLUMN=TYPE,...")
    largest = "largest cell of Parquet, or row of other tables; a larger one rejects its row"
    default = f"{DEFAULT_MAX_CELL_BYTES // 10**6}MB"
    group.text("--max_cell_bytes", f"{largest}, or ends a CSV run", "SIZE", default, rare=True)
    classes = "one or more columns of classes; makes image/class/label and image/class/text"
    group.several("--label_column", classes, "COLUMN")
    steps = "columns of lists with a value per step; makes SequenceExamples"
    group.several("--sequence", steps, "COLUMN,...", rare=True)
    add_class_flags(parser)


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own.

    Raises:
        ValueError: when flags number classes, but no column has classes.
    """
    for name in ("label_file", "first_label"):
        if getattr(flags, name) is not None and not flags.label_column:
            raise ValueError(
                f"{name} must come with label_column, got {getattr(flags, name)}: name the column"
            )
    return {
        "tables": parse_several_per_split("table", flags.table, bare=flags.split),
        "image_column": flags.image_column or "",
        "image_root": parse_per_split("image_root", flags.image_root),
        "key_column": flags.key_column or "",
        "max_cell_bytes": parse_size("max_cell_bytes", flags.max_cell_bytes),
        "layout": TableLayout(
            types=parse_types(flags.types),
            label_columns=tuple(flags.label_column),
            first_label=first_label_of(flags),
            sequence_columns=tuple(n.strip() for given in flags.sequence for n in given.split(",")),
        ),
    }


COMMAND = Command("table", TableConfig, add_flags, fields_of, "--table train=train.csv val=val.csv")

run = COMMAND.run  # `cli.run_command` calls it by name

if __name__ == "__main__":
    main(COMMAND.name)
