"""Verify one shard of a data set: its bytes, its records, its index and its receipt."""

import functools
import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import google_crc32c

from beam_tfrec.schemas.faults import at_record
from beam_tfrec.schemas.manifest import (
    Manifest,
    ShardEntry,
    from_json,
    has_sums,
    order_of,
    plan_digest,
)
from beam_tfrec.schemas.samples import Order, shuffle_keys
from beam_tfrec.schemas.shards import ShardInfo, file_sum, receipt_name
from beam_tfrec.schemas.tfrecord import framing_bytes, is_array_record
from beam_tfrec.transforms.shard_index import (
    IndexRow,
    index_from_parquet,
    index_to_text,
    is_index_as_written,
)
from beam_tfrec.transforms.storage import Storage, join_uri, open_storage
from beam_tfrec.transforms.storage.read_data_set import what_differs, what_is
from beam_tfrec.transforms.verify import RESTORE, Report, ShardRules, ShardTask, VerifyConfig
from beam_tfrec.transforms.walk_frames import BadFrame, ReadSpan, read_pieces, walk_records

_SOURCE_REMEDY = "restore it from a copy, or write the data set again"
_OF_RECEIPTS = ("file", "split", "planned", "records", "bytes", "crc32c", "sha256")


def verify_shard(task: ShardTask, rules: ShardRules, config: VerifyConfig) -> Report:
    """Verify a shard, and its sources if they are configured.

    Raises:
        RuntimeError: The store fails.
    """
    storage, file = open_storage(rules.root, config.access), task.file
    report = Report(files=1)
    if wrong := what_differs(task.entry, file):
        code, what = wrong
        report.find(code, join_uri(storage.root, task.entry.file), what)
    rows = read_index(task, storage, report, has_sum=has_sums(rules.manifest))
    if rows is not None:
        check_rows(task, rows, rules, report)
    check_receipt(task, storage, report, rules.manifest)
    if not rules.reads:
        report.records = len(rows or ())
    elif file is not None and file.kind == "file":

        def read(start: int, end: int) -> bytes:
            return storage.read(file.name, file, (start, end))

        report.add(verify_bytes(task.entry, rows, rules, read, file.size_bytes))
    compare_sources(rows or (), task.entry.split, config, report)
    return report


def verify_bytes(
    entry: ShardEntry,
    rows: Sequence[IndexRow] | None,
    rules: ShardRules,
    read: ReadSpan,
    size_bytes: int,
) -> Report:
    """Verify a shard's bytes, which are read once.

    Args:
        entry: entry of the shard in the manifest.
        rows: rows of the index; None if it cannot be read.
        rules: rules of the data set.
        read: function that reads a range of the file.
        size_bytes: size of the file.
    """
    report = Report(bytes=size_bytes)
    digests: list[tuple[str, Any, str]] = [("CRC-32C", google_crc32c.Checksum(), entry.crc32c)]
    if rules.deep:
        digests.append(("SHA-256", hashlib.sha256(), entry.sha256))

    def hashed(piece: bytes) -> bytes:
        for _, digest, _ in digests:
            digest.update(piece)
        return piece

    by_offset = {row.offset: row for row in rows or ()}
    has_files = entry.split not in rules.converted
    pieces = map(hashed, read_pieces(read, size_bytes))
    for found in walk_records(entry.file, pieces, size_bytes, sorted(by_offset)):
        row = by_offset.pop(found.offset, None)
        key = None if row is None else row.key
        at = functools.partial(at_record, entry.file, found.number, found.offset, key)
        if isinstance(found, BadFrame):
            report.find(found.code, at(), found.what)
            continue
        report.records += 1
        frame_bytes = found.size + framing_bytes(entry.file)
        if rows is not None and (row is None or row.size != frame_bytes):
            said = "has no such record" if row is None else f"says {row.size} bytes"
            row = None
            if "E-VER-INDEX" not in report.counts:
                report.find("E-VER-INDEX", at(), f"the index {said}, its frame has {frame_bytes}")
        if row is not None and row.crc32c not in (None, found.crc32c):
            what = f"the index says CRC-32C {row.crc32c:08x}, the record has {found.crc32c:08x}"
            report.find("E-VER-INDEX", at(), what)
        if found.data is None:
            report.notes.append(f"{at()}: too large to be parsed")
            continue
        known = row.sources if row and has_files else ()
        compared = [source.sha256 for source in known] if rules.deep else None
        labels = None if row is None else row.labels
        size_px = () if row is None else (row.image_height, row.image_width)
        for what in rules.examples.find_wrong(found.data, compared, labels, size_px):
            report.find("E-VER-EXAMPLE", at(), what)
    sum(map(len, pieces))  # hash the bytes after the last frame
    if not report.counts.keys() & {"E-VER-FRAME", "E-VER-CRC"}:
        if by_offset:
            number, first = next((n, r) for n, r in enumerate(rows or ()) if r.offset in by_offset)
            where = at_record(entry.file, number, first.offset, first.key)
            report.find("E-VER-FRAME", where, "no record begins where the index says")
        elif report.records != entry.records:
            what = f"{report.records} records, the manifest says {entry.records}"
            report.find("E-VER-FRAME", entry.file, what)
    if not report.counts:
        for name, digest, wanted in digests:
            if (there := digest.digest().hex()) != wanted:
                what = f"the file's {name} is {there}, the manifest says {wanted}"
                report.find("E-VER-CRC", entry.file, what)
    return report


def read_index(
    task: ShardTask, storage: Storage, report: Report, *, has_sum: bool
) -> list[IndexRow] | None:
    """Return the rows of a shard's index, or None and add a finding if it cannot be read.

    With `has_sum`, the CRC-32C that the index holds of itself is compared.
    """
    parquet_name, *text_names = task.index
    rows = None
    data = read_if_there(parquet_name, storage, report)
    if data is not None:
        try:
            rows = index_from_parquet(data)
        except ValueError as error:
            report.find("E-VER-INDEX", parquet_name, " ".join(str(error).split()))
        if rows is not None and has_sum and not is_index_as_written(data):
            report.find("E-VER-INDEX", parquet_name, "its bytes do not match its own CRC-32C")
    for text_name in text_names:
        text = read_if_there(text_name, storage, report)
        if rows is not None and text is not None and text != index_to_text(rows):
            report.find("E-VER-INDEX", text_name, f"is not the text form of {parquet_name}")
    return rows


def read_if_there(
    name: str, storage: Storage, report: Report, remedy: str = RESTORE
) -> bytes | None:
    """Return a small file of a data set, or None and add a finding if it is missing."""
    entry = storage.stat(name)
    if entry is None or entry.kind != "file":
        report.find("E-VER-MISSING", name, what_is(entry), remedy)
        return None
    return storage.read(name, entry)


def check_receipt(task: ShardTask, storage: Storage, report: Report, manifest: Manifest) -> None:
    """Compare a shard's receipt with the manifest, and with its checksum there if it has one."""
    name, entry = receipt_name(task.stem), task.entry
    data = read_if_there(name, storage, report)
    if data is None:
        return
    try:
        info = from_json(data, ShardInfo)
    except ValueError as error:
        report.find("E-VER-MANIFEST", name, f"not a receipt ({error})")
        return
    wanted = {field: getattr(entry, field) for field in _OF_RECEIPTS}
    wanted |= {"plan": plan_digest(manifest.plan), "name": task.stem}
    wrong = {field: value for field, value in wanted.items() if getattr(info, field) != value}
    for field, value in wrong.items():
        what = f"{field} is {getattr(info, field)!r}, the manifest says {value!r}"
        report.find("E-VER-MANIFEST", name, what)
    if has_sums(manifest) and not wrong and file_sum(data) != entry.receipt:
        report.find("E-VER-CRC", name, "its size or CRC-32C differs from the manifest")


def check_rows(
    task: ShardTask, rows: Sequence[IndexRow], rules: ShardRules, report: Report
) -> None:
    """Compare a shard's index with the manifest, and check the order of its keys."""
    name, entry = task.index[0], task.entry
    if len(rows) != entry.records:
        what = f"{len(rows)} records, the manifest says {entry.records}"
        report.find("E-VER-INDEX", name, what)
    ends = [*itertools.accumulate((row.size for row in rows), initial=0)]
    starts = [*(row.offset for row in rows), entry.bytes]
    if is_array_record(entry.file):
        if starts[:-1] != [*range(len(rows))]:
            report.find("E-VER-INDEX", name, "its offsets are not the numbers of the records")
    elif gaps := [n for n, end in enumerate(ends) if end != starts[n]]:
        what = f"its first {gaps[0]} records end at byte {ends[gaps[0]]}, the next part begins at"
        report.find("E-VER-INDEX", name, f"{what} {starts[gaps[0]]}")
    keys = [row.key for row in rows]
    if order_of(rules.manifest.plan, entry.split) is Order.INPUT:
        for key in sorted({one for one, other in itertools.pairwise(sorted(keys)) if one == other}):
            report.find("E-VER-ORDER", name, f"key {key!r} occurs twice")
        return
    in_order = [*zip(shuffle_keys(entry.split, keys, rules.seed), keys, strict=True)]
    report.ends = (in_order[0], in_order[-1]) if rows else None
    for number, (one, other) in enumerate(itertools.pairwise(in_order), 1):
        if one >= other:
            where = at_record(entry.file, number, rows[number].offset, other[1])
            report.find("E-VER-ORDER", where, f"by seed {rules.seed} it is not after {one[1]!r}")


def compare_sources(
    rows: Sequence[IndexRow], split: str, config: VerifyConfig, report: Report
) -> None:
    """Find sources that are missing, or differ from the SHA-256 in the index.

    A source must exist below one of the split's roots, or one of the roots for every split (`""`).

    Raises:
        RuntimeError: `E-IO-…`: a store fails.
    """
    uris = (*config.sources.get(split, ()), *config.sources.get("", ()))
    roots = [open_storage(uri, config.access) for uri in uris]
    found = {(s.name, s.sha256): (s, row.key) for row in rows for s in row.sources if roots}
    for source, key in found.values():
        report.sources += 1
        wrong = "is missing"
        for storage in roots:
            entry = storage.stat(source.name)
            if entry is None or entry.kind != "file":
                continue
            if entry.size_bytes != source.size:
                wrong = f"has {entry.size_bytes} bytes, the index says {source.size}"
                continue
            data = storage.read(source.name, entry)
            report.bytes += len(data)
            digest = hashlib.sha256(data).hexdigest()
            if digest == source.sha256:
                break
            wrong = f"has the SHA-256 {digest}, the index says {source.sha256}"
        else:
            where = f"{join_uri(roots[0].root, source.name)} (of key {key!r} in {split})"
            report.find("E-VER-SOURCE", where, wrong, _SOURCE_REMEDY)
