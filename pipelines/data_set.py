"""The configuration that all pipelines share, and the graph from samples to the manifest.

A pipeline adds its reader (which samples there are) and its layout (what an Example holds).
`pipelines/folder.py` is a short one.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import apache_beam as beam

from beam_tfrec.schemas.faults import did_you_mean
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.manifest import PLAN_NAME, Manifest
from beam_tfrec.schemas.samples import Order, Sample, is_panoptic_root
from beam_tfrec.schemas.shards import is_split_name
from beam_tfrec.schemas.splits import CLASS, GIVEN, HASH, STRATIFIED, bucket_split
from beam_tfrec.transforms.build_records import ShardJob, record_bytes
from beam_tfrec.transforms.commit import Commit
from beam_tfrec.transforms.data_set_job import DataSetJob
from beam_tfrec.transforms.earlier import Since
from beam_tfrec.transforms.find_duplicates import FindDuplicates
from beam_tfrec.transforms.gate import GateLimits
from beam_tfrec.transforms.images.check_images import Check
from beam_tfrec.transforms.images.conversion import NO_CONVERSION, Conversion
from beam_tfrec.transforms.pin_blobs import PinBlobs
from beam_tfrec.transforms.plan_shards import PlannedShards, PlanShards
from beam_tfrec.transforms.publish_plan import publish
from beam_tfrec.transforms.shard_table import Sharding
from beam_tfrec.transforms.shuffle.elements import spool_for
from beam_tfrec.transforms.shuffle.run_spool import RunSpool
from beam_tfrec.transforms.sources.read_samples import (
    AddSplitTallies,
    Item,
    ReadSamples,
    SourceSamples,
    is_there,
    uri_identity,
)
from beam_tfrec.transforms.storage import array_record, check_uri, name_below, open_storage
from beam_tfrec.transforms.write_shards import WriteShards

_MAX_SPLIT_CHARS = 200  # a file name has at most 255


@dataclass(frozen=True, kw_only=True)
class DataSetConfig(DataSetJob):
    """A whole conversion. A subclass adds the sources.

    Attributes:
        sharding: number of shards and order.
        check: how closely images are checked.
        conversion: changes to pixels.
        limits: limits of every worker process.
        report: write `report.html` at the end; None to do so if that needs no remote request.
        overwrite: delete an earlier data set first.
        since: earlier data sets that this one adds to.
        waits: wait for the job's end, and print the summary.
        plan: `text` or `json` to print what the run would make, instead of running; empty to run.
        quiet: print no progress and no notes.
        drop_similar: URI of a table of near copies; only the image to keep of each cluster is
            written. Empty to write all.
        similar_identity: size and checksum of that table, as `completed` finds them.
    """

    sharding: Sharding = field(default_factory=Sharding)
    check: Check = Check.HEADER
    conversion: Conversion = NO_CONVERSION
    limits: GateLimits = field(default_factory=GateLimits)
    report: bool | None = None
    overwrite: bool = False
    since: Since = field(default_factory=Since)
    waits: bool = True
    plan: str = ""
    quiet: bool = False
    drop_similar: str = ""
    similar_identity: str = ""

    images_field: ClassVar[str] = ""
    """Field with the URI of each split's images, which may be a data set; empty for none."""

    takes_since: ClassVar[bool] = True
    """Whether any run of this source may add to earlier data sets."""

    def __post_init__(self) -> None:
        """Refuse options that do not fit together."""
        if not self.output:
            raise ValueError("output must not be empty, got '': give the data set's folder or URI")
        if self.overwrite and self.trust_manifest:
            raise ValueError("overwrite and trust_manifest exclude each other, got both: give one")
        for split in self.splits:  # `all` is TFDS's word for every split
            if not is_split_name(split) or split == "all" or len(split) > _MAX_SPLIT_CHARS:
                what = "a split must be lower-case letters, digits and _, a letter first, at most"
                what += f" {_MAX_SPLIT_CHARS} characters, and not 'all'; got {split!r}"
                raise ValueError(f"{what}: rename it")
        self._check_splitting()
        # The layout says whether images become plain pixels. `Conversion` checks its options again.
        conversion = replace(self.conversion, pixels_dtype=self.layout.pixels_dtype)
        object.__setattr__(self, "conversion", conversion)
        source = self.source_flag if self.splitting.is_given else "--splits"
        check_splits_named("num_shards", self.sharding.num_shards, source, self.splits)
        check_splits_named("order", self.sharding.order, source, self.splits)
        if self.conversion.buckets:
            object.__setattr__(self, "sharding", self._sharding_of_buckets())
        if self.sharding.seed and {*map(self.sharding.order_of, self.splits)} == {Order.INPUT}:
            raise ValueError(f"seed needs a shuffled split, got {self.sharding.seed}: leave it out")
        self.names.check_format(array_record=bool(self.array_record_options))
        if self.array_record_options:
            array_record.check_options(self.array_record_options)
        self.names.check_splits(list(self.splits), self.sharding.num_shards)
        self._check_output()
        if self.drop_similar and self.layout.per_annotation:
            raise ValueError(f"drop_similar needs whole images, got {self.layout.name}: omit it")
        if self.drop_similar and (least := self.conversion.min_bucket_px):  # or none is left
            what = f"min_bucket must come without drop_similar, got {least}"
            raise ValueError(f"{what}: remove small images from the source first")
        self.access.refuse_unused(self.roots.values(), self.all_uris, self.output)
        for uri in self.all_uris:
            check_uri(uri)
        if self.since.names:
            self.check_since()

    def read_sources(self, root: Any) -> SourceSamples:
        """Build the part of the graph that reads the sources, from the pipeline's root or input."""
        raise NotImplementedError

    def after_commit(self, manifests: beam.PCollection[Manifest]) -> beam.PCollection[Manifest]:
        """Build the steps that follow the commit, such as deleting temporary files."""
        return manifests

    def clean_up(self, manifest: Manifest) -> None:
        """Delete what a run has left that was killed after its commit."""

    @property
    def given_splits(self) -> tuple[str, ...]:
        """The splits that sources are given for."""
        return tuple(getattr(self, self.source_flag.removeprefix("--")))

    @property
    def source_splits(self) -> tuple[str, ...]:
        """The splits of the samples as they are read."""
        return self.splitting.splits(self.given_splits)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the data set: with size buckets, one more for each bucket."""
        read, buckets = self.source_splits, self.conversion.buckets
        return read + tuple(bucket_split(split, box) for split in read for box in buckets)

    @property
    def split_fields(self) -> frozenset[str] | None:
        """Fields that `split_by` and `group_by` may name; None if only the data show them."""
        return frozenset()

    @property
    def roots(self) -> Mapping[str, str]:
        """URI per root name of the samples' blobs."""
        images: Mapping[str, str] = getattr(self, self.images_field)
        return images

    @property
    def listed_roots(self) -> Mapping[str, str]:
        """URI per root name of every folder that is listed: its listing identifies the source."""
        return self.roots

    @property
    def shared_files(self) -> Sequence[str]:
        """URIs of files that identify the sources of all splits; sources may add theirs."""
        return [self.label_file] if self.label_file else []

    def files_of(self, split: str) -> Sequence[str]:
        """Return the URIs of files that identify the sources of a given split."""
        return self.shared_files

    @property
    def source_files(self) -> Mapping[str, Sequence[str]]:
        """URIs of files that identify the sources, per split of the data set."""
        first, is_given = next(iter(self.given_splits), ""), self.splitting.is_given
        return {s: self.files_of(s if is_given else first) for s in self.source_splits}

    @property
    def all_files(self) -> list[str]:
        """URIs of files that identify the sources, each once."""
        return [*dict.fromkeys(uri for uris in self.source_files.values() for uri in uris)]

    @property
    def all_uris(self) -> list[str]:
        """Everything that workers read and write."""
        folders = {**self.listed_roots, **self.roots}.values()
        files = self.all_files + self.option_files
        return [*folders, *files, *self.since.names, self.output]

    @property
    def option_files(self) -> list[str]:
        """URIs of files that options name, and that must lie apart from the output."""
        return [*filter(None, [self.exclude, self.drop_similar, self.splitting.group_table])]

    def completed(self) -> Self:
        """Return a copy with what the sources show: roots that are data sets, columns, checksums.

        Raises:
            ValueError: when options do not fit the sources.
        """
        changes: dict[str, Any] = {}
        if table := self.splitting.group_table:
            identity = uri_identity([table], "", self.access)
            changes["splitting"] = replace(self.splitting, table_identity=identity)
        if self.drop_similar:
            changes["similar_identity"] = uri_identity([self.drop_similar], "", self.access)
        # The root of a split's photos has the split's name.
        photos = {root: uri for root, uri in self.roots.items() if root in self.given_splits}
        if self.images_field and photos:
            changes[self.images_field] = {s: self._image_root(s, uri) for s, uri in photos.items()}
        return replace(self, **changes)

    def _image_root(self, split: str, uri: str) -> str:
        """Return the URI of a split's photos, which may be those of a data set."""
        if open_storage(uri, self.access).stat(PLAN_NAME) is None:
            return uri
        from beam_tfrec.transforms.storage.read_data_set import image_root  # rarely needed

        return image_root(uri, split if self.splitting.is_given else "", self.access)

    @property
    def in_order(self) -> bool:
        """Whether a split keeps the order of its source, so that positions matter."""
        return any(self.sharding.order_of(split) is Order.INPUT for split in self.splits)

    def _check_splitting(self) -> None:
        """Refuse to divide several sources, since keys may repeat, or by unknown fields."""
        if not self.splitting.is_given and len(self.given_splits) > 1:
            given = " and ".join(sorted(self.given_splits))
            raise ValueError(f"split_by divides one source, got {given}: give one of them")
        known, splitting = self.split_fields, self.splitting
        by_class = splitting.by == STRATIFIED and splitting.stratify_by == CLASS
        if by_class and type(self.layout).classes_of is Layout.classes_of:
            what = f"split_by stratified needs classes, layout {self.layout.name} has none"
            raise ValueError(f"{what}: give --stratify_by FIELD, or --split_by hash")
        for option, name in self.splitting.fields.items():
            if known is not None and name not in known:
                what = f"name a field ({' or '.join(sorted(known)) or 'none'}), got {name!r}"
                remedy = "leave it out"
                if option == "split_by":
                    what = f"be given, hash or stratified, or {what}"
                    remedy = did_you_mean(name, (GIVEN, HASH, STRATIFIED), remedy)
                raise ValueError(f"{option} must {what}: {remedy}")

    def _sharding_of_buckets(self) -> Sharding:
        """Return the sharding, where options of a split are those of its size buckets too."""
        if twice := sorted({split for split in self.splits if self.splits.count(split) > 1}):
            raise ValueError(f"a split must not be named as a bucket, got {twice}: rename it")
        buckets = self.conversion.buckets
        names = {bucket_split(split, box): split for split in self.source_splits for box in buckets}
        shards, order = self.sharding.num_shards, self.sharding.order
        return replace(
            self.sharding,
            num_shards={n: shards[of] for n, of in names.items() if of in shards} | {**shards},
            order={n: order[of] for n, of in names.items() if of in order} | {**order},
        )

    def check_since(self) -> None:
        """Refuse `since` with options that must see the samples of earlier data sets too.

        Sources also refuse it if keys cannot be compared with those of earlier data sets.
        """
        options = {"buckets": self.conversion.buckets, "drop_similar": self.drop_similar}
        for option, value in options.items():
            if value:
                got = " ".join(self.since.names)
                raise ValueError(f"since must come without {option}, got {got}: leave one out")

    def _check_output(self) -> None:
        """Refuse an output that is a source, lies in a source, or contains one."""
        folders, files = {*self.listed_roots.values()}, {*self.all_files}
        kept_apart = {*folders, *self.option_files}
        for source in sorted(files | kept_apart):
            below = name_below(source, self.output)
            lies_in = below == "" or (below and source in folders)
            if lies_in or (source in kept_apart and name_below(self.output, source)):
                what = f"output must lie apart from all sources, got {self.output!r} and {source!r}"
                remedy = "give a folder that neither holds a source nor lies in one"
                raise ValueError(f"{what}: {remedy}")

    @property
    def unpacks_archives(self) -> bool:
        """Whether workers unpack archives to their disk."""
        return False

    def samples_step(self, reader: Callable[[Any], Iterable[Item]]) -> ReadSamples:
        """Return the step that reads samples and drops excluded ones."""
        return ReadSamples(
            reader,
            self.source_files,
            self.exclude,
            self.access,
            splitting=self.splitting,
            classes_of=self.layout.classes_of if self.splitting.by == STRATIFIED else None,
            earlier=[earlier.uri for earlier in self.earlier.sets],
        )

    @property
    def estimate_record_bytes(self) -> Callable[[Sample], int]:
        """Function that estimates a record's bytes, to choose the number of shards."""
        return functools.partial(record_bytes, layout=self.layout, conversion=self.conversion)

    def shard_job(self, spool: RunSpool | None = None) -> ShardJob:
        """Return the settings that all shards of a run share."""
        names = {part.name for part in fields(ShardJob)} - {"spool"}
        return ShardJob(**{name: getattr(self, name) for name in names}, spool=spool)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        similar = {"drop_similar": self.similar_identity} if self.drop_similar else {}
        return {
            **similar,
            **self.sharding.options(),
            **self.layout.options(),
            **self.earlier.options(),
            **self.conversion.options(),
            **self.splitting.options(),
            **array_record.plan_options(self.array_record_options),
            "check": self.check.value,
            "layout": self.layout.name,
            "shard_names": self.names.template,
        }


@dataclass(frozen=True)
class ImagesConfig(DataSetConfig):
    """A whole conversion of images in a folder per split. A subclass adds the rest.

    Attributes:
        images: URI of the folder of images, or of a data set, per split.
    """

    images: Mapping[str, str]

    images_field: ClassVar[str] = "images"


def check_splits_named(
    option: str, named: Mapping[str, Any], source_flag: str, splits: Iterable[str]
) -> None:
    """Refuse an option's value for an unknown split, or for the others where none is left."""
    if {"", *splits} <= {*named}:
        left = getattr(named[""], "value", named[""])
        raise ValueError(f"{option} must be for a split, got {left} for none: leave it out")
    if unknown := sorted({*named} - {"", *splits}):
        what = f"{option} must name splits of {source_flag}, got {unknown}"
        raise ValueError(f"{what}: give {sorted(splits)}")


def check_same_splits(**sources: Mapping[str, object]) -> None:
    """Refuse two sources, given by their flags' names, with different splits."""
    (one, first), (other, second) = sources.items()
    if not first or set(first) != set(second):
        got = f"{one} {sorted(first)} and {other} {sorted(second)}"
        what = f"{one} and {other} must name the same splits, got {got}"
        raise ValueError(f"{what}: give both as SPLIT=PATH")


def keys_option(made_of: Mapping[str, str]) -> dict[str, str]:
    """Return the plan's option `keys`: the parts of sample keys other than the row number.

    Without it, a later data set could hold a sample again under another key.

    Args:
        made_of: parts of the keys, per split of the sources; empty for the row's number alone.

    >>> keys_option({"train": "file:row", "val": ""})
    {'keys': 'train=file:row val=row'}
    """
    keys = " ".join(sorted({*made_of.values()}))
    if len({*made_of.values()}) > 1:
        keys = " ".join(f"{split}={of or 'row'}" for split, of in sorted(made_of.items()))
    return {"keys": keys} if keys else {}


def build(root: Any, config: DataSetConfig) -> beam.PCollection[Manifest]:
    """Build the graph: samples from the sources, shards from samples, one manifest.

    The root of a graph is the pipeline, or for `WriteExamples` a program's Examples.
    """
    (shards, table), read, spool = plan_data_set(root, config)
    counted = read.split_tallies, read.rejected
    as_lists = [beam.pvalue.AsList(each) for each in counted]
    plan = table | "PublishPlan" >> beam.Map(publish, *as_lists, config)
    infos = shards | "WriteShards" >> WriteShards(config.shard_job(spool), plan, config.limits)
    duplicates = None
    if len(config.splits) > 1:
        duplicates = infos | "FindDuplicates" >> FindDuplicates(config.output, config.access)
    commit = Commit(config, plan, *counted, read.root_tallies, duplicates)
    manifests = infos | "Commit" >> commit
    if config.report:
        from beam_tfrec.transforms.report.page import with_report  # late: only reports need it

        report = beam.Map(with_report, config.output, config.access)
        manifests = manifests | "WriteReport" >> report
    return config.after_commit(manifests)


def plan_data_set(
    root: Any, config: DataSetConfig
) -> tuple[PlannedShards, SourceSamples, RunSpool | None]:
    """Build the graph from the sources to the planned shards. It publishes nothing."""
    read, spool = read_pinned_samples(root, config)
    samples = read.samples
    if config.conversion.buckets:
        from beam_tfrec.transforms.sort_into_buckets import SortIntoBuckets  # only for --buckets

        sort = SortIntoBuckets(config.shard_job(spool), config.limits)
        samples, moved = samples | "SortIntoBuckets" >> sort
        tallies = (read.split_tallies, moved) | "CountMoved" >> AddSplitTallies()
        read = read._replace(split_tallies=tallies)
    planned = samples | "PlanShards" >> PlanShards(
        config.sharding, config.estimate_record_bytes, read.root_tallies, config.budget
    )
    return planned, read, spool


def read_pinned_samples(root: Any, config: DataSetConfig) -> tuple[SourceSamples, RunSpool | None]:
    """Build the graph from the sources to pinned samples; return them, and the run's spool."""
    pipeline = root if isinstance(root, beam.Pipeline) else root.pipeline
    spool = spool_for(pipeline, config.access.spool_dir)  # first, for readers and group-bys
    read = config.read_sources(root)
    samples, rejected, split_tallies, listing, root_tallies = read
    if config.splitting.optional_splits:
        there = beam.Filter(is_there, config.splitting)
        split_tallies = split_tallies | "SplitsThere" >> there
    skipped = None
    if sets := config.earlier.sets:
        from beam_tfrec.transforms.leave_out_earlier import LeaveOutEarlier  # only for --since

        divided = "" if config.splitting.is_given else next(iter(config.given_splits))
        leave_out = LeaveOutEarlier(
            sets, config.splits, rejected, split_tallies, config.access, divided
        )
        samples, rejected, split_tallies, skipped = samples | "LeaveOutEarlier" >> leave_out
    if listing is not None:  # otherwise the reader has pinned its samples
        panoptic = any(map(is_panoptic_root, config.roots))
        pin = PinBlobs(listing, [root_tallies, skipped], panoptic)
        samples, unpinned, root_tallies = samples | "PinBlobs" >> pin
        rejected = (rejected, unpinned) | "RejectedEarly" >> beam.Flatten()
    if config.drop_similar:
        from beam_tfrec.transforms.similar import DropSimilar  # numpy and pyarrow

        splits = config.source_splits if config.splitting.is_given else ()
        drop = DropSimilar(config.drop_similar, splits, config.access, config.budget, root_tallies)
        samples, similar = samples | "DropSimilar" >> drop
        rejected = (rejected, similar) | "RejectedSimilar" >> beam.Flatten()
    return SourceSamples(samples, rejected, split_tallies, root_tallies=root_tallies), spool
