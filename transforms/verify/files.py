"""Verify TFRecord files of any origin: structure, a schema over all records, and their images."""

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c

from schemas.example_rules import FeatureFacts, InferredSchema, Place, conflicts
from schemas.faults import Findings, at_record
from schemas.features import Kind
from schemas.parse_example import Sequences, Values, parse_sequence_example
from schemas.shown_values import counted
from schemas.tfrecord import masked_crc
from transforms.images.check_images import Check, ImageFault, check_image
from transforms.storage import Access, Entry, Storage, find_uri
from transforms.verify import Report
from transforms.walk_frames import (
    UNKNOWN_SIZE,
    BadFrame,
    ReadSpan,
    Record,
    walk_frames,
)

RESTORE = "restore the file from its source, or leave the record out"
_MEND = "make the record again from its image, or leave it out"
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a")
_BMP_BYTES = struct.Struct("<2sI4xI")
_HEAD_BYTES = 16
_INFLATED_BYTES = 1 << 20
_ZLIB_METHOD = 8


def verify_file(uri: str, access: Access, *, deep: bool = False) -> Report:
    """Return what a TFRecord file holds and what is wrong with it.

    Args:
        uri: its path or URI.
        access: how its store is reached.
        deep: decode the pixels of images, beyond the walk through their structure.

    Raises:
        RuntimeError: `E-ARG` where there is no such file, `E-IO-…` where the store fails.
    """
    storage, file = find_uri(uri, access)
    report = Report(files=1, read_bytes=file.size_bytes)
    opened = open_records(storage, file)
    check = Check.DECODE if deep else Check.HEADER
    try:
        for found in walk_frames(opened.read, opened.size_bytes):
            if isinstance(found, BadFrame):
                where = at_record(uri, found.number, found.offset)
                report.findings.add(found.code, where, found.what, RESTORE)
            else:
                report.records += 1
                _add_record(report, found, uri, check)
    except zlib.error as error:
        what = f"its {opened.compression} data is damaged after record {report.records} ({error})"
        report.findings.add("E-VER-FRAME", uri, what, RESTORE)
    if opened.compression:
        report.notes.append(f"{uri}: {opened.compression}; readers must be told so")
    if report.too_large:
        note = f"{counted(report.too_large, 'record')} too large to be looked into"
        report.notes.append(f"{uri}: {note}")
    return report


def schema_findings(schema: InferredSchema) -> Findings:
    """Return what is wrong with records as far as it takes all of them to see."""
    findings = Findings()
    for place, what in conflicts(schema):
        remedy = "write the feature with one kind: a reader's spec can name only one"
        findings.add("E-VER-EXAMPLE", at_record(*place), what, remedy)
    for key, facts in sorted(schema.features.items()):
        if facts.is_image() and facts.no_images and facts.first_no_image:
            images = sum(facts.images.values())
            what = f"{facts.no_images} values of {key!r} are no image, {images} are (the first)"
            findings.add("E-VER-IMAGE", at_record(*facts.first_no_image), what, _MEND)
    return findings


def schema_lines(schema: InferredSchema) -> Iterator[str]:
    """Yield what records turned out to hold."""
    if schema.records:
        yield f"features of {counted(schema.records, 'Example')}:"
        yield from (f"  {line}" for line in schema.lines())
    if schema.others and schema.first_other:
        file, number, offset = schema.first_other
        first = f"the first is record {number} of {file} at byte {offset}"
        yield f"{counted(schema.others, 'record')} of other bytes than Examples: {first}"


def parse_record(data: bytes) -> Sequences | None:
    """Return what a record holds as an Example or SequenceExample, None where it is neither.

    Nearly any bytes of some lengths are a message of unknown fields: without one feature, bytes
    are no Example, unless there are none.
    """
    try:
        found = parse_sequence_example(data)
    except ValueError:
        return None
    return found if found.context or found.feature_lists or len(data) <= 4 else None


def looks_like_image(value: bytes) -> bool:
    """Return whether bytes begin as an image file that TensorFlow reads does.

    >>> looks_like_image(b"GIF89a..."), looks_like_image(b"BM is no image")
    (True, False)
    """
    if value.startswith(_SIGNATURES):
        return True
    if not value.startswith(b"BM") or len(value) < _BMP_BYTES.size:
        return False
    _, size_bytes, pixels_at = _BMP_BYTES.unpack_from(value)
    return size_bytes in (0, len(value)) and 0 < pixels_at < 4096


def _add_record(report: Report, record: Record, uri: str, check: Check) -> None:
    place = uri, record.number, record.offset
    if record.data is None:
        report.too_large += 1
        return
    found = parse_record(record.data)
    if found is None:
        report.schema.add_other(place)
        return
    report.schema.add(found, place)
    for key, values in _bytes_features(found):
        facts = report.schema.features.get(key)
        if facts is not None:
            _add_images(report.findings, facts, key, values, place, check)


def _bytes_features(found: Sequences) -> Iterator[tuple[str, Values]]:
    for key, values in found.context.items():
        if values.kind is Kind.BYTES:
            yield key, values
    for key, steps in found.feature_lists.items():
        yield from ((key, values) for values in steps if values.kind is Kind.BYTES)


def _add_images(
    findings: Findings, facts: FeatureFacts, key: str, values: Values, place: Place, check: Check
) -> None:
    for value in values.values:
        if not looks_like_image(value):
            if value:
                facts.no_images += 1
                facts.first_no_image = facts.first_no_image or place
            continue
        image = check_image(value, check)
        if isinstance(image, ImageFault):
            what = f"the image of {len(value)} bytes in {key!r} is damaged: {image.detail}"
            if image.code in ("E-IMG-TYPE", "E-IMG-PIXELS"):
                what = f"the image of {len(value)} bytes in {key!r} is none for TensorFlow"
                what += f": {image.detail}"
            findings.add("E-VER-IMAGE", at_record(*place), what, _MEND)
            facts.images["damaged"] = facts.images.get("damaged", 0) + 1
        else:
            facts.images[image.format] = facts.images.get(image.format, 0) + 1


class OpenedRecords(NamedTuple):
    """A file's frames, compressed or not.

    Attributes:
        read: reads the frames' bytes.
        size_bytes: of them, or `UNKNOWN_SIZE`.
        compression: `GZIP` or `ZLIB`; empty for none.
    """

    read: ReadSpan
    size_bytes: int
    compression: str


def open_records(storage: Storage, file: Entry) -> OpenedRecords:
    """Return a TFRecord file's frames; where it is compressed, as one reads on."""

    def read(start: int, end: int) -> bytes:
        return storage.read(file.name, file, (start, end))

    compression = _compression(read(0, min(_HEAD_BYTES, file.size_bytes)))
    if not compression:
        return OpenedRecords(read, file.size_bytes, "")
    return OpenedRecords(_Inflated(read, file.size_bytes).read, UNKNOWN_SIZE, compression)


def _compression(head: bytes) -> str:
    """Return how a file that begins so is compressed; not at all where it begins with a frame."""
    if len(head) >= 12 and head[8:12] == struct.pack(
        "<I", masked_crc(google_crc32c.value(head[:8]))
    ):
        return ""
    if head.startswith(b"\x1f\x8b"):
        return "GZIP"
    is_zlib = len(head) > 1 and head[0] & 15 == _ZLIB_METHOD and head[0] >> 4 <= 7
    return "ZLIB" if is_zlib and (head[0] << 8 | head[1]) % 31 == 0 else ""


class _Inflated:
    """A compressed file's content; it holds one stretch, which moves forward only."""

    def __init__(self, read: ReadSpan, size_bytes: int) -> None:
        self._read = read
        self._size_bytes = size_bytes
        self._at = 0  # of the compressed file
        self._unread = b""
        self._inflate = zlib.decompressobj(32 + zlib.MAX_WBITS)
        self._base = 0
        self._held = bytearray()

    def read(self, start: int, end: int) -> bytes:
        """Return a span of the content, fewer bytes where it ends."""
        self._drop(start)
        while self._base + len(self._held) < end and (more := self._next()):
            self._held += more
            self._drop(start)
        return bytes(self._held[: end - start]) if start == self._base else b""

    def _drop(self, start: int) -> None:
        dropped = min(start - self._base, len(self._held))
        del self._held[:dropped]
        self._base += dropped

    def _next(self) -> bytes:
        """Return more of the content; nothing at its end."""
        while True:
            if not self._unread:
                end = min(self._at + _INFLATED_BYTES, self._size_bytes)
                self._unread = self._read(self._at, end) if self._at < end else b""
                self._at = end
            if self._inflate.eof:  # another member may follow
                if not self._unread:
                    return b""
                self._inflate = zlib.decompressobj(32 + zlib.MAX_WBITS)
            more = self._inflate.decompress(self._unread, _INFLATED_BYTES)
            ended = not self._unread
            self._unread = self._inflate.unconsumed_tail or self._inflate.unused_data
            if more:
                return more
            if ended and not self._inflate.eof:
                raise zlib.error("the stream is cut off")
