"""Segmentations: any JSON is a mask of its image, or a fault; nothing else reaches pycocotools."""

import json
import math
from collections.abc import Iterator

import numpy as np
from pycocotools import mask as coco_mask

from schemas.annotations.coco_objects import ParsedSegmentation, parse_segmentation
from schemas.faults import FAULTS, Scope
from schemas.geometry.masks import mask_of
from tests.fuzz.target import Target

_WIDTH_PX, _HEIGHT_PX = 40, 30


def run_segmentations(data: bytes) -> None:
    """Parse bytes as a segmentation; draw it, and compare run lengths with pycocotools'."""
    parsed = parse_segmentation(data, _WIDTH_PX, _HEIGHT_PX)
    if not isinstance(parsed, ParsedSegmentation):
        assert FAULTS[parsed[0]].scope is Scope.ANNOTATION
        return
    found = parsed.segmentation
    mask = mask_of(found, _WIDTH_PX, _HEIGHT_PX)
    assert mask.shape == (_HEIGHT_PX, _WIDTH_PX) and mask.max() <= 1
    assert all(math.isfinite(value) for polygon in found.polygons_px for value in polygon)
    if found.rle_counts:
        rle = {"size": [_HEIGHT_PX, _WIDTH_PX], "counts": found.rle_counts}
        theirs = coco_mask.decode(coco_mask.frPyObjects(rle, _HEIGHT_PX, _WIDTH_PX))
        assert np.array_equal(mask, theirs)
    else:
        assert bool(found) == bool(found.polygons_px)


def seeds() -> Iterator[bytes]:
    yield from (b"", b"null", b"[]", b"[[1e400,0,4,0,4,3]]", b"[[1e300,0,4,0,4,3],[0,0,4,0]]")
    yield b"[[0,0,40,0,40.5,30.25],[-5,-7.5,1e3,0,3,99,1,2]]"
    size = [_HEIGHT_PX, _WIDTH_PX]
    counts = [7, 3, 0, 0, 590, 600]
    yield json.dumps({"size": size, "counts": counts}).encode()
    compressed = coco_mask.frPyObjects({"size": size, "counts": counts}, *size)
    yield json.dumps({"size": size, "counts": compressed["counts"].decode()}).encode()
    for odd in ([], [1201, -1], [2**32, 1200], "", "o" * 20, "1/", "P" * 13 + "0", "\0", "é"):
        yield json.dumps({"size": size, "counts": odd}).encode()
    yield json.dumps({"size": size[::-1], "counts": [1200]}).encode()


TARGETS = (Target("segmentations", run_segmentations, seeds, "json.dict", 256),)
