"""What samples carry of annotation files: objects, or fields of one's own choice."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from schemas.annotations.side_files import (
    SideFile,
    SideFormat,
    cells_at,
    format_of,
    open_objects,
)
from schemas.annotations.side_formats import parse_labelme, parse_sa1b
from schemas.columns import ColumnFacts, ColumnType, kind_of_value, values_of
from schemas.fields import BadAnnotation, PictureFields, fields_of_row
from schemas.samples import pack
from transforms.sources.split_sources import SourceNote

_PARSERS: Mapping[SideFormat, Callable[[bytes], SideFile | str]] = {
    SideFormat.LABELME: parse_labelme,
    SideFormat.SA1B: parse_sa1b,
}
_NO_REPAIRS: Mapping[str, int] = {}


class SideFault(NamedTuple):
    """Why an annotation file gives no sample: a SAMPLE code, and one short line."""

    code: str
    detail: str


class SideSample(NamedTuple):
    """What a sample carries of its annotation file.

    Attributes:
        fields: of the sample.
        payload: of the sample.
        annotation_ids: of the sample.
        bad: annotations that are dropped, with the reasons.
        class_names: of its classes.
        repairs: what was mended, with counts.
        columns: what was seen of its fields, where these are its own.
    """

    fields: bytes
    payload: bytes = b""
    annotation_ids: tuple[int | str, ...] = ()
    bad: tuple[BadAnnotation, ...] = ()
    class_names: frozenset[str] = frozenset()
    repairs: Mapping[str, int] = _NO_REPAIRS
    columns: tuple[ColumnFacts, ...] = ()

    def note(self, split: str) -> SourceNote:
        """Return the extra note."""
        if self.columns:
            return SourceNote(split, columns=self.columns, rows=1)
        found = frozenset(["boxes"])
        return SourceNote(split, self.class_names, found, repairs=dict(self.repairs))


class SideContents(Protocol):
    """Makes of an annotation file what a sample carries; frozen and picklable."""

    def open(self, text: bytes) -> SideSample | SideFault:
        """Return what a file says, or why it says nothing."""

    def nothing(self) -> SideSample:
        """Return what the sample of an image without a file carries."""


@dataclass(frozen=True)
class SideObjects:
    """Objects of pictures, for layouts of these.

    Attributes:
        format: of the files; None for each its own, by its content.
        segmentations: samples carry them.
    """

    format: SideFormat | None = None
    segmentations: bool = False

    def open(self, text: bytes) -> SideSample | SideFault:
        """Return the objects of a file."""
        found = self.format or format_of(text)
        side = found if isinstance(found, str) else _PARSERS[found](text)
        if isinstance(side, str):
            return SideFault("E-ANN-FILE", side)
        opened = open_objects(side, segmentations=self.segmentations)
        objects = [fields for _, fields in opened.objects]
        return SideSample(
            pack(PictureFields(side.width_px, side.height_px, objects)),
            pack(opened.segmentations) if self.segmentations else b"",
            tuple(annotation_id for annotation_id, _ in opened.objects),
            tuple(opened.bad),
            frozenset(str(one.category_id) for one in objects),
            opened.repairs,
        )

    def nothing(self) -> SideSample:
        """Return no objects, in an image of any size."""
        return SideSample(pack(PictureFields(0, 0, [])), pack([]) if self.segmentations else b"")


@dataclass(frozen=True)
class SideValues:
    """Values of chosen fields, for the layout of tables.

    Attributes:
        types: of the fields, by their paths: keys with dots between.
    """

    types: Mapping[str, ColumnType]

    def open(self, text: bytes) -> SideSample | SideFault:
        """Return the values of a file, as their types have them."""
        cells = cells_at(text, tuple(self.types))
        if isinstance(cells, str):
            return SideFault("E-ANN-FILE", cells)
        row: dict[str, Any] = {}
        for path, wanted in self.types.items():
            try:
                kind_of_value(cells.get(path))  # what no feature could hold
                values = values_of(cells.get(path), wanted)
            except ValueError as error:
                return SideFault("E-ROW-TYPE", f"field {path!r} is {wanted} and holds {error}")
            if cells.get(path) is not None and values is not None:
                row[path] = list(values) if wanted.repeated else values[0]
        return self._sample(row)

    def nothing(self) -> SideSample:
        """Return no values."""
        return self._sample({})

    def _sample(self, row: dict[str, Any]) -> SideSample:
        columns = tuple(
            ColumnFacts(path, kind_of_value(row.get(path)), int(path in row)) for path in self.types
        )
        return SideSample(*fields_of_row(row), columns=columns)
