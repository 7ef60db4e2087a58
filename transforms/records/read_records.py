"""Samples from records: of TFRecord and ArrayRecord files, of data sets of ours, or of a program.

`select_files` reads the manifest of a listed source, if there is one. `RecordReader`
makes the samples of a file. A sample's blob is the range of its framed record.

The records of a data set are known from its indexes. Files of other programs are read once to find
their records, and a second time to copy these. Records of a program are staged (`StageExamples`).
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import google_crc32c
import msgspec
from apache_beam.transforms.window import GlobalWindows

from beam_tfrec.schemas.columns import matches, may_hold
from beam_tfrec.schemas.faults import Rejected, run_fault
from beam_tfrec.schemas.layouts.records import facts_of_data_set, found_of_data_set
from beam_tfrec.schemas.manifest import CONVERSIONS, MANIFEST_NAME, PLAN_NAME, Manifest, ShardEntry
from beam_tfrec.schemas.parse_example import Sequences, parse_record
from beam_tfrec.schemas.samples import Blob, Sample, pack, records_root
from beam_tfrec.schemas.splits import Splitting, split_without_bucket
from beam_tfrec.schemas.tfrecord import FRAME_BYTES, frame_record, is_array_record
from beam_tfrec.transforms.records.choose_records import EVERY_RECORD, Choice
from beam_tfrec.transforms.records.describe_records import RecordNotes, classes_in, describe_record
from beam_tfrec.transforms.shard_index import IndexRow, ReadyRow, ready_row
from beam_tfrec.transforms.sources.listing import HIDDEN, is_folder, why_skipped
from beam_tfrec.transforms.sources.read_samples import Item, SplitTally
from beam_tfrec.transforms.storage import Access, Entry, join_uri, open_storage, read_data_set
from beam_tfrec.transforms.storage.staging import Stager, Staging
from beam_tfrec.transforms.walk_frames import (
    MAX_RECORD_BYTES,
    BadFrame,
    Record,
    is_record_file,
    open_records,
)

STAGE = "read_records"
STAGED_RECORD = Blob(records_root("", 0), "")
"""Blob of a staged record without its place; no split has its root's empty name."""

_RESTORE = "restore it, or run its command again"
_OPAQUE = Sequences({}, {})
_WITHOUT_INDEX = "restore it, or copy the shards to a folder without manifest.json, and give that"
_NUMBER_BITS, _FILE_BITS = 34, 20  # bits of a position: records of a file, files of a source


@dataclass(frozen=True)
class RecordSource:
    """One of the places that the user named.

    Attributes:
        split: split that the user gave it for.
        number: its place among all sources of the split.
        uri: URI of the folder.
        pattern: glob for names below the folder; empty for the whole folder.
        every_split: whether to take all splits of a data set, because they are divided anew.
        prefix: text before file name and number in keys, if the split has several sources.
    """

    split: str
    number: int
    uri: str
    pattern: str = ""
    every_split: bool = False
    prefix: str = ""

    def takes(self, name: str) -> bool:
        """Return whether a file is read as TFRecords, by its name."""
        if self.pattern:
            return matches(name, self.pattern)
        return is_record_file(name) and why_skipped(name) != HIDDEN

    def is_unreadable(self, entry: Entry) -> bool:
        """Return whether an unreadable entry matches the source, or may hold files that match."""
        if entry.kind in ("file", "directory"):
            return False
        if is_folder(entry):
            return why_skipped(entry.name) != HIDDEN and may_hold(entry.name, self.pattern)
        return self.takes(entry.name)


class RecordFile(msgspec.Struct, frozen=True, array_like=True):
    """A TFRecord file.

    Attributes:
        root: name of its root.
        entry: name below the root, size and pin.
        place: its place among all files of the split, for input order.
        shard: its entry in the manifest; None for a file of another program.
        class_ids: ids of the chosen classes in its data set.
        note: features and labels of its data set, in the first file of a data set.
    """

    root: str
    entry: Entry
    place: int = 0
    shard: ShardEntry | None = None
    class_ids: list[int] = []
    note: SplitTally | None = None


def select_files(
    root: str, entries: Iterable[Entry], reader: "RecordReader"
) -> Iterator[RecordFile]:
    """Yield the files of a source in the order of their names, those of a data set first.

    Args:
        root: name of the source's root.
        entries: listing of the source.
        reader: reader of all sources.

    Raises:
        RuntimeError: `E-ARG` when there is no such file, split or class, or the data set is
            unfinished;
            `E-OUT-FOREIGN` or `E-VER-…` when the data set is damaged.
    """
    source = reader.sources[root]
    storage = open_storage(source.uri, reader.access)
    listed = [*entries]
    files = {entry.name: entry for entry in listed if entry.kind == "file"}
    taken = sorted(name for name in files if source.takes(name))
    found: list[RecordFile] = []
    if source.pattern and not taken:
        what, remedy = f"no file matches {source.pattern!r}", "give a quoted glob of TFRecord files"
        raise run_fault("E-ARG", source.uri, what, remedy)
    if MANIFEST_NAME in files or (PLAN_NAME in files and not source.pattern):
        manifest, _ = read_data_set.read_finished(storage, "--records")
        shards = read_data_set.list_shards(storage, manifest, _RESTORE)
        found += _shards_of(manifest, shards, root, reader, taken)
        others = {*taken} - {file.entry.name for file in found}
        taken = sorted(others) if source.pattern else []
    elif not taken:
        remedy = "give a folder, file or quoted glob of TFRecord files"
        raise run_fault("E-ARG", source.uri, "has no TFRecord file", remedy)
    else:
        for entry in filter(source.is_unreadable, listed):
            where, what = join_uri(source.uri, entry.name), f"a {entry.kind}, not a file"
            raise run_fault("E-ARG", where, what, "repair it, or remove it")
    found += [RecordFile(root, files[name]) for name in taken]
    for place, file in enumerate(found, source.number << _FILE_BITS):
        yield msgspec.structs.replace(file, place=place)


def _shards_of(
    manifest: Manifest,
    shards: Iterable[read_data_set.Shard],
    root: str,
    reader: "RecordReader",
    names: Collection[str],
) -> Iterator[RecordFile]:
    """Yield the shards of a data set that a source takes; `names` are those of its files."""
    source = reader.sources[root]

    def takes(shard: ShardEntry) -> bool:
        if source.pattern:
            return shard.file in names
        return source.every_split or shard.split == source.split

    taken = [shard for shard in shards if shard.entry.records and takes(shard.entry)]
    if not (taken or source.pattern or source.every_split):
        buckets = [of for of in manifest.splits if split_without_bucket(of) == source.split != of]
        if buckets or source.split not in manifest.splits:
            named = " ".join(f"{split}={source.uri}" for split in buckets or manifest.splits)
            what = f"has no records of split {source.split}"
            raise run_fault("E-ARG", source.uri, what, f"give {named}")
    class_ids = {label.name: label.id for label in manifest.plan.labels}
    if unknown := sorted({*reader.choice.classes} - class_ids.keys()):
        there = ", ".join([*class_ids][:20]) or "no classes"
        raise run_fault("E-ARG", source.uri, f"has no class {unknown[0]!r}", f"it has {there}")
    chosen = [class_ids[name] for name in reader.choice.classes]
    records = sum(shard.entry.records for shard in taken)
    repairs = Counter[str]()
    for split in {shard.entry.split for shard in taken}:
        repairs.update(manifest.splits[split].repairs)
    note = SplitTally(
        reader.splitting.split_of_file(source.split, root),
        found=found_of_data_set(manifest.layout, manifest.plan.labels),
        columns=facts_of_data_set(manifest.features, records),
        rows=records,
        labels=manifest.plan.labels,
        repairs={name: repairs[name] for name in sorted(CONVERSIONS) if repairs[name]},
    )
    for number, (shard, file) in enumerate(taken):
        yield RecordFile(root, file, 0, shard, chosen, None if number else note)


@dataclass(frozen=True)
class RecordReader:
    """Makes the samples of a file's records.

    Attributes:
        splitting: rule that decides the split of a record.
        sources: sources by root name.
        access: credentials and limits for stores.
        key_feature: feature with the records' keys; empty for the keys of the index, or else for
            file name and number.
        choice: which records to copy.
        parses: whether records are Examples. Others are not parsed, and have no features.
        staging: place of the records of compressed files; None to write none, for a plan.
    """

    splitting: Splitting
    sources: Mapping[str, RecordSource]
    access: Access
    key_feature: str = ""
    choice: Choice = EVERY_RECORD
    parses: bool = True
    staging: Staging | None = None

    def __call__(self, file: RecordFile) -> Iterator[Item]:
        """Yield a sample or a reject for every record, then notes about the rest and the features.

        Raises:
            RuntimeError: `E-SRC-SPLIT` when a record has no split; `E-VER-INDEX` when an index is
                damaged; `E-SRC-DAMAGED` when the rest of a file is lost; or a storage fault.
        """
        left_out: Counter[tuple[str, str]] = Counter()
        notes = defaultdict[str, RecordNotes](RecordNotes)
        note = file.note
        for item in self._items(file, notes):
            if note is not None:  # for a split with records, since empty ones may be left out
                yield msgspec.structs.replace(note, split=item.split)
                note = None
            if isinstance(item, _LeftOut):
                left_out[item.split, item.why] += 1
            else:
                yield item
        if note is not None:
            yield note
        for (split, why), count in left_out.items():
            yield SplitTally(split, listed=count, skipped={why: count})
        for split, of_split in notes.items():
            yield of_split.tally(split)

    def _items(
        self, file: RecordFile, notes: dict[str, RecordNotes]
    ) -> Iterator["Sample | Rejected | _LeftOut"]:
        storage = open_storage(self.sources[file.root].uri, self.access)
        rows: list[IndexRow] = []
        if file.shard:
            rows = read_data_set.read_rows(storage, file.shard, _WITHOUT_INDEX)
        is_array = is_array_record(file.entry.name)
        from_index = rows and not (self.key_feature or self.splitting.fields or is_array)
        if from_index and all(row.crc32c is not None for row in rows):
            for number, row in enumerate(rows):
                known = Record(number, row.offset, row.size - FRAME_BYTES, None, row.crc32c or 0)
                yield self._sample(file, row.key, known, ready_row(row, known.crc32c), _OPAQUE)
            return
        by_offset = {row.offset: row for row in rows}
        walk, compression = open_records(storage, file.entry, sorted(by_offset))
        has_ranges = not (compression or is_array)
        stager = Stager(self.staging) if self.staging and not has_ranges else None
        for found in walk:
            item = self._read(file, found, by_offset.pop(found.offset, None), notes)
            if stager and isinstance(item, Sample) and isinstance(found, Record):
                framed = frame_record([found.data or b""])
                yield from stager.add(item, STAGED_RECORD, framed)
            else:
                yield item
        if stager:
            yield from stager.flush()
        for lost in by_offset.values():
            at = "is number" if is_array else "begins at byte"
            what = f"no record {at} {lost.offset}, where the index has one"
            yield self._reject(file, lost.key, "E-REC-DAMAGED", what)

    def _read(
        self,
        file: RecordFile,
        found: Record | BadFrame,
        row: IndexRow | None,
        notes: dict[str, RecordNotes],
    ) -> "Sample | Rejected | _LeftOut":
        """Return the sample or the reject of a record, and add its features to the notes."""
        source = self.sources[file.root]
        key = f"{source.prefix}{file.entry.name}:{found.number}" if row is None else row.key
        where = f"record {found.number}"
        if not is_array_record(file.entry.name):
            where += f" at byte {found.offset}"
        if isinstance(found, BadFrame):
            if found.code == "E-VER-FRAME" and not (file.shard or found.is_last):
                what, remedy = f"{where}: {found.what}", "restore it, or leave it out of --records"
                uri = join_uri(source.uri, file.entry.name)
                raise run_fault("E-SRC-DAMAGED", uri, what, remedy)
            return self._reject(file, key, "E-REC-DAMAGED", f"{where}: {found.what}")
        if found.data is None:
            return self._reject(file, key, "E-EX-TOO-LARGE", f"{where}: {found.size} bytes")
        if file.shard and (row is None or row.crc32c not in (None, found.crc32c)):
            return self._reject(file, key, "E-REC-DAMAGED", f"{where} differs from its index")
        record = _OPAQUE
        if row is None or self.key_feature or self.splitting.fields:
            parsed = parse_record(found.data) if self.parses else _OPAQUE
            if parsed is None:
                what = f"{where}: {found.size} bytes of another kind (see --record_type bytes)"
                return self._reject(file, key, "E-REC-EXAMPLE", what)
            record = parsed
            if self.key_feature:
                given = record.text(self.key_feature)
                if not given:
                    what = f"{where} has no single value in {self.key_feature!r}"
                    return self._reject(file, key, "E-REC-KEY", what)
                key = given
        if row is not None:
            return self._sample(file, key, found, ready_row(row, found.crc32c), record)
        copied, kinds, named = describe_record(record, found.data, found.crc32c, file.entry.name)
        sample = self._sample(file, key, found, copied, record)
        if isinstance(sample, Sample):
            notes[sample.split].add_record(kinds, named)
        return sample

    def _sample(
        self, file: RecordFile, key: str, found: Record, copied: ReadyRow, record: Sequences
    ) -> "Sample | _LeftOut":
        """Return the sample of a record, or why it is left out."""
        fields = {name: record.text(name) for name in self.splitting.fields.values()}
        where = f"{file.entry.name}, record {found.number}"
        split = self.splitting.split_of(self.sources[file.root].split, key, fields, where)

        def has_class() -> bool:
            if file.shard:
                return not {*file.class_ids}.isdisjoint(copied.labels)
            return not classes_in(record).isdisjoint(self.choice.classes)

        if why := self.choice.why_not(key, has_class, self.access):
            return _LeftOut(split, why)
        of = file.entry
        span = found.offset, found.size + FRAME_BYTES
        blob = Blob(file.root, of.name, of.size_bytes, of.pin, of.crc32c, *span)
        position = file.place << _NUMBER_BITS | found.number
        return Sample(split, key, position, (blob,), pack(copied))

    def _reject(self, file: RecordFile, key: str, code: str, what: str) -> Rejected:
        split = self.splitting.split_of_file(self.sources[file.root].split, key)
        blobs = (Blob(file.root, file.entry.name),)
        return Sample(split, key, -1, blobs, b"").reject(STAGE, code, what)


class _LeftOut(NamedTuple):
    """The split of a record that is not copied, and why."""

    split: str
    why: str


class StageExamples(beam.DoFn):
    """Pairs of a key and an Example -> samples, rejects and notes about features.

    A bundle that is repeated writes other files, and samples of a failed bundle are dropped by the
    runner. So nothing is doubled.
    """

    def __init__(self, split: str, splitting: Splitting, staging: Staging) -> None:
        """Take the split, the rule that may divide it, and the place of records."""
        self._split, self._splitting, self._staging = split, splitting, staging

    def start_bundle(self) -> None:
        """Forget what a failed bundle has left."""
        self._stager = Stager(self._staging)
        self._notes = defaultdict[str, RecordNotes](RecordNotes)

    def process(self, example: tuple[str, Any]) -> Iterator[Item]:
        """Write a record; yield the samples of a file that is full, or a reject."""
        key, value = example
        if not isinstance(key, str):
            raise ValueError(f"a key must be text, got {key!r}: give every record its own text")
        if not isinstance(value, bytes) and not hasattr(value, "SerializeToString"):
            what = f"a protobuf message or its bytes, got {type(value).__name__} for key {key!r}"
            raise ValueError(f"an Example must be {what}: make a tf.train.Example of it")
        # Protobuf orders the map of features differently in every process, unless asked not to.
        data = value if isinstance(value, bytes) else value.SerializeToString(deterministic=True)
        if len(data) > MAX_RECORD_BYTES:
            yield self._reject(key, "E-EX-TOO-LARGE", f"a record of {len(data)} bytes")
        elif (record := parse_record(data)) is None:
            yield self._reject(key, "E-REC-EXAMPLE", f"{len(data)} bytes of another kind")
        else:
            fields = {name: record.text(name) for name in self._splitting.fields.values()}
            split = self._splitting.split_of(self._split, key, fields)
            copied, kinds, named = describe_record(record, data, google_crc32c.value(data), key)
            self._notes[split].add_record(kinds, named)
            sample = Sample(split, key, 0, (), pack(copied))
            yield from self._stager.add(sample, STAGED_RECORD, frame_record([data]))

    def finish_bundle(self) -> Iterator:
        """Publish the last file, and yield its samples and the notes."""
        for sample in self._stager.flush():
            yield GlobalWindows.windowed_value_at_end_of_window(sample)
        for split, notes in self._notes.items():
            yield GlobalWindows.windowed_value_at_end_of_window(notes.tally(split))

    def _reject(self, key: str, code: str, what: str) -> Rejected:
        split = self._splitting.split_of_file(self._split, key)
        return Rejected(code=code, stage="stage_records", split=split, key=key, detail=what)
