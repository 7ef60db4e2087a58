"""Samples of pairs: a low- and a high-resolution image of one name, from two roots."""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from schemas.faults import Rejected
from schemas.samples import Blob, Sample
from schemas.splits import Splitting
from transforms.sources.join_files import OTHER_SIDE, JoinedFiles, NamedFile
from transforms.sources.list_blobs import ListedFile, is_folder, pin_sample, why_skipped
from transforms.sources.read_folder import FOLDER
from transforms.sources.read_samples import Item, note_skipped

STAGE = "read_pairs"
LOW, HIGH = "low", "high"
_SIDES = {LOW: 0, HIGH: 1}


def pair_root(source: str, side: str) -> str:
    """Return the name of a root of pairs.

    >>> pair_root("train", LOW)
    'train/low'
    """
    return f"{source}/{side}"


@dataclass(frozen=True)
class PairNames:
    """Names files by what the two images of a pair have in common.

    Attributes:
        low_suffix: what names of low images end in, before their extension, such as `x4`.
    """

    low_suffix: str = ""

    def __call__(self, file: ListedFile) -> Iterator[NamedFile]:
        """Yield a listed file under its pair's name; nothing for a folder."""
        if file.entry.kind == "directory":  # one that could be listed
            return
        source, _, side = file.root.rpartition("/")
        if why_skipped(file.entry.name) and not is_folder(file.entry):
            yield NamedFile(source, f"{file.root}/{file.entry.name}", OTHER_SIDE, file)
            return
        name = pair_name(file.entry.name, self.low_suffix if side == LOW else "")
        yield NamedFile(source, name, _SIDES[side], file)


def pair_name(file_name: str, suffix: str) -> str:
    """Return a file's name without extension, and without a suffix that it has.

    >>> pair_name("a/0001x4.png", "x4"), pair_name("a/0001.png", "x4")
    ('a/0001', 'a/0001')
    """
    return posixpath.splitext(file_name)[0].removesuffix(suffix)


@dataclass(frozen=True)
class PairReader:
    """Reads the files of a name as the pair that they are.

    Attributes:
        splitting: which split a sample belongs to.
    """

    splitting: Splitting

    def __call__(self, joined: JoinedFiles) -> Iterator[Item]:
        """Yield the sample of a pair, whose key is the high image's name, or why there is none.

        A file that has no partner, or several, is a reject of its own. What is hidden or not called
        like an image is counted, and left out.
        """
        for file in joined.others:
            yield note_skipped(self.splitting, joined.source, file.entry.name)
        low, high = joined.first, joined.second
        if len(low) == len(high) == 1:
            yield self._pinned(joined.source, low[0], high[0])
            return
        twice = f"{len(low)} low and {len(high)} high images have its name" if low and high else ""
        for side, files in ((LOW, low), (HIGH, high)):
            for file in files:
                yield self._rejected(joined.source, side, file, twice)

    def _pinned(self, source: str, low: ListedFile, high: ListedFile) -> Sample | Rejected:
        key = high.entry.name
        split = self._split_of(source, key, key)
        blobs = Blob(low.root, low.entry.name), Blob(high.root, high.entry.name)
        pinned = pin_sample(Sample(split, key, high.position, blobs, b""), low.entry, 0)
        return pinned if isinstance(pinned, Rejected) else pin_sample(pinned, high.entry, 1)

    def _rejected(self, source: str, side: str, file: ListedFile, twice: str) -> Rejected:
        """Return the reject of a file; of a low one the key cannot be a pair's."""
        name = file.entry.name
        key = name if side == HIGH else f"{LOW}:{name}"
        return Rejected(
            code="E-SRC-TWICE" if twice else "E-IMG-MISSING",
            stage=STAGE,
            split=self._split_of(source, key, name),
            key=key,
            file_name=name,
            detail=twice or f"no {HIGH if side == LOW else LOW} image has its name",
        )

    def _split_of(self, source: str, key: str, name: str) -> str:
        return self.splitting.split_for(source, key, {FOLDER: name.rpartition("/")[0]}, name)
