"""The floor: all of beam-tfrec's work in one plain Python process, without Beam or a manifest.

Reads the JSON with msgspec, groups the annotations, shuffles globally, reads each photo, takes its
SHA-256, encodes the detection Example by hand, frames it with CRC32C and writes 16 files. Time of a
pipeline beyond this is the price of Beam, of the checks and of the commit protocol.
`--processes 2` divides the shards.
"""

import hashlib
import os
import random
import struct
import sys
from pathlib import Path

import google_crc32c
import job
import msgspec


class Image(msgspec.Struct):
    """An entry of `images`."""

    id: int
    file_name: str
    width: int
    height: int


class Annotation(msgspec.Struct):
    """An entry of `annotations`; the polygons are skipped unparsed."""

    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    area: float
    iscrowd: int


class Category(msgspec.Struct):
    """An entry of `categories`."""

    id: int
    name: str


class Coco(msgspec.Struct):
    """The parts of a COCO file that the job needs."""

    images: list[Image]
    annotations: list[Annotation]
    categories: list[Category]


def load_rows(path: Path) -> tuple[list[dict], dict[int, str]]:
    """Return shuffled images, each with `objects`, and the categories' names."""
    coco = msgspec.json.decode(path.read_bytes(), type=Coco)
    rows = {image.id: {**msgspec.structs.asdict(image), "objects": []} for image in coco.images}
    for annotation in coco.annotations:
        rows[annotation.image_id]["objects"].append(msgspec.structs.asdict(annotation))
    shuffled = list(rows.values())
    random.Random(job.SEED).shuffle(shuffled)
    return shuffled, {category.id: category.name for category in coco.categories}


def varint(value: int) -> bytes:
    """Return a protobuf varint.

    >>> varint(1), varint(300)
    (b'\\x01', b'\\xac\\x02')
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(tag: bytes, payload: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    return tag + varint(len(payload)) + payload


def feature(values: list) -> bytes:
    """Return a serialized `Feature` of bytes, ints or floats."""
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return delimited(b"\x0a", b"".join(delimited(b"\x0a", value) for value in values))
    if isinstance(values[0], float):
        packed = struct.pack(f"<{len(values)}f", *values)
        return delimited(b"\x12", delimited(b"\x0a", packed))
    return delimited(b"\x1a", delimited(b"\x0a", b"".join(map(varint, values))))


def entry(key: str, value: bytes) -> bytes:
    """Return one entry of the map in `Features`."""
    return delimited(b"\x0a", delimited(b"\x0a", key.encode()) + delimited(b"\x12", value))


def example_parts(row: dict, names: dict[int, str], encoded: bytes) -> list[bytes]:
    """Return a detection Example in pieces, so that the photo's bytes are never copied."""
    digest = hashlib.sha256(encoded).hexdigest()
    fields = {
        "image/filename": [row["file_name"].encode()],
        "image/format": [b"jpeg"],
        "image/height": [row["height"]],
        "image/key/sha256": [digest.encode()],
        "image/source_id": [str(row["id"]).encode()],
        "image/width": [row["width"]],
    }
    columns = job.object_columns(row, names)
    fields.update((f"image/object/{name}", column) for name, column in columns.items())
    entries = b"".join(entry(key, feature(value)) for key, value in fields.items())
    # image/encoded, the last entry: the headers of its four enclosing lengths, then the photo.
    head = b"\x0a" + varint(len(encoded))
    head = b"\x0a" + varint(len(head) + len(encoded)) + head
    head = b"\x0a\x0dimage/encoded\x12" + varint(len(head) + len(encoded)) + head
    head = b"\x0a" + varint(len(head) + len(encoded)) + head
    features = b"\x0a" + varint(len(entries) + len(head) + len(encoded))
    return [features + entries + head, encoded]


def masked(crc: int) -> bytes:
    """Return TFRecord's masked checksum, little endian."""
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def write_shard(path: Path, rows: list[dict], names: dict[int, str], images: Path) -> None:
    """Write one TFRecord file."""
    with path.open("wb", buffering=1 << 20) as stream:
        for row in rows:
            parts = example_parts(row, names, (images / row["file_name"]).read_bytes())
            length = struct.pack("<Q", sum(map(len, parts)))
            crc = 0
            for part in parts:
                crc = google_crc32c.extend(crc, part)
            checked = length + masked(google_crc32c.value(length))
            stream.writelines([checked, *parts, masked(crc)])


def main() -> int:
    """Plan in one process, write in one or two."""
    parser = job.arguments()
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    rows, names = load_rows(args.annotations)
    children = []
    for share in range(args.processes - 1):
        pid = os.fork()
        if pid == 0:
            write_share(args, rows, names, share)
            os._exit(0)
        children.append(pid)
    write_share(args, rows, names, args.processes - 1)
    return max([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children], default=0)


def write_share(args, rows: list[dict], names: dict[int, str], share: int) -> None:
    """Write every `processes`-th shard."""
    for shard in range(share, job.SHARDS, args.processes):
        path = args.out / f"train-{shard:05}-of-{job.SHARDS:05}.tfrec"
        write_shard(path, rows[shard :: job.SHARDS], names, args.images)


if __name__ == "__main__":
    sys.exit(main())
