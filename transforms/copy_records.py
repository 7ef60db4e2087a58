"""Copy finished records from TFRecord files; neighbours in a file are read together."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from beam_tfrec.schemas.layouts import Unfit
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.tfrecord import FrameError, read_frame, stored_crc
from beam_tfrec.transforms.build_records import NOT_BUILT, Record
from beam_tfrec.transforms.shard_index import ReadyRow
from beam_tfrec.transforms.storage import Entry, Storage, is_local, source_changed

_SPAN_BYTES = 8 << 20
_LOCAL_GAP_BYTES = 64 << 10  # to read so many bytes takes as long as another call
_REMOTE_GAP_BYTES = 1 << 20
_BYTES_A_COPY = 600

_READY_ROW = msgspec.msgpack.Decoder(ReadyRow)


def copy_group(group: Sequence[Sample], roots: Mapping[str, Storage]) -> list[Record | Unfit]:
    """Return the copies of a group's records, in its order; damaged ones as rejects.

    Raises:
        RuntimeError: `E-SRC-CHANGED` when a file has other records than planned, or a storage
            fault.
    """
    copies: dict[int, Record | Unfit] = {}
    for places in _neighbours(group, roots):
        first, last = group[places[0]].blobs[0], group[places[-1]].blobs[0]
        listed = Entry(first.name, first.size_bytes, first.pin, first.crc32c)
        span = first.offset, last.offset + last.length
        data = roots[first.root].read(first.name, listed, span)
        for place in places:
            blob = group[place].blobs[0]
            start = blob.offset - first.offset
            copies[place] = _copy(group[place], data[start : start + blob.length])
    return [copies[place] for place in range(len(group))]


def _neighbours(group: Sequence[Sample], roots: Mapping[str, Storage]) -> Iterator[list[int]]:
    """Yield the places of records to read together, in the order of their offsets."""

    ranges = [(b.root, b.name, b.offset, b.length) for b in (sample.blobs[0] for sample in group)]
    gaps = {
        name: _LOCAL_GAP_BYTES if is_local(root.root) else _REMOTE_GAP_BYTES
        for name, root in roots.items()
    }
    together: list[int] = []
    file, start, end = ("", ""), 0, 0
    for place in sorted(range(len(group)), key=ranges.__getitem__):
        root, name, offset, length = ranges[place]
        is_near = file == (root, name) and offset - end <= gaps[root]
        if together and not (is_near and offset + length - start <= _SPAN_BYTES):
            yield together
            together = []
        if not together:
            file, start = (root, name), offset
        end = offset + length
        together.append(place)
    if together:
        yield together


def copied_bytes(sample: Sample) -> int:
    """Return the estimated memory of a record until its copy is written."""
    return _BYTES_A_COPY + sample.blobs[0].length


def _copy(sample: Sample, frame: bytes) -> Record | Unfit:
    blob, copied = sample.blobs[0], _READY_ROW.decode(sample.fields)
    try:
        read_frame(frame, 0, len(frame))
    except FrameError as error:
        return Unfit("E-REC-DAMAGED", f"{blob.name} at byte {blob.offset}: {error}")
    if stored_crc(frame[-4:]) != copied.crc32c:
        raise source_changed(blob.name, f"another record at byte {blob.offset} than was planned")
    return Record([frame], len(frame), NOT_BUILT, (), copied.crc32c, copied)
