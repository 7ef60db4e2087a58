"""Join the files of two roots by name: the two images of a pair, an image and its annotations."""

import functools
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import apache_beam as beam
import msgspec

from schemas.faults import NO_REJECTS, RejectBudget, fault_line
from transforms.sources.elements import BatchByKey, GroupBatches, num_groups
from transforms.sources.list_blobs import ListedFile, first_name
from transforms.storage.run_spool import RunSpool

OTHER_SIDE = 2
_PARTITIONS = 16_384  # of the join, on a cluster: each is held in memory

_Partition = tuple[str, int]


class NamedFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A listed file under the name that it is joined by.

    Attributes:
        source: the split that its root is given for.
        name: equal for files that belong together.
        side: 0 for a file of the first root, 1 for one of the second, 2 for one of neither kind,
            which is passed on for its reader to count.
        file: as listed.
    """

    source: str
    name: str
    side: int
    file: ListedFile


class JoinedFiles(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All files of a name, as a rule one a side; at least one in all.

    Attributes:
        source: the split that their roots are given for.
        name: that they are joined by.
        first: of the first root, by name.
        second: of the second root, by name.
        others: of neither kind, which have no partner, by name.
    """

    source: str
    name: str
    first: list[ListedFile] = []
    second: list[ListedFile] = []
    others: list[ListedFile] = []


class JoinTally(msgspec.Struct, frozen=True):
    """How many names a source has on which side; tallies add up.

    Attributes:
        both: names with a file on either side.
        first_alone: names of the first side alone.
        second_alone: names of the second side alone.
        example_first: smallest file name of those of the first side alone.
        example_second: likewise of the second.
    """

    both: int = 0
    first_alone: int = 0
    second_alone: int = 0
    example_first: str = ""
    example_second: str = ""


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    """Files of one partition."""

    files: list[NamedFile]


@dataclass(frozen=True)
class Sides:
    """The two sides of a join, in the words of messages, and what may be missing.

    Attributes:
        first_flag: the flag that names the first root, such as `--low`.
        second_flag: that of the second.
        remedy: what to do where most names have no partner.
        first_may_be_alone: a file of the first side needs no partner.
        budget: how many names may be alone.
    """

    first_flag: str
    second_flag: str
    remedy: str
    first_may_be_alone: bool = False
    budget: RejectBudget = NO_REJECTS


def join_files(source: str, files: Iterable[NamedFile]) -> list[JoinedFiles]:
    """Return the files of a source by name, in the order of names."""
    joined: dict[str, JoinedFiles] = {}
    for named in sorted(files, key=lambda named: (named.name, named.file.entry.name)):
        found = joined.setdefault(named.name, JoinedFiles(source, named.name, [], [], []))
        (found.first, found.second, found.others)[named.side].append(named.file)
    return list(joined.values())


def tally_of(joined: Iterable[JoinedFiles]) -> JoinTally:
    """Return on which sides names have files."""
    found = [one for one in joined if one.first or one.second]
    first = [one.first[0].entry.name for one in found if not one.second]
    second = [one.second[0].entry.name for one in found if not one.first]
    both = len(found) - len(first) - len(second)
    return JoinTally(both, len(first), len(second), first_name(first), first_name(second))


def add_join_tallies(tallies: Iterable[JoinTally]) -> JoinTally:
    """Return the sum of tallies; of the examples the smallest."""
    parts = list(tallies)
    return JoinTally(
        both=sum(part.both for part in parts),
        first_alone=sum(part.first_alone for part in parts),
        second_alone=sum(part.second_alone for part in parts),
        example_first=first_name(part.example_first for part in parts),
        example_second=first_name(part.example_second for part in parts),
    )


def refuse_mostly_alone(source: str, tally: JoinTally, sides: Sides) -> None:
    """Stop where more than half of a source's names have no partner: a root must be wrong.

    Unless the user accepts so many, and all of them are of one side, as where files were deleted:
    then they are rejects like others.

    Raises:
        RuntimeError: `E-SET-MISSING`, with what names of either side look like.
    """
    first = 0 if sides.first_may_be_alone else tally.first_alone
    alone, names = first + tally.second_alone, first + tally.second_alone + tally.both
    one_sided = not (tally.first_alone and tally.second_alone)
    if 2 * alone <= names or (one_sided and alone <= sides.budget.allowed(names)):
        return
    examples = (sides.first_flag, tally.example_first), (sides.second_flag, tally.example_second)
    shown = " and ".join(f"{name!r} of {flag}" for flag, name in examples if name)
    what = f"{alone} of {names} names have no partner, such as {shown}"
    raise RuntimeError(fault_line("E-SET-MISSING", f"files of {source}", what, sides.remedy))


@dataclass(eq=False)
class JoinFiles(beam.PTransform):
    """Named files -> those of each name together, each name of a source once, in any order.

    A group-by on (source, name) in partitions, whose size is all that a worker holds. Stops before
    anything comes out where most names have no partner: they are joined to be counted, and again
    when the counts are there, which holds less than what was joined would take.

    Attributes:
        sides: what they are, and what may be missing.
        spool: where files wait at the group-by; None where they travel.
    """

    sides: Sides
    spool: RunSpool | None = None

    def expand(self, files: beam.PCollection[NamedFile]) -> beam.PCollection[JoinedFiles]:
        """Join on the name."""
        count = num_groups(files.pipeline, _PARTITIONS)
        batch = beam.ParDo(
            BatchByKey(functools.partial(_partitions_of, count=count), _Batch, count)
        )
        batches = files | "BatchFiles" >> batch.with_output_types(tuple[_Partition, _Batch])
        together = (batches,) | "JoinOnName" >> GroupBatches(_Batch, self.spool)
        checked = (
            together
            | "Tally" >> beam.Map(_tally)
            | "AddTallies" >> beam.CombinePerKey(add_join_tallies)
            | "RefuseMostlyAlone" >> beam.Map(_checked, self.sides)
        )
        return together | "Join" >> beam.FlatMap(_join, beam.pvalue.AsList(checked))


def _partitions_of(files: list[NamedFile], count: int) -> list[_Partition]:
    return [(named.source, zlib.crc32(named.name.encode()) % count) for named in files]


def _checked(element: tuple[str, JoinTally], sides: Sides) -> str:
    source, tally = element
    refuse_mostly_alone(source, tally, sides)
    return source


def _tally(grouped: tuple[_Partition, Iterable[_Batch]]) -> tuple[str, JoinTally]:
    return grouped[0][0], tally_of(_join(grouped, []))


def _join(
    grouped: tuple[_Partition, Iterable[_Batch]], _checked_sources: list[str]
) -> list[JoinedFiles]:
    (source, _), batches = grouped
    return join_files(source, [named for batch in batches for named in batch.files])
