"""What trainers import: one output, read by tf.data or at random, by manifest alone.

    import beam_tfrec

    dataset = beam_tfrec.load("gs://bucket/coco-tfrec", "train", batch_size=64)  # tf.data
    records = beam_tfrec.open("gs://bucket/coco-tfrec", "train")  # records[42], without TensorFlow

Neither Beam nor, but for `load`, TensorFlow is imported.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access

if TYPE_CHECKING:
    import tensorflow as tf

    from beam_tfrec.readers.data_sets import Root
    from beam_tfrec.readers.records import Records


def load(
    data_sets: "Root | Sequence[Root]",
    split: str,
    *,
    batch_size: int | None = None,
    decode_images: bool = True,
    image_size: tuple[int, int] | None = None,
    max_objects: int | None = None,
    shuffle: bool | int = False,
    seed: int | None = None,
    host: int = 0,
    hosts: int = 1,
    input_context: "tf.distribute.InputContext | None" = None,
    drop_remainder: bool | None = None,
    known_cardinality: bool = True,
    access: Access = DEFAULT_ACCESS,
) -> "tf.data.Dataset":
    """Return the records of a split as a `tf.data.Dataset` of tensors by key.

    Args:
        data_sets: path or URI of an output, or of several that are read as one.
        split: such as `train`.
        batch_size: records of a batch, on this host; None for single records.
        decode_images: whether an image is its pixels, uint8 [height, width, 3], RGB; else bytes.
        image_size: height and width, in px, to which decoded images are resized.
        max_objects: number to which lists of objects are padded, with -1 and b"", or cut.
        shuffle: whether files and records come in another order in each epoch; a number is that of
            the records in the buffer, else 1,024. Otherwise the order is the same each time.
        seed: of these orders, which are then the same in each run.
        host: of those that share the split, from 0.
        hosts: their number.
        input_context: of a strategy, which tells both.
        drop_remainder: whether all hosts get equally many records, and all batches are whole; by
            default where there are several hosts.
        known_cardinality: whether the dataset knows how many there are, and fails where files hold
            others; False for a tf.data service that deals them to its workers.
        access: how manifests and listings are reached; TensorFlow reads shards by itself.

    Returns:
        Repeated features are RaggedTensors in a batch, and so are images that are not resized.

    Raises:
        ValueError: when an argument is wrong, or a data set has no manifest.
        RuntimeError: `E-VER-MISSING` or `E-VER-SIZE` when a shard is not what was written.
    """
    from beam_tfrec.readers.tf_data import Reading, load_data_sets

    if input_context is not None:
        if (host, hosts) != (0, 1):
            raise ValueError(
                f"input_context must come without host and hosts, got {host}, {hosts}: leave them"
                " out"
            )
        host, hosts = input_context.input_pipeline_id, input_context.num_input_pipelines
    reading = Reading(
        batch_size,
        decode_images,
        image_size,
        max_objects,
        shuffle,
        seed,
        host,
        hosts,
        hosts > 1 if drop_remainder is None else drop_remainder,
        known_cardinality,
    )
    return load_data_sets(data_sets, split, reading, access)


def open(
    data_sets: "Root | Sequence[Root]",
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
        Records are dicts of NumPy values by key, see `beam_tfrec.readers.records.Records`.

    Raises:
        ValueError: when there is no such split or host, or a data set has no manifest.
        RuntimeError: `E-VER-MISSING`, `E-VER-SIZE` or, on gs://, `E-VER-CRC` when a shard is not
            what was written.
    """
    from beam_tfrec.readers.data_sets import deal, find_data_sets, list_shards
    from beam_tfrec.readers.records import Records
    from beam_tfrec.readers.shard_reader import ShardReader

    found = find_data_sets(data_sets, access)
    shards = list_shards(found, split)
    counts = [shard.entry.records for shard in shards]
    parts = deal(counts, host, hosts, drop_remainder=drop_remainder)
    return Records(ShardReader(found, split, shards, parts))


def steps_per_epoch(
    data_sets: "Root | Sequence[Root]",
    split: str,
    global_batch: int,
    hosts: int = 1,
    *,
    drop_remainder: bool | None = None,
    access: Access = DEFAULT_ACCESS,
) -> int:
    """Return how many batches of a split every host reads in an epoch, as `load` has them.

    With equal arguments this is `len(load(…))`, where `batch_size` is `global_batch / hosts`. With
    `drop_remainder=False` some of several hosts may have one batch more.

    Args:
        data_sets: as of `load`.
        split: such as `train`.
        global_batch: records of a batch, on all hosts together.
        hosts: their number.
        drop_remainder: as of `load`, with the same default.
        access: how manifests are reached.

    Raises:
        ValueError: when the hosts cannot share a batch, or a host would have none.
    """
    from beam_tfrec.readers.data_sets import find_data_sets, steps

    shards = find_data_sets(data_sets, access).shards(split)
    records = sum(shard.entry.records for shard in shards)
    return steps(records, global_batch, hosts, drop_remainder=drop_remainder)
