"""Verify one shard of a data set: its bytes and its records, beside its index and receipt."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import google_crc32c
import msgspec

from schemas.findings import Finding, Findings, at_record
from schemas.manifest import ShardEntry
from schemas.tfrecord import FRAME_BYTES
from transforms.quantities import counted
from transforms.shard_index import IndexRow
from transforms.storage import Entry, Storage, join_uri, open_storage
from transforms.verify.index import INDEX_REMEDY, check_receipt, check_rows, read_index
from transforms.verify.shard_reports import RESTORE, ShardReport, ShardRules, ShardTask
from transforms.walk_frames import BadFrame, Buffer, ReadSpan, Record, walk_frames


def verify_shard(task: ShardTask, rules: ShardRules) -> ShardReport:
    """Return what is wrong with a shard.

    Raises:
        RuntimeError: where the store fails.
    """
    storage = open_storage(rules.root, rules.access)
    report = ShardReport()
    rows = read_index(task, storage, report.findings, has_sum=rules.has_sums)
    if rows is not None:
        check_rows(task, rows, rules, report)
    check_receipt(task, storage, report.findings, has_sum=rules.has_sums)
    gap = None
    if not rules.reads:
        report.records = len(rows or ())
    elif task.file is not None and task.file.kind == "file":
        of_bytes, gap = _walk(task.entry, rows, rules, *_opened(storage, task.file))
        _add_bytes(report, of_bytes)
    found = listing_fault(task, storage.root)
    if found is not None and not (gap and found.code == "E-VER-SIZE"):  # of which the gap tells
        of_listing = Findings()
        of_listing.add(*msgspec.structs.astuple(found))
        of_listing.extend(report.findings)
        report.findings = of_listing
    return report


def listing_fault(task: ShardTask, root: str) -> Finding | None:
    """Compare a shard with the listing, which may know its checksum."""
    entry, file = task.entry, task.file
    where = join_uri(root, entry.file)
    if file is None or file.kind != "file":
        what = "is not there" if file is None else f"is a {file.kind}"
        return Finding("E-VER-MISSING", where, what, RESTORE)
    if file.size_bytes != entry.bytes:
        what = f"has {file.size_bytes} bytes, the manifest says {entry.bytes}"
        return Finding("E-VER-SIZE", where, what, RESTORE)
    if file.crc32c is not None and f"{file.crc32c:08x}" != entry.crc32c:
        what = f"has the CRC-32C {file.crc32c:08x} by its store, the manifest says {entry.crc32c}"
        return Finding("E-VER-CRC", where, what, RESTORE)
    return None


class Gap(NamedTuple):
    """Where a file has fewer records than its index, or more; all others are the same.

    Attributes:
        number: of the first such record, from 0.
        offset: where it is, or was, in bytes.
        records: how many there are.
        bytes: of them, with framing.
        is_missing: whether the file lacks them, and not the index.
        at_end: whether no other record follows.
        key: of the first; None where the index has none.
        is_sure: whether they are these: a record before them is not as large.
    """

    number: int
    offset: int
    records: int
    bytes: int
    is_missing: bool
    at_end: bool
    key: str | None
    is_sure: bool


def find_gap(rows: Sequence[IndexRow], sizes: Sequence[int]) -> Gap | None:
    """Return where records were taken out of a file, or put into it; None for anything else.

    Args:
        rows: of the index, by offset.
        sizes: of the file's records with their framing, in bytes, in their order.
    """
    wanted = [row.size for row in rows]
    if [row.offset for row in rows] != [0, *itertools.accumulate(wanted)][: len(rows)]:
        return None
    pairs = zip(wanted, sizes, strict=False)
    head = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    last = zip(wanted[head:][::-1], sizes[head:][::-1], strict=False)
    tail = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], last))
    missing, extra = wanted[head : len(wanted) - tail], sizes[head : len(sizes) - tail]
    if bool(missing) == bool(extra):
        return None
    return Gap(
        number=head,
        offset=sum(wanted[:head]),
        records=len(missing or extra),
        bytes=sum(missing or extra),
        is_missing=bool(missing),
        at_end=not tail,
        key=rows[head].key if missing else None,
        is_sure=head == 0 or wanted[head - 1] != (missing or extra)[-1],
    )


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
    return _walk(entry, rows, rules, read, size_bytes)[0]


def _opened(storage: Storage, file: Entry) -> tuple[ReadSpan, int]:
    def read(start: int, end: int) -> bytes:
        return storage.read(file.name, file, (start, end))

    return read, file.size_bytes


def _add_bytes(report: ShardReport, of_bytes: ShardReport) -> None:
    report.findings.extend(of_bytes.findings)
    report.records, report.read_bytes = of_bytes.records, of_bytes.read_bytes
    report.too_large = of_bytes.too_large


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


def _walk(
    entry: ShardEntry,
    rows: Sequence[IndexRow] | None,
    rules: ShardRules,
    read: ReadSpan,
    size_bytes: int,
) -> tuple[ShardReport, Gap | None]:
    """Return what is wrong with a shard's bytes, and where records are gone or too many."""
    report, digests = ShardReport(), _Digests(rules.hashes)
    findings, unlike = report.findings, Findings()
    by_offset = {row.offset: row for row in rows or ()}
    sizes: list[int] = []
    for found in walk_frames(read, size_bytes, digests.add, sorted(by_offset)):
        row = by_offset.pop(found.offset, None)
        if isinstance(found, BadFrame):
            findings.add(found.code, _where(entry, found, row), found.what, RESTORE)
            continue
        frame_bytes = found.size + FRAME_BYTES
        sizes.append(frame_bytes)
        is_like = row is not None and row.size == frame_bytes
        if found.data is None:
            report.too_large += 1
        elif wrong := _wrong_record(found.data, row if is_like else None, entry.split, rules):
            for what in wrong:
                findings.add("E-VER-EXAMPLE", _where(entry, found, row), what, RESTORE)
        if rows is not None and not is_like:
            said = "has no such record" if row is None else f"says {row.size} bytes"
            what = f"the index {said}, its frame has {frame_bytes}"
            unlike.add("E-VER-INDEX", _where(entry, found, row), what, INDEX_REMEDY)
    report.records, report.read_bytes = len(sizes), digests.bytes
    is_whole = not findings.counts.keys() & {"E-VER-FRAME", "E-VER-CRC"}
    gap = None
    if is_whole and rows is not None and (unlike or len(sizes) != len(rows)):
        gap = find_gap(sorted(rows, key=lambda row: row.offset), sizes)
    if gap is not None:
        where = at_record(entry.file, gap.number, gap.offset, gap.key)
        findings.add("E-VER-FRAME", where, _told(gap), RESTORE)
        return report, gap
    findings.extend(unlike)
    if is_whole:
        _check_count(entry, by_offset.values(), report)
    if not findings:
        for what in digests.wrong(entry):
            findings.add("E-VER-CRC", entry.file, what, RESTORE)
    return report, None


def _check_count(entry: ShardEntry, left: Iterable[IndexRow], report: ShardReport) -> None:
    """Compare how many records there are with the manifest, and with what is left of the index."""
    if report.records != entry.records:
        what = f"{report.records} records, the manifest says {entry.records}"
        report.findings.add("E-VER-FRAME", entry.file, what, RESTORE)
    for row in sorted(left, key=lambda row: row.offset)[:1]:
        where = f"{entry.file} (key {row.key!r}) at byte {row.offset}"
        what = "no record begins where the index says"
        report.findings.add("E-VER-FRAME", where, what, RESTORE)


def _told(gap: Gap) -> str:
    """Return in words where records are gone or too many."""
    records = f"{counted(gap.records, 'record')} of {gap.bytes} bytes"
    if not gap.is_missing:
        return f"here {records} that the index does not tell of; all others are as it says"
    if gap.at_end:
        return f"the file ends here, without {records} that the index has"
    place = "" if gap.is_sure else ", here or before,"
    return f"without {records} that the index has{place}; all others are as it says"


def _where(entry: ShardEntry, found: Record | BadFrame, row: IndexRow | None) -> str:
    return at_record(entry.file, found.number, found.offset, None if row is None else row.key)


def _wrong_record(data: bytes, row: IndexRow | None, split: str, rules: ShardRules) -> list[str]:
    """Return what is wrong with a record, given its row of the index if that has one."""
    if row is None:
        return rules.examples.find_wrong(data, hashes=rules.hashes)
    is_compared = rules.hashes and split not in rules.converted
    sources = [source.sha256 for source in row.sources] if is_compared else ()
    return rules.examples.find_wrong(data, sources, row.labels, hashes=rules.hashes)
