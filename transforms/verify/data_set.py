"""Verify a data set around its shards: manifest, plan, rejects, listing and side files."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from schemas.documents.croissant import CROISSANT_NAME
from schemas.documents.data_card import CARD_NAME
from schemas.documents.seals import is_sealed
from schemas.documents.tensorflow_files import label_map_pbtxt, metadata_of_spec
from schemas.example_rules import rules_of
from schemas.faults import Findings, Rejected, Scope, Verified
from schemas.features import Content, Feature, FeatureSpec, Kind
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
)
from schemas.samples import Order
from schemas.shards import (
    INDEX_DIR,
    NAMED_TEMPLATES,
    RECEIPTS_DIR,
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
from transforms.storage import Access, Storage, is_local, join_uri, open_storage
from transforms.verify import RESTORE, ShardRules, ShardTask, SharedContent, SharedCount
from transforms.verify.shard import read_if_there

_MOVE = "move it away: no reader of the manifest sees it, a reader of a glob does"
_CONVERTED = ("image_turned", "image_converted")
_PLAIN_BYTES = ("table", "arrays")  # layouts whose sources are not what their images hold


class AroundShards(NamedTuple):
    """What was found around the shards of a data set, and what is left to be done.

    Attributes:
        found: what is wrong, and how many shards are looked at; notes come after the shards'.
        tasks: the shards, in the manifest's order.
        rules: of all shards; None where there is no manifest to tell.
    """

    found: Verified
    tasks: list[ShardTask]
    rules: ShardRules | None


def verify_around(root: str, access: Access, *, deep: bool) -> AroundShards:
    """Return what is wrong with a data set but for its shards, and what those are to be like.

    Raises:
        RuntimeError: where the store fails, or the manifest is of a newer format.
    """
    storage, findings = open_storage(root, access), Findings()
    manifest = find_manifest(storage, findings)
    if manifest is None:
        return AroundShards(Verified(findings, 1), [], None)
    try:
        rules, names = shard_rules(manifest, root, access, deep=deep), _names(manifest)
    except ValueError as error:
        what = f"says what no run of this program does ({error})"
        findings.add("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
        return AroundShards(Verified(findings, 1), [], None)
    tasks = _tasks(manifest, storage)
    for what in contradictions(manifest):
        findings.add("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
    shared = check_side_files(manifest, storage, findings)
    notes = check_sums(manifest, storage, findings)
    if deep:
        rules = replace(rules, shared=shared)
    _check_foreign(names, tasks, storage, findings)
    notes += _notes(tasks, rules)
    return AroundShards(Verified(findings, len(tasks), notes=notes), tasks, rules)


def find_manifest(storage: Storage, findings: Findings) -> Manifest | None:
    """Return the manifest of a data set; None with a finding where it is damaged.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` where it is another program's, or of a newer format.
    """
    data, where = storage.read(MANIFEST_NAME), join_uri(storage.root, MANIFEST_NAME)
    try:
        return from_json(data, Manifest) if _is_ours(data) else read_manifest(data, where, "path")
    except ValueError as error:
        findings.add("E-VER-MANIFEST", where, f"no manifest ({error})", COPY)
    return None


def shard_rules(manifest: Manifest, root: str, access: Access, *, deep: bool) -> ShardRules:
    """Return what all shards of a data set are to be like."""
    return ShardRules(
        root=root,
        examples=rules_of(manifest),
        orders={
            split: order_of(manifest.plan, split)
            for split in {*manifest.splits, *(entry.split for entry in manifest.shards)}
        },
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


def _names(manifest: Manifest) -> ShardNames:
    return ShardNames(manifest.plan.options.get("shard_names", NAMED_TEMPLATES["counted"]))


def _is_ours(data: bytes) -> bool:
    """Return whether to look further; what is clearly another program's is no finding of ours."""
    try:
        head = from_json(data, _Head)
    except ValueError:
        return True
    return head.format == "beam-tfrec" and head.format_version <= FORMAT_VERSION


class _Head(msgspec.Struct):
    format: str
    format_version: int


def _tasks(manifest: Manifest, storage: Storage) -> list[ShardTask]:
    """Return the shards by split, then index, as the manifest lists them."""
    listed = {entry.name: entry for entry in storage.list(recursive=False)}
    stems = shard_stems([entry.split for entry in manifest.shards])
    names, digest = index_names_of(manifest), plan_digest(manifest.plan)
    return [
        ShardTask(entry, stem, names[place], digest, listed.get(entry.file), place)
        for place, (entry, stem) in enumerate(zip(manifest.shards, stems, strict=True))
    ]


def _check_foreign(
    names: ShardNames, tasks: Sequence[ShardTask], storage: Storage, findings: Findings
) -> None:
    """Name files that could be taken for the data set's, and are not."""
    ours = {task.entry.file for task in tasks}
    found = [e.name for e in storage.list(recursive=False) if split_of(e.name, names) is not None]
    ours |= {name for task in tasks for name in task.index}
    folder = storage.list(f"{INDEX_DIR}/", recursive=False)
    found += [entry.name for entry in folder if is_index_name(entry.name, names)]
    ours |= {receipt_name(task.stem) for task in tasks}
    for name in sorted({*found, *receipts(storage)} - ours):
        what = "is of an index" if name.startswith(INDEX_DIR) else "is called like a shard"
        if name.startswith(RECEIPTS_DIR):
            what = "is a receipt"
        findings.add("E-VER-FOREIGN", name, f"{what}, and the manifest names no such shard", _MOVE)


def _notes(tasks: Sequence[ShardTask], rules: ShardRules) -> tuple[str, ...]:
    """Say what was not looked at."""
    if rules.reads:
        return ()
    without = sum(task.file is not None and task.file.crc32c is None for task in tasks)
    if without:
        return (f"the store gives no checksums of {without} shards: --deep reads their bytes",)
    return ("sizes and checksums as the store lists them were compared: --deep reads all bytes",)


COPY = "restore it from a copy"
MAX_DUPLICATES = 10_000
"""Lines that `duplicates.jsonl` has at most, as `find_duplicates.MAX_LINES` says."""

_LABEL_MAP = "label_map.pbtxt"
_FEATURES = "features.json"
_ALWAYS_THERE = {PLAN_NAME, REJECTED_NAME, _LABEL_MAP, CARD_NAME, CROISSANT_NAME}
_WITH_SUMS = {*_ALWAYS_THERE, DUPLICATES_NAME, *SIDE_FILES}
_NOT_OF_THE_MANIFEST = "is not what follows from the manifest"
_MAX_SEQUENCES = 2
_MAX_TRIES = 1000  # of a millisecond each, where features.json is another


def check_side_files(
    manifest: Manifest, storage: Storage, findings: Findings
) -> dict[str, SharedContent]:
    """Compare plan, label map, rejects, duplicates and what other tools read with the manifest.

    Returns:
        What `duplicates.jsonl` says, to be counted in the indexes.
    """
    plan = read_if_there(PLAN_NAME, storage, findings, COPY)
    if plan is not None and _as_plan(plan) != manifest.plan:
        findings.add("E-VER-MANIFEST", PLAN_NAME, "is not the plan of the manifest", RESTORE)
    try:
        _check_label_map(manifest, storage, findings)
        if manifest.format_version == FORMAT_VERSION:  # an older one's program wrote them otherwise
            _check_metadata(manifest, storage, findings)
    except ValueError as error:
        what = f"has labels, features or shards that no run writes ({error})"
        findings.add("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
    rejected = read_if_there(REJECTED_NAME, storage, findings, COPY)
    if rejected is not None:
        _check_rejects(manifest, rejected, findings)
    return _check_duplicates(manifest, storage, findings) if manifest.duplicates else {}


def check_sums(manifest: Manifest, storage: Storage, findings: Findings) -> tuple[str, ...]:
    """Compare the files next to the shards with the sums in the manifest, byte for byte.

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
            data = _read_file(name, storage)
            if data is None or file_sum(data) != wanted:
                notes.append(f"{name} is {'gone' if data is None else 'not as the run wrote it'}")
        elif name not in said:
            data = read_if_there(name, storage, findings, COPY)
            if data is not None and (there := file_sum(data)) != wanted:
                what = f"has {there.bytes} bytes of CRC-32C {there.crc32c}, the manifest says"
                what = f"{what} {wanted.bytes} of {wanted.crc32c}"
                findings.add("E-VER-CRC", name, what, COPY)
    report = _read_file(REPORT_NAME, storage)
    if report is not None and not is_sealed(report):
        notes.append(f"{REPORT_NAME} is not as a run wrote it")
    for name in source_notes(storage):
        if storage.read(name) != SOURCES_NOTE:
            remedy = "delete it: the next run of the command writes it again"
            findings.add("E-VER-CRC", name, "holds other bytes than a run writes", remedy)
    return tuple(notes)


def _read_file(name: str, storage: Storage) -> bytes | None:
    entry = storage.stat(name)
    return None if entry is None or entry.kind != "file" else storage.read(name, entry)


def _check_label_map(manifest: Manifest, storage: Storage, findings: Findings) -> None:
    labels = read_if_there(_LABEL_MAP, storage, findings, COPY)
    wanted = label_map_pbtxt([(label.id, label.name) for label in manifest.plan.labels])
    if labels is not None and labels != wanted.encode():
        what = "is not that of the labels in the manifest"
        findings.add("E-VER-MANIFEST", _LABEL_MAP, what, COPY)


def _as_plan(data: bytes) -> JobPlan | None:
    try:
        return from_json(data, JobPlan)
    except ValueError:
        return None


def _check_rejects(manifest: Manifest, data: bytes, findings: Findings) -> None:
    """Compare what was rejected with the counts by split and reason."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for number, line in enumerate(data.splitlines(), 1):
        try:
            reject = from_json(line, Rejected)
            counts[reject.split, reject.scope.value, reject.code] += 1
        except (ValueError, KeyError) as error:
            where = f"{REJECTED_NAME} line {number}"
            findings.add("E-VER-MANIFEST", where, f"no reject ({error})", COPY)
    said: Counter[tuple[str, str, str]] = Counter()
    for split, summary in manifest.splits.items():
        for code, count in summary.rejected.items():
            said[split, Scope.SAMPLE.value, code] = count
        for code, count in summary.annotations.dropped.items():
            said[split, Scope.ANNOTATION.value, code] = count
    for split, scope, code in sorted(counts.keys() | said.keys()):
        found, wanted = counts[split, scope, code], said[split, scope, code]
        if found != wanted:
            what = f"{found} of each {scope} rejected as {code} in split {split}, the manifest says"
            findings.add("E-VER-MANIFEST", REJECTED_NAME, f"{what} {wanted}", COPY)


class _Record(msgspec.Struct, frozen=True):
    name: str
    key: str


class _Shared(msgspec.Struct, frozen=True):
    """A line of `duplicates.jsonl`: a content, its records per split, and some of them."""

    sha256: str
    records: dict[str, int]
    samples: dict[str, list[_Record]]


def _check_duplicates(
    manifest: Manifest, storage: Storage, findings: Findings
) -> dict[str, SharedContent]:
    """Compare the contents that splits share with the counts by pair of splits."""
    data = read_if_there(DUPLICATES_NAME, storage, findings, COPY)
    if data is None or not manifest.duplicates:
        return {}
    counts: Counter[tuple[str, str]] = Counter()
    shared: dict[str, SharedContent] = {}
    lines = data.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            found = from_json(line, _Shared)
        except ValueError as error:
            where = f"{DUPLICATES_NAME} line {number}"
            findings.add("E-VER-MANIFEST", where, f"no shared content ({error})", COPY)
            continue
        counts.update(itertools.combinations(sorted(found.records), 2))
        named = {
            split: frozenset((record.name, record.key) for record in records)
            for split, records in found.samples.items()
        }
        shared[found.sha256] = SharedContent(number, found.records, named)
    said = {pair.splits: pair.contents for pair in manifest.duplicates}
    is_whole = len(lines) < MAX_DUPLICATES  # else it has the first of them
    for pair in sorted(counts.keys() | said.keys()):
        count, wanted = counts[pair], said.get(pair, 0)
        if count > wanted or (is_whole and count != wanted):
            what = f"{count} contents that {' and '.join(pair)} share, the manifest says {wanted}"
            findings.add("E-VER-MANIFEST", DUPLICATES_NAME, what, COPY)
    return shared


def check_shared(
    shared: Mapping[str, SharedContent],
    counts: Mapping[str, Mapping[str, SharedCount]],
    findings: Findings,
) -> None:
    """Compare what `duplicates.jsonl` says of each content with the indexes.

    Args:
        shared: what it says, by SHA-256.
        counts: of the indexes, by split and SHA-256.
        findings: what is wrong is added to them.
    """
    for sha256, line in shared.items():
        where = f"{DUPLICATES_NAME} line {line.number}"
        for split in sorted({*line.records, *line.named, *counts}):
            found = counts.get(split, {}).get(sha256, SharedCount())
            said, named = line.records.get(split, 0), len(line.named.get(split, ()))
            what = ""
            if found.records != said:
                what = f"{said} records of split {split}, the indexes have {found.records}"
            elif found.named != named:
                what = f"names {named} records of split {split}, of which {found.named} are in it"
            if what:
                findings.add("E-VER-MANIFEST", where, what, COPY)


def _check_metadata(manifest: Manifest, storage: Storage, findings: Findings) -> None:
    """Compare what other tools read; a manifest leaves open a few things, which are tried."""
    features = tuple(
        Feature(f.key, Kind(f.kind), f.repeated, f.doc, Content(f.content), f.optional, f.per_step)
        for f in manifest.features
    )
    wanted = metadata_of_spec(manifest, FeatureSpec(manifest.layout, features), has_names=False)
    for name in sorted(wanted.keys() - {_LABEL_MAP, _FEATURES}):
        data = read_if_there(name, storage, findings)
        if data is not None and not _is_same(name, data, wanted[name]):
            findings.add("E-VER-MANIFEST", name, _NOT_OF_THE_MANIFEST, RESTORE)
    if _FEATURES not in wanted:
        return
    data = read_if_there(_FEATURES, storage, findings)
    if data is None:
        return
    for sequences, has_names in itertools.product(_sequences(features), (False, True)):
        spec = FeatureSpec(manifest.layout, features, sequences)
        texts = metadata_of_spec(manifest, spec, has_names=has_names)
        if _is_same(_FEATURES, data, texts[_FEATURES]):
            break
    else:
        findings.add("E-VER-MANIFEST", _FEATURES, _NOT_OF_THE_MANIFEST, RESTORE)
        return
    for name in sorted(texts.keys() - wanted.keys()):
        data = read_if_there(name, storage, findings)
        if data is not None and data != texts[name].encode():
            findings.add("E-VER-MANIFEST", name, _NOT_OF_THE_MANIFEST, RESTORE)


def _is_same(name: str, data: bytes, wanted: str) -> bool:
    """Compare a file; of JSON its values, whose order follows the layout's, not the manifest's."""
    if not name.endswith(".json"):
        return data == wanted.encode()
    try:
        return from_json(data, object) == json.loads(wanted)
    except ValueError:
        return False


def _sequences(features: Sequence[Feature]) -> Iterator[tuple[str, ...]]:
    """Return which keys a layout may have as `FeatureSpec.sequences`, none first."""
    members: dict[str, list[Feature]] = {}
    for feature in features:
        for place, sign in enumerate(feature.key):
            if sign == "/" and place:
                members.setdefault(feature.key[:place], []).append(feature)
    keys = [k for k, found in members.items() if all(f.repeated and not f.per_step for f in found)]
    counts = range(min(len(keys), _MAX_SEQUENCES) + 1)
    tries = itertools.chain.from_iterable(itertools.combinations(keys, n) for n in counts)
    return itertools.islice(tries, _MAX_TRIES)
