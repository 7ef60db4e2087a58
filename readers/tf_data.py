"""Read data sets by `tf.data`: parsed features, a known number of them, shared by hosts.

The graph is of TensorFlow's own operations alone, and the files are read by TensorFlow itself.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import tensorflow as tf

from beam_tfrec.readers.data_sets import DataSets, Part, Root, deal, find_data_sets, list_shards
from beam_tfrec.schemas.features import (
    Content,
    Feature,
    FeatureSpec,
    Kind,
    RepeatedAs,
    parse_sequence_spec,
    parse_spec,
)
from beam_tfrec.transforms.storage import Access, is_local

SHUFFLED_RECORDS = 1024
"""Of the buffer where no size is given: the order was shuffled as a whole when it was written."""

_FILES_AT_ONCE = 16  # and not as many as there are cores: the order is the same on any machine
_REMOTE_BUFFER_BYTES = 8 << 20  # a request for each: TensorFlow's 256 kB are for disks


BOX_VALUES = 4
"""Of a feature whose content is boxes, for each of them."""

_OBJECTS = ("image/object/", "objects/", "panoptic_objects/")
_KEYPOINTS = frozenset(f"image/object/keypoint/{what}" for what in ("x", "y", "visibility", "text"))
_OF_ANY_LENGTH = frozenset({"image/object/polygon", "image/object/polygon_length"})
_PADDING: Mapping[Kind, float | bytes] = {Kind.BYTES: b"", Kind.FLOAT: -1.0, Kind.INT64: -1}

Tensors = dict[str, tf.Tensor | tf.RaggedTensor]
"""Of a record, or of a batch of them, by key."""


@dataclass(frozen=True)
class Reading:
    """Which records are read, in which order and portions, and what becomes of their features.

    Attributes:
        batch_size: number of records in a batch; None for single records.
        decode_images: whether images are pixels, uint8 [height, width, 3]; else files' bytes.
        image_size: height and width, in px, of resized images; None to leave them.
        max_objects: length to which lists of objects are padded or cut; None to leave them.
        shuffle: whether records come in another order each time; a number is the buffer's.
        seed: seed of these orders.
        host: number of this host, from 0.
        hosts: number of hosts that share a split.
        drop_remainder: whether hosts get equally many records, and batches are whole.
        known_cardinality: whether the dataset knows the number of records, and checks it.
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

    def __post_init__(self) -> None:
        """Refuse what cannot be done, or would do nothing."""
        for name, such_as in (("batch_size", 64), ("max_objects", 100)):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}: give such as {such_as}")
        if self.image_size is not None and not self.decode_images:
            raise ValueError(
                f"image_size must come with decode_images, got {self.image_size}: leave it out"
            )
        if self.image_size is not None and not _is_size(self.image_size):
            raise ValueError(
                f"image_size must be (height, width) in px, got {self.image_size}: give another"
            )
        if self.shuffle < 0:
            raise ValueError(f"shuffle must be at least 0, got {self.shuffle}: give True or False")
        if self.seed is not None and not self.shuffle:
            raise ValueError(f"seed must come with shuffle, got {self.seed} without: leave it out")

    @property
    def buffer_records(self) -> int:
        """Records that are shuffled at a time; 0 where they are not."""
        return SHUFFLED_RECORDS if self.shuffle is True else int(self.shuffle)


def load_data_sets(
    roots: Root | Sequence[Root], split: str, reading: Reading, access: Access
) -> tf.data.Dataset:
    """Return what `beam_tfrec.load` does."""
    data_sets = find_data_sets(roots, access)
    shards = list_shards(data_sets, split)
    counts = [shard.entry.records for shard in shards]
    dropping, least = reading.drop_remainder, reading.batch_size or 1
    parts = deal(counts, reading.host, reading.hosts, drop_remainder=dropping)
    records = sum(part.records for part in parts)
    if dropping and records < least:  # to repeat a share without a batch would never end
        raise ValueError(
            f"drop_remainder must leave a batch, got {sum(counts)} records for {reading.hosts}"
            f" hosts: give a smaller batch_size than {least}, or set it False"
        )
    in_order = not reading.shuffle and data_sets.is_in_input_order(split)
    dataset = _read([(shards[part.shard].uri, part) for part in parts], reading, in_order)
    if reading.known_cardinality:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(records))
    if reading.buffer_records:
        # TensorFlow allocates the buffer's slots at once, 24 bytes each, before any record comes.
        buffered = max(1, min(reading.buffer_records, records))
        dataset = dataset.shuffle(buffered, reading.seed)
    dataset = _parse(dataset, data_sets, reading)
    return dataset.with_options(_options(reading)).prefetch(tf.data.AUTOTUNE)


def _read(parts: Sequence[tuple[str, Part]], reading: Reading, in_order: bool) -> tf.data.Dataset:
    """Return the serialized records of parts of files, of several files at a time."""
    uris = [uri for uri, _ in parts]
    buffer_bytes = None if all(map(is_local, uris)) else _REMOTE_BUFFER_BYTES

    def read_part(uri: tf.Tensor, first: tf.Tensor, records: tf.Tensor) -> tf.data.Dataset:
        file = tf.data.TFRecordDataset(uri, buffer_size=buffer_bytes)
        return file.skip(first).take(records)

    columns = (
        tf.constant(uris, tf.string, [len(uris)]),
        tf.constant([part.first for _, part in parts], tf.int64, [len(uris)]),
        tf.constant([part.records for _, part in parts], tf.int64, [len(uris)]),
    )
    pieces = tf.data.Dataset.from_tensor_slices(columns)
    if reading.shuffle:
        pieces = pieces.shuffle(max(1, len(parts)), reading.seed)
    files_at_once = 1 if in_order else _FILES_AT_ONCE
    return pieces.interleave(read_part, files_at_once, num_parallel_calls=tf.data.AUTOTUNE)


def _parse(dataset: tf.data.Dataset, data_sets: DataSets, reading: Reading) -> tf.data.Dataset:
    """Return the tensors of records, or of batches of them."""
    size, dropping, parse = reading.batch_size, reading.drop_remainder, parser(data_sets, reading)
    has_images = reading.decode_images and image_keys(data_sets.spec)
    if size is not None and not (data_sets.spec.is_sequence or has_images):
        # A batch is parsed in a fraction of the time of its records.
        return dataset.batch(size, dropping).map(parse, tf.data.AUTOTUNE)
    dataset = dataset.map(parse, tf.data.AUTOTUNE)
    return dataset if size is None else dataset.ragged_batch(size, dropping)


def _options(reading: Reading) -> tf.data.Options:
    options = tf.data.Options()
    if reading.shuffle and reading.seed is None:
        options.deterministic = False
    # Where a strategy gives a worker some of the files, they hold fewer records than are told.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options


def image_keys(spec: FeatureSpec) -> list[str]:
    """Return the features that are images, one a record."""
    return [f.key for f in spec.features if f.content is Content.IMAGE and not f.repeated]


def values_per_object(data_sets: DataSets) -> dict[str, int]:
    """Return the features that can be padded to a number of objects, with their values for each.

    Raises:
        ValueError: when there are none, or objects' keypoints differ in number.

    These are the lists of an image's or a panoptic image's objects but for polygons, of which an
    object may have any number.
    """
    found = {
        feature.key: BOX_VALUES if feature.content is Content.BOX_YXYX else 1
        for feature in data_sets.spec.features
        if feature.repeated and feature.key.startswith(_OBJECTS)
    }
    for key in _OF_ANY_LENGTH & found.keys():
        del found[key]
    if not found:
        raise ValueError(
            f"max_objects must come with objects' lists, got {data_sets.spec.name!r}: leave it out"
        )
    if _KEYPOINTS & found.keys():
        found |= dict.fromkeys(_KEYPOINTS & found.keys(), _keypoints_per_object(data_sets))
    return found


def parser(data_sets: DataSets, reading: Reading) -> Callable[[tf.Tensor], Tensors]:
    """Return the function that makes tensors of a record, or of a batch of encoded Examples.

    It takes a batch of Examples only if it decodes no images.

    Raises:
        ValueError: when there is nothing to be resized or padded.
    """
    spec = data_sets.spec
    per_object = {} if reading.max_objects is None else values_per_object(data_sets)
    images = image_keys(spec) if reading.decode_images else []
    if reading.image_size is not None and not images:
        raise ValueError(
            f"image_size must come with images, got layout {spec.name!r}: leave it out"
        )
    features = None if spec.is_sequence else parse_spec(spec, RepeatedAs.RAGGED)

    def parse(records: tf.Tensor) -> Tensors:
        if features is None:
            context, steps = parse_sequence_spec(spec, RepeatedAs.RAGGED)
            parts = tf.io.parse_single_sequence_example(records, context, steps)
            parsed = {**parts[0], **parts[1]}
        else:
            parsed = tf.io.parse_example(records, features)  # of a scalar too
        tensors = _shaped(parsed, spec, reading.max_objects, per_object)
        return tensors | {key: _pixels(tensors[key], reading.image_size) for key in images}

    return tf.autograph.experimental.do_not_convert(parse)  # its choices are made in Python


def _keypoints_per_object(data_sets: DataSets) -> int:
    """Return how many an object of any class has: as many as the class with most."""
    found = {
        max((len(label.keypoints) for label in manifest.plan.labels), default=0)
        for manifest in data_sets.manifests
    }
    if len(found) > 1 or 0 in found:
        counts = " and ".join(map(str, sorted(found)))
        raise ValueError(
            f"max_objects must come with as many keypoints for all, got {counts}: read them apart"
        )
    return found.pop()


def _shaped(
    tensors: Tensors, spec: FeatureSpec, max_objects: int | None, per_object: Mapping[str, int]
) -> Tensors:
    """Return the tensors with boxes in fours, and those of objects padded or cut."""
    shaped = dict(tensors)
    for feature in spec.features:
        values = shaped[feature.key]
        each = per_object.get(feature.key, 1)
        if feature.content is Content.BOX_YXYX and feature.repeated and not feature.per_step:
            each = BOX_VALUES
        if each > 1:
            values = _grouped(values, each)
        if max_objects is not None and feature.key in per_object:
            values = _padded(values, max_objects, feature)
        shaped[feature.key] = values
    return shaped


def _grouped(values: tf.Tensor | tf.RaggedTensor, each: int) -> tf.Tensor | tf.RaggedTensor:
    """Return lists whose items are so many values."""
    if not isinstance(values, tf.RaggedTensor):
        return tf.reshape(values, [-1, each])
    return tf.RaggedTensor.from_row_splits(
        tf.reshape(values.values, [-1, each]), values.row_splits // each
    )


def _padded(values: tf.Tensor | tf.RaggedTensor, length: int, feature: Feature) -> tf.Tensor:
    is_batch = isinstance(values, tf.RaggedTensor)
    if not is_batch:
        values = tf.RaggedTensor.from_row_lengths(values, tf.shape(values, tf.int64)[:1])
    shape = [None, length, *values.shape[2:]]
    padded = values.to_tensor(default_value=_PADDING[feature.kind], shape=shape)
    return padded if is_batch else padded[0]


def _pixels(encoded: tf.Tensor, size: tuple[int, int] | None) -> tf.Tensor:
    """Return an image as RGB, uint8 [height, width, 3]; of an animation the first."""
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    if size is None:
        return image
    resized = tf.image.resize(image, size, antialias=True)
    return tf.saturate_cast(tf.round(resized), tf.uint8)


def _is_size(size: object) -> bool:
    match size:
        case [SupportsIndex() as height, SupportsIndex() as width]:  # NumPy's too
            return operator.index(height) > 0 and operator.index(width) > 0
    return False
