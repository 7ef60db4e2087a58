"""The summary of a finished run, from its manifest."""

from schemas.faults import printable
from schemas.manifest import MANIFEST_NAME, REJECTED_NAME, Manifest, SplitSummary
from schemas.shards import PLAIN
from transforms.quantities import counted, megabytes
from transforms.storage import join_uri


def summarize(manifest: Manifest, output: str, seconds: float) -> str:
    """Return what was made, what was rejected and why, and how to read it."""
    records = sum(split.records for split in manifest.splits.values())
    where, rate = printable(output), f"{records / seconds:,.0f} images/s"
    lines = [f"{where}: {counted(records, 'record')} in {seconds:.1f} s ({rate})"]
    for name, split in manifest.splits.items():
        lines += _split_lines(name, split)
    lines += _reading_lines(manifest, output)
    return "\n".join(lines) + "\n"


def _split_lines(name: str, split: SplitSummary) -> list[str]:
    fate, repeated = split.annotations, split.repeated_annotation_ids
    lines = [
        f"  {name}: {split.records} of {split.listed} images in {counted(split.shards, 'shard')},"
        f" {megabytes(split.bytes)}; {fate.written} of {fate.listed} annotations"
    ]
    rows = {
        "rejected": split.rejected,
        "in earlier data sets": _earlier(split),
        "excluded": {"images": split.excluded} if split.excluded else {},
        "annotations dropped": fate.dropped,
        "annotations lost with images": {"annotations": fate.lost} if fate.lost else {},
        "repeated ids": {"annotations": repeated} if repeated else {},
        "mended": split.repairs,
        "unusual": split.traits,
    }
    for what, counts in rows.items():
        if counts:
            terms = ", ".join(f"{count} {reason}" for reason, count in counts.items())
            lines.append(f"    {what}: {terms}")
    if split.earlier and split.listed == split.earlier + split.excluded:
        lines.append("    nothing is new: the split is empty here")
    return lines


def _earlier(split: SplitSummary) -> dict[str, int]:
    counts = {"images": split.earlier, "annotations": split.annotations.earlier}
    return {what: count for what, count in counts.items() if count}


def _reading_lines(manifest: Manifest, output: str) -> list[str]:
    rejects, manifest_uri = join_uri(output, REJECTED_NAME), join_uri(output, MANIFEST_NAME)
    lines = [f"  rejects: {printable(rejects)}; everything else: {printable(manifest_uri)}"]
    if not manifest.shards:
        return lines
    first = manifest.shards[0].split
    lines += [
        "  read it:",
        "    import json, tensorflow as tf",
        f"    shards = json.load(tf.io.gfile.GFile({manifest_uri!a}))['shards']",
        f"    files = [{join_uri(output, '')!a} + s['file'] for s in shards"
        f" if s['split'] == {first!r}]",
        "    dataset = tf.data.TFRecordDataset(files)",
    ]
    if manifest.plan.options.get("shard_names") != PLAIN:
        lines.append("  tfds.builder_from_directory wants --shard_names plain")
    return lines
