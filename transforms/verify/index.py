"""Verify the index of a shard, and its receipt."""

import hashlib
import itertools
from collections.abc import Sequence

import msgspec

from schemas.findings import Findings, at_record
from schemas.manifest import from_json
from schemas.order import Order, shuffle_keys
from schemas.shards import ShardInfo, file_sum, receipt_name
from transforms.shard_index import (
    IndexRow,
    index_from_parquet,
    index_to_text,
    is_index_as_written,
)
from transforms.storage import Storage
from transforms.verify.shard_reports import (
    RESTORE,
    ShardReport,
    ShardRules,
    ShardTask,
    SharedCount,
    order_fault,
)

INDEX_REMEDY = "restore the index from a copy, or delete it and manifest.json and run again"


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
    task: ShardTask, rows: Sequence[IndexRow], rules: ShardRules, report: ShardReport
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
    for number, row in enumerate(rows):
        if labels and (unknown := set(row.labels) - labels):
            what = f"the label {min(unknown)} is not in the label map"
            where = at_record(name, number, row.offset, row.key)
            findings.add("E-VER-INDEX", where, what, INDEX_REMEDY)
    _check_order(task, rows, rules, report)
    if rules.shared:
        _count_shared(task.entry.split, rows, rules, report)


def _check_order(
    task: ShardTask, rows: Sequence[IndexRow], rules: ShardRules, report: ShardReport
) -> None:
    split = task.entry.split
    if not rows:
        return
    if rules.orders[split] is Order.INPUT:
        report.keys = [digest_key(row.key) for row in rows]
        return
    keys = [row.key for row in rows]
    in_order = list(zip(shuffle_keys(split, keys, rules.seed), keys, strict=True))
    report.ends = in_order[0], in_order[-1]
    for number, (one, other) in enumerate(itertools.pairwise(in_order), 1):
        if one >= other:
            where = at_record(task.entry.file, number, rows[number].offset, other[1])
            report.findings.add("E-VER-ORDER", where, *order_fault(one[1], other[1], rules.seed))


def digest_key(key: str) -> bytes:
    """Return 16 bytes that stand for a key."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _count_shared(
    split: str, rows: Sequence[IndexRow], rules: ShardRules, report: ShardReport
) -> None:
    """Count the records of contents that splits are said to share, each by its first source."""
    for row in rows:
        for source in row.sources[:1]:
            if (shared := rules.shared.get(source.sha256)) is None:
                continue
            count = report.shared.setdefault(source.sha256, SharedCount())
            count.records += 1
            count.named += (source.name, row.key) in shared.named.get(split, ())
