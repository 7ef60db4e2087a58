"""Verify the files next to a data set's shards. All of them follow from its manifest."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from schemas.documents.croissant import CROISSANT_NAME
from schemas.documents.data_card import CARD_NAME
from schemas.documents.seals import is_sealed
from schemas.documents.tensorflow_files import label_map_pbtxt
from schemas.faults import Findings, Rejected, Scope
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
    from_json,
    has_sums,
)
from schemas.shards import file_sum
from transforms.metadata_files import metadata_of_spec
from transforms.output_files import DOCUMENTS, SIDE_FILES, SOURCES_NOTE, source_notes
from transforms.storage import Storage
from transforms.verify.reports import RESTORE, SharedContent, SharedCount
from transforms.verify.shard import read_if_there

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
