"""Write the `tf.train.Example`s of a Beam pipeline as a data set, and read those of a data set.

`WriteExamples` and `ReadExamples` are transforms for any pipeline (docs/write-examples.md).
"""

import hashlib
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from beam_tfrec.pipelines.data_set import DataSetConfig, build
from beam_tfrec.schemas.faults import NO_REJECTS, RejectBudget
from beam_tfrec.schemas.layouts.records import RecordsLayout, found_of_data_set
from beam_tfrec.schemas.manifest import Label, Manifest
from beam_tfrec.schemas.samples import records_root
from beam_tfrec.schemas.shards import ShardNames
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms.gate import GateLimits
from beam_tfrec.transforms.records.read_records import (
    PlanRecords,
    RecordReader,
    RecordSource,
    parts_of,
    read_part,
)
from beam_tfrec.transforms.records.stage_records import STAGED_ROOT, StageExamples, Staging
from beam_tfrec.transforms.shard_table import Sharding
from beam_tfrec.transforms.shuffle.elements import is_in_process
from beam_tfrec.transforms.sources.read_samples import Item, SourceSamples, SplitSource
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, is_local, join_uri

_SHARDING = "num_shards", "records_per_shard", "shard_bytes", "hosts", "seed"
"""Fields of `WriteExamples` that make its `Sharding`."""


@dataclass(frozen=True)
class StagingConfig(DataSetConfig):
    """A data set of finished records, some of which are staged before they are copied.

    Attributes:
        temp_location: folder for staged records, which other programs may use too; empty for a
            folder in the output.
        run: name of this run's folder of staged records.
    """

    layout: RecordsLayout = field(default_factory=RecordsLayout, kw_only=True)
    temp_location: str = field(default="", kw_only=True)
    run: str = field(default_factory=lambda: uuid.uuid4().hex, kw_only=True, compare=False)

    @property
    def staging(self) -> Staging:
        """Place of the staged records."""
        folder = join_uri(self.output, "_staged")
        if self.temp_location:
            output = os.path.abspath(self.output) if is_local(self.output) else self.output
            digest = hashlib.blake2b(output.encode(), digest_size=16).hexdigest()
            folder = join_uri(self.temp_location, f"staged-{digest}")
        return Staging(folder, self.run, self.access)

    @property
    def roots(self) -> Mapping[str, str]:
        """URI per root name of the samples' blobs."""
        return {**self.listed_roots, STAGED_ROOT: self.staging.uri}

    @property
    def split_fields(self) -> None:
        """None: only the records show the features that `split_by` and `group_by` may name."""
        return None

    def after_commit(self, manifests: beam.PCollection[Manifest]) -> beam.PCollection[Manifest]:
        """Delete the run's staged records at its end, and those of dead runs at once."""
        staging = manifests.pipeline | "Staging" >> beam.Create([self.staging])
        staging | "DeleteOthers" >> beam.Map(Staging.delete_others)
        return manifests | "DeleteStaged" >> beam.Map(self.staging.delete)

    def clean_up(self, manifest: Manifest) -> None:
        """Delete staged records, since a complete data set needs none."""
        self.staging.delete_others()
        self.staging.delete(manifest)


def _alone(item: Item) -> tuple[Item]:
    """Return the one item of a source's piece that is an item."""
    return (item,)


@dataclass(frozen=True, kw_only=True)
class ExamplesConfig(StagingConfig):
    """A data set of the Examples of a program; see `WriteExamples`."""

    split: str
    labels: Mapping[int, str]

    @property
    def given(self) -> tuple[str, ...]:
        """The splits that sources are given for."""
        return (self.split,)

    @property
    def listed_roots(self) -> Mapping[str, str]:
        """None: the source is not in files."""
        return {}

    def read_sources(self, root: Any) -> SourceSamples:
        """Build the part of the graph that stages the Examples of a PCollection."""
        stage = StageExamples(self.split, self.splitting, self.staging)
        items = root | "StageExamples" >> beam.ParDo(stage)
        if self.labels:
            labels = [Label(number, name) for number, name in sorted(self.labels.items())]
            found = found_of_data_set(self.layout.name, labels)
            notes = [SplitSource(split, labels=labels, found=found) for split in self.splits]
            noted = root.pipeline | "Labels" >> beam.Create(notes)
            items = (items, noted) | "AddLabels" >> beam.Flatten()
        return items | "CountSamples" >> self.read_samples(_alone)


@dataclass(eq=False)
class WriteExamples(beam.PTransform):
    """Pairs of a key and a `tf.train.Example` -> the manifest of the committed data set.

    An Example is a protobuf message or its bytes. The keys decide the order, and must differ. The
    same pairs give the same files, on any runner and in any order of arrival.

    Attributes:
        output: folder or URI of the data set.
        split: split of all records, unless `splitting` divides them.
        num_shards: number of shards; None to choose it by size.
        records_per_shard: records of every shard except the last; instead of `num_shards`.
        shard_bytes: target size of a shard; None for 150 MB, with at least 16 shards.
        hosts: number of hosts that read; the number of shards is a multiple.
        seed: seed of the shuffle.
        splitting: rule that divides the records into splits.
        labels: class names by id.
        names: naming scheme of shard files.
        budget: limit of rejected records.
        access: credentials and limits for stores.
        limits: limits of every worker process.
        temp_location: folder for staged records; empty for a folder in the output.
    """

    output: str
    split: str = "train"
    num_shards: int | None = None
    records_per_shard: int | None = None
    shard_bytes: int | None = None
    hosts: int = 1
    seed: int = 0
    splitting: Splitting = field(default_factory=Splitting)
    labels: Mapping[int, str] = field(default_factory=dict)
    names: ShardNames = field(default_factory=ShardNames)
    budget: RejectBudget = NO_REJECTS
    access: Access = DEFAULT_ACCESS
    limits: GateLimits = field(default_factory=GateLimits)
    temp_location: str = ""

    def __post_init__(self) -> None:
        """Refuse options that do not fit together."""
        given = {name: value for name, value in vars(self).items() if name not in _SHARDING}
        shards = {} if self.num_shards is None else {"": self.num_shards}
        sizes = {name: getattr(self, name) for name in _SHARDING[1:]}
        self._config = ExamplesConfig(**given, sharding=Sharding(shards, **sizes))

    def expand(self, examples: beam.PCollection[tuple[str, Any]]) -> beam.PCollection[Manifest]:
        """Stage the records, then plan, copy and commit them.

        Raises:
            ValueError: when the collection is not bounded, or has windows.
        """
        if not examples.is_bounded or not isinstance(examples.windowing.windowfn, GlobalWindows):
            what = f"bounded and in the global window, got {examples.windowing.windowfn}"
            raise ValueError(f"examples must be {what}: apply beam.WindowInto, in a batch pipeline")
        return build(examples, self._config)


@dataclass(eq=False)
class ReadExamples(beam.PTransform):
    """Pipeline root -> key and `tf.train.Example` bytes of each record of a split, in any order.

    Ranges of shards, of about 64 MB, are read in parallel. All checksums are compared.

    Attributes:
        uri: folder or URI of a data set.
        split: split to read.
        access: credentials and limits for stores.
    """

    uri: str
    split: str = "train"
    access: Access = DEFAULT_ACCESS

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[tuple[str, bytes]]:
        """Find the shards, and read their parts."""
        source = {records_root(self.split, 0): RecordSource(self.split, 0, self.uri)}
        reader = RecordReader(Splitting(), source, self.access)
        shards = root | "FindShards" >> PlanRecords(reader)
        parts = shards.pieces | "Parts" >> beam.FlatMap(parts_of)
        if not is_in_process(root):
            parts |= "SpreadParts" >> beam.Reshuffle()
        return parts | "ReadParts" >> beam.FlatMap(read_part, self.uri, self.access)
