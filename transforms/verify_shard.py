"""Verify one shard of a data set: its bytes, its records, its index, its receipt."""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import google_crc32c
import msgspec

from schemas.example_rules import ExampleRules
from schemas.findings import Findings, at_record
from schemas.manifest import ShardEntry, from_json
from schemas.order import Order, shuffle_key
from schemas.shards import ShardInfo, index_names, receipt_name
from transforms.shard_index import IndexRow, index_from_parquet, index_to_text
from transforms.storage import DEFAULT_ACCESS, Access, Entry, Storage, open_storage
from transforms.walk_frames import BadFrame, ReadSpan, Record, walk_frames

RESTORE = "restore it from a copy, or delete it and manifest.json and run the command again"
_INDEX_REMEDY = "restore the index from a copy, or delete it and manifest.json and run again"

OrderKey = tuple[int, str]
"""What a shuffled split is sorted by."""


class ShardTask(msgspec.Struct, frozen=True):
    """One shard to be verified.

    Attributes:
        entry: as in the manifest.
        stem: what names its index and receipt.
        plan: digest of the plan, hex.
        file: as listed; None where it is not there.
    """

    entry: ShardEntry
    stem: str
    plan: str
    file: Entry | None


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
    """

    root: str
    examples: ExampleRules
    orders: dict[str, Order]
    seed: int
    reads: bool
    hashes: bool
    converted: frozenset[str]
    access: Access = DEFAULT_ACCESS


class ShardReport(msgspec.Struct):
    """What was found in a shard.

    Attributes:
        findings: what is wrong.
        records: whole ones.
        read_bytes: read of it.
        ends: order key of the first and the last record by the index; none where it has no order.
        keys: 16 bytes of a digest of each key, of a split in the input's order.
        too_large: records that were checksummed, but not looked into.
    """

    findings: Findings = msgspec.field(default_factory=Findings)
    records: int = 0
    read_bytes: int = 0
    ends: tuple[OrderKey, OrderKey] | None = None
    keys: list[bytes] = []
    too_large: int = 0


def verify_shard(task: ShardTask, rules: ShardRules) -> ShardReport:
    """Return what is wrong with a shard.

    Raises:
        RuntimeError: where the store fails.
    """
    storage = open_storage(rules.root, rules.access)
    report = ShardReport()
    rows = _read_index(task, storage, report.findings)
    if rows is not None:
        _check_rows(task, rows, rules, report)
    _check_receipt(task, storage, report.findings)
    if not rules.reads:
        report.records = len(rows or ())
    elif task.file is not None and task.file.kind == "file":
        _add_bytes(report, verify_bytes(task.entry, rows, rules, *_opened(storage, task.file)))
    return report


def _opened(storage: Storage, file: Entry) -> tuple[ReadSpan, int]:
    def read(start: int, end: int) -> bytes:
        return storage.read(file.name, file, (start, end))

    return read, file.size_bytes


def _add_bytes(report: ShardReport, of_bytes: ShardReport) -> None:
    report.findings.extend(of_bytes.findings)
    report.records, report.read_bytes = of_bytes.records, of_bytes.read_bytes
    report.too_large = of_bytes.too_large


def _read_index(task: ShardTask, storage: Storage, findings: Findings) -> list[IndexRow] | None:
    parquet_name, text_name = index_names(task.stem)
    rows = None
    data = read_if_there(parquet_name, storage, findings)
    if data is not None:
        try:
            rows = index_from_parquet(data)
        except ValueError as error:
            findings.add("E-VER-INDEX", parquet_name, " ".join(str(error).split()), _INDEX_REMEDY)
    text = read_if_there(text_name, storage, findings)
    if rows is not None and text is not None and text != index_to_text(rows):
        what = f"is not the text form of {parquet_name}"
        findings.add("E-VER-INDEX", text_name, what, _INDEX_REMEDY)
    return rows


def read_if_there(
    name: str, storage: Storage, findings: Findings, remedy: str = RESTORE
) -> bytes | None:
    """Return a small file of a data set; None with a finding where there is none."""
    entry = storage.stat(name)
    if entry is None or entry.kind != "file":
        what = "is not there" if entry is None else f"is a {entry.kind}"
        findings.add("E-VER-MISSING", name, what, remedy)
        return None
    return storage.read(name, entry)


def _check_receipt(task: ShardTask, storage: Storage, findings: Findings) -> None:
    name, entry = receipt_name(task.stem), task.entry
    data = read_if_there(name, storage, findings)
    if data is None:
        return
    try:
        info = from_json(data, ShardInfo)
    except ValueError as error:
        findings.add("E-VER-MANIFEST", name, f"no receipt ({error})", RESTORE)
        return
    said = {field: getattr(info, field) for field in msgspec.structs.asdict(entry)}
    wanted = {**msgspec.structs.asdict(entry), "plan": task.plan, "name": task.stem}
    said |= {"plan": info.plan, "name": info.name}
    for field, value in wanted.items():
        if said[field] != value:
            what = f"{field} is {said[field]!r}, the manifest says {value!r}"
            findings.add("E-VER-MANIFEST", name, what, RESTORE)


def _check_rows(
    task: ShardTask, rows: Sequence[IndexRow], rules: ShardRules, report: ShardReport
) -> None:
    name, entry, findings = index_names(task.stem)[0], task.entry, report.findings
    if len(rows) != entry.records:
        what = f"{len(rows)} records, the manifest says {entry.records}"
        findings.add("E-VER-INDEX", name, what, _INDEX_REMEDY)
    at = 0
    for number, row in enumerate(rows):
        if row.offset != at:
            what = f"the record is said to begin at byte {row.offset}, the one before ends at {at}"
            findings.add("E-VER-INDEX", at_record(name, number, at, row.key), what, _INDEX_REMEDY)
            break
        at += row.size
    else:
        if at != entry.bytes:
            what = f"its records end at byte {at}, the manifest says {entry.bytes} bytes"
            findings.add("E-VER-INDEX", name, what, _INDEX_REMEDY)
    labels = rules.examples.labels
    for number, row in enumerate(rows):
        if labels and (unknown := set(row.labels) - labels):
            what = f"the label {min(unknown)} is not in the label map"
            where = at_record(name, number, row.offset, row.key)
            findings.add("E-VER-INDEX", where, what, _INDEX_REMEDY)
    _check_order(task, rows, rules, report)


def _check_order(
    task: ShardTask, rows: Sequence[IndexRow], rules: ShardRules, report: ShardReport
) -> None:
    split = task.entry.split
    if not rows:
        return
    if rules.orders[split] is Order.INPUT:
        report.keys = [digest_key(row.key) for row in rows]
        return
    in_order = [(shuffle_key(split, row.key, rules.seed), row.key) for row in rows]
    report.ends = in_order[0], in_order[-1]
    for number, (one, other) in enumerate(itertools.pairwise(in_order), 1):
        if one >= other:
            where = at_record(task.entry.file, number, rows[number].offset, other[1])
            report.findings.add("E-VER-ORDER", where, *order_fault(one[1], other[1], rules.seed))


def order_fault(before: str, key: str, seed: int) -> tuple[str, str]:
    """Return what is wrong where a record stands behind one that it must precede."""
    if before == key:
        return "its key comes twice", RESTORE
    return f"by seed {seed} it comes before the one of key {before!r}, not behind it", RESTORE


def digest_key(key: str) -> bytes:
    """Return 16 bytes that stand for a key."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class _Digests:
    """Checksums of a whole file: CRC-32C, which is quick, and SHA-256 where it is asked for."""

    def __init__(self, hashes: bool) -> None:
        self.bytes = 0
        self._crc32c = 0
        self._sha256 = hashlib.sha256() if hashes else None

    def add(self, data: bytes) -> None:
        self.bytes += len(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        if self._sha256 is not None:
            self._sha256.update(data)

    def wrong(self, entry: ShardEntry) -> Iterator[str]:
        found = [("CRC-32C", f"{self._crc32c:08x}", entry.crc32c)]
        if self._sha256 is not None:
            found.append(("SHA-256", self._sha256.hexdigest(), entry.sha256))
        for name, value, wanted in found:
            if value != wanted:
                yield f"the file's {name} is {value}, the manifest says {wanted}"


def verify_bytes(
    entry: ShardEntry,
    rows: Sequence[IndexRow] | None,
    rules: ShardRules,
    read: ReadSpan,
    size_bytes: int,
) -> ShardReport:
    """Return what is wrong with a shard's bytes, which are read once.

    Args:
        entry: of the shard in the manifest.
        rows: of its index; None where that cannot be read.
        rules: of the data set.
        read: reads the file.
        size_bytes: of the file.
    """
    report, digests = ShardReport(), _Digests(rules.hashes)
    findings = report.findings
    by_offset = {row.offset: row for row in rows or ()}
    for found in walk_frames(read, size_bytes, digests.add, sorted(by_offset)):
        row = by_offset.pop(found.offset, None)
        where = at_record(entry.file, found.number, found.offset, None if row is None else row.key)
        if isinstance(found, BadFrame):
            findings.add(found.code, where, found.what, RESTORE)
            continue
        report.records += 1
        _check_record(where, found, row, entry.split, rules, report)
        if rows is not None and (row is None or row.size != found.size + 16):
            what = (
                "the index has no such record"
                if row is None
                else f"the index says {row.size} bytes"
            )
            findings.add(
                "E-VER-INDEX", where, f"{what}, its frame has {found.size + 16}", _INDEX_REMEDY
            )
    report.read_bytes = digests.bytes
    if not findings.counts.keys() & {"E-VER-FRAME", "E-VER-CRC"}:
        if report.records != entry.records:
            what = f"{report.records} records, the manifest says {entry.records}"
            findings.add("E-VER-FRAME", entry.file, what, RESTORE)
        for row in sorted(by_offset.values(), key=lambda row: row.offset)[:1]:
            where = f"{entry.file} (key {row.key!r}) at byte {row.offset}"
            findings.add("E-VER-FRAME", where, "no record begins where the index says", RESTORE)
    if not findings:
        for what in digests.wrong(entry):
            findings.add("E-VER-CRC", entry.file, what, RESTORE)
    return report


def _check_record(
    where: str,
    record: Record,
    row: IndexRow | None,
    split: str,
    rules: ShardRules,
    report: ShardReport,
) -> None:
    if record.data is None:
        report.too_large += 1
        return
    sources: list[str] = []
    if rules.hashes and row is not None and split not in rules.converted:
        sources = [source.sha256 for source in row.sources]
    for what in rules.examples.find_wrong(record.data, sources, hashes=rules.hashes):
        report.findings.add("E-VER-EXAMPLE", where, what, RESTORE)
