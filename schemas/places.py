"""Where buckets and jobs are: regions, dual-regions and multi-regions of Google Cloud."""

from collections.abc import Mapping, Sequence

DUAL_REGIONS: Mapping[str, tuple[str, ...]] = {
    "asia1": ("asia-northeast1", "asia-northeast2"),
    "eur4": ("europe-north1", "europe-west4"),
    "eur5": ("europe-west1", "europe-west2"),
    "eur7": ("europe-west2", "europe-west3"),
    "eur8": ("europe-west3", "europe-west6"),
    "nam4": ("us-central1", "us-east1"),
}
"""Source: https://cloud.google.com/storage/docs/locations#predefined."""

MULTI_REGIONS = ("asia", "eu", "us")
_OUTSIDE_EU = ("europe-west2", "europe-west6")  # London, Zurich
_CONTINENTS = (
    ("northamerica", "north-america"),
    ("nam", "north-america"),
    ("us", "north-america"),
    ("southamerica", "latin-america"),
    ("eu", "europe"),
    ("asia", "asia"),
    ("australia", "oceania"),
    ("me", "middle-east"),
    ("africa", "africa"),
)


def bucket_of(uri: str) -> str:
    """Return the name of the bucket of a `gs://` URI.

    >>> bucket_of("gs://photos/train")
    'photos'
    """
    return uri.removeprefix("gs://").partition("/")[0]


def regions_of(location: str) -> tuple[str, ...]:
    """Return the regions that a bucket's location names; none for a multi-region.

    >>> regions_of("nam4"), regions_of("us-east1+us-west1"), regions_of("eu")
    (('us-central1', 'us-east1'), ('us-east1', 'us-west1'), ())
    """
    if location in MULTI_REGIONS:
        return ()
    return DUAL_REGIONS.get(location, tuple(location.split("+")))


def holds_region(location: str, data_locations: Sequence[str], region: str) -> bool:
    """Return whether a bucket there holds its data in a region.

    Args:
        location: of the bucket, in any case.
        data_locations: regions of one whose owner has chosen two.
        region: of the job.

    >>> holds_region("EU", [], "europe-west4"), holds_region("EU", [], "europe-west2")
    (True, False)
    >>> holds_region("EUR5", [], "europe-west2"), holds_region("US", ["US-EAST1"], "us-west1")
    (True, False)
    """
    place = location.lower()
    regions = [name.lower() for name in data_locations] or regions_of(place)
    if regions:
        return region in regions
    if place == "eu":
        return region.startswith("europe-") and region not in _OUTSIDE_EU
    return region.startswith(f"{place}-")


def is_multi_region(location: str) -> bool:
    """Return whether reads from a bucket there cost money from each of its regions.

    >>> is_multi_region("US"), is_multi_region("us-central1")
    (True, False)
    """
    return location.lower() in MULTI_REGIONS


def continent_of(location: str) -> str | None:
    """Return the continent of a location, None for one that is not known.

    >>> continent_of("us-central1"), continent_of("eu"), continent_of("mars-north1")
    ('north-america', 'europe', None)
    """
    found = (name for prefix, name in _CONTINENTS if location.startswith(prefix))
    return next(found, None)
