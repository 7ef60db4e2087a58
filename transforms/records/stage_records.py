"""Stage records: write them to TFRecord files, and copy them from there.

Records of a program, and those of compressed files, are in no file of which a range could be read.
`RecordStager` writes them below a folder of the run (`Staging`). That folder is deleted after the
commit. A killed run leaves it behind, and the next run with the same output deletes it.
"""

import contextlib
import logging
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import google_crc32c
import msgspec
from apache_beam.transforms.window import GlobalWindows

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.manifest import Manifest
from beam_tfrec.schemas.parse_example import parse_record
from beam_tfrec.schemas.samples import Blob, Sample, pack, records_root
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.schemas.tfrecord import FRAME_BYTES, frame_record
from beam_tfrec.transforms.records.describe_records import FeatureNotes, bits_in, row_of, text_in
from beam_tfrec.transforms.sources.read_samples import Item
from beam_tfrec.transforms.storage import Access, Spool, is_local, join_uri, open_storage
from beam_tfrec.transforms.walk_frames import MAX_RECORD_BYTES

STAGED_ROOT = records_root("", 0)
"""Name of the root of staged records; no split has an empty name."""

_RUN = re.compile("[0-9a-f]{32}")
_LOG = logging.getLogger(__name__)
_STAGE = "stage_records"
_MAX_FILE_RECORDS = 32_768  # their samples wait in memory, about 30 MB


@dataclass(frozen=True)
class Staging:
    """Place of a run's staged records.

    Attributes:
        folder: URI of the folder that all runs with one output share.
        run: name of the run's own folder in it, 32 hex digits.
        access: credentials and limits for stores.
        file_bytes: size of a file from which on the next one is begun.
    """

    folder: str
    run: str
    access: Access
    file_bytes: int = 256 << 20

    @property
    def uri(self) -> str:
        """URI of the run's own folder."""
        return join_uri(self.folder, self.run)

    def delete(self, manifest: Manifest) -> Manifest:
        """Delete the run's files, as its data set is committed; return the manifest."""
        self._delete([self.run])
        if is_local(self.folder):
            with contextlib.suppress(OSError):  # another run uses it
                os.rmdir(self.folder.removeprefix("file://"))
        return manifest

    def delete_others(self) -> None:
        """Delete the files of earlier runs, which have died; other folders are not ours."""
        names = (entry.name for entry in open_storage(self.folder, self.access).list())
        found = {name.partition("/")[0] for name in names} - {self.run}
        self._delete(filter(_RUN.fullmatch, found))

    def _delete(self, runs: Iterable[str]) -> None:
        """Delete folders of runs. A failure is no fault, since the data set does not need them."""
        storage = open_storage(self.folder, self.access)
        for run in runs:
            try:
                storage.delete_folder(f"{run}/")
            except RuntimeError as error:
                _LOG.warning("%s is left, delete it: %s", join_uri(self.folder, run), error)


class RecordStager:
    """Writes records to files of its own. A file's samples are yielded once it is whole."""

    def __init__(self, staging: Staging) -> None:
        """Prepare without writing."""
        self._file_bytes = staging.file_bytes
        self._storage = open_storage(staging.uri, staging.access)
        self._spool: Spool | None = None
        self._waiting: list[tuple[Sample, int, int]] = []
        self._bytes = 0

    def add(self, sample: Sample, record: bytes) -> Iterator[Sample]:
        """Append a sample's record; yield the samples of a file that is full."""
        if self._spool is None:
            self._storage.probe()
            self._spool = self._storage.spool()
        self._spool.write(frame_record([record]))
        size = len(record) + FRAME_BYTES
        self._waiting.append((sample, self._bytes, size))
        self._bytes += size
        if self._bytes >= self._file_bytes or len(self._waiting) >= _MAX_FILE_RECORDS:
            yield from self.flush()

    def flush(self) -> Iterator[Sample]:
        """Publish the file, if there is one, and yield its samples with their places."""
        if self._spool is None:
            return
        name = f"{uuid.uuid4().hex}.tfrecord"  # an attempt never meets the files of another
        with contextlib.closing(self._spool) as spool:
            spool.publish(name)
        entry = self._storage.stat(name)
        if entry is None:
            raise self._storage.changed(name, "not there")
        waiting, self._waiting = self._waiting, []
        self._spool, self._bytes = None, 0
        file = STAGED_ROOT, name, entry.size_bytes, entry.pin, entry.crc32c
        for sample, offset, size in waiting:
            yield msgspec.structs.replace(sample, blobs=(Blob(*file, offset, size),))


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
        self._stager = RecordStager(self._staging)
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
            yield from self._stager.add(Sample(split, key, 0, (), pack(row)), data)

    def finish_bundle(self) -> Iterator:
        """Publish the last file, and yield its samples and the notes."""
        for sample in self._stager.flush():
            yield GlobalWindows.windowed_value_at_end_of_window(sample)
        for split, notes in self._notes.items():
            yield GlobalWindows.windowed_value_at_end_of_window(notes.note(split))

    def _reject(self, key: str, code: str, what: str) -> Rejected:
        split = self._splitting.split_of_other(self._split, key)
        return Rejected(code=code, stage=_STAGE, split=split, key=key, detail=what)
