"""Pascal VOC's files: one XML file per image."""

import math
import re
from collections import Counter
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from beam_tfrec.schemas.annotations.coco_file import CocoInstance
from beam_tfrec.schemas.annotations.side_files import SideFile, entry_of, side_px
from beam_tfrec.schemas.faults import Reason, run_fault
from beam_tfrec.schemas.fields import BadAnnotation

MAX_XML_BYTES = 16 << 20
"""Largest annotation file. Its parsed elements take some ten times as much memory."""

_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_VALUE_OF_FLAG = {"0": 0, "1": 1, "false": 0, "true": 1}
_OF_A_CLASS = re.compile(r"\S+\s+-?[01]")


def parse_voc(data: bytes, offset_px: int = 1) -> SideFile:
    """Return the content of an annotation file.

    An object's id is its position in the file, from 0. VOC counts pixels from 1, and a box includes
    the pixels of all its edges. So its left edge is `xmin - 1` and its right edge `xmax`.

    Args:
        data: the file.
        offset_px: number that is subtracted from `xmin` and `ymin`; 1 for VOC's own pixels.

    >>> box = b"<bndbox><xmin>1</xmin><ymin>3</ymin><xmax>5</xmax><ymax>9</ymax></bndbox>"
    >>> file = parse_voc(b"<annotation><object><name>a</name>" + box + b"</object></annotation>")
    >>> bytes(file.entries[0].bbox)
    b'[0.0,2.0,5.0,7.0]'

    Raises:
        ValueError: the file cannot be parsed.
    """
    try:
        root = _parse_xml(data)
        size = _texts(root.find("size"))
        width_px, height_px = side_px(size, "width"), side_px(size, "height")
    except (ValueError, LookupError, expat.ExpatError) as error:
        raise ValueError(f"XML: {error}") from None
    entries, bad, repairs = list[CocoInstance](), list[BadAnnotation](), Counter[str]()
    attributes: dict[int | str, dict[str, int | str]] = {}
    for place, found in enumerate(root.iterfind("object")):
        texts, bbox = _texts(found), _bbox(_texts(found.find("bndbox")), offset_px)
        if "robndbox" in texts and "bndbox" not in texts:
            bbox = "E-BOX-SHAPE", "robndbox is a rotated box, only upright ones can be written"
        if twice := [tag for tag in ("name", "bndbox") if len(found.findall(tag)) > 1]:
            bbox = "E-ANN-SHAPE", f"{twice[0]} is there twice"
        if not texts.get("name"):
            bbox = "E-ANN-SHAPE", "name is empty"
        if isinstance(bbox, tuple):
            bad.append(BadAnnotation(place, *bbox))
            continue
        entries.append(entry_of(place, texts["name"], bbox))
        attributes[place] = _attributes(texts, repairs)
        repairs["part_left_out"] += len(found.findall("part"))
    return SideFile(width_px, height_px, entries, bad, attributes, repairs)


def parse_image_set(data: bytes, where: str) -> frozenset[str]:
    r"""Return the names in a list of images: one a line, without extension.

    Args:
        data: the file.
        where: the file's URI, for messages.

    Raises:
        RuntimeError: `E-ARG` when it is another list, such as those of one class.

    >>> sorted(parse_image_set(b"000005\n000007 \n\n", "train.txt"))
    ['000005', '000007']
    """
    try:
        names = [*filter(None, map(str.strip, data.decode("utf-8-sig").splitlines()))]
    except UnicodeDecodeError as error:
        what, remedy = f"not UTF-8 (byte {error.start})", "save it as UTF-8"
        raise run_fault("E-ARG", where, what, remedy) from None
    if names and all(map(_OF_A_CLASS.fullmatch, names)):
        what = f"its line {names[0]!r} has a number after the name, as in lists of one class"
        remedy = "give --splits the lists of names only, such as train,val"
        raise run_fault("E-ARG", where, what, remedy)
    return frozenset(names)


def _parse_xml(data: bytes) -> Element:
    """Return the root element of a file.

    A document type is refused, since only there entities can be declared. Nothing else is fetched
    or expanded by expat.
    """
    if len(data) > MAX_XML_BYTES:
        raise ValueError(f"{len(data)} bytes, the limit is {MAX_XML_BYTES}")
    builder, parser = TreeBuilder(), expat.ParserCreate()
    parser.buffer_text = True  # a call for a text, not for each of its lines
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.Parse(data, True)
    root = builder.close()
    if root.tag != "annotation":
        raise ValueError(f"the root is <{root.tag}>, not <annotation>")
    return root


def _refuse_doctype(name: str, *_: object) -> None:
    raise ValueError(f"a document type ({name}), which may declare entities: remove it")


def _texts(parent: Element | None) -> dict[str, str]:
    """Return the texts of the children by name, without space around them; the first of a name."""
    children = [] if parent is None else parent[::-1]
    return {child.tag: (child.text or "").strip() for child in children}


def _bbox(bndbox: dict[str, str], offset_px: int) -> list[float] | Reason:
    """Return an object's box as COCO's bbox, or its fault."""
    try:
        xmin, ymin, xmax, ymax = (float(bndbox.get(corner, "")) for corner in _CORNERS)
    except ValueError:
        given = ", ".join(f"{corner} {bndbox.get(corner, '')!r}" for corner in _CORNERS)
        return "E-BOX-SHAPE", f"bndbox is {given}"
    if not all(map(math.isfinite, (xmin, ymin, xmax, ymax))):
        return "E-BOX-NOT-FINITE", "bndbox holds a number that is not finite"
    left, top = xmin - offset_px, ymin - offset_px
    return [left, top, xmax - left, ymax - top]


def _attributes(texts: dict[str, str], repairs: Counter[str]) -> dict[str, int | str]:
    """Return the attributes that an object has; count those that are neither 0 nor 1."""
    attributes: dict[str, int | str] = {}
    for name in ("difficult", "truncated", "occluded"):
        if text := texts.get(name):
            value = _VALUE_OF_FLAG.get(text.lower())
            if value is None:
                repairs["attribute_left_out"] += 1
            else:
                attributes[name] = value
    if pose := texts.get("pose"):
        attributes["pose"] = pose
    return attributes
