"""What trainers import: one output, read by tf.data or at random, by manifest alone.

    import readers

    dataset = readers.load("gs://bucket/coco-tfrec", "train", batch_size=64)  # tf.data
    records = readers.open("gs://bucket/coco-tfrec", "train")  # records[42], without TensorFlow

Neither Beam nor, but for `load`, TensorFlow is imported.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from transforms.storage import DEFAULT_ACCESS, Access

if TYPE_CHECKING:
    from readers.records import Records


def open(
    data_sets: str | Sequence[str],
    split: str,
    *,
    host: int = 0,
    hosts: int = 1,
    drop_remainder: bool = False,
    access: Access = DEFAULT_ACCESS,
) -> "Records":
    """Return the records of a split as a sequence: `len(records)`, `records[42]`, `records[:100]`.

    Manifests are read and each data set is listed once; shards and their indexes are read when a
    record of them is asked for. TensorFlow is not needed, and not imported.

    Args:
        data_sets: path or URI of an output, or of several that are read as one.
        split: such as `train`.
        host: of those that share the split, from 0.
        hosts: their number.
        drop_remainder: whether all hosts get equally many records.
        access: how stores are reached.

    Returns:
        Records are dicts of NumPy values by key, see `readers.records.Records`.

    Raises:
        ValueError: when there is no such split or host, or a data set has no manifest.
        RuntimeError: `E-VER-MISSING`, `E-VER-SIZE` or, on gs://, `E-VER-CRC` when a shard is not
            what was written.
    """
    from readers.data_sets import find_data_sets
    from readers.hosts import deal
    from readers.records import Records
    from readers.shard_files import list_shards

    found = find_data_sets(data_sets, access)
    shards = list_shards(found, split)
    counts = [shard.file.entry.records for shard in shards]
    parts = deal(counts, host, hosts, drop_remainder=drop_remainder)
    return Records(found, split, shards, parts)
