"""Find records and show them as people read them, with the pictures in them."""

import codecs
import itertools
import math
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from schemas.faults import at_record, fault_line, printable
from schemas.features import Kind
from schemas.manifest import MANIFEST_NAME, Manifest, ShardEntry, index_names_of, read_manifest
from schemas.parse_example import Sequences, Values, parse_record
from schemas.tensors import BFLOAT16, Tensor, read_tensor
from schemas.tfrecord import FRAME_BYTES
from transforms.images.check_images import ImageFault, check_image, looks_like_image
from transforms.storage import Access, Storage, find_uri, join_uri, open_storage
from transforms.walk_frames import BadFrame, open_records, walk_frames

_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
_BITS = {"uint8": 8, "uint16": 16}
_MAX_SIDE = 2**31 - 1

_MAX_VALUES = 8
_MAX_TEXT_BYTES = 80
_HEX_BYTES = 16
_MAX_STEPS = 4
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 100


class FoundRecord(NamedTuple):
    """A record to be shown.

    Attributes:
        file: its file's path or URI.
        number: its place in the file, from 0.
        offset: of its frame, in bytes.
        key: of it by the index; None where there is no index.
        data: its bytes; None where they are too many.
        wrong: what is wrong with its frame; empty for nothing.
    """

    file: str
    number: int
    offset: int
    key: str | None
    data: bytes | None
    wrong: str = ""


class Picture(NamedTuple):
    """A picture of a record, fit to be saved.

    Attributes:
        name: for a file, made of the record's and the feature's.
        data: of an image file.
    """

    name: str
    data: bytes


def records_of_file(uri: str, access: Access, first: int = 0) -> Iterator[FoundRecord]:
    """Yield a TFRecord file's records from one on, damaged ones too."""
    opened = open_records(*find_uri(uri, access))
    number = end = 0
    try:
        for found in walk_frames(opened.read, opened.size_bytes):
            number = found.number + 1
            if isinstance(found, BadFrame):
                record = FoundRecord(uri, found.number, found.offset, None, None, found.what)
            else:
                record = FoundRecord(uri, found.number, found.offset, None, found.data)
                end = found.offset + found.size + FRAME_BYTES
            if found.number >= first:
                yield record
    except zlib.error as error:
        what = f"its {opened.compression} data is damaged ({error})"
        yield FoundRecord(uri, number, end, None, None, what)


def records_of_set(
    root: str, access: Access, split: str, first: int = 0, key: str | None = None
) -> Iterator[FoundRecord]:
    """Yield records of a split by its indexes: from one on, or those with a key.

    Raises:
        ValueError: where there is no such split.
        RuntimeError: `E-VER-…` where an index or a record is not there.
    """
    from transforms.shard_index import index_from_parquet  # pyarrow takes 0.2 s

    storage = open_storage(root, access)
    for entry, name in _indexed(manifest_of(root, access), split):
        if key is None and first >= entry.records:
            first -= entry.records
            continue
        index = storage.stat(name)
        if index is None or index.kind != "file":
            what, remedy = "is not there, or no file", "look with beam-tfrec verify"
            where = join_uri(root, name)
            raise RuntimeError(fault_line("E-VER-MISSING", where, what, remedy))
        try:
            rows = index_from_parquet(storage.read(name, index))
        except ValueError as error:
            what, remedy = " ".join(str(error).split()), "look with beam-tfrec verify"
            raise RuntimeError(fault_line("E-VER-INDEX", name, what, remedy)) from None
        for place, row in itertools.islice(enumerate(rows), first, None):
            if key is None or row.key == key:
                yield _read_record(storage, entry, place, row.offset, row.size, row.key)
        first = 0


def manifest_of(root: str, access: Access) -> Manifest:
    """Return a data set's manifest."""
    storage = open_storage(root, access)
    return read_manifest(storage.read(MANIFEST_NAME), join_uri(root, MANIFEST_NAME), "path")


def _indexed(manifest: Manifest, split: str) -> list[tuple[ShardEntry, str]]:
    """Return a split's shards with the names of their Parquet indexes."""
    indexed = zip(manifest.shards, index_names_of(manifest), strict=True)
    found = [(entry, name) for entry, (name, _) in indexed if entry.split == split]
    if not found:
        names = ", ".join(sorted(manifest.splits))
        raise ValueError(f"split must be one of {names}, got {split!r}: name one of them")
    return found


def _read_record(
    storage: Storage, entry: ShardEntry, number: int, offset: int, size: int, key: str
) -> FoundRecord:
    """Return the record at the place that an index gives, if there is one."""
    file = storage.stat(entry.file)
    where = join_uri(storage.root, entry.file)
    if file is None or not 0 <= offset <= offset + size <= file.size_bytes or size < FRAME_BYTES:
        what, remedy = (
            f"has no record of key {key!r} at byte {offset}",
            "look with beam-tfrec verify",
        )
        raise RuntimeError(fault_line("E-VER-MISSING", where, what, remedy))
    frame = storage.read(entry.file, file, (offset, offset + size))
    found = next(walk_frames(lambda start, end: frame[start:end], size))
    if isinstance(found, BadFrame):
        return FoundRecord(where, number, offset, key, None, found.what)
    return FoundRecord(where, number, offset, key, found.data)


def record_lines(record: FoundRecord) -> Iterator[str]:
    """Yield where a record is and what it holds, a feature a line."""
    where = at_record(printable(record.file), record.number, record.offset, record.key)
    if record.wrong:
        yield f"{printable(where)}: damaged, {record.wrong}"
        return
    if record.data is None:
        yield f"{printable(where)}: too large to be shown"
        return
    found = parse_record(record.data)
    what = "" if found is not None else ", no Example"
    yield f"{printable(where)}: {len(record.data)} bytes{what}"
    if found is None:
        yield f"  {show_bytes(record.data)}"
    else:
        yield from _feature_lines(found)


def pictures_of(record: FoundRecord) -> Iterator[Picture]:
    """Yield the pictures of a record: image files as they are, tensors of pixels as PNG."""
    found = None if record.data is None else parse_record(record.data)
    if found is None:
        return
    owner = f"record{record.number}" if record.key is None else record.key
    features = [(key, [values]) for key, values in found.context.items()]
    for key, steps in [*features, *found.feature_lists.items()]:
        parts = [v for values in steps if values.kind is Kind.BYTES for v in values.values]
        for place, value in enumerate(parts):
            named = f"{owner}-{key}" if len(parts) == 1 else f"{owner}-{key}-{place}"
            if picture := _picture(value):
                data, suffix = picture
                yield Picture(f"{_file_name(named)}.{suffix}", data)


def _picture(value: bytes) -> tuple[bytes, str] | None:
    if looks_like_image(value):
        info = check_image(value)
        return None if isinstance(info, ImageFault) else (value, info.format)
    tensor = read_tensor(value)
    if tensor is None or not can_be_png(tensor.dtype, tensor.shape):
        return None
    return plain_png(*tensor), "png"


def _file_name(text: str) -> str:
    """Return a name for a file, which no key can lead elsewhere.

    >>> _file_name("../a b-image/encoded")
    'a_b-image_encoded'
    """
    return _NO_NAME.sub("_", text).lstrip("._")[:_MAX_NAME] or "_"


def _feature_lines(found: Sequences) -> Iterator[str]:
    rows = [
        (printable(key), "" if values.kind is None else values.kind.value, _show(values))
        for key, values in sorted(found.context.items())
    ]
    for key, steps in sorted(found.feature_lists.items()):
        kind = next((v.kind.value for v in steps if v.kind is not None), "")
        shown = " | ".join(map(_show, steps[:_MAX_STEPS]))
        more = " | ..." if len(steps) > _MAX_STEPS else ""
        rows.append((printable(key), kind, f"{len(steps)} steps: {shown}{more}"))
    width = max((len(key) for key, _, _ in rows), default=0)
    for key, kind, shown in rows:
        yield f"  {key.ljust(width)}  {kind.ljust(5)}  {shown}"


def _show(values: Values) -> str:
    if values.kind is not Kind.BYTES:
        return _show_numbers(values.values, len(values.values))
    shown = ", ".join(_show_value(value) for value in values.values[:_MAX_VALUES])
    count = len(values.values)
    return f"{shown}, ... ({count} values)" if count > _MAX_VALUES else shown or "no values"


def _show_value(value: bytes) -> str:
    if looks_like_image(value):
        info = check_image(value)
        if isinstance(info, ImageFault):
            return f"damaged image of {len(value)} bytes: {info.detail}"
        return f"{info.format} {info.width_px} x {info.height_px}, {len(value)} bytes"
    tensor = read_tensor(value)
    return show_bytes(value) if tensor is None else show_tensor(tensor)


def show_tensor(tensor: Tensor) -> str:
    """Return a tensor's type, shape and first values.

    >>> show_tensor(Tensor("uint8", (2, 2), bytes([1, 2, 3, 4])))
    'tensor uint8 [2, 2]: 1, 2, 3, 4'
    """
    shape = ", ".join(map(str, tensor.shape))
    count = math.prod(tensor.shape)
    values = _show_numbers(_first_values(tensor, min(count, _MAX_VALUES)), count)
    return f"tensor {tensor.dtype} [{shape}]: {values}"


def _first_values(tensor: Tensor, count: int) -> list[float]:
    import numpy as np  # late: few records hold tensors

    if tensor.dtype != BFLOAT16:
        return np.frombuffer(
            tensor.content, np.dtype(tensor.dtype).newbyteorder("<"), count
        ).tolist()
    halves = np.frombuffer(tensor.content, "<u2", count).astype("<u4")
    return (halves << 16).view("<f4").tolist()


def _show_numbers(values: Sequence[float], count: int) -> str:
    """Return the first numbers of so many.

    >>> _show_numbers([0.5, 1.25], 2), _show_numbers(range(20), 20)
    ('0.5, 1.25', '0, 1, 2, 3, 4, 5, 6, 7, ... (20 values)')
    """
    shown = ", ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in values[:_MAX_VALUES])
    if count > _MAX_VALUES:
        return f"{shown}, ... ({count} values)"
    return shown or "no values"


def show_bytes(value: bytes) -> str:
    r"""Return bytes that are no image as text where they are that, else in hexadecimal.

    >>> show_bytes(b"a \xc3\xa9"), show_bytes(b"\xff\x00"), show_bytes(b"")
    ("'a \\xe9'", '2 bytes: ff 00', "''")
    """
    head = value[:_MAX_TEXT_BYTES]
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=head == value)
    except UnicodeDecodeError:
        return _show_hex(value)
    if any(ord(character) < 32 and character not in "\t\r\n" for character in text):
        return _show_hex(value)
    more = "" if head == value else f"... ({len(value)} bytes)"
    return f"'{printable(text)}'{more}"


def _show_hex(value: bytes) -> str:
    more = " ..." if len(value) > _HEX_BYTES else ""
    size = "1 byte" if len(value) == 1 else f"{len(value)} bytes"
    return f"{size}: {value[:_HEX_BYTES].hex(' ')}{more}"


def can_be_png(dtype: str, shape: Sequence[int]) -> bool:
    """Return whether values of this type and shape are pixels: height, width, 1 to 4 channels.

    >>> can_be_png("uint8", (2, 3)), can_be_png("uint8", (2, 3, 5)), can_be_png("int64", (2, 3))
    (True, False, False)
    """
    sides, channels = shape[:2], tuple(shape[2:]) or (1,)
    is_picture = len(sides) == 2 and len(channels) == 1 and channels[0] in _COLOUR_TYPES
    return dtype in _BITS and is_picture and all(0 < side <= _MAX_SIDE for side in sides)


def plain_png(dtype: str, shape: Sequence[int], content: bytes) -> bytes:
    """Return pixels as a PNG.

    Args:
        dtype: uint8 or uint16.
        shape: height and width, and channels where there are several.
        content: the values, little-endian, in C order.
    """
    height, width, channels = (*shape, 1)[:3]
    bits = _BITS[dtype]
    if bits == 16:  # PNG is big-endian
        swapped = bytearray(content)
        swapped[::2], swapped[1::2] = content[1::2], content[::2]
        content = bytes(swapped)
    row_bytes = width * channels * bits // 8
    rows = (content[at : at + row_bytes] for at in range(0, len(content), row_bytes))
    header = struct.pack(">IIBBBBB", width, height, bits, _COLOUR_TYPES[channels], 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), 1)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", pixels)
        + _chunk(b"IEND", b"")
    )


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
