"""Count the records of a run, without any code of beam-tfrec or of a TFRecord library."""

import struct
import tarfile
from functools import cache
from pathlib import Path


def count_tfrecords(out: Path) -> int:
    """Return the number of records of all TFRecord files below a folder."""
    return sum(records_in(path) for path in out.rglob("*.tfrec*") if path.is_file())


def count_tar_samples(out: Path) -> int:
    """Return the number of photos of all tar files of a folder."""
    count = 0
    for path in out.glob("*.tar"):
        with tarfile.open(path) as tar:
            count += sum(member.name.endswith(".jpg") for member in tar)
    return count


def count_offsets(out: Path) -> int:
    """Return the samples of LitData's chunks and MosaicML's shards below a folder.

    Both begin with the number of samples and one more offset than that, the last being the file's
    size; all are little-endian uint32.

    Raises:
        ValueError: a file is shorter or longer than its offsets say.
    """
    count = 0
    for path in (each for each in out.rglob("*") if each.suffix in {".bin", ".mds"}):
        with path.open("rb") as stream:
            (samples,) = struct.unpack("<I", stream.read(4))
            stream.seek(4 + 4 * samples)
            if stream.read(4) != struct.pack("<I", path.stat().st_size):
                raise ValueError(f"{path.name}: {samples:,} samples do not end where the file does")
        count += samples
    return count


def shard_sizes(out: Path) -> list[int]:
    """Return the records of each `.tfrec` file of a folder, in the order of the names."""
    return [records_in(path) for path in sorted(out.glob("*.tfrec"))]


def records_in(path: Path) -> int:
    """Walk a TFRecord file from length to length; return the number of its records.

    Checksums of lengths are compared; those of data are left to `verify`.

    Raises:
        ValueError: a length is damaged, or the file does not end with a record.
    """
    count, offset, size = 0, 0, path.stat().st_size
    with path.open("rb") as stream:
        while offset < size:
            stream.seek(offset)
            header = stream.read(12)
            if len(header) < 12 or header[8:] != struct.pack("<I", masked_crc32c(header[:8])):
                raise ValueError(f"{path.name}: no record at byte {offset:,}")
            offset += 16 + struct.unpack("<Q", header[:8])[0]
            count += 1
    if offset != size:
        raise ValueError(f"{path.name}: ends within record {count:,}")
    return count


def masked_crc32c(data: bytes) -> int:
    """Return TFRecord's masked checksum; for the eight bytes of a length, plain Python will do.

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _table()[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _table() -> list[int]:
    """Return the table of CRC-32C, polynomial 0x1EDC6F41 reflected."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table
