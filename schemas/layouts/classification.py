"""Layouts of one image and its class.

`classification` has Model Garden's keys, `imagenet` those of tensorflow/tpu's `imagenet_to_gcs.py`,
`tutorial` those of TensorFlow's tutorial 'TFRecord and tf.train.Example', and `tensor` those of
PyImageSearch's article on TFRecords.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from schemas.features import Content, Feature, FeatureSpec, Kind
from schemas.fields import ClassFields, EncodedImage
from schemas.layouts import PIXEL_DTYPES, Built, Labels, Layout, Unfit
from schemas.manifest import Label
from schemas.samples import Sample
from schemas.tensors import encode_tensor

_FIELDS = msgspec.msgpack.Decoder(ClassFields)

Values = Mapping[str, bytes | int]
"""The one value of each feature."""

CLASSIFICATION = FeatureSpec(
    "classification",
    (
        Feature("image/encoded", Kind.BYTES, False, "the image file's bytes", Content.IMAGE),
        Feature("image/format", Kind.BYTES, False, "jpeg, png, gif or bmp", Content.TEXT),
        Feature("image/height", Kind.INT64, False, "image height in px, from the file"),
        Feature("image/width", Kind.INT64, False, "image width in px, from the file"),
        Feature(
            "image/class/label", Kind.INT64, False, "id in label_map.pbtxt", Content.CLASS_LABEL
        ),
        Feature("image/class/text", Kind.BYTES, False, "what the class is called", Content.TEXT),
        Feature("image/filename", Kind.BYTES, False, "name below the image root", Content.TEXT),
        Feature("image/key/sha256", Kind.BYTES, False, "hex SHA-256 of the bytes", Content.TEXT),
    ),
)


@dataclass(frozen=True)
class ClassifiedLayout(Layout):
    """One Example per image with its class; a subclass chooses the features.

    Attributes:
        features: of every Example, one value each.
        bytes_beside_image: keys, lengths, numbers and framing of a record. It has part in the
            number of shards, hence in bytes: changing it is a breaking change.
        first_label: number of the first class.
    """

    features: ClassVar[FeatureSpec]
    bytes_beside_image: ClassVar[int]

    first_label: int = 0

    @property
    def name(self) -> str:
        """The layout's name in the manifest."""
        return self.features.name

    @property
    def spec(self) -> FeatureSpec:
        """The features of every Example."""
        return self.features

    @property
    def first_label_id(self) -> int:
        """The number from which labels are counted."""
        return self.first_label

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes."""
        return {"first_label": str(self.first_label)}

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's size to within the length of its names."""
        return self.bytes_beside_image + sample.blobs[0].size_bytes

    def values(self, image: EncodedImage, label: Label) -> Values | Unfit:
        """Return the value of every feature, or why there can be none."""
        raise NotImplementedError

    def build(
        self, sample: Sample, images: Sequence[EncodedImage], labels: Labels
    ) -> Built | Unfit:
        """Return the Example's values."""
        label = labels[_FIELDS.decode(sample.fields).class_name]
        values = self.values(images[0], label)
        if isinstance(values, Unfit):
            return values
        features = {
            feature.key: (feature.kind, [values[feature.key]]) for feature in self.spec.features
        }
        return Built(features, dropped=[], repairs=[], labels=[label.id])


@dataclass(frozen=True)
class ClassificationLayout(ClassifiedLayout):
    """One Example per image with its class, which classes' names and numbers tell."""

    features: ClassVar[FeatureSpec] = CLASSIFICATION
    bytes_beside_image: ClassVar[int] = 340  # a name of 40 bytes among them

    def values(self, image: EncodedImage, label: Label) -> Values:
        """Return the value of every feature."""
        return {
            "image/encoded": image.data,
            "image/format": image.info.format.encode(),
            "image/height": image.info.height_px,
            "image/width": image.info.width_px,
            "image/class/label": label.id,
            "image/class/text": (label.text or label.name).encode(),
            "image/filename": image.name.encode(),
            "image/key/sha256": image.sha256.encode(),
        }


IMAGENET = FeatureSpec(
    "imagenet",
    (
        Feature("image/height", Kind.INT64, False, "image height in px, from the file"),
        Feature("image/width", Kind.INT64, False, "image width in px, from the file"),
        Feature("image/colorspace", Kind.BYTES, False, "RGB", Content.TEXT),
        Feature("image/channels", Kind.INT64, False, "3"),
        Feature(
            "image/class/label", Kind.INT64, False, "id in label_map.pbtxt", Content.CLASS_LABEL
        ),
        Feature("image/class/synset", Kind.BYTES, False, "name of the class", Content.TEXT),
        Feature("image/class/text", Kind.BYTES, False, "what the class is called", Content.TEXT),
        Feature("image/format", Kind.BYTES, False, "JPEG", Content.TEXT),
        Feature("image/filename", Kind.BYTES, False, "name without folders", Content.TEXT),
        Feature("image/encoded", Kind.BYTES, False, "the image file's bytes", Content.IMAGE),
    ),
)

TUTORIAL = FeatureSpec(
    "tutorial",
    (
        Feature("height", Kind.INT64, False, "image height in px, from the file"),
        Feature("width", Kind.INT64, False, "image width in px, from the file"),
        Feature("depth", Kind.INT64, False, "channels, as tf.io.decode_image gives them"),
        Feature("label", Kind.INT64, False, "id in label_map.pbtxt", Content.CLASS_LABEL),
        Feature("image_raw", Kind.BYTES, False, "the image file's bytes", Content.IMAGE),
    ),
)

TENSOR = FeatureSpec(
    "tensor",
    (
        Feature("image", Kind.BYTES, False, "TensorProto of height x width x channels"),
        Feature("class_name", Kind.BYTES, False, "name of the class", Content.TEXT),
    ),
)


@dataclass(frozen=True)
class ImagenetLayout(ClassifiedLayout):
    """ImageNet as TPU's scripts write it: JPEGs of RGB, classes from 1 with synset and text.

    Their script encodes what is none again, without a word; here it is refused unless asked for.
    """

    features: ClassVar[FeatureSpec] = IMAGENET
    bytes_beside_image: ClassVar[int] = 330

    first_label: int = 1

    def values(self, image: EncodedImage, label: Label) -> Values | Unfit:
        """Return the value of every feature, or that the image is no JPEG of RGB."""
        info = image.info
        if info.format != "jpeg" or info.channels != 3 or "cmyk" in info.traits:
            colours = "CMYK" if "cmyk" in info.traits else f"{info.channels} channels"
            what = f"a {info.format} of {colours}, the layout holds JPEGs of RGB"
            return Unfit("E-IMG-TYPE", what)
        return {
            "image/height": info.height_px,
            "image/width": info.width_px,
            "image/colorspace": b"RGB",
            "image/channels": info.channels,
            "image/class/label": label.id,
            "image/class/synset": label.name.encode(),
            "image/class/text": (label.text or label.name).encode(),
            "image/format": b"JPEG",
            "image/filename": image.name.rpartition("/")[2].encode(),
            "image/encoded": image.data,
        }


@dataclass(frozen=True)
class TutorialLayout(ClassifiedLayout):
    """TensorFlow's tutorial: size, depth, label and the file's bytes."""

    features: ClassVar[FeatureSpec] = TUTORIAL
    bytes_beside_image: ClassVar[int] = 110

    def values(self, image: EncodedImage, label: Label) -> Values:
        """Return the value of every feature."""
        return {
            "height": image.info.height_px,
            "width": image.info.width_px,
            "depth": image.info.channels,
            "label": label.id,
            "image_raw": image.data,
        }


@dataclass(frozen=True)
class TensorLayout(ClassifiedLayout):
    """Pixels as a tensor for `tf.io.parse_tensor`, and the class's name.

    Attributes:
        dtype: of the pixels, one of `PIXEL_DTYPES`.
    """

    features: ClassVar[FeatureSpec] = TENSOR
    bytes_beside_image: ClassVar[int] = 90

    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Refuse what pixels cannot be."""
        if self.dtype not in PIXEL_DTYPES:
            raise ValueError(
                f"dtype must be one of {', '.join(PIXEL_DTYPES)}, got {self.dtype!r}: give another"
            )

    @property
    def pixels_dtype(self) -> str:
        """What plain pixels are given as."""
        return self.dtype

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes."""
        return {**super().options(), "dtype": self.dtype}

    def values(self, image: EncodedImage, label: Label) -> Values:
        """Return the value of every feature."""
        if image.pixels is None:
            raise ValueError("pixels must be there: give images that were decoded")
        return {"image": encode_tensor(image.pixels), "class_name": label.name.encode()}


_BYTES_BESIDE_IMAGES = 60  # keys, lengths and framing

_FILENAME = Feature("filename", Kind.BYTES, False, "name below the high root", Content.TEXT)
PAIRS = FeatureSpec(
    "pairs",
    (
        Feature("lr", Kind.BYTES, False, "low-resolution image file's bytes", Content.IMAGE),
        Feature("hr", Kind.BYTES, False, "high-resolution image file's bytes", Content.IMAGE),
        _FILENAME,
    ),
)
PAIRS_OF_TENSORS = FeatureSpec(
    "pairs",
    (
        Feature("lr", Kind.BYTES, False, "TensorProto of the low image, uint8 [h, w, channels]"),
        Feature("hr", Kind.BYTES, False, "TensorProto of the high image, uint8 [h, w, channels]"),
        _FILENAME,
    ),
)


@dataclass(frozen=True)
class PairsLayout(Layout):
    """One Example per pair.

    Attributes:
        scale: how many times as wide and high the high image is; None for any whole number, the
            same both ways.
        tensors: images are written as serialized TensorProtos of their pixels, not as files.
    """

    scale: int | None = None
    tensors: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no scale."""
        if self.scale is not None and self.scale < 1:
            raise ValueError(f"scale must be at least 1, got {self.scale}: give such as 4")

    @property
    def name(self) -> str:
        """The layout's name in the manifest."""
        return "pairs"

    @property
    def spec(self) -> FeatureSpec:
        """The features of every Example."""
        return PAIRS_OF_TENSORS if self.tensors else PAIRS

    @property
    def pixels_dtype(self) -> str:
        """What plain pixels are given as; empty for encoded images."""
        return "uint8" if self.tensors else ""

    @property
    def sample_noun(self) -> str:
        """What a sample of its sources is called in messages."""
        return "pair"

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes."""
        scale = "any" if self.scale is None else str(self.scale)
        return {"scale": scale, **({"tensors": "uint8"} if self.tensors else {})}

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's size to within some ten bytes, that of files."""
        images_bytes = sum(blob.size_bytes for blob in sample.blobs)
        return _BYTES_BESIDE_IMAGES + len(sample.key) + images_bytes

    def build(
        self, sample: Sample, images: Sequence[EncodedImage], labels: Labels
    ) -> Built | Unfit:
        """Return the Example's values, or why the images are no pair."""
        low, high = images
        sizes_px = _size_px(low), _size_px(high)
        if not is_scaled(*sizes_px, self.scale):
            return Unfit("E-IMG-SIZE", _size_fault(*sizes_px, self.scale), 1)
        features = {
            "lr": (Kind.BYTES, [self._written(low)]),
            "hr": (Kind.BYTES, [self._written(high)]),
            "filename": (Kind.BYTES, [high.name.encode()]),
        }
        return Built(features, dropped=[], repairs=[], labels=[])

    def _written(self, image: EncodedImage) -> bytes:
        if not self.tensors:
            return image.data
        if image.pixels is None:
            raise ValueError(f"{image.name} must come with its pixels: convert it")
        return encode_tensor(image.pixels)


def is_scaled(low_px: tuple[int, int], high_px: tuple[int, int], scale: int | None) -> bool:
    """Return whether a (width, height) is another one times a whole number, or times that scale.

    >>> is_scaled((3, 2), (12, 8), None), is_scaled((3, 2), (12, 8), 2)
    (True, False)
    """
    factor = high_px[0] // low_px[0] if scale is None else scale
    return factor > 0 and high_px == (low_px[0] * factor, low_px[1] * factor)


def _size_px(image: EncodedImage) -> tuple[int, int]:
    return image.info.width_px, image.info.height_px


def _size_fault(low_px: tuple[int, int], high_px: tuple[int, int], scale: int | None) -> str:
    wanted = "a whole multiple" if scale is None else f"{scale} times"
    low, high = (f"{width} x {height}" for width, height in (low_px, high_px))
    return f"high is {high}, not {wanted} of low's {low}"
