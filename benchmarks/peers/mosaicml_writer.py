"""MosaicML streaming's MDSWriter; each process writes a folder, and the indexes are merged."""

import sys
from multiprocessing import Pool
from pathlib import Path

import job
from streaming import MDSWriter
from streaming.base.util import merge_index

COLUMNS = {"image": "bytes", "id": "int", "objects": "bytes"}
"""Arrays without a value, of images without objects, cannot be stored: the objects are JSON."""


def write(out: Path, rows: list[dict], names: dict[int, str], images: Path) -> None:
    """Write samples into a folder."""
    with MDSWriter(out=str(out), columns=COLUMNS, size_limit="64mb") as writer:
        for row in rows:
            encoded = (images / row["file_name"]).read_bytes()
            objects = job.object_text(row, names)
            writer.write({"image": encoded, "id": row["id"], "objects": objects})


def main() -> int:
    """Write shuffled samples."""
    parser = job.arguments()
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    rows, names = job.load_rows(args.annotations)
    if args.processes == 1:
        write(args.out, rows, names, args.images)
        return 0
    shares = [
        (args.out / f"{share:05}", rows[share :: args.processes], names, args.images)
        for share in range(args.processes)
    ]
    with Pool(args.processes) as pool:
        pool.starmap(write, shares)
    merge_index(str(args.out), keep_local=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
