"""Verify as a Beam pipeline: shards, files and sources spread over workers, one result comes back.

What `verify_data_set` does in threads is done here in steps, by the same functions.
"""

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam.metrics import Metrics
from apache_beam.pvalue import AsList, AsSingleton, TaggedOutput

from schemas.findings import Findings, Verified
from transforms import coders
from transforms.progress import COUNTERS
from transforms.storage import Access, open_storage
from transforms.verify.data_set import find_manifest
from transforms.verify.files import FilesFound, verify_file
from transforms.verify.parts import (
    RUN,
    SOURCES_AT_ONCE,
    Around,
    KeysOfShard,
    Place,
    SourceBatch,
    VerifyJob,
    gather,
    look_around,
    merge_parts,
    partition_keys,
)
from transforms.verify.shard import verify_shard
from transforms.verify.shard_reports import ShardsFound, ShardTask, Twice, find_twice
from transforms.verify.sources import (
    SourcesFound,
    SourcesIndex,
    compare_sources,
    indexes_of_sources,
    source_roots,
    sources_of_index,
)

coders.register(ShardTask, SourcesIndex, SourceBatch, KeysOfShard)

_Numbered = TaggedOutput[Literal["shards"], tuple[int, ShardTask]]
_Placed = TaggedOutput[Literal["files"], tuple[int, str]]
_Rooted = TaggedOutput[Literal["sources"], tuple[str, SourcesIndex]]
_Keys = TaggedOutput[Literal["keys"], tuple[tuple[int, int], KeysOfShard]]


@dataclass(eq=False)
class VerifyEverything(beam.PTransform):
    """Pipeline -> one `Verified`, once it is written as JSON where the job says.

    Counters `shards_verified`, `files_verified`, `records_verified` and `bytes_verified` in the
    namespace `beam_tfrec` are for display.

    Attributes:
        job: what is to be verified.
    """

    job: VerifyJob

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[Verified]:
        """Verify everything."""
        looked = (
            root
            | "Job" >> beam.Create([self.job])
            | "LookAround"
            >> beam.FlatMap(_look_around).with_outputs("shards", "files", "sources", main="around")
        )
        shards = looked.shards | "VerifyShards" >> VerifyShards(looked.around)
        files = looked.files | "VerifyFiles" >> VerifyFiles(self.job)
        sources = looked.sources | "VerifySources" >> VerifySources(self.job)
        return looked.around | "Gather" >> beam.Map(
            _write_result,
            AsList(shards.found),
            AsList(shards.twice),
            AsList(files),
            AsList(sources),
            self.job,
        )


class ShardReports(NamedTuple):
    """What comes of verifying shards.

    Attributes:
        found: (number of the data set, run) and what was found in the run's shards.
        twice: keys that come twice, with the number of their data set.
    """

    found: beam.PCollection[tuple[tuple[int, int], ShardsFound]]
    twice: beam.PCollection[tuple[int, Twice]]


@dataclass(eq=False)
class VerifyShards(beam.PTransform):
    """(number of a data set, task) -> what was found, in runs of shards; and keys that come twice.

    A shard is an element of its own, so that shards spread over workers.

    Attributes:
        around: one element, what the shards of each data set are to be like.
    """

    around: beam.PCollection[Around]

    def expand(self, tasks: beam.PCollection[tuple[int, ShardTask]]) -> ShardReports:
        """Verify every shard."""
        verified = (
            tasks
            | "SpreadShards" >> beam.Reshuffle()
            | "VerifyShard"
            >> beam.FlatMap(_verify_shard, AsSingleton(self.around)).with_outputs(
                "keys", main="found"
            )
        )
        twice = (
            verified.keys
            | "MeetKeys" >> beam.GroupByKey()
            | "FindTwice" >> beam.FlatMap(_find_twice)
        )
        return ShardReports(verified.found | "AddShards" >> _MergeRuns(ShardsFound), twice)


@dataclass(eq=False)
class VerifyFiles(beam.PTransform):
    """(place, URI) of a TFRecord file -> (0, run) and what was found in the run's files.

    Attributes:
        job: how files are looked into.
    """

    job: VerifyJob

    def expand(
        self, files: beam.PCollection[tuple[int, str]]
    ) -> beam.PCollection[tuple[tuple[int, int], FilesFound]]:
        """Verify every file."""
        return (
            files
            | "SpreadFiles" >> beam.Reshuffle()
            | "VerifyFile" >> beam.Map(_verify_file, self.job)
            | "AddFiles" >> _MergeRuns(FilesFound)
        )


@dataclass(eq=False)
class VerifySources(beam.PTransform):
    """Index of a shard -> (0, run) and what was found in the sources of the run's shards.

    Attributes:
        job: where the sources lie.
    """

    job: VerifyJob

    def expand(
        self, indexes: beam.PCollection[tuple[str, SourcesIndex]]
    ) -> beam.PCollection[tuple[tuple[int, int], SourcesFound]]:
        """Hash every source."""
        return (
            indexes
            | "SpreadIndexes" >> beam.Reshuffle()
            | "ReadIndex" >> beam.FlatMap(_read_sources, self.job.access)
            | "SpreadSources" >> beam.Reshuffle()
            | "HashSources" >> beam.Map(_hash_sources, self.job)
            | "AddSources" >> _MergeRuns(SourcesFound)
        )


@dataclass(eq=False)
class _MergeRuns(beam.PTransform):
    """((number, run), (place, part)) -> ((number, run), sum of the run's parts in their order).

    Attributes:
        kind: of the parts.
    """

    kind: type

    def expand(self, parts: beam.PCollection) -> beam.PCollection:
        """Add up the parts of each run."""
        kind: Any = self.kind
        return (
            parts
            | "MeetRuns" >> beam.GroupByKey()
            | "MergeRun"
            >> beam.MapTuple(_merge_run).with_output_types(tuple[tuple[int, int], kind])
        )


def _look_around(job: VerifyJob) -> Iterator[Around | _Numbered | _Placed | _Rooted]:
    around, shards, files = look_around(job)
    for number, tasks in enumerate(shards):
        for task in tasks:
            yield _Numbered("shards", (number, task))
    for file in enumerate(files):
        yield _Placed("files", file)
    for data_set in around.data_sets if job.sources else ():
        if data_set.rules is not None:
            root = data_set.rules.root
            manifest = find_manifest(open_storage(root, job.access), Findings())
            if manifest is not None:
                for index in indexes_of_sources(manifest, job.sources):
                    yield _Rooted("sources", (root, index))
    yield around


def _verify_shard(
    numbered: tuple[int, ShardTask], around: Around
) -> Iterator[tuple[tuple[int, int], tuple[Place, ShardsFound]] | _Keys]:
    number, task = numbered
    data_set = around.data_sets[number]
    assert data_set.rules is not None  # else there would be no task
    report = verify_shard(task, data_set.rules)
    _count(shards=1, records=report.records, bytes=report.read_bytes)
    for partition, keys in partition_keys(task, report.keys, data_set.partitions):
        yield _Keys("keys", ((number, partition), keys))
    found = ShardsFound()
    found.add(task, report)
    yield (number, task.place // RUN), ((task.place,), found)


def _find_twice(
    partition: tuple[tuple[int, int], Iterable[KeysOfShard]],
) -> Iterator[tuple[int, Twice]]:
    (number, _), shards = partition
    in_order = sorted(shards, key=operator.attrgetter("place"))
    for twice in find_twice((s.place, s.split, s.file, s.digests) for s in in_order):
        yield number, twice


def _verify_file(
    placed: tuple[int, str], job: VerifyJob
) -> tuple[tuple[int, int], tuple[Place, FilesFound]]:
    place, uri = placed
    report = verify_file(uri, job.access, deep=job.deep)
    _count(files=1, records=report.records, bytes=report.bytes)
    found = FilesFound()
    found.add(uri, report)
    return (0, place // RUN), ((place,), found)


def _read_sources(rooted: tuple[str, SourcesIndex], access: Access) -> Iterator[SourceBatch]:
    root, index = rooted
    tasks = sources_of_index(index, open_storage(root, access))
    for number, start in enumerate(range(0, len(tasks), SOURCES_AT_ONCE)):
        yield SourceBatch(number, index, tasks[start : start + SOURCES_AT_ONCE])


def _hash_sources(
    batch: SourceBatch, job: VerifyJob
) -> tuple[tuple[int, int], tuple[Place, SourcesFound]]:
    roots = source_roots(batch.index.split, job.sources, job.access)
    found = compare_sources(batch.tasks, roots)
    _count(bytes=found.bytes)
    place = batch.index.place
    return (0, place // RUN), ((place, batch.number), found)


def _merge_run(
    run: tuple[int, int], parts: Iterable[tuple[Place, Any]]
) -> tuple[tuple[int, int], Any]:
    return run, merge_parts(parts)


def _write_result(
    around: Around,
    shards: list[tuple[tuple[int, int], ShardsFound]],
    twice: list[tuple[int, Twice]],
    files: list[tuple[tuple[int, int], FilesFound]],
    sources: list[tuple[tuple[int, int], SourcesFound]],
    job: VerifyJob,
) -> Verified:
    of_data_set: dict[int, list[tuple[Place, ShardsFound]]] = {}
    for run, found in shards:
        of_data_set.setdefault(run[0], []).append((run, found))
    verified = gather(
        around,
        {number: merge_parts(runs) for number, runs in of_data_set.items()},
        twice,
        merge_parts(files) if files else FilesFound(),
        (merge_parts(sources) if sources else SourcesFound()) if job.sources else None,
    )
    # A second execution of this step finds the result there, of the same reports.
    # Not with the data's access: its --anonymous is for public data, which this is not.
    open_storage(job.folder).create(job.name, msgspec.json.encode(verified))
    return verified


def _count(**counts: int) -> None:
    for name, count in counts.items():
        Metrics.counter(COUNTERS, f"{name}_verified").inc(count)
