"""Hugging Face `datasets`: from a generator into Arrow files, then saved in 16 shards.

`from_generator` writes everything into a cache, `save_to_disk` copies it: the documented way.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import job
from datasets import Dataset, Features, Image, Value
from datasets import List as Column

OBJECTS = {
    "class/text": Value("string"),
    "class/label": Value("int64"),
    "is_crowd": Value("int64"),
    **{f"bbox/{edge}": Value("float32") for edge in ("xmin", "xmax", "ymin", "ymax")},
    "area": Value("float32"),
}
FEATURES = Features(
    {"image": Image(), "id": Value("int64"), **{k: Column(v) for k, v in OBJECTS.items()}}
)


def samples(rows: list[dict], names: dict[int, str], images: Path) -> Iterator[dict]:
    """Yield samples; processes divide the lists among the arguments."""
    for row in rows:
        encoded = (images / row["file_name"]).read_bytes()
        image = {"bytes": encoded, "path": row["file_name"]}
        yield {"image": image, "id": row["id"], **job.object_columns(row, names)}


def main() -> int:
    """Write shuffled samples, a sixteenth to each file."""
    parser = job.arguments()
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    rows, names = job.load_rows(args.annotations)
    processes = args.processes if args.processes > 1 else None
    with tempfile.TemporaryDirectory() as cache:
        data = Dataset.from_generator(
            samples,
            features=FEATURES,
            cache_dir=cache,
            gen_kwargs={"rows": rows, "names": names, "images": args.images},
            num_proc=processes,
        )
        data.save_to_disk(args.out, num_shards=job.SHARDS, num_proc=processes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
