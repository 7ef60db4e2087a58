"""Rows of tables to sharded .tfrec: `python -m pipelines.table --help`."""

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import apache_beam as beam

from pipelines.class_flags import label_file_of
from pipelines.command import guarded
from pipelines.data_set import DataSetConfig, keys_option, write_data_set
from pipelines.data_set_flags import make_run
from pipelines.launch import RunConfig, execute
from pipelines.options import (
    parse_flags,
    parse_per_split,
    parse_several_per_split,
    shard_names_of,
)
from pipelines.table_flags import layout_of, parser
from schemas.layouts.table import TableLayout
from schemas.manifest import Manifest
from schemas.table_names import (
    FORMATS,
    Named,
    is_called_another_file,
    root_and_pattern,
    what_is_named,
)
from transforms.images.check_images import Check
from transforms.images.turn_images import Orientation
from transforms.list_blobs import ListBlobs
from transforms.sources.listed_files import ListFiles
from transforms.sources.read_samples import ReadSamples, SourceSamples
from transforms.sources.read_table import TableReader, find_image_root
from transforms.sources.table_files import ListTables, PickTables, is_table
from transforms.sources.table_pieces import DivideTables
from transforms.storage import split_uri

_LISTED = "/tables"  # behind a split: the name of the root that its tables are listed in


@dataclass(frozen=True)
class TableConfig(DataSetConfig):
    """A whole conversion of tables.

    Attributes:
        tables: per split URIs of files, or that of one folder or glob.
        image_column: names each row's image; empty for none.
        image_root: URI that images lie below, per split or for all (`""`); none for the table's
            folder, or what the first row's URI begins with.
        key_column: gives the rows' keys; empty for their numbers.
        layout: what an Example holds.
    """

    tables: Mapping[str, Sequence[str]]
    image_column: str = ""
    image_root: Mapping[str, str] = field(default_factory=dict)
    key_column: str = ""
    layout: TableLayout = field(default_factory=TableLayout, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        for split, uris in self.tables.items():
            _check_tables(split, uris)
        if bool(self.image_column) != self.layout.with_image:
            raise ValueError(
                f"image_column must come with a layout with_image, got {self.image_column!r} and"
                f" {self.layout.with_image}: give both or none"
            )
        if not self.image_column:
            _refuse_image_options(self)
        if self.image_root and not self.image_column:
            raise ValueError(
                f"image_root must come with image_column, got {[*self.image_root.values()]}"
                " alone: name the column"
            )
        if unknown := sorted({*self.image_root} - {"", *self.given}):
            raise ValueError(
                f"image_root must name splits of --table, got {unknown}: give {sorted(self.given)}"
            )
        super().__post_init__()

    @property
    def given(self) -> tuple[str, ...]:
        """The splits that sources are given for."""
        return tuple(self.tables)

    @property
    def split_fields(self) -> None:
        """Names of what `split_by` and `group_by` may ask of a sample: what tables hold tells."""
        return None

    @property
    def table_files(self) -> Mapping[str, Sequence[str]]:
        """URIs per split whose tables are given as files."""
        return {
            split: uris
            for split, uris in self.tables.items()
            if what_is_named(uris[0]) is Named.FILE
        }

    @property
    def table_roots(self) -> Mapping[str, str]:
        """URI per root name of the folders that tables are listed in."""
        return {f"{split}{_LISTED}": root for split, (root, _) in self._listed().items()}

    @property
    def roots(self) -> Mapping[str, str]:
        """URI per root name of the samples' blobs."""
        if not self.image_column:
            return {}
        for_all = self.image_root.get("")
        roots = {split: self.image_root.get(split, for_all) for split in self.given}
        return {split: root or self._folder(split) for split, root in roots.items()}

    @property
    def listed_roots(self) -> Mapping[str, str]:
        """URI per root name of what the sources' listings show, by which they are recognised."""
        return {**self.roots, **self.table_roots}

    @property
    def files(self) -> Sequence[str]:
        """URIs of files that the sources are recognised by, whatever their split."""
        return [*super().files, *(uri for uris in self.table_files.values() for uri in uris)]

    def located(self) -> Self:
        """Return the configuration with the roots of images that full paths in tables tell."""
        if not self.image_column or "" in self.image_root:
            return self
        roots = {
            split: self.image_root.get(split)
            or find_image_root(split, uris, self.image_column, self.access)
            or self._folder(split)
            for split, uris in self.tables.items()
        }
        return replace(self, image_root=roots)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        columns = {"image_column": self.image_column, "key_column": self.key_column}
        return {**super().options(), **columns, **self._keys()}

    @property
    def _source_of_splits(self) -> str:
        return "--table" if self.splitting.is_given else "--splits"

    @property
    def _output_remedy(self) -> str:
        if not self.image_column:
            return super()._output_remedy
        return "give another folder, or the folder of the images as image_root"

    def _keys(self) -> dict[str, str]:
        """Return the option that tells what keys are made of, where no column gives them."""
        if self.key_column:
            return {}
        alone = {split for split, uris in self.table_files.items() if len(uris) == 1}
        return keys_option({s: "" if s in alone else "file:row" for s in self.tables})

    def _listed(self) -> dict[str, tuple[str, str]]:
        """Return the folder and the glob per split whose tables are listed."""
        listed = self.tables.keys() - self.table_files.keys()
        return {split: root_and_pattern(self.tables[split][0]) for split in sorted(listed)}

    def _folder(self, split: str) -> str:
        if split in self.table_files:
            return split_uri(self.tables[split][0])[0]
        return self._listed()[split][0]


def _refuse_image_options(config: DataSetConfig) -> None:
    """Refuse what is asked of images where rows have none: it would have no effect."""
    conversion = config.conversion
    asked = {
        "check": config.check is not Check.HEADER,
        "orientation": config.orientation is not Orientation.KEEP,
        "resize": conversion.resize is not None,
        "reencode": conversion.reencode is not None,
        "color": conversion.color is not None,
    }
    if given := [name for name, is_given in asked.items() if is_given]:
        raise ValueError(
            f"{given[0]} must come with image_column, got it without: name the column, or leave"
            f" --{given[0]} out"
        )


def _check_tables(split: str, uris: Sequence[str]) -> None:
    if not uris or isinstance(uris, str):
        raise ValueError(f"tables of {split} must be a list of paths, got {uris!r}: give one")
    for uri in uris:
        if is_called_another_file(uri):
            raise ValueError(
                f"tables of {split} must be files that end in {', '.join(FORMATS)}, got {uri!r}:"
                " write it as one of these, or end the path of a folder with a slash"
            )
    if len(uris) == 1:
        return
    for uri in uris:
        if what_is_named(uri) is not Named.FILE:
            raise ValueError(
                f"tables of {split} must be files, or one folder or glob, got {uri!r} among"
                f" {len(uris)}: give a glob that matches all, in quotes"
            )
    names = [split_uri(uri)[1] for uri in uris]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"tables of {split} must have names of their own, which their rows' keys begin with,"
            f" got {repeated[0]!r} twice: rename one, or give the folder above them"
        )


def read_sources(root: beam.Pipeline, config: TableConfig) -> SourceSamples:
    """Build the part of the graph before plan and shards: samples from rows."""
    files = root | "ListTables" >> ListTables(config.table_files, config.access)
    tallies = listing = None
    if config.table_roots:
        globs = {f"{split}{_LISTED}": glob for split, (_, glob) in config._listed().items()}
        listed = root | "ListFiles" >> ListFiles(
            config.table_roots,
            config.access,
            is_read=functools.partial(is_table, patterns=globs),
        )
        splits = {f"{split}{_LISTED}": split for split in config.tables}
        picked = listed.files | "PickTables" >> PickTables(config.table_roots, globs, splits)
        files = (files, picked) | "AllTables" >> beam.Flatten()
        tallies = listed.tallies
    reader = TableReader(
        config.splitting,
        config.access,
        config.image_column,
        config.roots,
        config.layout.label_columns,
        config.key_column,
        config.layout.sequence_columns,
    )
    pieces = files | "DivideTables" >> DivideTables(config.access)
    read = pieces | "ReadTable" >> ReadSamples(
        reader, config.source_files, config.exclude, config.access
    )
    if config.image_column:
        listing = root | "ListBlobs" >> ListBlobs(config.roots, config.access)
    return read._replace(listing=listing, tallies=tallies)


def build(root: beam.Pipeline, config: TableConfig) -> beam.PCollection[Manifest]:
    """Build the graph: samples from rows, shards from the samples, one manifest."""
    return write_data_set(config, read_sources(root, config))


def configure(argv: Sequence[str]) -> tuple[RunConfig[TableConfig], list[str]]:
    """Return the run that the arguments ask for, and the arguments that are Beam's.

    Raises:
        ValueError: with the value and the remedy.
    """
    flags, beam_args = parse_flags(parser(), argv)
    make_config = functools.partial(
        TableConfig,
        tables=parse_several_per_split("table", flags.table, bare=flags.split),
        image_column=flags.image_column or "",
        image_root=parse_per_split("image_root", flags.image_root),
        key_column=flags.key_column or "",
        layout=layout_of(flags),
        label_file=label_file_of(flags),
        names=shard_names_of(flags),
    )
    run_config = make_run(make_config, flags, argv, "table")
    _check_since(run_config)
    return run_config, beam_args


def _check_since(run_config: RunConfig[TableConfig]) -> None:
    """Refuse to add to data sets by numbers of rows that begin again in another file."""
    config, since = run_config.config, run_config.since
    if since and since.names and config.table_files and not config.key_column:
        raise ValueError(
            "since must come with key_column where tables are given as files, since the numbers of"
            " rows begin again in each, got no key_column: name the column, or give from the first"
            " day on the folder or a glob of all files"
        )


def run(argv: Sequence[str]) -> None:
    """Convert as the arguments say; returns when the data set is committed."""
    run_config, beam_args = configure(argv)
    execute(run_config, build, beam_args, read_sources)


def main() -> None:
    """Run as a command: one line and an exit code for every fault."""
    sys.exit(guarded(run, sys.argv[1:]))


if __name__ == "__main__":
    main()
