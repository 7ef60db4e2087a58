"""Folders of images with one annotation file each: LabelMe, SA-1B, Pascal VOC."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conftest import TEST_DATA, jpeg_bytes


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


def voc_object(
    name: str = "cat", corners: Sequence[object] = (2, 3, 9, 8), more: str = "<pose>Left</pose>"
) -> str:
    """Return an object of a VOC file."""
    places = zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)
    bndbox = "".join(f"<{key}>{value}</{key}>" for key, value in places)
    return f"<object><name>{name}</name>{more}<bndbox>{bndbox}</bndbox></object>"


def voc(*objects: str, width: object = 64, height: object = 48) -> bytes:
    """Return a VOC file."""
    head = "<folder>VOC2012</folder><filename>a.jpg</filename><segmented>0</segmented>"
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation>{head}{size}{''.join(objects)}</annotation>".encode()


def with_data_file(words: Sequence[str]) -> list[str]:
    """Return a command's words with a `data.yaml` that exists, since `yolo` reads it at once."""
    data = str(TEST_DATA / "yolo/data.yaml")
    return [
        data if before == "--data" else word
        for before, word in zip(["", *words[:-1]], words, strict=True)
    ]


def write_side_files(
    folder: Path, files: Mapping[str, object], suffix: str = ".json"
) -> tuple[Path, Path]:
    """Write an image of 64 x 48 px and an annotation file for each name; None for no such file.

    Returns:
        Both folders, `images` and `labels`.
    """
    images, annotations = folder / "images", folder / "labels"
    for place, (name, content) in enumerate(files.items()):
        image = images / f"{name}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(jpeg_bytes(color=place))
        path = annotations / f"{name}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            is_text = isinstance(content, bytes)
            path.write_bytes(content if is_text else json.dumps(content).encode())
    return images, annotations


def sources(folders: tuple[Path, Path]) -> list[object]:
    """Return the flags that name the folders."""
    return ["--images", folders[0], "--annotations", folders[1]]
