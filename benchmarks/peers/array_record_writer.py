"""ArrayRecord, one record per group, as Grain needs for random access; JPEGs uncompressed.

Grain leaves the records' encoding to the user: pickled dictionaries, as in its tutorials.
"""

import pickle
import sys

import job
from array_record.python.array_record_module import ArrayRecordWriter


def main() -> int:
    """Write shuffled samples, a sixteenth to each file."""
    args = job.arguments().parse_args()
    rows, names = job.load_rows(args.annotations)
    for shard in range(job.SHARDS):
        path = args.out / f"train-{shard:05}-of-{job.SHARDS:05}.array_record"
        writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
        for row in rows[shard :: job.SHARDS]:
            encoded = (args.images / row["file_name"]).read_bytes()
            sample = {"image": encoded, "id": row["id"], **job.object_columns(row, names)}
            writer.write(pickle.dumps(sample))
        writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
