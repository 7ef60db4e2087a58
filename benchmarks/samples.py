"""Plan generated samples in this process; print time and memory.

`python benchmarks/samples.py [NUMBER] [--pinned]` makes samples of 200 bytes of fields and a blob
each, joins them with a listing of their files (not with `--pinned`), and plans 16 shards of 25,000
or more. The planned samples are counted and dropped. It prints a list: seconds of CPU, with those
of making the samples; bytes of the process's peak beyond its peak for ten thousand samples; and
that peak in MB.
"""

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import apache_beam as beam

from beam_tfrec.pipelines.run import spare_the_collector
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.schemas.shards import ShardPlan
from beam_tfrec.transforms.pin_blobs import PinBlobs
from beam_tfrec.transforms.plan_shards import PlanShards
from beam_tfrec.transforms.shard_table import Sharding
from beam_tfrec.transforms.shuffle.elements import spool_for
from beam_tfrec.transforms.sources.listing import ListedFile
from beam_tfrec.transforms.storage import Entry

IN_PIECES_OF = 10_000
FEWEST = 10_000
RECORDS_PER_SHARD = 62_500
FIELDS = bytes(range(200))


def make_samples(first: int) -> Iterator[Sample]:
    """Yield a piece of the samples, pinned or not yet."""
    for n in range(first, first + IN_PIECES_OF):
        blob = Blob("train", f"{n:012}.jpg", 1000, f"{n}")
        yield Sample("train", str(n), n, (blob,), FIELDS, (n,))


def make_entries(first: int) -> Iterator[ListedFile]:
    """Yield the files of a piece."""
    for n in range(first, first + IN_PIECES_OF):
        yield ListedFile("train", Entry(f"{n:012}.jpg", 1000, f"{n}"))


def record_bytes(_: Sample) -> int:
    """Return the bytes that an Example would take."""
    return 1000


def count(shard: ShardPlan) -> int:
    """Return the number of samples of a shard."""
    return len(shard.samples)


def plan(number: int, *, pinned: bool) -> float:
    """Return the seconds of CPU time that planning takes."""
    begun_s = time.process_time()
    with beam.Pipeline(runner="FnApiRunner") as root:
        spool_for(root)
        pieces = list(range(0, number, IN_PIECES_OF))
        samples = root | beam.Create(pieces, reshuffle=False) | beam.FlatMap(make_samples)
        tallies = None
        if not pinned:
            listing = (
                root
                | "Pieces" >> beam.Create(pieces, reshuffle=False)
                | "Listing" >> beam.FlatMap(make_entries)
            )
            joined = samples | PinBlobs(listing)
            samples, tallies = joined.samples, joined.root_tallies
        sharding = Sharding(records_per_shard=RECORDS_PER_SHARD)
        planned = samples | PlanShards(sharding, record_bytes, tallies)
        _ = planned.shards | beam.Map(count)
    return time.process_time() - begun_s


def peak_bytes() -> int:
    """Return the highest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Plan as many samples as the arguments say."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("number", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--pinned", action="store_true", help="without the join with a listing")
    flags = parser.parse_args()
    spare_the_collector()
    plan(FEWEST, pinned=flags.pinned)
    base_bytes = peak_bytes()
    seconds = plan(flags.number, pinned=flags.pinned)
    grown = peak_bytes() - base_bytes
    print([round(seconds, 2), grown, peak_bytes() // 1_000_000])


if __name__ == "__main__":
    main()
