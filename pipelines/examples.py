"""Write the `tf.train.Example`s of a Beam pipeline as a data set, and read those of a data set.

`WriteExamples` and `ReadExamples` are transforms for any pipeline (docs/write-examples.md).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from beam_tfrec.pipelines.data_set import build
from beam_tfrec.pipelines.staging import StagingConfig
from beam_tfrec.schemas.faults import NO_REJECTS, RejectBudget, run_fault
from beam_tfrec.schemas.labels import MAX_LABEL_ID
from beam_tfrec.schemas.layouts.records import RecordsLayout, found_of_data_set
from beam_tfrec.schemas.manifest import Label, Manifest
from beam_tfrec.schemas.shards import ShardNames
from beam_tfrec.schemas.splits import STRATIFIED, Splitting, split_without_bucket
from beam_tfrec.transforms.gate import GateLimits
from beam_tfrec.transforms.records.read_records import StageExamples
from beam_tfrec.transforms.shard_table import Sharding
from beam_tfrec.transforms.shuffle.elements import spread
from beam_tfrec.transforms.sources.read_samples import Item, SourceSamples, SplitTally
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, open_storage, read_data_set

_RESTORE = "restore the data set, or run its command again"
_SHARDING = "num_shards", "records_per_shard", "shard_bytes", "hosts", "seed"
"""Fields of `WriteExamples` that make its `Sharding`."""


def _alone(item: Item) -> tuple[Item]:
    """Return a piece that holds only this item."""
    return (item,)


@dataclass(frozen=True, kw_only=True)
class ExamplesConfig(StagingConfig):
    """A data set of the Examples of a program; see `WriteExamples`."""

    split: str
    labels: Mapping[int, str]
    layout: RecordsLayout = field(default_factory=RecordsLayout)

    def __post_init__(self) -> None:
        """Refuse a table of groups, and splits that need two passes."""
        if table := self.splitting.group_table:
            raise ValueError(f"group_by must name a feature, got {table!r}: write groups into one")
        if self.splitting.by == STRATIFIED:
            raise ValueError("split_by of WriteExamples must not be stratified: give hash")
        if not isinstance(self.labels, Mapping):
            what = f"labels must be names by numbers, got {self.labels!r}"
            raise ValueError(f"{what}: give such as {{1: 'cat'}}")
        for number, name in self.labels.items():
            if number not in range(MAX_LABEL_ID + 1) or not isinstance(name, str):
                what = f"names by numbers from 0 to {MAX_LABEL_ID}, got {{{number!r}: {name!r}}}"
                raise ValueError(f"labels must be {what}: give such as {{1: 'cat'}}")
        super().__post_init__()

    @property
    def given_splits(self) -> tuple[str, ...]:
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
            notes = [SplitTally(split, labels=labels, found=found) for split in self.splits]
            noted = root.pipeline | "Labels" >> beam.Create(notes)
            items = (items, noted) | "AddLabels" >> beam.Flatten()
        return items | "CountSamples" >> self.samples_step(_alone)


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
        kinds = {"names": ShardNames, "budget": RejectBudget, "splitting": Splitting}
        for name, kind in kinds.items():
            if not isinstance(value := getattr(self, name), kind):
                what = f"{name} must be a {kind.__name__}, got {value!r}"
                raise ValueError(f"{what}: give {kind.__name__}({value!r})")
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
        uris = root | "DataSet" >> beam.Create([self.uri])
        parts = uris | "FindParts" >> beam.FlatMap(_find_parts, self.split, self.access)
        read = beam.FlatMap(read_data_set.read_part, self.uri, self.access, _RESTORE)
        return spread(parts) | "ReadParts" >> read


def _find_parts(uri: str, split: str, access: Access) -> Iterator[read_data_set.ShardPart]:
    storage = open_storage(uri, access)
    manifest, _ = read_data_set.read_finished(storage, "uri")
    if manifest.is_array_record:
        what, remedy = "has ArrayRecord files", "copy it to TFRecord by beam-tfrec records"
        raise run_fault("E-ARG", uri, what, remedy)
    named = [name for name in manifest.splits if split in (name, split_without_bucket(name))]
    if not named:
        what, remedy = f"is a data set without a split {split}", ", ".join(manifest.splits)
        raise run_fault("E-ARG", uri, what, f"give split as one of {remedy}")
    # With size buckets, the split itself has no records.
    read = [split] if split in named and manifest.splits[split].records else named
    for shard in read_data_set.list_shards(storage, manifest, _RESTORE, read):
        yield from read_data_set.parts_of(shard)
