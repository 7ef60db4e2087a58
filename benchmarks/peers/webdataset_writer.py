"""webdataset's ShardWriter: a tar of `key.jpg` and `key.json` pairs a shard; no checksums."""

import sys

import job
import webdataset


def main() -> int:
    """Write shuffled samples, a sixteenth to each tar."""
    args = job.arguments().parse_args()
    rows, _ = job.load_rows(args.annotations)
    a_shard = -(-len(rows) // job.SHARDS)
    pattern = str(args.out / "train-%05d.tar")
    with webdataset.ShardWriter(pattern, maxcount=a_shard, maxsize=1e12, verbose=0) as sink:
        for row in rows:
            sink.write(
                {
                    "__key__": f"{row['id']:012}",
                    "jpg": (args.images / row["file_name"]).read_bytes(),
                    "json": row,
                }
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
