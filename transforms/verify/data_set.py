"""Verify a data set except its shards: manifest, plan, rejects, listing and side files."""

from collections import Counter
from collections.abc import Mapping

from beam_tfrec.schemas.documents.data_card import is_sealed
from beam_tfrec.schemas.documents.tensorflow_files import metadata_files
from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.manifest import (
    DUPLICATES_NAME,
    FORMAT_VERSION,
    MANIFEST_NAME,
    PLAN_NAME,
    REJECTED_NAME,
    JobPlan,
    Manifest,
    contradictions,
    from_json,
    index_names_of,
    order_of,
)
from beam_tfrec.schemas.shards import (
    COUNTED,
    ShardNames,
    file_sum,
    folder_of,
    receipt_name,
    shard_stems,
)
from beam_tfrec.transforms.output_files import (
    DOCUMENTS,
    SIDE_FILES,
    SOURCES_NOTE,
    indexes,
    receipts,
    source_notes,
    split_of,
)
from beam_tfrec.transforms.storage import Storage, open_storage
from beam_tfrec.transforms.storage.read_data_set import list_folders
from beam_tfrec.transforms.verify import (
    COPY,
    RESTORE,
    Report,
    ShardRules,
    ShardTask,
    VerifyConfig,
    find_manifest,
)
from beam_tfrec.transforms.verify.shard import read_if_there

_MOVE = "move it away: readers that use a glob would read it"
_LABEL_MAP = "label_map.pbtxt"
_OF_THE_MANIFEST = (_LABEL_MAP, "schema.pbtxt", "dataset_info.json")
_WITH_SUMS = {PLAN_NAME, REJECTED_NAME, DUPLICATES_NAME, *SIDE_FILES}


def verify_around(
    root: str, all_rules: list[ShardRules], report: Report, config: VerifyConfig
) -> list[ShardTask]:
    """Verify a data set except its shards; return a task per shard, none without a manifest.

    Args:
        root: path or URI of the data set.
        all_rules: list to which the rules of the data set are appended.
        report: report to which findings are added.
        config: configuration of the verification.

    Raises:
        RuntimeError: The store fails, or the manifest is of a newer format.
    """
    manifest = find_manifest(root, config.access, report)
    if manifest is None:
        return []
    storage, options = open_storage(root, config.access), manifest.plan.options
    try:
        for split in {*manifest.splits, *(entry.split for entry in manifest.shards)}:
            order_of(manifest.plan, split)
        rules = ShardRules(root, manifest, int(options.get("seed", 0)), config.deep)
        texts = metadata_files(manifest, rules.examples.spec, has_names=False)
        names = ShardNames(options.get("shard_names", COUNTED))
    except ValueError as error:
        what = f"has values that this program never writes ({error})"
        report.find("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
        return []
    listed = list_folders(storage, {"", *(folder_of(entry.file) for entry in manifest.shards)})
    stems = shard_stems([entry.split for entry in manifest.shards])
    tasks = [
        ShardTask(len(all_rules), entry, stem, pair, listed.get(entry.file))
        for entry, stem, pair in zip(manifest.shards, stems, index_names_of(manifest), strict=True)
    ]
    all_rules.append(rules)
    for what in contradictions(manifest):
        report.find("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
    is_current = manifest.format_version >= FORMAT_VERSION  # earlier versions wrote different texts
    kept = {*_OF_THE_MANIFEST} if is_current else {_LABEL_MAP}
    _check_files(manifest, {name: texts[name] for name in kept & texts.keys()}, storage, report)
    for name in DOCUMENTS:  # users may edit and delete them
        there = listed.get(name)
        if there is None and name in manifest.files:
            report.notes.append(f"{name} was deleted")
        if there and there.kind == "file" and not is_sealed(storage.read(name, there)):
            report.notes.append(f"{name} was edited")
    ours = {n for task in tasks for n in (task.entry.file, *task.index, receipt_name(task.stem))}
    found = {name for name in listed if "/" in name or split_of(name, names) is not None}
    for name in sorted({*found, *indexes(storage, names), *receipts(storage)} - ours):
        what = "is named or placed like a file of a shard, but is not in the manifest"
        report.find("E-VER-FOREIGN", name, what, _MOVE)
    if not rules.reads:
        listed_sums = all(task.file is None or task.file.crc32c is not None for task in tasks)
        what = "sizes and checksums" if listed_sums else "only sizes, without checksums,"
        what += " from the store's listing were compared"
        report.notes.append(f"{what}: --deep reads all bytes")
    return tasks


def _check_files(
    manifest: Manifest, texts: Mapping[str, str], storage: Storage, report: Report
) -> None:
    """Compare the files next to the shards with the manifest and its checksums.

    Args:
        manifest: manifest of the data set.
        texts: expected files for other tools, by name.
        storage: storage of the data set.
        report: report to which findings are added.
    """
    for name in sorted(manifest.files.keys() - _WITH_SUMS - {*DOCUMENTS}):
        what = f"has a checksum of {name}, which this program never writes"
        report.find("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
    of_sums = manifest.files.keys() & _WITH_SUMS
    shared = {DUPLICATES_NAME} if manifest.duplicates else set()
    for name in sorted({PLAN_NAME, REJECTED_NAME, *texts} | of_sums | shared):
        # The command refuses an output without a plan, so the remedy must not delete the plan.
        remedy = COPY if name == PLAN_NAME else RESTORE
        data, wanted = read_if_there(name, storage, report, remedy), manifest.files.get(name)
        if data is None:
            continue
        if not _follows(name, data, manifest, texts):
            report.find("E-VER-MANIFEST", name, "contradicts the manifest", remedy)
        elif wanted is not None and (there := file_sum(data)) != wanted:
            what = f"has {there.bytes} bytes of CRC-32C {there.crc32c}, the manifest says"
            report.find("E-VER-CRC", name, f"{what} {wanted.bytes} of {wanted.crc32c}", remedy)
    for name in source_notes(storage):
        if storage.read(name) != SOURCES_NOTE:
            remedy = "delete it: the next run of the command writes it again"
            report.find("E-VER-CRC", name, "has other bytes than this program writes", remedy)


def _follows(name: str, data: bytes, manifest: Manifest, texts: Mapping[str, str]) -> bool:
    """Return whether a file agrees with the manifest, as far as they overlap."""
    try:
        if name == PLAN_NAME:
            return from_json(data, JobPlan) == manifest.plan
        if name == REJECTED_NAME:
            rejects = [from_json(line, Rejected) for line in data.splitlines()]
            wanted = Counter(
                {
                    (split, code): count
                    for split, summary in manifest.splits.items()
                    for codes in (summary.rejected, summary.annotations.dropped)
                    for code, count in codes.items()
                }
            )
            return wanted == Counter((reject.split, reject.code) for reject in rejects)
    except ValueError:
        return False
    return name not in texts or data == texts[name].encode()
