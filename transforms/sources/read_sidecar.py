"""Samples from images with sidecar files: one JSON annotation file per image.

`SideNames` gives images and annotation files the same join name. With `--join_by`, `ReadTexts` and
`name_by_field` replace it by the name in a field. `JoinFiles` joins on this name, `ReadTexts` reads
the annotation files, and `SideReader` makes the samples. `read_objects` and `read_values` parse an
annotation file, for layouts of objects and for the layout of tables.
"""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
import msgspec

from beam_tfrec.schemas.annotations.coco_file import CocoImage, blob_name
from beam_tfrec.schemas.annotations.coco_objects import ObjectOpener
from beam_tfrec.schemas.annotations.side_files import SideFile, cells_at, parse_side_file, value_at
from beam_tfrec.schemas.columns import ColumnFacts, ColumnType, kind_of_value, matches, values_of
from beam_tfrec.schemas.faults import Reason, Rejected
from beam_tfrec.schemas.fields import AttributedFields, BadAnnotation, PictureFields, fields_of_row
from beam_tfrec.schemas.samples import Blob, Sample, mask_root, pack
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms import storage
from beam_tfrec.transforms.sources.join_files import JoinedFiles, NameList
from beam_tfrec.transforms.sources.listing import (
    HIDDEN,
    MAX_IMAGE_BYTES,
    ListedFile,
    is_folder,
    pin_all,
    why_skipped,
)
from beam_tfrec.transforms.sources.read_samples import Item, SplitTally, note_skipped, reject_file

STAGE = "read_sidecar"
_MAX_HELD_BYTES = 32 << 20
_BYTES_EACH = 64 << 10  # added to each size, so that a batch has at most 512 files


class SideSample(msgspec.Struct, frozen=True):
    """Content of an annotation file.

    Attributes:
        note: note with class names and other facts, without split.
        fields: as in `Sample`.
        payload: as in `Sample`.
        annotation_ids: as in `Sample`.
        bad: dropped annotations, with reasons.
    """

    note: SplitTally
    fields: bytes
    payload: bytes = b""
    annotation_ids: tuple[int | str, ...] = ()
    bad: list[BadAnnotation] = []

    @property
    def all_ids(self) -> tuple[int | str, ...]:
        """Ids of all annotations, including dropped ones."""
        return (*self.annotation_ids, *(bad.annotation_id for bad in self.bad))

    def items(
        self, at: Sample, stage: str, entries: Iterable[storage.Entry | None] = (), where: str = ""
    ) -> Iterator[Item]:
        """Yield the sample, a reject of each dropped annotation, and the note.

        Args:
            at: sample without fields.
            stage: name of the reader.
            entries: listed entries of its blobs; none if they are pinned.
            where: beginning of the rejects' details.
        """
        content = {"fields": self.fields, "payload": self.payload}
        sample = msgspec.structs.replace(at, **content, annotation_ids=self.annotation_ids)
        yield pin_all(sample, entries)
        for one, code, detail in self.bad:
            dropped = msgspec.structs.replace(at, annotation_ids=(one,))
            yield dropped.reject(stage, code, where + detail)
        yield msgspec.structs.replace(self.note, split=at.split)


def read_objects(
    text: bytes | None,
    parse: Callable[[bytes], SideFile] = parse_side_file,
    *,
    segmentations: bool = False,
) -> SideSample | Reason:
    """Parse an annotation file for layouts of objects.

    Args:
        text: content of the file; None for an image without a file.
        parse: parser of the file's format.
        segmentations: whether the sample needs segmentations.
    """
    # An image without a file has no objects, and any size.
    try:
        side = SideFile(0, 0, [], []) if text is None else parse(text)
    except ValueError as error:
        return "E-ANN-FILE", str(error)
    return open_objects(side, segmentations=segmentations)


def open_objects(side: SideFile, *, segmentations: bool = False) -> SideSample:
    """Return the sample of parsed annotations, with their faults and notes."""
    opener = ObjectOpener({entry.category_id: side.num_keypoints for entry in side.entries})
    image: CocoImage = CocoImage(id=0, width=side.width_px, height=side.height_px)
    opened, bad = opener.open_all(side.entries, image, segmentations=segmentations)
    objects = [one.fields for one in opened]
    names = sorted({of.category_id for of in objects if isinstance(of.category_id, str)})
    payload = pack([one.segmentation for one in opened]) if segmentations else b""
    ids = tuple(one.annotation_id for one in opened)
    attributes = [side.attributes.get(annotation_id, {}) for annotation_id in ids]
    fields = PictureFields(image.width, image.height, objects)
    if any(attributes):  # other samples keep the bytes that they had before attributes
        fields = AttributedFields(image.width, image.height, objects, attributes=attributes)
    opener.repairs.update(side.repairs)
    found = sorted({"boxes", *(name for of_object in attributes for name in of_object)})
    found += ["keypoints"] if side.num_keypoints else []
    note = SplitTally("", class_names=names, found=found, repairs=opener.repairs)
    return SideSample(note, pack(fields), payload, ids, [*side.bad, *bad])


def read_values(
    text: bytes | None, types: Mapping[str, ColumnType], others: Mapping[str, str] | None = None
) -> SideSample | Reason:
    """Read fields of an annotation file, for the layout of tables.

    Args:
        text: content of the file; None for an image without a file.
        types: types of the fields, by path; a path has keys with dots in between.
        others: values of fields that are not in the file.
    """
    try:
        cells = {} if text is None else cells_at(text, types.keys())
    except ValueError as error:
        return "E-ANN-FILE", str(error)
    cells |= others or {}
    row: dict[str, Any] = {}
    for path, wanted in types.items():
        try:
            kind_of_value(cells.get(path))  # raises for values that no feature can hold
            values = values_of(cells.get(path), wanted)
        except ValueError as error:
            return "E-ROW-TYPE", f"field {path!r} is {wanted} and holds {error}"
        if cells.get(path) is not None and values is not None:
            row[path] = list(values) if wanted.repeated else values[0]
    columns = [ColumnFacts(path, kind_of_value(row.get(path)), int(path in row)) for path in types]
    return SideSample(SplitTally("", columns=columns, rows=1), *fields_of_row(row))


@dataclass(frozen=True)
class SideReader:
    """Makes the samples of images and their annotation files.

    Attributes:
        splitting: rule that decides the split of a sample.
        read: parser of an annotation file; gets None for an image without one.
        allow_unannotated: whether an image without a file is a sample instead of a reject.
        skip_imageless: per source, globs of annotation files that are rejected without an image;
            others of the source are only counted. A source that is not named rejects all.
        join_by: field with the image's name; empty if the files' own names are compared.
        masks: kinds of PNGs that each image needs, in the order of the sample's blobs.
    """

    splitting: Splitting
    read: Callable[[bytes | None], SideSample | Reason]
    allow_unannotated: bool = False
    join_by: str = ""
    skip_imageless: Mapping[str, Sequence[str]] = field(default_factory=dict)
    masks: tuple[str, ...] = ()

    def __call__(self, piece: tuple[JoinedFiles, list[bytes]]) -> Iterator[Item]:
        """Yield the sample of an image and its annotation file, or rejects.

        Args:
            piece: files with one join name, and the content of each annotation file.
        """
        joined, texts = piece
        source, images = joined.source, joined.first
        files = list(zip(joined.second, texts, strict=True))
        for other in joined.others:
            yield note_skipped(self.splitting, source, other.entry.name)
        twice = f"{len(images)} images and {len(files)} annotation files have its name"
        fault = ("E-SRC-TWICE", twice) if images else ("E-IMG-MISSING", "no such image")
        if not (images or files or joined.others):
            named = ListedFile(source, storage.Entry(joined.name, 0, ""))
            by = "a list names it, and no image has this name before its extension"
            by = "a PNG of masks has its name" if joined.masks else by
            yield self._reject(named, ("E-IMG-MISSING", by))
        if len(images) == len(files) == 1:
            file, text = files.pop()
            yield from self._items(joined, images[0], self._open(file, text), text)
        elif files or not self.allow_unannotated:
            missing = "no file names it" if self.join_by else "no annotation file has its name"
            why = fault if files else ("E-ANN-MISSING", missing)
            yield from (self._reject(image, why) for image in images)
        else:
            for image in images:
                yield from self._items(joined, image, self.read(None))
        own = self.skip_imageless.get(source, ("",))
        for file, text in files:
            name = file.entry.name
            if images or any(matches(name, glob) for glob in own):
                yield self._imageless(file, text, fault)
            else:
                yield note_skipped(self.splitting, source, name, "label_without_image")

    def _items(
        self,
        joined: JoinedFiles,
        image: ListedFile,
        opened: SideSample | Reason,
        text: bytes | None = None,
    ) -> Iterator[Item]:
        """Yield the pinned sample of an image, its dropped annotations and its note."""
        source, masks = joined.source, {file.root: file.entry for file in joined.masks}
        if isinstance(opened, tuple):
            yield self._reject(image, opened)
            return
        key = image.entry.name
        if text is None:
            split = self.splitting.split_of_file(source, key)
        else:
            fields = {name: value_at(text, name) for name in self.splitting.fields.values()}
            split = self.splitting.split_of(source, key, fields, key)
        roots = [mask_root(source, kind) for kind in self.masks]
        blobs = (Blob(image.root, key), *(Blob(root, f"{joined.name}.png") for root in roots))
        at = Sample(split, key, image.position, blobs, b"")
        yield from opened.items(at, STAGE, [image.entry, *map(masks.get, roots)])
        if self.masks:
            yield SplitTally(split, found=[*self.masks])

    def _imageless(self, file: ListedFile, text: bytes, fault: Reason) -> Rejected:
        """Return the reject of an annotation file that is not paired with one image."""
        opened = self._open(file, text)
        if isinstance(opened, tuple):
            return self._reject(file, opened)
        code, detail = fault
        if self.join_by:
            detail = f"{self.join_by} {value_at(text, self.join_by)!r}: {detail}"
        return self._reject(file, (code, detail), opened.all_ids)

    def _open(self, file: ListedFile, text: bytes) -> SideSample | Reason:
        """Parse an annotation file, or return why it cannot be read."""
        why = _why_unread(file.entry)
        opened = ("E-ANN-FILE", why) if why else self.read(text)
        if isinstance(opened, tuple):
            code, detail = opened
            return code, f"{file.entry.name}: {detail}"
        return opened

    def _reject(self, file: ListedFile, fault: Reason, ids: tuple[int | str, ...] = ()) -> Rejected:
        return reject_file(self.splitting, file, STAGE, fault, ids)


@dataclass(frozen=True)
class SideNames:
    """Computes join names: the names of images and annotation files without their extensions.

    The images' root has the name of the source, the annotation files' root `{source}/annotations`,
    and roots of masks have names of `mask_root`.

    Attributes:
        globs: globs of annotation files' names, by root; none for all names with the suffix.
        whole: whether to keep images' extensions, since a field has them.
        suffix: extension of annotation files, in lower case; names may have it in any case.
        lists: lists of the images to read, by source; none for all images.
        masks: kinds of roots of PNGs of masks.
    """

    globs: Mapping[str, str]
    whole: bool = False
    suffix: str = ".json"
    lists: Mapping[str, NameList] = field(default_factory=dict)
    masks: tuple[str, ...] = field(default=(), kw_only=True)

    def __call__(self, file: ListedFile) -> Iterator[JoinedFiles]:
        """Yield a listed file with its join name; nothing for folders and unused files."""
        name = file.entry.name
        source, _, kind = file.root.partition("/")
        if file.entry.kind == "directory":  # a folder that could be listed
            return
        stem = self.stem(file)
        is_listed = self.is_listed(file, stem)
        if kind in self.masks:
            if is_listed and name.endswith(".png") and not why_skipped(name):
                yield JoinedFiles(source, stem, masks=(file,))
        elif kind:
            glob = self.globs.get(file.root)
            is_meant = matches(name, glob) if glob else name.lower().endswith(self.suffix)
            if is_listed and (is_meant or is_folder(file.entry)) and why_skipped(name) != HIDDEN:
                yield JoinedFiles(source, stem, second=(file,))
        elif not is_listed or (why_skipped(name) and not is_folder(file.entry)):
            if not name.lower().endswith(self.suffix):  # annotation files may be in the same folder
                yield JoinedFiles(source, f"{file.root}/{name}", others=(file,))
        else:
            yield JoinedFiles(source, name if self.whole else stem, first=(file,))

    def stem(self, file: ListedFile) -> str:
        """Return a file's name without extension, equal for an image and its annotation file."""
        return posixpath.splitext(file.entry.name)[0]

    def is_listed(self, file: ListedFile, stem: str) -> bool:
        """Return whether the list of the file's source has the stem, if there is a list."""
        names = self.lists.get(file.root.partition("/")[0])
        return names is None or stem in names.names

    def listed(self, source: str) -> Iterator[JoinedFiles]:
        """Yield the names in the list of a source, so that names without an image are found."""
        for name in sorted(self.lists[source].names):
            yield JoinedFiles(source, name)

    def reads(self, file: ListedFile) -> bool:
        """Return whether a listed file is an image or an annotation file."""
        return file.entry.kind == "file" and any(not named.others for named in self(file))


def named_image(side_name: str, value: str) -> str:
    r"""Return the name, below the image root, of the image in an annotation file's field.

    A name without a folder means the annotation file's own sub-folder. A path out of the image
    root, such as one from another machine, is reduced to its last part.

    Args:
        side_name: name of the annotation file.
        value: value of the field.

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


def name_by_field(piece: tuple[JoinedFiles, list[bytes]], field_path: str) -> JoinedFiles:
    """Set an annotation file's join name to the image's name in a field; return images unchanged.

    Args:
        piece: named file; with its content if it is an annotation file.
        field_path: path of the field; keys with dots in between.
    """
    named, texts = piece
    if not texts:
        return named
    own_name, value = named.second[0].entry.name, value_at(texts[0], field_path)
    # Listed names have no NUL, so a file without an image's name is joined with nothing.
    name = named_image(own_name, value) if value else f"\0{own_name}"
    return msgspec.structs.replace(named, name=name)


def _why_unread(entry: storage.Entry) -> str:
    """Return why an annotation file cannot be read, or an empty text if it can."""
    if entry.kind != "file":
        return f"a {entry.kind}"
    too_large = f"{entry.size_bytes} bytes, the limit is {MAX_IMAGE_BYTES}"
    return too_large if entry.size_bytes > MAX_IMAGE_BYTES else ""


def _bytes_of_all(files: JoinedFiles) -> int:
    """Return the weight of files in a batch, in bytes."""
    read = (file.entry for file in files.second if not _why_unread(file.entry))
    return _BYTES_EACH + sum(entry.size_bytes for entry in read)


@dataclass(eq=False)
class ReadTexts(beam.PTransform):
    """Files before or after the join -> each with its annotation files' contents, in any order.

    A file that has changed since the listing stops the run. The content of a file that cannot be
    read, such as a folder or a file above the size limit, is empty.

    Attributes:
        roots: URIs of the annotation files' roots, by root name.
        access: credentials and limits for stores.
    """

    roots: Mapping[str, str]
    access: storage.Access = storage.DEFAULT_ACCESS

    def expand(
        self, files: beam.PCollection[JoinedFiles]
    ) -> beam.PCollection[tuple[JoinedFiles, list[bytes]]]:
        """Read every annotation file."""
        read = beam.ParDo(_ReadTexts(self.roots, self.access))
        # With equal minimum and maximum, Beam does not adapt the size to measured times.
        hold = beam.BatchElements(
            _MAX_HELD_BYTES, _MAX_HELD_BYTES, element_size_fn=_bytes_of_all, record_metrics=False
        )
        return files | "Hold" >> hold | "Read" >> read


@dataclass(eq=False)
class _ReadTexts(beam.DoFn):
    """Reads annotation files with several threads, since latency dominates for small files."""

    roots: Mapping[str, str]
    access: storage.Access

    def setup(self) -> None:
        self._storages = {
            name: storage.open_storage(uri, self.access) for name, uri in self.roots.items()
        }
        self._pool = ThreadPoolExecutor(storage.DEFAULT_REMOTE_READERS)

    def teardown(self) -> None:
        self._pool.shutdown()

    def process(self, held: list[JoinedFiles]) -> Iterator[tuple[JoinedFiles, list[bytes]]]:
        yield from zip(held, self._pool.map(self._texts, held), strict=True)

    def _texts(self, files: JoinedFiles) -> list[bytes]:
        return [
            b""
            if _why_unread(file.entry)
            else self._storages[file.root].read(file.entry.name, file.entry, None)
            for file in files.second
        ]
