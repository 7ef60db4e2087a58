"""`Manifest` and `JobPlan`: the description of a finished data set, and the plan of a run.

A run writes the plan before the first shard, and the manifest after the last one. Both are JSON.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from beam_tfrec.schemas.faults import run_fault
from beam_tfrec.schemas.features import Feature, FeatureSpec
from beam_tfrec.schemas.samples import Order
from beam_tfrec.schemas.shards import COUNTED, FileSum, ShardNames, WrittenShard, shard_stems
from beam_tfrec.schemas.tfrecord import is_array_record

T = TypeVar("T")

FORMAT_VERSION = 4
"""Version of the output format. Every change of output bytes raises it.

Readers accept older versions and refuse newer ones than `NEWEST_VERSION`.
"""

NEWEST_VERSION = 5
"""Version of data sets in ArrayRecord files, which older programs must refuse.

Data sets in TFRecord files keep `FORMAT_VERSION`, and their bytes.
"""

MANIFEST_NAME = "manifest.json"
PLAN_NAME = "_plan.json"
REJECTED_NAME = "rejected.jsonl"
DUPLICATES_NAME = "duplicates.jsonl"
REPORT_NAME = "report.html"
SOURCES_DIR = "_sources"

CONVERSIONS = {"image_converted", "image_turned"}
"""Repairs that make an image differ from its source file."""


class Label(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """A class label.

    Attributes:
        id: number in the records; before `number_labels`, the id in the annotation files.
        name: name of the class.
        category_id: id in the annotation files; None, and left out of the JSON, if it equals `id`.
        keypoints: names of its keypoints in their order; left out of the JSON if empty.
        text: readable name if `name` is a code, such as a synset; left out of the JSON if empty.
    """

    id: int
    name: str
    category_id: int | None = None
    keypoints: tuple[str, ...] = ()
    text: str = ""

    @property
    def annotated_id(self) -> int:
        """Category id in the annotation files."""
        return self.id if self.category_id is None else self.category_id


class PlannedSplit(msgspec.Struct, frozen=True):
    """A split as planned.

    Attributes:
        samples: number of samples in its shards.
        shards: number of its shards.
    """

    samples: int
    shards: int


class JobPlan(msgspec.Struct, frozen=True):
    """Content of `_plan.json`: everything that decides the data set's samples and bytes.

    Attributes:
        format_version: version of the output format.
        options: options that decide bytes, by name, as text.
        labels: the label map.
        splits: planned samples and shards, by split.
        samples: digest of all samples with their annotations, hex.
        found: sorted names of what the sources hold, such as `boxes` and `captions`. They complete
            the layout; see `Layout.resolved`.
    """

    format_version: int
    options: dict[str, str]
    labels: list[Label]
    splits: dict[str, PlannedSplit]
    samples: str
    found: list[str] = []

    def order_of(self, split: str) -> Order:
        """Return a split's order from the option `order`, such as `all=shuffled train=input`."""
        orders = dict(part.partition("=")[::2] for part in self.options.get("order", "").split())
        return Order(orders.get(split, orders.get("all", Order.SHUFFLED.value)))


class SourceFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of several annotation files of a split.

    Attributes:
        kind: `instances`, `keypoints`, `captions` or `panoptic`.
        images: number of images in the file.
        annotations: number of annotations in the file.
        categories: number of categories in the file.
        joined_annotations: annotations merged with those of another file, such as an object's
            keypoints.
        images_not_listed: images of the split that only its other files list.
        images_of_other_size: images with another size in an earlier file. The earlier size is used.
    """

    kind: str
    images: int
    annotations: int
    categories: int
    joined_annotations: int = 0
    images_not_listed: int = 0
    images_of_other_size: int = 0


class Annotations(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts of a split's annotations by what became of them.

    `listed == written + sum(dropped) + lost + excluded + sum(skipped) + earlier`.

    Attributes:
        listed: annotations in the annotation files; annotations merged from two files count once.
        written: annotations in records.
        dropped: annotations that could not be used, by reason; their images' records exist, or
            their images are not in the file.
        lost: annotations of rejected images.
        excluded: annotations of images left out on request.
        earlier: annotations of images in earlier data sets, written or dropped there. Left out of
            the JSON if 0, as in older manifests.
        skipped: annotations left out by a filter, by filter; left out of the JSON if empty.
    """

    listed: int
    written: int
    dropped: dict[str, int]
    lost: int
    excluded: int
    earlier: int = 0
    skipped: dict[str, int] = {}


class LicenseCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """Number of a split's records under one license.

    Attributes:
        id: id of the license in the annotation files.
        records: records written.
        name: name in the files; several names, joined by ` or `, if files differ.
        url: URL in the files, likewise; it may be any text.
    """

    id: int
    records: int
    name: str = ""
    url: str = ""


class SplitSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts of one split.

    `listed == excluded + sum(skipped) + rejected_before_planning + planned + earlier`, and
    `planned == records + rejected_in_shards`. A sample is an image, or a single object if the
    layout writes one record per object.

    Attributes:
        listed: samples in the annotation files.
        excluded: samples left out on request.
        rejected_before_planning: samples rejected because of annotations or listing.
        planned: samples in the shards' plans.
        rejected_in_shards: samples rejected when their images were read.
        records: records written.
        shards: number of shard files.
        bytes: total size of the shard files.
        annotations: counts of annotations.
        repeated_annotation_ids: annotations with the id of another one; they are kept.
        rejected: rejected samples, by reason.
        repairs: counts of repairs, by name.
        traits: counts of unusual images, by trait.
        earlier: samples that earlier data sets hold; left out of the JSON if 0.
        skipped: samples left out by a filter, by filter; left out of the JSON if empty.
        images: images in the annotation files; left out of the JSON if each is one sample.
        images_without_samples: images without any usable object.
        sources: the annotation files; left out of the JSON if there is only one.
        share: fraction of the data set's records, if splits are drawn; else left out of the JSON.
        licenses: licenses of its records' images; left out of the JSON if unknown.
        classes: records with an object of each class, if splits are stratified.
    """

    listed: int
    excluded: int
    rejected_before_planning: int
    planned: int
    rejected_in_shards: int
    records: int
    shards: int
    bytes: int
    annotations: Annotations
    repeated_annotation_ids: int
    rejected: dict[str, int]
    repairs: dict[str, int]
    traits: dict[str, int]
    earlier: int = 0
    skipped: dict[str, int] = {}
    images: int | None = None
    images_without_samples: int = 0
    sources: list[SourceFile] = []
    share: float | None = None
    licenses: list[LicenseCount] = []
    classes: dict[str, int] = {}


class ShardEntry(WrittenShard, frozen=True, omit_defaults=True):
    """One shard file.

    Attributes:
        index_stem: name of its index without extension; `Manifest` completes older entries.
    """

    index_stem: str = ""


class SharedContents(msgspec.Struct, frozen=True):
    """Source files of equal bytes in two splits.

    Attributes:
        splits: the two splits, sorted by name.
        contents: number of different contents that both have; `duplicates.jsonl` lists them.
        sha256: SHA-256 of one such content, hex.
        names: names of a source with this content, one in each split.
    """

    splits: tuple[str, str]
    contents: int
    sha256: str
    names: tuple[str, str]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole data set. A data set is complete once its manifest exists.

    Attributes:
        format: always `beam-tfrec`.
        format_version: see `FORMAT_VERSION` and `NEWEST_VERSION`.
        layout: name of the layout.
        plan: plan of the run that made it.
        splits: summaries, by split.
        shards: shard files, sorted by split, then index.
        features: features of every Example, sorted by key.
        duplicates: pairs of splits that share contents; left out of the JSON if there are none.
        record_format: format of the shard files; left out of the JSON for TFRecord files.
        files: sizes and checksums of the other files as written, by name; without indexes and
            receipts. Users may edit documents later. Empty before format version 3.
    """

    format: str = "beam-tfrec"
    format_version: int = FORMAT_VERSION
    layout: str
    plan: JobPlan
    splits: dict[str, SplitSummary]
    shards: list[ShardEntry]
    features: list[Feature]
    duplicates: list[SharedContents] | msgspec.UnsetType = msgspec.UNSET
    record_format: Literal["array_record"] | msgspec.UnsetType = msgspec.UNSET
    files: dict[str, FileSum] = {}

    def __post_init__(self) -> None:
        """Name the shards' indexes, which have the receipts' names before format version 3."""
        stems = shard_stems([entry.split for entry in self.shards])
        for entry, stem in zip(self.shards, stems, strict=True):
            # Entries are frozen, and were just made for this manifest.
            msgspec.structs.force_setattr(entry, "index_stem", entry.index_stem or stem)

    @property
    def is_array_record(self) -> bool:
        """Whether the shards are ArrayRecord files."""
        return self.record_format is not msgspec.UNSET

    @property
    def has_sums(self) -> bool:
        """Whether it holds checksums of all files, as since format version 3."""
        return self.format_version >= 3

    @property
    def spec(self) -> FeatureSpec:
        """The features of every record."""
        return FeatureSpec(self.layout, tuple(self.features))


def to_json(value: Any) -> bytes:
    """Return a struct as indented JSON with sorted keys and a last newline.

    >>> print(to_json(PlannedSplit(samples=10, shards=2)).decode(), end="")
    {
      "samples": 10,
      "shards": 2
    }
    """
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2) + b"\n"


def to_json_lines(values: Iterable[Any]) -> bytes:
    """Return structs as lines of JSON."""
    return msgspec.json.Encoder().encode_lines(values)


def from_json(data: bytes, into: type[T]) -> T:
    """Return a struct from its JSON.

    Raises:
        ValueError: when the text is not JSON, is nested too deep, or does not fit the struct.

    >>> from_json(b'{"samples": 10, "shards": 2}', PlannedSplit)
    PlannedSplit(samples=10, shards=2)
    """
    try:
        return msgspec.json.decode(data, type=into)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def plan_digest(plan: JobPlan) -> str:
    """Return a plan's digest in hex, by which receipts refer to it."""
    return hashlib.blake2b(to_json(plan), digest_size=16).hexdigest()


class ManifestHead(msgspec.Struct):
    """The fields of a manifest that all format versions share."""

    format: str
    format_version: int


def read_manifest(data: bytes, where: str, flag: str = "--output") -> Manifest:
    """Return the manifest of a data set.

    Args:
        data: bytes of `manifest.json`.
        where: the file's name, for messages.
        flag: the flag that gave the data set, for messages.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` when it is another program's, or of a newer format version.
    """
    try:
        head = from_json(data, ManifestHead)
        if head.format != "beam-tfrec":
            raise ValueError(f"format {head.format!r}")
        if head.format_version > NEWEST_VERSION:
            what = f"format version {head.format_version} is newer than {NEWEST_VERSION}"
            raise run_fault("E-OUT-FOREIGN", where, what, "upgrade beam-tfrec")
        return from_json(data, Manifest)
    except ValueError as error:
        what, remedy = f"not a manifest of beam-tfrec ({error})", f"give another {flag}"
        raise run_fault("E-OUT-FOREIGN", where, what, remedy) from None


def unknown_keys(given: Any, known: Any) -> Iterator[str]:
    """Yield keys of decoded JSON that a value of its type does not have.

    >>> list(unknown_keys({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1}]}))
    ['c']
    """
    if isinstance(given, dict):
        yield from sorted(given.keys() - known.keys())
        for key in given.keys() & known.keys():
            yield from unknown_keys(given[key], known[key])
    elif isinstance(given, list):
        for one, other in zip(given, known, strict=True):
            yield from unknown_keys(one, other)


def contradictions(manifest: Manifest) -> Iterator[str]:
    """Yield the contradictions within a manifest, in words."""
    if manifest.format_version != manifest.plan.format_version:
        versions = f"{manifest.format_version}, its plan has {manifest.plan.format_version}"
        yield f"its format version is {versions}"
    for entry in manifest.shards:
        if is_array_record(entry.file) is not manifest.is_array_record:
            yield f"its shard {entry.file!r} is not of its record_format"
    try:
        names = ShardNames(manifest.plan.options.get("shard_names", COUNTED))
        for split in manifest.splits:
            manifest.plan.order_of(split)
    except ValueError as error:
        yield f"its options: {error}"
        return
    by_split: dict[str, list[ShardEntry]] = {split: [] for split in manifest.splits}
    for entry in manifest.shards:
        by_split.setdefault(entry.split, []).append(entry)
    for split, summary in manifest.splits.items():
        entries = by_split[split]
        planned, fate = manifest.plan.splits.get(split), summary.annotations
        samples = [summary.excluded, summary.rejected_before_planning, summary.planned]
        samples += [summary.earlier, *summary.skipped.values()]
        annotations = [fate.written, fate.lost, fate.excluded, fate.earlier]
        annotations += [*fate.dropped.values(), *fate.skipped.values()]
        sums = {
            "shards": (len(entries), summary.shards),
            "planned shards": (len(entries), planned and planned.shards),
            "records": (sum(entry.records for entry in entries), summary.records),
            "bytes": (sum(entry.bytes for entry in entries), summary.bytes),
            "planned samples": (sum(entry.planned for entry in entries), summary.planned),
            "samples of the plan": (summary.planned, planned and planned.samples),
            "rejects of shards": (summary.planned - summary.records, summary.rejected_in_shards),
            "listed samples": (sum(samples), summary.listed),
            "listed annotations": (sum(annotations), fate.listed),
        }
        for what, (found, said) in sums.items():
            if found != said:
                yield f"{what} of split {split} are {found} by its entries, {said} by its sums"
        yield from _misnamed(entries, manifest.plan, names)
    for split in sorted((by_split.keys() | manifest.plan.splits.keys()) - manifest.splits.keys()):
        yield f"its plan or shards have a split {split}, but it has no summary of it"


def _misnamed(entries: Sequence[ShardEntry], plan: JobPlan, names: ShardNames) -> Iterator[str]:
    """Yield the first shard of a split with a name that does not fit its number and records."""
    for index, entry in enumerate(entries):
        planned = plan.splits.get(entry.split)
        num_shards = len(entries) if planned is None else planned.shards
        wanted = names.file_name(entry.split, index, num_shards, entry.records)
        if entry.file != wanted:
            shard = f"shard {index} of split {entry.split}"
            yield f"{shard} is the file {entry.file!r}, by number and records it is {wanted!r}"
            return
