"""Samples from folders of classes: `label/name.jpg`, with any folders between."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from schemas.faults import Rejected
from schemas.samples import Blob, Sample, pack
from schemas.source_fields import ClassFields
from transforms.blobs import MAX_IMAGE_BYTES, pin_sample
from transforms.sources.listed_files import ListedFile
from transforms.sources.split_sources import Item, SourceNote
from transforms.splits import Splitting
from transforms.storage import Entry

STAGE = "read_folder"
FOLDER = "folder"
"""The field of a sample that splits may go by: the folders between its class and its file."""

HIDDEN = "hidden"
IMAGE_EXTENSIONS = frozenset(
    {
        *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "gif", "bmp", "dib", "webp", "tif", "tiff"),
        *("avif", "heic", "heif", "jp2", "j2k", "jxl", "ico", "tga", "ppm", "pgm", "pbm", "pnm"),
        "svg",
    }
)
"""In lower case. Which of these formats a file has, and whether it is one that TensorFlow reads, is
told by its content alone."""


@dataclass(frozen=True)
class FolderReader:
    """Reads a listed file as the sample that it is.

    Attributes:
        splitting: which split a sample belongs to.
    """

    splitting: Splitting

    def __call__(self, file: ListedFile) -> Iterator[Item]:
        """Yield the sample of a file, pinned as listed, or why there is none, and its class."""
        yield from read_folder_file(file, self.splitting)


def read_folder_file(file: ListedFile, splitting: Splitting) -> Iterator[Item]:
    """Yield the sample of a listed file, or why there is none, and the class that it is of.

    What is hidden or not called like an image is no sample of a data set of images: it is counted,
    and left out.
    """
    name = file.entry.name
    if file.entry.kind == "directory":
        return
    why = why_skipped(name)
    if is_folder(file.entry) and why != HIDDEN:
        yield _rejected(file, splitting, f"a {file.entry.kind}: its files cannot be listed")
        return
    if why:
        yield SourceNote(splitting.split_of_other(file.root, name), skipped=why)
        return
    class_name, slash, below_class = name.partition("/")
    if not slash:
        yield _rejected(file, splitting, "not in a folder that names its class")
        return
    folder = below_class.rpartition("/")[0]
    split = splitting.split_for(file.root, name, {FOLDER: folder}, name)
    sample = Sample(split, name, file.position, (Blob(file.root, name),), _fields(class_name))
    yield pin_sample(sample, file.entry)
    yield _note(split, class_name)


def is_folder(entry: Entry) -> bool:
    """Return whether a listed name is a folder; one of another kind could not be listed itself."""
    return entry.kind.startswith("directory")


def is_read(file: ListedFile) -> bool:
    """Return whether a listed file is read: one that can be meant as an image."""
    entry = file.entry
    readable = entry.kind == "file" and 0 < entry.size_bytes <= MAX_IMAGE_BYTES
    return readable and not why_skipped(entry.name)


def why_skipped(name: str) -> str:
    """Return why a file cannot be meant as an image, nothing where it can.

    >>> why_skipped("cat/.thumbs/1.jpg"), why_skipped("cat/Thumbs.db"), why_skipped("cat/1.JPG")
    ('hidden', 'not_called_an_image', '')
    """
    if name.startswith(".") or "/." in name:
        return HIDDEN
    _, dot, extension = name.rpartition("/")[2].rpartition(".")
    is_image = bool(dot) and extension.lower() in IMAGE_EXTENSIONS
    return "" if is_image else "not_called_an_image"


def _rejected(file: ListedFile, splitting: Splitting, detail: str) -> Rejected:
    name = file.entry.name
    return Rejected(
        code="E-SRC-LABEL",
        stage=STAGE,
        split=splitting.split_of_other(file.root, name),
        key=name,
        file_name=name,
        detail=detail,
    )


@functools.lru_cache(maxsize=4096)
def _fields(class_name: str) -> bytes:
    return pack(ClassFields(class_name))


@functools.lru_cache(maxsize=4096)
def _note(split: str, class_name: str) -> SourceNote:
    return SourceNote(split, class_names=frozenset([class_name]))
