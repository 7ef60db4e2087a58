"""LitData's `optimize`: chunks of 64 MB, the images' bytes as they are, the objects as JSON."""

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import job
from litdata import optimize


def read_sample(row: dict, names: dict[int, str], images: Path) -> dict:
    """Return a sample; lists of varying length cannot be stored."""
    encoded = (images / row["file_name"]).read_bytes()
    return {"image": encoded, "id": row["id"], "objects": job.object_text(row, names)}


def main() -> int:
    """Write shuffled samples with one or more workers."""
    parser = job.arguments()
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    rows, names = job.load_rows(args.annotations)
    with tempfile.TemporaryDirectory(dir=args.out.parent) as cache:
        # On the same disk as the output, so that finished chunks are moved there, not copied.
        os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = cache
        optimize(
            fn=partial(read_sample, names=names, images=args.images),
            inputs=rows,
            output_dir=str(args.out),
            chunk_bytes="64MB",
            num_workers=args.processes,
            reorder_files=False,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
