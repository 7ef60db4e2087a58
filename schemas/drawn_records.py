"""Draw a shard's records to be shown, a record at a time: by digest, so that order decides nothing.

Few are held, however many classes there are.
"""

import bisect
import functools
import hashlib
from collections.abc import Callable, Iterable

import msgspec

from schemas.statistics import (
    MAX_SHARD_SAMPLES,
    SAMPLES_PER_CLASS,
    SAMPLES_PER_SPLIT,
    SPLIT_LABEL,
    SampledRecord,
    SampleTuple,
    draw_tuples,
)

_DRAWN_AT_ONCE = 4 * MAX_SHARD_SAMPLES  # drawn records of classes, before most are let go
_LARGEST = b"\xff" * 8
_MAX_HASHES = 4096
_PERSON = b"tfrec-report"

_Copy = Callable[[], "hashlib.blake2b"]


class Drawing:
    """Records of the smallest digests, for their split and for each of their classes."""

    def __init__(self, split: str) -> None:
        self._split = split
        self._begun: dict[int, tuple[_Copy, bytes]] = {}
        self._drawn: dict[int, list[SampleTuple]] = {}
        self._held = 0

    def add(self, classes: Iterable[int], number: int, place: tuple[int, int, str]) -> None:
        """Draw a record, or do not."""
        key = place[2].encode()
        begun = self._begun
        for label in (SPLIT_LABEL, *classes):
            copy, last = begun.get(label) or self._begin(label)
            hashed = copy()
            hashed.update(key)
            digest = hashed.digest()
            if digest <= last:
                drawn = int.from_bytes(digest, "big") >> 1
                self._draw((drawn, int(label), number, *place))

    def drawn(self) -> list[SampledRecord]:
        """Return the records that were drawn, by label and digest."""
        drawn = (sample for samples in self._drawn.values() for sample in samples)
        return draw_tuples(drawn, MAX_SHARD_SAMPLES)

    def _draw(self, sample: SampleTuple) -> None:
        label = sample[1]
        drawn = self._drawn.get(label)
        if drawn is None:
            drawn = self._drawn[label] = []
        most = SAMPLES_PER_SPLIT if label == SPLIT_LABEL else SAMPLES_PER_CLASS
        bisect.insort(drawn, sample)
        self._held += 1
        if len(drawn) >= most:
            self._held -= len(drawn) - most
            del drawn[most:]
            last = (drawn[-1][0] << 1 | 1).to_bytes(8, "big")
            self._begun[label] = self._begun[label][0], last
        if self._held > _DRAWN_AT_ONCE:
            self._let_go()

    def _let_go(self) -> None:
        """Keep what can still be drawn, which is what is drawn of those that came."""
        drawn = self.drawn()
        self._drawn, self._held = {}, len(drawn)
        self._begun.clear()
        for sample in drawn:
            self._drawn.setdefault(sample.label, []).append(msgspec.structs.astuple(sample))

    def _begin(self, label: int) -> tuple[_Copy, bytes]:
        """Return what hashes keys for a label, and the largest digest that is drawn still."""
        if len(self._begun) >= _MAX_HASHES:
            self._begun.clear()
        begun = self._begun[label] = _hash_of(self._split, int(label)), _LARGEST
        return begun


@functools.lru_cache(maxsize=4096)
def _hash_of(split: str, label: int) -> _Copy:
    """Return what gives a hash that only the key is missing from; shards have it in common."""
    text = f"{split}\0{label}\0".encode()
    return hashlib.blake2b(text, digest_size=8, person=_PERSON).copy
