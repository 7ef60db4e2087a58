"""The tensors that records become: parsed, of static shapes where asked for, images decoded.

All of it is TensorFlow's own operations, so that graphs can be sent to other machines.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import SupportsIndex

import tensorflow as tf

from readers.data_sets import DataSets
from schemas.features import (
    Content,
    Feature,
    FeatureSpec,
    Kind,
    RepeatedAs,
    parse_sequence_spec,
    parse_spec,
)

BOX_VALUES = 4
"""Of a feature whose content is boxes, for each of them."""

_OBJECTS = ("image/object/", "objects/", "panoptic_objects/")
_KEYPOINTS = frozenset(f"image/object/keypoint/{what}" for what in ("x", "y", "visibility", "text"))
_OF_ANY_LENGTH = frozenset({"image/object/polygon", "image/object/polygon_length"})
_PADDING: Mapping[Kind, float | bytes] = {Kind.BYTES: b"", Kind.FLOAT: -1.0, Kind.INT64: -1}

Tensors = dict[str, tf.Tensor | tf.RaggedTensor]
"""Of a record, or of a batch of them, by key."""


@dataclass(frozen=True)
class TensorForm:
    """What is made of parsed features.

    Attributes:
        decode_images: whether images are pixels, uint8 [height, width, 3]; else files' bytes.
        image_size: height and width, in px, to which they are resized; None to leave them.
        max_objects: to which lists of objects are padded or cut; None to leave them.
    """

    decode_images: bool = True
    image_size: tuple[int, int] | None = None
    max_objects: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is no form."""
        if self.image_size is not None and not self.decode_images:
            raise ValueError(
                f"image_size must come with decode_images, got {self.image_size} without: leave it"
                " out, or have images decoded"
            )
        if self.image_size is not None and not _is_size(self.image_size):
            raise ValueError(
                f"image_size must be a height and a width in px, got {self.image_size}: give such"
                " as (224, 224)"
            )
        if self.max_objects is not None and self.max_objects < 1:
            raise ValueError(
                f"max_objects must be at least 1, got {self.max_objects}: give such as 100"
            )


def _is_size(size: object) -> bool:
    return (
        isinstance(size, tuple | list)
        and len(size) == 2
        and all(isinstance(side, SupportsIndex) and operator.index(side) > 0 for side in size)
    )


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
            f"max_objects must come with lists of objects, got layout"
            f" {data_sets.spec.name!r} without any: leave it out"
        )
    if _KEYPOINTS & found.keys():
        found |= dict.fromkeys(_KEYPOINTS & found.keys(), _keypoints_per_object(data_sets))
    return found


def parser(data_sets: DataSets, form: TensorForm) -> Callable[[tf.Tensor], Tensors]:
    """Return the function that makes tensors of a record.

    Raises:
        ValueError: when there is nothing to be resized or padded.
    """
    spec = data_sets.spec
    per_object = {} if form.max_objects is None else values_per_object(data_sets)
    images = image_keys(spec) if form.decode_images else []
    if form.image_size is not None and not images:
        raise ValueError(
            f"image_size must come with images, got layout {spec.name!r} without any: leave it out"
        )

    def parse(record: tf.Tensor) -> Tensors:
        tensors = _shaped(_parsed(record, spec), spec, form.max_objects, per_object)
        return tensors | {key: _pixels(tensors[key], form.image_size) for key in images}

    return tf.autograph.experimental.do_not_convert(parse)  # its choices are made in Python


def batch_parser(data_sets: DataSets, form: TensorForm) -> Callable[[tf.Tensor], Tensors]:
    """Return the function that makes tensors of a batch of Examples, their images encoded.

    A batch is parsed in a fraction of the time of its records.
    """
    spec = data_sets.spec
    per_object = {} if form.max_objects is None else values_per_object(data_sets)
    features = parse_spec(spec, RepeatedAs.RAGGED)

    def parse(records: tf.Tensor) -> Tensors:
        tensors = tf.io.parse_example(records, features)
        return _shaped(tensors, spec, form.max_objects, per_object)

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
            f"max_objects must come with as many keypoints for all objects, got {counts}: read the"
            " data sets apart"
        )
    return found.pop()


def _parsed(record: tf.Tensor, spec: FeatureSpec) -> Tensors:
    if not spec.is_sequence:
        return tf.io.parse_single_example(record, parse_spec(spec, RepeatedAs.RAGGED))
    context, steps = parse_sequence_spec(spec, RepeatedAs.RAGGED)
    of_record, of_steps = tf.io.parse_single_sequence_example(record, context, steps)
    return {**of_record, **of_steps}


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
