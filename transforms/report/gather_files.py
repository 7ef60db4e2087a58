"""Gather the report of TFRecord files of any origin.

Features get their roles from their keys and from the first records. Then each file is read once.
Damaged records are counted in notes. Pictures are read last; compressed files have none, since they
have no random access.
"""

import itertools
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from beam_tfrec.schemas.faults import counted, printable
from beam_tfrec.schemas.features import Kind, Roles, roles_of_keys
from beam_tfrec.schemas.manifest import Annotations, SplitSummary
from beam_tfrec.schemas.parse_example import Sequences, Values, parse_record
from beam_tfrec.schemas.tfrecord import framing_bytes
from beam_tfrec.transforms.build_records import record_facts
from beam_tfrec.transforms.images.check_images import looks_like_image
from beam_tfrec.transforms.report import MAX_PICTURES, Report, gather
from beam_tfrec.transforms.report.pictures import Legend, labels_at, pictures_each, texts_at
from beam_tfrec.transforms.shard_index import IndexRow, table_of_rows
from beam_tfrec.transforms.storage import Access, Entry, Storage, find_uri
from beam_tfrec.transforms.walk_frames import BadFrame, Record, open_records

MAX_HEAD_RECORDS = 64
"""Number of records at the start of a file that decide the roles of its features."""

MAX_CLASSES = 65_536

_ROWS_AT_ONCE = 100_000


@dataclass
class _File:
    """A file that is being read.

    Attributes:
        name: name in the report.
        storage: storage of the file.
        entry: entry of the file in a listing.
        compression: name of the compression; empty for none.
        kinds: kinds of features, by key.
        roles: roles of features.
        notes: number of ignored parts, by noun and fault.
    """

    name: str
    storage: Storage
    entry: Entry
    compression: str = ""
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    roles: Roles = field(default_factory=Roles)
    notes: Counter[tuple[str, str]] = field(default_factory=Counter)


def report_of_files(uris: Sequence[str], access: Access, notes: Sequence[str] = ()) -> Report:
    """Return the report of TFRecord files, as one split without a name.

    Args:
        uris: paths or URIs of the files.
        access: settings for reading from stores.
        notes: more notes for the report.

    Raises:
        RuntimeError: `E-ARG`: a file does not exist. `E-IO-…`: a store fails.
    """
    names, legend = short_names(uris), Legend({}, {}, {})
    sums = gather.IndexSums("", _summary(0, len(uris), 0))
    files: dict[str, _File] = {}
    for place, (name, uri) in enumerate(zip(names, uris, strict=True)):
        file = files[name] = _File(name, *find_uri(uri, access))
        _add_file(file, place, sums, legend)
    each = max(pictures_each(file.roles) for file in files.values())
    picked = gather.pick_records([sums], MAX_PICTURES // each)
    samples = [
        gather.Sample(record, file.storage, file.entry, file.roles)
        for record in picked
        if not (file := files[record.file]).compression
    ]
    pictures = gather.make_pictures(samples, legend)
    kinds = {key: kind for file in files.values() for key, kind in file.kinds.items()}
    size_bytes = sum(file.entry.size_bytes for file in files.values())
    return Report(
        title=names[0] if len(names) == 1 else f"{names[0]} and {counted(len(names) - 1, 'other')}",
        layout="",
        splits=[replace(sums.report, summary=_summary(sums.records, len(files), size_bytes))],
        class_names=dict(sorted(legend.names.items())),
        pictures=pictures.pictures,
        features=[(key, kind.value, "", "") for key, kind in sorted(kinds.items())],
        sources=[counted(len(files), "TFRecord file")],
        versions=gather.program_versions(),
        notes=[*notes, *gather.first_notes(list(_notes(files.values()))), *pictures.notes],
    )


def _summary(records: int, shards: int, size_bytes: int) -> SplitSummary:
    """Return the totals of files without a manifest."""
    none = Annotations(0, 0, {}, 0, 0)
    return SplitSummary(0, 0, 0, 0, 0, records, shards, size_bytes, none, 0, {}, {}, {})


def short_names(uris: Sequence[str]) -> list[str]:
    """Return the names of files without the folders that all share.

    >>> short_names(["gs://b/a/x.tfrecord", "gs://b/c/x.tfrecord"]), short_names(["/a/x.tfrecord"])
    (['a/x.tfrecord', 'c/x.tfrecord'], ['x.tfrecord'])
    """
    folders = [uri[: uri.rfind("/") + 1] for uri in uris]
    shared = posixpath.commonprefix(folders).rfind("/") + 1
    return [uri[shared:] for uri in uris]


def _add_file(file: _File, place: int, sums: gather.IndexSums, legend: Legend) -> None:
    """Read a file and add its records, in parts to bound memory."""
    file.kinds, file.roles = _roles(itertools.islice(_records(file), MAX_HEAD_RECORDS))
    file.notes.clear()  # all records are read again and counted
    rows = ((frame.number, _row(file, frame, found, legend)) for frame, found in _records(file))
    while part := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        table = table_of_rows([row for _, row in part])
        sums.add(place, file.name, table, [number for number, _ in part])


def _row(file: _File, record: Record, found: Sequences, legend: Legend) -> IndexRow:
    facts = record_facts(found.context, file.roles)
    if facts[0] is None and any(found.context.get(key) for key in file.roles.images):
        file.notes["image", " that cannot be read"] += 1
    labels = _labels(found.context, file.roles, legend)
    key = f"{printable(file.name.rpartition('/')[2])}-{record.number}"
    return IndexRow(key, record.offset, record.size + framing_bytes(file.name), [], labels, *facts)


def _labels(values: Mapping[str, Values], roles: Roles, legend: Legend) -> list[int]:
    """Return the labels of a record, and learn their names; names without labels get numbers."""
    keys = roles.class_keys
    names = texts_at(values, keys[1])
    if not keys[0] and len(legend.by_name) < MAX_CLASSES:
        for name in names:
            legend.by_name.setdefault(name, len(legend.by_name))
    labels = labels_at(values, *keys, legend)
    if len(labels) == len(names) and len(legend.names) < MAX_CLASSES:
        for label, name in zip(labels, names, strict=True):
            legend.names.setdefault(label, name)
    return labels


def _records(file: _File) -> Iterator[tuple[Record, Sequences]]:
    """Yield the records that are Examples or SequenceExamples; count the others."""
    frames, file.compression = open_records(file.storage, file.entry)
    for frame in frames:
        if isinstance(frame, BadFrame):
            file.notes["damaged record", ""] += 1
        elif frame.data is None:
            file.notes["record", " too large to be read"] += 1
        elif (found := parse_record(frame.data)) is None:
            file.notes["record", " without an Example"] += 1
        else:
            yield frame, found


def _roles(records: Iterable[tuple[Record, Sequences]]) -> tuple[dict[str, Kind], Roles]:
    """Return the most frequent kind of each feature, and the roles of features."""
    kinds: dict[str, Counter[Kind]] = {}
    images = Counter[str]()
    for _, record in records:
        for key, values in record.context.items():
            if values.kind is not None:
                kinds.setdefault(key, Counter())[values.kind] += 1
            if values.kind is Kind.BYTES:
                for value in filter(None, values.values):
                    images[key] += 1 if looks_like_image(value) else -1
    found = {key: counts.most_common(1)[0][0] for key, counts in kinds.items()}
    return found, roles_of_keys(found, {key for key, balance in images.items() if balance > 0})


def _notes(files: Iterable[_File]) -> Iterator[str]:
    for file in files:
        for (noun, rest), count in sorted(file.notes.items()):
            yield f"{printable(file.name)}: not counted: {counted(count, noun)}{rest}"
        if file.compression:
            yield f"{printable(file.name)}: no pictures, since it is {file.compression} compressed"
