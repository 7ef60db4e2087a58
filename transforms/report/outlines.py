"""Boxes and keypoints of a record, with the names of their classes.

A record can hold anything. Values that are not finite are left out, and so are lists whose lengths
do not match; boxes that reach beyond the picture are clipped.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from schemas.features import Corners, Kind, ObjectRoles, PointRoles, Roles, corners_of
from schemas.parse_example import Values
from transforms.report.contents import Outline

MAX_OUTLINES = 40
"""Of a picture: the first ones."""

_MAX_KEYPOINTS = 150  # of an object; COCO's whole-body people have 133
_MAX_LABELS = 1000  # of a record
_MAX_CAPTIONS = 6
_MAX_CHARACTERS = 300  # of a text

Features = Mapping[str, Values]
"""A record's context, by key."""


class Legend(NamedTuple):
    """What the numbers and names of classes mean.

    Attributes:
        names: of classes, by label id.
        labels: label id by the id that the annotation files have, as in panoptic masks.
        by_name: label id by name, where records have names alone.
    """

    names: Mapping[int, str]
    labels: Mapping[int, int] = {}
    by_name: Mapping[str, int] = {}


def outlines_of(
    features: Features, roles: Roles, size_px: tuple[int, int], legend: Legend
) -> list[Outline]:
    """Return the boxes and keypoints of a record's first list of objects, in its order.

    Args:
        features: of the record.
        roles: of its features.
        size_px: width and height of its picture, as stored.
        legend: of the classes.

    Raises:
        ValueError: where edges of boxes are missing.
    """
    if not roles.objects:
        return []
    objects = roles.objects[0]
    corners = list(corners_of(objects, values_of(features), size_px))
    labels = object_labels(features, objects, len(corners))
    texts = _texts(features, objects.texts)
    texts = texts if len(texts) == len(corners) else []
    if texts and not objects.labels:
        labels = [legend.by_name.get(text) for text in texts]
    points = list(_keypoints(features, roles.keypoints, len(corners)))
    return [
        Outline(
            label=label,
            text=text or class_text(label, legend.names),
            box=_box(found) if found else None,
            keypoints=keypoints or (),
        )
        for found, label, text, keypoints in zip_longest(corners, labels, texts, points)
    ]


def object_labels(features: Features, objects: ObjectRoles, count: int) -> list[int | None]:
    """Return the class id of each object of a list; None where the record does not tell."""
    labels: Sequence[Any] = values_of(features, Kind.INT64)(objects.labels)
    return [int(label) for label in labels] if len(labels) == count else [None] * count


def class_text(label: int | None, names: Mapping[int, str]) -> str:
    """Return what a class is called: its name, its number where it has none, empty for no class."""
    return "" if label is None else names.get(label, str(label))


def labels_of(features: Features, roles: Roles, legend: Legend) -> tuple[int, ...]:
    """Return the ids of a record's classes, sorted: its own, and those of its objects."""
    keys = [(roles.class_label, roles.class_text)]
    keys += [(objects.labels, objects.texts) for objects in roles.objects]
    found: set[int] = set()
    for labels_key, texts_key in keys:
        if labels_key:
            found.update(map(int, values_of(features, Kind.INT64)(labels_key)[:_MAX_LABELS]))
        else:
            names = _texts(features, texts_key, _MAX_LABELS)
            found.update(legend.by_name[name] for name in names if name in legend.by_name)
    return tuple(sorted(found))


def captions_of(features: Features, roles: Roles) -> tuple[str, ...]:
    """Return a record's captions, and its class where there is no number for it."""
    keys = roles.captions if roles.class_label else (roles.class_text, *roles.captions)
    texts = (text for key in keys for text in _texts(features, key, _MAX_CAPTIONS) if text)
    return tuple(dict.fromkeys(texts))[:_MAX_CAPTIONS]


def values_of(features: Features, kind: Kind = Kind.FLOAT) -> Callable[[str], Sequence[Any]]:
    """Return what gives the values of a key; none where the record has none of the kind."""

    def values(key: str) -> Sequence[Any]:
        found = features.get(key)
        return found.values if found is not None and found.kind is kind else ()

    return values


def _texts(features: Features, key: str, most: int | None = None) -> list[str]:
    values = values_of(features, Kind.BYTES)(key)[:most]
    return [
        value[: 4 * _MAX_CHARACTERS].decode(errors="replace")[:_MAX_CHARACTERS] for value in values
    ]


def _box(corners: Corners) -> tuple[float, float, float, float] | None:
    """Return left, top, width and height of a box within its picture; None where it is none."""
    if not all(map(math.isfinite, corners)):
        return None
    left, top, right, bottom = (min(max(edge, 0.0), 1.0) for edge in corners)
    return (left, top, right - left, bottom - top) if left <= right and top <= bottom else None


def _keypoints(
    features: Features, roles: PointRoles | None, objects: int
) -> Iterator[tuple[tuple[float, float], ...]]:
    """Yield the labelled keypoints of each object, which all have as many places for them."""
    if roles is None or not objects:
        return
    xs, ys = (values_of(features)(key) for key in (roles.x, roles.y))
    seen = values_of(features, Kind.INT64)(roles.visibility) or [1] * len(xs)
    each, rest = divmod(len(xs), objects)
    if rest or not len(xs) == len(ys) == len(seen):
        return
    points = list(zip(xs, ys, seen, strict=True))
    for first in range(0, len(points), max(each, 1)):
        own = points[first : first + min(each, _MAX_KEYPOINTS)]
        yield tuple((x, y) for x, y, is_seen in own if is_seen and 0 <= x <= 1 and 0 <= y <= 1)
