"""Files of an output: its place, names that a run may create, create-only writes, `--overwrite`."""

import contextlib
import errno
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path, PurePath

from beam_tfrec.schemas.documents.croissant import CROISSANT_NAME
from beam_tfrec.schemas.documents.data_card import CARD_NAME, is_sealed
from beam_tfrec.schemas.documents.tensorflow_files import LABEL_FILES
from beam_tfrec.schemas.faults import printable, run_fault
from beam_tfrec.schemas.manifest import (
    DUPLICATES_NAME,
    MANIFEST_NAME,
    PLAN_NAME,
    REJECTED_NAME,
    REPORT_NAME,
    SOURCES_DIR,
    JobPlan,
    Manifest,
    ShardEntry,
    from_json,
    read_manifest,
)
from beam_tfrec.schemas.shards import (
    INDEX_DIR,
    RECEIPTS_DIR,
    ShardInfo,
    ShardNames,
    folder_of,
    is_index_name,
    receipt_name,
    shard_stems,
    split_in_name,
)
from beam_tfrec.transforms.storage import Entry, Storage, is_local, join_uri
from beam_tfrec.transforms.storage.disk import coded
from beam_tfrec.transforms.storage.read_data_set import list_folders, what_differs

SIDE_FILES = (
    "label_map.pbtxt",
    "schema.pbtxt",
    "features.json",
    "dataset_info.json",
    *LABEL_FILES.values(),
)
DOCUMENTS = (CARD_NAME, CROISSANT_NAME, REPORT_NAME)
"""Names of the documents. A user's own file with such a name is never replaced."""

SOURCES_NOTE = b"{}\n"
"""Content of a finished run's note; the information is in its name."""
_MAX_DOCUMENT_BYTES = 64 << 20  # a larger file is not read to look for a seal

_OWN_NAMES = {REJECTED_NAME, DUPLICATES_NAME, *SIDE_FILES}
_LOG = logging.getLogger(__name__)
_RECEIPT_NAME = re.compile(rf"{RECEIPTS_DIR}/[a-z][a-z0-9_]*-[0-9]{{5,}}-of-[0-9]{{5,}}\.json")
_SOURCES_NAME = re.compile(rf"{SOURCES_DIR}/[0-9a-f]{{32}}\.json")


def create_or_compare(output: Storage, name: str, data: bytes) -> None:
    """Create a small file, or check that an existing one has the same bytes.

    Raises:
        RuntimeError: `E-OUT-CONFLICT` when it has other bytes.
    """
    if not output.create(name, data) and output.read(name) != data:
        raise conflict(output, name, "has other content than this run would write")


def create_or_leave(output: Storage, name: str, data: bytes) -> None:
    """Create a document, unless a file with its name exists; that file is kept."""
    if output.create(name, data):
        return
    there = output.stat(name)
    if there is None or there.size_bytes != len(data) or output.read(name) != data:
        where = printable(join_uri(output.root, name))
        _LOG.info("%s exists with other content: keeping it", where)


def is_own_document(storage: Storage, name: str) -> bool:
    """Return whether a file exists and is an unedited document of this program."""
    there = storage.stat(name)
    may_be = there is not None and there.kind == "file" and there.size_bytes <= _MAX_DOCUMENT_BYTES
    return may_be and is_sealed(storage.read(name))


def conflict(output: Storage, name: str, what: str) -> RuntimeError:
    """Return the fault of an existing file with other content than the run's."""
    remedy = "give another --output, or --overwrite"
    return run_fault("E-OUT-CONFLICT", output.uri(name), what, remedy)


def foreign(output: Storage, what: str, *, replaceable: bool = True) -> RuntimeError:
    """Return the fault of an output with files that this run has not written."""
    remedy = "give another --output, or move it away"
    if replaceable:
        remedy = "give another --output, move it away, or give --overwrite if a run left it"
    return run_fault("E-OUT-FOREIGN", output.root, what, remedy)


def check_claim(output: Storage, plan_digest: str) -> None:
    """Check that the output still has this run's plan, since `--overwrite` may have replaced it.

    Args:
        output: output of the run.
        plan_digest: digest of the plan, hex.

    Raises:
        RuntimeError: `E-OUT-PLAN` when another run has taken the output.
    """
    there = output.stat(PLAN_NAME) is not None
    if there and hashlib.blake2b(output.read(PLAN_NAME), digest_size=16).hexdigest() == plan_digest:
        return
    what = f"{PLAN_NAME} was deleted or replaced: a run with --overwrite may have taken the output"
    remedy = "wait until that run ends, or stop it and run again with --overwrite"
    raise run_fault("E-OUT-PLAN", output.root, what, remedy)


def find_manifest(output: Storage) -> Manifest | None:
    """Return the manifest of an output, or None if it has none.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` when it cannot be read.
    """
    if output.stat(MANIFEST_NAME) is None:
        return None
    return read_manifest(output.read(MANIFEST_NAME), output.uri(MANIFEST_NAME))


def parse_plan(output: Storage, data: bytes) -> JobPlan:
    """Return the plan in the content of `_plan.json`.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` when it was not written by beam-tfrec.
    """
    try:
        return from_json(data, JobPlan)
    except ValueError:
        raise foreign(output, f"{PLAN_NAME} is not a plan of beam-tfrec") from None


def names_of_ours(output: Storage, names: ShardNames, splits: Iterable[str]) -> set[str]:
    """Return the names of files that only a run can have written, except the plan.

    Args:
        output: output of the run.
        names: naming scheme of shard files.
        splits: splits of the run; files in folders of other splits are not looked for.
    """
    there = files_in(output, names.folders(splits))
    return files_of_shards(output, names, there) | ({MANIFEST_NAME, *_OWN_NAMES} & there.keys())


def files_of_shards(output: Storage, names: ShardNames, there: Iterable[str]) -> set[str]:
    """Return the names of all files that are named or placed like a shard's.

    Args:
        output: output of the run.
        names: naming scheme of shard files.
        there: names of files in the output and in the folders of its splits.
    """
    data_files = {name for name in there if "/" in name or split_in_name(name, names) is not None}
    indexes = _names_in(INDEX_DIR, lambda name: is_index_name(name, names), output)
    return {*data_files, *indexes, *receipts(output)}


def refuse_foreign(output: Storage, found: Collection[str]) -> None:
    """Refuse an output that has files of a run, but no plan.

    Args:
        output: output of the run.
        found: `names_of_ours` of an output without a plan.

    Raises:
        RuntimeError: `E-OUT-FOREIGN`, naming the first file.
    """
    if found:
        what = f"{min(found)} is there, but no {PLAN_NAME}"
        of_a_run = any(name.startswith((MANIFEST_NAME, f"{RECEIPTS_DIR}/")) for name in found)
        raise foreign(output, what, replaceable=of_a_run)


def refuse_others(
    output: Storage, names: ShardNames, splits: Collection[str], *, overwrite: bool
) -> None:
    """Refuse other files in the folders of splits, since readers open all that lies there.

    Args:
        output: output of the run.
        names: naming scheme of shard files.
        splits: splits of the run.
        overwrite: whether the run first deletes a data set in the output.

    Raises:
        RuntimeError: `E-OUT-FOREIGN`, naming the first file.
    """
    there = list_folders(output, names.folders(splits) - {""})
    others = {name for name in there if names.matches(name) is None}
    if others and overwrite:
        others.difference_update(removed_names(output, names, splits))
    if others:
        what = f"{min(others)} is in a folder of shards only"
        raise foreign(output, what, replaceable=False)


def files_in(output: Storage, folders: Iterable[str]) -> dict[str, Entry]:
    """Return the files directly in the output's folders, by name; `""` is the output itself."""
    there = list_folders(output, folders)
    return {name: entry for name, entry in there.items() if entry.kind == "file"}


def receipts(output: Storage) -> list[str]:
    """Return the names of existing receipts: a JSON file per finished shard."""
    return _names_in(RECEIPTS_DIR, _RECEIPT_NAME.fullmatch, output)


def source_notes(output: Storage) -> list[str]:
    """Return the names of existing notes of finished runs."""
    return _names_in(SOURCES_DIR, _SOURCES_NAME.fullmatch, output)


def missing_files(output: Storage, manifest: Manifest) -> list[str]:
    """Return the names of missing shards, receipts and indexes, from a few listings.

    Raises:
        RuntimeError: `E-OUT-CONFLICT` when a shard differs from its entry in the manifest.
    """
    folders = {folder_of(shard.file) for shard in manifest.shards}
    # The index of `train/00000.tfrec` lies in `index/train`.
    indexes = {f"{INDEX_DIR}/{folder}".rstrip("/") for folder in folders}
    there = files_in(output, {*folders, *indexes, RECEIPTS_DIR})
    missing = []
    for shard in manifest.shards:
        found = there.get(shard.file)
        if found is None:
            missing.append(shard.file)
        elif wrong := what_differs(shard, found):
            remedy = "restore it, or delete it and run its command again, which builds it again"
            raise run_fault("E-OUT-CONFLICT", output.uri(shard.file), wrong[1], remedy)
    stems = shard_stems([shard.split for shard in manifest.shards])
    wanted = {*map(receipt_name, stems)}.union(*(shard.index_names for shard in manifest.shards))
    return [*missing, *sorted(wanted - there.keys())]


def remove_output(output: Storage, names: ShardNames, splits: Collection[str]) -> bool:
    """Delete a data set, if the output holds one or a part of one.

    The manifest is deleted first, so that a half-deleted data set never looks complete. The plan is
    deleted last, so that a rerun after a crash still recognises the output. `removed_names` says
    which files are deleted; all others are kept. Folders that become empty go, too.

    Args:
        output: output of the run.
        names: naming scheme of shard files.
        splits: splits of the run.

    Returns:
        Whether anything was deleted.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` when the plan or the manifest was not written by beam-tfrec.
    """
    doomed = removed_names(output, names, splits)
    for name in doomed:
        output.delete(name)
    if is_local(output.root):
        folders = {str(above) for name in doomed for above in PurePath(name).parents} - {"."}
        for folder in sorted(folders, reverse=True):  # innermost first
            with contextlib.suppress(OSError):  # it holds other files
                os.rmdir(os.path.join(output.root, folder))
    return bool(doomed)


def removed_names(output: Storage, names: ShardNames, splits: Collection[str]) -> list[str]:
    """Return the names of the files that `remove_output` deletes, in its order.

    These are files named by receipts and manifest, files named like shards of these splits or like
    indexes, side files, notes, and documents without edits. Without a plan, manifest or receipt
    the list is empty.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` when the plan or the manifest was not written by beam-tfrec.
    """
    manifest = find_manifest(output)
    shards: list[ShardEntry | ShardInfo] = [*manifest.shards] if manifest else []
    for name in receipts(output):
        with contextlib.suppress(ValueError):
            shards.append(from_json(output.read(name), ShardInfo))
    has_plan = output.stat(PLAN_NAME) is not None
    if has_plan:
        parse_plan(output, output.read(PLAN_NAME))  # refuses that of another program
    if not (has_plan or manifest or shards):
        return []
    files = {shard.file for shard in shards}
    index = {name for shard in shards for name in shard.index_names}
    wanted, named = {"", *splits}, files | _OWN_NAMES
    there = files_in(output, names.folders(splits) | {*map(folder_of, files)})
    doomed = [MANIFEST_NAME]
    for name in sorted(there):
        is_document = name in DOCUMENTS and is_own_document(output, name)
        if is_document or name in named or split_in_name(name, names) in wanted:
            doomed.append(name)
    doomed += _names_in(INDEX_DIR, lambda name: name in index or is_index_name(name, names), output)
    return [*doomed, *source_notes(output), *receipts(output), PLAN_NAME]


def refuse_no_place(output: Storage) -> None:
    """Check without writing that the output can probably be written.

    Raises:
        RuntimeError: `E-IO-…`, the fault that `Storage.probe` would raise.
    """
    if not is_local(output.root):
        output.require_folder()
        return
    above = _nearest(output.root)
    number = 0
    if not os.path.isdir(above):
        number = errno.ENOTDIR
    elif not os.access(above, os.W_OK | os.X_OK):
        number = errno.EROFS if os.statvfs(above).f_flag & os.ST_RDONLY else errno.EACCES
    if number:
        raise coded(OSError(number, os.strerror(number)), output.root)


def free_bytes(output: Storage) -> int | None:
    """Return the free bytes of a local output's disk for this user; None for a remote output."""
    if not is_local(output.root):
        return None
    return shutil.disk_usage(_nearest(output.root)).free


def _names_in(folder: str, is_ours: Callable[[str], object], output: Storage) -> list[str]:
    entries = output.list(f"{folder}/")
    return sorted(entry.name for entry in entries if entry.kind == "file" and is_ours(entry.name))


def _nearest(path: str) -> Path:
    """Return the path, or its nearest parent that exists."""
    absolute = Path(os.path.abspath(path))
    return next(above for above in (absolute, *absolute.parents) if os.path.lexists(above))
