"""Verify a data set around its shards: manifest, plan, rejects, listing and side files."""

from collections import Counter
from collections.abc import Mapping

from schemas.documents.croissant import CROISSANT_NAME
from schemas.documents.data_card import CARD_NAME, is_sealed
from schemas.documents.tensorflow_files import metadata_files
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
    contradictions,
    from_json,
    has_sums,
    index_names_of,
    order_of,
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
from transforms.storage import Storage, open_storage
from transforms.verify import (
    COPY,
    RESTORE,
    Report,
    ShardRules,
    ShardTask,
    VerifyConfig,
    find_manifest,
)
from transforms.verify.shard import read_if_there

_MOVE = "move it away: no reader of the manifest sees it, a reader of a glob does"
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
    manifest = find_manifest(root, config.access, report)
    if manifest is None:
        return None, []
    storage, options = open_storage(root, config.access), manifest.plan.options
    try:
        for split in {*manifest.splits, *(entry.split for entry in manifest.shards)}:
            order_of(manifest.plan, split)
        rules = ShardRules(root, manifest, int(options.get("seed", 0)), config.deep)
        texts = metadata_files(manifest, rules.examples.spec, has_names=False)
        names = ShardNames(options.get("shard_names", COUNTED))
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
    found = {name for name in listed if split_of(name, names) is not None}
    for name in sorted({*found, *indexes(storage, names), *receipts(storage)} - ours):
        what = "is named like a file of a shard, and the manifest names no such shard"
        report.find("E-VER-FOREIGN", name, what, _MOVE)
    if not rules.reads:
        what = "sizes, and checksums where the store lists them, were compared"
        report.notes.append(f"{what}: --deep reads all bytes")
    return rules, tasks


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
