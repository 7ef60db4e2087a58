"""Stage the records of a program, so that shards can copy ranges of files."""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import google_crc32c
from apache_beam.transforms.window import GlobalWindows

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.parse_example import parse_record
from beam_tfrec.schemas.samples import Blob, Sample, pack, records_root
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.schemas.tfrecord import frame_record
from beam_tfrec.transforms.records.describe_records import FeatureNotes, bits_in, row_of, text_in
from beam_tfrec.transforms.sources.read_samples import Item
from beam_tfrec.transforms.storage.staging import Stager, Staging
from beam_tfrec.transforms.walk_frames import MAX_RECORD_BYTES

STAGED_RECORD = Blob(records_root("", 0), "")
"""Blob of a staged record without its place; no split has its root's empty name."""

_STAGE = "stage_records"


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
        self._notes: dict[str, FeatureNotes] = {}

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
            fields = {name: text_in(record, name) for name in self._splitting.fields.values()}
            split = self._splitting.split_for(self._split, key, fields)
            bits = bits_in(record)
            self._notes.setdefault(split, FeatureNotes()).add(record, bits)
            row = row_of(record, bits, data, google_crc32c.value(data), key)
            sample = Sample(split, key, 0, (), pack(row))
            yield from self._stager.add(sample, STAGED_RECORD, frame_record([data]))

    def finish_bundle(self) -> Iterator:
        """Publish the last file, and yield its samples and the notes."""
        for sample in self._stager.flush():
            yield GlobalWindows.windowed_value_at_end_of_window(sample)
        for split, notes in self._notes.items():
            yield GlobalWindows.windowed_value_at_end_of_window(notes.note(split))

    def _reject(self, key: str, code: str, what: str) -> Rejected:
        split = self._splitting.split_of_other(self._split, key)
        return Rejected(code=code, stage=_STAGE, split=split, key=key, detail=what)
