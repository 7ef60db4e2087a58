"""Verify TFRecord files of any origin: structure, a schema over all records, and their images."""

import zlib

from schemas.example_rules import FeatureFacts, Place, conflicts
from schemas.faults import at_record, counted
from schemas.features import Kind
from schemas.parse_example import Values, parse_record
from transforms.images.check_images import Check, check_image, looks_like_image
from transforms.images.findings import ImageFault
from transforms.storage import Access, find_uri
from transforms.verify import Report
from transforms.walk_frames import BadFrame, Record, open_records, walk_frames

RESTORE = "restore the file from its source, or leave the record out"
_MEND = "make the record again from its image, or leave it out"


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
    report, too_large = Report(files=1, bytes=file.size_bytes), 0
    opened = open_records(storage, file)
    try:
        for found in walk_frames(opened.pieces, opened.size_bytes):
            if isinstance(found, BadFrame):
                where = at_record(uri, found.number, found.offset)
                report.find(found.code, where, found.what, RESTORE)
                continue
            report.records += 1
            too_large += found.data is None
            if found.data is not None:
                _add_record(report, found, uri, Check.DECODE if deep else Check.HEADER)
    except zlib.error as error:
        what = f"its {opened.compression} data is damaged after record {report.records} ({error})"
        report.find("E-VER-FRAME", uri, what, RESTORE)
    if opened.compression:
        report.notes.append(f"{uri}: compressed with {opened.compression}")
    if too_large:
        report.notes.append(f"{uri}: {counted(too_large, 'record')} too large to be parsed")
    return report


def add_schema(report: Report) -> None:
    """Add notes on what records hold, and findings that take all records."""
    schema, notes = report.schema, report.notes
    for place, what in conflicts(schema):
        remedy = "write the feature with one kind: a reader's spec can name only one"
        report.find("E-VER-EXAMPLE", at_record(*place), what, remedy)
    for key, facts in sorted(schema.features.items()):
        if facts.is_image() and facts.first_no_image:
            images = sum(facts.images.values())
            what = f"{facts.no_images} values of {key!r} are no image, {images} are (the first)"
            report.find("E-VER-IMAGE", at_record(*facts.first_no_image), what, _MEND)
    if schema.records:
        notes.append(f"features of {counted(schema.records, 'Example')}:")
        notes += (f"  {line}" for line in schema.lines())
    if schema.others and schema.first_other:
        file, number, offset = schema.first_other
        first = f"the first is record {number} of {file} at byte {offset}"
        notes.append(f"{counted(schema.others, 'record')} of other bytes than Examples: {first}")


def _add_record(report: Report, record: Record, uri: str, check: Check) -> None:
    place = uri, record.number, record.offset
    found = None if record.data is None else parse_record(record.data)
    if found is None:
        report.schema.add_other(place)
        return
    report.schema.add(found, place)
    features = [(key, [values]) for key, values in found.context.items()]
    for key, steps in [*features, *found.feature_lists.items()]:
        facts = report.schema.features.get(key)
        for values in steps:
            if facts is not None and values.kind is Kind.BYTES:
                _add_images(report, facts, key, values, place, check)


def _add_images(
    report: Report, facts: FeatureFacts, key: str, values: Values, place: Place, check: Check
) -> None:
    for value in filter(None, values.values):
        if not looks_like_image(value):
            facts.no_images += 1
            facts.first_no_image = facts.first_no_image or place
            continue
        image = check_image(value, check)
        if isinstance(image, ImageFault):
            what = f"the image of {len(value)} bytes in {key!r} is damaged: {image.detail}"
            report.find("E-VER-IMAGE", at_record(*place), what, _MEND)
        kind = "damaged" if isinstance(image, ImageFault) else image.format
        facts.images[kind] = facts.images.get(kind, 0) + 1
