"""Find records and show them as people read them, with the pictures in them."""

import codecs
import io
import itertools
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from schemas.faults import at_record, counted, fault_line, printable
from schemas.features import Kind
from schemas.manifest import MANIFEST_NAME, Manifest, ShardEntry, index_names_of, read_manifest
from schemas.parse_example import Sequences, Values, parse_record
from schemas.tensors import BFLOAT16, Tensor, read_tensor
from schemas.tfrecord import CHECKSUM_BYTES, FRAME_BYTES, HEADER_BYTES, FrameError, check_frame
from transforms.images.check_images import check_image, looks_like_image
from transforms.images.findings import ImageFault
from transforms.storage import Access, Entry, Storage, find_uri, join_uri, open_storage
from transforms.walk_frames import MAX_RECORD_BYTES, BadFrame, open_records, walk_frames

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Pillow's mode by number of channels."""

_MAX_VALUES = 8
_MAX_TEXT_BYTES = 80
_HEX_BYTES = 16
_MAX_STEPS = 4
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 100


class FoundRecord(NamedTuple):
    """A record to be shown.

    Attributes:
        file: path or URI of its file.
        number: place in the file, from 0.
        offset: place of its frame in the file, in bytes.
        key: key by the index; None without an index.
        data: its bytes; None if they are too many or damaged.
        wrong: damage of its frame; empty for none.
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
        name: file name, made of the record's and the feature's.
        data: bytes of an image file.
    """

    name: str
    data: bytes


def records_of_file(uri: str, access: Access, first: int = 0) -> Iterator[FoundRecord]:
    """Yield a TFRecord file's records from one on, damaged ones too."""
    opened = open_records(*find_uri(uri, access))
    number = end = 0
    try:
        for found in walk_frames(opened.pieces, opened.size_bytes):
            number = found.number + 1
            if isinstance(found, BadFrame):
                what = f"damaged, {found.what}"
                record = FoundRecord(uri, found.number, found.offset, None, None, what)
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
        index, code, what = storage.stat(name), "E-VER-MISSING", "is not there, or no file"
        try:
            if index is None or index.kind != "file":
                raise ValueError(what)
            code = "E-VER-INDEX"
            rows = index_from_parquet(storage.read(name, index))
        except ValueError as error:
            what, remedy = " ".join(str(error).split()), "look with beam-tfrec verify"
            raise RuntimeError(fault_line(code, join_uri(root, name), what, remedy)) from None
        for place, row in itertools.islice(enumerate(rows), first, None):
            if key is None or row.key == key:
                file = join_uri(root, entry.file)
                found = FoundRecord(file, place, row.offset, row.key, None)
                try:
                    data = read_record(storage, storage.stat(entry.file), row.offset, row.size)
                    yield found._replace(data=data)
                except ValueError as error:
                    yield found._replace(wrong=str(error))
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


def read_record(storage: Storage, file: Entry | None, offset: int, size: int) -> bytes:
    """Return the bytes of the record whose frame an index describes.

    Raises:
        ValueError: if it is not there, damaged or too large.
        RuntimeError: `E-IO-…` if the store fails.
    """
    if file is None or file.kind != "file":
        raise ValueError("the file is not there")
    end = offset + size
    if offset < 0 or size < FRAME_BYTES or end > file.size_bytes:
        raise ValueError(f"the file has {file.size_bytes} bytes, the record ends at {end}")
    if size > MAX_RECORD_BYTES + FRAME_BYTES:
        raise ValueError("too large to be shown")
    frame = storage.read(file.name, file, (offset, end))
    try:
        check_frame(frame, 0, size, frame)
    except FrameError as error:
        raise ValueError(f"damaged, {error}") from None
    return frame[HEADER_BYTES:-CHECKSUM_BYTES]


def record_lines(record: FoundRecord) -> Iterator[str]:
    """Yield where a record is and what it holds, a feature a line."""
    where = at_record(printable(record.file), record.number, record.offset, record.key)
    if record.data is None:
        yield f"{printable(where)}: {record.wrong or 'too large to be shown'}"
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
    png = None if tensor is None else tensor_png(tensor)
    return None if png is None else (png, "png")


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
        is_text = all(character >= " " or character in "\t\r\n" for character in text)
    except UnicodeDecodeError:
        is_text = False
    if is_text:
        more = "" if head == value else f"... ({len(value)} bytes)"
        return f"'{printable(text)}'{more}"
    more = " ..." if len(value) > _HEX_BYTES else ""
    return f"{counted(len(value), 'byte')}: {value[:_HEX_BYTES].hex(' ')}{more}"


def tensor_png(tensor: Tensor) -> bytes | None:
    """Return a tensor of pixels as a PNG; None if it is no picture.

    Pixels are uint8 or uint16, and have 1 to 4 channels. A PNG has 16 bits in one channel only; of
    several channels it gets the upper 8 bits.
    """
    height, width, channels = (*tensor.shape, 1, 1, 1)[:3]
    mode = _MODES.get(channels) if len(tensor.shape) in (2, 3) and height and width else None
    if mode is None or tensor.dtype not in ("uint8", "uint16"):
        return None
    from PIL import Image

    content = tensor.content
    if tensor.dtype == "uint16" and mode == "L":
        mode = "I;16"
    elif tensor.dtype == "uint16":
        content = content[1::2]
    out = io.BytesIO()
    Image.frombytes(mode, (width, height), content).save(out, "PNG", compress_level=1)
    return out.getvalue()
