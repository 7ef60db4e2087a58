"""Files of an output: names that are ours, create-only writes, and deletion by `--overwrite`."""

import contextlib
import hashlib
import itertools
import logging
import re
from collections.abc import Callable, Collection, Iterable

from beam_tfrec.schemas.documents.croissant import CROISSANT_NAME
from beam_tfrec.schemas.documents.data_card import CARD_NAME, is_sealed
from beam_tfrec.schemas.documents.tensorflow_files import LABEL_FILES
from beam_tfrec.schemas.faults import fault_line, printable
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
    index_names_of,
    read_manifest,
)
from beam_tfrec.schemas.shards import (
    INDEX_DIR,
    NAMED_TEMPLATES,
    PLAIN,
    RECEIPTS_DIR,
    ShardInfo,
    ShardNames,
    index_names,
    index_stem,
    is_index_name,
    receipt_name,
    shard_stems,
)
from beam_tfrec.transforms.storage import Entry, Storage, join_uri

SIDE_FILES = (
    "label_map.pbtxt",
    "schema.pbtxt",
    "features.json",
    "dataset_info.json",
    *LABEL_FILES.values(),
)
DOCUMENTS = (CARD_NAME, CROISSANT_NAME, REPORT_NAME)
"""Documents. A user's own file of such a name is left alone."""

SOURCES_NOTE = b"{}\n"
"""Content of each note of a finished run; only its name matters."""

_OWN_NAMES = {REJECTED_NAME, DUPLICATES_NAME, *SIDE_FILES}
_LOG = logging.getLogger(__name__)
_SOURCES_NAME = re.compile(rf"{SOURCES_DIR}/[0-9a-f]{{32}}\.json")


def sources_name(job: str) -> str:
    """Return the name of the note that a job with this digest is complete."""
    return f"{SOURCES_DIR}/{job}.json"


def create_or_compare(output: Storage, name: str, data: bytes) -> None:
    """Create a small file, or find it there with the same bytes.

    Raises:
        RuntimeError: `E-OUT-CONFLICT` when it has others.
    """
    if not output.create(name, data) and output.read(name) != data:
        raise conflict(join_uri(output.root, name), "has other content than this run's")


def create_or_leave(output: Storage, name: str, data: bytes) -> None:
    """Create a document where there is none; another file there is left alone."""
    if output.create(name, data):
        return
    there = output.stat(name)
    if there is None or there.size_bytes != len(data) or output.read(name) != data:
        where = printable(join_uri(output.root, name))
        _LOG.info("%s is another than this run's, and is left as it is", where)


def conflict(where: str, what: str) -> RuntimeError:
    """Return the fault of a file with other content than this run makes."""
    remedy = "give another --output, or --overwrite"
    return RuntimeError(fault_line("E-OUT-CONFLICT", where, what, remedy))


def foreign(output: Storage, what: str, *, replaceable: bool = True) -> RuntimeError:
    """Return the fault of an output with files that are not of this run."""
    remedy = "give another --output, or move it away"
    if replaceable:
        remedy = (
            "give another --output, move it away, or run with --overwrite if an ended run left it"
        )
    return RuntimeError(fault_line("E-OUT-FOREIGN", output.root, what, remedy))


def check_claim(output: Storage, plan: str) -> None:
    """Check that an output is still claimed by this run's plan: `--overwrite` may have deleted it.

    Args:
        output: of the run.
        plan: digest of the plan, hex.

    Raises:
        RuntimeError: `E-OUT-PLAN` when another run has taken the output.
    """
    there = output.stat(PLAN_NAME) is not None
    if there and hashlib.blake2b(output.read(PLAN_NAME), digest_size=16).hexdigest() == plan:
        return
    what = f"{PLAN_NAME} is {'of another run' if there else 'gone'} since this run began"
    what += ": a run with --overwrite has taken the output"
    remedy = "let it end, or stop it and run again with --overwrite"
    raise RuntimeError(fault_line("E-OUT-PLAN", output.root, what, remedy))


def names_of_ours(output: Storage, names: ShardNames) -> set[str]:
    """Return the files of our names that only a data set, and thus a plan, explains."""
    own = {MANIFEST_NAME, *_OWN_NAMES}
    ours = {name for name in top_level(output) if name in own or split_of(name, names) is not None}
    return ours | {*indexes(output, names), *receipts(output)}


def refuse_foreign(output: Storage, found: Collection[str]) -> None:
    """Refuse an output that has no plan, but files of our names.

    Raises:
        RuntimeError: `E-OUT-FOREIGN`, naming the first of them.
    """
    if found:
        what = f"{min(found)} is there, but no {PLAN_NAME} that names it"
        of_a_run = any(name.startswith((MANIFEST_NAME, f"{RECEIPTS_DIR}/")) for name in found)
        raise foreign(output, what, replaceable=of_a_run)


def top_level(output: Storage) -> dict[str, Entry]:
    """Return the files that lie in the output itself, by name."""
    return {e.name: e for e in output.list(recursive=False) if e.kind == "file"}


def receipts(output: Storage) -> list[str]:
    """Return the names of the receipts that are there."""
    return _names_in(RECEIPTS_DIR, _is_receipt_name, output)


def source_notes(output: Storage) -> list[str]:
    """Return the names of the notes by which finished runs recognise themselves."""
    return _names_in(SOURCES_DIR, _SOURCES_NAME.fullmatch, output)


def indexes(output: Storage, names: ShardNames) -> list[str]:
    """Return the names of the indexes that are there, of older data sets too."""
    return _names_in(INDEX_DIR, lambda name: is_index_name(name, names), output)


def companions_of(info: ShardInfo) -> tuple[str, ...]:
    """Return the names of the files that a shard comes with: its receipt and indexes."""
    return (receipt_name(info.name), *index_names(index_stem(info.file)))


def is_shard(found: Entry, wanted: ShardInfo | ShardEntry) -> bool:
    """Return whether a listed file has a shard's size, and its checksum where that is listed."""
    same = found.crc32c is None or f"{found.crc32c:08x}" == wanted.crc32c
    return same and found.size_bytes == wanted.bytes


def missing_shards(output: Storage, manifest: Manifest) -> list[str]:
    """Return the shards that a data set lacks, by one listing.

    Raises:
        RuntimeError: `E-OUT-CONFLICT` when a shard is not the one that was committed.
    """
    there, missing = top_level(output), []
    for shard in manifest.shards:
        found = there.get(shard.file)
        if found is None:
            missing.append(shard.file)
        elif not is_shard(found, shard):
            what = f"has {found.size_bytes} bytes or a checksum that {MANIFEST_NAME} does not name"
            remedy = "restore it, or delete it and run its command again, which builds it anew"
            where = join_uri(output.root, shard.file)
            raise RuntimeError(fault_line("E-OUT-CONFLICT", where, what, remedy))
    return missing


def missing_files(output: Storage, manifest: Manifest) -> list[str]:
    """Return the shards, receipts and indexes that a data set lacks, by three listings.

    Raises:
        RuntimeError: as `missing_shards`.
    """
    stems = shard_stems([shard.split for shard in manifest.shards])
    index = {name for names in index_names_of(manifest) for name in names}
    wanted = {*map(receipt_name, stems), *index}
    there = {*receipts(output), *_names_in(INDEX_DIR, index.__contains__, output)}
    return [*missing_shards(output, manifest), *sorted(wanted - there)]


def split_of(name: str, names: ShardNames) -> str | None:
    """Return the split of a shard file of this or a standard grammar, None for any other file."""
    grammars = (names, *map(ShardNames, NAMED_TEMPLATES.values()))
    return next((s for grammar in grammars if (s := grammar.matches(name)) is not None), None)


def remove_output(output: Storage, names: ShardNames, splits: Iterable[str]) -> bool:
    """Delete a data set of ours, manifest first, so that none is ever there in part.

    Deleted are the files that receipts and manifest name, shards of our names for these splits,
    indexes of our names, the side files, and the documents without edits; anything else
    stays. The plan goes last: until then a rerun knows what this was.

    Args:
        output: what holds the data set.
        names: how its shard files are called.
        splits: whose.

    Returns:
        Whether there was a data set of ours, or a part of one.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` when plan or manifest there are none of ours.
    """
    doomed = removed_names(output, names, splits)
    for name in doomed:
        output.delete(name)
    return bool(doomed)


def removed_names(output: Storage, names: ShardNames, splits: Iterable[str]) -> list[str]:
    """Return what `remove_output` deletes, in that order; none where there is no data set of ours.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` when plan or manifest there are none of ours.
    """
    manifest, infos = _find_manifest(output), []
    for name in receipts(output):
        with contextlib.suppress(ValueError):
            infos.append(from_json(output.read(name), ShardInfo))
    if not (_has_plan(output) or manifest or infos):
        return []
    there = top_level(output)
    shards = [(info.file, *index_names(index_stem(info.file))) for info in infos]
    if manifest is not None:
        files = [shard.file for shard in manifest.shards]
        shards += [
            (file, *index) for file, index in zip(files, index_names_of(manifest), strict=True)
        ]
    wanted = {"", *splits}
    named = {*itertools.chain(*shards), *_OWN_NAMES}
    doomed = [MANIFEST_NAME]
    for name in sorted(there):
        if name in named or split_of(name, names) in wanted or _is_own_document(output, name):
            doomed.append(name)
    doomed += _names_in(INDEX_DIR, lambda name: name in named or is_index_name(name, names), output)
    return [*doomed, *source_notes(output), *receipts(output), PLAN_NAME]


def _is_own_document(output: Storage, name: str) -> bool:
    return name in DOCUMENTS and is_sealed(output.read(name))


def _find_manifest(output: Storage) -> Manifest | None:
    if output.stat(MANIFEST_NAME) is None:
        return None
    return read_manifest(output.read(MANIFEST_NAME), join_uri(output.root, MANIFEST_NAME))


def _has_plan(output: Storage) -> bool:
    if output.stat(PLAN_NAME) is None:
        return False
    try:
        from_json(output.read(PLAN_NAME), JobPlan)
    except ValueError:
        raise foreign(output, f"{PLAN_NAME} is no plan of beam-tfrec") from None
    return True


def _names_in(folder: str, is_ours: Callable[[str], object], output: Storage) -> list[str]:
    entries = output.list(f"{folder}/", recursive=False)
    return sorted(entry.name for entry in entries if entry.kind == "file" and is_ours(entry.name))


def _is_receipt_name(name: str) -> bool:
    stem = name.removeprefix(f"{RECEIPTS_DIR}/").removesuffix(".json")
    is_stem = ShardNames(PLAIN).matches(f"{stem}.tfrec") is not None
    return is_stem and name == receipt_name(stem)
