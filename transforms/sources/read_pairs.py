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
from transforms.sources.read_samples import Item, SplitSource

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
        """Yield the sample of a pair, pinned as listed, or why there is none."""
        yield from read_pair(joined, self.splitting)


def read_pair(joined: JoinedFiles, splitting: Splitting) -> Iterator[Item]:
    """Yield the sample of a pair, whose key is the high image's name, or why there is none.

    A file that has no partner, or several, is a reject of its own. What is hidden or not called
    like an image is counted, and left out.
    """
    for file in joined.others:
        name = file.entry.name
        split = splitting.split_of_other(joined.source, name)
        yield SplitSource(split, listed=1, skipped={why_skipped(name): 1})
    if len(joined.first) == len(joined.second) == 1:
        yield _pinned(joined.source, joined.first[0], joined.second[0], splitting)
        return
    for side, files, others in ((LOW, joined.first, joined.second), (HIGH, *_swapped(joined))):
        for file in files:
            yield _rejected(joined.source, side, file, len(files), len(others), splitting)


def _swapped(joined: JoinedFiles) -> tuple[list[ListedFile], list[ListedFile]]:
    return joined.second, joined.first


def _pinned(
    source: str, low: ListedFile, high: ListedFile, splitting: Splitting
) -> Sample | Rejected:
    key = high.entry.name
    split = _split_of(source, key, key, splitting)
    blobs = Blob(low.root, low.entry.name), Blob(high.root, high.entry.name)
    pinned = pin_sample(Sample(split, key, high.position, blobs, b""), low.entry, 0)
    return pinned if isinstance(pinned, Rejected) else pin_sample(pinned, high.entry, 1)


def _rejected(
    source: str, side: str, file: ListedFile, same: int, others: int, splitting: Splitting
) -> Rejected:
    """Return the reject of a file; of a low one the key cannot be a pair's."""
    name = file.entry.name
    key = name if side == HIGH else f"{LOW}:{name}"
    if others:
        code = "E-SRC-TWICE"
        low, high = (same, others) if side == LOW else (others, same)
        detail = f"{low} low and {high} high images have its name"
    else:
        code, detail = "E-IMG-MISSING", f"no {HIGH if side == LOW else LOW} image has its name"
    split = _split_of(source, key, name, splitting)
    return Rejected(code=code, stage=STAGE, split=split, key=key, file_name=name, detail=detail)


def _split_of(source: str, key: str, name: str, splitting: Splitting) -> str:
    return splitting.split_for(source, key, {FOLDER: name.rpartition("/")[0]}, name)
