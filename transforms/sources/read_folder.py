"""Samples from folders of images: one folder per class, or pairs of a low and a high image."""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.fields import ClassFields
from beam_tfrec.schemas.samples import Blob, Sample, pack
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms.sources import listing
from beam_tfrec.transforms.sources.join_files import JoinedFiles
from beam_tfrec.transforms.sources.read_samples import Item, SplitTally, note_skipped, reject_file

FOLDER = "folder"
"""Field for `--split_by`: the path of an image's folder, without its class folder."""
LOW, HIGH = "low", "high"
"""Sides of a pair; the root of a source's side has the name `{source}/{side}`."""


@dataclass(frozen=True)
class FolderReader:
    """Reads images below class folders: `label/name.jpg`, with any folders in between.

    Attributes:
        splitting: rule that decides the split of a sample.
    """

    splitting: Splitting

    def __call__(self, file: listing.ListedFile) -> Iterator[Item]:
        """Yield the file's pinned sample and its class, or a reject.

        Hidden files, and files without an image's extension, are counted and skipped.
        """
        name = file.entry.name
        if file.entry.kind == "directory":
            return
        why = listing.why_skipped(name)
        class_name, slash, below_class = name.partition("/")
        if listing.is_folder(file.entry) and why != listing.HIDDEN:
            yield self._reject(file, f"a {file.entry.kind}: its files cannot be listed")
        elif why:
            yield note_skipped(self.splitting, file.root, name)
        elif not slash:
            yield self._reject(file, "not in a folder that names its class")
        else:
            fields = {FOLDER: below_class.rpartition("/")[0]}
            split = self.splitting.split_of(file.root, name, fields, name)
            blobs = (Blob(file.root, name),)
            sample = Sample(split, name, file.position, blobs, pack(ClassFields(class_name)))
            yield listing.pin_all(sample, [file.entry])
            yield SplitTally(split, class_names=[class_name])

    def _reject(self, file: listing.ListedFile, detail: str) -> Rejected:
        return reject_file(self.splitting, file, "read_folder", ("E-SRC-LABEL", detail), ())


@dataclass(frozen=True)
class PairNames:
    """Computes join names: the part of the name that both images of a pair share.

    Attributes:
        low_suffix: suffix of low images' names, before the extension, such as `x4`.
    """

    low_suffix: str = ""

    def __call__(self, file: listing.ListedFile) -> Iterator[JoinedFiles]:
        """Yield a listed file with its join name; nothing for a folder."""
        if file.entry.kind == "directory":  # a folder that could be listed
            return
        name = file.entry.name
        source, _, side = file.root.rpartition("/")
        if listing.why_skipped(name) and not listing.is_folder(file.entry):
            yield JoinedFiles(source, f"{file.root}/{name}", others=(file,))
        elif side == HIGH:
            yield JoinedFiles(source, posixpath.splitext(name)[0], second=(file,))
        else:
            common = posixpath.splitext(name)[0].removesuffix(self.low_suffix)
            yield JoinedFiles(source, common, first=(file,))


@dataclass(frozen=True)
class PairReader:
    """Reads pairs of images.

    Attributes:
        splitting: rule that decides the split of a sample.
    """

    splitting: Splitting

    def __call__(self, joined: JoinedFiles) -> Iterator[Item]:
        """Yield the sample of a pair, with the high image's name as its key, or rejects.

        Each file with no partner or several partners is rejected. Hidden files, and files without
        an image's extension, are counted and skipped.
        """
        for file in joined.others:
            yield note_skipped(self.splitting, joined.source, file.entry.name)
        low, high = joined.first, joined.second
        if len(low) == len(high) == 1:
            key = high[0].entry.name
            split = self._split_of(joined.source, key, key)
            blobs = tuple(Blob(file.root, file.entry.name) for file in (*low, *high))
            sample = Sample(split, key, high[0].position, blobs, b"")
            yield listing.pin_all(sample, (low[0].entry, high[0].entry))
            return
        twice = f"{len(low)} low and {len(high)} high images have its name" if low and high else ""
        for file in (*low, *high):
            yield self._reject(joined.source, file, twice)

    def _reject(self, source: str, file: listing.ListedFile, twice: str) -> Rejected:
        """Return the reject of a file; the key of a low image begins with `low:`."""
        name, is_high = file.entry.name, file.root.endswith(HIGH)
        key = name if is_high else f"{LOW}:{name}"
        split = self._split_of(source, key, name)
        missing = f"no {LOW if is_high else HIGH} image has its name"
        fault = ("E-SRC-TWICE", twice) if twice else ("E-IMG-MISSING", missing)
        return Sample(split, key, -1, (Blob(file.root, name),), b"").reject("read_pairs", *fault)

    def _split_of(self, source: str, key: str, name: str) -> str:
        return self.splitting.split_of(source, key, {FOLDER: name.rpartition("/")[0]}, name)
