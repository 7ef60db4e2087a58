"""Ray Data: rows in 16 blocks, a `map` that reads the photos, Parquet files."""

import sys
import tempfile
from functools import partial
from pathlib import Path

import job
import ray


def read_sample(row: dict, names: dict[int, str], images: Path) -> dict:
    """Return a sample with the image's bytes."""
    encoded = (images / row["file_name"]).read_bytes()
    return {"image": encoded, "id": row["id"], **job.object_columns(row, names)}


def main() -> int:
    """Write shuffled samples."""
    args = job.arguments().parse_args()
    rows, names = job.load_rows(args.annotations)
    with tempfile.TemporaryDirectory() as scratch:
        ray.init(include_dashboard=False, log_to_driver=False, _temp_dir=scratch)
        data = ray.data.from_items(rows, override_num_blocks=job.SHARDS)
        read = partial(read_sample, names=names, images=args.images)
        data.map(read).write_parquet(str(args.out))
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
