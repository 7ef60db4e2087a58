"""What a plan is priced by: a table of unit prices, and where buckets are."""

from collections.abc import Iterable

import msgspec

from schemas.faults import fault_line
from schemas.places import bucket_of
from schemas.prices import LIST_PRICES, Prices, merge_prices
from transforms.storage import DEFAULT_ACCESS, Access, bucket_location, read_uri


def load_prices(uri: str | None, access: Access = DEFAULT_ACCESS) -> Prices:
    """Return the list prices, or those with a TOML file's in their place.

    The file has the keys of `schemas/prices.py`: the day `taken`, and any others.

    Args:
        uri: of the file; None or empty for none.
        access: how stores are reached.

    Raises:
        RuntimeError: `E-ARG` when the file is not there, no TOML or no table of prices.
    """
    if not uri:
        return LIST_PRICES
    try:
        return merge_prices(msgspec.toml.decode(read_uri(uri, access)))
    except msgspec.DecodeError as error:
        what, remedy = f"no TOML: {error}", "mend it, see docs/costs.md"
        raise RuntimeError(fault_line("E-ARG", uri, what, remedy)) from None
    except ValueError as error:
        what, _, remedy = str(error).rpartition(": ")
        raise RuntimeError(fault_line("E-ARG", uri, what, remedy)) from None


def find_locations(uris: Iterable[str], access: Access = DEFAULT_ACCESS) -> dict[str, str | None]:
    """Return where the bucket of each `gs://` URI is, None where the account may not ask.

    One request a bucket; other URIs are left out.

    Raises:
        RuntimeError: when there is no such bucket.
    """
    buckets: dict[str, str | None] = {}
    found: dict[str, str | None] = {}
    for uri in sorted(uris):
        if uri.startswith("gs://"):
            bucket = bucket_of(uri)
            if bucket not in buckets:
                buckets[bucket] = bucket_location(uri, access)
            found[uri] = buckets[bucket]
    return found
