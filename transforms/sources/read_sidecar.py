"""Samples of images that have a JSON file of annotations each."""

import functools
import operator
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam.transforms.window import GlobalWindows

from schemas.annotations.coco_file import blob_name
from schemas.annotations.side_files import (
    SideFile,
    SideFormat,
    cells_at,
    format_of,
    open_objects,
    parse_labelme,
    parse_sa1b,
    value_at,
)
from schemas.columns import ColumnFacts, ColumnType, kind_of_value, values_of
from schemas.faults import Rejected
from schemas.fields import BadAnnotation, PictureFields, fields_of_row
from schemas.samples import Blob, Sample, pack
from schemas.splits import Splitting
from transforms.sources.join_files import OTHER_SIDE, JoinedFiles, NamedFile
from transforms.sources.list_blobs import (
    HIDDEN,
    MAX_IMAGE_BYTES,
    ListedFile,
    is_folder,
    pin_sample,
    why_skipped,
)
from transforms.sources.read_blobs import read_blob
from transforms.sources.read_samples import Item, SplitSource
from transforms.storage import (
    DEFAULT_ACCESS,
    DEFAULT_READERS,
    DEFAULT_REMOTE_READERS,
    Access,
    is_local,
    open_storage,
)

STAGE = "read_sidecar"

_PARSERS: Mapping[SideFormat, Callable[[bytes], SideFile | str]] = {
    SideFormat.LABELME: parse_labelme,
    SideFormat.SA1B: parse_sa1b,
}

_ANNOTATIONS = "annotations"

_SUFFIX = ".json"

_EVERY_FILE = f"**{_SUFFIX}"

_MAX_HELD_FILES = 512

_MAX_HELD_BYTES = 32 << 20

_WILDCARDS = {"**": ".*", "*": "[^/]*", "?": "[^/]"}


class SideFault(NamedTuple):
    """Why an annotation file gives no sample: a SAMPLE code, and one short line."""

    code: str
    detail: str


class SideSample(msgspec.Struct, frozen=True):
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
    class_names: list[str] = []
    repairs: dict[str, int] = {}
    columns: list[ColumnFacts] = []

    def note(self, split: str) -> SplitSource:
        """Return the extra note."""
        if self.columns:
            return SplitSource(split, columns=self.columns, rows=1)
        return SplitSource(
            split, class_names=self.class_names, found=["boxes"], repairs=self.repairs
        )


@dataclass(frozen=True)
class SideReader:
    """Reads an image with its annotation file as a sample.

    Attributes:
        splitting: which split a sample belongs to.
        contents: makes of an annotation file what a sample carries of it.
        allow_unannotated: an image without a file is a sample without annotations.
        join_by: the field by which files name their images; empty where their own names do.
    """

    splitting: Splitting
    contents: "SideObjects | SideValues"
    allow_unannotated: bool = False
    join_by: str = ""

    def __call__(self, files: JoinedFiles) -> Iterator[Item]:
        """Yield the samples of the files of a name, and why there are none of others."""
        for other in files.others:
            name = other.entry.name
            split = self.splitting.split_of_other(files.source, name)
            yield SplitSource(split, listed=1, skipped={why_skipped(name): 1})
        if len(files.first) == len(files.second) == 1:
            yield from self._annotated(
                files.source, files.first[0], files.second[0], files.texts[0]
            )
            return
        twice = f"{len(files.first)} images and {len(files.second)} annotation files have its name"
        for image in files.first:
            if files.second:
                yield self._rejected(files.source, image, "E-SRC-TWICE", twice)
            else:
                yield from self._unannotated(files.source, image)
        code, detail = ("E-SRC-TWICE", twice) if files.first else ("E-IMG-MISSING", "no such image")
        for file, text in zip(files.second, files.texts, strict=True):
            yield self._imageless(files.source, file, text, code, detail)

    def _annotated(
        self, source: str, image: ListedFile, file: ListedFile, text: bytes
    ) -> Iterator[Item]:
        """Yield the sample of an image with its annotations, and those that are dropped."""
        opened = self._open(file, text)
        if isinstance(opened, SideFault):
            code, detail = opened
            yield self._rejected(source, image, code, f"{file.entry.name}: {detail}")
            return
        key = image.entry.name
        fields = {name: value_at(text, name) for name in self.splitting.fields.values()}
        split = self.splitting.split_for(source, key, fields, key)
        yield _pinned(split, image, opened)
        for bad in opened.bad:
            yield Rejected(
                code=bad.code,
                stage=STAGE,
                split=split,
                key=key,
                annotation_ids=(bad.annotation_id,),
                file_name=key,
                detail=bad.detail,
            )
        yield opened.note(split)

    def _unannotated(self, source: str, image: ListedFile) -> Iterator[Item]:
        if not self.allow_unannotated:
            detail = "no annotation file has its name" if not self.join_by else "no file names it"
            yield self._rejected(source, image, "E-ANN-MISSING", detail)
            return
        split = self.splitting.split_of_other(source, image.entry.name)
        nothing = self.contents.nothing()
        yield _pinned(split, image, nothing)
        yield nothing.note(split)

    def _imageless(
        self, source: str, file: ListedFile, text: bytes, code: str, detail: str
    ) -> Rejected:
        """Return the reject of an annotation file, with the annotations that are lost with it."""
        opened = self._open(file, text)
        if isinstance(opened, SideFault):
            return self._rejected(source, file, *opened)
        ids = *opened.annotation_ids, *(bad.annotation_id for bad in opened.bad)
        if self.join_by:
            named = named_image(file.entry.name, value_at(text, self.join_by))
            detail = f"{named!r}, by its {self.join_by}: {detail}"
        return self._rejected(source, file, code, detail, ids)

    def _open(self, file: ListedFile, text: bytes) -> SideSample | SideFault:
        """Return what an annotation file says, or why it says nothing."""
        if file.entry.kind != "file":
            return SideFault("E-ANN-FILE", f"a {file.entry.kind}")
        if file.entry.size_bytes > MAX_IMAGE_BYTES:
            what = f"{file.entry.size_bytes} bytes, the limit is {MAX_IMAGE_BYTES}"
            return SideFault("E-ANN-FILE", what)
        opened = self.contents.open(text)
        is_named = not self.join_by or value_at(text, self.join_by)
        if isinstance(opened, SideFault) or is_named:
            return opened
        return SideFault("E-ANN-FILE", f"no {self.join_by} that names an image")

    def _rejected(
        self,
        source: str,
        file: ListedFile,
        code: str,
        detail: str,
        annotation_ids: tuple[int | str, ...] = (),
    ) -> Rejected:
        name = file.entry.name
        return Rejected(
            code=code,
            stage=STAGE,
            split=self.splitting.split_of_other(source, name),
            key=name,
            annotation_ids=annotation_ids,
            file_name=name,
            detail=detail,
        )


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
        opened, repairs = open_objects(side, segmentations=self.segmentations)
        objects = [fields for _, fields in opened.objects]
        return SideSample(
            pack(PictureFields(side.width_px, side.height_px, objects)),
            pack(opened.segmentations) if self.segmentations else b"",
            tuple(annotation_id for annotation_id, _ in opened.objects),
            tuple(opened.bad),
            sorted({str(one.category_id) for one in objects}),
            repairs,
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
        columns = [
            ColumnFacts(path, kind_of_value(row.get(path)), int(path in row)) for path in self.types
        ]
        return SideSample(*fields_of_row(row), columns=columns)


@dataclass(frozen=True)
class SideNames:
    """Names images and annotation files by their names below their roots, extensions aside.

    Attributes:
        globs: per source the names of its annotation files.
        whole: image names are whole, as annotation files have them in a field.
    """

    globs: Mapping[str, str]
    whole: bool = False

    def __call__(self, file: ListedFile) -> Iterator[NamedFile]:
        """Yield a listed file under its name; nothing for what is no source."""
        name = file.entry.name
        source, _, is_annotation = file.root.partition("/")
        if file.entry.kind == "directory":  # one that could be listed
            return
        if is_annotation:
            is_meant = _pattern(self.globs[source]).fullmatch(name) or is_folder(file.entry)
            if is_meant and why_skipped(name) != HIDDEN:
                yield NamedFile(source, posixpath.splitext(name)[0], 1, file)
        elif why_skipped(name) and not is_folder(file.entry):
            if not name.lower().endswith(_SUFFIX):  # which may be its annotations, in one folder
                yield NamedFile(source, f"{file.root}/{name}", OTHER_SIDE, file)
        else:
            yield NamedFile(source, name if self.whole else posixpath.splitext(name)[0], 0, file)

    def reads(self, file: ListedFile) -> bool:
        """Return whether a listed file is an image or an annotation file."""
        return file.entry.kind == "file" and any(named.side != OTHER_SIDE for named in self(file))


def annotations_root(source: str) -> str:
    """Return the name of the root of a source's annotation files; that of its images is its own."""
    return f"{source}/{_ANNOTATIONS}"


def divide_glob(uri: str) -> tuple[str, str]:
    """Return a folder and the pattern of names below it; `**.json` where none is given.

    That one means names that end in `.JSON` too, as cameras and other systems write them.

    >>> divide_glob("gs://b/json/*/a_*.json"), divide_glob("b/json")
    (('gs://b/json', '*/a_*.json'), ('b/json', '**.json'))
    """
    wild = re.search(r"[*?]", uri)
    if wild is None:
        return uri, _EVERY_FILE
    folder, _, _ = uri[: wild.start()].rpartition("/")
    return folder or ("/" if uri.startswith("/") else "."), uri[len(folder) :].removeprefix("/")


def named_image(side_name: str, value: str) -> str:
    r"""Return the name of the image that an annotation file names.

    A bare name is that of a file in the annotation file's sub-folder, and so is the last part of a
    path that leads out of the image root: folders of another machine say nothing here.

    >>> named_image("a/1.json", "x.jpg"), named_image("a/1.json", "..\\img\\x.jpg")
    ('a/x.jpg', 'a/x.jpg')
    >>> named_image("1.json", "b/x.jpg")
    'b/x.jpg'
    """
    name = value.replace("\\", "/")
    try:
        name = blob_name(name)
    except ValueError:
        name = name.rpartition("/")[2]
    folder = posixpath.dirname(side_name)
    return name if "/" in name or not name else posixpath.join(folder, name)


def _pinned(split: str, image: ListedFile, opened: SideSample) -> Sample | Rejected:
    """Return the sample of an image as listed."""
    name = image.entry.name
    sample = Sample(
        split=split,
        key=name,
        position=image.position,
        blobs=(Blob(image.root, name),),
        fields=opened.fields,
        annotation_ids=opened.annotation_ids,
        payload=opened.payload,
    )
    return pin_sample(sample, image.entry)


@functools.cache
def _pattern(glob: str) -> re.Pattern[str]:
    """Return the names that a glob means; `*` and `?` stay within a folder, `**` does not."""
    parts = re.split(r"(\*\*|\*|\?)", glob)
    flags = re.DOTALL | (re.IGNORECASE if glob == _EVERY_FILE else 0)
    return re.compile("".join(_WILDCARDS.get(part, re.escape(part)) for part in parts), flags)


def _bytes_to_read(file: ListedFile) -> int:
    is_readable = file.entry.kind == "file" and file.entry.size_bytes <= MAX_IMAGE_BYTES
    return file.entry.size_bytes if is_readable else 0


@dataclass(eq=False)
class ReadSideFiles(beam.PTransform):
    """Joined files -> the same, with the bytes of annotation files, in any order.

    What is read must be what was listed.

    Attributes:
        roots: URI per name of the annotation files' roots.
        access: how stores are reached.
    """

    roots: Mapping[str, str]
    access: Access = DEFAULT_ACCESS

    def expand(self, files: beam.PCollection[JoinedFiles]) -> beam.PCollection[JoinedFiles]:
        """Read every file."""
        read = _ReadTexts(self.roots, self.access, operator.attrgetter("second"), _with_texts)
        return files | "Read" >> beam.ParDo(read).with_output_types(JoinedFiles)


@dataclass(eq=False)
class NameByField(beam.PTransform):
    """Named files -> the same, annotation files under the names of the images that they name.

    They are read for it, and again once they are joined, so that nothing but names is held.

    Attributes:
        field_path: keys with dots between.
        roots: URI per name of the annotation files' roots.
        access: how stores are reached.
    """

    field_path: str
    roots: Mapping[str, str]
    access: Access = DEFAULT_ACCESS

    def expand(self, files: beam.PCollection[NamedFile]) -> beam.PCollection[NamedFile]:
        """Read and name every annotation file."""
        name = functools.partial(_name_by_field, field_path=self.field_path)
        read = _ReadTexts(self.roots, self.access, _annotation_file, name)
        return files | "Read" >> beam.ParDo(read).with_output_types(NamedFile)


def _with_texts(files: JoinedFiles, texts: list[bytes]) -> JoinedFiles:
    return msgspec.structs.replace(files, texts=texts)


def _annotation_file(named: NamedFile) -> list[ListedFile]:
    return [named.file] if named.side == 1 else []


def _name_by_field(named: NamedFile, texts: list[bytes], field_path: str) -> NamedFile:
    if not texts:
        return named
    own_name, value = named.file.entry.name, value_at(texts[0], field_path)
    # A NUL is in no listed name: what names no image meets none.
    name = named_image(own_name, value) if value else f"\0{own_name}"
    return msgspec.structs.replace(named, name=name)


class _ReadTexts(beam.DoFn):
    """Reads the annotation files of each element, and makes a result of both.

    Small files are bound by latency: a bundle's are read by several threads, a bounded number and
    size of them at a time.
    """

    def __init__(
        self,
        roots: Mapping[str, str],
        access: Access,
        files_of: Callable[[Any], list[ListedFile]],
        make: Callable[[Any, list[bytes]], Any],
    ) -> None:
        self._roots, self._access = roots, access
        self._files_of, self._make = files_of, make

    def setup(self) -> None:
        self._storages = {
            name: open_storage(uri, self._access) for name, uri in self._roots.items()
        }
        local = all(map(is_local, self._roots.values()))
        self._pool = ThreadPoolExecutor(DEFAULT_READERS if local else DEFAULT_REMOTE_READERS)

    def start_bundle(self) -> None:
        self._held: list[Any] = []
        self._held_bytes = 0

    def process(self, element: Any) -> Iterator:
        self._held.append(element)
        self._held_bytes += sum(map(_bytes_to_read, self._files_of(element)))
        if len(self._held) >= _MAX_HELD_FILES or self._held_bytes >= _MAX_HELD_BYTES:
            yield from self._release()

    def finish_bundle(self) -> Iterator:
        yield from map(GlobalWindows.windowed_value_at_end_of_window, self._release())

    def teardown(self) -> None:
        self._pool.shutdown()

    def _release(self) -> Iterator:
        held, self._held, self._held_bytes = self._held, [], 0
        return self._pool.map(self._read, held)

    def _read(self, element: Any) -> Any:
        return self._make(element, [self._text(file) for file in self._files_of(element)])

    def _text(self, file: ListedFile) -> bytes:
        if not _bytes_to_read(file):
            return b""
        entry = file.entry
        blob = Blob(file.root, entry.name, entry.size_bytes, entry.pin, entry.crc32c)
        return read_blob(self._storages[file.root], blob)
