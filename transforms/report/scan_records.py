"""Statistics of shards by reading them: of strangers' files, and of receipts that have none.

Of a data set's shard they are those of its receipt, keys and labels being taken from its index.
Images are walked through by their headers and never decoded, and nothing that a record holds ends
the scan: what does not count is told in a note. A record at a time is in memory.
"""

import itertools
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schemas.faults import fault_line, printable
from schemas.feature_roles import Roles, roles_of_keys, roles_of_spec
from schemas.features import Kind
from schemas.inferred import FeatureFacts, InferredSchema
from schemas.manifest import Manifest, index_names_of, spec_of
from schemas.parse_example import Sequences
from schemas.statistics import MAX_CLASSES, Statistics
from schemas.statistics_collector import RecordValues, StatisticsCollector
from schemas.tfrecord import FRAME_BYTES
from transforms.quantities import counted
from transforms.storage import Access, Storage, find_uri, join_uri, open_storage
from transforms.stored_pictures import image_values, stored_pictures
from transforms.verify.files import OpenedRecords, looks_like_image, open_records, parse_record
from transforms.walk_frames import BadFrame, Record, walk_frames

if TYPE_CHECKING:
    from transforms.shard_index import IndexRow

MAX_HEAD_RECORDS = 64
MAX_HEAD_BYTES = 32 << 20
"""Of the records of a file whose features are looked at to tell their roles."""

_ANY_FORMAT = ""
_DAMAGED = ("damaged record", "")


@dataclass
class ClassNames:
    """What strangers call their classes, over all files that are read together.

    Attributes:
        by_label: names by label id, as records tell of both.
        labels: ids by name, given in the order of appearance where records hold names alone.
    """

    by_label: dict[int, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)

    def learn(self, labels: Sequence[int], texts: Sequence[bytes]) -> None:
        """Note the names of classes that a record holds both id and name of."""
        if len(labels) != len(texts) or len(self.by_label) >= MAX_CLASSES:
            return
        for label, text in zip(labels, texts, strict=True):
            if label not in self.by_label:
                self.by_label[label] = _name(text)

    def labels_of(self, texts: Iterable[bytes]) -> list[int]:
        """Return the ids of classes that records tell by name, those beyond the limit left out."""
        found = []
        for name in map(_name, texts):
            if name not in self.labels and len(self.labels) < MAX_CLASSES:
                self.labels[name] = len(self.labels)
                self.by_label[self.labels[name]] = name
            if name in self.labels:
                found.append(self.labels[name])
        return found


@dataclass(frozen=True)
class Scan:
    """What was found in a file.

    Attributes:
        statistics: of its records.
        roles: of their features.
        bytes: of the file.
        kinds: of the features by key, as far as the first records tell; none of declared ones.
        notes: what is not counted and why, a line each.
    """

    statistics: Statistics
    roles: Roles
    bytes: int
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    notes: Sequence[str] = ()


def scan_file(
    uri: str, access: Access, roles: Roles | None = None, names: ClassNames | None = None
) -> Scan:
    """Return the statistics of a TFRecord file of any origin, compressed or not.

    Args:
        uri: its path or URI.
        access: how its store is reached.
        roles: of its features; None for those that its first records and their keys tell.
        names: of classes; grows by what the file tells.

    Raises:
        RuntimeError: `E-ARG` where there is no such file, `E-IO-…` where the store fails.
    """
    storage, file = find_uri(uri, access)
    scanning = _Scanning(ClassNames() if names is None else names)
    records = scanning.walk(open_records(storage, file))
    kinds: Mapping[str, Kind] = {}
    if roles is None:
        head = list(_head(records))
        kinds, images = _infer(record for _, record in head)
        roles = roles_of_keys(kinds, images)
        records = itertools.chain(head, records)
    collector, name = StatisticsCollector("", roles), printable(file.name.rpartition("/")[2])
    for frame, found in records:
        key = f"{name}-{frame.number}"
        scanning.add(collector, frame, found, key, scanning.labels(roles, found.context))
    return Scan(
        collector.statistics(), roles, file.size_bytes, kinds, scanning.notes(uri, collector)
    )


def scan_shard(root: str, access: Access, manifest: Manifest, place: int) -> Scan:
    """Return the statistics of a shard of a data set, as its receipt has them.

    Args:
        root: path or URI of the data set.
        access: how its store is reached.
        manifest: of the data set.
        place: of the shard among the manifest's.

    Raises:
        RuntimeError: `E-VER-MISSING` where there is no such shard, `E-IO-…` where the store fails.
    """
    entry = manifest.shards[place]
    storage = open_storage(root, access)
    file = storage.stat(entry.file)
    if file is None or file.kind != "file":
        what, remedy = "is not there, or no file", "look with beam-tfrec verify"
        where = join_uri(root, entry.file)
        raise RuntimeError(fault_line("E-VER-MISSING", where, what, remedy))
    scanning = _Scanning(_names_of(manifest))
    rows = scanning.rows(storage, index_names_of(manifest)[place][0])
    roles = roles_of_spec(spec_of(manifest))
    collector = StatisticsCollector(entry.split, roles)
    for frame, found in scanning.walk(open_records(storage, file), sorted(rows)):
        row = rows.get(frame.offset)
        if row is None:
            key, labels = f"{entry.file}-{frame.number}", scanning.labels(roles, found.context)
        else:
            key, labels = row.key, row.labels
        scanning.add(collector, frame, found, key, labels)
    notes = scanning.notes(entry.file, collector)
    return Scan(collector.statistics(), roles, file.size_bytes, notes=notes)


def _names_of(manifest: Manifest) -> ClassNames:
    labels = manifest.plan.labels
    names = ClassNames({label.id: label.name for label in labels})
    names.labels = {name: label for label, name in names.by_label.items()}
    return names


def _name(text: bytes) -> str:
    return text.decode(errors="replace")[:200]


_Found = tuple[Record, Sequences]


class _Scanning:
    """A file that is read, and what of it does not count."""

    def __init__(self, names: ClassNames) -> None:
        self._names = names
        self._uncounted: Counter[tuple[str, str]] = Counter()  # by a noun, and what is wrong
        self._damage = ""  # of the last damaged record
        self._told: list[str] = []

    def rows(self, storage: Storage, name: str) -> dict[int, "IndexRow"]:
        """Return the rows of an index by the offsets of their records; none where it is damaged."""
        from transforms.shard_index import index_from_parquet  # pyarrow takes 0.2 s

        entry = storage.stat(name)
        try:
            if entry is None or entry.kind != "file":
                raise ValueError("is not there")
            return {row.offset: row for row in index_from_parquet(storage.read(name, entry))}
        except ValueError:
            self._told.append("its index is damaged or missing, and tells of no keys")
            return {}

    def walk(self, opened: OpenedRecords, starts: Sequence[int] = ()) -> Iterator[_Found]:
        """Yield the records that are Examples or SequenceExamples."""
        try:
            for frame in walk_frames(opened.read, opened.size_bytes, starts=starts):
                if isinstance(frame, BadFrame):
                    self._uncounted[_DAMAGED] += 1
                    self._damage = f"; record {frame.number} at byte {frame.offset}: {frame.what}"
                elif frame.data is None:
                    self._uncounted["record", " too large to be read"] += 1
                elif (found := parse_record(frame.data)) is None:
                    self._uncounted["record", " without an Example"] += 1
                else:
                    yield frame, found
        except zlib.error:
            what = f"its {opened.compression} data is damaged or cut off, and not read to its end"
            self._told.append(what)

    def labels(self, roles: Roles, values: RecordValues) -> list[int]:
        """Return the classes of a record that tells them by name alone, and learn of names."""
        objects = roles.objects[0] if roles.objects else None
        labels, texts = roles.class_label, roles.class_text
        if objects is not None:
            labels, texts = objects.labels, objects.texts
        if not texts:
            return []
        kind, named = values.get(texts, (None, ()))
        if kind is not Kind.BYTES:
            return []
        if not labels:
            return self._names.labels_of(named)
        kind, ids = values.get(labels, (None, ()))
        if kind is Kind.INT64:
            self._names.learn(ids, named)
        return []

    def add(
        self,
        collector: StatisticsCollector,
        frame: Record,
        found: Sequences,
        key: str,
        labels: Sequence[int],
    ) -> None:
        """Add a record."""
        values, roles = found.context, collector.roles
        pictures = stored_pictures(values, roles)
        damaged = sum(1 for value in image_values(values, roles) if value) - len(pictures)
        if damaged:
            self._uncounted["image", " that cannot be read"] += damaged
        collector.add(values, pictures, labels, (frame.offset, frame.size + FRAME_BYTES, key))

    def notes(self, where: str, collector: StatisticsCollector) -> list[str]:
        """Return what does not count, a line each."""
        uncounted = self._uncounted + Counter(
            {
                ("object", " with a box without an area"): collector.odd_boxes,
                ("record", " with boxes that lack edges or numbers"): collector.odd_records,
            }
        )
        found = [
            f"not counted: {counted(n, noun)}{wrong}{self._damage if key == _DAMAGED else ''}"
            for key, n in sorted(uncounted.items())
            for noun, wrong in [key]
        ]
        return [f"{printable(where)}: {what}" for what in (*found, *self._told)]


def _head(records: Iterator[_Found]) -> Iterator[_Found]:
    """Yield the first records, of which not too much is held."""
    left_bytes = MAX_HEAD_BYTES
    for record in itertools.islice(records, MAX_HEAD_RECORDS):
        yield record
        left_bytes -= record[0].size
        if left_bytes <= 0:
            break


def _infer(records: Iterable[Sequences]) -> tuple[dict[str, Kind], set[str]]:
    """Return the kinds of features, each the most frequent one, and which are images."""
    schema = InferredSchema()
    for record in records:
        schema.add(Sequences(record.context, {}), ("", 0, 0))
        for key, values in record.context.items():
            facts = schema.features.get(key)
            if facts is not None and values.kind is Kind.BYTES:
                _add_images(facts, values.values)
    kinds: dict[str, Kind] = {}
    for key, facts in schema.features.items():
        of_kind = {
            kind: facts.kinds[kind.value].records for kind in Kind if kind.value in facts.kinds
        }
        if of_kind:
            kinds[key] = max(of_kind, key=of_kind.__getitem__)
    return kinds, {key for key, facts in schema.features.items() if facts.is_image()}


def _add_images(facts: FeatureFacts, values: Iterable[bytes]) -> None:
    for value in values:
        if looks_like_image(value):
            facts.images[_ANY_FORMAT] = facts.images.get(_ANY_FORMAT, 0) + 1
        elif value:
            facts.no_images += 1
