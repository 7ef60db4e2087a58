"""The summary of a finished run, from its manifest."""

from schemas.manifest import Manifest, SplitSummary
from schemas.shards import PLAIN
from transforms.write_shards import megabytes


def summarize(manifest: Manifest, output: str, seconds: float) -> str:
    """Return what was made, what was rejected and why, and how to read it."""
    records = sum(split.records for split in manifest.splits.values())
    lines = [f"{output}: {records} records in {seconds:.1f} s ({records / seconds:,.0f} images/s)"]
    for name, split in manifest.splits.items():
        lines += _split_lines(name, split)
    lines += _reading_lines(manifest, output)
    return "\n".join(lines) + "\n"


def _split_lines(name: str, split: SplitSummary) -> list[str]:
    fate = split.annotations
    lines = [
        f"  {name}: {split.records} of {split.listed} images in {_shards(split.shards)},"
        f" {megabytes(split.bytes)}; {fate.written} of {fate.listed} annotations"
    ]
    rows = {
        "rejected": split.rejected,
        "excluded": {"images": split.excluded} if split.excluded else {},
        "annotations dropped": fate.dropped,
        "annotations lost with images": {"annotations": fate.lost} if fate.lost else {},
        "mended": split.repairs,
        "unusual": split.traits,
    }
    for what, counts in rows.items():
        if counts:
            terms = ", ".join(f"{count} {reason}" for reason, count in counts.items())
            lines.append(f"    {what}: {terms}")
    return lines


def _shards(count: int) -> str:
    return f"{count} shard{'' if count == 1 else 's'}"


def _reading_lines(manifest: Manifest, output: str) -> list[str]:
    first = next((shard.split for shard in manifest.shards), "train")
    lines = [
        f"  rejects: {output}/rejected.jsonl; everything else: {output}/manifest.json",
        "  read it:",
        "    import json, tensorflow as tf",
        f"    files = [{output!r} + '/' + s['file'] for s in"
        f" json.load(open({output + '/manifest.json'!r}))['shards'] if s['split'] == {first!r}]",
        "    dataset = tf.data.TFRecordDataset(files)",
    ]
    if manifest.plan.options.get("shard_names") != PLAIN:
        lines.append("  tfds.builder_from_directory wants --shard_names plain")
    return lines
