"""Annotation files next to images: their names, and their bytes, many read at once."""

import functools
import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import apache_beam as beam
import msgspec
from apache_beam.transforms.window import GlobalWindows

from schemas.annotations.file_names import blob_name
from schemas.annotations.side_files import value_at
from schemas.samples import Blob
from transforms import coders
from transforms.blobs import MAX_IMAGE_BYTES
from transforms.gate import DEFAULT_READERS, DEFAULT_REMOTE_READERS
from transforms.sources.join_files import OTHER_SIDE, JoinedFiles, NamedFile
from transforms.sources.listed_files import HIDDEN, ListedFile, is_folder, why_skipped
from transforms.sources.read_blobs import read_blob
from transforms.storage import DEFAULT_ACCESS, Access, is_local, open_storage

_ANNOTATIONS = "annotations"
_SUFFIX = ".json"
_EVERY_FILE = f"**{_SUFFIX}"
_MAX_HELD_FILES = 512
_MAX_HELD_BYTES = 32 << 20
_WILDCARDS = {"**": ".*", "*": "[^/]*", "?": "[^/]"}


class SideText(msgspec.Struct, frozen=True, array_like=True):
    """The files of a name, with what those of annotations hold.

    Attributes:
        files: as joined.
        texts: bytes of each of `files.second`; empty for one that is no file, or too large.
    """

    files: JoinedFiles
    texts: list[bytes]


coders.register(SideText)


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


@functools.cache
def _pattern(glob: str) -> re.Pattern[str]:
    """Return the names that a glob means; `*` and `?` stay within a folder, `**` does not."""
    parts = re.split(r"(\*\*|\*|\?)", glob)
    flags = re.DOTALL | (re.IGNORECASE if glob == _EVERY_FILE else 0)
    return re.compile("".join(_WILDCARDS.get(part, re.escape(part)) for part in parts), flags)


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


@dataclass(eq=False)
class ReadSideFiles(beam.PTransform):
    """Joined files -> the same, with the bytes of annotation files, in any order.

    Small files are bound by latency: a bundle's are read by several threads, a bounded number and
    size of them at a time. What is read must be what was listed.

    Attributes:
        roots: URI per name of the annotation files' roots.
        access: how stores are reached.
    """

    roots: Mapping[str, str]
    access: Access = DEFAULT_ACCESS

    def expand(self, files: beam.PCollection[JoinedFiles]) -> beam.PCollection[SideText]:
        """Read every file."""
        return files | "Read" >> beam.ParDo(_ReadTexts(self.roots, self.access))


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
        images = files | "Images" >> beam.Filter(_is_no_annotation)
        named = (
            files
            | "AnnotationFiles" >> beam.FlatMap(_alone)
            | "ReadOnce" >> ReadSideFiles(self.roots, self.access)
            | "NameByField" >> beam.Map(_name_by_field, self.field_path)
        )
        return (images, named) | "AllFiles" >> beam.Flatten()


def _is_no_annotation(named: NamedFile) -> bool:
    return named.side != 1


def _alone(named: NamedFile) -> Iterator[JoinedFiles]:
    if named.side == 1:
        yield JoinedFiles(named.source, named.name, second=[named.file])


def _name_by_field(side: SideText, field_path: str) -> NamedFile:
    file, text = side.files.second[0], side.texts[0]
    own_name, value = file.entry.name, value_at(text, field_path)
    # A NUL is in no listed name: what names no image meets none.
    name = named_image(own_name, value) if value else f"\0{own_name}"
    return NamedFile(side.files.source, name, 1, file)


class _ReadTexts(beam.DoFn):
    """Reads what a bundle names, some files at a time."""

    def __init__(self, roots: Mapping[str, str], access: Access) -> None:
        self._roots = roots
        self._access = access

    def setup(self) -> None:
        self._storages = {
            name: open_storage(uri, self._access) for name, uri in self._roots.items()
        }
        local = all(map(is_local, self._roots.values()))
        self._readers = DEFAULT_READERS if local else DEFAULT_REMOTE_READERS
        self._pool = ThreadPoolExecutor(self._readers)

    def start_bundle(self) -> None:
        self._held: list[JoinedFiles] = []
        self._held_bytes = 0

    def process(self, files: JoinedFiles) -> Iterator[SideText]:
        self._held.append(files)
        self._held_bytes += sum(map(_bytes_to_read, files.second))
        if len(self._held) >= _MAX_HELD_FILES or self._held_bytes >= _MAX_HELD_BYTES:
            yield from self._release()

    def finish_bundle(self) -> Iterator:
        yield from map(GlobalWindows.windowed_value_at_end_of_window, self._release())

    def teardown(self) -> None:
        self._pool.shutdown()

    def _release(self) -> Iterator[SideText]:
        held, self._held, self._held_bytes = self._held, [], 0
        parts = [held[start :: self._readers] for start in range(self._readers)]
        return itertools.chain.from_iterable(self._pool.map(self._read, parts))

    def _read(self, several: Sequence[JoinedFiles]) -> list[SideText]:
        return [SideText(files, [self._text(file) for file in files.second]) for files in several]

    def _text(self, file: ListedFile) -> bytes:
        if not _bytes_to_read(file):
            return b""
        entry = file.entry
        blob = Blob(file.root, entry.name, entry.size_bytes, entry.pin, entry.crc32c)
        return read_blob(self._storages[file.root], blob)


def _bytes_to_read(file: ListedFile) -> int:
    is_readable = file.entry.kind == "file" and file.entry.size_bytes <= MAX_IMAGE_BYTES
    return file.entry.size_bytes if is_readable else 0
