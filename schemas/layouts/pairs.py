"""The `pairs` layout: a low- and a high-resolution image, for readers of super-resolution."""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.features import Content, Feature, FeatureSpec, Kind
from schemas.images import EncodedImage
from schemas.layouts import Built, Labels, Layout, Unfit
from schemas.samples import Sample
from schemas.tensors import encode_tensor

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
