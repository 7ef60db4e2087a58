"""Verify a data set around its shards: manifest, plan, rejects, listing and side files."""

from collections import Counter
from collections.abc import Mapping, Sequence

from schemas.documents.croissant import CROISSANT_NAME
from schemas.documents.data_card import CARD_NAME, is_sealed
from schemas.documents.tensorflow_files import metadata_files
from schemas.example_rules import rules_of
from schemas.faults import Rejected
from schemas.manifest import (
    DUPLICATES_NAME,
    FORMAT_VERSION,
    MANIFEST_NAME,
    PLAN_NAME,
    REJECTED_NAME,
    REPORT_NAME,
    JobPlan,
    Manifest,
    ManifestHead,
    contradictions,
    from_json,
    has_sums,
    index_names_of,
    order_of,
    plan_digest,
    read_manifest,
    spec_of,
)
from schemas.shards import (
    COUNTED,
    ShardNames,
    file_sum,
    receipt_name,
    shard_stems,
)
from transforms.output_files import (
    DOCUMENTS,
    SIDE_FILES,
    SOURCES_NOTE,
    indexes,
    receipts,
    source_notes,
    split_of,
)
from transforms.storage import Access, Storage, is_local, join_uri, open_storage
from transforms.verify import RESTORE, Report, ShardRules, ShardTask, VerifyConfig
from transforms.verify.shard import read_if_there

COPY = "restore it from a copy"

_MOVE = "move it away: no reader of the manifest sees it, a reader of a glob does"
_CONVERTED = ("image_turned", "image_converted")
_PLAIN_BYTES = ("table", "arrays")  # layouts whose sources are not what their images hold
_LABEL_MAP = "label_map.pbtxt"
_OF_THE_MANIFEST = (_LABEL_MAP, "schema.pbtxt", "dataset_info.json")
_ALWAYS_THERE = {PLAN_NAME, REJECTED_NAME, _LABEL_MAP, CARD_NAME, CROISSANT_NAME}
_WITH_SUMS = {*_ALWAYS_THERE, DUPLICATES_NAME, *SIDE_FILES}


def verify_around(
    number: int, root: str, report: Report, config: VerifyConfig
) -> tuple[ShardRules | None, list[ShardTask]]:
    """Verify a data set except for its shards; return their rules, and the shards.

    Args:
        number: number of the data set.
        root: path or URI of the data set.
        report: report that gets the findings.
        config: what is to be verified.

    Raises:
        RuntimeError: if the store fails, or the manifest is of a newer format.
    """
    storage = open_storage(root, config.access)
    manifest = find_manifest(storage, report)
    if manifest is None:
        return None, []
    try:
        rules = shard_rules(manifest, root, deep=config.deep)
        texts = metadata_files(manifest, spec_of(manifest), has_names=False)
    except ValueError as error:
        what = f"has values that no run of this program writes ({error})"
        report.find("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
        return None, []
    listed = {entry.name: entry for entry in storage.list(recursive=False)}
    stems = shard_stems([entry.split for entry in manifest.shards])
    tasks = [
        ShardTask(number, entry, stem, pair, listed.get(entry.file))
        for entry, stem, pair in zip(manifest.shards, stems, index_names_of(manifest), strict=True)
    ]
    for what in contradictions(manifest):
        report.find("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
    is_current = manifest.format_version == FORMAT_VERSION  # earlier versions wrote other texts
    kept = {*_OF_THE_MANIFEST} if is_current else {_LABEL_MAP}
    _check_files(manifest, {name: texts[name] for name in kept & texts.keys()}, storage, report)
    _check_documents(manifest, storage, report)
    ours = {n for task in tasks for n in (task.entry.file, *task.index, receipt_name(task.stem))}
    names = _names_of(manifest)
    found = {name for name in listed if split_of(name, names) is not None}
    for name in sorted({*found, *indexes(storage, names), *receipts(storage)} - ours):
        what = "is named like a file of a shard, and the manifest names no such shard"
        report.find("E-VER-FOREIGN", name, what, _MOVE)
    if not rules.reads:
        without = sum(task.file is not None and task.file.crc32c is None for task in tasks)
        note = "sizes and checksums as the store lists them were compared: --deep reads all bytes"
        if without:
            note = f"the store gives no checksums of {without} shards: --deep reads their bytes"
        report.notes.append(note)
    return rules, tasks


def find_manifest(storage: Storage, report: Report) -> Manifest | None:
    """Return the manifest of a data set; None with a finding if it is damaged.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` if it is another program's, or of a newer format.
    """
    data, where = storage.read(MANIFEST_NAME), join_uri(storage.root, MANIFEST_NAME)
    try:
        head = from_json(data, ManifestHead)
        if head.format != "beam-tfrec" or head.format_version > FORMAT_VERSION:
            return read_manifest(data, where, "path")  # which says why not
        return from_json(data, Manifest)
    except ValueError as error:
        report.find("E-VER-MANIFEST", where, f"no manifest ({error})", COPY)
    return None


def check_sources(root: str, sources: Mapping[str, Sequence[str]], access: Access) -> None:
    """Refuse roots of sources that could not be compared with a data set's indexes.

    Raises:
        ValueError: if there is no such split, or records are made of parts of files.
        RuntimeError: `E-ARG` if a root is no folder.
    """
    manifest = find_manifest(open_storage(root, access), Report())
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


def shard_rules(manifest: Manifest, root: str, *, deep: bool) -> ShardRules:
    """Return what all shards of a data set must be like."""
    splits = {*manifest.splits, *(entry.split for entry in manifest.shards)}
    return ShardRules(
        root=root,
        plan=plan_digest(manifest.plan),
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
        has_sums=has_sums(manifest),
    )


def _check_files(
    manifest: Manifest, texts: Mapping[str, str], storage: Storage, report: Report
) -> None:
    """Compare the files next to the shards with the manifest and its checksums.

    Args:
        manifest: the manifest.
        texts: files of other tools by name, as they follow from the manifest.
        storage: storage of the data set.
        report: report that gets the findings.
    """
    for name in sorted(_ALWAYS_THERE - manifest.files.keys() if has_sums(manifest) else ()):
        report.find("E-VER-MANIFEST", MANIFEST_NAME, f"has no sum of {name}", COPY)
    for name in sorted(manifest.files.keys() - _WITH_SUMS):
        what = f"has a sum of {name}, which no run writes"
        report.find("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
    of_sums = manifest.files.keys() & _WITH_SUMS - {*DOCUMENTS}
    shared = {DUPLICATES_NAME} if manifest.duplicates else set()
    for name in sorted({PLAN_NAME, REJECTED_NAME, *texts} | of_sums | shared):
        # Without its plan the command would refuse the output, so this file is not deleted.
        remedy = COPY if name == PLAN_NAME else RESTORE
        data, wanted = read_if_there(name, storage, report, remedy), manifest.files.get(name)
        if data is None:
            continue
        if not _follows(name, data, manifest, texts):
            report.find("E-VER-MANIFEST", name, "is not what the manifest says", remedy)
        elif wanted is not None and (there := file_sum(data)) != wanted:
            what = f"has {there.bytes} bytes of CRC-32C {there.crc32c}, the manifest says"
            report.find("E-VER-CRC", name, f"{what} {wanted.bytes} of {wanted.crc32c}", remedy)
    for name in source_notes(storage):
        if storage.read(name) != SOURCES_NOTE:
            remedy = "delete it: the next run of the command writes it again"
            report.find("E-VER-CRC", name, "holds other bytes than a run writes", remedy)


def _names_of(manifest: Manifest) -> ShardNames:
    """Return how shards are called; the usual way where an earlier release took other templates."""
    try:
        return ShardNames(manifest.plan.options.get("shard_names", COUNTED))
    except ValueError:
        return ShardNames()


def _follows(name: str, data: bytes, manifest: Manifest, texts: Mapping[str, str]) -> bool:
    """Return whether a file says what the manifest says, as far as that can be compared."""
    try:
        if name == PLAN_NAME:
            return from_json(data, JobPlan) == manifest.plan
        if name == REJECTED_NAME:
            rejects = [from_json(line, Rejected) for line in data.splitlines()]
            found = Counter((reject.split, reject.code) for reject in rejects)
            return found == _rejects(manifest)
    except ValueError:
        return False
    return name not in texts or data == texts[name].encode()


def _rejects(manifest: Manifest) -> Counter[tuple[str, str]]:
    """Return how many samples and annotations the manifest counts as rejected."""
    return Counter(
        {
            (split, code): count
            for split, summary in manifest.splits.items()
            for codes in (summary.rejected, summary.annotations.dropped)
            for code, count in codes.items()
        }
    )


def _check_documents(manifest: Manifest, storage: Storage, report: Report) -> None:
    """Note documents that are not as the run wrote them: these are the user's to edit."""
    for name in sorted(manifest.files.keys() & {*DOCUMENTS}):
        entry = storage.stat(name)
        if entry is None or entry.kind != "file":
            report.notes.append(f"{name} is gone")
        elif file_sum(storage.read(name, entry)) != manifest.files[name]:
            report.notes.append(f"{name} is not as the run wrote it")
    page = storage.stat(REPORT_NAME)
    if page and page.kind == "file" and not is_sealed(storage.read(REPORT_NAME, page)):
        report.notes.append(f"{REPORT_NAME} is not as a run wrote it")
