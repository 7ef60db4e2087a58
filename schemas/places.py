"""Where buckets and jobs are: regions, dual-regions and multi-regions of Google Cloud."""

from collections.abc import Mapping

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


def regions_of(location: str) -> tuple[str, ...]:
    """Return the regions that a bucket's location names; none for a multi-region.

    >>> regions_of("nam4"), regions_of("us-east1+us-west1"), regions_of("eu")
    (('us-central1', 'us-east1'), ('us-east1', 'us-west1'), ())
    """
    if location in MULTI_REGIONS:
        return ()
    return DUAL_REGIONS.get(location, tuple(location.split("+")))


def continent_of(location: str) -> str | None:
    """Return the continent of a location, None for one that is not known.

    >>> continent_of("us-central1"), continent_of("eu"), continent_of("mars-north1")
    ('north-america', 'europe', None)
    """
    found = (name for prefix, name in _CONTINENTS if location.startswith(prefix))
    return next(found, None)
