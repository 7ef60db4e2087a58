"""Forecast how many files a run reads, and how many bytes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from transforms.forecast.outline_shards import GatheredPlan
from transforms.storage import Access, find_uri, join_uri


class Reads(NamedTuple):
    """Files that are read, which is one request each, and their bytes."""

    files: int = 0
    bytes: int = 0


def forecast_reads(
    gathered: GatheredPlan, roots: Mapping[str, str], files: Sequence[str], access: Access
) -> Reads:
    """Return what a run reads; a file that serves two samples counts twice.

    Args:
        gathered: the plan.
        roots: URI per root name, listed ones and those of samples.
        files: URIs of other files that are read.
        access: how stores are reached.
    """
    of_samples: dict[str, Reads] = {}
    for outline in gathered.outlines:
        for root, (count, size) in outline.reads.items():
            known = of_samples.get(root, Reads())
            of_samples[root] = Reads(known.files + count, known.bytes + size)
    listed = {root: Reads(tally.read_files, tally.read_bytes) for root, tally in gathered.tallies}
    # A listing counts a file once. Samples count their own files, but not JSON files beside them.
    parts = [
        max(listed.get(root, Reads()), of_samples.get(root, Reads()))
        for root in {*listed, *of_samples}
    ]
    tried = (sample for outline in gathered.outlines for sample in outline.tried)
    sampled = {join_uri(roots[blob.root], blob.name) for s in tried for blob in s.blobs}
    for uri in files:
        if uri not in sampled:  # else it is a file of many samples, such as an array
            parts.append(Reads(1, find_uri(uri, access)[1].size_bytes))
    return Reads(sum(part.files for part in parts), sum(part.bytes for part in parts))
