"""Splits: given by the sources, taken from a field, or drawn by a keyed hash.

The hash of a sample's key or group alone draws its split. So adding data never moves a sample, and
a group is never divided. The seed of the shuffle has no influence.
Every function here decides which split holds a sample: changing one is a breaking change.
"""

import bisect
import functools
import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Self

from beam_tfrec.schemas.faults import did_you_mean, require_whole, run_fault

if TYPE_CHECKING:  # only runs with tables and stratified ones need numpy
    from numpy.typing import NDArray

_MAX_FOLDS = 1000
_DIGEST_BITS = 128
_BUCKET_SPLIT = re.compile(r"(.+)_([0-9]+)x([0-9]+)")
GIVEN, HASH, STRATIFIED = "given", "hash", "stratified"
CLASS = "class"
"""Value of `stratify_by` for the classes of a sample; any other is the name of a field."""
USUAL_SPLITS = ("train", "val", "valid", "validation", "test")
"""Splits that a field may name if `--splits` does not list any. Splits without samples are left
out of the data set."""

GROUP_TABLES = (".csv", ".parquet")
"""Suffixes by which `group_by` is the URI of a table; any other text is the name of a field."""

_NO_FIELDS: Mapping[str, str] = {}


def fold_names(k: int) -> list[str]:
    """Return the names of k folds.

    >>> fold_names(3)
    ['fold0', 'fold1', 'fold2']

    Raises:
        ValueError: `k` is not 2 to 1,000.
    """
    if not (isinstance(k, int) and 2 <= k <= _MAX_FOLDS):
        raise ValueError(f"folds must be 2 to {_MAX_FOLDS:,}, got {k!r}: give for example fold*5")
    return [f"fold{number}" for number in range(k)]


DigestValues = tuple["NDArray", "NDArray"]
"""Arrays of a `DigestTable`: sorted digests, and the value of each."""


class DigestTable:
    """Values by digest, as sorted arrays. A worker holds one, and counts what it has found.

    Attributes:
        digests: 16-byte digests, each once, sorted; type S16.
        values: value of each digest.
        found: whether `find` has found each digest.
    """

    def __init__(self, digests: "NDArray", values: "NDArray") -> None:
        """Store the arrays."""
        import numpy as np

        self.digests, self.values = digests, values
        self.found = np.zeros(len(digests), bool)

    def find(self, digest: bytes) -> "NDArray":
        """Return the value of a digest, as an array of one; an empty array if there is none."""
        first = int(self.digests.searchsorted(digest))
        is_there = self.digests[first : first + 1].tobytes() == digest
        place = slice(first, first + is_there)
        self.found[place] = True
        return self.values[place]


class Unassigned(str):
    """In place of a split's name while samples are listed, before `stratify` assigns their splits.

    All are equal as texts, so that readers make one note for all samples.

    Attributes:
        digest: digest of the sample's group, or of its key if it has no group.
        value: value of the field to stratify by; empty for none.
    """

    digest: bytes
    value: str = ""


@dataclass(frozen=True)
class Splitting:
    """The rule that decides a sample's split.

    Attributes:
        by: `given` (each source belongs to one split), `hash`, `stratified`, or the name of a
            field that holds the split.
        shares: relative sizes of the splits, for `hash` and `stratified`, in the order in which
            they divide the hash's range. They may be any positive numbers, such as percentages.
        group_by: name of a field; samples with equal values in it share a split. Or URI of a table
            with the groups of keys. Empty for none.
        seed: seed of the hash.
        names: splits that the field may hold; empty for `USUAL_SPLITS`.
        stratify_by: what `stratified` divides evenly: `CLASS`, or the name of a field.
        table_identity: size and checksum of the table of groups; empty until a run has found it.
        groups: digest of each key's group; None until a worker has read the table.
        assigned: number of the split of each digest of a key or group, from `stratify`.
        lists: whether to return `Unassigned`, for `stratify`.
    """

    by: str = GIVEN
    shares: Mapping[str, Fraction] = field(default_factory=dict)
    group_by: str = ""
    seed: int = 0
    names: tuple[str, ...] = ()
    stratify_by: str = CLASS
    table_identity: str = ""
    groups: DigestTable | None = field(default=None, compare=False, repr=False)
    assigned: DigestTable | None = field(default=None, compare=False, repr=False)
    lists: bool = False

    def __post_init__(self) -> None:
        """Refuse options that contradict each other."""
        if not self.by:
            raise ValueError("split_by must not be empty, got '': give hash, stratified or a field")
        if self.is_drawn and not self.shares:
            what = "splits must have shares with split_by hash or stratified, got none"
            raise ValueError(f"{what}: give such as --splits train=90,val=10")
        if self.shares and not self.is_drawn:
            what = f"splits with shares need split_by hash or stratified, got {self.by!r}"
            remedy = did_you_mean(self.by, (HASH, STRATIFIED), "add --split_by hash")
            raise ValueError(f"{what}: {remedy}")
        for split, share in self.shares.items():
            if share <= 0:
                raise ValueError(f"splits must have positive shares, got {split}={share}: raise it")
        if self.names and (self.is_given or self.is_drawn):
            raise ValueError(f"splits without shares need split_by FIELD, got {self.by!r}: name it")
        if not self.is_drawn and (self.group_by or self.seed):
            what = f"group_by and split_seed need split_by hash or stratified, got {self.by!r}"
            raise ValueError(f"{what}: leave them out")
        if self.by != STRATIFIED and self.stratify_by != CLASS:
            raise ValueError(f"stratify_by needs split_by stratified, got {self.by!r}: omit it")
        require_whole(split_seed=self.seed)
        if len(str(self.seed)) > hashlib.blake2b.MAX_KEY_SIZE:
            raise ValueError(f"split_seed must have at most 64 digits, got {self.seed}: shorten it")

    @functools.cached_property
    def fields(self) -> dict[str, str]:
        """Names of the fields that decide the split, by the option that gives them."""
        asked = {
            "split_by": "" if self.is_given or self.is_drawn else self.by,
            "group_by": "" if self.group_table else self.group_by,
            "stratify_by": "" if self.stratify_by == CLASS else self.stratify_by,
        }
        return {option: name for option, name in asked.items() if name}

    @property
    def group_table(self) -> str:
        """URI of the table of groups; empty without one."""
        return self.group_by if self.group_by.lower().endswith(GROUP_TABLES) else ""

    @property
    def is_drawn(self) -> bool:
        """Whether a keyed hash decides, alone or together with classes."""
        return self.by in (HASH, STRATIFIED)

    @property
    def is_given(self) -> bool:
        """Whether each source belongs to one split."""
        return self.by == GIVEN

    @property
    def optional_splits(self) -> tuple[str, ...]:
        """Splits that a data set leaves out if they have no samples."""
        return USUAL_SPLITS if "split_by" in self.fields and not self.names else ()

    def with_tables(
        self, groups: DigestValues | None = None, assigned: DigestValues | None = None
    ) -> Self:
        """Return a copy with the tables that a worker has got."""
        return replace(
            self,
            groups=groups and DigestTable(*groups),
            assigned=assigned and DigestTable(*assigned),
        )

    def splits(self, given: Iterable[str]) -> tuple[str, ...]:
        """Return all possible splits.

        Args:
            given: splits of the sources; the result unless a field or the hash decides.
        """
        if self.by == GIVEN:
            return tuple(given)
        return tuple(self.shares) or self.names or USUAL_SPLITS

    def split_of(
        self, given: str, key: str, fields: Mapping[str, str] = _NO_FIELDS, where: str = ""
    ) -> str:
        """Return the split of a sample.

        Args:
            given: the split of its source.
            key: the sample's key.
            fields: its values as text, by field; only those named in `self.fields` are needed.
            where: the sample in messages; empty for its key.

        Raises:
            RuntimeError: `E-SRC-SPLIT` when a deciding field has no value or an unknown split. The
                run stops, since rejects are counted by split.

        >>> Splitting("part").split_of("train", "7", {"part": "TEST"})
        'test'
        """
        if self.by == GIVEN:
            return given
        where = where or f"sample {key}"
        if self.is_drawn:
            group = self._value(self.fields.get("group_by", ""), fields, where)
            drawn = self.draw(group or key)
            if isinstance(drawn, Unassigned):
                drawn.value = fields.get(self.stratify_by, "").strip()
            return drawn
        value = self._value(self.by, fields, where)
        split = value.strip().lower()
        if split not in self._known:
            what = f"{self.by} is {value!r}, not one of {', '.join(sorted(self._known))}"
            remedy = "correct it, or name all splits with --splits"
            raise run_fault("E-SRC-SPLIT", where, what, remedy)
        return split

    def split_of_file(self, given: str, name: str) -> str:
        """Return the split in which a file without samples is counted. Its fields are unknown.

        Args:
            given: the split of its source.
            name: the file's name.
        """
        if self.by == GIVEN:
            return given
        return self.draw(name) if self.is_drawn else self.splits(())[0]

    def draw(self, key_or_group: str) -> str:
        """Return the split of a sample's key or group: as assigned, or as the hash draws it.

        >>> Splitting(HASH, {"train": Fraction(9), "val": Fraction(1)}).draw("3")
        'train'
        """
        digest = self.digest_of(key_or_group)
        if self.groups is not None:
            digest = self.groups.find(digest).tobytes() or digest
        if self.lists:
            unassigned = Unassigned("")
            unassigned.digest = digest
            return unassigned
        if self.assigned is not None and len(number := self.assigned.find(digest)):
            return [*self.shares][int(number[0])]
        drawn = int.from_bytes(digest, "big")
        return [*self.shares][bisect.bisect_right(self._bounds, drawn)]

    def digest_of(self, text: str) -> bytes:
        """Return the digest of a sample's key, or of a group's name."""
        return hashlib.blake2b(
            text.encode(),
            key=str(self.seed).encode(),
            digest_size=_DIGEST_BITS // 8,
            person=b"tfrec-split",
        ).digest()

    def options(self) -> dict[str, str]:
        """Return the options that decide splits, for the plan; none if splits are given."""
        if self.by == GIVEN:
            return {}
        if not self.is_drawn:
            return {"split_by": self.by}
        total = sum(self.shares.values())
        shares = ",".join(f"{split}={share / total}" for split, share in self.shares.items())
        stratified = {"stratify_by": self.stratify_by} if self.by == STRATIFIED else {}
        return stratified | {
            "split_by": self.by,
            "splits": shares,
            "group_by": f"table {self.table_identity}" if self.group_table else self.group_by,
            "split_seed": str(self.seed),
        }

    @functools.cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.splits(()))

    @functools.cached_property
    def _bounds(self) -> list[int]:
        """End of each split's part of the hash's range, exclusive; computed without floats."""
        total = sum(self.shares.values())
        ends = itertools.accumulate(self.shares.values())
        return [-int(-end * (1 << _DIGEST_BITS) // total) for end in ends]

    def _value(self, name: str, fields: Mapping[str, str], where: str) -> str:
        """Return the value of a deciding field; empty if `name` is empty."""
        if not name:
            return ""
        value = fields.get(name, "")
        if not value.strip():
            what = f"{name} decides its split and has no value"
            ways = (HASH, STRATIFIED) if name == self.by else ()
            remedy = did_you_mean(name, ways, "give every sample one, or split without it")
            raise run_fault("E-SRC-SPLIT", where, what, remedy)
        return value


def bucket_split(split: str, bucket: object) -> str:
    """Return the split of the images of a size bucket; its text is WIDTHxHEIGHT.

    >>> bucket_split("train", "1024x768")
    'train_1024x768'
    """
    return f"{split}_{bucket}"


def split_without_bucket(split: str) -> str:
    """Return the split that a bucket's split was made of; any other name unchanged.

    >>> split_without_bucket("train_1024x768"), split_without_bucket("train")
    ('train', 'train')
    """
    found = _BUCKET_SPLIT.fullmatch(split)
    return found[1] if found else split


def bucket_size_px(split: str) -> tuple[int, int]:
    """Return width and height of the bucket whose split `bucket_split` named.

    Raises:
        ValueError: when the name is not that of a bucket's split.
    """
    found = _BUCKET_SPLIT.fullmatch(split)
    if found is None:
        raise ValueError(f"split must end in a bucket's size, got {split!r}: give such as a_8x8")
    return int(found[2]), int(found[3])


NEW = -1
"""In place of a split's number: no earlier data set holds the sample."""

_CHUNK = 65_536  # groups that are Python objects at once


def stratify(
    digests: "NDArray",
    owners: "NDArray",
    classes: "NDArray",
    shares: Sequence[Fraction],
    earlier: "NDArray",
) -> "tuple[NDArray, NDArray]":
    """Divide samples into splits, so that each split gets its share of every class.

    This is iterative stratification (Sechidis, Tsoumakas and Vlahavas, 2011): rare classes first,
    since only they leave little choice. Samples of one group are placed together. The result
    depends on digests of keys and groups, on classes and shares, and on nothing else.

    A group goes to a split with room for it in its rarest class, or else to one with any room. Of
    these it takes the one with the highest score: its room left in the rarest class, plus what it
    lacks so far of the group's classes and of all samples. So if each sample has one class and is
    its own group, the count of each class in each split is within one of its share. If each group
    has one class, it is within the size of the class's largest group.

    Args:
        digests: digest of each sample's group, or of its key if it has no group; type S16.
        owners: number of a sample, for each of its classes.
        classes: number of the class, likewise.
        shares: relative sizes of the splits.
        earlier: number of the split in which an earlier data set has each sample, or `NEW`.

    Returns:
        The digest of each group, sorted, and the number of its split.
    """
    import numpy as np

    if not len(digests):
        return digests, np.zeros(0, np.uint16)
    units, unit_of = np.unique(digests, return_inverse=True)
    # Two more classes: samples without a class, and all samples.
    without = int(classes.max(initial=-1)) + 1
    everything = without + 1
    samples = np.arange(len(digests))
    lone = np.setdiff1d(samples, owners)
    owners = np.concatenate([owners, lone, samples])
    more = np.repeat([without, everything], [len(lone), len(samples)])
    pairs = unit_of[owners] * (everything + 1) + np.concatenate([classes, more])
    pairs, counts = np.unique(pairs, return_counts=True)
    of_unit, of_class = np.divmod(pairs, everything + 1)
    totals = np.bincount(of_class, counts, everything + 1).astype(np.int64)
    first = np.flatnonzero(np.diff(of_unit, prepend=-1))
    last = np.append(first[1:], len(pairs))
    sizes = counts[last - 1]  # `everything` has the highest number, and is never the rarest
    rarest = np.minimum.reduceat(totals[of_class] * (everything + 1) + of_class, first)
    known = np.full(len(units), NEW)
    np.maximum.at(known, unit_of, earlier)
    order = np.lexsort((-sizes, rarest, known == NEW))  # then by digest, as `units` are sorted

    whole = sum(shares)
    scale = math.lcm(*((share / whole).denominator for share in shares))
    parts = [int(share / whole * scale) for share in shares]
    weight = math.isqrt(len(digests))
    seen = [0] * len(totals)
    got = [[0] * len(parts) for _ in seen]
    chosen = np.zeros(len(units), np.uint16)
    for chunk in np.array_split(order, 1 + len(order) // _CHUNK):
        columns = (of[chunk].tolist() for of in (first, last, rarest % len(totals), known))
        for unit, start, end, rare, best in zip(chunk.tolist(), *columns, strict=True):
            names, numbers = of_class[start:end].tolist(), counts[start:end].tolist()
            held = [got[name] for name in names]
            for name, number in zip(names, numbers, strict=True):
                seen[name] += number
            if best == NEW:
                total, needed = int(totals[rare]), numbers[names.index(rare)] * scale
                room = [
                    part * total - scale * has for part, has in zip(parts, got[rare], strict=True)
                ]
                due, had = sum([seen[name] for name in names]), map(sum, zip(*held, strict=True))
                scores = [
                    left * weight + total * (part * due - scale * has)
                    for left, part, has in zip(room, parts, had, strict=True)
                ]
                least = needed if max(room) >= needed else 1
                fit = [split for split, left in enumerate(room) if left >= least]
                best = max(fit, key=scores.__getitem__)
            chosen[unit] = best
            for have, number in zip(held, numbers, strict=True):
                have[best] += number
    return units, chosen
