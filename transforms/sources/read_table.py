"""Samples from the rows of tables, with facts about their columns.

`PlanTables` finds files (`find_tables`, `pick_table`) and divides them into pieces. `TableReader`
makes the samples of a piece. `table_rows.py` parses the rows.
"""

import functools
import itertools
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import apache_beam as beam

from beam_tfrec.schemas.annotations.coco_file import blob_name
from beam_tfrec.schemas.annotations.object_maps import NO_OBJECTS, ObjectMap
from beam_tfrec.schemas.columns import (
    BIG_INT,
    PARQUET,
    Cell,
    ColumnNotes,
    format_of,
    kind_of_value,
    matches,
    may_hold,
    text_of,
)
from beam_tfrec.schemas.faults import run_fault
from beam_tfrec.schemas.fields import fields_of_row, labels_of
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms.shuffle.elements import spread
from beam_tfrec.transforms.sources import hugging_face, listing
from beam_tfrec.transforms.sources.read_samples import Item, SplitTally, note_skipped
from beam_tfrec.transforms.sources.table_rows import (
    DEFAULT_MAX_CELL_BYTES,
    OpenTable,
    Row,
    TableFile,
    divide_file,
    open_table,
    read_features,
    require_columns,
)
from beam_tfrec.transforms.storage import Access, find_uri, is_local, open_storage, split_uri
from beam_tfrec.transforms.storage.staging import Stager, Staging, stage_image

STAGE = "read_table"

_ROW_BITS = 40  # bits of a position for the row: 10^12 rows per file, 8 million files


_SplitNotes = tuple[ColumnNotes, set[str]]
"""Facts about a split's columns, and its class names."""


@dataclass(frozen=True)
class TableReader:
    """Makes the samples of a piece of a table.

    Attributes:
        splitting: rule that decides the split of a row.
        access: credentials and limits for stores.
        image_column: column with each row's image; empty for rows without images.
        image_roots: URIs of the image roots, by the split that the user gave.
        label_columns: columns with each row's classes.
        key_column: column with the rows' keys; empty to use row numbers.
        sequence_columns: columns with lists of steps; steps may be lists.
        max_cell_bytes: limit of a cell's size; rows with larger cells are rejected.
        objects: column of Parquet with each image's objects; an empty path for none.
        stores_images: whether the image column of Parquet holds the images' bytes.
        staging: place for these images; None to write none, for a plan.
        has_label_file: whether a file numbers the classes, so that the schema does not.
    """

    splitting: Splitting
    access: Access
    image_column: str = ""
    image_roots: Mapping[str, str] = field(default_factory=dict)
    label_columns: tuple[str, ...] = ()
    key_column: str = ""
    sequence_columns: tuple[str, ...] = ()
    max_cell_bytes: int = DEFAULT_MAX_CELL_BYTES
    objects: ObjectMap = NO_OBJECTS
    stores_images: bool = False
    staging: Staging | None = None
    has_label_file: bool = False

    def __call__(self, file: TableFile) -> Iterator[Item]:
        """Yield a sample or a reject for every row, then notes about the columns.

        Raises:
            RuntimeError: `E-TAB-HEADER` when the column of objects is missing, or another named
                column of CSV and TSV;
                `E-SRC-SPLIT` when a row has no split.
        """
        if not file.format:
            yield note_skipped(self.splitting, file.split, file.entry.name, "not_called_a_table")
            return
        whole = {self.image_column, self.objects.path} - {""} if self.stores_images else ()
        table = open_table(file, self.access, self.max_cell_bytes, whole)
        if table.columns:
            named = self.image_column, self.key_column, *self.label_columns
            needed = filter(None, [*named, *self.splitting.fields.values()])
            require_columns(file.where, needed, table.columns)
        if self.objects.path:
            require_columns(file.where, [self.objects.path], table.features.columns)
        notes: dict[str, _SplitNotes] = {}
        stager = Stager(self.staging) if self.stores_images and self.staging else None
        for row in table.rows:
            yield from self._read_row(row, file, table, notes, stager)
        if stager:
            yield from stager.flush()
        labels = self._labels_of(table.features)
        for split, (columns, names) in notes.items():
            facts, rows, classes = columns.facts(), columns.rows, sorted(names)
            yield SplitTally(split, labels=labels, class_names=classes, columns=facts, rows=rows)

    def _read_row(
        self,
        row: Row,
        file: TableFile,
        table: OpenTable,
        notes: dict[str, _SplitNotes],
        stager: Stager | None,
    ) -> Iterator[Item]:
        """Yield the sample of a row, or rejects; add to the notes."""
        number, _, cells = row
        # A rejected row without a key must not get another row's key, since --exclude uses keys.
        prefix = f"{file.entry.name}:" if self.key_column else file.prefix
        key, split = f"{prefix}{number}", file.split if self.splitting.is_given else ""
        code, image, side = "E-ROW-KEY", None, None
        try:
            if isinstance(cells, tuple):
                raise hugging_face.RowFault(*cells)
            if self.key_column:
                key = self._key_of(cells)
            split = split or self._drawn_split(cells, key, file, row)
            if self.objects.path:
                side = hugging_face.open_objects(cells, self.objects, table.features)
            code = "E-ROW-PATH"
            if self.stores_images:
                image = hugging_face.open_image(cells.get(self.image_column), self.image_column)
            blobs = self._blobs_of(cells, file.split)
            code = "E-ROW-TYPE"
            if side is None:
                of_row = self._cells_of(cells, table)
        except ValueError as error:
            code = error.code if isinstance(error, hugging_face.RowFault) else code
            split = split or self.splitting.split_of_file(file.split, key)
            lost = Sample(split, key, -1, (), b"", side.all_ids if side else ())
            yield lost.reject(STAGE, code, f"{file.entry.name} {_place_of(row)}: {error}")
            return
        position = file.place << _ROW_BITS | number
        if split not in notes:
            columns = {*table.columns} - self._used_up
            notes[split] = ColumnNotes(columns, has_texts=table.has_text_cells), set()
        if side is None:
            kept, kinds, names = of_row
            fields, payload = fields_of_row(kept, self.sequence_columns)
            notes[split][0].add(kept, kinds)
            notes[split][1].update(names)
            items: Iterable[Item] = [Sample(split, key, position, blobs, fields, payload=payload)]
        else:
            where = f"{file.entry.name} {_place_of(row)}: "
            items = side.items(Sample(split, key, position, blobs, b""), STAGE, where=where)
        for item in items:
            if image and isinstance(item, Sample):
                name = key if self.key_column else f"{file.entry.name}:{number}"
                yield from stage_image(item, image[0], image[1] or name, stager)
            else:
                yield item

    def _cells_of(
        self, cells: dict[str, Cell], table: OpenTable
    ) -> tuple[dict[str, Cell], Mapping[str, int], tuple[str, ...]]:
        """Return the cells of a row that become features, their kinds, and its classes.

        Raises:
            RowFault: when a cell has a type that no feature has, or a number without a class.
        """
        for name in self.label_columns:
            if classes := table.features.classes.get(name):
                cells[name] = hugging_face.class_of(cells.get(name), classes)
        for name in self._used_up:
            cells.pop(name, None)
        if table.has_text_cells:
            return cells, {}, labels_of(cells, self.label_columns)
        kept, kinds = _typed(cells, self.sequence_columns)
        return kept, kinds, labels_of(kept, self.label_columns)

    def _labels_of(self, features: hugging_face.StoredFeatures) -> list[Label]:
        """Return the classes that the schema numbers; none if something else numbers them."""
        paths = self.label_columns
        if self.objects.path:
            paths = (features.class_path(self.objects.path),)
        if self.has_label_file or len(paths) != 1:
            return []
        return [Label(*of) for of in enumerate(features.classes.get(paths[0], ()))]

    @functools.cached_property
    def _used_up(self) -> frozenset[str]:
        """Columns of the image and the split; they do not become features."""
        return frozenset({self.image_column, self.splitting.fields.get("split_by", "")} - {""})

    def _key_of(self, cells: Mapping[str, Cell]) -> str:
        cell = cells.get(self.key_column)
        if isinstance(cell, bool) or not isinstance(cell, int | str) or cell == "":
            raise ValueError(f"column {self.key_column!r} gives no key: {_what_is(cell)}")
        return str(cell)

    def _drawn_split(self, cells: Mapping[str, Cell], key: str, file: TableFile, row: Row) -> str:
        fields = {
            name: text_of(cells[name])
            for name in self.splitting.fields.values()
            if cells.get(name) is not None and not isinstance(cells[name], list)
        }
        return self.splitting.split_of(file.split, key, fields, f"{file.where} {_place_of(row)}")

    def _blobs_of(self, cells: Mapping[str, Cell], given: str) -> tuple[Blob, ...]:
        """Return the blob of a row's image; none without a column of names."""
        if self.stores_images or not self.image_column:
            return ()
        cell = cells.get(self.image_column)
        if not isinstance(cell, str) or not cell:
            raise ValueError(f"column {self.image_column!r} names no image: {_what_is(cell)}")
        return (Blob(given, name_in_root(cell, self.image_roots[given])),)


def name_in_root(cell: str, root: str) -> str:
    """Return an image's name below its root, from a relative path or from a full path below it.

    >>> name_in_root("gs://b/photos/1.jpg", "gs://b/photos"), name_in_root("./2.jpg", "gs://b")
    ('1.jpg', '2.jpg')

    Raises:
        ValueError: when the path is not below the root, or is not a valid name.
    """
    prefixes = [f"{root.rstrip('/')}/"]
    if is_local(root):
        path = posixpath.abspath(root.removeprefix("file://") or "/").rstrip("/")
        prefixes = [f"file://{path}/", f"{path}/"]
    prefix = next((prefix for prefix in prefixes if cell.startswith(prefix)), "")
    if not prefix and (cell.startswith("/") or "://" in cell):
        raise ValueError(f"{cell!r} does not lie below {root}: give --image_root")
    try:
        return blob_name(cell.removeprefix(prefix))
    except ValueError as error:
        raise ValueError(f"{cell!r} {error}") from None


def find_tables(given: tuple[str, Sequence[str]], access: Access) -> Iterator[TableFile]:
    """Yield the files that the user named one by one, in the order of their names.

    Args:
        given: split and the URIs of its files.
        access: credentials and limits for stores.

    Raises:
        RuntimeError: `E-ARG` when a file does not exist.
    """
    split, uris = given
    for file_number, uri in enumerate(sorted(uris, key=lambda uri: split_uri(uri)[1])):
        storage, entry = find_uri(uri, access)
        prefix = f"{entry.name}:" if len(uris) > 1 else ""
        yield TableFile(split, storage.root, entry, format_of(uri), prefix, file_number)


def pick_table(
    listed: listing.ListedFile, folders: Mapping[str, tuple[str, str]]
) -> Iterator[TableFile]:
    """Yield a listed file that matches its folder's glob, with its format.

    A hidden file, or one without a table's extension, gets no format; readers only count it.

    Args:
        listed: listed entry.
        folders: URI and glob of each folder, by root name.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when an entry has a table's extension, but is not a file; or
            when a folder cannot be listed.
    """
    entry, name = listed.entry, listed.entry.name
    uri, pattern = folders[listed.root]
    is_meant = matches(name, pattern) or (listing.is_folder(entry) and may_hold(name, pattern))
    if entry.kind == "directory" or not is_meant:
        return
    is_hidden = listing.why_skipped(name) == listing.HIDDEN
    format = "" if is_hidden else format_of(name)
    position = max(listed.position, 0)
    file = TableFile(listed.root.rpartition("/")[0], uri, entry, format, f"{name}:", position)
    if entry.kind == "file":
        yield file
    elif format or (listing.is_folder(entry) and not is_hidden):
        what, remedy = f"a {entry.kind} instead of a file", "repair it, or remove it"
        raise run_fault("E-TAB-FORMAT", file.where, what, remedy)


def first_features(
    files: Mapping[str, Sequence[str]], folders: Mapping[str, tuple[str, str]], access: Access
) -> hugging_face.StoredFeatures:
    """Return what the schema of the first Parquet file says, by split and name.

    Args:
        files: URIs of tables that the user named one by one, by split.
        folders: URI and glob of each folder, by root name.
        access: credentials and limits for stores.

    Raises:
        RuntimeError: `E-ARG` when a file does not exist, `E-TAB-FORMAT` when it is not Parquet.
    """
    given = (file for named in sorted(files.items()) for file in find_tables(named, access))
    listed = (
        file
        for root, (uri, _) in sorted(folders.items())
        for entry in sorted(open_storage(uri, access).list(), key=lambda entry: entry.name)
        for file in pick_table(listing.ListedFile(root, entry), folders)
    )
    for file in itertools.chain(given, listed):
        if file.format == PARQUET:
            return read_features(file, access)
    return hugging_face.NO_FEATURES


def is_table(listed: listing.ListedFile, folders: Mapping[str, tuple[str, str]]) -> bool:
    """Return whether a listed file is read as a table."""
    return any(file.format for file in pick_table(listed, folders))


def _typed(
    cells: Mapping[str, Cell], sequence_columns: Sequence[str]
) -> tuple[dict[str, Cell], dict[str, int]]:
    """Return the cells that have a value, ready for MessagePack, and the kinds of all cells."""
    kept: dict[str, Cell] = {}
    kinds: dict[str, int] = {}
    for name, cell in cells.items():
        try:
            kind = kind_of_value(cell, may_nest=name in sequence_columns)
        except (ValueError, RecursionError) as error:
            raise hugging_face.RowFault("E-ROW-TYPE", f"column {name!r} holds {error}") from None
        kinds[name] = kind
        if cell is not None:
            kept[name] = _without_big(cell) if kind & BIG_INT else cell
    return kept, kinds


def _without_big(cell: Cell) -> Cell:
    """Return a cell with integers beyond int64 as text."""
    if isinstance(cell, list):
        return [_without_big(value) for value in cell]
    return str(cell) if isinstance(cell, int) and kind_of_value(cell) == BIG_INT else cell


def _place_of(row: Row) -> str:
    number, line, _ = row
    return f"line {line}" if line else f"row {number}"


def _what_is(cell: Cell) -> str:
    return "no value" if cell in (None, "") else f"a {type(cell).__name__}"


@dataclass(eq=False)
class PlanTables(beam.PTransform):
    """Pipeline root -> pieces of all tables, in any order, for workers to read in parallel.

    Attributes:
        files: URIs of tables that the user named one by one, by split.
        folders: URI and glob of each folder, by root name.
        access: credentials and limits for stores.
        in_order: whether files need positions, for input order.
        piece_bytes: see `divide_file`.
    """

    files: Mapping[str, Sequence[str]]
    folders: Mapping[str, tuple[str, str]]
    access: Access
    in_order: bool = False
    piece_bytes: int = 0

    def expand(self, root: beam.pvalue.PBegin) -> listing.SourcePieces:
        """Find files, and divide each one."""
        given = root | "GivenFiles" >> beam.Create(sorted(self.files.items()))
        found = given | "FindFiles" >> beam.FlatMap(find_tables, self.access)
        uris = {name: uri for name, (uri, _) in self.folders.items()}
        is_read = functools.partial(is_table, folders=self.folders)
        listed = root | "ListFiles" >> listing.ListFiles(uris, self.access, self.in_order, is_read)
        picked = listed.pieces | "PickFiles" >> beam.FlatMap(pick_table, self.folders)
        files = (found, picked) | "AllFiles" >> beam.Flatten()
        pieces = files | "Divide" >> beam.FlatMap(divide_file, self.access, self.piece_bytes)
        return listing.SourcePieces(spread(pieces), listed.root_tallies)
