"""Layouts of one image and its class, and of a pair of images.

The layouts have the keys of these programs:

- `classification`: Model Garden;
- `imagenet`: tensorflow/tpu's `imagenet_to_gcs.py`;
- `tutorial`: TensorFlow's tutorial 'TFRecord and tf.train.Example';
- `tensor`: PyImageSearch's article on TFRecords;
- `raw`: Keras' tutorial 'Storing images'; `arrays` writes the same keys;
- `pairs`: none; its keys are our own, for super-resolution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import msgspec

from beam_tfrec.schemas.faults import require_at_least
from beam_tfrec.schemas.features import (
    Feature,
    FeatureSpec,
    Kind,
    class_label,
    image_file,
    int64,
    text,
)
from beam_tfrec.schemas.fields import ClassFields, EncodedImage
from beam_tfrec.schemas.layouts import PIXEL_DTYPES, AttributeValues, Built, Labels, Layout, Unfit
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.tensors import encode_tensor

_FIELDS = msgspec.msgpack.Decoder(ClassFields)


@dataclass(frozen=True)
class _Classified:
    """An image and its class."""

    image: EncodedImage
    label: Label
    colorspace: ClassVar[str] = "RGB"
    format_name: ClassVar[str] = "JPEG"

    @property
    def text(self) -> str:
        return self.label.text or self.label.name

    @property
    def base_name(self) -> str:
        return self.image.name.rpartition("/")[2]

    @property
    def tensor(self) -> bytes:
        return _tensor_of(self.image)

    @property
    def depth(self) -> int:
        pixels = self.image.pixels
        return self.image.info.channels if pixels is None else pixels.shape[2]


_HEIGHT = int64("image/height", "image height in px, from the file")
_WIDTH = int64("image/width", "image width in px, from the file")
_CLASSIFICATION = {
    image_file("image/encoded", "the image file's bytes"): "image.data",
    text("image/format", "jpeg, png, gif or bmp"): "image.info.format",
    _HEIGHT: "image.info.height_px",
    _WIDTH: "image.info.width_px",
    class_label("image/class/label", "id in label_map.pbtxt"): "label.id",
    text("image/class/text", "what the class is called"): "text",
    text("image/filename", "name below the image root"): "image.name",
    text("image/key/sha256", "hex SHA-256 of the bytes"): "image.sha256",
}
_IMAGENET = {
    _HEIGHT: "image.info.height_px",
    _WIDTH: "image.info.width_px",
    text("image/colorspace", "RGB"): "colorspace",
    int64("image/channels", "3"): "image.info.channels",
    class_label("image/class/label", "id in label_map.pbtxt"): "label.id",
    text("image/class/synset", "name of the class"): "label.name",
    text("image/class/text", "what the class is called"): "text",
    text("image/format", "JPEG"): "format_name",
    text("image/filename", "name without folders"): "base_name",
    image_file("image/encoded", "the image file's bytes"): "image.data",
}
_SIZE_AND_LABEL = {
    int64("height", "image height in px, from the file"): "image.info.height_px",
    int64("width", "image width in px, from the file"): "image.info.width_px",
    int64("depth", "channels, as tf.io.decode_image gives them"): "depth",
    class_label("label", "id in label_map.pbtxt"): "label.id",
}
_TUTORIAL = {**_SIZE_AND_LABEL, image_file("image_raw", "the image file's bytes"): "image.data"}
_TENSOR = {
    Feature("image", Kind.BYTES, False, "TensorProto of height x width x channels"): "tensor",
    text("class_name", "name of the class"): "label.name",
}
_RAW = {
    **_SIZE_AND_LABEL,
    Feature("raw_image", Kind.BYTES, False, "TensorProto of height x width x depth"): "tensor",
}
_OF_IMAGES = {f: p[6:] for f, p in _CLASSIFICATION.items() if p.startswith("image.")}
IMAGE_VALUES = AttributeValues(_OF_IMAGES)
"""Function that returns the values of an `EncodedImage`, as in `classification` without class."""


@dataclass(frozen=True)
class ClassifiedLayout(Layout):
    """One Example per image with its class; a subclass chooses the features.

    Attributes:
        attributes: function that returns one value per feature.
        bytes_beside_image: size of a record's keys, lengths, numbers and framing.
        first_label: number of the first class.
    """

    attributes: ClassVar[AttributeValues]
    bytes_beside_image: ClassVar[int]

    first_label: int = 0

    @cached_property
    def spec(self) -> FeatureSpec:
        """The features of every Example."""
        return FeatureSpec(self.name, self.attributes.features)

    def classes_of(self, sample: Sample) -> list[str]:
        """Return the sample's class."""
        return [_FIELDS.decode(sample.fields).class_name]

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes."""
        return {"first_label": str(self.first_label)}

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's estimated size; it takes names of usual lengths."""
        return self.bytes_beside_image + sample.blobs[0].read_bytes

    def build(self, sample: Sample, images: Sequence[EncodedImage], labels: Labels) -> Built:
        """Return the Example's values."""
        label = labels[_FIELDS.decode(sample.fields).class_name]
        values = self.attributes(_Classified(images[0], label))
        return Built(self.typed(values), dropped=[], repairs=[], labels=[label.id])


@dataclass(frozen=True)
class ClassificationLayout(ClassifiedLayout):
    """One Example per image with its class, as number and as text."""

    name: ClassVar[str] = "classification"
    attributes: ClassVar[AttributeValues] = AttributeValues(_CLASSIFICATION)
    bytes_beside_image: ClassVar[int] = 340  # including a name of 40 bytes


@dataclass(frozen=True)
class ImagenetLayout(ClassifiedLayout):
    """ImageNet as tensorflow/tpu's script writes it: RGB JPEGs, classes from 1, synset and text.

    The script silently converts other images. Here they are rejected, unless a conversion to RGB
    JPEG is requested.
    """

    name: ClassVar[str] = "imagenet"
    attributes: ClassVar[AttributeValues] = AttributeValues(_IMAGENET)
    bytes_beside_image: ClassVar[int] = 330

    first_label: int = 1

    def build(self, sample: Sample, images: Sequence[EncodedImage], labels: Labels) -> Built:
        """Return the Example's values; raise `Unfit` if the image is not an RGB JPEG."""
        info = images[0].info
        if info.format != "jpeg" or info.channels != 3 or "cmyk" in info.traits:
            colours = "CMYK" if "cmyk" in info.traits else f"{info.channels} channels"
            what = f"a {info.format} of {colours}, the layout holds JPEGs of RGB"
            raise Unfit("E-IMG-TYPE", what)
        return super().build(sample, images, labels)


@dataclass(frozen=True)
class TutorialLayout(ClassifiedLayout):
    """TensorFlow's tutorial: size, depth, label and the file's bytes."""

    name: ClassVar[str] = "tutorial"
    attributes: ClassVar[AttributeValues] = AttributeValues(_TUTORIAL)
    bytes_beside_image: ClassVar[int] = 110


@dataclass(frozen=True)
class TensorLayout(ClassifiedLayout):
    """Pixels as a tensor for `tf.io.parse_tensor`, and the class's name.

    Attributes:
        dtype: type of the pixels, one of `PIXEL_DTYPES`.
    """

    name: ClassVar[str] = "tensor"
    attributes: ClassVar[AttributeValues] = AttributeValues(_TENSOR)
    bytes_beside_image: ClassVar[int] = 90

    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Refuse an unknown type of pixels."""
        if self.dtype not in PIXEL_DTYPES:
            known = ", ".join(PIXEL_DTYPES)
            raise ValueError(f"dtype must be one of {known}, got {self.dtype!r}: give another")

    @property
    def pixels_dtype(self) -> str:
        """Type of the pixels."""
        return self.dtype

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes."""
        return {**super().options(), "dtype": self.dtype}


@dataclass(frozen=True)
class RawLayout(TensorLayout):
    """Size, label, and pixels as a tensor for `tf.io.parse_tensor`."""

    name: ClassVar[str] = "raw"
    attributes: ClassVar[AttributeValues] = AttributeValues(_RAW)
    bytes_beside_image: ClassVar[int] = 130

    dtype: str = "uint8"


_BYTES_BESIDE_IMAGES = 60  # keys, lengths and framing
_BYTES = "resolution image file's bytes"
_TENSOR_OF = "TensorProto of the {} image, uint8 [h, w, channels]"


@dataclass(frozen=True)
class PairsLayout(Layout):
    """One Example per pair of a low- and a high-resolution image.

    Attributes:
        scale: width and height of the high image divided by those of the low one. None for any
            integer that is the same for both.
        tensors: whether images are written as TensorProtos of their pixels instead of as files.
    """

    sample_noun: ClassVar[str] = "pair"

    scale: int | None = None
    tensors: bool = False

    def __post_init__(self) -> None:
        """Refuse a scale below 1."""
        require_at_least(1, scale=self.scale)

    @cached_property
    def spec(self) -> FeatureSpec:
        """The features of every Example."""
        features = [image_file("lr", f"low-{_BYTES}"), image_file("hr", f"high-{_BYTES}")]
        if self.tensors:
            docs = {"lr": _TENSOR_OF.format("low"), "hr": _TENSOR_OF.format("high")}
            features = [Feature(key, Kind.BYTES, False, doc) for key, doc in docs.items()]
        return FeatureSpec("pairs", (*features, text("filename", "name below the high root")))

    @property
    def pixels_dtype(self) -> str:
        """Type of the pixels; empty if files are written."""
        return "uint8" if self.tensors else ""

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes."""
        scale = "any" if self.scale is None else str(self.scale)
        return {"scale": scale, **({"tensors": "uint8"} if self.tensors else {})}

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's estimated size, exact to some ten bytes if files are written."""
        images_bytes = sum(blob.size_bytes for blob in sample.blobs)
        return _BYTES_BESIDE_IMAGES + len(sample.key) + images_bytes

    def build(self, sample: Sample, images: Sequence[EncodedImage], labels: Labels) -> Built:
        """Return the Example's values; raise `Unfit` if the sizes do not fit the scale."""
        low, high = images
        (low_width, low_height), (width, height) = low.info.size_px, high.info.size_px
        factor = width // low_width if self.scale is None else self.scale
        if not factor or (width, height) != (low_width * factor, low_height * factor):
            wanted = "a whole multiple" if self.scale is None else f"{self.scale} times"
            what = f"high is {width} x {height}, not {wanted} of low's {low_width} x {low_height}"
            raise Unfit("E-IMG-SIZE", what, 1)
        written = [_tensor_of(image) if self.tensors else image.data for image in images]
        values = {"lr": written[:1], "hr": written[1:], "filename": [high.name.encode()]}
        return Built(self.typed(values), dropped=[], repairs=[], labels=[])


def _tensor_of(image: EncodedImage) -> bytes:
    if image.pixels is None:
        raise ValueError(f"{image.name} must come with its pixels: convert it")
    return encode_tensor(image.pixels)
