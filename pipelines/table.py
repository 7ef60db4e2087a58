"""Rows of tables to sharded .tfrec: `beam-tfrec table --help`."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import apache_beam as beam

from beam_tfrec.pipelines import flags as shared
from beam_tfrec.pipelines.cli import config_of, main, parse_several_per_split
from beam_tfrec.pipelines.data_set import check_splits_named, keys_option
from beam_tfrec.pipelines.run import Command
from beam_tfrec.pipelines.staging import StagingConfig
from beam_tfrec.schemas.annotations.object_maps import BoxFormat, ObjectMap
from beam_tfrec.schemas.columns import FORMATS, PARQUET, format_of, is_table_file, root_and_pattern
from beam_tfrec.schemas.faults import require_at_least
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.layouts.pictures import SizeMismatch
from beam_tfrec.schemas.layouts.table import TableLayout
from beam_tfrec.schemas.samples import STAGED_IMAGES
from beam_tfrec.transforms.images.check_images import Check
from beam_tfrec.transforms.images.conversion import NO_CONVERSION
from beam_tfrec.transforms.sources.listing import ListFiles
from beam_tfrec.transforms.sources.read_samples import SourceSamples
from beam_tfrec.transforms.sources.read_table import PlanTables, TableReader, first_features
from beam_tfrec.transforms.sources.table_rows import DEFAULT_MAX_CELL_BYTES
from beam_tfrec.transforms.storage import split_uri

_OTHER_FILES = (
    *(".arrow", ".avro", ".feather", ".json", ".ndjson", ".orc", ".parq", ".tab", ".txt"),
    *(".bz2", ".gz", ".xls", ".xlsx", ".zip", ".zst"),
)


_PIECE_BYTES = 128 << 20  # of Parquet with images, where each piece writes its own staged file


@dataclass(frozen=True)
class TableConfig(StagingConfig):
    """A whole conversion of tables.

    A command finds columns of images, classes and objects by the schema (`completed`); a program
    names them.

    Attributes:
        tables: per split URIs of files, or that of one folder or glob.
        image_column: column that names or holds each row's image; empty for none.
        image_root: URI that images lie below, per split or for all (`""`); none for the table's
            folder.
        key_column: column of the rows' keys; empty for row numbers.
        max_cell_bytes: a row with a larger cell is rejected; in files of lines, a larger row.
        objects_column: column of Parquet with each image's objects; empty for none.
        box_format: meaning of the numbers of boxes.
        stores_images: whether the image column holds the images' bytes.
        detection: what an Example of an image with objects holds.
        layout: what an Example holds; `detection` replaces it where there are objects.
    """

    tables: Mapping[str, Sequence[str]]
    image_column: str = ""
    image_root: Mapping[str, str] = field(default_factory=dict)
    key_column: str = ""
    max_cell_bytes: int = DEFAULT_MAX_CELL_BYTES
    objects_column: str = ""
    box_format: BoxFormat = BoxFormat.XYWH
    stores_images: bool = False
    detection: DetectionLayout = field(default_factory=lambda: DetectionLayout(first_label=1))
    layout: Layout = field(default_factory=TableLayout, kw_only=True)

    source_flag: ClassVar[str] = "--table"
    images_field: ClassVar[str] = "image_root"

    def __post_init__(self) -> None:
        """Refuse options that do not fit together."""
        for split, uris in self.tables.items():
            _check_tables(split, uris)
        layout = self.layout
        if isinstance(layout, TableLayout) and self.objects_column:
            if named := (*layout.label_columns, *layout.types, *layout.sequence_columns):
                what = "objects_column must come without label_column, types and sequence"
                got = f"{self.objects_column!r} and {named[0]!r}"
                raise ValueError(f"{what}, got {got}: leave one of them out")
            layout = self.detection
        elif isinstance(layout, TableLayout):
            layout = replace(layout, with_image=bool(self.image_column))
        object.__setattr__(self, "layout", layout)
        check_splits_named("image_root", self.image_root, "--table", self.given_splits)
        require_at_least(1, max_cell_bytes=self.max_cell_bytes)
        super().__post_init__()
        if not self._may_be_parquet:
            self.refuse_unused()

    @property
    def _may_be_parquet(self) -> bool:
        """Whether some table may be Parquet, so that only its schema shows the columns."""
        return any(format_of(uri) in ("", PARQUET) for uris in self.tables.values() for uri in uris)

    @property
    def given_splits(self) -> tuple[str, ...]:
        """The splits that sources are given for."""
        return tuple(self.tables)

    @property
    def stages(self) -> bool:
        """Whether images are copied out of the tables."""
        return self.stores_images

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
        if self.stores_images:
            return {STAGED_IMAGES: self.staging.uri}
        folders = {split: split_uri(uris[0])[0] for split, uris in self.table_files.items()}
        folders |= {name.rpartition("/")[0]: uri for name, (uri, _) in self.table_folders.items()}
        for_all = self.image_root.get("", "")
        return {s: self.image_root.get(s, for_all) or folders[s] for s in self.given_splits}

    @property
    def listed_roots(self) -> Mapping[str, str]:
        """URI per root name of every folder that is listed: its listing identifies the source."""
        folders = {name: uri for name, (uri, _) in self.table_folders.items()}
        return folders if self.stores_images else {**self.roots, **folders}

    @property
    def globs(self) -> dict[str, str]:
        """Globs of the sources, by root name."""
        return {name: glob for name, (_, glob) in self.table_folders.items() if glob}

    @property
    def shared_files(self) -> Sequence[str]:
        """URIs of files that identify the sources, of any split."""
        tables = (uri for uris in self.table_files.values() for uri in uris)
        return [*super().shared_files, *tables]

    def check_since(self) -> None:
        """Also refuse `since` if keys are row numbers, which start again in each file."""
        if self.table_files and not self.key_column:
            what = "since must come with key_column where tables are given as files"
            raise ValueError(f"{what}: name the column, or give a folder or glob on every day")
        super().check_since()

    def completed(self) -> Self:
        """Return a copy with the columns of images, classes and objects that a schema names.

        Raises:
            ValueError: when several columns could be meant, or options do not fit the columns.
        """
        if not self._may_be_parquet:
            return super().completed()
        try:
            features = first_features(self.table_files, self.table_folders, self.access)
        except RuntimeError as error:
            if not self.trust_manifest or not str(error).startswith("E-ARG"):
                raise
            return super().completed()  # the sources are gone
        image, objects, layout = self.image_column, self.objects_column, self.layout
        image = image or _only("image_column", features.images)
        stores = image in features.binary
        if stores and isinstance(layout, TableLayout):
            classes = layout.label_columns
            if not (classes or layout.types or layout.sequence_columns):
                objects = objects or _only("objects_column", features.objects)
            if objects:
                features.class_path(objects)  # refuses several
            named = sorted({*features.classes}.intersection(features.columns) - layout.types.keys())
            if not (classes or objects) and len(named) == 1:
                layout = replace(layout, label_columns=tuple(named))
        changes: dict[str, Any] = {"image_column": image, "objects_column": objects}
        config = replace(self, **changes, stores_images=stores, layout=layout)
        config.refuse_unused()
        return super(TableConfig, config).completed()

    def refuse_unused(self) -> None:
        """Refuse options that have no effect on the columns that there are.

        Raises:
            ValueError: with the value and the remedy.
        """
        plain = self.check is Check.HEADER and self.conversion == NO_CONVERSION
        plain = plain and not self.drop_similar
        if not plain and not self.image_column:
            raise ValueError("check and image options need --image_column: add it, or omit them")
        layout, mismatch, stores = self.layout, self.detection.on_size_mismatch, self.stores_images
        first, roots = getattr(layout, "first_label", 0), " ".join(self.image_root.values())
        has_classes = bool(self.objects_column or getattr(layout, "label_columns", True))
        named = bool(self.image_column) and not stores
        changed = "" if mismatch is SizeMismatch.AUTO else mismatch.value
        other_boxes = "" if self.box_format is BoxFormat.XYWH else self.box_format.value
        dropped = "" if self.drop_budget is None else str(self.drop_budget)
        for option, value, needed, is_there in (
            ("image_root", roots, "image_column of names", named),
            ("objects_column", self.objects_column, "image_column of Parquet cells", stores),
            ("box_format", other_boxes, "objects_column", bool(self.objects_column)),
            ("max_dropped", dropped, "objects_column", bool(self.objects_column)),
            ("on_size_mismatch", changed, "objects_column", bool(self.objects_column)),
            ("label_file", self.label_file, "label_column", has_classes),
            ("first_label", first, "label_column", has_classes),
        ):
            if value and not is_there:
                what = f"{option} must come with {needed}, got {value}"
                raise ValueError(f"{what}: name such a column, or leave {option} out")

    def read_sources(self, root: beam.Pipeline) -> SourceSamples:
        """Build the part of the graph that reads samples from rows."""
        piece_bytes = _PIECE_BYTES if self.stores_images else 0
        of_tables = self.table_files, self.table_folders, self.access, self.in_order, piece_bytes
        pieces, tallies = root | "PlanTables" >> PlanTables(*of_tables)
        layout = self.layout if isinstance(self.layout, TableLayout) else TableLayout()
        reader = TableReader(
            self.splitting,
            self.access,
            self.image_column,
            self.roots,
            layout.label_columns,
            self.key_column,
            layout.sequence_columns,
            self.max_cell_bytes,
            ObjectMap(self.objects_column, box_format=self.box_format),
            self.stores_images,
            None if self.plan else self.staging,
            bool(self.label_file),
        )
        read = pieces | "ReadTable" >> self.samples_step(reader)
        if self.image_column and not self.stores_images:
            listed = root | "ListFiles" >> ListFiles(self.roots, self.access)
            tallies = (tallies, listed.root_tallies) | "Tallies" >> beam.Flatten()
            read = read._replace(listing=listed.pieces)
        return read._replace(root_tallies=tallies)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        columns = {"image_column": self.image_column, "key_column": self.key_column}
        options = super().options() | columns
        if self.stores_images:
            options |= {"images": "in cells", "objects_column": self.objects_column}
        if self.box_format is not BoxFormat.XYWH:
            options["box_format"] = self.box_format.value
        if self.max_cell_bytes != DEFAULT_MAX_CELL_BYTES:
            options["max_cell_bytes"] = str(self.max_cell_bytes)
        if self.key_column:
            return options
        alone = {split for split, uris in self.table_files.items() if len(uris) == 1}
        return options | keys_option({s: "" if s in alone else "file:row" for s in self.tables})


def _only(option: str, columns: Sequence[str]) -> str:
    """Return the only one of the columns that an option could name; empty if there is none."""
    if len(columns) > 1:
        what = f"one of {', '.join(columns)}"
        raise ValueError(f"{option} must name {what}, got none: name the one to write")
    return next(iter(columns), "")


def _check_tables(split: str, uris: Sequence[str]) -> None:
    if not uris or isinstance(uris, str):
        raise ValueError(f"tables of {split} must be a list of paths, got {uris!r}: give one")
    others = [uri for uri in uris if not is_table_file(uri)]
    if odd := [uri for uri in others if uri.lower().endswith(_OTHER_FILES)]:
        what = f"files that end in {', '.join(FORMATS)}, got {odd[0]!r}"
        remedy = "write it as one of these, or end the path of a folder with a slash"
        raise ValueError(f"tables of {split} must be {what}: {remedy}")
    if others and len(uris) > 1:
        what = f"{', '.join(FORMATS)} files, or one folder or glob"
        got = f"{others[0]!r} among {len(uris)}: give a glob that matches all, in quotes"
        raise ValueError(f"tables of {split} must be {what}, got {got}")
    names = [split_uri(uri)[1] for uri in uris]
    if repeated := [name for name in names if names.count(name) > 1]:
        what = f"different names, since keys of rows begin with them, got {repeated[0]!r} twice"
        raise ValueError(f"tables of {split} must have {what}: rename one, or give their folder")


def add_flags(parser: shared.SourceParser) -> None:
    """Add the flags of the source and its layout."""
    tables = ".csv, .tsv, .jsonl or .parquet files per split, or one folder or quoted glob"
    group = parser.add_sources("sources (docs/tables.md)", table=("FILE|GLOB|DIR", tables))
    image = "column that names or holds each row's image (default: by the schema of Parquet)"
    group.text("--image_column", image, "COLUMN")
    below = "folder of images or data set, per split or for all (default: the table's folder)"
    group.several("--image_root", below, "[SPLIT=]DIR")
    keys = "column of unique keys, texts or whole numbers (default: row numbers)"
    group.text("--key_column", keys, "COLUMN")
    types = "int64, float or bytes; add [] for lists, ? for columns with missing cells"
    group.several("--types", f"{types} (default: from all cells)", "COLUMN=TYPE,...")
    largest = "largest cell of Parquet, or row of other tables; a larger one rejects its row"
    default = f"{DEFAULT_MAX_CELL_BYTES // 10**6}MB"
    largest += ", or ends a CSV run"
    group.text("--max_cell_bytes", largest, "SIZE", default=default, rare=True)
    objects = "column of boxes and classes; makes records of the layout detection (default: by the"
    group.text("--objects_column", f"{objects} schema of Parquet)", "COLUMN", rare=True)
    numbers = "numbers of a box in px, or with rel_ as fractions (default xywh)"
    group.choice("--box_format", numbers, BoxFormat, rare=True)
    parser.add_size_flag(group)
    classes = "one or more columns of classes; makes image/class/label and image/class/text"
    group.several("--label_column", classes, "COLUMN")
    steps = "columns of lists with a value per step; makes SequenceExamples"
    group.several("--sequence", steps, "COLUMN,...", rare=True)
    parser.add_class_flags("default 0; with objects 1")
    parser.add_drop_flag(rare=True)


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own."""
    return {
        "tables": parse_several_per_split("table", flags.table, bare=flags.split),
        "image_root": shared.parse_per_split("image_root", flags.image_root),
        "max_cell_bytes": shared.parse_size("max_cell_bytes", flags.max_cell_bytes),
        "detection": config_of(DetectionLayout, flags, first_label=shared.first_label_of(flags, 1)),
        "layout": TableLayout(
            types=shared.parse_types(flags.types),
            label_columns=tuple(flags.label_column),
            first_label=shared.first_label_of(flags),
            sequence_columns=tuple(n.strip() for given in flags.sequence for n in given.split(",")),
        ),
    }


run = Command("table", TableConfig, add_flags, fields_of, "--table train=train.csv val=val.csv")

if __name__ == "__main__":
    main(run.name)
