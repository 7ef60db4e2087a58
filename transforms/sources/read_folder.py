"""Samples from folders of classes: `label/name.jpg`, with any folders between."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from schemas.faults import Rejected
from schemas.fields import ClassFields
from schemas.samples import Blob, Sample, pack
from schemas.splits import Splitting
from transforms.sources.list_blobs import HIDDEN, ListedFile, is_folder, pin_sample, why_skipped
from transforms.sources.read_samples import Item, SplitSource, note_skipped

STAGE = "read_folder"
FOLDER = "folder"
"""The field of a sample that splits may go by: the folders between its class and its file."""


@dataclass(frozen=True)
class FolderReader:
    """Reads a listed file as a sample.

    Attributes:
        splitting: which split a sample belongs to.
    """

    splitting: Splitting

    def __call__(self, file: ListedFile) -> Iterator[Item]:
        """Yield the file's sample, pinned as listed, and its class; or why there is none.

        Hidden files, and those not called like an image, are counted and left out.
        """
        name = file.entry.name
        if file.entry.kind == "directory":
            return
        why = why_skipped(name)
        class_name, slash, below_class = name.partition("/")
        if is_folder(file.entry) and why != HIDDEN:
            yield self._rejected(file, f"a {file.entry.kind}: its files cannot be listed")
        elif why:
            yield note_skipped(self.splitting, file.root, name)
        elif not slash:
            yield self._rejected(file, "not in a folder that names its class")
        else:
            fields = {FOLDER: below_class.rpartition("/")[0]}
            split = self.splitting.split_for(file.root, name, fields, name)
            blobs = (Blob(file.root, name),)
            sample = Sample(split, name, file.position, blobs, _fields(class_name))
            yield pin_sample(sample, file.entry)
            yield _note(split, class_name)

    def _rejected(self, file: ListedFile, detail: str) -> Rejected:
        name = file.entry.name
        split = self.splitting.split_of_other(file.root, name)
        return Rejected(
            code="E-SRC-LABEL", stage=STAGE, split=split, key=name, file_name=name, detail=detail
        )


@functools.lru_cache(maxsize=4096)
def _fields(class_name: str) -> bytes:
    return pack(ClassFields(class_name))


@functools.lru_cache(maxsize=4096)
def _note(split: str, class_name: str) -> SplitSource:
    return SplitSource(split, class_names=[class_name])
