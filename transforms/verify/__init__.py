"""Verify data sets and TFRecord files: find them, split them into tasks, merge the parts.

A task is one shard, or one file of any origin. Threads of this process execute tasks, or workers of
a Beam runner (`with_beam`). Reports are merged in the order of the tasks, so both print the same
lines.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import msgspec

from beam_tfrec.schemas.example_rules import ExampleRules, InferredSchema, Place, conflicts
from beam_tfrec.schemas.faults import at_record, counted, fault_line, require_at_least
from beam_tfrec.schemas.manifest import (
    CONVERSIONS,
    FORMAT_VERSION,
    MANIFEST_NAME,
    NEWEST_VERSION,
    PLAN_NAME,
    Manifest,
    ManifestHead,
    ShardEntry,
    from_json,
    read_manifest,
    unknown_keys,
)
from beam_tfrec.schemas.parse_example import parse_record
from beam_tfrec.transforms.gate import usable_cores
from beam_tfrec.transforms.images.check_images import Check, check_image, looks_like_image
from beam_tfrec.transforms.images.findings import BadImage
from beam_tfrec.transforms.storage import Access, Entry, find_uri, is_local, join_uri, open_storage
from beam_tfrec.transforms.walk_frames import BadFrame, is_record_file, open_records

COPY = "restore it from a copy"
RESTORE = "restore it from a copy, or delete it and manifest.json and run the command again"

MAX_KEPT = 20
"""Number of findings per code that are printed; further ones are only counted."""

_PLAIN_BYTES = ("table", "arrays")  # layouts of records without the bytes of source files
_RESTORE_FILE = "restore the file from its source, or leave the record out"
_MEND_RECORD = "write the record again from its image, or leave it out"

OrderKey = tuple[bytes, str]
"""Sort key of records in a shuffled split: a digest of the key, then the key."""


@dataclass(frozen=True)
class VerifyConfig:
    """Configuration of a verification.

    Attributes:
        paths: paths of data sets, TFRecord files, and folders of TFRecord files.
        deep: whether to read remote shards, compare SHA-256, and decode images of foreign files.
        sources: roots of source files by split, `""` for every split; empty to compare none.
        workers: number of threads; None for one per core.
        access: settings for reading from stores.
    """

    paths: tuple[str, ...]
    deep: bool = False
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    workers: int | None = None
    access: Access = field(default_factory=Access)

    def __post_init__(self) -> None:
        """Check the number of threads."""
        require_at_least(1, workers=self.workers)


class Findings(msgspec.Struct):
    """Findings and counts of a verification. Those of parts can be merged.

    Attributes:
        kept: lines of the first findings, by code.
        counts: number of findings, by code.
        files: number of shards and files.
        records: number of whole records.
        bytes: number of bytes read.
        sources: number of source files that were compared.
        notes: lines that are not findings.
        schema: schema inferred from records without a manifest.
        ends: a shard, and the sort keys of its first and last record by its index; None for input
            order.
    """

    kept: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    files: int = 0
    records: int = 0
    bytes: int = 0
    sources: int = 0
    notes: list[str] = []
    schema: InferredSchema = msgspec.field(default_factory=InferredSchema)
    ends: tuple["ShardTask", OrderKey, OrderKey] | None = None

    def add(self, code: str, where: str, what: str, remedy: str = RESTORE) -> None:
        """Add a finding."""
        self.merge(Findings({code: [fault_line(code, where, what, remedy)]}, {code: 1}))

    def merge(self, other: "Findings") -> None:
        """Merge the findings of later tasks into this one."""
        for code, count in other.counts.items():
            self.counts[code] = self.counts.get(code, 0) + count
            kept = self.kept.setdefault(code, [])
            kept += other.kept[code][: MAX_KEPT - len(kept)]
        self.files += other.files
        self.records += other.records
        self.bytes += other.bytes
        self.sources += other.sources
        self.notes += other.notes
        self.schema.extend(other.schema)

    def lines(self) -> list[str]:
        """Return a line per kept finding, and one per code with the number of further findings."""
        lines: list[str] = []
        for code, kept in self.kept.items():
            more = self.counts[code] - len(kept)
            lines += [*kept, *([f"{code}: {more} more"] if more else [])]
        return lines


class ShardTask(msgspec.Struct, frozen=True):
    """A shard to verify.

    Attributes:
        data_set: number of the data set, from 0.
        entry: entry of the shard in the manifest.
        stem: name of the receipt, without folder and suffix.
        file: entry of the shard in the listing; None if it is missing.
    """

    data_set: int
    entry: ShardEntry
    stem: str
    file: Entry | None


Task = ShardTask | str
"""A shard, or a file's path or URI."""


@dataclass(frozen=True)
class ShardRules:
    """Rules that all shards of a data set share.

    Attributes:
        root: path or URI of the data set.
        manifest: manifest of the data set.
        seed: seed of the shuffle.
        deep: whether to read remote shards, and compare SHA-256 of shards and images.
    """

    root: str
    manifest: Manifest
    seed: int
    deep: bool

    @property
    def reads(self) -> bool:
        """Whether to read the shards, in addition to indexes and receipts."""
        return self.deep or is_local(self.root)

    @cached_property
    def converted(self) -> set[str]:
        """Splits with images that differ from the bytes of their source files."""
        all_are = self.manifest.layout in _PLAIN_BYTES
        splits = self.manifest.splits.items()
        return {name for name, split in splits if all_are or split.repairs.keys() & CONVERSIONS}

    @cached_property
    def examples(self) -> ExampleRules:
        """Rules for every record."""
        labels = frozenset(label.id for label in self.manifest.plan.labels)
        return ExampleRules(self.manifest.spec, labels)


class Around(NamedTuple):
    """Results of the steps before the tasks.

    Attributes:
        config: configuration of the verification.
        findings: findings in paths, and in data sets outside their shards.
        rules: rules of each data set with a readable manifest.
        tasks: number of tasks.
    """

    config: VerifyConfig
    findings: Findings
    rules: list[ShardRules]
    tasks: int


def verify_here(config: VerifyConfig) -> Findings:
    """Verify with threads of this process.

    Raises:
        ValueError: The sources cannot be compared.
        RuntimeError: A path does not exist, or a store fails.
    """
    around, tasks = look_around(config)
    with ThreadPoolExecutor(config.workers or usable_cores()) as pool:
        parts = list(pool.map(partial(execute, around=around), tasks))
    return gather(around, parts)


def find_sets_and_files(config: VerifyConfig, findings: Findings) -> tuple[list[str], list[str]]:
    """Check all paths and sources; return the data sets and the files among the paths.

    Raises:
        ValueError: The sources cannot be compared with the indexes of one data set.
        RuntimeError: `E-ARG`: a path does not exist, or a root of sources is not a folder.
    """
    roots, files = find_paths(config.paths, config.access, findings)
    if config.sources and len(roots) != 1:
        what = f"sources must come with one complete data set, got {len(roots)}"
        raise ValueError(f"{what}: verify one at a time")
    for split, uris in config.sources.items():
        manifest = find_manifest(roots[0], config.access, Findings())
        if manifest and ("images" in manifest.plan.options or manifest.layout == "arrays"):
            what = f"parts of files (layout {manifest.layout})"
            raise ValueError(f"sources must be whole files, got {what}: leave --sources out")
        if manifest and split not in ("", *manifest.splits):
            names = ", ".join(sorted(manifest.splits))
            raise ValueError(f"sources must be of splits {names}, got {split!r}: name one of them")
        for uri in uris:
            storage = open_storage(uri, config.access)
            if storage.stat(MANIFEST_NAME) is not None:
                what = f"be folders of images, got the data set {uri!r}"
                remedy = f"run beam-tfrec diff {uri} {roots[0]}, or give the images of {uri}"
                raise ValueError(f"sources must {what}: {remedy}")
            storage.require_folder()
    return roots, files


def find_manifest(root: str, access: Access, findings: Findings) -> Manifest | None:
    """Return the manifest of a data set, or None and add a finding if it is damaged.

    Raises:
        RuntimeError: `E-OUT-FOREIGN`: the manifest is of another program or a newer format.
    """
    data, where = open_storage(root, access).read(MANIFEST_NAME), join_uri(root, MANIFEST_NAME)
    try:
        head = from_json(data, ManifestHead)
        if head.format != "beam-tfrec" or head.format_version > NEWEST_VERSION:
            return read_manifest(data, where, "path")  # raises with the reason
        manifest = from_json(data, Manifest)
        keys = unknown_keys(msgspec.json.decode(data), msgspec.to_builtins(manifest))
        if head.format_version >= FORMAT_VERSION and (unknown := next(keys, "")):
            findings.add("E-VER-MANIFEST", where, f"has an unknown key {unknown!r}", COPY)
        return manifest
    except ValueError as error:
        findings.add("E-VER-MANIFEST", where, f"no manifest ({error})", COPY)
    return None


def look_around(config: VerifyConfig) -> tuple[Around, list[Task]]:
    """Verify everything except shards and files; return these as tasks.

    Raises:
        ValueError: The sources cannot be compared.
        RuntimeError: A path does not exist, or a store fails.
    """
    findings, all_rules, tasks = Findings(), list[ShardRules](), list[Task]()
    roots, files = find_sets_and_files(config, findings)
    for root in roots:
        from beam_tfrec.transforms.verify.data_set import verify_around  # pyarrow takes 0.2 s

        tasks += verify_around(root, all_rules, findings, config)
    tasks += files
    return Around(config, findings, all_rules, len(tasks)), tasks


def find_paths(
    paths: Sequence[str], access: Access, findings: Findings
) -> tuple[list[str], list[str]]:
    """Return the data sets and the TFRecord files among the paths.

    A plan without a manifest is a finding.

    Raises:
        RuntimeError: `E-ARG`: a path does not exist, or is a folder without either.
    """
    data_sets: list[str] = []
    files: list[str] = []
    for path in paths:
        if is_record_file(path):
            files.append(path)
            continue
        storage = open_storage(path, access)
        if storage.stat(MANIFEST_NAME) is not None:
            data_sets.append(path)
            continue
        found = [e for e in storage.list(recursive=False) if is_record_file(e.name)]
        if storage.stat(PLAN_NAME) is not None:
            what = f"is missing, but {PLAN_NAME} exists: the data set is not complete"
            remedy = "run its command again, or restore it from a copy"
            findings.add("E-VER-MISSING", join_uri(path, MANIFEST_NAME), what, remedy)
        elif not found:
            find_uri(path, access, lacks=f"{MANIFEST_NAME} and no TFRecord files")
            files.append(path)
        for entry in sorted(found, key=lambda entry: entry.name):
            uri = join_uri(path, entry.name)
            if entry.kind == "file":
                files.append(uri)
            else:
                what = f"is a {entry.kind}, and was not read"
                findings.add("E-VER-MISSING", uri, what, "replace it by a file, or rename it")
    return data_sets, files


def execute(task: Task, around: Around) -> Findings:
    """Verify a file, or a shard and its sources.

    Raises:
        RuntimeError: A store fails.
    """
    if isinstance(task, str):
        return verify_file(task, around.config.access, deep=around.config.deep)
    from beam_tfrec.transforms.verify.data_set import verify_shard

    return verify_shard(task, around.rules[task.data_set], around.config)


def gather(around: Around, parts: Sequence[Findings]) -> Findings:
    """Merge all parts, and check the order of keys across shards.

    Args:
        around: results of the steps before the tasks.
        parts: parts of all tasks, in their order.

    Raises:
        RuntimeError: The runner lost or repeated findings.
    """
    if len(parts) != around.tasks:
        raise RuntimeError(f"{len(parts)} results of {around.tasks} tasks: run again")
    total, last = Findings(), dict[tuple[int, str], OrderKey]()
    total.merge(around.findings)
    for findings in parts:
        if findings.ends:
            task, first, end = findings.ends
            split, seed = (task.data_set, task.entry.split), around.rules[task.data_set].seed
            before = last.get(split)
            if before is not None and before >= first:
                where = at_record(task.entry.file, 0, 0, first[1])
                what = f"by seed {seed} it comes before {before[1]!r}"
                total.add("E-VER-ORDER", where, "its key occurs twice" if before == first else what)
            last[split] = end
        total.merge(findings)
    if around.config.sources:
        total.notes.append(f"{counted(total.sources, 'source file')} compared with the index")
    add_schema(total)
    return total


def verify_file(uri: str, access: Access, *, deep: bool = False) -> Findings:
    """Verify a TFRecord file of any origin.

    Args:
        uri: path or URI of the file.
        access: settings for reading from its store.
        deep: decode the pixels of images, in addition to the header check.

    Raises:
        RuntimeError: `E-ARG`: the file does not exist. `E-IO-…`: the store fails.
    """
    storage, file = find_uri(uri, access)
    findings = Findings(files=1, bytes=file.size_bytes)
    for found in open_records(storage, file)[0]:
        place = uri, found.number, found.offset
        if isinstance(found, BadFrame):
            findings.add(found.code, at_record(*place), found.what, _RESTORE_FILE)
            continue
        findings.records += 1
        if found.data is None:
            findings.notes.append(f"{at_record(*place)}: too large to be parsed")
        else:
            _add_record(findings, found.data, place, Check.DECODE if deep else Check.HEADER)
    return findings


def add_schema(findings: Findings) -> None:
    """Add notes on the features of records, and findings that need all records."""
    schema, notes = findings.schema, findings.notes
    for place, what in conflicts(schema):
        remedy = "write the feature with one kind: a reader's spec can name only one"
        findings.add("E-VER-EXAMPLE", at_record(*place), what, remedy)
    for key, facts in sorted(schema.features.items()):
        if facts.is_image() and facts.first_no_image:
            images = sum(facts.images.values())
            what = f"{facts.no_images} values of {key!r} are not images, {images} are (the first)"
            findings.add("E-VER-IMAGE", at_record(*facts.first_no_image), what, _MEND_RECORD)
    if schema.records:
        notes.append(f"features of {counted(schema.records, 'Example')}:")
        notes += (f"  {line}" for line in schema.lines())
    if schema.others and schema.first_other:
        file, number, offset = schema.first_other
        first = f"the first is record {number} of {file} at byte {offset}"
        notes.append(f"{counted(schema.others, 'record')} of other bytes than Examples: {first}")


def _add_record(findings: Findings, data: bytes, place: Place, check: Check) -> None:
    found = parse_record(data)
    if found is None:
        findings.schema.extend(InferredSchema(others=1, first_other=place))
        return
    findings.schema.add(found, place)
    for key, values in found.byte_values():
        facts = findings.schema.features.get(key)
        if facts is None:  # beyond the limit of kept features
            continue
        for value in filter(None, values):
            if not looks_like_image(value):
                facts.no_images += 1
                facts.first_no_image = facts.first_no_image or place
                continue
            try:
                kind = check_image(value, check).format
            except BadImage as error:
                kind = "damaged"
                what = f"the image of {len(value)} bytes in {key!r} is damaged: {error.detail}"
                findings.add("E-VER-IMAGE", at_record(*place), what, _MEND_RECORD)
            facts.images[kind] = facts.images.get(kind, 0) + 1
