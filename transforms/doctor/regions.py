"""Where buckets lie, and whether a job in a region reads them without paying for the way."""

from collections.abc import Sequence

_DUAL_REGIONS = {
    "nam4": ("us-central1", "us-east1"),
    "eur4": ("europe-north1", "europe-west4"),
    "asia1": ("asia-northeast1", "asia-northeast2"),
}
"""Those whose regions a bucket's metadata do not list."""

_MULTI_REGIONS = ("us", "eu", "asia")
_OUTSIDE_EU = ("europe-west2", "europe-west6")  # London, Zurich


def holds_region(location: str, data_locations: Sequence[str], region: str) -> bool:
    """Return whether a bucket there holds its data in a region.

    Args:
        location: of the bucket, in any case.
        data_locations: regions of one whose owner has chosen two.
        region: of the job.

    >>> holds_region("EU", [], "europe-west4"), holds_region("EU", [], "europe-west2")
    (True, False)
    >>> holds_region("NAM4", [], "us-east1"), holds_region("US", ["US-EAST1"], "us-west1")
    (True, False)
    """
    place = location.lower()
    regions = [name.lower() for name in data_locations] or [*_DUAL_REGIONS.get(place, ())]
    if regions:
        return region in regions
    if place == "eu":
        return region.startswith("europe-") and region not in _OUTSIDE_EU
    if place in _MULTI_REGIONS:
        return region.startswith(f"{place}-")
    return region == place


def is_multi_region(location: str) -> bool:
    """Return whether reads from a bucket there cost money from each of its regions.

    >>> is_multi_region("US"), is_multi_region("us-central1")
    (True, False)
    """
    return location.lower() in _MULTI_REGIONS
