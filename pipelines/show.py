"""Print features and records of a data set or any TFRecord file: `beam-tfrec show --help`.

This module imports neither Beam nor TensorFlow.
"""

import argparse
import contextlib
import io
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from beam_tfrec.pipelines.cli import A_SET, FlagParser, add_reading_flags, main, reading_access, say
from beam_tfrec.schemas.example_rules import InferredSchema, aligned
from beam_tfrec.schemas.faults import at_record, counted, printable, require_at_least, run_fault
from beam_tfrec.schemas.features import Kind
from beam_tfrec.schemas.fields import ImageInfo
from beam_tfrec.schemas.manifest import MANIFEST_NAME, PLAN_NAME, Manifest
from beam_tfrec.schemas.parse_example import Sequences, Values, parse_record
from beam_tfrec.schemas.tensors import Tensor, is_picture, read_tensor, tensor_values
from beam_tfrec.transforms.images.check_images import check_image, looks_like_image
from beam_tfrec.transforms.images.findings import BadImage
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, find_uri, join_uri, open_storage
from beam_tfrec.transforms.storage.read_data_set import read_finished, read_index
from beam_tfrec.transforms.walk_frames import BadFrame, open_records, read_record

_SCHEMA_RECORDS = 100
_MAX_VALUES = 8
_MAX_TEXT = 80
_HEX_BYTES = 16
_MAX_NAME_BYTES = 240  # of 255 bytes of a file name, with its ending
_VERIFY = "run beam-tfrec verify for details"


class FoundRecord(NamedTuple):
    """A record to be shown.

    Attributes:
        file: path or URI of the file.
        number: number of the record in the file, from 0.
        offset: byte offset of the frame in the file; in an ArrayRecord file, the record's number.
        data: bytes of the record; None if they are too many or damaged.
        wrong: damage of the frame; empty for none.
        key: key in the index; None without an index.
    """

    file: str
    number: int
    offset: int
    data: bytes | None
    wrong: str = ""
    key: str | None = None


def parser() -> FlagParser:
    """Return the parser of the command line."""
    found = FlagParser("show")
    found.path("path", f"{A_SET}, or a TFRecord or ArrayRecord file of any origin")
    which = found.group("which records", exclusive=True)
    which.text("--key", "show the record with this key, of a data set (default: none)", "K")
    which.number("--record", "show record N, from 0, of the file or split (default: none)")
    which.number("--limit", "show the first N records", 3)
    group = found.group("what is shown")
    group.text("--split", "split of a data set (default: its first; for --key all)", "S")
    images = "folder to save pictures of the records in, tensors as PNG; existing files are kept"
    group.text("--images", images, "DIR")
    add_reading_flags(found)
    return found


def run(argv: Sequence[str]) -> None:
    """Print what the arguments ask for."""
    flags = parser().parse_args(argv)
    for line in show(flags, reading_access(flags, [flags.path])):
        say(line)


def show(flags: argparse.Namespace, access: Access = DEFAULT_ACCESS) -> Iterator[str]:
    """Yield the lines of the schema, and of the records with their values.

    Args:
        flags: as `parser` returns them.
        access: how to reach the store.

    Raises:
        ValueError: when a number is negative, or the flags do not suit the path.
        RuntimeError: `E-ARG` when there is no such record, a fault of `read_finished`, or `E-IO-…`
            when the store fails.
    """
    require_at_least(0, limit=flags.limit, record=flags.record)
    is_one = flags.key is not None or flags.record is not None
    limit, first, among = 1 if is_one else flags.limit, flags.record or 0, ""
    storage = open_storage(flags.path, access)
    if any(storage.stat(name) is not None for name in (MANIFEST_NAME, PLAN_NAME)):
        manifest, _ = read_finished(storage, "path")
        yield from _manifest_lines(flags.path, manifest)
        splits = _splits_to_search(flags, manifest)
        among = f" among the {' and '.join(f'{manifest.splits[s].records} of {s}' for s in splits)}"
        found = [
            records_of_set(flags.path, access, manifest, split, first, flags.key)
            for split in splits
        ]
    else:
        if flags.key is not None or flags.split:
            what = f"a data set, got {flags.key or flags.split!r} for a file, which has no index"
            raise ValueError(f"key and split must come with {what}: give --record")
        yield from _schema_lines(flags.path, access)
        found = [records_of_file(flags.path, access, first)]
    shown = 0
    for record in (record for records in found for record in itertools.islice(records, limit)):
        yield from record_lines(record)
        if flags.images:
            for name, data in pictures_of(record):
                yield _saved(flags.images, name, data)
        shown += 1
    if not is_one and not shown and flags.limit:
        yield f"{printable(flags.path)}: no records"
    if is_one and not shown:
        what = f"has no record {flags.record if flags.key is None else flags.key!r}{among}"
        remedy = "give another --record or --key; without them, the first records are shown"
        raise run_fault("E-ARG", flags.path, what, remedy)


def _splits_to_search(flags: argparse.Namespace, manifest: Manifest) -> list[str]:
    """Return the given split; without it, all splits for a key, or the first one."""
    splits = [*dict.fromkeys(shard.split for shard in manifest.shards)]
    if flags.split and flags.split not in splits:
        names = ", ".join(splits)
        raise ValueError(f"split must be one of {names}, got {flags.split!r}: name one of them")
    if flags.split:
        return [flags.split]
    return splits if flags.key is not None else splits[:1]


def _manifest_lines(path: str, manifest: Manifest) -> Iterator[str]:
    splits = manifest.splits.items()
    counts = ", ".join(f"{name} {counted(split.records, 'record')}" for name, split in splits)
    yield f"{printable(path)}: layout {printable(manifest.layout)}; {counts}"
    rows = [(f.key, f.kind.value, f.num_values, f.doc) for f in manifest.features]
    yield from (f"  {printable(line)}" for line in aligned(rows))


def _schema_lines(path: str, access: Access) -> Iterator[str]:
    """Yield the features of a file's first records."""
    schema = InferredSchema()
    for record in itertools.islice(records_of_file(path, access), _SCHEMA_RECORDS):
        found = None if record.data is None else parse_record(record.data)
        if found is not None:
            schema.add(found, (record.file, record.number, record.offset))
    if schema.records:
        yield f"features of the first {counted(schema.records, 'Example')}:"
        yield from (f"  {line}" for line in schema.lines())


def _saved(folder: str, name: str, data: bytes) -> str:
    storage = open_storage(folder)
    where = printable(join_uri(folder, name))
    if storage.stat("") is None:
        storage.probe()
    is_new = storage.create(name, data)
    return f"  saved {where}" if is_new else f"  {where} is there already: left as it is"


def records_of_file(uri: str, access: Access, first: int = 0) -> Iterator[FoundRecord]:
    """Yield the records of a TFRecord file from number `first` on, including damaged ones."""
    records, compression = open_records(*find_uri(uri, access, lacks=MANIFEST_NAME))
    for found in records:
        if found.number >= first or (compression and isinstance(found, BadFrame)):
            wrong = f"damaged, {found.what}" if isinstance(found, BadFrame) else ""
            data = None if isinstance(found, BadFrame) else found.data
            yield FoundRecord(uri, found.number, found.offset, data, wrong)


def records_of_set(
    root: str, access: Access, manifest: Manifest, split: str, first: int, key: str | None
) -> Iterator[FoundRecord]:
    """Yield the records of a split from number `first` on, or those with a key.

    Raises:
        RuntimeError: `E-VER-INDEX`, `E-VER-MISSING`: an index is damaged or missing.
    """
    from beam_tfrec.transforms.shard_index import index_from_parquet  # pyarrow takes 0.2 s

    storage = open_storage(root, access)
    for entry in manifest.shards:
        if entry.split != split:
            continue
        if key is None and first >= entry.records:
            first -= entry.records
            continue
        rows = read_index(storage, entry.index_names[0], _VERIFY, index_from_parquet)
        for place, row in itertools.islice(enumerate(rows), first, None):
            if key is None or row.key == key:
                data, wrong, uri = None, "", join_uri(root, entry.file)
                try:
                    data = read_record(storage, storage.stat(entry.file), row.offset, row.size)
                except ValueError as error:
                    wrong = str(error)
                yield FoundRecord(uri, place, row.offset, data, wrong, row.key)
        first = 0


def record_lines(record: FoundRecord) -> Iterator[str]:
    """Yield a line with the record's place, then a line per feature."""
    where = at_record(printable(record.file), record.number, record.offset, record.key)
    if record.data is None:
        yield f"{printable(where)}: {record.wrong or 'too large to be shown'}"
        return
    found = parse_record(record.data)
    what = "" if found is not None else ", not an Example"
    yield f"{printable(where)}: {len(record.data)} bytes{what}"
    if found is None:
        yield f"  {show_bytes(record.data)}"
    else:
        yield from _feature_lines(found)


def pictures_of(record: FoundRecord) -> Iterator[tuple[str, bytes]]:
    """Yield file names and bytes of a record's images; tensors are encoded as PNG."""
    found = None if record.data is None else parse_record(record.data)
    if found is None:
        return
    owner = f"record{record.number}" if record.key is None else record.key
    for key, parts in found.byte_values():
        for place, value in enumerate(parts):
            named = f"{owner}-{key}" if len(parts) == 1 else f"{owner}-{key}-{place}"
            held = _read_value(value)
            if isinstance(held, ImageInfo):
                yield f"{_file_name(named)}.{held.format}", value
            elif isinstance(held, Tensor) and (png := tensor_png(held)):
                yield f"{_file_name(named)}.png", png


def _file_name(text: str) -> str:
    """Return a safe file name, without folders and control characters. Its end is kept.

    >>> _file_name("../a b-image/encoded")
    '.._a b-image_encoded'
    """
    name = re.sub(r"[/\x00-\x1f]", "_", text)
    return name.encode()[-_MAX_NAME_BYTES:].decode(errors="ignore")


def _read_value(value: bytes) -> ImageInfo | BadImage | Tensor | None:
    """Return the facts of an image, the fault of a damaged one, a tensor, or None."""
    if not looks_like_image(value):
        return read_tensor(value)
    try:
        return check_image(value)
    except BadImage as error:
        return error


def _feature_lines(found: Sequences) -> Iterator[str]:
    rows = [
        (printable(key), "" if values.kind is None else values.kind.value, _show(values))
        for key, values in sorted(found.context.items())
    ]
    for key, steps in sorted(found.feature_lists.items()):
        kind = next((v.kind.value for v in steps if v.kind is not None), "")
        shown = _first_of((f"[{_show(step)}]" for step in steps), len(steps))
        rows.append((printable(key), kind, f"{len(steps)} steps: {shown}"))
    yield from (f"  {line}" for line in aligned(rows))


def _show(values: Values) -> str:
    show = _show_value if values.kind is Kind.BYTES else _show_number
    return _first_of(map(show, values.values), len(values.values))


def _show_value(value: bytes) -> str:
    found = _read_value(value)
    if isinstance(found, BadImage):
        return f"damaged image of {len(value)} bytes: {found.detail}"
    if isinstance(found, ImageInfo):
        return f"{found.format} {found.width_px} x {found.height_px}, {len(value)} bytes"
    return show_bytes(value) if found is None else show_tensor(found)


def show_tensor(tensor: Tensor) -> str:
    """Return a tensor's type, shape and first values.

    >>> show_tensor(Tensor("uint8", (2, 2), bytes([1, 2, 3, 4])))
    'tensor uint8 [2, 2]: 1, 2, 3, 4'
    """
    count = math.prod(tensor.shape)
    values = tensor_values(tensor, min(count, _MAX_VALUES)).tolist()
    shown = _first_of(map(_show_number, values), count)
    return f"tensor {tensor.dtype} [{', '.join(map(str, tensor.shape))}]: {shown}"


def _show_number(value: float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _first_of(values: Iterable[str], count: int) -> str:
    """Return the first values as text, and the number of all if there are more.

    >>> _first_of(["0.5", "1.25"], 2), _first_of(map(str, range(20)), 20)
    ('0.5, 1.25', '0, 1, 2, 3, 4, 5, 6, 7, ... (20 values)')
    """
    shown = ", ".join(itertools.islice(values, _MAX_VALUES))
    return f"{shown}, ... ({count} values)" if count > _MAX_VALUES else shown or "no values"


def show_bytes(value: bytes) -> str:
    r"""Return bytes as quoted text if they are printable UTF-8, else in hexadecimal.

    >>> show_bytes(b"a \xc3\xa9"), show_bytes(b"\xff\x00"), show_bytes(b"")
    ("'a \\xe9'", '2 bytes: ff 00', "''")
    """
    with contextlib.suppress(UnicodeDecodeError):
        text = value.decode()
        shown = text[:_MAX_TEXT]
        if all(character >= " " or character in "\t\r\n" for character in shown):
            more = "" if text == shown else f"... ({len(value)} bytes)"
            return f"'{printable(shown)}'{more}"
    more = " ..." if len(value) > _HEX_BYTES else ""
    return f"{counted(len(value), 'byte')}: {value[:_HEX_BYTES].hex(' ')}{more}"


def tensor_png(tensor: Tensor) -> bytes | None:
    """Return a tensor of pixels as a PNG, or None if its shape or type is not a picture's.

    Pixels are uint8 or uint16 with 1 to 4 channels. A single channel keeps its 16 bits; several
    channels keep their upper 8 bits.
    """
    if tensor.dtype not in ("uint8", "uint16") or not is_picture(tensor):
        return None
    from PIL import Image

    pixels = tensor_values(tensor).reshape(*tensor.shape[:2], -1)
    if pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    elif tensor.dtype == "uint16":
        pixels = (pixels >> 8).astype("uint8")
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", compress_level=1)
    return out.getvalue()


if __name__ == "__main__":
    main("show")
