"""Pick the records whose pictures a report shows, of those that shards have drawn by digest.

A third of the pictures are their splits', in equal parts; the others are of classes. Where there
are more classes than pictures for them, those that get one are evenly spaced in the order of how
frequent they are, the most frequent and the rarest among them: of 1,203 classes in a long tail,
any part of the tail is seen, and what is left out is as often frequent as rare. Whatever was drawn
was drawn by digest, so equal data sets show equal pictures.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from schemas.statistics import SPLIT_LABEL, SampledRecord

MAX_PICTURES = 192
"""Of a report that is asked for."""

MOST_OF_A_SPLIT = 24
MOST_OF_A_CLASS = 6

_KEPT_CANDIDATES = 20_000  # before most are let go


class Candidate(NamedTuple):
    """A record that a shard has drawn.

    Attributes:
        split: of the shard.
        file: the shard's.
        sample: where it is, and what it was drawn for.
    """

    split: str
    file: str
    sample: SampledRecord


class PickedRecord(NamedTuple):
    """A record that is to be shown.

    Attributes:
        split: of its shard.
        file: the shard's.
        number: of the record in it, from 0.
        offset: of its frame, in bytes.
        size: of the frame.
        key: of the record.
        for_split: whether it was drawn for its split.
        for_classes: labels of the classes that it was drawn for, sorted.
    """

    split: str
    file: str
    number: int
    offset: int
    size: int
    key: str
    for_split: bool
    for_classes: tuple[int, ...]


class Candidates:
    """Records that shards have drawn, of which those that cannot be picked are let go.

    Attributes:
        kept: the others, in any order.
    """

    def __init__(self) -> None:
        self.kept: list[Candidate] = []
        self._most = _KEPT_CANDIDATES

    def add(self, split: str, file: str, samples: Iterable[SampledRecord]) -> None:
        """Add those of a shard."""
        self.kept += (Candidate(split, file, sample) for sample in samples)
        if len(self.kept) > self._most:
            self.kept = fewest(self.kept)
            # Of many classes many stay: to sort them again for each shard would take hours.
            self._most = max(_KEPT_CANDIDATES, 2 * len(self.kept))


def pick_samples(
    candidates: Iterable[Candidate],
    class_records: Mapping[int, int],
    most: int = MAX_PICTURES,
) -> list[PickedRecord]:
    """Return the records to be shown: of splits, then of classes, each in the order of drawing.

    Args:
        candidates: of all shards, in any order.
        class_records: records that hold a class, by its label.
        most: records in all.
    """
    by_split: dict[str, list[Candidate]] = {}
    by_class: dict[int, list[Candidate]] = {}
    for found in sorted(candidates, key=_drawing_order):
        if found.sample.label == SPLIT_LABEL:
            by_split.setdefault(found.split, []).append(found)
        else:
            by_class.setdefault(found.sample.label, []).append(found)
    of_splits = _of_splits(by_split, most // 3 if by_class else most)
    picked = _merged(of_splits[:most])
    for found in _of_classes(by_class, class_records, most - len(picked)):
        if _place(found) in picked or len(picked) < most:
            _add(picked, found)
    return [_picked(founds) for founds in picked.values()]


def fewest(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return those that may be picked, whatever is added to them: of each split and class few."""
    kept: dict[tuple[str, int], list[Candidate]] = {}
    for found in sorted(candidates, key=_drawing_order):
        label = found.sample.label
        own = kept.setdefault((found.split if label == SPLIT_LABEL else "", label), [])
        if len(own) < (MOST_OF_A_SPLIT if label == SPLIT_LABEL else MOST_OF_A_CLASS):
            own.append(found)
    return [found for own in kept.values() for found in own]


def spaced_classes(class_records: Mapping[int, int], most: int) -> list[int]:
    """Return at most so many classes, evenly spaced from the most frequent to the rarest.

    >>> spaced_classes({7: 1000, 3: 500, 9: 20, 4: 2, 1: 1}, 3)
    [7, 9, 1]
    """
    ranked = sorted(class_records, key=lambda label: (-class_records[label], label))
    if len(ranked) <= most:
        return ranked
    if most < 2:
        return ranked[:most]
    return [ranked[round(place * (len(ranked) - 1) / (most - 1))] for place in range(most)]


def _drawing_order(found: Candidate) -> tuple[int, str, str, int]:
    return found.sample.digest, found.split, found.file, found.sample.number


def _of_splits(by_split: Mapping[str, Sequence[Candidate]], most: int) -> list[Candidate]:
    each = min(MOST_OF_A_SPLIT, most // len(by_split)) if by_split else 0
    return [found for split in sorted(by_split) for found in by_split[split][: max(each, 1)]]


def _of_classes(
    by_class: Mapping[int, Sequence[Candidate]], class_records: Mapping[int, int], most: int
) -> list[Candidate]:
    """Return one of each class, then a second of each, and so on: what is cut off are the last."""
    frequencies = {label: class_records.get(label, 0) for label in by_class}
    chosen = [by_class[label][:MOST_OF_A_CLASS] for label in spaced_classes(frequencies, most)]
    return [found for turn in zip_longest(*chosen) for found in turn if found is not None]


def _place(found: Candidate) -> tuple[str, str, int]:
    return found.split, found.file, found.sample.offset


_Places = dict[tuple[str, str, int], list[Candidate]]


def _merged(candidates: Iterable[Candidate]) -> _Places:
    places: _Places = {}
    for found in candidates:
        _add(places, found)
    return places


def _add(places: _Places, found: Candidate) -> None:
    places.setdefault(_place(found), []).append(found)


def _picked(founds: Sequence[Candidate]) -> PickedRecord:
    """Return a record with all that it was drawn for."""
    split, file, sample = founds[0]
    labels = {found.sample.label for found in founds}
    return PickedRecord(
        split=split,
        file=file,
        number=sample.number,
        offset=sample.offset,
        size=sample.size,
        key=sample.key,
        for_split=SPLIT_LABEL in labels,
        for_classes=tuple(sorted(labels - {SPLIT_LABEL})),
    )
