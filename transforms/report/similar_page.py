"""Page of near copies: the largest clusters as pictures, those that cross splits first."""

from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from beam_tfrec.schemas.samples import Blob
from beam_tfrec.transforms.images.check_images import check_image
from beam_tfrec.transforms.images.convert_images import transposed
from beam_tfrec.transforms.images.findings import BadImage
from beam_tfrec.transforms.report.page import TILE_PX, page_environment
from beam_tfrec.transforms.report.small_pictures import encode_jpeg, small_picture
from beam_tfrec.transforms.similar import HashedImage
from beam_tfrec.transforms.sources.read_blobs import read_blob
from beam_tfrec.transforms.storage import Storage

MOST_CLUSTERS = 24
"""Largest number of clusters that a page shows."""

MOST_IMAGES = 8
"""Largest number of images that it shows of each."""

_MOST_BYTES = 20_000  # of a picture


def draw_clusters(
    table: pa.Table, images: Iterable[HashedImage], roots: Mapping[str, Storage]
) -> list[dict[str, Any]]:
    """Return the clusters to show, each with its size, splits and first images; the kept one first.

    Args:
        table: table of near copies.
        images: the same images with the places of their files, which are read again.
        roots: roots of these files, by name.
    """
    copies = table.filter(pc.greater(table["size"], 1))
    sums = [("split", "distinct"), ("split", "count_distinct"), ("size", "max")]
    clusters = copies.group_by("cluster").aggregate(sums)
    order = [("split_count_distinct", "descending"), ("size_max", "descending")]
    shown = clusters.sort_by([*order, ("cluster", "ascending")])[:MOST_CLUSTERS].to_pylist()
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for cluster in shown:
        members = copies.filter(pc.equal(copies["cluster"], cluster["cluster"]))
        cluster["images"] = members.sort_by([("keep", "descending")])[:MOST_IMAGES].to_pylist()
        rows |= {(row["split"], row["key"]): row for row in cluster["images"]}
    for image in images:
        if row := rows.get((image.split, image.key)):
            blob = msgspec.msgpack.decode(image.blob, type=Blob)
            row["jpeg"] = draw_photo(read_blob(roots[blob.root], blob), blob.orientation)
    return shown


def draw_photo(data: bytes, orientation: int) -> bytes:
    """Return a small JPEG of a photo, upright; empty if it is too large or damaged.

    Args:
        data: the whole file.
        orientation: its EXIF orientation; 0 if its file says it.
    """
    try:
        turn = orientation or check_image(data, takes_foreign=True).orientation
        picture = transposed(small_picture(data).image, turn)
    except BadImage:
        return b""
    picture.thumbnail(TILE_PX)
    return encode_jpeg(picture, _MOST_BYTES)[0]


def render_similar(title: str, lines: Iterator[str], clusters: list[dict[str, Any]]) -> bytes:
    """Return the page.

    Args:
        title: name of the table.
        lines: the summary.
        clusters: as `draw_clusters` returns them.
    """
    style = resources.files(__package__).joinpath("assets/page.css").read_text("utf-8")
    template = page_environment().get_template("similar.html.j2")
    return template.render(title=title, lines=lines, clusters=clusters, style=style).encode()
