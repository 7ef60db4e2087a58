"""Verify a data set around its shards: manifest, plan, rejects, listing and side files."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from schemas.documents.croissant import CROISSANT_NAME
from schemas.documents.data_card import CARD_NAME, is_sealed
from schemas.documents.tensorflow_files import metadata_of_spec
from schemas.example_rules import rules_of
from schemas.faults import Findings, Rejected, Scope, Verified
from schemas.manifest import (
    DUPLICATES_NAME,
    FORMAT_VERSION,
    MANIFEST_NAME,
    PLAN_NAME,
    REJECTED_NAME,
    REPORT_NAME,
    JobPlan,
    Manifest,
    contradictions,
    from_json,
    has_sums,
    index_names_of,
    plan_digest,
    read_manifest,
    spec_of,
)
from schemas.samples import Order
from schemas.shards import (
    COUNTED,
    INDEX_DIR,
    ShardNames,
    file_sum,
    is_index_name,
    receipt_name,
    shard_stems,
)
from transforms.output_files import (
    DOCUMENTS,
    SIDE_FILES,
    SOURCES_NOTE,
    receipts,
    source_notes,
    split_of,
)
from transforms.storage import Access, Entry, Storage, is_local, join_uri, open_storage
from transforms.verify import RESTORE, ShardRules, ShardTask
from transforms.verify.shard import read_if_there

COPY = "restore it from a copy"
MAX_DUPLICATES = 10_000
"""Lines that `duplicates.jsonl` has at most, as `find_duplicates.MAX_LINES` says."""

_MOVE = "move it away: no reader of the manifest sees it, a reader of a glob does"
_CONVERTED = ("image_turned", "image_converted")
_PLAIN_BYTES = ("table", "arrays")  # layouts whose sources are not what their images hold
_LABEL_MAP = "label_map.pbtxt"
_OF_THE_MANIFEST = (_LABEL_MAP, "schema.pbtxt", "dataset_info.json")
_ALWAYS_THERE = {PLAN_NAME, REJECTED_NAME, _LABEL_MAP, CARD_NAME, CROISSANT_NAME}
_WITH_SUMS = {*_ALWAYS_THERE, DUPLICATES_NAME, *SIDE_FILES}


class _Head(msgspec.Struct):
    format: str
    format_version: int


class _Shared(msgspec.Struct):
    records: dict[str, int]


def verify_around(
    root: str, access: Access, *, deep: bool
) -> tuple[Verified, ShardRules | None, list[ShardTask]]:
    """Return what is wrong with a data set except its shards, their rules, and the shards.

    Raises:
        RuntimeError: if the store fails, or the manifest is of a newer format.
    """
    storage, findings = open_storage(root, access), Findings()
    manifest = find_manifest(storage, findings)
    if manifest is None:
        return Verified(findings, 1), None, []
    try:
        rules = shard_rules(manifest, root, access, deep=deep)
        names = ShardNames(manifest.plan.options.get("shard_names", COUNTED))
        texts = metadata_of_spec(manifest, spec_of(manifest), has_names=False)
    except ValueError as error:
        what = f"says what no run of this program does ({error})"
        findings.add("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
        return Verified(findings, 1), None, []
    listed = {entry.name: entry for entry in storage.list(recursive=False)}
    tasks = _tasks(manifest, listed)
    for what in contradictions(manifest):
        findings.add("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
    _check_side_files(manifest, texts, storage, findings)
    notes = _check_sums(manifest, storage, findings)
    _check_foreign(names, tasks, {*listed}, storage, findings)
    if not rules.reads:
        without = sum(task.file is not None and task.file.crc32c is None for task in tasks)
        note = "sizes and checksums as the store lists them were compared: --deep reads all bytes"
        if without:
            note = f"the store gives no checksums of {without} shards: --deep reads their bytes"
        notes.append(note)
    return Verified(findings, len(tasks), notes=tuple(notes)), rules, tasks


def find_manifest(storage: Storage, findings: Findings) -> Manifest | None:
    """Return the manifest of a data set; None with a finding if it is damaged.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` if it is another program's, or of a newer format.
    """
    data, where = storage.read(MANIFEST_NAME), join_uri(storage.root, MANIFEST_NAME)
    try:
        return from_json(data, Manifest) if _is_ours(data) else read_manifest(data, where, "path")
    except ValueError as error:
        findings.add("E-VER-MANIFEST", where, f"no manifest ({error})", COPY)
    return None


def check_sources(root: str, sources: Mapping[str, Sequence[str]], access: Access) -> None:
    """Refuse roots of sources that could not be compared with a data set's indexes.

    Raises:
        ValueError: if there is no such split, or records are made of parts of files.
        RuntimeError: `E-ARG` if a root is no folder.
    """
    manifest = find_manifest(open_storage(root, access), Findings())
    if manifest is None:
        return
    for split in sources:
        if split and split not in manifest.splits:
            names = ", ".join(sorted(manifest.splits))
            raise ValueError(f"sources must be of splits {names}, got {split!r}: name one of them")
    if manifest.layout == "arrays":
        raise ValueError(
            "sources must be files of their own, got items of arrays, of which an index does not"
            " say where they lie: leave --sources out"
        )
    for uri in {uri for given in sources.values() for uri in given}:
        open_storage(uri, access).require_folder()


def shard_rules(manifest: Manifest, root: str, access: Access, *, deep: bool) -> ShardRules:
    """Return what all shards of a data set must be like."""
    splits = {*manifest.splits, *(entry.split for entry in manifest.shards)}
    return ShardRules(
        root=root,
        examples=rules_of(manifest),
        orders={split: order_of(manifest.plan, split) for split in splits},
        seed=int(manifest.plan.options.get("seed", 0)),
        reads=deep or is_local(root),
        hashes=deep,
        converted=frozenset(
            split
            for split, summary in manifest.splits.items()
            if manifest.layout in _PLAIN_BYTES
            or any(name in summary.repairs for name in _CONVERTED)
        ),
        access=access,
        has_sums=has_sums(manifest),
    )


def order_of(plan: JobPlan, split: str) -> Order:
    """Return a split's order by the options of a plan, such as `all=shuffled train=input`."""
    orders = dict(part.partition("=")[::2] for part in plan.options.get("order", "").split())
    return Order(orders.get(split, orders.get("all", Order.SHUFFLED.value)))


def _is_ours(data: bytes) -> bool:
    """Return whether to report damage, not another program's or a newer format."""
    try:
        head = from_json(data, _Head)
    except ValueError:
        return True
    return head.format == "beam-tfrec" and head.format_version <= FORMAT_VERSION


def _tasks(manifest: Manifest, listed: Mapping[str, Entry]) -> list[ShardTask]:
    """Return the shards by split, then index, as the manifest lists them."""
    stems = shard_stems([entry.split for entry in manifest.shards])
    digest = plan_digest(manifest.plan)
    return [
        ShardTask(entry, stem, names, digest, listed.get(entry.file))
        for entry, stem, names in zip(manifest.shards, stems, index_names_of(manifest), strict=True)
    ]


def _check_foreign(
    names: ShardNames,
    tasks: Sequence[ShardTask],
    listed: set[str],
    storage: Storage,
    findings: Findings,
) -> None:
    """Name files that are named like the data set's, and are not."""
    ours = {
        name for task in tasks for name in (task.entry.file, *task.index, receipt_name(task.stem))
    }
    folder = storage.list(f"{INDEX_DIR}/", recursive=False)
    found = {name for name in listed if split_of(name, names) is not None}
    found |= {entry.name for entry in folder if is_index_name(entry.name, names)}
    for name in sorted((found | {*receipts(storage)}) - ours):
        what = "is named like a file of a shard, and the manifest names no such shard"
        findings.add("E-VER-FOREIGN", name, what, _MOVE)


def _check_side_files(
    manifest: Manifest, texts: Mapping[str, str], storage: Storage, findings: Findings
) -> None:
    """Compare plan, rejects, duplicates and files of other tools with the manifest.

    Args:
        manifest: the manifest.
        texts: files of other tools by name, as they follow from the manifest.
        storage: holds the data set.
        findings: what is wrong is added to them.
    """

    def add(name: str, what: str, remedy: str = COPY) -> None:
        findings.add("E-VER-MANIFEST", name, what, remedy)

    plan = read_if_there(PLAN_NAME, storage, findings, COPY)
    if plan is not None and not _is_plan(plan, manifest.plan):
        add(PLAN_NAME, "is not the plan of the manifest", RESTORE)
    is_current = manifest.format_version == FORMAT_VERSION  # earlier versions wrote other texts
    for name in sorted(texts.keys() & ({*_OF_THE_MANIFEST} if is_current else {_LABEL_MAP})):
        data = read_if_there(name, storage, findings, COPY)
        if data is not None and data != texts[name].encode():
            add(name, "is not what follows from the manifest", RESTORE)
    data = read_if_there(REJECTED_NAME, storage, findings, COPY)
    for what in () if data is None else _wrong_rejects(manifest, data):
        add(*what)
    data = read_if_there(DUPLICATES_NAME, storage, findings, COPY) if manifest.duplicates else None
    for what in () if data is None else _wrong_duplicates(manifest, data):
        add(*what)


def _is_plan(data: bytes, plan: JobPlan) -> bool:
    try:
        return from_json(data, JobPlan) == plan
    except ValueError:
        return False


def _wrong_rejects(manifest: Manifest, data: bytes) -> Iterator[tuple[str, str]]:
    """Yield where rejects, or their counts by split and reason, are not the manifest's."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for number, line in enumerate(data.splitlines(), 1):
        try:
            reject = from_json(line, Rejected)
            counts[reject.split, reject.scope.value, reject.code] += 1
        except (ValueError, KeyError) as error:
            yield f"{REJECTED_NAME} line {number}", f"no reject ({error})"
    said = Counter(
        {
            (split, scope.value, code): count
            for split, summary in manifest.splits.items()
            for scope, codes in (
                (Scope.SAMPLE, summary.rejected),
                (Scope.ANNOTATION, summary.annotations.dropped),
            )
            for code, count in codes.items()
        }
    )
    for key in sorted(counts.keys() | said.keys()):
        if counts[key] != said[key]:
            split, scope, code = key
            what = f"{counts[key]} of each {scope} rejected as {code} in split {split}"
            yield REJECTED_NAME, f"{what}, the manifest says {said[key]}"


def _wrong_duplicates(manifest: Manifest, data: bytes) -> Iterator[tuple[str, str]]:
    """Yield where contents that splits share, or their counts, are not the manifest's."""
    counts: Counter[tuple[str, str]] = Counter()
    lines = data.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            counts.update(itertools.combinations(sorted(from_json(line, _Shared).records), 2))
        except ValueError as error:
            yield f"{DUPLICATES_NAME} line {number}", f"no shared content ({error})"
    said = {pair.splits: pair.contents for pair in manifest.duplicates or ()}
    is_whole = len(lines) < MAX_DUPLICATES  # else it has the first of them
    for pair in sorted(counts.keys() | said.keys()):
        count, wanted = counts[pair], said.get(pair, 0)
        if count > wanted or (is_whole and count != wanted):
            what = f"{count} contents that {' and '.join(pair)} share, the manifest says {wanted}"
            yield DUPLICATES_NAME, what


def _check_sums(manifest: Manifest, storage: Storage, findings: Findings) -> list[str]:
    """Compare the files next to the shards with the checksums in the manifest.

    Returns:
        Notes on documents that are not as the run wrote them: these are the user's to edit.
    """
    notes: list[str] = []
    said = {found.where.partition(" ")[0] for kept in findings.kept.values() for found in kept}
    for name in sorted(_ALWAYS_THERE - manifest.files.keys() if has_sums(manifest) else ()):
        findings.add("E-VER-MANIFEST", MANIFEST_NAME, f"has no sum of {name}", COPY)
    for name, wanted in sorted(manifest.files.items()):
        if name not in _WITH_SUMS:
            what = f"has a sum of {name}, which no run writes"
            findings.add("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
        elif name in DOCUMENTS:
            data = read_if_there(name, storage, Findings())
            if data is None or file_sum(data) != wanted:
                notes.append(f"{name} is {'gone' if data is None else 'not as the run wrote it'}")
        elif name not in said:
            data = read_if_there(name, storage, findings, COPY)
            if data is not None and (there := file_sum(data)) != wanted:
                what = f"has {there.bytes} bytes of CRC-32C {there.crc32c}, the manifest says"
                what = f"{what} {wanted.bytes} of {wanted.crc32c}"
                findings.add("E-VER-CRC", name, what, COPY)
    report = read_if_there(REPORT_NAME, storage, Findings())
    if report is not None and not is_sealed(report):
        notes.append(f"{REPORT_NAME} is not as a run wrote it")
    for name in source_notes(storage):
        if storage.read(name) != SOURCES_NOTE:
            remedy = "delete it: the next run of the command writes it again"
            findings.add("E-VER-CRC", name, "holds other bytes than a run writes", remedy)
    return notes
