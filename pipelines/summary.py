"""The summary of a finished run, from its manifest."""

from schemas.documents.data_card import CARD_NAME
from schemas.faults import printable
from schemas.manifest import (
    DUPLICATES_NAME,
    MANIFEST_NAME,
    REJECTED_NAME,
    REPORT_NAME,
    Manifest,
    SharedContents,
    SourceFile,
    SplitSummary,
)
from schemas.shards import PLAIN
from schemas.shown_values import counted, megabytes
from transforms.images.check_images import Check
from transforms.images.findings import SUSPICIOUS_TRAITS
from transforms.storage import join_uri

_SAMPLES = {"table": "samples", "sequence": "samples", "pairs": "pairs", "arrays": "items"}
"""What samples are called, by the layout, where they are no images."""


def summarize(manifest: Manifest, output: str, seconds: float, *, has_report: bool = False) -> str:
    """Return what was made, what was rejected and why, and how to read it."""
    records = sum(split.records for split in manifest.splits.values())
    samples = _SAMPLES.get(manifest.layout, "images")
    where, rate = printable(output), f"{records / seconds:,.0f} {samples}/s"
    lines = [f"{where}: {counted(records, 'record')} in {seconds:.1f} s ({rate})"]
    annotated = any(split.annotations.listed for split in manifest.splits.values())
    for name, split in manifest.splits.items():
        lines += _split_lines(name, split, samples, annotated)
    lines += _suspicious_lines(manifest)
    for pair in manifest.duplicates or ():
        lines.append(_shared_line(pair, output))
    if has_report:
        lines.append(f"  look at it: {printable(join_uri(output, REPORT_NAME))}")
    lines += _reading_lines(manifest, output)
    return "\n".join(lines) + "\n"


def _split_lines(name: str, split: SplitSummary, samples: str, annotated: bool) -> list[str]:
    fate, repeated = split.annotations, split.repeated_annotation_ids
    samples = samples if split.images is None else "objects"
    lines = [
        f"  {name}: {split.records} of {split.listed} {samples}"
        f"{_share(split)} in {counted(split.shards, 'shard')}, {megabytes(split.bytes)}"
    ]
    if annotated:
        lines[0] += f"; {fate.written} of {fate.listed} annotations"
    lines += [_copies_line(split, split.images)] if split.images else []
    lines += map(_source_line, split.sources)
    rows = {
        "rejected": split.rejected,
        "in earlier data sets": _earlier(split, samples),
        "excluded": {samples: split.excluded} if split.excluded else {},
        f"skipped {samples}": split.skipped,
        "skipped annotations": fate.skipped if split.images is None else {},
        "annotations lost with images": {"annotations": fate.lost} if fate.lost else {},
        "repeated ids": {"annotations": repeated} if repeated else {},
        "mended": split.repairs,
        "unusual": split.traits,
    }
    for what, counts in rows.items():
        if counts:
            terms = ", ".join(f"{count} {reason}" for reason, count in counts.items())
            lines.append(f"    {what}: {terms}")
    if fate.dropped:
        codes = ", ".join(f"{count} {code}" for code, count in fate.dropped.items())
        dropped = f"{sum(fate.dropped.values())} of {counted(fate.listed, 'annotation')} dropped"
        lines.append(f"    warning: {dropped}: {codes}; see {REJECTED_NAME}")
    if split.earlier and split.listed == split.earlier + split.excluded:
        lines.append("    nothing is new: the split is empty here")
    return lines


def _share(split: SplitSummary) -> str:
    return "" if split.share is None else f" ({100 * split.share:.2f}% of all)"


def _shared_line(pair: SharedContents, output: str) -> str:
    """Say that two splits share photos: what is learnt from one is then tested on it."""
    (one, other), names = pair.splits, [printable(name) for name in pair.names]
    return (
        f"  warning: {counted(pair.contents, 'source')} of {one} with the bytes of one of {other},"
        f" such as {names[0]} and {names[1]}: {printable(join_uri(output, DUPLICATES_NAME))}"
    )


def _suspicious_lines(manifest: Manifest) -> list[str]:
    """Name what the header check found suspicious, in all splits together."""
    if manifest.plan.options.get("check") == Check.DECODE.value:
        return []
    traits = [split.traits for split in manifest.splits.values()]
    counts = {name: sum(found.get(name, 0) for found in traits) for name in SUSPICIOUS_TRAITS}
    found = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    advice = "such images may be damaged; --check decode makes sure"
    return [f"  suspicious: {found}: {advice}"] if found else []


def _copies_line(split: SplitSummary, images: int) -> str:
    """Say how many copies of a photo there are; what was left out is not known by photo."""
    line = f"    {counted(split.records, 'record')} of {counted(images, 'image')}"
    if with_objects := images - split.images_without_samples:
        objects = split.listed / with_objects
        line += f": a photo is stored once for each object written, of {objects:.1f} that it has"
    if split.images_without_samples:
        line += f"; {split.images_without_samples} without an object"
    return line


def _source_line(source: SourceFile) -> str:
    parts = {
        "images": source.images,
        "annotations": source.annotations,
        "categories": source.categories,
        "annotations joined": source.joined_annotations,
        "images not listed": source.images_not_listed,
        "images of another size": source.images_of_other_size,
    }
    return f"    {source.kind}: " + ", ".join(f"{n} {what}" for what, n in parts.items() if n)


def _earlier(split: SplitSummary, samples: str) -> dict[str, int]:
    counts = {samples: split.earlier, "annotations": split.annotations.earlier}
    return {what: count for what, count in counts.items() if count}


def _reading_lines(manifest: Manifest, output: str) -> list[str]:
    rejects, manifest_uri = join_uri(output, REJECTED_NAME), join_uri(output, MANIFEST_NAME)
    lines = [f"  rejects: {printable(rejects)}; everything else: {printable(manifest_uri)}"]
    if not manifest.shards:
        return lines
    where = f"{output!a}, {manifest.shards[0].split!a}"
    card = printable(join_uri(output, CARD_NAME))
    lines += [
        "  read it:",
        "    import readers",
        f"    dataset = readers.load({where})  # tf.data; readers.open({where}) without TensorFlow",
        f"  read it by other tools: {card}",
    ]
    is_sequence = any(feature.per_step for feature in manifest.features)
    if not is_sequence and manifest.plan.options.get("shard_names") != PLAIN:
        lines.append("  tfds.builder_from_directory wants --shard_names plain")
    return lines
