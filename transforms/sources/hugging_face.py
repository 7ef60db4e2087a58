"""Images, classes and objects in Parquet files as Hugging Face's `datasets` writes them.

A cell of an image column holds the image file's bytes. The schema's metadata names the features:
which columns are images, the names of classes by number, and columns of objects.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from beam_tfrec.schemas.annotations.object_maps import ObjectMap, side_file_of
from beam_tfrec.schemas.columns import Cell, text_of
from beam_tfrec.transforms.sources import read_sidecar
from beam_tfrec.transforms.sources.listing import listing_fault
from beam_tfrec.transforms.sources.read_sidecar import SideSample
from beam_tfrec.transforms.storage import Entry

_METADATA = b"huggingface"
_LISTS = ("List", "LargeList", "Sequence")
_TEXT, _BYTES = "(?:large_)?string(?:_view)?", "(?:large_)?binary(?:_view)?"
_NULLS = "(?: not null)?"
_HOLDS_BYTES = re.compile(
    rf"{_BYTES}|struct<(?:path: {_TEXT}{_NULLS}, )?bytes: {_BYTES}{_NULLS}(?:, path: .*)?>"
)
_BOX, _CATEGORY = "bbox", "category"


class StoredFeatures(NamedTuple):
    """What the schema of a Parquet file says of its columns.

    Attributes:
        binary: columns of bytes, or of structs of bytes and a path.
        images: columns of bytes that are images.
        objects: columns of objects with boxes.
        classes: names of the classes by number, by column or `column.member`.
        columns: names of all columns.
        members: known members of columns of objects, as `column.member`.
    """

    binary: frozenset[str] = frozenset()
    images: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    classes: Mapping[str, Sequence[str]] = {}
    columns: Sequence[str] = ()
    members: frozenset[str] = frozenset()

    def class_path(self, objects_column: str) -> str:
        """Return the path of the classes of a column of objects: `category`, or the only one.

        >>> StoredFeatures(classes={"objects.label": ["cat"]}).class_path("objects")
        'objects.label'

        Raises:
            ValueError: when several members are classes, and none is `category`.
        """
        usual = f"{objects_column}.{_CATEGORY}"
        named = [path for path in self.classes if path.startswith(f"{objects_column}.")]
        if usual in self.members or not named:
            return usual
        if len(named) > 1:
            what = f"objects_column must have one member of classes, got {' and '.join(named)}"
            raise ValueError(f"{what}: call it {_CATEGORY} in the table")
        return named[0]


NO_FEATURES = StoredFeatures()


class RowFault(ValueError):
    """The fault of a row, with a code of scope SAMPLE."""

    def __init__(self, code: str, detail: str) -> None:
        """Store the code and the description."""
        super().__init__(detail)
        self.code = code


def features_of(schema: Any) -> StoredFeatures:
    """Return the features that a `pyarrow.Schema` tells. Metadata of another form is ignored."""
    binary = frozenset(field.name for field in schema if _HOLDS_BYTES.fullmatch(str(field.type)))
    try:
        known = msgspec.json.decode((schema.metadata or {}).get(_METADATA, b"{}"))
        features = known["info"]["features"]
        columns = {name: _inner(features[name]) for name in schema.names if name in features}
    except (ValueError, KeyError, TypeError):
        return StoredFeatures(binary, columns=schema.names)
    nested = {name: of for name, of in columns.items() if not isinstance(of.get("_type"), str)}
    paths = dict(columns)
    for name, members in nested.items():
        paths |= {f"{name}.{member}": _inner(of) for member, of in members.items()}
    return StoredFeatures(
        binary,
        tuple(n for n, of in columns.items() if of.get("_type") == "Image" and n in binary),
        tuple(name for name, members in nested.items() if _BOX in members),
        {path: names for path, of in paths.items() if (names := _class_names(of))},
        schema.names,
        frozenset(paths.keys() - columns.keys()),
    )


def _inner(feature: Any) -> dict[str, Any]:
    """Return the feature of a list's items, or of a value that is not a list."""
    while True:
        if isinstance(feature, list) and len(feature) == 1:  # written by old versions
            feature = feature[0]
        elif isinstance(feature, dict) and feature.get("_type") in _LISTS:
            feature = feature.get("feature")
        else:
            return feature if isinstance(feature, dict) else {}


def _class_names(feature: Mapping[str, Any]) -> Sequence[str]:
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    is_list = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    return names if names and is_list else ()


def open_image(cell: Cell, column: str) -> tuple[bytes, str]:
    """Return the image of a cell, and its name, which may be empty.

    Raises:
        RowFault: when there is none, or it is empty or too large.
    """
    data, path = cell, ""
    if isinstance(cell, dict):
        data, path = cell.get("bytes"), cell.get("path") or ""
    elif isinstance(cell, str):
        data, path = None, cell
    if not isinstance(data, bytes):
        what = f"column {column!r} has no image"
        if path:
            what = f"column {column!r} has the path {path!r} without the image's bytes: write the"
            what += " file again with datasets.table.embed_table_storage, or by push_to_hub"
        raise RowFault("E-IMG-MISSING", what)
    code, detail = listing_fault(Entry(path, len(data), ""))
    if code:
        raise RowFault(code, detail)
    return data, path


def class_of(value: Cell, names: Sequence[str]) -> Cell:
    """Return the name of a cell's class, or of each class of a list.

    >>> class_of(1, ["cat", "dog"]), class_of([0], ["cat"]), class_of("cat", [])
    ('dog', ['cat'], 'cat')

    Raises:
        RowFault: when a number has no name.
    """
    if isinstance(value, list):
        return [class_of(member, names) for member in value]
    if names and isinstance(value, int) and value not in range(len(names)):
        what = f"class {value} is not one of the {len(names)} that the schema names"
        raise RowFault("E-SRC-LABEL", what)
    return names[value] if names and isinstance(value, int) else value


def open_objects(
    cells: Mapping[str, Cell], objects: ObjectMap, features: StoredFeatures
) -> SideSample:
    """Return the objects of a row.

    Args:
        cells: cells of the row, by column; `width` and `height` of the image may be missing.
        objects: column of objects, and format of their boxes.
        features: what the schema says: which member is the class, and the names of the classes.
            Without names, cells hold the names.

    Raises:
        RowFault: when the column does not hold objects.
    """
    class_path = features.class_path(objects.path)
    names = features.classes.get(class_path, ())

    def name_of(value: Cell) -> str:
        category = class_of(value, names)
        if category in (None, "") or isinstance(category, list | dict):
            raise RowFault("E-SRC-LABEL", f"{class_path} has no class")
        return text_of(category)

    members = objects._replace(label=class_path.removeprefix(f"{objects.path}."))
    try:
        side = side_file_of(cells, cells.get(objects.path), members, name_of)
    except ValueError as error:
        raise RowFault("E-ROW-TYPE", f"column {error}") from None
    return read_sidecar.open_objects(side)
