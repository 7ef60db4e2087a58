"""Samples of images that have a JSON file of annotations each."""

import posixpath
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import msgspec

from beam_tfrec.schemas.annotations.coco_file import CocoImage, blob_name
from beam_tfrec.schemas.annotations.coco_objects import Fault, ObjectOpener
from beam_tfrec.schemas.annotations.side_files import (
    SideFile,
    SideFormat,
    cells_at,
    parse_side_file,
    value_at,
)
from beam_tfrec.schemas.columns import ColumnFacts, ColumnType, kind_of_value, matches, values_of
from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.fields import BadAnnotation, PictureFields, fields_of_row
from beam_tfrec.schemas.samples import Blob, Sample, pack
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms.sources.join_files import OTHER_SIDE, JoinedFiles, NamedFile
from beam_tfrec.transforms.sources.list_blobs import (
    HIDDEN,
    MAX_IMAGE_BYTES,
    ListedFile,
    is_folder,
    pin_sample,
    why_skipped,
)
from beam_tfrec.transforms.sources.read_samples import Item, SplitSource, note_skipped
from beam_tfrec.transforms.storage import (
    DEFAULT_ACCESS,
    DEFAULT_REMOTE_READERS,
    Access,
    Entry,
    open_storage,
)

_SUFFIX = ".json"
_MAX_HELD_BYTES = 32 << 20
_BYTES_EACH = 64 << 10  # at most 512 are held


class SideSample(msgspec.Struct, frozen=True):
    """What an annotation file gives.

    Attributes:
        sample: without its split, key, position and image.
        bad: annotations that are dropped, with the reasons.
        note: on what else the file holds, without its split.
    """

    sample: Sample
    bad: list[BadAnnotation]
    note: SplitSource


def read_objects(
    text: bytes | None, format: SideFormat | None = None, *, segmentations: bool = False
) -> SideSample | Fault:
    """Return the objects of a file, for layouts of these.

    Args:
        text: the file's bytes; None for an image without a file.
        format: of the file; None to see it by its content.
        segmentations: the sample carries them.
    """
    # Without a file, an image of any size without objects.
    side = SideFile(0, 0, [], []) if text is None else parse_side_file(text, format)
    if isinstance(side, str):
        return "E-ANN-FILE", side
    opener = ObjectOpener({entry.category_id: 0 for entry in side.entries})
    image: CocoImage = CocoImage(id=0, width=side.width_px, height=side.height_px)
    opened, bad = opener.open_all(side.entries, image, segmentations=segmentations)
    names = sorted({str(entry.category_id) for _, entry, _ in opened})
    fields = PictureFields(image.width, image.height, [found for _, found, _ in opened])
    payload = pack([outline for _, _, outline in opened]) if segmentations else b""
    ids = tuple(annotation_id for annotation_id, _, _ in opened)
    note = SplitSource("", class_names=names, found=["boxes"], repairs=opener.repairs)
    return SideSample(_sample(pack(fields), payload, ids), [*side.bad, *bad], note)


def read_values(text: bytes | None, types: Mapping[str, ColumnType]) -> SideSample | Fault:
    """Return the values of chosen fields of a file, for the layout of tables.

    Args:
        text: the file's bytes; None for an image without a file.
        types: of the fields, by their paths: keys with dots between.
    """
    cells = {} if text is None else cells_at(text, types.keys())
    if isinstance(cells, str):
        return "E-ANN-FILE", cells
    row: dict[str, Any] = {}
    for path, wanted in types.items():
        try:
            kind_of_value(cells.get(path))  # what no feature could hold
            values = values_of(cells.get(path), wanted)
        except ValueError as error:
            return "E-ROW-TYPE", f"field {path!r} is {wanted} and holds {error}"
        if cells.get(path) is not None and values is not None:
            row[path] = list(values) if wanted.repeated else values[0]
    columns = [ColumnFacts(path, kind_of_value(row.get(path)), int(path in row)) for path in types]
    return SideSample(_sample(*fields_of_row(row)), [], SplitSource("", columns=columns, rows=1))


def _sample(fields: bytes, payload: bytes, annotation_ids: tuple[int | str, ...] = ()) -> Sample:
    return Sample("", "", -1, (), fields, annotation_ids, payload=payload)


@dataclass(frozen=True)
class SideReader:
    """Reads an image with its annotation file as a sample.

    Attributes:
        splitting: which split a sample belongs to.
        read: returns what a sample carries of its annotation file's bytes, or of None.
        allow_unannotated: an image without a file is a sample without annotations.
        join_by: the field by which files name their images; empty where their own names do.
    """

    splitting: Splitting
    read: Callable[[bytes | None], SideSample | Fault]
    allow_unannotated: bool = False
    join_by: str = ""

    def __call__(self, piece: tuple[JoinedFiles, list[bytes]]) -> Iterator[Item]:
        """Yield the samples of the files of a name, and why there are none of others.

        Args:
            piece: the files, and the bytes of each annotation file.
        """
        joined, texts = piece
        source, images = joined.source, joined.first
        files = list(zip(joined.second, texts, strict=True))
        for other in joined.others:
            yield note_skipped(self.splitting, source, other.entry.name)
        twice = f"{len(images)} images and {len(files)} annotation files have its name"
        fault = ("E-SRC-TWICE", twice) if images else ("E-IMG-MISSING", "no such image")
        if len(images) == len(files) == 1:
            file, text = files.pop()
            yield from self._items(source, images[0], self._open(file, text), text)
        elif files or not self.allow_unannotated:
            missing = "no file names it" if self.join_by else "no annotation file has its name"
            why = fault if files else ("E-ANN-MISSING", missing)
            yield from (self._rejected(source, image, *why) for image in images)
        else:
            for image in images:
                yield from self._items(source, image, self.read(None))
        for file, text in files:
            yield self._imageless(source, file, text, *fault)

    def _items(
        self,
        source: str,
        image: ListedFile,
        opened: SideSample | Fault,
        text: bytes | None = None,
    ) -> Iterator[Item]:
        """Yield the sample of an image as listed, and its dropped annotations."""
        if isinstance(opened, tuple):
            yield self._rejected(source, image, *opened)
            return
        key = image.entry.name
        if text is None:
            split = self.splitting.split_of_other(source, key)
        else:
            fields = {name: value_at(text, name) for name in self.splitting.fields.values()}
            split = self.splitting.split_for(source, key, fields, key)
        blobs = (Blob(image.root, key),)
        sample = msgspec.structs.replace(
            opened.sample, split=split, key=key, position=image.position, blobs=blobs
        )
        yield pin_sample(sample, image.entry)
        for bad in opened.bad:
            ids = (bad.annotation_id,)
            yield self._rejected(source, image, bad.code, bad.detail, ids, split)
        yield msgspec.structs.replace(opened.note, split=split)

    def _imageless(
        self, source: str, file: ListedFile, text: bytes, code: str, detail: str
    ) -> Rejected:
        """Return the reject of an annotation file, with the annotations that are lost with it."""
        opened = self._open(file, text)
        if isinstance(opened, tuple):
            return self._rejected(source, file, *opened)
        if self.join_by:
            detail = f"{self.join_by} {value_at(text, self.join_by)!r}: {detail}"
        ids = *opened.sample.annotation_ids, *(bad.annotation_id for bad in opened.bad)
        return self._rejected(source, file, code, detail, ids)

    def _open(self, file: ListedFile, text: bytes) -> SideSample | Fault:
        """Return what an annotation file says, or why it says nothing."""
        why = _why_unread(file.entry)
        opened = ("E-ANN-FILE", why) if why else self.read(text)
        if isinstance(opened, tuple):
            code, detail = opened
            return code, f"{file.entry.name}: {detail}"
        return opened

    def _rejected(
        self,
        source: str,
        file: ListedFile,
        code: str,
        detail: str,
        annotation_ids: tuple[int | str, ...] = (),
        split: str = "",
    ) -> Rejected:
        name = file.entry.name
        return Rejected(
            code=code,
            stage="read_sidecar",
            split=split or self.splitting.split_of_other(source, name),
            key=name,
            annotation_ids=annotation_ids,
            file_name=name,
            detail=detail,
        )


@dataclass(frozen=True)
class SideNames:
    """Names images and annotation files by their names below their roots, extensions aside.

    A source's images are of the root of its name, its annotation files of `{source}/annotations`.

    Attributes:
        globs: of annotation files' names per source; empty for all that end in `.json`, in upper or
            lower case.
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
            glob = self.globs[source]
            is_meant = matches(name, glob) if glob else name.lower().endswith(_SUFFIX)
            if (is_meant or is_folder(file.entry)) and why_skipped(name) != HIDDEN:
                yield NamedFile(source, posixpath.splitext(name)[0], 1, file)
        elif why_skipped(name) and not is_folder(file.entry):
            if not name.lower().endswith(_SUFFIX):  # which may be its annotations, in one folder
                yield NamedFile(source, f"{file.root}/{name}", OTHER_SIDE, file)
        else:
            yield NamedFile(source, name if self.whole else posixpath.splitext(name)[0], 0, file)

    def reads(self, file: ListedFile) -> bool:
        """Return whether a listed file is an image or an annotation file."""
        return file.entry.kind == "file" and any(named.side != OTHER_SIDE for named in self(file))


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


def name_by_field(piece: tuple[NamedFile, list[bytes]], field_path: str) -> NamedFile:
    """Return a file, one of annotations under the name of the image that a field of it names.

    Args:
        piece: the file, and its bytes where it is one of annotations.
        field_path: keys with dots between.
    """
    named, texts = piece
    if not texts:
        return named
    own_name, value = named.file.entry.name, value_at(texts[0], field_path)
    # A NUL is in no listed name: what names no image meets none.
    name = named_image(own_name, value) if value else f"\0{own_name}"
    return msgspec.structs.replace(named, name=name)


def _why_unread(entry: Entry) -> str:
    """Return why an annotation file is not read, nothing where it is."""
    if entry.kind != "file":
        return f"a {entry.kind}"
    too_large = f"{entry.size_bytes} bytes, the limit is {MAX_IMAGE_BYTES}"
    return too_large if entry.size_bytes > MAX_IMAGE_BYTES else ""


def _bytes_of_all(files: NamedFile | JoinedFiles) -> int:
    """Return how many bytes files count for among those that are read at once."""
    read = (file.entry for file in files.second if not _why_unread(file.entry))
    return _BYTES_EACH + sum(entry.size_bytes for entry in read)


@dataclass(eq=False)
class ReadTexts(beam.PTransform):
    """Named or joined files -> each with the bytes of its annotation files, in any order.

    What is read must be what was listed. A file that cannot be read has no bytes.

    Attributes:
        roots: URI per name of the annotation files' roots.
        access: how stores are reached.
    """

    roots: Mapping[str, str]
    access: Access = DEFAULT_ACCESS

    def expand(
        self, files: beam.PCollection[NamedFile | JoinedFiles]
    ) -> beam.PCollection[tuple[Any, list[bytes]]]:
        """Read every annotation file."""
        read = beam.ParDo(_ReadTexts(self.roots, self.access))
        # As the least size is the largest too, Beam does not adapt it by the clock.
        hold = beam.BatchElements(
            _MAX_HELD_BYTES, _MAX_HELD_BYTES, element_size_fn=_bytes_of_all, record_metrics=False
        )
        return files | "Hold" >> hold | "Read" >> read


class _ReadTexts(beam.DoFn):
    """Reads annotation files by several threads: small ones are bound by latency."""

    def __init__(self, roots: Mapping[str, str], access: Access) -> None:
        self._roots, self._access = roots, access

    def setup(self) -> None:
        self._storages = {
            name: open_storage(uri, self._access) for name, uri in self._roots.items()
        }
        self._pool = ThreadPoolExecutor(DEFAULT_REMOTE_READERS)

    def teardown(self) -> None:
        self._pool.shutdown()

    def process(self, held: list[Any]) -> Iterator[tuple[Any, list[bytes]]]:
        yield from zip(held, self._pool.map(self._texts, held), strict=True)

    def _texts(self, files: NamedFile | JoinedFiles) -> list[bytes]:
        return [
            b""
            if _why_unread(file.entry)
            else self._storages[file.root].read(file.entry.name, file.entry, None)
            for file in files.second
        ]
