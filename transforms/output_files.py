"""The files of a data set: which names are ours, creating them, and deleting no one else's."""

import contextlib
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator

from schemas.documents.croissant import CROISSANT_NAME
from schemas.documents.data_card import CARD_NAME
from schemas.documents.seals import is_sealed
from schemas.documents.tfds_metadata import LABEL_FILES
from schemas.faults import fault_line, printable
from schemas.manifest import (
    DUPLICATES_NAME,
    MANIFEST_NAME,
    PLAN_NAME,
    REJECTED_NAME,
    REPORT_NAME,
    SOURCES_DIR,
    JobPlan,
    from_json,
    read_manifest,
)
from schemas.shards import (
    INDEX_DIR,
    NAMED_TEMPLATES,
    RECEIPTS_DIR,
    ShardInfo,
    ShardNames,
    index_names,
    is_index_name,
    receipt_name,
)
from transforms.storage import (
    DEFAULT_ACCESS,
    EVERYTHING,
    SPOOL_DIR,
    Access,
    Bounds,
    Entry,
    Storage,
    join_uri,
    name_below,
    open_storage,
)

SIDE_FILES = (
    "label_map.pbtxt",
    "schema.pbtxt",
    "features.json",
    "dataset_info.json",
    *LABEL_FILES.values(),
)
DOCUMENTS = (CARD_NAME, CROISSANT_NAME, REPORT_NAME)
"""What describes a data set, at names that users may have files of their own at: these stay."""

EXCLUDED_NAME = "_excluded.jsonl"
"""A copy of what `--exclude` named, where `--overwrite` would have deleted it."""

_OWN_NAMES = {
    MANIFEST_NAME,
    PLAN_NAME,
    REJECTED_NAME,
    DUPLICATES_NAME,
    EXCLUDED_NAME,
    *SIDE_FILES,
    *DOCUMENTS,
}
_LOG = logging.getLogger(__name__)
_SOURCES_NAME = re.compile(rf"{SOURCES_DIR}/[0-9a-f]{{32}}\.json")


def sources_name(job: str) -> str:
    """Return the name of the note that a job with this digest is complete."""
    return f"{SOURCES_DIR}/{job}.json"


def source_entries(
    root: str,
    output: str,
    names: ShardNames,
    access: Access = DEFAULT_ACCESS,
    bounds: Bounds = EVERYTHING,
) -> Iterator[Entry]:
    """Yield what a source root holds, without the data set where that lies in the root too."""
    below = name_below(root, output) if output else None
    for entry in open_storage(root, access).list(bounds=bounds):
        if below is None or not _is_in_output(entry.name, below, names):
            yield entry


def create_or_compare(output: Storage, name: str, data: bytes) -> None:
    """Create a small file, or find it there with the same bytes.

    Raises:
        RuntimeError: `E-OUT-CONFLICT` when it has others.
    """
    if not output.create(name, data) and output.read(name) != data:
        raise conflict(join_uri(output.root, name), "has other content than this run's")


def create_or_leave(output: Storage, name: str, data: bytes) -> None:
    """Create a file that describes the data set, where there is none; another one is left alone."""
    if output.create(name, data):
        return
    there = output.stat(name)
    is_file = there is not None and there.kind == "file" and there.size_bytes == len(data)
    if not is_file or output.read(name) != data:
        where = printable(join_uri(output.root, name))
        _LOG.info("%s is another than this run's, and is left as it is", where)


def conflict(where: str, what: str) -> RuntimeError:
    """Return the fault of a file that holds something else than this run makes."""
    remedy = "give another --output, or --overwrite"
    return RuntimeError(fault_line("E-OUT-CONFLICT", where, what, remedy))


def foreign(output: Storage, what: str) -> RuntimeError:
    """Return the fault of an output that holds what is not of this run."""
    remedy = "give another --output, or move away what is not of this run"
    return RuntimeError(fault_line("E-OUT-FOREIGN", output.root, what, remedy))


def refuse_foreign(output: Storage, names: ShardNames, gone: Collection[str] = ()) -> None:
    """Refuse an output that has no plan, but files of our names.

    Args:
        output: what may hold them.
        names: how shard files are called.
        gone: names that will not be there.

    Raises:
        RuntimeError: `E-OUT-FOREIGN`.
    """
    own = _OWN_NAMES - {EXCLUDED_NAME, PLAN_NAME, *DOCUMENTS}
    ours = {name for name in top_level(output) if name in own or split_of(name, names) is not None}
    for name in sorted({*ours, *receipts(output)}.difference(gone)):
        raise foreign(output, f"{name} is there, but no {PLAN_NAME} that tells of it")


def top_level(output: Storage) -> dict[str, int]:
    """Return the sizes of the files that lie in the output itself, by name."""
    return {e.name: e.size_bytes for e in output.list(recursive=False) if e.kind == "file"}


def receipts(output: Storage) -> list[str]:
    """Return the names of the receipts that are there."""
    return _names_in(RECEIPTS_DIR, _is_receipt_name, output)


def split_of(name: str, names: ShardNames) -> str | None:
    """Return the split of a shard file of this or a standard grammar, None for any other file."""
    grammars = (names, *map(ShardNames, NAMED_TEMPLATES.values()))
    return next((s for grammar in grammars if (s := grammar.matches(name)) is not None), None)


def remove_output(
    output: Storage, names: ShardNames, splits: Iterable[str], excluded: bytes | None = None
) -> None:
    """Delete a data set of ours, manifest first, so that none is ever there in part.

    Deleted are the files that receipts name, those of our names for these splits, the side files,
    and the documents that nobody has edited; anything else stays. The plan goes last: until then a
    rerun knows what this was.

    Args:
        output: what holds the data set.
        names: how its shard files are called.
        splits: whose.
        excluded: what `EXCLUDED_NAME` is to hold before anything goes, its original perhaps.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` when plan or manifest there are none of ours.
    """
    doomed = removed_names(output, names, splits, keeps_excluded=excluded is not None)
    if doomed and excluded is not None:
        _keep_excluded(output, excluded)
    for name in doomed:
        output.delete(name)


def removed_names(
    output: Storage, names: ShardNames, splits: Iterable[str], *, keeps_excluded: bool = False
) -> list[str]:
    """Return what `remove_output` deletes, in that order; none where there is no data set of ours.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` when plan or manifest there are none of ours.
    """
    if not _is_ours(output):
        return []
    wanted = {"", *splits}
    named = {info.file for info in _read_receipts(output)}
    named |= {*SIDE_FILES, REJECTED_NAME, DUPLICATES_NAME, EXCLUDED_NAME}
    if keeps_excluded:
        named.remove(EXCLUDED_NAME)
    doomed = [MANIFEST_NAME]
    for name in sorted(top_level(output)):
        if name in named or split_of(name, names) in wanted or _is_own_document(output, name):
            doomed.append(name)
    doomed += _names_in(INDEX_DIR, is_index_name, output)
    doomed += _names_in(SOURCES_DIR, _is_sources_name, output)
    return [*doomed, *receipts(output), PLAN_NAME]


def _keep_excluded(output: Storage, data: bytes) -> None:
    if not output.create(EXCLUDED_NAME, data) and output.read(EXCLUDED_NAME) != data:
        output.delete(EXCLUDED_NAME)
        output.create(EXCLUDED_NAME, data)


def _is_own_document(output: Storage, name: str) -> bool:
    return name in DOCUMENTS and is_sealed(output.read(name))


def _is_ours(output: Storage) -> bool:
    """Return whether the output holds a data set of ours, or its beginnings."""
    has_manifest = output.stat(MANIFEST_NAME) is not None
    if has_manifest:
        read_manifest(output.read(MANIFEST_NAME), join_uri(output.root, MANIFEST_NAME))
    if output.stat(PLAN_NAME) is None:
        return has_manifest
    try:
        from_json(output.read(PLAN_NAME), JobPlan)
    except ValueError:
        raise foreign(output, f"{PLAN_NAME} is no plan of beam-tfrec") from None
    return True


def _read_receipts(output: Storage) -> Iterator[ShardInfo]:
    for name in receipts(output):
        data = output.read(name)
        with contextlib.suppress(ValueError):
            yield from_json(data, ShardInfo)


def _names_in(folder: str, is_ours: Callable[[str], bool], output: Storage) -> list[str]:
    entries = output.list(f"{folder}/", recursive=False)
    return sorted(e.name for e in entries if e.kind == "file" and is_ours(e.name))


def _is_receipt_name(name: str) -> bool:
    stem = name.removeprefix(f"{RECEIPTS_DIR}/").removesuffix(".json")
    return name == receipt_name(stem) and is_index_name(index_names(stem)[0])


def _is_sources_name(name: str) -> bool:
    return _SOURCES_NAME.fullmatch(name) is not None


def _is_in_output(name: str, below: str, names: ShardNames) -> bool:
    if below:
        return name == below or name.startswith(f"{below}/")
    in_folder = is_index_name(name) or _is_receipt_name(name) or _is_sources_name(name)
    in_folder = in_folder or name.startswith(f"{SPOOL_DIR}/")
    return name in _OWN_NAMES or in_folder or split_of(name, names) is not None
