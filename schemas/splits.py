"""Splits: given by the sources, taken from a field, or drawn by a keyed hash.

A hash of the key, or of what groups samples, decides alone: adding data never moves a sample, no
group straddles two splits, and the order's seed has no part in it. Output membership depends on
every function here.
"""

import bisect
import functools
import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from beam_tfrec.schemas.faults import fault_line

_DIGEST_BITS = 128
GIVEN, HASH = "given", "hash"
USUAL_SPLITS = ("train", "val", "valid", "validation", "test")
"""What a field may say where no list is given; those of them that no sample has are not there."""

_OPTIONS = ("split_by", "splits", "group_by", "split_seed")
_NO_FIELDS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Splitting:
    """Which split a sample belongs to.

    Attributes:
        by: `given`, by the source that it comes from; `hash`; or the name of the field that says.
        shares: of each split by hash, in the order in which they divide the hash's range; any
            positive numbers, such as percentages.
        group_by: name of the field whose equal values keep samples together; empty for none.
        seed: of the hash.
        names: of the splits that a field may say; none for `USUAL_SPLITS`.
    """

    by: str = GIVEN
    shares: Mapping[str, Fraction] = field(default_factory=dict)
    group_by: str = ""
    seed: int = 0
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what divides nothing."""
        if not self.by:
            raise ValueError("split_by must not be empty, got '': give given, hash or a field")
        if (self.by == HASH) != bool(self.shares):
            raise ValueError(
                f"splits must have shares with split_by hash, and with it alone, got split_by"
                f" {self.by!r} and shares of {[*self.shares] or 'none'}: give such as"
                " --split_by hash --splits train=90,val=10"
            )
        for split, share in self.shares.items():
            if share <= 0:
                raise ValueError(f"splits must have positive shares, got {split}={share}: raise it")
        if self.names and self.by in (GIVEN, HASH):
            raise ValueError(
                f"splits without shares need split_by FIELD, got {self.by!r}: name the field, or"
                " leave them out"
            )
        if self.by != HASH and (self.group_by or self.seed):
            raise ValueError(
                f"group_by and split_seed need split_by hash, got {self.by!r}: leave them out"
            )
        if len(str(self.seed)) > hashlib.blake2b.MAX_KEY_SIZE:
            raise ValueError(
                f"split_seed must be at most 64 digits, got {self.seed}: give a smaller one"
            )

    @property
    def fields(self) -> dict[str, str]:
        """The fields of samples that decide, by the name of the option that asks for them."""
        asked = {"split_by": "" if self.by in (GIVEN, HASH) else self.by, "group_by": self.group_by}
        return {option: name for option, name in asked.items() if name}

    @property
    def is_given(self) -> bool:
        """Whether a sample's source says its split."""
        return self.by == GIVEN

    @property
    def optional_splits(self) -> tuple[str, ...]:
        """The splits that a data set lacks where no sample falls into them."""
        return USUAL_SPLITS if self.by not in (GIVEN, HASH) and not self.names else ()

    def splits(self, given: Iterable[str]) -> tuple[str, ...]:
        """Return the splits that samples may fall into, from those that sources are given for."""
        if self.by == GIVEN:
            return tuple(given)
        return tuple(self.shares) or self.names or USUAL_SPLITS

    def split_for(
        self, given: str, key: str, fields: Mapping[str, str] = _NO_FIELDS, where: str = ""
    ) -> str:
        """Return the split of a sample.

        Args:
            given: the split that its source is given for.
            key: of the sample.
            fields: its values as text; of those in `self.fields` at least, where it has them.
            where: the sample, for messages; empty for its key.

        Raises:
            RuntimeError: `E-SRC-SPLIT` when a field that decides has no value, or one that is no
                split: the sample could not even be counted as rejected from one.

        >>> Splitting("part").split_for("train", "7", {"part": "TEST"})
        'test'
        """
        if self.by == GIVEN:
            return given
        where = where or f"sample {key}"
        if self.by == HASH:
            return self.split_of(self._value(self.group_by, fields, where) or key)
        value = self._value(self.by, fields, where)
        split = value.strip().lower()
        if split not in self._known:
            what = f"{self.by} is {value!r}, which is none of {', '.join(sorted(self._known))}"
            remedy = "correct it, or name all splits with --splits"
            raise RuntimeError(fault_line("E-SRC-SPLIT", where, what, remedy))
        return split

    def split_of_other(self, given: str, name: str) -> str:
        """Return the split that counts a file without samples, whose fields are unknown.

        Args:
            given: the split that its source is given for.
            name: of the file.
        """
        if self.by == GIVEN:
            return given
        return self.split_of(name) if self.by == HASH else self.splits(())[0]

    def split_of(self, key_or_group: str) -> str:
        """Return the split that a hash draws.

        >>> Splitting(HASH, {"train": Fraction(9), "val": Fraction(1)}).split_of("3")
        'train'
        """
        digest = hashlib.blake2b(
            key_or_group.encode(),
            key=str(self.seed).encode(),
            digest_size=_DIGEST_BITS // 8,
            person=b"tfrec-split",
        )
        drawn = int.from_bytes(digest.digest(), "big")
        return [*self.shares][bisect.bisect_right(self._bounds, drawn)]

    def options(self) -> dict[str, str]:
        """Return the options that decide membership; none where splits are given."""
        if self.by == GIVEN:
            return {}
        if self.by != HASH:
            return {"split_by": self.by}
        total = sum(self.shares.values())
        shares = ",".join(f"{split}={share / total}" for split, share in self.shares.items())
        return {
            "split_by": self.by,
            "splits": shares,
            "group_by": self.group_by,
            "split_seed": str(self.seed),
        }

    @functools.cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.splits(()))

    @functools.cached_property
    def _bounds(self) -> list[int]:
        """Where each split's part of the hash's range ends, exclusive; no float decides it."""
        total = sum(self.shares.values())
        ends = itertools.accumulate(self.shares.values())
        return [-int(-end * (1 << _DIGEST_BITS) // total) for end in ends]

    def _value(self, name: str, fields: Mapping[str, str], where: str) -> str:
        """Return the value of a field that decides; none where no field is asked for."""
        if not name:
            return ""
        value = fields.get(name, "")
        if not value.strip():
            what = f"{name} has no value, and decides its split"
            remedy = "give every sample one, or split without it"
            raise RuntimeError(fault_line("E-SRC-SPLIT", where, what, remedy))
        return value


def splitting_in(options: Mapping[str, str]) -> dict[str, str]:
    """Return those of a plan's options that `Splitting.options` gave.

    >>> splitting_in({"seed": "0", "split_by": "part"})
    {'split_by': 'part'}
    """
    return {name: options[name] for name in _OPTIONS if name in options}
