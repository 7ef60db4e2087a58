"""Verify a data set: manifest, plan, rejects, listing and side files, then each shard by itself."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import google_crc32c
import msgspec

from beam_tfrec.schemas import shards
from beam_tfrec.schemas.documents.data_card import is_sealed
from beam_tfrec.schemas.documents.tensorflow_files import metadata_files
from beam_tfrec.schemas.faults import Rejected, at_record
from beam_tfrec.schemas.manifest import (
    DUPLICATES_NAME,
    FORMAT_VERSION,
    MANIFEST_NAME,
    PLAN_NAME,
    REJECTED_NAME,
    JobPlan,
    Manifest,
    ShardEntry,
    contradictions,
    from_json,
    plan_digest,
)
from beam_tfrec.schemas.samples import Order, shuffle_prefixes
from beam_tfrec.schemas.tfrecord import framing_bytes, is_array_record
from beam_tfrec.transforms import output_files, shard_index
from beam_tfrec.transforms.storage import Storage, open_storage
from beam_tfrec.transforms.storage.read_data_set import list_folders, what_differs, what_is
from beam_tfrec.transforms.verify import (
    COPY,
    RESTORE,
    Findings,
    ShardRules,
    ShardTask,
    VerifyConfig,
    find_manifest,
)
from beam_tfrec.transforms.walk_frames import BadFrame, read_pieces, walk_records

_MOVE = "move it away: readers that use a glob would read it"
_LABEL_MAP = "label_map.pbtxt"
_OF_THE_MANIFEST = (_LABEL_MAP, "schema.pbtxt", "dataset_info.json")
_WITH_SUMS = {PLAN_NAME, REJECTED_NAME, DUPLICATES_NAME, *output_files.SIDE_FILES}

_SOURCE_REMEDY = "restore it from a copy, or write the data set again"
_OF_RECEIPTS = {field.name for field in msgspec.structs.fields(shards.WrittenShard)} - {"receipt"}


def verify_around(
    root: str, all_rules: list[ShardRules], findings: Findings, config: VerifyConfig
) -> list[ShardTask]:
    """Verify a data set except its shards; return a task per shard, none without a manifest.

    Args:
        root: path or URI of the data set.
        all_rules: list to which the rules of the data set are appended.
        findings: what is found is added to it.
        config: configuration of the verification.

    Raises:
        RuntimeError: The store fails, or the manifest is of a newer format.
    """
    manifest = find_manifest(root, config.access, findings)
    if manifest is None:
        return []
    storage, options = open_storage(root, config.access), manifest.plan.options
    try:
        for split in {*manifest.splits, *(entry.split for entry in manifest.shards)}:
            manifest.plan.order_of(split)
        rules = ShardRules(root, manifest, int(options.get("seed", 0)), config.deep)
        texts = metadata_files(manifest, rules.examples.spec, has_names=False)
        names = shards.ShardNames(options.get("shard_names", shards.COUNTED))
    except ValueError as error:
        what = f"has values that this program never writes ({error})"
        findings.add("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
        return []
    listed = list_folders(
        storage, {"", *(shards.folder_of(entry.file) for entry in manifest.shards)}
    )
    stems = shards.shard_stems([entry.split for entry in manifest.shards])
    tasks = [
        ShardTask(len(all_rules), entry, stem, listed.get(entry.file))
        for entry, stem in zip(manifest.shards, stems, strict=True)
    ]
    all_rules.append(rules)
    for what in contradictions(manifest):
        findings.add("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
    is_current = manifest.format_version >= FORMAT_VERSION  # earlier versions wrote different texts
    kept = {*_OF_THE_MANIFEST} if is_current else {_LABEL_MAP}
    _check_files(manifest, {name: texts[name] for name in kept & texts.keys()}, storage, findings)
    for name in output_files.DOCUMENTS:  # users may edit and delete them
        there = listed.get(name)
        if there is None and name in manifest.files:
            findings.notes.append(f"{name} was deleted")
        if there and there.kind == "file" and not is_sealed(storage.read(name, there)):
            findings.notes.append(f"{name} was edited")
    ours = {*map(shards.receipt_name, stems)}
    for entry in manifest.shards:
        ours |= {entry.file, *entry.index_names}
    for name in sorted(output_files.files_of_shards(storage, names, listed) - ours):
        what = "is named or placed like a file of a shard, but is not in the manifest"
        findings.add("E-VER-FOREIGN", name, what, _MOVE)
    if not rules.reads:
        listed_sums = all(task.file is None or task.file.crc32c is not None for task in tasks)
        what = "sizes and checksums" if listed_sums else "only sizes, without checksums,"
        what += " from the store's listing were compared"
        findings.notes.append(f"{what}: --deep reads all bytes")
    return tasks


def _check_files(
    manifest: Manifest, texts: Mapping[str, str], storage: Storage, findings: Findings
) -> None:
    """Compare the files next to the shards with the manifest and its checksums.

    Args:
        manifest: manifest of the data set.
        texts: expected files for other tools, by name.
        storage: storage of the data set.
        findings: what is found is added to it.
    """
    for name in sorted(manifest.files.keys() - _WITH_SUMS - {*output_files.DOCUMENTS}):
        what = f"has a checksum of {name}, which this program never writes"
        findings.add("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
    of_sums = manifest.files.keys() & _WITH_SUMS
    shared = {DUPLICATES_NAME} if manifest.duplicates else set()
    for name in sorted({PLAN_NAME, REJECTED_NAME, *texts} | of_sums | shared):
        # The command refuses an output without a plan, so the remedy must not delete the plan.
        remedy = COPY if name == PLAN_NAME else RESTORE
        data, wanted = read_if_there(name, storage, findings, remedy), manifest.files.get(name)
        if data is None:
            continue
        if not _follows(name, data, manifest, texts):
            findings.add("E-VER-MANIFEST", name, "contradicts the manifest", remedy)
        elif wanted is not None and (there := shards.file_sum(data)) != wanted:
            what = f"has {there.bytes} bytes of CRC-32C {there.crc32c}, the manifest says"
            findings.add("E-VER-CRC", name, f"{what} {wanted.bytes} of {wanted.crc32c}", remedy)
    for name in output_files.source_notes(storage):
        if storage.read(name) != output_files.SOURCES_NOTE:
            remedy = "delete it: the next run of the command writes it again"
            findings.add("E-VER-CRC", name, "has other bytes than this program writes", remedy)


def _follows(name: str, data: bytes, manifest: Manifest, texts: Mapping[str, str]) -> bool:
    """Return whether a file agrees with the manifest, as far as they overlap."""
    try:
        if name == PLAN_NAME:
            return from_json(data, JobPlan) == manifest.plan
        if name == REJECTED_NAME:
            rejects = [from_json(line, Rejected) for line in data.splitlines()]
            wanted = {
                (split, code): count
                for split, summary in manifest.splits.items()
                for codes in (summary.rejected, summary.annotations.dropped)
                for code, count in codes.items()
            }
            return wanted == dict(Counter((reject.split, reject.code) for reject in rejects))
    except ValueError:
        return False
    return name not in texts or data == texts[name].encode()


def verify_shard(task: ShardTask, rules: ShardRules, config: VerifyConfig) -> Findings:
    """Verify a shard, and its sources if they are configured.

    Raises:
        RuntimeError: The store fails.
    """
    storage, entry, file = open_storage(rules.root, config.access), task.entry, task.file
    findings = Findings(files=1)
    if wrong := what_differs(entry, file):
        code, what = wrong
        findings.add(code, storage.uri(entry.file), what)
    rows = check_index(task, storage, findings, has_sum=rules.manifest.has_sums)
    if rows is not None:
        check_rows(task, rows, rules, findings)
    check_receipt(task, storage, findings, rules.manifest)
    if not rules.reads:
        findings.records = len(rows or ())
    elif file is not None and file.kind == "file":
        pieces = read_pieces(storage, file)
        findings.merge(verify_bytes(entry, rows, rules, pieces, file.size_bytes))
    compare_sources(rows or (), entry.split, config, findings)
    return findings


def verify_bytes(
    entry: ShardEntry,
    rows: Sequence[shard_index.IndexRow] | None,
    rules: ShardRules,
    pieces: Iterable[bytes],
    size_bytes: int,
) -> Findings:
    """Verify a shard's bytes, which are read once.

    Args:
        entry: entry of the shard in the manifest.
        rows: rows of the index; None if it cannot be read.
        rules: rules of the data set.
        pieces: consecutive pieces of the file.
        size_bytes: size of the file.
    """
    findings = Findings(bytes=size_bytes)
    digests: list[tuple[str, Any, str]] = [("CRC-32C", google_crc32c.Checksum(), entry.crc32c)]
    if rules.deep:
        digests.append(("SHA-256", hashlib.sha256(), entry.sha256))

    def hashed(piece: bytes) -> bytes:
        for _, digest, _ in digests:
            digest.update(piece)
        return piece

    def at() -> str:
        return at_record(entry.file, found.number, found.offset, key)

    by_offset = {row.offset: row for row in rows or ()}
    has_files, more_bytes = entry.split not in rules.converted, framing_bytes(entry.file)
    pieces = map(hashed, pieces)
    for found in walk_records(entry.file, pieces, size_bytes, sorted(by_offset)):
        row = by_offset.pop(found.offset, None)
        key = None if row is None else row.key
        if isinstance(found, BadFrame):
            findings.add(found.code, at(), found.what)
            continue
        findings.records += 1
        frame_bytes = found.size + more_bytes
        if rows is not None and (row is None or row.size != frame_bytes):
            said = "has no such record" if row is None else f"says {row.size} bytes"
            row = None
            if "E-VER-INDEX" not in findings.counts:
                findings.add("E-VER-INDEX", at(), f"the index {said}, its frame has {frame_bytes}")
        if row is not None and row.crc32c not in (None, found.crc32c):
            what = f"the index says CRC-32C {row.crc32c:08x}, the record has {found.crc32c:08x}"
            findings.add("E-VER-INDEX", at(), what)
        if found.data is None:
            findings.notes.append(f"{at()}: too large to be parsed")
            continue
        known = row.sources if row and has_files else ()
        compared = [source.sha256 for source in known] if rules.deep else None
        labels = None if row is None else row.labels
        size_px = () if row is None else (row.image_height, row.image_width)
        for what in rules.examples.find_wrong(found.data, compared, labels, size_px):
            findings.add("E-VER-EXAMPLE", at(), what)
    sum(map(len, pieces))  # hash the bytes after the last frame
    if not findings.counts.keys() & {"E-VER-FRAME", "E-VER-CRC"}:
        if by_offset:
            number, first = next((n, r) for n, r in enumerate(rows or ()) if r.offset in by_offset)
            where = at_record(entry.file, number, first.offset, first.key)
            findings.add("E-VER-FRAME", where, "no record begins where the index says")
        elif findings.records != entry.records:
            what = f"{findings.records} records, the manifest says {entry.records}"
            findings.add("E-VER-FRAME", entry.file, what)
    if not findings.counts:
        for name, digest, wanted in digests:
            if (there := digest.digest().hex()) != wanted:
                what = f"the file's {name} is {there}, the manifest says {wanted}"
                findings.add("E-VER-CRC", entry.file, what)
    return findings


def check_index(
    task: ShardTask, storage: Storage, findings: Findings, *, has_sum: bool
) -> list[shard_index.IndexRow] | None:
    """Return the rows of a shard's index, or None and add a finding if it cannot be read.

    With `has_sum`, the CRC-32C that the index holds of itself is compared.
    """
    parquet_name, *text_names = task.entry.index_names
    rows = None
    data = read_if_there(parquet_name, storage, findings)
    if data is not None:
        try:
            rows = shard_index.index_from_parquet(data)
        except ValueError as error:
            findings.add("E-VER-INDEX", parquet_name, " ".join(str(error).split()))
        if rows is not None and has_sum and not shard_index.is_index_as_written(data):
            findings.add("E-VER-INDEX", parquet_name, "its bytes do not match its own CRC-32C")
    for text_name in text_names:
        text = read_if_there(text_name, storage, findings)
        if rows is not None and text is not None and text != shard_index.index_to_text(rows):
            findings.add("E-VER-INDEX", text_name, f"is not the text form of {parquet_name}")
    return rows


def read_if_there(
    name: str, storage: Storage, findings: Findings, remedy: str = RESTORE
) -> bytes | None:
    """Return a small file of a data set, or None and add a finding if it is missing."""
    entry = storage.stat(name)
    if entry is None or entry.kind != "file":
        findings.add("E-VER-MISSING", name, what_is(entry), remedy)
        return None
    return storage.read(name, entry)


def check_receipt(
    task: ShardTask, storage: Storage, findings: Findings, manifest: Manifest
) -> None:
    """Compare a shard's receipt with the manifest, and with its checksum there if it has one."""
    name, entry = shards.receipt_name(task.stem), task.entry
    data = read_if_there(name, storage, findings)
    if data is None:
        return
    try:
        info = from_json(data, shards.ShardInfo)
    except ValueError as error:
        findings.add("E-VER-MANIFEST", name, f"not a receipt ({error})")
        return
    wanted = {field: getattr(entry, field) for field in sorted(_OF_RECEIPTS)}
    wanted |= {"plan": plan_digest(manifest.plan), "name": task.stem}
    wrong = {field: value for field, value in wanted.items() if getattr(info, field) != value}
    for field, value in wrong.items():
        what = f"{field} is {getattr(info, field)!r}, the manifest says {value!r}"
        findings.add("E-VER-MANIFEST", name, what)
    if manifest.has_sums and not wrong and shards.file_sum(data) != entry.receipt:
        findings.add("E-VER-CRC", name, "its size or CRC-32C differs from the manifest")


def check_rows(
    task: ShardTask, rows: Sequence[shard_index.IndexRow], rules: ShardRules, findings: Findings
) -> None:
    """Compare a shard's index with the manifest, and check the order of its keys."""
    name, entry = task.entry.index_names[0], task.entry
    if len(rows) != entry.records:
        what = f"{len(rows)} records, the manifest says {entry.records}"
        findings.add("E-VER-INDEX", name, what)
    ends = [*itertools.accumulate((row.size for row in rows), initial=0)]
    starts = [*(row.offset for row in rows), entry.bytes]
    if is_array_record(entry.file):
        if starts[:-1] != [*range(len(rows))]:
            findings.add("E-VER-INDEX", name, "its offsets are not the numbers of the records")
    elif gaps := [n for n, end in enumerate(ends) if end != starts[n]]:
        what = f"its first {gaps[0]} records end at byte {ends[gaps[0]]}, the next part begins at"
        findings.add("E-VER-INDEX", name, f"{what} {starts[gaps[0]]}")
    keys = [row.key for row in rows]
    if rules.manifest.plan.order_of(entry.split) is Order.INPUT:
        for key in sorted({one for one, other in itertools.pairwise(sorted(keys)) if one == other}):
            findings.add("E-VER-ORDER", name, f"key {key!r} occurs twice")
        return
    in_order = [*zip(shuffle_prefixes(entry.split, keys, rules.seed), keys, strict=True)]
    findings.ends = (task, in_order[0], in_order[-1]) if rows else None
    for number, (one, other) in enumerate(itertools.pairwise(in_order), 1):
        if one >= other:
            where = at_record(entry.file, number, rows[number].offset, other[1])
            what = f"by seed {rules.seed} it comes before {one[1]!r}"
            findings.add("E-VER-ORDER", where, "its key occurs twice" if one == other else what)


def compare_sources(
    rows: Sequence[shard_index.IndexRow], split: str, config: VerifyConfig, findings: Findings
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
        findings.sources += 1
        wrong = "is missing"
        for storage in roots:
            entry = storage.stat(source.name)
            if entry is None or entry.kind != "file":
                continue
            if entry.size_bytes != source.size:
                wrong = f"has {entry.size_bytes} bytes, the index says {source.size}"
                continue
            data = storage.read(source.name, entry)
            findings.bytes += len(data)
            digest = hashlib.sha256(data).hexdigest()
            if digest == source.sha256:
                break
            wrong = f"has the SHA-256 {digest}, the index says {source.sha256}"
        else:
            where = f"{roots[0].uri(source.name)} (of key {key!r} in {split})"
            findings.add("E-VER-SOURCE", where, wrong, _SOURCE_REMEDY)
