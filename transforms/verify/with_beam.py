"""Verify as a Beam pipeline: tasks spread over workers, and one result comes back."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import apache_beam as beam
import msgspec
from apache_beam.metrics import Metrics
from apache_beam.pvalue import AsList, AsSingleton, TaggedOutput

from schemas.faults import Verified
from transforms.progress import COUNTERS
from transforms.storage import is_local, open_storage
from transforms.verify import (
    Around,
    Keys,
    Report,
    ShardPlace,
    Task,
    VerifyConfig,
    execute,
    find_twice,
    gather,
    look_around,
    partition_keys,
)

_Task = TaggedOutput[Literal["tasks"], Task]
_Keys = TaggedOutput[Literal["keys"], tuple[tuple[int, int], Keys]]


@dataclass(eq=False)
class VerifyEverything(beam.PTransform):
    """Pipeline -> one `Verified`, once it is written as JSON.

    Counters `shards_verified`, `files_verified`, `records_verified` and `bytes_verified` in the
    namespace `beam_tfrec` are for display.

    Attributes:
        config: what is to be verified.
        folder: URI of the folder that the result is created in.
        name: name of the result, another one each time.
    """

    config: VerifyConfig
    folder: str
    name: str

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[Verified]:
        """Verify everything."""
        looked = (
            root
            | "Config" >> beam.Create([self.config])
            | "LookAround"
            >> beam.FlatMap(_look_around, self.folder).with_outputs("tasks", main="around")
        )
        verified = (
            looked.tasks
            | "SpreadTasks" >> beam.Reshuffle()
            | "Verify"
            >> beam.FlatMap(_execute, AsSingleton(looked.around), self.config).with_outputs(
                "keys", main="reports"
            )
        )
        twice = (
            verified.keys
            | "MeetKeys" >> beam.GroupByKey()
            | "FindTwice" >> beam.FlatMap(_find_twice)
        )
        return looked.around | "Gather" >> beam.Map(
            _write_result, AsList(verified.reports), AsList(twice), self.folder, self.name
        )


def check_folder(folder: str) -> None:
    """Refuse a folder for the result that is not there, before all is read in vain.

    Raises:
        RuntimeError: `E-ARG` where a path is no folder on this machine; a store is asked nothing.
    """
    if is_local(folder):
        open_storage(folder).require_folder()


def _look_around(config: VerifyConfig, folder: str) -> Iterator[Around | _Task]:
    check_folder(folder)
    around, tasks = look_around(config)
    for task in tasks:
        yield _Task("tasks", task)
    yield around


def _execute(
    task: Task, around: Around, config: VerifyConfig
) -> Iterator[tuple[Task, Report] | _Keys]:
    report = execute(task, around, config)
    kind = "files" if task.shard is None else "shards"
    counts = {kind: not task.is_sources, "records": report.records, "bytes": report.read_bytes}
    for name, count in counts.items():
        Metrics.counter(COUNTERS, f"{name}_verified").inc(int(count))
    if report.keys:
        partitions = around.data_sets[task.data_set].partitions
        for part in partition_keys(task, report.keys, partitions):
            yield _Keys("keys", part)
        report.keys = []  # they meet in their partitions
    yield task, report


def _find_twice(
    partition: tuple[tuple[int, int], Iterable[Keys]],
) -> Iterator[tuple[ShardPlace, int]]:
    yield from find_twice(partition[1])


def _write_result(
    around: Around,
    reports: list[tuple[Task, Report]],
    twice: list[tuple[ShardPlace, int]],
    folder: str,
    name: str,
) -> Verified:
    verified = gather(around, sorted(reports, key=lambda found: found[0].number), twice)
    # A second execution of this step finds the result there, of the same reports.
    # Not with the data's access: its --anonymous is for public data, which this is not.
    open_storage(folder).create(name, msgspec.json.encode(verified))
    return verified
