"""What `--plan` prints."""

import enum
import json
from collections.abc import Mapping

import msgspec

from schemas.faults import printable
from schemas.run_plan import ClassSizes, Known, RunPlan, SplitForecast, Spread, spread_of
from transforms.quantities import bytes_text, counted


class PlanFormat(enum.Enum):
    """How a plan is printed."""

    TEXT = "text"
    JSON = "json"


_MAX_HOSTS = 12  # that are listed
_STATES = {
    "free": "nothing of a data set is there",
    "ours": "begun by the same plan, the run goes on",
    "complete": "complete already, the run would end at once",
    "overwritten": "the data set there is deleted first (--overwrite)",
    "refused": "refused, see the last line",
}


def plan_lines(plan: RunPlan, noun: str) -> list[str]:
    """Return a plan for people, a line each.

    Args:
        plan: to be told of.
        noun: what a sample is, such as `image`.
    """
    state = _STATES[plan.state]
    if plan.state == "ours":
        shards = sum(len(split.shards) for split in plan.splits.values())
        state += f": {plan.shards_there} of {counted(shards, 'shard')} are there"
    lines = [f"plan of {printable(plan.output)}: {state}"]
    for name, split in plan.splits.items():
        lines += _split_lines(name, split, noun)
    lines += _sampled_lines(plan)
    lines.append(
        f"  reads {counted(plan.read_files, 'file')}, {bytes_text(plan.read_bytes)};"
        f" writes {counted(plan.written_files, 'file')}, {bytes_text(plan.written_bytes)}"
    )
    lines += [f"  note: {printable(note)}" for note in plan.notes]
    lines.append("  nothing was written")
    return lines


def plan_json(plan: RunPlan) -> list[str]:
    """Return a plan for programs, as lines of one JSON object in ASCII."""
    return json.dumps(msgspec.to_builtins(plan), indent=2).splitlines()


def _split_lines(name: str, split: SplitForecast, noun: str) -> list[str]:
    what = "object" if split.images is not None else noun
    shards, sizes = split.shards, [shard.bytes for shard in split.shards]
    lines = [
        f"  {name}: {split.planned} of {counted(split.listed, what)} in"
        f" {counted(len(shards), 'shard')}, about {bytes_text(split.bytes)}"
    ]
    records = spread_of([shard.records for shard in shards])
    spread = spread_of(sizes)
    if spread is not None and records is not None:
        lines.append(
            f"    a shard: {_range(records)} records; {bytes_text(spread.least)} to"
            f" {bytes_text(spread.most)}, median {bytes_text(spread.median)}"
        )
        shown = ", ".join(map(str, split.hosts[:_MAX_HOSTS]))
        more = ", ..." if len(split.hosts) > _MAX_HOSTS else ""
        lines.append(f"    hosts served alike by files[h::H]: {shown}{more}")
    if split.copies_per_image is not None:
        lines.append(
            f"    {counted(split.images or 0, 'image')}: a photo is stored once for each object,"
            f" of {split.copies_per_image:.1f} that it has"
        )
    if split.classes is not None:
        lines.append(f"    classes: {_classes(split.classes)}")
    if split.left_out:
        terms = ", ".join(f"{count} {why}" for why, count in split.left_out.items())
        lines.append(f"    left out: {terms}")
    lines += _known_lines(f"rejected already, {what}s", split.rejected)
    lines += _known_lines("annotations dropped already", split.dropped)
    return lines


def _range(spread: Spread) -> str:
    if spread.least == spread.most:
        return str(spread.least)
    return f"{spread.least} to {spread.most}"


def _classes(classes: ClassSizes) -> str:
    if classes.samples is None:
        return str(classes.number)
    spread = classes.samples
    least, most = printable(classes.least_of), printable(classes.most_of)
    return f"{classes.number}; {spread.least} ({least}) to {spread.most} ({most}), median" + (
        f" {spread.median}"
    )


def _known_lines(what: str, known: Mapping[str, Known]) -> list[str]:
    return [
        f"    {what}: {found.count} {code}; the first: {found.first}"
        for code, found in known.items()
    ]


def _sampled_lines(plan: RunPlan) -> list[str]:
    sampled = plan.sampled
    if not sampled.records:
        return ["  sizes: from the listed sizes of files; no image was read"]
    records = counted(sampled.records, "record")
    lines = [f"  sizes: from {records} of images that were read and converted"]
    return lines + _known_lines("of these would be rejects", sampled.rejected)
