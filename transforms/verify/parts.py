"""What verification is divided into for many workers, and how what they find adds up.

Reports are added up in their order, in runs and then all runs: no place holds more than what is
O(shards), and of findings the first of each kind. Keys of splits without an order of their own
meet in partitions.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from schemas.findings import Findings, Verified
from transforms.storage import DEFAULT_ACCESS, Access, is_local, open_storage
from transforms.verify.data_set import add_up, verify_around
from transforms.verify.files import FilesFound
from transforms.verify.paths import find_paths
from transforms.verify.shard_reports import ShardRules, ShardsFound, ShardTask, Twice
from transforms.verify.sources import SourcesFound, SourcesIndex, SourceTask

RUN = 256
"""Reports that are added up at a time."""
SOURCES_AT_ONCE = 256
"""Of an index, that an element has."""
_KEYS_OF_A_PARTITION = 500_000  # some 60 MB

Place = tuple[int, ...]
"""What reports are put in order by."""


@dataclass(frozen=True)
class VerifyJob:
    """What is to be verified, and where the result goes.

    Attributes:
        paths: data sets, folders of TFRecord files, and such files.
        folder: URI of the folder that the result is created in.
        name: of the result, another one each time.
        deep: read remote shards too, compare SHA-256, decode the images of foreign files.
        sources: roots of source files by split, `""` for every split; empty to hash none.
        access: how stores are reached.
    """

    paths: tuple[str, ...]
    folder: str
    name: str
    deep: bool = False
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    access: Access = DEFAULT_ACCESS


class DataSetToVerify(NamedTuple):
    """A data set whose shards are being verified.

    Attributes:
        around: what was found around them.
        rules: of all shards; None where there is no manifest to tell.
        partitions: of the keys of a split without an order of its own.
    """

    around: Verified
    rules: ShardRules | None
    partitions: int


class Around(NamedTuple):
    """What one worker sees before shards and files are looked into.

    Attributes:
        findings: of the paths.
        data_sets: in the order of the paths; elements name them by their number.
        files: how many there are.
    """

    findings: Findings
    data_sets: list[DataSetToVerify]
    files: int


class SourceBatch(msgspec.Struct, frozen=True, array_like=True):
    """Sources of a shard.

    Attributes:
        number: of the batch in its shard.
        index: of the shard.
        tasks: the sources.
    """

    number: int
    index: SourcesIndex
    tasks: list[SourceTask]


class KeysOfShard(msgspec.Struct, frozen=True, array_like=True):
    """What a partition gets of a shard's keys: their digests, which are 16 bytes each."""

    place: int
    split: str
    file: str
    digests: list[bytes]


Part = TypeVar("Part", ShardsFound, FilesFound, SourcesFound)


def check_folder(folder: str) -> None:
    """Refuse a folder for the result that is not there, before all is read in vain.

    Raises:
        RuntimeError: `E-ARG` where a path is no folder on this machine; a store is asked nothing.
    """
    if is_local(folder):
        open_storage(folder).require_folder()


def look_around(job: VerifyJob) -> tuple[Around, list[list[ShardTask]], list[str]]:
    """Return what is seen at once, the shards of each data set, and the other files.

    Raises:
        RuntimeError: where the result could not be left, a path is nothing, or a store fails.
    """
    check_folder(job.folder)
    around = Around(Findings(), [], 0)
    names, files = find_paths(job.paths, job.access, around.findings)
    shards: list[list[ShardTask]] = []
    for root in names:
        found, tasks, rules = verify_around(root, job.access, deep=job.deep)
        keys = sum(task.entry.records for task in tasks)
        partitions = 1 + keys // _KEYS_OF_A_PARTITION
        around.data_sets.append(DataSetToVerify(found, rules, partitions))
        shards.append(tasks)
    return around._replace(files=len(files)), shards, files


def partition_keys(
    task: ShardTask, digests: Iterable[bytes], partitions: int
) -> Iterator[tuple[int, KeysOfShard]]:
    """Yield what each partition gets of a shard's keys."""
    parts: dict[int, list[bytes]] = {}
    for digest in digests:
        parts.setdefault(int.from_bytes(digest[:4], "big") % partitions, []).append(digest)
    for partition, found in parts.items():
        yield partition, KeysOfShard(task.place, task.entry.split, task.entry.file, found)


def merge_parts(parts: Iterable[tuple[Place, Part]]) -> Part:
    """Return the sum of parts in the order of their places; at least one."""
    in_order = [part for _, part in sorted(parts, key=operator.itemgetter(0))]
    total = type(in_order[0])()  # parts are elements, which stay as they are
    for part in in_order:
        total.extend(part)
    return total


def gather(
    around: Around,
    shards: Mapping[int, ShardsFound],
    twice: Iterable[tuple[int, Twice]],
    files: FilesFound,
    sources: SourcesFound | None,
) -> Verified:
    """Return what is wrong, and what else is to be said.

    Args:
        around: what was seen before shards and files.
        shards: what was found in those of each data set.
        twice: keys that come twice, with the number of their data set.
        files: what was found in files.
        sources: what was found in the one data set's sources; None where none were asked for.

    Raises:
        RuntimeError: where reports are lost, which no runner may do.
    """
    found = Verified(Findings())
    found.findings.extend(around.findings)
    of_data_set: dict[int, list[Twice]] = {}
    for number, keys in twice:
        of_data_set.setdefault(number, []).append(keys)
    for number, data_set in enumerate(around.data_sets):
        one = data_set.around
        if data_set.rules is not None:
            reports = shards.get(number, ShardsFound())
            _check_reports(reports.shards, data_set.around.files)
            one = add_up(one, reports, of_data_set.get(number, ()), data_set.rules)
        if sources is not None and data_set.rules is not None:
            sources.add_to(one)
        found.extend(one)
    _check_reports(files.files, around.files)
    if files.files:
        found.extend(files.verified())
    return found


def _check_reports(found: int, wanted: int) -> None:
    if found != wanted:
        raise RuntimeError(f"the sum of reports does not hold: {found} came of {wanted}")
