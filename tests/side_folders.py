"""Folders of images and of one JSON file for each image, as LabelMe and SA-1B have them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conftest import jpeg_bytes


def shape(label: str = "cat", kind: str = "polygon", *points: Sequence[float], **more: Any) -> dict:
    """Return a LabelMe shape, a triangle of 8 x 6 px unless points are given."""
    corners = points or ((1, 2), (9, 2), (9, 8))
    return {"label": label, "shape_type": kind, "points": [[*xy] for xy in corners], **more}


def labelme(*shapes: dict, width: int = 64, height: int = 48, **more: Any) -> dict:
    """Return a LabelMe file."""
    size = {"imageWidth": width, "imageHeight": height}
    head = {"version": "5.2.1", "flags": {}, "imagePath": "a.jpg", "imageData": "AAAA"}
    return {**head, **size, "shapes": [*shapes], **more}


def sa1b(*annotations: dict, width: int = 4, height: int = 3, file_name: str = "a.jpg") -> dict:
    """Return an SA-1B file."""
    image = {"image_id": 7, "width": width, "height": height, "file_name": file_name}
    return {"image": image, "annotations": [*annotations]}


def write_side_files(folder: Path, files: Mapping[str, object]) -> tuple[Path, Path]:
    """Write an image of 64 x 48 px and a JSON file for each name; None for no JSON file.

    Returns:
        Both folders.
    """
    images, annotations = folder / "images", folder / "json"
    for place, (name, content) in enumerate(files.items()):
        image = images / f"{name}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(jpeg_bytes(color=place))
        path = annotations / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            path.write_bytes(
                content if isinstance(content, bytes) else json.dumps(content).encode()
            )
    return images, annotations


def sources(folders: tuple[Path, Path]) -> list[object]:
    """Return the flags that name the folders."""
    return ["--images", folders[0], "--annotations", folders[1]]
