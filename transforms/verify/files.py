"""Verify TFRecord files of any origin: structure, a schema over all records, and their images."""

import zlib
from collections.abc import Iterator

from schemas.example_rules import FeatureFacts, InferredSchema, Place, conflicts
from schemas.faults import Findings, at_record, counted
from schemas.features import Kind
from schemas.parse_example import Sequences, Values, parse_record
from transforms.images.check_images import Check, ImageFault, check_image, looks_like_image
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
