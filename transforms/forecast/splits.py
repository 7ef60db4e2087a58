"""Forecast the splits of a data set: what each will hold, and what is left out of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from schemas.faults import Rejected, Scope, reject_order
from schemas.layouts import Labels
from schemas.run_plan import (
    ClassSizes,
    Known,
    ShardForecast,
    SplitForecast,
    class_sizes,
    served_hosts,
)
from transforms.forecast.estimate_sizes import Shard
from transforms.forecast.outline_shards import GatheredPlan, ShardOutline
from transforms.publish_plan import reject_text
from transforms.sources.split_sources import SplitSource


def forecast_split(
    file: SplitSource,
    gathered: GatheredPlan,
    sizes: Mapping[Shard, ShardForecast],
    labels: Labels,
) -> SplitForecast:
    """Return what is known of a split.

    Args:
        file: what its sources held.
        gathered: all that is known.
        sizes: of shards, by split and index.
        labels: of the plan.
    """
    outlines = sorted((o for o in gathered.outlines if o.split == file.split), key=_index)
    shards = [sizes[outline.split, outline.index] for outline in outlines]
    planned = sum(shard.records for shard in shards)
    rejected = [reject for reject in gathered.rejected if reject.split == file.split]
    left_out = {
        **file.skipped,
        "excluded": file.excluded_images,
        "earlier": file.earlier_images,
    }
    of_images = file.images - file.images_without_samples if file.samples is not None else 0
    return SplitForecast(
        listed=file.listed,
        images=None if file.samples is None else file.images,
        planned=planned,
        left_out={name: count for name, count in left_out.items() if count},
        rejected=known_rejects(rejected, Scope.SAMPLE),
        dropped=known_rejects(rejected, Scope.ANNOTATION),
        shards=shards,
        bytes=sum(shard.bytes for shard in shards),
        hosts=served_hosts([shard.records for shard in shards]),
        copies_per_image=file.listed / of_images if of_images else None,
        classes=_class_sizes(outlines, labels),
    )


def _index(outline: ShardOutline) -> int:
    return outline.index


def known_rejects(rejects: Iterable[Rejected], scope: Scope) -> dict[str, Known]:
    """Return how many rejects there are by code, with the first of each."""
    found = sorted((reject for reject in rejects if reject.scope is scope), key=reject_order)
    counts = Counter(reject.code for reject in found)
    firsts: dict[str, Rejected] = {}
    for reject in found:
        firsts.setdefault(reject.code, reject)
    return {
        code: Known(counts[code], reject_text(firsts[code], "rejected")) for code in sorted(counts)
    }


def _class_sizes(outlines: Sequence[ShardOutline], labels: Labels) -> ClassSizes | None:
    sizes: Counter[str] = Counter()
    for outline in outlines:
        for found, count in outline.classes:
            sizes[_class_name(found, labels)] += count
    return class_sizes(len(labels) or len(sizes), sizes)


def _class_name(found: int | str, labels: Labels) -> str:
    try:
        return labels[found].name
    except KeyError:  # a number that stands for itself
        return str(found)
