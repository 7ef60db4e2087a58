"""Verify as a Beam pipeline: workers execute the tasks, and one result is written."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import apache_beam as beam
import msgspec
from apache_beam.metrics import Metrics
from apache_beam.pvalue import AsList, AsSingleton, TaggedOutput

from beam_tfrec.transforms import verify
from beam_tfrec.transforms.progress import COUNTERS
from beam_tfrec.transforms.storage import open_storage, split_uri

_Numbered = tuple[int, verify.Task]
_Task = TaggedOutput[Literal["tasks"], _Numbered]


@dataclass(eq=False)
class VerifyEverything(beam.PTransform):
    """Pipeline -> one `Findings`, after it is written as JSON.

    The counters `shards_verified`, `files_verified`, `records_verified` and `bytes_verified` in the
    namespace `beam_tfrec` are only for display.

    Attributes:
        config: configuration of the verification.
        result: URI of the result; a new one for each run.
    """

    config: verify.VerifyConfig
    result: str

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[verify.Findings]:
        """Verify everything."""
        looked = (
            root
            | "Config" >> beam.Create([self.config])
            | "LookAround" >> beam.FlatMap(_look_around).with_outputs("tasks", main="around")
        )
        parts = (
            looked.tasks
            | "SpreadTasks" >> beam.Reshuffle()
            | "Verify" >> beam.Map(_execute, AsSingleton(looked.around))
        )
        return looked.around | "Gather" >> beam.Map(_write_result, AsList(parts), self.result)


def _look_around(config: verify.VerifyConfig) -> Iterator[verify.Around | _Task]:
    around, tasks = verify.look_around(config)
    yield from (_Task("tasks", numbered) for numbered in enumerate(tasks))
    yield around


def _execute(numbered: _Numbered, around: verify.Around) -> tuple[int, verify.Findings]:
    number, task = numbered
    findings = verify.execute(task, around)
    kind = "files" if isinstance(task, str) else "shards"
    counts = {kind: findings.files, "records": findings.records, "bytes": findings.bytes}
    for name, count in counts.items():
        Metrics.counter(COUNTERS, f"{name}_verified").inc(count)
    return number, findings


def _write_result(
    around: verify.Around, parts: list[tuple[int, verify.Findings]], result: str
) -> verify.Findings:
    in_order = [findings for _, findings in sorted(parts, key=lambda pair: pair[0])]
    found = verify.gather(around, in_order)
    # If this step is executed again, the first result stays; both are of the same parts. The
    # data's access is not used, since --anonymous cannot write.
    folder, name = split_uri(result)
    open_storage(folder).create(name, msgspec.json.encode(found))
    return found
