"""Forecast what a run reads, and as what a store bills it."""

from collections.abc import Mapping, Sequence

from schemas.workload import Reads
from transforms.forecast.outline_shards import GatheredPlan
from transforms.source_reads import add_reads
from transforms.storage import Access, find_uri, join_uri


def forecast_reads(
    gathered: GatheredPlan, roots: Mapping[str, str], files: Sequence[str], access: Access
) -> dict[tuple[str, str], Reads]:
    """Return what is read, by URI and storage class.

    Args:
        gathered: all that is known.
        roots: URI per root name, listed ones and those of samples.
        files: URIs of others that are read.
        access: how stores are reached.
    """
    of_samples: dict[str, Reads] = {}
    for outline in gathered.outlines:
        for root, (count, size) in outline.reads.items():
            known = of_samples.get(root, Reads())
            of_samples[root] = Reads(known.files + count, known.bytes + size)
    listed = {root: tally.reads for root, tally in gathered.tallies}
    parts = [
        {(roots[root], name): reads for name, reads in by_class.items()}
        for root in sorted({*listed, *of_samples})
        for by_class in [_by_class(listed.get(root, {}), of_samples.get(root, Reads()))]
    ]
    tried = (sample for outline in gathered.outlines for sample in outline.tried)
    sampled = {join_uri(roots[b.root], b.name) for sample in tried for b in sample.blobs}
    for uri in files:
        if uri in sampled:  # a file of many samples, such as an array
            continue
        _, entry = find_uri(uri, access)
        parts.append({(uri, entry.storage_class): Reads(1, entry.size_bytes)})
    return add_reads(parts)


def _by_class(listed: Mapping[str, Reads], of_samples: Reads) -> Mapping[str, Reads]:
    """Return what is read of a root, by storage class.

    A listing counts a file once; a sample may be a part of one, or be of a file of others, too.
    """
    files = sum(reads.files for reads in listed.values())
    if not files:
        return {"": of_samples}
    if files >= of_samples.files:
        return listed
    times = of_samples.files / files
    size = sum(reads.bytes for reads in listed.values()) or 1
    return {
        name: Reads(round(times * reads.files), round(of_samples.bytes * reads.bytes / size))
        for name, reads in listed.items()
    }
