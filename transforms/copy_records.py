"""Copy finished records from TFRecord files; neighbours in a file are read together."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from beam_tfrec.schemas.layouts import Built, Unfit
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.schemas.tfrecord import FrameError, read_frame, stored_crc
from beam_tfrec.transforms.build_records import Record
from beam_tfrec.transforms.shard_index import CopiedRow
from beam_tfrec.transforms.storage import Entry, Storage, is_local, source_changed

GROUP_BYTES = 4 << 20
"""Size of a group of consecutive records, with some memory for each."""

_SPAN_BYTES = 8 << 20
_LOCAL_GAP_BYTES = 64 << 10  # to read so many bytes takes as long as another call
_REMOTE_GAP_BYTES = 1 << 20

_NOT_BUILT = Built({}, [], [], [])
_COPIED_ROW = msgspec.msgpack.Decoder(CopiedRow)


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

    def blob_at(place: int) -> Blob:
        return group[place].blobs[0]

    places = sorted(
        range(len(group)), key=lambda p: (blob_at(p).root, blob_at(p).name, blob_at(p).offset)
    )
    together: list[int] = []
    for place in places:
        if together:
            first, last, blob = blob_at(together[0]), blob_at(together[-1]), blob_at(place)
            most = _LOCAL_GAP_BYTES if is_local(roots[blob.root].root) else _REMOTE_GAP_BYTES
            same_file = (first.root, first.name) == (blob.root, blob.name)
            is_near = blob.offset - last.offset - last.length <= most
            fits = blob.offset + blob.length - first.offset <= _SPAN_BYTES
            if not (same_file and is_near and fits):
                yield together
                together = []
        together.append(place)
    if together:
        yield together


def _copy(sample: Sample, frame: bytes) -> Record | Unfit:
    blob, copied = sample.blobs[0], _COPIED_ROW.decode(sample.fields)
    try:
        read_frame(frame, 0, len(frame))
    except FrameError as error:
        return Unfit("E-REC-DAMAGED", f"{blob.name} at byte {blob.offset}: {error}")
    if stored_crc(frame[-4:]) != copied.crc32c:
        raise source_changed(blob.name, f"another record at byte {blob.offset} than was planned")
    return Record([frame], len(frame), _NOT_BUILT, (), copied.crc32c, copied)
