"""`Manifest`: the committed description of a whole data set, and the plan that precedes it."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.features import Feature, FeatureSpec
from beam_tfrec.schemas.samples import Order
from beam_tfrec.schemas.shards import COUNTED, FileSum, ShardNames, index_names, shard_stems

T = TypeVar("T")

FORMAT_VERSION = 3
"""Raised by every change of output bytes; readers accept older versions and refuse newer ones."""

MANIFEST_NAME = "manifest.json"
PLAN_NAME = "_plan.json"
REJECTED_NAME = "rejected.jsonl"
DUPLICATES_NAME = "duplicates.jsonl"
REPORT_NAME = "report.html"
SOURCES_DIR = "_sources"


class Label(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """A class label.

    Attributes:
        id: in the records.
        name: its name.
        category_id: of the annotation files, where that is another; not in the JSON where not.
        keypoints: names of its keypoints in their order; not in the JSON where it has none.
        text: what people call it, where its name is none, such as a synset; else not in the JSON.
    """

    id: int
    name: str
    category_id: int | None = None
    keypoints: tuple[str, ...] = ()
    text: str = ""

    @property
    def annotated_id(self) -> int:
        """The id of its category in the annotation files."""
        return self.id if self.category_id is None else self.category_id


class PlannedSplit(msgspec.Struct, frozen=True):
    """A split as planned.

    Attributes:
        samples: samples in its shards.
        shards: their number.
    """

    samples: int
    shards: int


class JobPlan(msgspec.Struct, frozen=True):
    """What `_plan.json` says: everything that decides the data set's bytes and membership.

    Attributes:
        format_version: of the output.
        options: byte-determining options by name, as text.
        labels: the label map.
        splits: planned samples and shards per split.
        samples: digest of all samples with their annotations, hex.
        found: what the sources turned out to hold, by which the layout is resolved, sorted; such as
            `boxes` and `captions`.
    """

    format_version: int
    options: dict[str, str]
    labels: list[Label]
    splits: dict[str, PlannedSplit]
    samples: str
    found: list[str] = []


class SourceFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of several annotation files of a split.

    Attributes:
        kind: `instances`, `keypoints`, `captions` or `panoptic`.
        images: that it lists.
        annotations: that it lists.
        categories: that it lists.
        joined_annotations: those that became one with another file's, as an object's keypoints.
        images_not_listed: of the split, by its other files.
        images_of_other_size: than an earlier file of the split gives them, whose size is taken.
    """

    kind: str
    images: int
    annotations: int
    categories: int
    joined_annotations: int = 0
    images_not_listed: int = 0
    images_of_other_size: int = 0


class Annotations(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fate of a split's annotations:
    `listed == written + sum(dropped) + lost + excluded + sum(skipped) + earlier`.

    Attributes:
        listed: in the annotation files; those that became one of two files count once.
        written: in records.
        dropped: left out of records that exist, or without an image, by reason.
        lost: gone with a rejected image.
        excluded: of images left out on request.
        earlier: of images in earlier data sets, those that were dropped there included; not in the
            JSON where there are none, as in manifests from before there was such a thing.
        skipped: left out by a filter that was asked for, by filter; not in the JSON where none was.
    """

    listed: int
    written: int
    dropped: dict[str, int]
    lost: int
    excluded: int
    earlier: int = 0
    skipped: dict[str, int] = {}


class LicenseCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many records of a split have images under a license.

    Attributes:
        id: by which the annotation files name it.
        records: written.
        name: as the files say; several where they do not agree.
        url: likewise; it may be any text.
    """

    id: int
    records: int
    name: str = ""
    url: str = ""


class SplitSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """One split: `listed == excluded + sum(skipped) + rejected_before_planning + planned +
    earlier`, and `planned == records + rejected_in_shards`.

    A sample is an image, or an object of one in layouts of one record an object.

    Attributes:
        listed: samples in the annotation files.
        excluded: left out on request.
        rejected_before_planning: rejected by annotations and listing alone.
        planned: samples in the shards' plans.
        rejected_in_shards: rejected when their images were read.
        records: written.
        shards: files.
        bytes: sum of the files' sizes.
        annotations: their sums.
        repeated_annotation_ids: annotations that share another's id; they are kept.
        rejected: samples rejected by reason.
        repairs: what was mended, with counts.
        traits: unusual images, with counts.
        earlier: samples that earlier data sets hold; see `Annotations`.
        skipped: samples left out by a filter, by filter; see `Annotations`.
        images: in the annotation files; not in the JSON where each is a sample.
        images_without_samples: of those, images of which no object can be used.
        sources: the annotation files, where there are several; not in the JSON where there is one.
        share: of the data set's records, where splits are drawn; else not in the JSON.
        licenses: of its records' images, where the annotation files tell; else not in the JSON.
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


class ShardEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One shard file: name, split, planned samples, records, size and checksums in hex.

    `index_stem` names its index, and `receipt` is the sum of its receipt. Both are missing before
    format version 3.
    """

    file: str
    split: str
    planned: int
    records: int
    bytes: int
    crc32c: str
    sha256: str
    index_stem: str = ""
    receipt: FileSum | None = None


class SharedContents(msgspec.Struct, frozen=True):
    """Contents that two splits have in common: sources of the same bytes.

    Attributes:
        splits: the two, by name.
        contents: how many; `duplicates.jsonl` tells them.
        sha256: of one of them, hex.
        names: of a source of it in either split.
    """

    splits: tuple[str, str]
    contents: int
    sha256: str
    names: tuple[str, str]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole data set; its presence says that the data set is complete.

    Attributes:
        format: `beam-tfrec`.
        format_version: see `FORMAT_VERSION`.
        layout: name of the layout.
        plan: the plan it fulfils.
        splits: summary per split.
        shards: by split, then index.
        features: what every Example holds, by key.
        duplicates: pairs of splits that share contents; not in the JSON where none do.
        files: sums of all files but shards, indexes and receipts, by name, as the run wrote
            them; none before format version 3. Users may edit the documents among them.
    """

    format: str = "beam-tfrec"
    format_version: int = FORMAT_VERSION
    layout: str
    plan: JobPlan
    splits: dict[str, SplitSummary]
    shards: list[ShardEntry]
    features: list[Feature]
    duplicates: list[SharedContents] | msgspec.UnsetType = msgspec.UNSET
    files: dict[str, FileSum] = {}


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
    """Return what a JSON file of ours holds.

    Raises:
        ValueError: when it is no JSON, of another type, or nested deeper than a program can read.

    >>> from_json(b'{"samples": 10, "shards": 2}', PlannedSplit)
    PlannedSplit(samples=10, shards=2)
    """
    try:
        return msgspec.json.decode(data, type=into)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def plan_digest(plan: JobPlan) -> str:
    """Return the digest that names a plan, hex."""
    return hashlib.blake2b(to_json(plan), digest_size=16).hexdigest()


class ManifestHead(msgspec.Struct):
    """What a manifest of any format version says first."""

    format: str
    format_version: int


def read_manifest(data: bytes, where: str, flag: str = "--output") -> Manifest:
    """Return the manifest of a data set.

    Args:
        data: bytes of `manifest.json`.
        where: its name, for messages.
        flag: that gave the data set, for messages.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` when it is none of ours or of a newer format version.
    """
    try:
        head = from_json(data, ManifestHead)
        if head.format != "beam-tfrec":
            raise ValueError(f"format {head.format!r}")
        if head.format_version > FORMAT_VERSION:
            what = f"format version {head.format_version}, this program reads {FORMAT_VERSION}"
            raise RuntimeError(fault_line("E-OUT-FOREIGN", where, what, "upgrade beam-tfrec"))
        return from_json(data, Manifest)
    except ValueError as error:
        what, remedy = f"no manifest of beam-tfrec ({error})", f"give another {flag}"
        raise RuntimeError(fault_line("E-OUT-FOREIGN", where, what, remedy)) from None


def order_of(plan: JobPlan, split: str) -> Order:
    """Return a split's order by the options of a plan, such as `all=shuffled train=input`."""
    orders = dict(part.partition("=")[::2] for part in plan.options.get("order", "").split())
    return Order(orders.get(split, orders.get("all", Order.SHUFFLED.value)))


def has_sums(manifest: Manifest) -> bool:
    """Return whether its run wrote sums of all files, as from format version 3 on."""
    return manifest.format_version >= 3


def refuse_contradictions(manifest: Manifest, where: str) -> None:
    """Refuse a manifest that contradicts itself: its shards would give other records.

    Args:
        manifest: of a data set that is to be read.
        where: its name, for messages.

    Raises:
        RuntimeError: `E-VER-MANIFEST` with the first contradiction.
    """
    for what in contradictions(manifest):
        remedy = "run `beam-tfrec verify` on its folder, and restore the manifest from a copy"
        raise RuntimeError(fault_line("E-VER-MANIFEST", where, what, remedy))


def contradictions(manifest: Manifest) -> Iterator[str]:
    """Yield where a manifest contradicts itself, in words."""
    if manifest.format_version != manifest.plan.format_version:
        versions = f"{manifest.format_version}, its plan has {manifest.plan.format_version}"
        yield f"its format version is {versions}"
    try:
        for split in manifest.splits:
            order_of(manifest.plan, split)
    except ValueError as error:
        yield f"its plan has no order of split {split} ({error})"
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
        yield from _misnamed(entries, manifest.plan)
    for split in sorted((by_split.keys() | manifest.plan.splits.keys()) - manifest.splits.keys()):
        yield f"its plan or shards have a split {split}, which it does not sum up"


def _misnamed(entries: Sequence[ShardEntry], plan: JobPlan) -> Iterator[str]:
    """Yield the first shard of a split that has another name than its place and records give."""
    try:
        names = ShardNames(plan.options.get("shard_names", COUNTED))
    except ValueError as error:
        yield str(error)
        return
    for index, entry in enumerate(entries):
        planned = plan.splits.get(entry.split)
        num_shards = len(entries) if planned is None else planned.shards
        wanted = names.file_name(entry.split, index, num_shards, entry.records)
        if entry.file != wanted:
            shard = f"shard {index} of split {entry.split}"
            yield f"{shard} is the file {entry.file!r}, by place and records it is {wanted!r}"
            return


def index_names_of(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the names of each shard's index: Parquet, and DALI's text form."""
    stems = shard_stems([entry.split for entry in manifest.shards])
    pairs = zip(manifest.shards, stems, strict=True)
    return [index_names(entry.index_stem or stem) for entry, stem in pairs]


def spec_of(manifest: Manifest) -> FeatureSpec:
    """Return the features of every record of a data set."""
    return FeatureSpec(manifest.layout, tuple(manifest.features))
