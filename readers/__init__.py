"""Read an output in a training program: with tf.data, or as a sequence of records.

    import beam_tfrec

    dataset = beam_tfrec.load("gs://bucket/coco-tfrec", "train", batch_size=64)  # tf.data
    records = beam_tfrec.open("gs://bucket/coco-tfrec", "train")  # records[42], without TensorFlow

The manifest names the shards. TensorFlow is imported only by what uses it, such as `load`, and Beam
only for stores such as `s3://`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from beam_tfrec.readers.data_sets import Root, Splits
    from beam_tfrec.readers.records import Records


def load(
    data_sets: "Root | Sequence[Root] | Mapping[Root, float]",
    split: "Splits",
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
    stopping_strategy: str | None = None,
    access: Access = DEFAULT_ACCESS,
) -> "tf.data.Dataset":
    """Return a split as a `tf.data.Dataset`; an element is a dict of tensors by feature key.

    Args:
        data_sets: path or URI of an output, or a list of outputs that are read as one. A dict of
            outputs and weights gives a mixture: each record is drawn from a data set with the
            probability of its weight, and a data set that ends starts again.
        split: name of the split, such as `train`, or names of several that are read as one.
        batch_size: number of records in a batch on this host; None yields single records.
        decode_images: decode images to RGB pixels, uint8 [height, width, 3]. False yields the bytes
            of the image files.
        image_size: height and width in px; decoded images are resized to it.
        max_objects: number of objects per image. Shorter lists are padded with -1 or b"", longer
            lists are cut.
        shuffle: shuffle files and records again in each epoch. True uses a buffer of 1,024 records,
            a number sets its size. False gives the same order each time.
        seed: seed of the shuffle, for the same orders in each run.
        host: number of this host, from 0.
        hosts: number of hosts that share the split.
        input_context: context of a `tf.distribute` strategy; replaces `host` and `hosts`.
        drop_remainder: give all hosts the same number of records, and drop the last short batch.
            The default is True with several hosts and False with one. Mixtures without end have
            neither a remainder nor a short batch.
        known_cardinality: set the dataset's cardinality, and fail when files hold another number of
            records. Use False with a tf.data service that distributes records to its workers.
        stopping_strategy: end of a mixture: `first_exhausted` once one of the data sets was read,
            `all_exhausted` once all were, some of them repeatedly. None for a mixture without end.
        access: settings for reading manifests and listings. TensorFlow reads the shards itself.

    Returns:
        The dataset. In batches, repeated features and images of unknown size are RaggedTensors.

    Raises:
        ValueError: An argument is wrong, or data sets do not fit together.
        RuntimeError: `E-ARG`: a data set has no manifest. `E-VER-MANIFEST`: it contradicts itself.
            `E-VER-MISSING` or `E-VER-SIZE`: a shard is missing or has another size.
    """
    from beam_tfrec.readers.shares import drops_remainder
    from beam_tfrec.readers.tf_data import Reading, load_data_sets

    if input_context is not None:
        if (host, hosts) != (0, 1):
            raise ValueError(f"input_context must come without host and hosts, got {host}, {hosts}")
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
        drops_remainder(hosts, drop_remainder),
        known_cardinality,
        stopping_strategy,
    )
    return load_data_sets(data_sets, split, reading, access)


def open(
    data_sets: "Root | Sequence[Root]",
    split: "Splits",
    *,
    host: int = 0,
    hosts: int = 1,
    drop_remainder: bool = False,
    access: Access = DEFAULT_ACCESS,
) -> "Records":
    """Return a split as a sequence: `len(records)`, `records[42]`, `records[:100]`.

    Opening reads the manifests and lists each data set once. Shards and their indexes are read when
    one of their records is requested. TensorFlow is neither needed nor imported.

    Args:
        data_sets: path or URI of an output, or a list of outputs that are read as one.
        split: name of the split, such as `train`, or names of several that are read as one.
        host: number of this host, from 0.
        hosts: number of hosts that share the split.
        drop_remainder: give all hosts the same number of records.
        access: settings for reading from stores.

    Returns:
        The records, each a dict of NumPy values by feature key: see `beam_tfrec.readers.records`.

    Raises:
        ValueError: The split or host does not exist, or data sets do not fit together.
        RuntimeError: `E-ARG`: a data set has no manifest. `E-VER-MANIFEST`: it contradicts itself.
            `E-VER-MISSING`, `E-VER-SIZE` or, on gs://, `E-VER-CRC`: a shard is missing or differs
            from the manifest.
    """
    from beam_tfrec.readers.data_sets import find_data_sets, list_shards, split_names
    from beam_tfrec.readers.records import Records
    from beam_tfrec.readers.shard_reader import ShardReader
    from beam_tfrec.readers.shares import deal

    found = find_data_sets(data_sets, access)
    shards = list_shards(found, split)
    counts = [shard.entry.records for shard in shards]
    parts = deal(counts, host, hosts, drop_remainder=drop_remainder)
    return Records(ShardReader(found, "+".join(split_names(split)), shards, parts))


def steps_per_epoch(
    data_sets: "Root | Sequence[Root] | Mapping[Root, float]",
    split: "Splits",
    global_batch: int,
    hosts: int = 1,
    *,
    host: int = 0,
    drop_remainder: bool | None = None,
    stopping_strategy: str | None = None,
    access: Access = DEFAULT_ACCESS,
) -> int:
    """Return the number of batches that a host reads from a split in an epoch.

    This equals `len(load(…))` with the same arguments and `batch_size=global_batch // hosts`. It is
    the same on all hosts, unless `drop_remainder` is False.

    Args:
        data_sets: outputs as in `load`; a mixture needs a stopping strategy.
        split: name of the split, such as `train`, or names of several that are read as one.
        global_batch: number of records in a batch, summed over all hosts.
        hosts: number of hosts that share the split.
        host: number of this host, from 0.
        drop_remainder: give all hosts the same number of records, and drop the last short batch.
            The default is True with several hosts and False with one, as in `load`.
        stopping_strategy: end of a mixture, as in `load`.
        access: settings for reading manifests.

    Raises:
        ValueError: An argument is wrong, or dropping the remainder leaves no batch.
    """
    from beam_tfrec.readers.data_sets import find_mixture, split_names
    from beam_tfrec.readers.shares import deal, drops_remainder, mixed_records, num_batches
    from beam_tfrec.schemas.faults import require_at_least

    found, weights = find_mixture(data_sets, stopping_strategy, access)
    drops = drops_remainder(hosts, drop_remainder)
    groups = [*map(found.records, found.buckets(split) or [split_names(split)])]
    if weights:  # each data set by itself
        all_of = found.shards(split)
        groups = [[s.entry.records for s in all_of if s.data_set == n] for n in range(len(weights))]
    dealt = [deal(records, host, hosts, drop_remainder=drops) for records in groups]
    require_at_least(1, global_batch=global_batch)
    if global_batch % hosts:
        raise ValueError(f"global_batch must be a multiple of hosts={hosts}, got {global_batch}")
    have = [sum(part.records for part in parts) for parts in dealt]
    if weights:
        have = [sum(mixed_records(have, weights, stopping_strategy))]
    steps = sum(num_batches(n, global_batch // hosts, drop_remainder=drops) for n in have)
    if drops and not steps:
        raise ValueError(f"global_batch must be at most {max(have) * hosts}, got {global_batch}")
    return steps


def repeat_factors(
    data_sets: "Root | Sequence[Root]",
    split: "Splits",
    threshold: float,
    *,
    access: Access = DEFAULT_ACCESS,
) -> "np.ndarray":
    """Return LVIS's repeat factor of each record: how often an epoch should hold it.

    A class in a share `f` of the records has the factor `max(1, sqrt(threshold / f))`. A record has
    the largest factor of its classes, and 1 without classes. Only indexes are read.

    Args:
        data_sets: path or URI of an output, or a list of outputs that are read as one.
        split: name of the split, such as `train`, or names of several that are read as one.
        threshold: share of the records below which a class is repeated; LVIS uses 0.001.
        access: settings for reading manifests and indexes.

    Returns:
        Factors of float64, in the order of `open`.

    Raises:
        ValueError: The split does not exist, or `threshold` is not above 0.
        RuntimeError: `E-VER-…`: an index is missing or damaged.
    """
    from beam_tfrec.readers import data_sets as found

    return found.repeat_factors(found.find_data_sets(data_sets, access), split, threshold)


def find_damaged_images(
    data_sets: "Root | Sequence[Root]", split: "Splits", *, access: Access = DEFAULT_ACCESS
) -> Iterator[str]:
    """Yield a line for each record with an image that TensorFlow cannot decode.

    The default check of a conversion reads only the headers of images. A damaged image then stops
    the dataset of `load`, with a TensorFlow error that does not say where the image is.

    Args:
        data_sets: path or URI of an output, or a list of outputs that are read as one.
        split: name of the split, such as `train`, or names of several that are read as one.
        access: settings for reading manifests, listings and indexes.

    Yields:
        `E-VER-IMAGE` with the shard, and the record's number, key and byte offset.

    Raises:
        ValueError: The split does not exist, or its records have no images.
        RuntimeError: `E-VER-…`: a shard or an index is missing or damaged.
    """
    from beam_tfrec.readers.tf_data import can_decode, image_keys

    records = open(data_sets, split, access=access)
    keys = image_keys(records.spec)
    if not keys:
        name = records.spec.name
        raise ValueError(f"split must have images, layout {name!r} has none: leave it out")
    for number, record in enumerate(records):
        for key in keys:
            if not can_decode(record[key]):
                member, what = records.reader.member(number), f"TensorFlow cannot decode {key}"
                remedy = "write it again with --check decode"
                yield str(records.damage("E-VER-IMAGE", member, what, remedy))


def folds(
    data_sets: "Root | Sequence[Root]", k: int, *, access: Access = DEFAULT_ACCESS
) -> list[tuple[list[str], str]]:
    """Return the training splits and the validation split of each of k folds.

        for train, val in beam_tfrec.folds("out", 5):
            model.fit(beam_tfrec.load("out", train), validation_data=beam_tfrec.load("out", val))

    Args:
        data_sets: path or URI of an output of `--splits fold*K`, or a list of outputs.
        k: number of folds.
        access: settings for reading manifests.

    Raises:
        ValueError: The data sets do not have exactly the folds `fold0` to `fold{k - 1}`, each with
            records.
    """
    from beam_tfrec.readers.data_sets import find_data_sets

    return find_data_sets(data_sets, access).folds(k)
