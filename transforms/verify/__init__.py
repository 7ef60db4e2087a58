"""Verify what was written: find what has been damaged since, down to record, key and byte."""

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec

from schemas.example_rules import ExampleRules, InferredSchema
from schemas.faults import Findings, Verified, at_record, fault_line
from schemas.manifest import MANIFEST_NAME, PLAN_NAME, ShardEntry
from schemas.samples import Order
from schemas.shards import RECEIPTS_DIR
from schemas.shown_values import counted
from transforms.gate import usable_cores
from transforms.output_files import receipts
from transforms.storage import (
    DEFAULT_ACCESS,
    Access,
    Entry,
    check_uri,
    join_uri,
    open_storage,
    split_uri,
)

RESTORE = "restore it from a copy, or delete it and manifest.json and run the command again"

OrderKey = tuple[int, str]
"""What a shuffled split is sorted by."""


class SharedContent(NamedTuple):
    """A content that several splits have, as a line of `duplicates.jsonl` tells.

    Attributes:
        number: of the line, from 1.
        records: made of it, per split.
        named: of those, some per split: (name of the source, key).
    """

    number: int
    records: dict[str, int]
    named: dict[str, frozenset[tuple[str, str]]]


class ShardTask(msgspec.Struct, frozen=True):
    """One shard to be verified.

    Attributes:
        entry: as in the manifest.
        stem: what names its receipt.
        index: names of its index, Parquet and text.
        plan: digest of the plan, hex.
        file: as listed; None where it is not there.
        place: of the shard in the manifest, from 0.
    """

    entry: ShardEntry
    stem: str
    index: tuple[str, str]
    plan: str
    file: Entry | None
    place: int = 0


@dataclass(frozen=True)
class ShardRules:
    """What all shards of a data set have in common.

    Attributes:
        root: path or URI of the data set.
        examples: what every record is to be.
        orders: order of each split.
        seed: of the shuffle.
        reads: read the shards' bytes, and not their indexes and receipts alone.
        hashes: compare SHA-256 of shards and of images.
        converted: splits in which images are not their files' own bytes.
        access: how the store is reached.
        has_sums: whether the manifest has the sums of receipts, and each index its own.
        shared: by SHA-256 what `duplicates.jsonl` says, to be counted in the indexes; empty for
            nothing.
    """

    root: str
    examples: ExampleRules
    orders: dict[str, Order]
    seed: int
    reads: bool
    hashes: bool
    converted: frozenset[str]
    access: Access = DEFAULT_ACCESS
    has_sums: bool = True
    shared: dict[str, SharedContent] = field(default_factory=dict)


class SharedCount(msgspec.Struct, array_like=True):
    """Records of one content in the indexes of a split.

    Attributes:
        records: made of it.
        named: of those, which `duplicates.jsonl` names.
    """

    records: int = 0
    named: int = 0

    def add(self, other: "SharedCount") -> None:
        """Add another shard's records."""
        self.records += other.records
        self.named += other.named


class Report(msgspec.Struct):
    """What was found in a shard, in its sources, or in a file of any origin.

    Attributes:
        findings: what is wrong.
        files: files looked at: 1 but for sources.
        records: whole ones.
        read_bytes: bytes read of it.
        too_large: records that were checksummed, but not looked into.
        notes: what else is to be said of a file.
        schema: of a file's records.
        ends: order key of a shard's first and last record by the index; None without an order.
        keys: 16 bytes of a digest of each key, of a split in the input's order.
        shared: records by SHA-256, of the contents that the rules ask for.
    """

    findings: Findings = msgspec.field(default_factory=Findings)
    files: int = 0
    records: int = 0
    read_bytes: int = 0
    too_large: int = 0
    notes: list[str] = []
    schema: InferredSchema = msgspec.field(default_factory=InferredSchema)
    ends: tuple[OrderKey, OrderKey] | None = None
    keys: list[bytes] = []
    shared: dict[str, SharedCount] = {}

    def add(self, other: "Report") -> None:
        """Add the findings, counts and notes of the report on what comes next."""
        self.findings.extend(other.findings)
        self.files += other.files
        self.records += other.records
        self.read_bytes += other.read_bytes
        self.too_large += other.too_large
        self.notes += other.notes


def order_fault(before: str, key: str, seed: int) -> tuple[str, str]:
    """Return what is wrong, and the remedy, where a record follows one that it must precede."""
    if before == key:
        return "its key comes twice", RESTORE
    return f"by seed {seed} it comes before the one of key {before!r}, not after it", RESTORE


SUFFIXES = (".tfrec", ".tfrecord", ".tfrecords")
"""Of TFRecord files, whatever follows a dash, and `.gz`."""

_KEYS_OF_A_PARTITION = 500_000  # some 60 MB


@dataclass(frozen=True)
class VerifyConfig:
    """What is to be verified.

    Attributes:
        paths: data sets, folders of TFRecord files, and such files.
        deep: read remote shards too, compare SHA-256, decode the images of foreign files.
        sources: roots of source files by split, `""` for every split; empty to hash none.
        workers: shards or files at once, of this process; None for one a core.
        access: how stores are reached.
    """

    paths: tuple[str, ...]
    deep: bool = False
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    workers: int | None = None
    access: Access = DEFAULT_ACCESS

    def __post_init__(self) -> None:
        """Refuse what could not be done."""
        if self.workers is not None and self.workers < 1:
            raise ValueError(
                f"workers must be at least 1, got {self.workers}: give a larger number"
            )
        for uri in (*self.paths, *(uri for given in self.sources.values() for uri in given)):
            check_uri(uri)


class Task(msgspec.Struct, frozen=True, array_like=True):
    """One thing to verify.

    Attributes:
        number: its place among all tasks.
        data_set: number of the shard's data set; -1 for a file.
        shard: the shard; None for a file.
        uri: path or URI of the file; empty for a shard.
        is_sources: whether the shard's sources are hashed, and not the shard itself verified.
    """

    number: int
    data_set: int = -1
    shard: ShardTask | None = None
    uri: str = ""
    is_sources: bool = False


class DataSet(NamedTuple):
    """A data set whose shards are being verified.

    Attributes:
        around: what was found around the shards.
        rules: of all shards; None where there is no readable manifest.
        partitions: number of partitions of the keys, where these must be compared.
    """

    around: Verified
    rules: ShardRules | None
    partitions: int


class Around(NamedTuple):
    """What is seen before any task is done.

    Attributes:
        findings: of the paths.
        data_sets: in the order of the paths.
        tasks: how many there are.
    """

    findings: Findings
    data_sets: list[DataSet]
    tasks: int


class KeysOfShard(msgspec.Struct, frozen=True, array_like=True):
    """Digests of some keys of a shard, 16 bytes each."""

    place: int
    split: str
    file: str
    digests: list[bytes]


class Twice(msgspec.Struct, frozen=True, array_like=True):
    """Number of keys of a shard that come twice, in it or with an earlier shard of its split."""

    place: int
    split: str
    file: str
    keys: int


def verify_here(config: VerifyConfig) -> Verified:
    """Return what is wrong, found by threads of this process.

    Raises:
        ValueError: where sources were given that cannot be compared.
        RuntimeError: where a path is nothing, or a store fails.
    """
    around, tasks = look_around(config)
    with ThreadPoolExecutor(config.workers or usable_cores()) as pool:
        reports = pool.map(partial(execute, around=around, config=config), tasks)
        return gather(around, zip(tasks, reports, strict=True))


def check_config(config: VerifyConfig) -> list[str]:
    """Refuse paths and sources that cannot be verified; return the data sets among the paths.

    Raises:
        ValueError: where sources were given that cannot be compared.
        RuntimeError: `E-ARG` where a path is nothing.
    """
    return _find(config, Findings())[0]


def look_around(config: VerifyConfig) -> tuple[Around, list[Task]]:
    """Return what is seen at once, and what is left to be done.

    Raises:
        ValueError: where sources were given that cannot be compared.
        RuntimeError: where a path is nothing, or a store fails.
    """
    findings, data_sets, tasks = Findings(), list[DataSet](), list[Task]()
    roots, files = _find(config, findings)
    for number, root in enumerate(roots):
        from transforms.verify.data_set import verify_around  # pyarrow takes 0.2 s

        found, shards, rules = verify_around(root, config.access, deep=config.deep)
        keys = sum(shard.entry.records for shard in shards)
        data_sets.append(DataSet(found, rules, 1 + keys // _KEYS_OF_A_PARTITION))
        tasks += (Task(len(tasks) + place, number, shard) for place, shard in enumerate(shards))
        hashed = [s for s in shards if {"", s.entry.split} & config.sources.keys()]
        first = len(tasks)
        tasks += (Task(first + n, number, s, is_sources=True) for n, s in enumerate(hashed))
    first = len(tasks)
    tasks += (Task(first + place, uri=uri) for place, uri in enumerate(files))
    return Around(findings, data_sets, len(tasks)), tasks


def _find(config: VerifyConfig, findings: Findings) -> tuple[list[str], list[str]]:
    roots, files = find_paths(config.paths, config.access, findings)
    if not config.sources:
        return roots, files
    if len(roots) != 1:
        raise ValueError(f"sources must come with one data set, got {len(roots)}: give them apart")
    from transforms.verify.data_set import find_manifest
    from transforms.verify.shard import check_sources

    manifest = find_manifest(open_storage(roots[0], config.access), Findings())
    if manifest is not None:
        check_sources(manifest, config.sources, config.access)
    return roots, files


def find_paths(
    paths: Sequence[str], access: Access, findings: Findings
) -> tuple[list[str], list[str]]:
    """Return the data sets and the TFRecord files among the paths.

    Findings are a manifest that is missing next to a plan, and what is called like TFRecords but
    cannot be read, such as a dangling link.

    Raises:
        RuntimeError: `E-ARG` where a path is nothing, or a folder without either.
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
        records = [e for e in storage.list(recursive=False) if is_record_file(e.name)]
        has_plan = storage.stat(PLAN_NAME) is not None
        if has_plan or receipts(storage):
            remains = f"{PLAN_NAME} is" if has_plan else f"{RECEIPTS_DIR} are"
            what = f"is not there, and {remains}: the data set is not complete"
            remedy = "run its command again, or restore it from a copy"
            findings.add("E-VER-MISSING", join_uri(path, MANIFEST_NAME), what, remedy)
        elif not records:
            files.append(_file_of_any_name(path, access))
        for entry in sorted(records, key=lambda entry: entry.name):
            where = join_uri(path, entry.name)
            if entry.kind == "file":
                files.append(where)
            else:
                remedy = "mend or rename it, or take it out of the folder"
                findings.add("E-VER-MISSING", where, f"is a {entry.kind}, and not read", remedy)
    return data_sets, files


def is_record_file(name: str) -> bool:
    """Return whether a file is called like TFRecords: those of TFDS end in `-00000-of-00016`.

    >>> is_record_file("a.tfrecord-00000-of-00002"), is_record_file("out")
    (True, False)
    """
    stem = posixpath.basename(name).removesuffix(".gz")
    return any(stem.endswith(suffix) or f"{suffix}-" in stem for suffix in SUFFIXES)


def _file_of_any_name(path: str, access: Access) -> str:
    """Return a path that must be a file, since it is no folder of anything to verify.

    Raises:
        RuntimeError: `E-ARG`.
    """
    root, name = split_uri(path.rstrip("/") or path)
    entry = open_storage(root, access).stat(name) if name not in ("", ".", "..") else None
    is_folder = name in ("", ".", "..") or (entry is not None and entry.kind == "directory")
    if entry is None or is_folder:
        holds = "holds no" if is_folder else "no such file, and no folder with"
        what = f"{holds} {MANIFEST_NAME} or TFRecord files ({', '.join(SUFFIXES)})"
        remedy = "give a data set, a folder of such files, or the path of each"
        raise RuntimeError(fault_line("E-ARG", path, what, remedy))
    return path


def execute(task: Task, around: Around, config: VerifyConfig) -> Report:
    """Return what is wrong with a shard, its sources or a file.

    Raises:
        RuntimeError: where a store fails.
    """
    if task.shard is None:
        from transforms.verify.files import verify_file

        return verify_file(task.uri, config.access, deep=config.deep)
    rules = around.data_sets[task.data_set].rules
    assert rules is not None  # else there would be no task
    if task.is_sources:
        from transforms.verify.shard import verify_sources

        return verify_sources(task.shard, rules.root, config.sources, config.access)
    from transforms.verify.shard import verify_shard

    return verify_shard(task.shard, rules)


def gather(
    around: Around,
    reports: Iterable[tuple[Task, Report]],
    twice: Iterable[tuple[int, Twice]] = (),
) -> Verified:
    """Return what is wrong, and what else is to be said.

    Args:
        around: what was seen before the tasks were done.
        reports: of all tasks, in their order.
        twice: keys that come twice, with the number of their data set, where reports have no keys.

    Raises:
        RuntimeError: where reports are lost, which no runner may do.
    """
    sums = [_DataSetSum() for _ in around.data_sets]
    files, done = _FilesSum(), 0
    for task, report in reports:
        done += 1
        if task.shard is None:
            files.add(report)
        elif task.is_sources:
            sums[task.data_set].add_sources(report)
        else:
            sums[task.data_set].add(task.shard, report)
    if done != around.tasks:
        raise RuntimeError(f"the sum of reports does not hold: {done} came of {around.tasks}")
    for number, keys in twice:
        sums[number].twice[keys.place, keys.split, keys.file] += keys.keys
    found = Verified(Findings())
    found.findings.extend(around.findings)
    for data_set, total in zip(around.data_sets, sums, strict=True):
        found.extend(data_set.around if data_set.rules is None else total.verified(data_set))
    found.extend(files.verified())
    return found


class _DataSetSum:
    """What was found in the shards of a data set, and in their sources."""

    def __init__(self) -> None:
        self.twice: Counter[tuple[int, str, str]] = Counter()
        self._shards = Report()
        self._sources: Report | None = None
        self._ends: list[tuple[str, str, OrderKey, OrderKey]] = []
        self._shared: dict[str, dict[str, SharedCount]] = {}
        self._seen: dict[str, set[bytes]] = {}

    def add(self, shard: ShardTask, report: Report) -> None:
        """Add a shard's report."""
        split, file = shard.entry.split, shard.entry.file
        self._shards.add(report)
        if report.ends is not None:
            self._ends.append((split, file, *report.ends))
        counts = self._shared.setdefault(split, {})
        for sha256, found in report.shared.items():
            counts.setdefault(sha256, SharedCount()).add(found)
        if keys := add_keys(self._seen, split, report.keys):
            self.twice[shard.place, split, file] += keys

    def add_sources(self, report: Report) -> None:
        """Add the report of a shard's sources."""
        self._sources = self._sources or Report()
        self._sources.add(report)

    def verified(self, data_set: DataSet) -> Verified:
        """Return what is wrong with the data set: around its shards, between them and in them."""
        from transforms.verify.data_set import check_shared

        rules, around, shards = data_set.rules, data_set.around, self._shards
        assert rules is not None
        found = Verified(Findings(), around.files, shards.records, shards.read_bytes)
        found.findings.extend(around.findings)
        self._check_order(rules.seed, found.findings)
        found.findings.extend(shards.findings)
        check_shared(rules.shared, self._shared, found.findings)
        if shards.too_large:
            found.notes += (f"{shards.too_large} records are too large to be looked into",)
        found.notes += around.notes
        if self._sources is not None:
            self._say_sources(self._sources, found)
        return found

    def _check_order(self, seed: int, findings: Findings) -> None:
        """Note shards that hold a key again, or begin before the one in front of them ends."""
        for (_, split, file), keys in sorted(self.twice.items()):
            findings.add(
                "E-VER-ORDER", file, f"{keys} of its keys come twice in split {split}", RESTORE
            )
        last: dict[str, OrderKey] = {}
        for split, file, first, end in self._ends:
            before = last.get(split)
            if before is not None and before >= first:
                where = at_record(file, 0, 0, first[1])
                findings.add("E-VER-ORDER", where, *order_fault(before[1], first[1], seed))
            last[split] = end

    def _say_sources(self, sources: Report, found: Verified) -> None:
        found.findings.extend(sources.findings)
        found.bytes += sources.read_bytes
        note = f"{counted(sources.files, 'source file')} compared with the index"
        if not sources.files:
            note = "no source file was compared: the index names none, as of rows and of no records"
        found.notes += (note,)


class _FilesSum:
    """What files of any origin hold together."""

    def __init__(self) -> None:
        self._total = Report()
        self._schema = InferredSchema()

    def add(self, report: Report) -> None:
        """Add a file's report."""
        self._total.add(report)
        self._schema.extend(report.schema)

    def verified(self) -> Verified:
        """Return what is to be said of all files."""
        from transforms.verify.files import schema_findings, schema_lines

        total = self._total
        found = Verified(total.findings, total.files, total.records, total.read_bytes)
        found.findings.extend(schema_findings(self._schema))
        found.notes = (*total.notes, *schema_lines(self._schema))
        return found


def add_keys(seen: dict[str, set[bytes]], split: str, digests: Sequence[bytes]) -> int:
    """Add digests of keys to those of their split; return how many were there already.

    >>> seen = {}
    >>> add_keys(seen, "train", [b"x", b"y"]), add_keys(seen, "train", [b"z", b"x", b"x"])
    (0, 2)
    """
    known = seen.setdefault(split, set())
    before = len(known)
    known.update(digests)
    return before + len(digests) - len(known)


def partition_keys(
    shard: ShardTask, digests: Iterable[bytes], partitions: int
) -> Iterator[tuple[int, KeysOfShard]]:
    """Yield what each partition gets of a shard's keys."""
    parts: dict[int, list[bytes]] = {}
    for digest in digests:
        parts.setdefault(int.from_bytes(digest[:4], "big") % partitions, []).append(digest)
    for partition, found in parts.items():
        yield partition, KeysOfShard(shard.place, shard.entry.split, shard.entry.file, found)


def find_twice(shards: Iterable[KeysOfShard]) -> Iterator[Twice]:
    """Yield how many keys of each shard come twice, of a partition's keys by ascending place."""
    seen: dict[str, set[bytes]] = {}
    for shard in shards:
        if keys := add_keys(seen, shard.split, shard.digests):
            yield Twice(shard.place, shard.split, shard.file, keys)
