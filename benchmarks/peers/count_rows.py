"""Count the records of Arrow, Parquet and ArrayRecord files with the formats' own libraries."""

import sys
from pathlib import Path

import pyarrow as pa
from array_record.python.array_record_module import ArrayRecordReader
from pyarrow import parquet


def rows_in(path: Path) -> int:
    """Return the number of records of a file, 0 for files of other formats."""
    if path.suffix == ".array_record":
        return ArrayRecordReader(str(path)).num_records()
    if path.suffix == ".parquet":
        return parquet.read_metadata(path).num_rows
    if path.suffix == ".arrow":
        with pa.memory_map(str(path)) as source:
            return sum(batch.num_rows for batch in pa.ipc.open_stream(source))
    return 0


if __name__ == "__main__":
    print(sum(rows_in(path) for path in Path(sys.argv[1]).rglob("*")))
