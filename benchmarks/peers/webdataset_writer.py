"""webdataset's ShardWriter: one tar of `key.jpg` and `key.json` pairs per shard; no checksums.

`--processes 2` divides the samples; each process writes its own tars.
"""

import sys
from multiprocessing import get_context
from pathlib import Path

import job
import webdataset


def write(pattern: str, a_shard: int, rows: list[dict], images: Path) -> None:
    """Write samples into tars of at most this many."""
    with webdataset.ShardWriter(pattern, maxcount=a_shard, maxsize=1e12, verbose=0) as sink:
        for row in rows:
            sink.write(
                {
                    "__key__": f"{row['id']:012}",
                    "jpg": (images / row["file_name"]).read_bytes(),
                    "json": row,
                }
            )


def main() -> int:
    """Write shuffled samples, a sixteenth to each tar."""
    parser = job.arguments()
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    rows, _ = job.load_rows(args.annotations)
    a_shard = -(-len(rows) // job.SHARDS)
    if args.processes == 1:
        write(str(args.out / "train-%05d.tar"), a_shard, rows, args.images)
        return 0
    shares = [
        (str(args.out / f"train-{share}-%05d.tar"), a_shard, rows[share :: args.processes])
        for share in range(args.processes)
    ]
    # Forked, so that no process imports or reads the annotations again.
    started = [get_context("fork").Process(target=write, args=(*s, args.images)) for s in shares]
    for process in started:
        process.start()
    for process in started:
        process.join()
    return max(abs(process.exitcode or 0) for process in started)


if __name__ == "__main__":
    sys.exit(main())
