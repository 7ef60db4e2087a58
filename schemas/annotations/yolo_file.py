"""YOLO's files as Ultralytics has them: a data.yaml, and one text file of labels per image."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from beam_tfrec.schemas.annotations.coco_file import CocoInstance
from beam_tfrec.schemas.annotations.side_files import SideFile, entry_of, raw_json
from beam_tfrec.schemas.faults import Reason
from beam_tfrec.schemas.fields import UPRIGHT_FRACTIONS, BadAnnotation
from beam_tfrec.schemas.manifest import Label

# Ultralytics reads validation as val, and others write valid; val itself wins.
_SPLITS = {"train": "train", "validation": "val", "valid": "val", "val": "val", "test": "test"}
_MAX_YAML_BYTES = 1 << 20
_MAX_POINTS = 1000
_FARTHEST = 10.0
"""Largest coordinate of a polygon, in sides of the image; masks of others cannot be drawn."""


class DataFile(NamedTuple):
    """Content of a data.yaml.

    Attributes:
        path: folder of the data set; empty if the file does not say.
        splits: folders, lists or globs of images, by split.
        labels: classes, by their numbers in label files.
        point_values: 3 if keypoints have a visibility, 2 if not, 0 without keypoints.
    """

    path: str
    splits: dict[str, list[str]]
    labels: list[Label]
    point_values: int


def read_data_file(data: bytes) -> DataFile:
    """Return the content of a data.yaml.

    Raises:
        ValueError: when it is none.
    """
    import yaml  # no other source needs it

    if len(data) > _MAX_YAML_BYTES:
        raise ValueError(f"data must have at most {_MAX_YAML_BYTES} bytes: give another")
    try:
        content, root = yaml.safe_load(data), yaml.compose(data, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"data must be YAML, got {' '.join(str(error).split())}: fix it") from None
    if not isinstance(content, dict):
        raise ValueError(f"data must have keys such as train, got {content!r:.60}: add them")
    for node in (root, *(value for _, value in root.value)):
        keys = [key.value for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        if repeated := [key for key, count in Counter(keys).items() if count > 1]:
            raise ValueError(f"data must have a key once, got {repeated[0]!r} twice: remove one")
    splits = {name: _texts(key, content[key]) for key, name in _SPLITS.items() if content.get(key)}
    count, values = _keypoint_shape(content["kpt_shape"]) if "kpt_shape" in content else (0, 0)
    points = tuple(map(str, range(count)))
    labels = [Label(number, name, keypoints=points) for number, name in _names(content).items()]
    return DataFile(str(content.get("path") or ""), splits, labels, values)


def _keypoint_shape(shape: Any) -> tuple[int, int]:
    """Return the number of keypoints, and of each one's values."""
    are_ints = isinstance(shape, list) and [type(number) for number in shape] == [int, int]
    if are_ints and 0 < shape[0] <= _MAX_POINTS and shape[1] in (2, 3):
        return shape[0], shape[1]
    raise ValueError(f"kpt_shape must be [1 to {_MAX_POINTS}, 2 or 3], got {shape!r}: correct it")


def _texts(key: str, found: Any) -> list[str]:
    texts = found if isinstance(found, list) else [found]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{key} must be a path or a list of paths, got {found!r}: correct it")
    return [text.replace("\\", "/") for text in texts]


def _names(content: dict[str, Any]) -> dict[int, str]:
    """Return the names of classes by number; `class_0`, … if only their count is given."""
    count, names = content.get("nc"), content.get("names")
    if names is None and isinstance(count, int):
        names = [f"class_{number}" for number in range(count)]
    by_number = dict(enumerate(names)) if isinstance(names, list) else names
    if not (isinstance(by_number, dict) and by_number):
        raise ValueError(f"names must be a list or a map of class names, got {names!r}: add it")
    if count not in (None, len(by_number)):
        raise ValueError(f"nc must be the number of names {len(by_number)}, got {count!r}: omit it")
    for key, name in by_number.items():
        if type(key) is not int or key < 0 or type(name) not in (str, int):
            raise ValueError(f"names must be numbers and texts, got {key!r}: {name!r}: quote texts")
    return {number: str(name) for number, name in by_number.items()}


def label_path(path: str) -> str:
    """Return the path of an image or a folder, with its last folder `images` called `labels`.

    >>> label_path("/d/images/v1.0/1.jpg"), label_path("/d/images"), label_path("/d/train")
    ('/d/labels/v1.0/1.jpg', '/d/labels', '/d/train')
    >>> label_path("gs://images/coco/train"), label_path("gs://images/coco/images/1.jpg")
    ('gs://images/coco/train', 'gs://images/coco/labels/1.jpg')
    """
    head, is_below, tail = f"{path}/".rpartition("/images/")
    return f"{head}/labels/{tail}".rstrip("/") if is_below and not head.endswith(":/") else path


def parse_yolo(data: bytes, labels: Sequence[Label], point_values: int = 0) -> SideFile:
    """Return the content of a label file. Coordinates are fractions of the image.

    An object's id is the number of its line, from 1. A line is a box of five numbers, or the class
    and the corners of a polygon, or a box and its keypoints.

    Args:
        data: the file.
        labels: classes that it may have.
        point_values: as in `DataFile`.

    >>> file = parse_yolo(b"0 .5 .5 .5 .25", [Label(0, "cat")])
    >>> bytes(file.entries[0].bbox), parse_yolo(b"3 .5 .5 .5 .5", [Label(0, "cat")]).bad[0].code
    (b'[0.25,0.375,0.5,0.25]', 'E-ANN-CATEGORY')

    Raises:
        ValueError: the file is not UTF-8.
    """
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start}): save the file as UTF-8") from None
    entries, bad, repairs = list[CocoInstance](), list[BadAnnotation](), Counter[str]()
    points = len(labels[0].keypoints) if labels else 0
    known, seen = {label.id for label in labels}, set[str]()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if line in seen:
            repairs["repeated_line_left_out"] += 1
            continue
        seen.add(line)
        found = _entry(number, line.split(), points, point_values)
        if isinstance(found, CocoInstance) and found.category_id not in known:
            found = "E-ANN-CATEGORY", f"class {found.category_id} is not in names"
        if isinstance(found, CocoInstance):
            entries.append(found)
        else:
            bad.append(BadAnnotation(number, *found))
    repairs["background"] += not seen
    return SideFile(*UPRIGHT_FRACTIONS, entries, bad, {}, repairs, points)


def _entry(line: int, words: list[str], points: int, point_values: int) -> CocoInstance | Reason:
    """Return the object of a line, or its fault."""
    try:
        category, *values = map(float, words)
    except ValueError as error:
        return "E-ANN-SHAPE", f"line {line}: {error}"
    if not all(map(math.isfinite, (category, *values))):
        return "E-BOX-NOT-FINITE", f"line {line} holds a number that is not finite"
    if category != int(category):
        return "E-ANN-SHAPE", f"line {line}: class {category} is not a whole number"
    is_polygon = not points and len(values) >= 6 and len(values) % 2 == 0
    if not is_polygon and len(values) != 4 + points * point_values:
        wanted = 5 + points * point_values if points else "5, or 7 and more for a polygon"
        return "E-ANN-SHAPE", f"line {line} has {len(words)} numbers, an object has {wanted}"
    parts = {}
    if is_polygon:
        if max(map(abs, values)) > _FARTHEST:
            return "E-ANN-SHAPE", f"line {line} has a point far outside, coordinates are fractions"
        x, y = min(values[0::2]), min(values[1::2])
        width, height = max(values[0::2]) - x, max(values[1::2]) - y
        parts["segmentation"] = raw_json([values])
    else:
        width, height = values[2:4]
        x, y = values[0] - width / 2, values[1] - height / 2
    if points:
        parts["keypoints"] = raw_json(_points(values[4:], point_values))
    return entry_of(line, int(category), [x, y, width, height], **parts)


def _points(values: list[float], point_values: int) -> list[float]:
    """Return `x, y, visibility` of each keypoint; points without a place are zeros.

    Without a visibility, points are visible (2).
    """
    flat: list[float] = []
    for start in range(0, len(values), point_values):
        x, y, v = (*values[start : start + point_values], 2.0)[:3]
        flat += [x, y, v] if v and x >= 0 and y >= 0 else [0.0, 0.0, 0.0]
    return flat
