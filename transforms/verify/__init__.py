"""Verify data sets and TFRecord files: find them, divide them into tasks, add up their reports.

A task is one shard, the sources of one shard, or one file of any origin. Threads execute tasks, or
the workers of a runner of Beam (`with_beam`). Reports add up in the order of their tasks, so that
both print the same lines.
"""

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec

from schemas.example_rules import ExampleRules, InferredSchema
from schemas.faults import Findings, Verified, at_record, counted, fault_line
from schemas.manifest import MANIFEST_NAME, PLAN_NAME, ShardEntry
from schemas.samples import Order
from schemas.shards import RECEIPTS_DIR
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
SUFFIXES = (".tfrec", ".tfrecord", ".tfrecords")
"""Suffixes of TFRecord files; a dash and more may follow, and `.gz`."""

_KEYS_OF_A_PARTITION = 500_000  # some 60 MB

OrderKey = tuple[int, str]
"""What a shuffled split is sorted by."""

ShardPlace = tuple[int, int, str, str]
"""Number of the data set, number of the shard's task, split, and file name."""


@dataclass(frozen=True)
class VerifyConfig:
    """What is to be verified.

    Attributes:
        paths: data sets, folders of TFRecord files, and such files.
        deep: read remote shards too, compare SHA-256, decode the images of foreign files.
        sources: roots of source files by split, `""` for every split; empty to hash none.
        workers: threads of this process; None for one a core.
        access: how stores are reached.
    """

    paths: tuple[str, ...]
    deep: bool = False
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    workers: int | None = None
    access: Access = DEFAULT_ACCESS

    def __post_init__(self) -> None:
        """Check the number of threads and every path."""
        if self.workers is not None and self.workers < 1:
            raise ValueError(
                f"workers must be at least 1, got {self.workers}: give a larger number"
            )
        for uri in (*self.paths, *(uri for given in self.sources.values() for uri in given)):
            check_uri(uri)


class ShardTask(msgspec.Struct, frozen=True):
    """A shard to verify.

    Attributes:
        entry: the shard's entry in the manifest.
        stem: name of its receipt, without folder and suffix.
        index: names of its index, Parquet and text.
        plan: digest of the plan, hex.
        file: its entry in the listing; None if it is missing.
    """

    entry: ShardEntry
    stem: str
    index: tuple[str, str]
    plan: str
    file: Entry | None


@dataclass(frozen=True)
class ShardRules:
    """What all shards of a data set have in common.

    Attributes:
        root: path or URI of the data set.
        examples: rules for every record.
        orders: order of each split.
        seed: seed of the shuffle.
        reads: whether to read the shards' bytes, too, and not only indexes and receipts.
        hashes: whether to compare SHA-256 of shards and of images.
        converted: splits in which images are not their files' own bytes.
        access: how the store is reached.
        has_sums: whether the manifest has checksums of receipts, and each index its own.
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


class Task(msgspec.Struct, frozen=True, array_like=True):
    """One thing to verify.

    Attributes:
        number: its place among all tasks.
        data_set: number of the shard's data set; -1 for a file.
        shard: the shard; None for a file.
        uri: path or URI of the file; empty for a shard.
        is_sources: whether to hash the shard's sources instead of verifying the shard.
    """

    number: int
    data_set: int = -1
    shard: ShardTask | None = None
    uri: str = ""
    is_sources: bool = False


@dataclass
class Report:
    """What was found in a shard, in its sources, or in a file of any origin.

    Attributes:
        findings: what is wrong.
        files: number of files: 1, or the number of sources.
        records: number of whole records.
        read_bytes: bytes read.
        too_large: records that were checksummed, but not parsed.
        notes: notes on a file.
        schema: schema of a file's records.
        ends: order keys of a shard's first and last record by its index; None without an order.
        keys: 16 bytes of a digest of each key, if the split has the input's order.
    """

    findings: Findings = field(default_factory=Findings)
    files: int = 0
    records: int = 0
    read_bytes: int = 0
    too_large: int = 0
    notes: list[str] = field(default_factory=list)
    schema: InferredSchema = field(default_factory=InferredSchema)
    ends: tuple[OrderKey, OrderKey] | None = None
    keys: list[bytes] = field(default_factory=list)

    def add(self, other: "Report") -> None:
        """Add another report's findings, counts, notes and schema."""
        self.findings.extend(other.findings)
        self.files += other.files
        self.records += other.records
        self.read_bytes += other.read_bytes
        self.too_large += other.too_large
        self.notes += other.notes
        self.schema.extend(other.schema)


class Keys(msgspec.Struct, frozen=True, array_like=True):
    """Digests of keys of a shard, 16 bytes each."""

    place: ShardPlace
    digests: list[bytes]


class DataSet(NamedTuple):
    """A data set whose shards are being verified.

    Attributes:
        around: what is wrong next to the shards, and the number of shards.
        rules: rules of all shards; None without a readable manifest.
        partitions: number of partitions of the keys, where these must be compared.
    """

    around: Verified
    rules: ShardRules | None = None
    partitions: int = 1


class Around(NamedTuple):
    """What is seen before any task is done.

    Attributes:
        findings: what is wrong with the paths.
        data_sets: data sets in the order of the paths.
        tasks: number of tasks.
    """

    findings: Findings
    data_sets: list[DataSet]
    tasks: int


def verify_here(config: VerifyConfig) -> Verified:
    """Return what is wrong, found by threads of this process.

    Raises:
        ValueError: if the sources cannot be compared.
        RuntimeError: if a path does not exist, or a store fails.
    """
    around, tasks = look_around(config)
    with ThreadPoolExecutor(config.workers or usable_cores()) as pool:
        found = pool.map(partial(execute, around=around, config=config), tasks)
        reports = list(zip(tasks, found, strict=True))
    keys = (part for task, report in reports for _, part in partition_keys(task, report.keys, 1))
    return gather(around, reports, find_twice(keys))


def find_sets_and_files(config: VerifyConfig, findings: Findings) -> tuple[list[str], list[str]]:
    """Check all paths and sources; return the data sets and the files among the paths.

    Raises:
        ValueError: if the sources cannot be compared.
        RuntimeError: `E-ARG` if a path does not exist.
    """
    roots, files = find_paths(config.paths, config.access, findings)
    if config.sources:
        if len(roots) != 1:
            what = f"sources must come with one data set, got {len(roots)}: give them apart"
            raise ValueError(what)
        from transforms.verify.data_set import check_sources

        check_sources(roots[0], config.sources, config.access)
    return roots, files


def look_around(config: VerifyConfig) -> tuple[Around, list[Task]]:
    """Return what is seen at once, and the tasks that are left.

    Raises:
        ValueError: if the sources cannot be compared.
        RuntimeError: if a path does not exist, or a store fails.
    """
    findings, data_sets, tasks = Findings(), list[DataSet](), list[Task]()
    roots, files = find_sets_and_files(config, findings)
    for number, root in enumerate(roots):
        from transforms.verify.data_set import verify_around  # pyarrow takes 0.2 s

        around, rules, shards = verify_around(root, config.access, deep=config.deep)
        records = sum(shard.entry.records for shard in shards)
        data_sets.append(DataSet(around, rules, 1 + records // _KEYS_OF_A_PARTITION))
        hashed = [s for s in shards if {"", s.entry.split} & config.sources.keys()]
        for shard in shards:
            tasks.append(Task(len(tasks), number, shard))
        for shard in hashed:
            tasks.append(Task(len(tasks), number, shard, is_sources=True))
    for uri in files:
        tasks.append(Task(len(tasks), uri=uri))
    return Around(findings, data_sets, len(tasks)), tasks


def find_paths(
    paths: Sequence[str], access: Access, findings: Findings
) -> tuple[list[str], list[str]]:
    """Return the data sets and the TFRecord files among the paths.

    Findings are a plan without a manifest, and what is named like TFRecords but cannot be read,
    such as a dangling link.

    Raises:
        RuntimeError: `E-ARG` if a path does not exist, or is a folder without either.
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
    """Return whether a file is named like TFRecords: those of TFDS end in `-00000-of-00016`.

    >>> is_record_file("a.tfrecord-00000-of-00002"), is_record_file("out")
    (True, False)
    """
    stem = posixpath.basename(name).removesuffix(".gz")
    return any(stem.endswith(suffix) or f"{suffix}-" in stem for suffix in SUFFIXES)


def execute(task: Task, around: Around, config: VerifyConfig) -> Report:
    """Return what is wrong with a shard, its sources or a file.

    Raises:
        RuntimeError: if a store fails.
    """
    if task.shard is None:
        from transforms.verify.files import verify_file

        return verify_file(task.uri, config.access, deep=config.deep)
    from transforms.verify.shard import verify_shard, verify_sources

    rules = around.data_sets[task.data_set].rules
    assert rules is not None  # else there would be no task
    if task.is_sources:
        return verify_sources(task.shard, rules.root, config.sources, config.access)
    return verify_shard(task.shard, rules)


def partition_keys(
    task: Task, digests: Iterable[bytes], partitions: int
) -> Iterator[tuple[tuple[int, int], Keys]]:
    """Yield a shard's keys by data set and partition."""
    parts: dict[int, list[bytes]] = {}
    for digest in digests:
        parts.setdefault(int.from_bytes(digest[:4], "big") % partitions, []).append(digest)
    for partition, found in parts.items():
        assert task.shard is not None
        place = task.data_set, task.number, task.shard.entry.split, task.shard.entry.file
        yield (task.data_set, partition), Keys(place, found)


def find_twice(shards: Iterable[Keys]) -> Iterator[tuple[ShardPlace, int]]:
    """Yield how many keys of each shard are in it twice, or in an earlier shard of its split."""
    seen: dict[tuple[int, str], set[bytes]] = {}
    for keys in sorted(shards, key=lambda keys: keys.place):
        data_set, _, split, _ = keys.place
        known = seen.setdefault((data_set, split), set())
        before = len(known)
        known.update(keys.digests)
        if twice := before + len(keys.digests) - len(known):
            yield keys.place, twice


def gather(
    around: Around,
    reports: Sequence[tuple[Task, Report]],
    twice: Iterable[tuple[ShardPlace, int]],
) -> Verified:
    """Return everything that is wrong, and the notes.

    Args:
        around: what was seen before the tasks were done.
        reports: reports of all tasks, in their order.
        twice: numbers of keys that come twice.

    Raises:
        RuntimeError: if reports are lost, which no runner may do.
    """
    if len(reports) != around.tasks:
        raise RuntimeError(f"the sum of reports does not hold: {len(reports)} of {around.tasks}")
    twice_by_place: Counter[ShardPlace] = Counter()
    for place, keys in twice:
        twice_by_place[place] += keys
    found = Verified(Findings())
    found.findings.extend(around.findings)
    for number, data_set in enumerate(around.data_sets):
        own = [(task, report) for task, report in reports if task.data_set == number]
        own_twice = {place: n for place, n in sorted(twice_by_place.items()) if place[0] == number}
        found.extend(_gather_data_set(data_set, own, own_twice))
    files = [report for task, report in reports if task.shard is None]
    found.extend(_gather_files(files))
    return found


def order_fault(before: str, key: str, seed: int) -> tuple[str, str]:
    """Return what is wrong, and the remedy, if a record follows one that it must precede."""
    if before == key:
        return "its key comes twice", RESTORE
    return f"by seed {seed} it comes before the one of key {before!r}, not after it", RESTORE


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


def _gather_data_set(
    data_set: DataSet, reports: Sequence[tuple[Task, Report]], twice: Mapping[ShardPlace, int]
) -> Verified:
    """Return what is wrong with a data set: around its shards, between them and in them."""
    rules, around = data_set.rules, data_set.around
    if rules is None:
        return around
    shards, sources = Report(), Report()
    for task, report in reports:
        (sources if task.is_sources else shards).add(report)
    found = Verified(Findings(), around.files, shards.records, shards.read_bytes)
    found.findings.extend(around.findings)
    for (_, _, split, file), keys in twice.items():
        what = f"{keys} of its keys come twice in split {split}"
        found.findings.add("E-VER-ORDER", file, what, RESTORE)
    _check_order_of_shards(reports, rules.seed, found.findings)
    found.findings.extend(shards.findings)
    if shards.too_large:
        found.notes += (f"{shards.too_large} records are too large to be looked into",)
    found.notes += around.notes
    if any(task.is_sources for task, _ in reports):
        found.findings.extend(sources.findings)
        found.bytes += sources.read_bytes
        note = f"{counted(sources.files, 'source file')} compared with the index"
        if not sources.files:
            note = "no source file was compared: the index names none, as of rows and of no records"
        found.notes += (note,)
    return found


def _check_order_of_shards(
    reports: Sequence[tuple[Task, Report]], seed: int, findings: Findings
) -> None:
    """Note shards that begin before the one in front of them ends."""
    last: dict[str, OrderKey] = {}
    for task, report in reports:
        if task.shard is None or report.ends is None:
            continue
        entry, (first, end) = task.shard.entry, report.ends
        before = last.get(entry.split)
        if before is not None and before >= first:
            where = at_record(entry.file, 0, 0, first[1])
            findings.add("E-VER-ORDER", where, *order_fault(before[1], first[1], seed))
        last[entry.split] = end


def _gather_files(reports: Sequence[Report]) -> Verified:
    """Return what is wrong with files of any origin, and their schema."""
    from transforms.verify.files import schema_findings, schema_lines

    total = Report()
    for report in reports:
        total.add(report)
    found = Verified(total.findings, total.files, total.records, total.read_bytes)
    found.findings.extend(schema_findings(total.schema))
    found.notes = (*total.notes, *schema_lines(total.schema))
    return found
