"""The limit: the photos' bytes, in the listing's order, concatenated into 16 files. No records."""

import os
import sys
from pathlib import Path

import job


def main() -> int:
    """Copy every photo once."""
    args = job.arguments().parse_args()
    names = sorted(os.listdir(args.images))
    for shard in range(job.SHARDS):
        with Path(args.out, f"{shard:05}-of-{job.SHARDS:05}.bin").open("wb") as stream:
            for name in names[shard :: job.SHARDS]:
                stream.write(Path(args.images, name).read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
