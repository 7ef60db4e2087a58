"""Read a split of a data set into a pipeline: a pair of key and record for each record."""

from collections.abc import Iterator
from dataclasses import dataclass

import apache_beam as beam
import msgspec

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.samples import records_root
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.schemas.tfrecord import FrameError, read_frame
from beam_tfrec.transforms.records.read_records import (
    PlanRecords,
    RecordFile,
    RecordSource,
    read_index,
    refused,
)
from beam_tfrec.transforms.shard_index import IndexRow
from beam_tfrec.transforms.shuffle.elements import is_in_process
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, Entry, join_uri, open_storage

_RANGE_BYTES = 16 << 20
_RESTORE = "restore the shard, or delete it and run its command again"


class ShardRange(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive records of a shard, which are read with one request.

    Attributes:
        file: entry of the shard in the listing.
        first: number of the first record in the shard, from 0.
        start: offset of the first record's frame.
        records: key of each record, and its size with framing.
    """

    file: Entry
    first: int
    start: int
    records: list[tuple[str, int]]


def find_ranges(shard: RecordFile, uri: str, access: Access) -> Iterator[ShardRange]:
    """Divide a shard into ranges of 16 MiB; a larger record is a range of its own.

    Raises:
        RuntimeError: `E-ARG` when the file is not of a data set; `E-VER-INDEX` when the index is
            damaged, or does not cover the shard.
    """
    if not shard.index:
        raise refused(uri, "is not a data set of beam-tfrec", "give the folder of a manifest.json")
    rows = read_index(open_storage(uri, access), shard)
    held: list[IndexRow] = []
    end = size = 0
    for number, row in enumerate(rows):
        if row.offset != end:
            break
        if held and size + row.size > _RANGE_BYTES:
            yield _range_of(shard, number, held)
            held, size = [], 0
        held.append(row)
        size += row.size
        end += row.size
    if end != shard.entry.size_bytes:
        what = f"its records end at byte {end}, the shard at {shard.entry.size_bytes}"
        raise RuntimeError(fault_line("E-VER-INDEX", join_uri(uri, shard.index), what, _RESTORE))
    if held:
        yield _range_of(shard, len(rows), held)


def read_range(part: ShardRange, uri: str, access: Access) -> Iterator[tuple[str, bytes]]:
    """Yield key and record of each record of a range.

    Raises:
        RuntimeError: `E-VER-FRAME` or `E-VER-CRC` when a record is damaged; `E-SRC-CHANGED` when
            the shard has changed; or a storage fault.
    """
    size = sum(size for _, size in part.records)
    data = open_storage(uri, access).read(
        part.file.name, part.file, (part.start, part.start + size)
    )
    at = 0
    for number, (key, size) in enumerate(part.records, part.first):
        try:
            yield key, read_frame(data, at, at + size)
        except FrameError as error:
            what = f"record {number} (key {key}) at byte {part.start + at}: {error}"
            where = join_uri(uri, part.file.name)
            raise RuntimeError(fault_line(error.code, where, what, _RESTORE)) from None
        at += size


def _range_of(shard: RecordFile, end: int, rows: list[IndexRow]) -> ShardRange:
    records = [(row.key, row.size) for row in rows]
    return ShardRange(shard.entry, end - len(rows), rows[0].offset, records)


@dataclass(eq=False)
class ReadExamples(beam.PTransform):
    """Pipeline root -> key and `tf.train.Example` bytes of each record of a split, in any order.

    Attributes:
        uri: folder or URI of a data set.
        split: split to read.
        access: credentials and limits for stores.
    """

    uri: str
    split: str = "train"
    access: Access = DEFAULT_ACCESS

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[tuple[str, bytes]]:
        """Find the shards, then read ranges of them in parallel."""
        source = {records_root(self.split, 0): RecordSource(self.split, 0, self.uri)}
        shards = root | "FindShards" >> PlanRecords(source, Splitting(), self.access)
        ranges = shards.pieces | "FindRanges" >> beam.FlatMap(find_ranges, self.uri, self.access)
        if not is_in_process(root):
            ranges |= "Spread" >> beam.Reshuffle()
        return ranges | "ReadRanges" >> beam.FlatMap(read_range, self.uri, self.access)
