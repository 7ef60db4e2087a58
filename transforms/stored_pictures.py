"""Which pictures a record holds, as a report counts them."""

from collections.abc import Iterator, Sequence

from schemas.feature_roles import Roles
from schemas.features import Kind
from schemas.images import EncodedImage, ImageInfo
from schemas.statistics_collector import RecordValues, StoredPicture
from transforms.images.check_images import ImageFault, check_image


def stored_pictures(
    values: RecordValues, roles: Roles, images: Sequence[EncodedImage] = ()
) -> list[StoredPicture]:
    """Return the image files in a record, those left out that are none.

    Args:
        values: of its features.
        roles: which of these are images.
        images: of which it was made; what is known of their headers is not looked up again.
    """
    pictures = []
    for value in image_values(values, roles):
        info = _known(value, images) or check_image(value)
        if not isinstance(info, ImageFault):
            pictures.append(StoredPicture(info.format, info.width_px, info.height_px, len(value)))
    return pictures


def image_values(values: RecordValues, roles: Roles) -> Iterator[bytes]:
    """Yield the values of a record that are to be image files."""
    for key in roles.images:
        kind, held = values.get(key, (None, ()))
        if kind is Kind.BYTES:
            yield from held


def _known(value: bytes, images: Sequence[EncodedImage]) -> ImageInfo | None:
    for image in images:
        if image.data is value:
            return image.info
    return None
