"""Verify one shard of a data set: its bytes, its records, its index and its receipt."""

import hashlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

import google_crc32c
import msgspec

from schemas.faults import Findings, at_record
from schemas.manifest import ShardEntry, from_json
from schemas.samples import Order, shuffle_keys
from schemas.shards import ShardInfo, file_sum, receipt_name
from schemas.tfrecord import FRAME_BYTES
from transforms.shard_index import (
    IndexRow,
    Source,
    index_from_parquet,
    index_to_text,
    is_index_as_written,
)
from transforms.storage import Access, Storage, join_uri, open_storage
from transforms.verify import (
    RESTORE,
    Report,
    ShardRules,
    ShardTask,
    order_fault,
)
from transforms.walk_frames import BadFrame, Buffer, ReadSpan, Record, walk_frames

_SOURCE_REMEDY = "restore it from a copy, or make the data set again"
INDEX_REMEDY = "restore the index from a copy, or delete it and manifest.json and run again"


def verify_shard(task: ShardTask, rules: ShardRules) -> Report:
    """Return what is wrong with a shard.

    Raises:
        RuntimeError: where the store fails.
    """
    storage = open_storage(rules.root, rules.access)
    report = Report()
    check_listing(task, storage.root, report.findings)
    rows = read_index(task, storage, report.findings, has_sum=rules.has_sums)
    if rows is not None:
        check_rows(task, rows, rules, report)
    check_receipt(task, storage, report.findings, has_sum=rules.has_sums)
    file = task.file
    if not rules.reads:
        report.records = len(rows or ())
    elif file is not None and file.kind == "file":

        def read(start: int, end: int) -> bytes:
            return storage.read(file.name, file, (start, end))

        report.add(verify_bytes(task.entry, rows, rules, read, file.size_bytes))
    return report


def check_listing(task: ShardTask, root: str, findings: Findings) -> None:
    """Compare a shard with the listing, which may have its checksum."""
    entry, file = task.entry, task.file
    where = join_uri(root, entry.file)
    if file is None or file.kind != "file":
        what = "is not there" if file is None else f"is a {file.kind}"
        findings.add("E-VER-MISSING", where, what, RESTORE)
    elif file.size_bytes != entry.bytes:
        what = f"has {file.size_bytes} bytes, the manifest says {entry.bytes}"
        findings.add("E-VER-SIZE", where, what, RESTORE)
    elif file.crc32c is not None and f"{file.crc32c:08x}" != entry.crc32c:
        what = f"has the CRC-32C {file.crc32c:08x} by its store, the manifest says {entry.crc32c}"
        findings.add("E-VER-CRC", where, what, RESTORE)


def verify_bytes(
    entry: ShardEntry,
    rows: Sequence[IndexRow] | None,
    rules: ShardRules,
    read: ReadSpan,
    size_bytes: int,
) -> Report:
    """Return what is wrong with a shard's bytes, which are read once.

    Args:
        entry: of the shard in the manifest.
        rows: of its index; None where that cannot be read.
        rules: of the data set.
        read: reads the file.
        size_bytes: of the file.
    """
    report, digests = Report(), _Digests(rules.hashes)
    findings, is_unlike = report.findings, False
    by_offset = {row.offset: row for row in rows or ()}
    for found in walk_frames(read, size_bytes, digests.add, sorted(by_offset)):
        row = by_offset.pop(found.offset, None)
        if isinstance(found, BadFrame):
            findings.add(found.code, _where(entry, found, row), found.what, RESTORE)
            continue
        report.records += 1
        frame_bytes = found.size + FRAME_BYTES
        is_like = row is not None and row.size == frame_bytes
        if found.data is None:
            report.too_large += 1
        elif wrong := _wrong_record(found.data, row if is_like else None, entry.split, rules):
            for what in wrong:
                findings.add("E-VER-EXAMPLE", _where(entry, found, row), what, RESTORE)
        if rows is not None and not is_like and not is_unlike:
            is_unlike = True  # from here on, others may have moved
            said = "has no such record" if row is None else f"says {row.size} bytes"
            what = f"the index {said}, its frame has {frame_bytes}"
            findings.add("E-VER-INDEX", _where(entry, found, row), what, INDEX_REMEDY)
    report.read_bytes = digests.bytes
    if not findings.counts.keys() & {"E-VER-FRAME", "E-VER-CRC"}:
        _check_count(entry, rows or (), by_offset, report)
    if not findings:
        for what in digests.wrong(entry):
            findings.add("E-VER-CRC", entry.file, what, RESTORE)
    return report


class _Digests:
    """Checksums of a whole file: CRC-32C, which is quick, and SHA-256 where it is asked for."""

    def __init__(self, hashes: bool) -> None:
        self.bytes = 0
        self._crc32c = 0
        self._sha256 = hashlib.sha256() if hashes else None

    def add(self, data: Buffer) -> None:
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


def _check_count(
    entry: ShardEntry, rows: Sequence[IndexRow], left: Collection[int], report: Report
) -> None:
    """Compare which records there are with the manifest, and with the index's offsets left over."""
    if left:
        number, row = next((n, row) for n, row in enumerate(rows) if row.offset in left)
        where = at_record(entry.file, number, row.offset, row.key)
        what = "no record begins where the index says"
        report.findings.add("E-VER-FRAME", where, what, RESTORE)
    elif report.records != entry.records:
        what = f"{report.records} records, the manifest says {entry.records}"
        report.findings.add("E-VER-FRAME", entry.file, what, RESTORE)


def _where(entry: ShardEntry, found: Record | BadFrame, row: IndexRow | None) -> str:
    return at_record(entry.file, found.number, found.offset, None if row is None else row.key)


def _wrong_record(data: bytes, row: IndexRow | None, split: str, rules: ShardRules) -> list[str]:
    """Return what is wrong with a record, given its row of the index if that has one."""
    if row is None:
        return rules.examples.find_wrong(data, hashes=rules.hashes)
    is_compared = rules.hashes and split not in rules.converted
    sources = [source.sha256 for source in row.sources] if is_compared else ()
    size_px = row.image_height, row.image_width
    return rules.examples.find_wrong(data, sources, row.labels, size_px, hashes=rules.hashes)


def read_index(
    task: ShardTask, storage: Storage, findings: Findings, *, has_sum: bool
) -> list[IndexRow] | None:
    """Return the rows of a shard's index; None with a finding where it cannot be read.

    Where it can, and holds its own CRC-32C, that is compared.
    """
    parquet_name, text_name = task.index
    rows = None
    data = read_if_there(parquet_name, storage, findings)
    if data is not None:
        try:
            rows = index_from_parquet(data)
        except ValueError as error:
            findings.add("E-VER-INDEX", parquet_name, " ".join(str(error).split()), INDEX_REMEDY)
        if rows is not None and has_sum and not is_index_as_written(data):
            what = "its bytes do not have the CRC-32C that they say"
            findings.add("E-VER-INDEX", parquet_name, what, INDEX_REMEDY)
    text = read_if_there(text_name, storage, findings)
    if rows is not None and text is not None and text != index_to_text(rows):
        what = f"is not the text form of {parquet_name}"
        findings.add("E-VER-INDEX", text_name, what, INDEX_REMEDY)
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


def check_receipt(task: ShardTask, storage: Storage, findings: Findings, *, has_sum: bool) -> None:
    """Compare a shard's receipt with the manifest, and with the sum there where it has one."""
    name, entry = receipt_name(task.stem), task.entry
    data = read_if_there(name, storage, findings)
    if data is None:
        return
    try:
        info = from_json(data, ShardInfo)
    except ValueError as error:
        findings.add("E-VER-MANIFEST", name, f"no receipt ({error})", RESTORE)
        return
    wanted = {**msgspec.structs.asdict(entry), "plan": task.plan, "name": task.stem}
    del wanted["index_stem"], wanted["receipt"]
    wrong = {field: value for field, value in wanted.items() if getattr(info, field) != value}
    for field, value in wrong.items():
        what = f"{field} is {getattr(info, field)!r}, the manifest says {value!r}"
        findings.add("E-VER-MANIFEST", name, what, RESTORE)
    if has_sum and not wrong and file_sum(data) != entry.receipt:
        findings.add("E-VER-CRC", name, "its size or CRC-32C is not the manifest's", RESTORE)


def check_rows(
    task: ShardTask, rows: Sequence[IndexRow], rules: ShardRules, report: Report
) -> None:
    """Compare a shard's index with the manifest, and note what takes all shards to compare."""
    name, entry, findings = task.index[0], task.entry, report.findings
    if len(rows) != entry.records:
        what = f"{len(rows)} records, the manifest says {entry.records}"
        findings.add("E-VER-INDEX", name, what, INDEX_REMEDY)
    at = 0
    for number, row in enumerate(rows):
        if row.offset != at:
            what = f"the record is said to begin at byte {row.offset}, the one before ends at {at}"
            findings.add("E-VER-INDEX", at_record(name, number, at, row.key), what, INDEX_REMEDY)
            break
        at += row.size
    else:
        if at != entry.bytes:
            what = f"its records end at byte {at}, the manifest says {entry.bytes} bytes"
            findings.add("E-VER-INDEX", name, what, INDEX_REMEDY)
    labels = rules.examples.labels
    for number, row in enumerate(rows if labels else ()):
        if unknown := set(row.labels) - labels:
            what = f"the label {min(unknown)} is not in the label map"
            where = at_record(name, number, row.offset, row.key)
            findings.add("E-VER-INDEX", where, what, INDEX_REMEDY)
    if rows:
        _check_order(task, rows, rules, report)


def _check_order(
    task: ShardTask, rows: Sequence[IndexRow], rules: ShardRules, report: Report
) -> None:
    split, keys = task.entry.split, [row.key for row in rows]
    if rules.orders[split] is Order.INPUT:
        report.keys = [
            hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            for key in keys
        ]
        return
    in_order = list(zip(shuffle_keys(split, keys, rules.seed), keys, strict=True))
    report.ends = in_order[0], in_order[-1]
    for number, (one, other) in enumerate(itertools.pairwise(in_order), 1):
        if one >= other:
            where = at_record(task.entry.file, number, rows[number].offset, other[1])
            report.findings.add("E-VER-ORDER", where, *order_fault(one[1], other[1], rules.seed))


def verify_sources(
    shard: ShardTask, root: str, sources: Mapping[str, Sequence[str]], access: Access
) -> Report:
    """Return which sources of a shard are gone, or have other bytes than its index says.

    Args:
        shard: the shard.
        root: path or URI of its data set.
        sources: roots by split, and one of them has the file; those of `""` for every split.
        access: how stores are reached.

    Raises:
        RuntimeError: `E-IO-…` where a store fails.
    """
    split, report = shard.entry.split, Report()
    roots = [open_storage(uri, access) for uri in (*sources.get(split, ()), *sources.get("", ()))]
    rows = read_index(shard, open_storage(root, access), Findings(), has_sum=False) or ()
    found = {(s.name, s.sha256): (s, row.key) for row in rows for s in row.sources}
    for source, key in found.values():
        size, wrong = _check_source(source, roots)
        report.files += 1
        report.read_bytes += size
        if wrong:
            where = f"{join_uri(roots[0].root, source.name)} (of key {key!r} in {split})"
            report.findings.add("E-VER-SOURCE", where, wrong, _SOURCE_REMEDY)
    return report


def _check_source(source: Source, roots: Sequence[Storage]) -> tuple[int, str]:
    """Return how many bytes were read, and what is wrong; empty for nothing."""
    read_bytes, wrong = 0, "is not there"
    for storage in roots:
        entry = storage.stat(source.name)
        if entry is None or entry.kind != "file":
            continue
        if entry.size_bytes != source.size:
            wrong = f"has {entry.size_bytes} bytes, the index says {source.size}"
            continue
        data = storage.read(source.name, entry)
        read_bytes += len(data)
        digest = hashlib.sha256(data).hexdigest()
        if digest == source.sha256:
            return read_bytes, ""
        wrong = f"has the SHA-256 {digest}, the index says {source.sha256}"
    return read_bytes, wrong
