"""Read data sets with `tf.data`: parsed features, known cardinality, shares for hosts.

The graph holds only TensorFlow's own operations, and TensorFlow reads the shards.
"""

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import SupportsIndex

import numpy as np
import tensorflow as tf

from beam_tfrec.readers.data_sets import (
    DataSets,
    Root,
    ShardFile,
    Splits,
    find_mixture,
    list_shards,
)
from beam_tfrec.readers.shares import deal, mixed_records, num_batches
from beam_tfrec.schemas.faults import counted, require_at_least, require_whole
from beam_tfrec.schemas.features import (
    OPAQUE_KEY,
    Content,
    Feature,
    FeatureSpec,
    Kind,
    parse_sequence_spec,
    parse_spec,
)
from beam_tfrec.schemas.splits import bucket_size_px
from beam_tfrec.transforms.storage import Access, is_local

SHUFFLED_RECORDS = 1024
"""Default size of the shuffle buffer. It is small, since the writer shuffled all records."""

_FILES_AT_ONCE = 16  # fixed, so that the order does not depend on the number of cores
_REMOTE_BUFFER_BYTES = 8 << 20  # size of a request; TensorFlow's default of 256 kB suits disks

_DECODE_SCOPE = "E-VER-IMAGE.see.beam_tfrec.find_damaged_images"
"""Scope of decoding in the graph. TensorFlow's error names it, but cannot name the record."""

BOX_VALUES = 4
"""Number of values per box in a feature of boxes."""

_OBJECTS = ("image/object/", "objects/", "panoptic_objects/")
_KEYPOINTS = frozenset(f"image/object/keypoint/{what}" for what in ("x", "y", "visibility", "text"))
_OF_ANY_LENGTH = frozenset({"image/object/polygon", "image/object/polygon_length"})
_PADDING: Mapping[Kind, float | bytes] = {Kind.BYTES: b"", Kind.FLOAT: -1.0, Kind.INT64: -1}

Tensors = dict[str, tf.Tensor | tf.RaggedTensor]
"""Tensors of a record or a batch, by feature key."""


@dataclass(frozen=True)
class Reading:
    """Options of reading, validated; `beam_tfrec.load` explains them.

    Attributes:
        batch_size: number of records in a batch; None for single records.
        decode_images: whether to decode images to pixels, uint8 [height, width, 3].
        image_size: height and width of resized images in px; None keeps their sizes.
        max_objects: number of objects to pad or cut lists to; None keeps their lengths.
        shuffle: whether to shuffle in each epoch; a number is the buffer's size in records.
        seed: seed of the shuffle.
        host: number of this host, from 0.
        hosts: number of hosts that share a split.
        drop_remainder: whether hosts get equal numbers of records, and full batches only.
        known_cardinality: whether the dataset knows and checks the number of records.
        stopping_strategy: end of a mixture, see `mixed_records`; None for none.
        stored_size: height and width in px of all images as they are stored; None if they differ.
    """

    batch_size: int | None = None
    decode_images: bool = True
    image_size: tuple[int, int] | None = None
    max_objects: int | None = None
    shuffle: bool | int = False
    seed: int | None = None
    host: int = 0
    hosts: int = 1
    drop_remainder: bool = False
    known_cardinality: bool = True
    stopping_strategy: str | None = None
    stored_size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Refuse values that are out of range, and options without effect."""
        require_at_least(1, batch_size=self.batch_size, max_objects=self.max_objects)
        require_at_least(0, shuffle=self.shuffle)
        require_whole(seed=self.seed or 0)
        size = self.image_size
        if size is not None and not self.decode_images:
            raise ValueError(f"image_size needs decode_images, got {size}: leave it out")
        if size is not None and not _is_size(size):
            raise ValueError(f"image_size must be (height, width), got {size}: give both")
        if self.seed is not None and not self.shuffle:
            raise ValueError(f"seed must come with shuffle, got only seed={self.seed}: add shuffle")


def load_data_sets(
    roots: Root | Sequence[Root] | Mapping[Root, float],
    split: Splits,
    reading: Reading,
    access: Access,
) -> tf.data.Dataset:
    """Return the dataset of `beam_tfrec.load`."""
    data_sets, weights = find_mixture(roots, reading.stopping_strategy, access)
    if any(manifest.is_array_record for manifest in data_sets.manifests):
        what = f"tf.data reads no ArrayRecord files, got {', '.join(data_sets.roots)}"
        raise ValueError(f"{what}: use beam_tfrec.open, Grain or tfds.data_source")
    if weights:
        return _load_mixture(data_sets, weights, split, reading)
    if buckets := data_sets.buckets(split):
        return _load_buckets(data_sets, buckets, reading)
    return _load_split(data_sets, split, reading)


def _load_buckets(
    data_sets: DataSets, buckets: Sequence[tuple[str, ...]], reading: Reading
) -> tf.data.Dataset:
    """Return the batches of all size buckets; each batch is of one bucket.

    Buckets take turns in proportion to their numbers of batches. The order of the buckets is the
    same on all hosts and in all epochs, since hosts that train together need equal shapes.
    """
    size, dropping = reading.batch_size or 1, reading.drop_remainder
    datasets, counts, records = [], [], 0
    for splits in buckets:
        shards = data_sets.records(splits)
        records += sum(shards)
        parts = deal(shards, reading.host, reading.hosts, drop_remainder=dropping)
        count = num_batches(sum(p.records for p in parts), size, drop_remainder=dropping)
        if dropping and not count:
            what = f"{sum(shards)} records of size bucket {'+'.join(splits)} are not read"
            warnings.warn(f"{what}: there is no whole batch for each host", stacklevel=4)
            continue
        counts.append(count)
        width, height = bucket_size_px(splits[0])
        sized = replace(reading, stored_size=(height, width))
        datasets.append(_load_split(data_sets, splits, sized))
    _refuse_no_batch(records, size * sum(counts), reading)
    positions = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    turns = np.repeat(np.arange(len(counts)), counts)[np.argsort(positions, kind="stable")]
    return _in_turn(datasets, turns, reading).with_options(_options(reading))


def _in_turn(
    datasets: Sequence[tf.data.Dataset], turns: np.ndarray, reading: Reading
) -> tf.data.Dataset:
    """Return elements of datasets, the next one always from the dataset whose turn it is."""
    chosen = tf.data.Dataset.from_tensor_slices(turns).map(lambda turn: tf.cast(turn, tf.int64))
    dataset = tf.data.Dataset.choose_from_datasets(datasets, chosen, stop_on_empty_dataset=False)
    if reading.known_cardinality:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(turns)))
    return dataset


def _load_split(data_sets: DataSets, split: Splits, reading: Reading) -> tf.data.Dataset:
    shards = list_shards(data_sets, split)
    in_order = data_sets.is_in_input_order(split)
    dataset, records = _share(shards, reading, in_order, dropping=reading.drop_remainder)
    _refuse_no_batch(sum(shard.entry.records for shard in shards), records, reading)
    return _batches(dataset, data_sets, reading)


def _refuse_no_batch(records: int, dealt: int, reading: Reading) -> None:
    """Refuse too few records for a host, as repeating an empty dataset would never end."""
    least = reading.batch_size or 1
    if reading.drop_remainder and dealt < least:
        got = f"{records} records for {counted(reading.hosts, 'host')} and batches of {least}"
        remedy = "give fewer hosts, smaller batches or drop_remainder=False"
        raise ValueError(f"drop_remainder must leave a batch, got {got}: {remedy}")


def _load_mixture(
    data_sets: DataSets, weights: Sequence[float], split: Splits, reading: Reading
) -> tf.data.Dataset:
    """Return records drawn from data sets by weight; each data set starts again at its end."""
    keeps_sizes = reading.batch_size and reading.decode_images and not reading.image_size
    if keeps_sizes and (buckets := len(data_sets.buckets(split))) > 1:
        what = f"batches of a mixture must have one image size, got {buckets} size buckets"
        raise ValueError(f"{what}: give image_size, or the split of one bucket")
    shards, strategy = list_shards(data_sets, split), reading.stopping_strategy
    dropping = reading.drop_remainder and strategy is not None
    in_order = data_sets.is_in_input_order(split)
    sources, have = [], []
    for place, root in enumerate(data_sets.roots):
        own = [shard for shard in shards if shard.data_set == place]
        dataset, records = _share(own, reading, in_order, dropping=dropping)
        if not records:
            what = f"records of split {split!r} for host {reading.host} of {reading.hosts}"
            raise ValueError(f"each data set must have {what}, got none of {root}: leave it out")
        sources.append(dataset.repeat())
        have.append(records)
    seed = reading.seed if reading.shuffle else 0
    if strategy is None:
        draw = tf.data.Dataset.sample_from_datasets
        return _batches(draw(sources, [*map(float, weights)], seed), data_sets, reading)
    counts = mixed_records(have, weights, strategy)
    _refuse_no_batch(sum(counts) * reading.hosts, sum(counts), reading)
    numbers = np.arange(len(counts), dtype=np.uint16)  # 2 bytes a record: the order is held whole
    turns = np.random.default_rng(seed).permutation(np.repeat(numbers, counts))
    return _batches(_in_turn(sources, turns, reading), data_sets, reading)


def _share(
    shards: Sequence[ShardFile], reading: Reading, in_order: bool, *, dropping: bool
) -> tuple[tf.data.Dataset, int]:
    """Return the host's serialized records, shuffled if asked, and their number.

    Several files are read in turn, unless the records have the order of their source.
    """
    counts = [shard.entry.records for shard in shards]
    parts = deal(counts, reading.host, reading.hosts, drop_remainder=dropping)
    uris = [shards[part.shard].uri for part in parts]
    buffer_bytes = None if all(map(is_local, uris)) else _REMOTE_BUFFER_BYTES

    def read_part(uri: tf.Tensor, first: tf.Tensor, records: tf.Tensor) -> tf.data.Dataset:
        file = tf.data.TFRecordDataset(uri, buffer_size=buffer_bytes)
        return file.skip(first).take(records)

    columns = (
        tf.constant(uris, tf.string, [len(parts)]),
        tf.constant([part.first for part in parts], tf.int64, [len(parts)]),
        tf.constant([part.records for part in parts], tf.int64, [len(parts)]),
    )
    pieces = tf.data.Dataset.from_tensor_slices(columns)
    if reading.shuffle:
        pieces = pieces.shuffle(max(1, len(parts)), reading.seed)
    files_at_once = 1 if in_order and not reading.shuffle else _FILES_AT_ONCE
    dataset = pieces.interleave(read_part, files_at_once, num_parallel_calls=tf.data.AUTOTUNE)
    records = sum(part.records for part in parts)
    if reading.known_cardinality:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(records))
    if reading.shuffle:
        asked = SHUFFLED_RECORDS if reading.shuffle is True else int(reading.shuffle)
        # TensorFlow allocates all slots of the buffer in advance, 24 bytes each.
        dataset = dataset.shuffle(max(1, min(asked, records)), reading.seed)
    return dataset, records


def _batches(dataset: tf.data.Dataset, data_sets: DataSets, reading: Reading) -> tf.data.Dataset:
    """Return the tensors of records or of batches."""
    size, dropping, parse = reading.batch_size, reading.drop_remainder, parser(data_sets, reading)
    has_images = reading.decode_images and image_keys(data_sets.spec)
    if size is not None and not (data_sets.spec.is_sequence or has_images):
        # Parsing a batch takes a fraction of the time of parsing its records one by one.
        dataset = dataset.batch(size, dropping).map(parse, tf.data.AUTOTUNE)
    else:
        dataset = dataset.map(parse, tf.data.AUTOTUNE)
        dataset = dataset if size is None else dataset.ragged_batch(size, dropping)
    return dataset.with_options(_options(reading)).prefetch(tf.data.AUTOTUNE)


def _options(reading: Reading) -> tf.data.Options:
    options = tf.data.Options()
    if reading.shuffle and reading.seed is None:
        options.deterministic = False
    # A strategy that shards by file would leave a worker fewer records than the cardinality says.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options


def image_keys(spec: FeatureSpec) -> list[str]:
    """Return the keys of features that hold one image per record."""
    return [f.key for f in spec.features if f.content is Content.IMAGE and not f.repeated]


def can_decode(image: bytes) -> bool:
    """Return whether TensorFlow decodes an image."""
    try:
        tf.io.decode_image(image, channels=3, expand_animations=False)
    except tf.errors.OpError:
        return False
    return True


def values_per_object(data_sets: DataSets) -> dict[str, int]:
    """Return the features that can be padded, with their number of values per object.

    These are the lists of an image's objects or panoptic segments. Polygons are left out, since an
    object may have any number.

    Raises:
        ValueError: No feature can be padded, or the numbers of keypoints differ.
    """
    found = {
        feature.key: BOX_VALUES if feature.content is Content.BOX_YXYX else 1
        for feature in data_sets.spec.features
        if feature.repeated
        and feature.key.startswith(_OBJECTS)
        and feature.key not in _OF_ANY_LENGTH
    }
    if not found:
        name = data_sets.spec.name
        raise ValueError(f"max_objects needs objects, layout {name!r} has none: leave it out")
    if _KEYPOINTS & found.keys():
        found |= dict.fromkeys(_KEYPOINTS & found.keys(), _keypoints_per_object(data_sets))
    return found


def parser(data_sets: DataSets, reading: Reading) -> Callable[[tf.Tensor], Tensors]:
    """Return the function that parses an encoded record, or a batch of encoded Examples.

    Batches are supported only where no images are decoded.

    Raises:
        ValueError: The layout has no images to resize, or no lists to pad.
    """
    spec = data_sets.spec
    boxes = [f for f in spec.features if f.content is Content.BOX_YXYX and not f.per_step]
    grouped = {feature.key: BOX_VALUES for feature in boxes if feature.repeated}
    padded: list[Feature] = []
    if reading.max_objects is not None:
        per_object = values_per_object(data_sets)
        grouped |= {key: each for key, each in per_object.items() if each > 1}
        padded = [feature for feature in spec.features if feature.key in per_object]
    images = image_keys(spec) if reading.decode_images else []
    if reading.image_size is not None and not images:
        raise ValueError(f"image_size needs images, layout {spec.name!r} has none: leave it out")
    features = None if spec.is_sequence else parse_spec(spec, ragged=True)

    def parse(records: tf.Tensor) -> Tensors:
        if spec.is_opaque:
            return {OPAQUE_KEY: records}
        if features is None:
            context, steps = parse_sequence_spec(spec, ragged=True)
            parts = tf.io.parse_single_sequence_example(records, context, steps)
            tensors = {**parts[0], **parts[1]}
        else:
            tensors = tf.io.parse_example(records, features)  # also parses a scalar
        for key, each in grouped.items():
            tensors[key] = _grouped(tensors[key], each)
        for feature in padded:
            tensors[feature.key] = _padded(tensors[feature.key], reading.max_objects, feature)
        return tensors | {key: _pixels(tensors[key], reading) for key in images}

    return tf.autograph.experimental.do_not_convert(parse)  # branches only on Python values


def _keypoints_per_object(data_sets: DataSets) -> int:
    """Return the number of keypoints per object: the largest number of any class."""
    found = {
        max((len(label.keypoints) for label in manifest.plan.labels), default=0)
        for manifest in data_sets.manifests
    }
    if len(found) > 1 or 0 in found:
        counts = " and ".join(map(str, sorted(found)))
        what = f"max_objects needs one number of keypoints, got {counts}"
        raise ValueError(f"{what}: load each data set alone")
    return found.pop()


def _grouped(values: tf.Tensor | tf.RaggedTensor, each: int) -> tf.Tensor | tf.RaggedTensor:
    """Group the values of a list, `each` of them into one item."""
    if not isinstance(values, tf.RaggedTensor):
        return tf.reshape(values, [-1, each])
    return tf.RaggedTensor.from_row_splits(
        tf.reshape(values.values, [-1, each]), values.row_splits // each
    )


def _padded(values: tf.Tensor | tf.RaggedTensor, length: int | None, feature: Feature) -> tf.Tensor:
    is_batch = isinstance(values, tf.RaggedTensor)
    if not is_batch:
        values = tf.RaggedTensor.from_row_lengths(values, tf.shape(values, tf.int64)[:1])
    shape = [None, length, *values.shape[2:]]
    padded = values.to_tensor(default_value=_PADDING[feature.kind], shape=shape)
    return padded if is_batch else padded[0]


def _pixels(encoded: tf.Tensor, reading: Reading) -> tf.Tensor:
    """Decode an image, or an animation's first frame, to RGB, uint8 [height, width, 3]."""
    with tf.name_scope(_DECODE_SCOPE):
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image.set_shape([*(reading.stored_size or (None, None)), 3])
    if reading.image_size is None:
        return image
    resized = tf.image.resize(image, reading.image_size, antialias=True)
    return tf.saturate_cast(tf.round(resized), tf.uint8)


def _is_size(size: object) -> bool:
    match size:
        case [SupportsIndex() as height, SupportsIndex() as width]:  # NumPy's too
            return operator.index(height) > 0 and operator.index(width) > 0
    return False
