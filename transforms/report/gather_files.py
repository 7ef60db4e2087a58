"""Gather what a report says of TFRecord files of any origin: by reading them whole, once.

Pictures are then read again, from where the drawn records are.
"""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from schemas.feature_roles import Roles
from schemas.features import Kind
from schemas.statistics import StatisticsSum
from transforms.quantities import counted
from transforms.report.contents import Report, ShardFacts, SplitReport
from transforms.report.draw_pictures import Drawn, draw_record
from transforms.report.gather import program_versions
from transforms.report.make_pictures import Pictures, make_pictures, most_bytes_each, num_threads
from transforms.report.outlines import Legend
from transforms.report.pick_samples import (
    MAX_PICTURES,
    Candidates,
    PickedRecord,
    pick_samples,
)
from transforms.report.read_samples import ReadRecord, read_compressed, read_record
from transforms.report.scan_records import ClassNames, Scan, scan_file
from transforms.storage import Access, Entry, Storage, find_uri, is_local
from transforms.verify.files import open_records

_MAX_NOTES = 100


class _File(NamedTuple):
    """A file that was read, without its statistics: those of thousands of files would be much.

    Attributes:
        facts: with the name that it is told by.
        roles: of its features.
        kinds: likewise, by key.
        notes: what is not counted and why, a line each.
    """

    facts: ShardFacts
    roles: Roles
    kinds: Mapping[str, Kind]
    notes: Sequence[str]


def report_of_files(
    uris: Sequence[str],
    access: Access,
    notes: Sequence[str] = (),
    seen: Callable[[int, int], object] = lambda files, records: None,
) -> Report:
    """Return the report of TFRecord files, as of one split without a name.

    Args:
        uris: their paths or URIs.
        access: how their stores are reached.
        notes: what is to be said besides.
        seen: is told after each file how many files and records were read.

    Raises:
        RuntimeError: `E-ARG` where a file is none, `E-IO-…` where a store fails.
    """
    classes, files, candidates = ClassNames(), dict[str, _File](), Candidates()
    statistics, records = StatisticsSum(), 0
    for name, uri in zip(short_names(uris), uris, strict=True):
        scan = scan_file(uri, access, None, classes)
        candidates.add("", uri, scan.statistics.samples)
        statistics.add(scan.statistics)
        files[uri] = _File(_facts(name, scan), scan.roles, scan.kinds, scan.notes)
        records += scan.statistics.records
        seen(len(files), records)
    found = statistics.total()
    each = max(len(file.roles.images) + len(file.roles.pixels) for file in files.values())
    picks = pick_samples(candidates.kept, found.class_records, MAX_PICTURES // max(1, each))
    legend = Legend(classes.by_label, by_name=classes.labels)
    pictures = _pictures(picks, files, legend, access, most_bytes_each(len(picks), each))
    told = [note for file in files.values() for note in file.notes]
    return Report(
        title=_title(uris),
        layout="",
        splits=[SplitReport("", found, [file.facts for file in files.values()])],
        class_names=dict(sorted(classes.by_label.items())),
        pictures=pictures.pictures,
        features=list(_features(files.values())),
        sources=[counted(len(files), "TFRecord file")],
        versions=program_versions(),
        notes=[*notes, *_first(told), *pictures.notes],
    )


def short_names(uris: Sequence[str]) -> list[str]:
    """Return the files' names, without the folders that all are in.

    >>> short_names(["gs://b/a/x.tfrecord", "gs://b/c/x.tfrecord"]), short_names(["/a/x.tfrecord"])
    (['a/x.tfrecord', 'c/x.tfrecord'], ['x.tfrecord'])
    """
    if len(uris) == 1:
        return [posixpath.basename(uris[0])]
    folders = zip(*(posixpath.dirname(uri).split("/") for uri in uris), strict=False)
    shared = len(list(takewhile(lambda parts: len(set(parts)) == 1, folders)))
    return ["/".join(uri.split("/")[shared:]) for uri in uris]


def _title(uris: Sequence[str]) -> str:
    names = short_names(uris)
    return names[0] if len(names) == 1 else f"{names[0]} and {counted(len(names) - 1, 'other')}"


def _facts(name: str, scan: Scan) -> ShardFacts:
    found = scan.statistics
    return ShardFacts(name, found.records, scan.bytes, found.runs, found.expected_runs)


def _first(notes: Sequence[str]) -> list[str]:
    left = len(notes) - _MAX_NOTES
    return [*notes[:_MAX_NOTES], *([f"{left} more like these are not told"] if left > 0 else [])]


def _pictures(
    picks: Sequence[PickedRecord],
    files: Mapping[str, _File],
    legend: Legend,
    access: Access,
    most_bytes: int,
) -> Pictures:
    """Return the pictures in the order of the picks, whichever way their files are read."""
    found = {picked.file: find_uri(picked.file, access) for picked in picks}

    def draw(item: PickedRecord | ReadRecord) -> Drawn:
        picked = item if isinstance(item, PickedRecord) else item.picked
        storage, entry = found[picked.file]
        read = item
        if isinstance(read, PickedRecord):
            read = read_record(storage, entry, picked._replace(file=entry.name))
        file = files[picked.file]
        named = read._replace(picked=picked._replace(file=file.facts.file))
        return draw_record(named, file.roles, legend, most_bytes)

    is_near = all(map(is_local, found))
    made = make_pictures(_to_draw(picks, found), draw, num_threads(local=is_near))
    places = {(files[p.file].facts.file, p.number): place for place, p in enumerate(picks)}
    made.pictures.sort(key=lambda shown: places[shown.file, shown.number])
    return made


def _to_draw(
    picks: Sequence[PickedRecord], found: Mapping[str, tuple[Storage, Entry]]
) -> Iterator[PickedRecord | ReadRecord]:
    """Yield the records of compressed files as read, one behind the other; of others the places."""
    for uri, (storage, entry) in found.items():
        own = [picked for picked in picks if picked.file == uri]
        opened = open_records(storage, entry)
        yield from read_compressed(opened.read, own) if opened.compression else own


def _features(files: Iterable[_File]) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row a feature of any of the files."""
    kinds: dict[str, Kind] = {}
    meanings: dict[str, str] = {}
    for file in files:
        for key, kind in file.kinds.items():
            kinds.setdefault(key, kind)
        meanings |= _meanings(file.roles)
    for key, kind in sorted(kinds.items()):
        yield key, kind.value, "", meanings.get(key, "")


def _meanings(roles: Roles) -> dict[str, str]:
    """Return what features were taken for, by key."""
    meanings = dict.fromkeys(roles.images, "picture")
    meanings |= dict.fromkeys(roles.pixels, "picture, of plain values or a tensor")
    for objects in roles.objects:
        meanings |= dict.fromkeys(objects.boxes, f"boxes, as {objects.form.value}")
        meanings |= {objects.labels: "classes of objects", objects.texts: "their names"}
    meanings |= {roles.class_label: "class", roles.class_text: "class's name"}
    if roles.keypoints is not None:
        meanings |= {roles.keypoints.x: "keypoints", roles.keypoints.y: "keypoints"}
    meanings |= {roles.masks: "masks of objects"}
    meanings |= dict.fromkeys(roles.segmentations, "mask of all classes")
    return meanings | dict.fromkeys(roles.captions, "caption")
