"""Samples of Open Images: rows of CSV tables, joined with images by the images' ids.

A table of boxes, and perhaps one of image-level labels, names images by id: the file's name without
folders and extension. `JoinFiles` joins listed files (`name_by_id`) with rows (`read_rows`), which
may be anywhere in a table. `OpenImagesReader` makes the sample of an image.
"""

import functools
import itertools
import math
import operator
import posixpath
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from beam_tfrec.schemas import fields
from beam_tfrec.schemas.annotations.coco_objects import area_px2
from beam_tfrec.schemas.faults import Reason, Rejected
from beam_tfrec.schemas.geometry.boxes import check_bbox
from beam_tfrec.schemas.labels import read_label_file
from beam_tfrec.schemas.samples import Blob, Sample, is_id_root, pack
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms.sources.join_files import JoinedFiles, Row
from beam_tfrec.transforms.sources.listing import ListedFile, is_folder, why_skipped
from beam_tfrec.transforms.sources.read_samples import Item, SplitTally, note_skipped
from beam_tfrec.transforms.sources.read_sidecar import SideSample
from beam_tfrec.transforms.sources.table_rows import TableFile, open_table, require_columns
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, find_uri, read_uri

STAGE = "read_openimages"
KINDS = BOXES, LABELS, ROTATION, MASKS = "boxes", "image_labels", "rotation", "masks"
"""Kinds of tables, by the names of their flags."""

_FLAG_COLUMNS = {
    "IsOccluded": "occluded",
    "IsTruncated": "truncated",
    "IsGroupOf": "group_of",
    "IsDepiction": "depiction",
    "IsInside": "inside",
}
"""Attribute of an object by column; all of these columns may be missing."""

_NEEDED = {
    BOXES: ("LabelName", "XMin", "XMax", "YMin", "YMax"),
    LABELS: ("LabelName", "Confidence"),
    ROTATION: ("Rotation",),
    MASKS: ("LabelName", "BoxXMin", "BoxXMax", "BoxYMin", "BoxYMax", "MaskPath"),
}
_COLUMNS = _NEEDED | {BOXES: (*_NEEDED[BOXES], *_FLAG_COLUMNS)}
_NEAR = 0.01  # largest distance of a mask's box and a box, as a share of the picture's side
_NUM_OF_BOX = len(_NEEDED[BOXES])
_IMAGE_ID = "ImageID"
_FLAGS = {"1": 1, "0": 0, "-1": -1, "": -1}  # -1 means not known

_ORIENTATIONS = {"": 0, "nan": 0, "0": 1, "90": 8, "180": 3, "270": 6}
"""EXIF orientation that turns an image as Rotation says, counter-clockwise; 0 if not known."""


def read_rows(table: tuple[str, str, str], access: Access) -> Iterator[JoinedFiles]:
    """Yield the rows of a table by image id, some neighbours at a time.

    Cells are in the order of `_COLUMNS`. A row that cannot be read, or has no image id, gets an
    empty id, and a description of its fault as its only cell.

    Args:
        table: split, kind and URI.
        access: credentials and limits for stores.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when the file cannot be split into rows; `E-TAB-HEADER` when
            a needed column is missing.
    """
    split, kind, uri = table
    columns, needed = _COLUMNS[kind], (_IMAGE_ID, *_NEEDED[kind])
    storage, entry = find_uri(uri, access)
    opened = open_table(TableFile(split, storage.root, entry, "csv"), access)
    require_columns(uri, needed, opened.columns)

    def rows() -> Iterator[tuple[str, Row]]:
        cells: Any  # texts, in a CSV
        for _, line, cells in opened.rows:
            if isinstance(cells, tuple):
                yield "", (kind, line, [cells[1]])
            elif image_id := cells.get(_IMAGE_ID):
                yield image_id, (kind, line, [cells.get(name, "") for name in columns])
            else:
                yield "", (kind, line, [f"it has no {_IMAGE_ID}"])

    for image_id, neighbours in itertools.groupby(rows(), operator.itemgetter(0)):
        yield JoinedFiles(split, image_id, rows=tuple(row for _, row in neighbours))


def name_by_id(file: ListedFile) -> Iterator[JoinedFiles]:
    """Yield a listed file with its image id; nothing for a folder that could be listed.

    The name of a mask is the image's id, `_`, the class, `_`, and the box's id.
    """
    if file.entry.kind == "directory":
        return
    source, name = file.root.partition("/")[0], file.entry.name
    stem = posixpath.splitext(posixpath.basename(name))[0]
    if is_id_root(file.root):
        yield JoinedFiles(source, stem.rsplit("_", 2)[0], masks=(file,))
    elif why_skipped(name) and not is_folder(file.entry):
        yield JoinedFiles(source, stem, others=(file,))
    else:
        yield JoinedFiles(source, stem, first=(file,))


def match_masks(
    rows: Iterable[Row], objects: Sequence[fields.ObjectFields], files: Container[str]
) -> Iterator[tuple[Row, int | Reason]]:
    """Yield each row of masks with the index of its object, or with why it has none.

    Args:
        rows: rows of an image's masks.
        objects: the image's objects, with boxes of fractions.
        files: names of the image's PNGs, without folders.
    """
    free = dict(enumerate(objects))
    for row in rows:
        label, *cells, path = row[2]
        try:
            edges = [float(cell) for cell in cells]
        except ValueError as error:
            yield row, ("E-ANN-ROW", str(error))
            continue
        if not all(map(math.isfinite, edges)):
            yield row, ("E-ANN-ROW", f"a box of {edges}")
            continue
        found = [(_distance(edges, of), at) for at, of in free.items() if of.category_id == label]
        distance, at = min(found, default=(1.0, -1))
        if posixpath.basename(path) not in files:
            yield row, ("E-SEG-MISSING", f"{path} is not in the folder of masks")
        elif not distance <= _NEAR:
            yield row, ("E-SEG-MISSING", f"no box of {label} is where the mask's box is")
        else:
            del free[at]
            yield row, at


def _distance(edges: Sequence[float], found: fields.ObjectFields) -> float:
    """Return the largest distance of the edges xmin, xmax, ymin, ymax from those of a box."""
    x, y, width, height = found.bbox_xywh_px
    return max(map(abs, map(operator.sub, edges, (x, x + width, y, y + height))))


@dataclass(frozen=True)
class OpenImagesReader:
    """Makes the sample of an image and its rows.

    Attributes:
        splitting: rule that decides the split of a sample.
        classes: URI of the file of classes.
        access: credentials and limits for stores.
        allow_unannotated: whether an image without rows is a sample instead of a reject.
        has_masks: whether objects have masks.
    """

    splitting: Splitting
    classes: str
    access: Access = DEFAULT_ACCESS
    allow_unannotated: bool = False
    has_masks: bool = False

    def __call__(self, joined: JoinedFiles) -> Iterator[Item]:
        """Yield the sample of an image id or its rejects, and a note on what the rows hold."""
        for file in joined.others:
            yield note_skipped(self.splitting, joined.source, file.entry.name)
        split = self.splitting.split_of(joined.source, joined.name)
        for item in self._items(joined):
            yield msgspec.structs.replace(item, split=split)

    @functools.cached_property
    def _class_names(self) -> frozenset[str]:
        labels = read_label_file(read_uri(self.classes, self.access), 1, self.classes)
        return frozenset(label.name for label in labels)

    def _items(self, joined: JoinedFiles) -> Iterator[Item]:
        """Yield the sample of an image and its dropped rows, or rejects, without their split."""
        image_id, images = joined.name, joined.first
        rows = [row for row in joined.rows if row[0] not in (ROTATION, MASKS) or not image_id]
        ids = tuple(map(_id_of, rows))
        names = [file.entry.name for file in images]
        if not image_id:
            for one, (*_, (detail,)) in zip(ids, rows, strict=True):
                yield _rejected("E-ANN-ROW", detail, "", "", one)
        elif not images and rows:
            yield _rejected("E-IMG-MISSING", "no such image", image_id, "", *ids)
        elif len(images) > 1:
            for name in names:
                detail = f"{len(images)} images have the id {image_id}"
                yield _rejected("E-SRC-TWICE", detail, name, name, *ids)
                ids = ()  # each is lost once
        elif images and not rows and not self.allow_unannotated:
            yield _rejected("E-ANN-MISSING", "no row names it", image_id, *names)
        elif images:
            yield from self._sample(joined, images[0])

    def _sample(self, joined: JoinedFiles, image: ListedFile) -> Iterator[Item]:
        """Yield the pinned sample of an image, its dropped rows, and a note on what it holds."""
        masks = {posixpath.basename(file.entry.name): file for file in joined.masks}
        by_kind: dict[str, list[Row]] = {kind: [] for kind in _NEEDED}
        for row in joined.rows:
            by_kind[row[0]].append(row)
        objects: list[fields.ObjectFields] = []
        attributes: list[dict[str, int | str]] = []
        labels: list[tuple[str, float]] = []
        ids, bad = list[int | str](), list[fields.BadAnnotation]()
        image_id, seen = joined.name, set[tuple[str, ...]]()
        found = {BOXES, "instance_masks"} if self.has_masks else {BOXES}
        orientation = 0
        for row in by_kind[ROTATION]:
            (cell,) = row[2]
            turn = _ORIENTATIONS.get(cell.removesuffix(".0"))
            if turn is None or orientation not in (0, turn):
                detail = f"Rotation is {cell!r}, not 0, 90, 180 or 270, or unlike an earlier row"
                bad.append(fields.BadAnnotation(_id_of(row), "E-ANN-ROW", detail))
            else:
                orientation = turn
        for row in (*by_kind[BOXES], *by_kind[LABELS]):
            kind, _, cells = row
            opened = self._open(kind, cells)
            if (kind, *cells) in seen:
                opened = "E-ANN-TWICE", "an earlier row of the image is equal"
            seen.add((kind, *cells))
            if isinstance(opened, tuple):
                bad.append(fields.BadAnnotation(_id_of(row), *opened))
                continue
            ids.append(_id_of(row))
            if isinstance(opened, float):
                labels.append((cells[0], opened))
                found.add(LABELS)
            else:
                flags, known = _flags_of(*cells[_NUM_OF_BOX:])
                objects.append(opened)
                attributes.append(flags)
                found |= known
        files = [image]
        for row, match in match_masks(by_kind[MASKS], objects, masks):
            if isinstance(match, tuple):
                bad.append(fields.BadAnnotation(_id_of(row), *match))
            else:
                attributes[match] = attributes[match] | {"mask": len(files)}
                files.append(masks[posixpath.basename(row[2][-1])])
        picture = fields.AttributedFields(*fields.STORED_FRACTIONS, objects, image_id=image_id)
        picture = msgspec.structs.replace(picture, attributes=attributes, image_labels=labels)
        blobs = [Blob(file.root, file.entry.name) for file in files]
        blobs[0] = msgspec.structs.replace(blobs[0], orientation=orientation)
        side = SideSample(SplitTally("", found=sorted(found)), pack(picture), b"", tuple(ids), bad)
        at = Sample("", image_id, image.position, tuple(blobs), b"")
        yield from side.items(at, STAGE, [file.entry for file in files])

    def _open(self, kind: str, cells: list[str]) -> fields.ObjectFields | float | Reason:
        """Return the object of a row of boxes, the confidence of a label, or the row's fault."""
        class_name = cells[0]
        if class_name not in self._class_names:
            return "E-ANN-CATEGORY", f"class {class_name!r} is not in the file of classes"
        try:
            numbers = [float(cell) for cell in cells[1:_NUM_OF_BOX]]
            flags, _ = _flags_of(*cells[_NUM_OF_BOX:])
            if kind == LABELS and not 0 <= numbers[0] <= 1:
                raise ValueError(f"the confidence is {numbers[0]}, not from 0 to 1")
        except ValueError as error:
            return "E-ANN-ROW", str(error)
        if kind == LABELS:
            return numbers[0]
        xmin, xmax, ymin, ymax = numbers
        bbox = xmin, ymin, xmax - xmin, ymax - ymin
        is_group = int(flags.get("group_of") == 1)
        found = fields.ObjectFields(
            class_name, bbox, area_px2(fields.Segmentation(), bbox), is_group
        )
        return check_bbox(bbox) or found


@functools.lru_cache(maxsize=4**5)
def _flags_of(*cells: str) -> tuple[dict[str, int | str], frozenset[str]]:
    """Return the attributes that are not 0, and the names of known ones; an empty cell is unknown.

    The cells are those of `_FLAG_COLUMNS`, or none. Callers share the result.

    Raises:
        ValueError: when a cell is none of `_FLAGS`.
    """
    if odd := {*cells} - _FLAGS.keys():
        raise ValueError(f"a flag is {min(odd)!r}, not 1, 0 or -1")
    given = dict(zip(_FLAG_COLUMNS.values(), cells, strict=False))
    known = frozenset(name for name, cell in given.items() if cell)
    return {name: _FLAGS[cell] for name, cell in given.items() if _FLAGS[cell]}, known


def _rejected(code: str, detail: str, key: str, name: str, *ids: int | str) -> Rejected:
    """Return a reject without its split."""
    facts = {"code": code, "detail": detail, "key": key, "file_name": name}
    return Rejected(stage=STAGE, split="", annotation_ids=ids, **facts)


def _id_of(row: Row) -> int | str:
    kind, line, _ = row
    return line if kind == BOXES else f"{kind}:{line}"
