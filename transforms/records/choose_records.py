"""Choose which records to copy: a subset by key, class or share, and one of several equal keys."""

import enum
import functools
import hashlib
import logging
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import apache_beam as beam

from beam_tfrec.schemas.faults import counted, printable, run_fault
from beam_tfrec.schemas.samples import Sample, split_and_key
from beam_tfrec.transforms.shuffle.elements import Batch, BatchByName, GroupBatches, Partition
from beam_tfrec.transforms.sources.read_samples import AddSplitTallies, SplitTally, SplitTallyOutput
from beam_tfrec.transforms.storage import Access, read_uri

NOT_IN_KEYS = "not_in_keys"
_DIGEST_BITS = 128
_LOG = logging.getLogger(__name__)


class OnDuplicate(enum.Enum):
    """What to do with records of one split that have the same key."""

    STOP = "stop"
    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True)
class Choice:
    """A subset of records; the defaults choose all.

    Attributes:
        keys: URI of a text file with the keys to copy, one a line; empty for all keys.
        drop_keys: URI of a text file with the keys to leave out.
        classes: names of classes; a record must have at least one of them. Empty for all records.
        share: share of the keys to copy, drawn by a hash of each key.
    """

    keys: str = ""
    drop_keys: str = ""
    classes: tuple[str, ...] = ()
    share: Fraction = field(default=Fraction(1))

    def __post_init__(self) -> None:
        """Refuse a share of nothing, or of more than all."""
        if not 0 < self.share <= 1:
            given = f"{float(100 * self.share):g}%"
            raise ValueError(f"sample must be above 0 and at most 100%, got {given}: correct it")

    @property
    def files(self) -> list[str]:
        """URIs of the files with keys."""
        return [*filter(None, [self.keys, self.drop_keys])]

    def options(self) -> dict[str, str]:
        """Return the options that decide membership, for the plan; the files decide by content."""
        chosen = {
            "keys_file": "yes" if self.keys else "",
            "drop_keys_file": "yes" if self.drop_keys else "",
            "classes": ",".join(self.classes),
            "sample": "" if self.share == 1 else str(self.share),
        }
        return {name: value for name, value in chosen.items() if value}

    def why_not(self, key: str, has_class: Callable[[], bool], access: Access) -> str:
        """Return why a record is left out, or an empty text.

        Args:
            key: the record's key.
            has_class: returns whether the record has one of the classes.
            access: credentials for the files with keys.
        """
        if self.keys and key not in _keys_in(self.keys, access):
            return NOT_IN_KEYS
        if self.drop_keys and key in _keys_in(self.drop_keys, access):
            return "in_drop_keys"
        drawn, of = self.share.numerator, self.share.denominator
        if drawn < of and _drawn(key) >= drawn * 2**_DIGEST_BITS // of:
            return "not_sampled"
        return "other_classes" if self.classes and not has_class() else ""


def _drawn(key: str) -> int:
    digest = hashlib.blake2b(key.encode(), digest_size=_DIGEST_BITS // 8, person=b"tfrec-sample")
    return int.from_bytes(digest.digest(), "big")


EVERY_RECORD = Choice()


@functools.lru_cache(maxsize=2)
def _keys_in(uri: str, access: Access) -> Collection[str]:
    try:
        text = read_uri(uri, access).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise run_fault("E-ARG", uri, str(error), "save it as UTF-8") from None
    return frozenset(text.replace("\r\n", "\n").split("\n"))


forget_keys = _keys_in.cache_clear
"""Forget the keys that an earlier run of this process has read."""


def warn_of_keys(tallies: Sequence[SplitTally], uri: str, access: Access) -> list[SplitTally]:
    """Warn if there are more keys to copy than records with such keys; return the tallies.

    Records with equal keys are all counted, so a key without a record may stay unnoticed.
    """
    keys = {*_keys_in(uri, access)} - {""}
    met = sum(tally.listed - tally.skipped.get(NOT_IN_KEYS, 0) for tally in tallies)
    if met < len(keys):
        of_all = f"{len(keys) - met} of {counted(len(keys), 'key')}"
        _LOG.warning("no record has %s in %s", of_all, printable(uri))
    return [*tallies]


class _Batch(Batch, frozen=True, array_like=True):
    samples: list[Sample]


def drop_repeated(
    grouped: tuple[Partition, Iterable[_Batch]], keep: OnDuplicate
) -> Iterator[Sample | SplitTallyOutput]:
    """Yield one sample of each key in a partition, and a note of the number of others."""
    (split, _), batches = grouped
    samples = [sample for batch in batches for sample in batch.samples]
    samples.sort(key=operator.attrgetter("position"), reverse=keep is OnDuplicate.FIRST)
    by_key = {sample.key: sample for sample in samples}  # the last one of a key stays
    yield from by_key.values()
    if repeated := len(samples) - len(by_key):
        note = SplitTally(split, skipped={"repeated_keys": repeated})
        yield beam.pvalue.TaggedOutput("split_tallies", note)


@dataclass(eq=False)
class DropRepeated(beam.PTransform):
    """Samples -> one sample of each key, and counts of all; the others are counted as skipped.

    Attributes:
        keep: which one stays, in the order of the sources.
        split_tallies: one `SplitTally` per split.
    """

    keep: OnDuplicate
    split_tallies: beam.PCollection[SplitTally]

    def expand(
        self, samples: beam.PCollection[Sample]
    ) -> tuple[beam.PCollection[Sample], beam.PCollection[SplitTally]]:
        """Group by key in partitions."""
        batches = samples | "BatchSamples" >> BatchByName(split_and_key, _Batch)
        grouped = (batches,) | "GroupKeys" >> GroupBatches(_Batch)
        drop = beam.FlatMap(drop_repeated, self.keep)
        kept = grouped | "KeepOne" >> drop.with_outputs("split_tallies", main="samples")
        tallies = self.split_tallies, kept.split_tallies
        return kept.samples, tallies | "AddRepeated" >> AddSplitTallies()
