"""What TensorFlow's tools read as protobuf text: `schema.pbtxt` and `label_map.pbtxt`.

Written by hand, so that neither tensorflow-metadata nor the Object Detection API is needed. Quoting
follows https://protobuf.dev/reference/protobuf/textformat-spec/#string.
"""

from collections import Counter
from collections.abc import Sequence

from schemas.features import SEQUENCE_KEY, Content, Feature, FeatureSpec, Kind

MAX_LABEL_ID = 2**31 - 1  # StringIntLabelMapItem.id is an int32
MIN_LABEL_ID = -(2**31)

_TFMD_TYPES = {Kind.BYTES: "BYTES", Kind.FLOAT: "FLOAT", Kind.INT64: "INT"}

# C0, DEL, C1, and the two separators at which str.splitlines breaks a line. Fixed, not
# str.isprintable: that one follows the Python version's Unicode tables, and the file must not.
_CONTROL_CODES = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
_ESCAPES = str.maketrans(
    {code: "".join(f"\\{byte:03o}" for byte in chr(code).encode()) for code in _CONTROL_CODES}
    | {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", "'": "\\'", '"': '\\"'}
)


def schema_pbtxt(spec: FeatureSpec) -> str:
    """Return the TensorFlow Metadata `Schema` of an Example, as protobuf's own printer writes it.

    Every feature is present in every Example, but for optional ones, of which nothing is said but
    that they have at most one value. One that is neither has the shape [1]; a repeated one has 0
    or more values. Those of a SequenceExample's steps are members of the struct `##SEQUENCE##`,
    where TFX and TensorFlow Data Validation look for them.
    """
    context = [
        _block("feature", _schema_feature(f)) for f in spec.sorted_features if not f.per_step
    ]
    return "".join([*context, *([_schema_struct(spec)] if spec.is_sequence else [])])


def label_map_pbtxt(items: Sequence[tuple[int, str]]) -> str:
    r"""Return a `StringIntLabelMap` by id, as the TF Object Detection API reads it.

    Id 0 is written like any other. The Object Detection API reserves it for the background: its
    `label_map_util` refuses an item 0 of another name, and any negative id.

    >>> print(label_map_pbtxt([(2, "driver's cab"), (1, "person")]), end="")
    item {
      id: 1
      name: 'person'
    }
    item {
      id: 2
      name: 'driver\'s cab'
    }

    Args:
        items: (id, name) pairs in any order; ids may have gaps.

    Raises:
        ValueError: if an id comes twice or is no int32, or a name is no valid Unicode.
    """
    by_id = dict(items)
    if len(by_id) < len(items):
        counts = Counter(label_id for label_id, _ in items)
        twice = sorted(label_id for label_id, count in counts.items() if count > 1)
        raise ValueError(f"label ids must differ, got {twice} twice: give each name its own")
    return "".join(_label_map_item(label_id, by_id[label_id]) for label_id in sorted(by_id))


def _schema_struct(spec: FeatureSpec) -> str:
    members = [_block("feature", _schema_steps(f)) for f in spec.sorted_features if f.per_step]
    domain = _block("struct_domain", "".join(members).splitlines())
    lines = ["name: " + _quote(SEQUENCE_KEY, '"'), "type: STRUCT"]
    return _block("feature", [*lines, *domain.splitlines()])


def _schema_steps(feature: Feature) -> list[str]:
    """Return the lines of a feature of steps: any number of these, of one value or of any."""
    values = ["    min: 0"] if feature.repeated else ["    min: 1", "    max: 1"]
    return [
        "name: " + _quote(feature.key, '"'),
        f"type: {_TFMD_TYPES[feature.kind]}",
        *("presence {", "  min_fraction: 1.0", "  min_count: 1", "}"),
        *("annotation {", "  comment: " + _quote(feature.doc, '"'), "}"),
        *("value_counts {", "  value_count {", "    min: 0", "  }"),
        *("  value_count {", *values, "  }", "}"),
    ]


def _schema_feature(feature: Feature) -> list[str]:
    # By field number, which is the order of protobuf's printer.
    lines = ["name: " + _quote(feature.key, '"')]
    if feature.repeated:
        lines += ["value_count {", "  min: 0", "}"]
    if feature.optional:
        lines += ["value_count {", "  min: 1", "  max: 1", "}"]
    lines += [f"type: {_TFMD_TYPES[feature.kind]}"]
    if feature.content is Content.CLASS_LABEL:
        lines += ["int_domain {", "  is_categorical: true", "}"]
    if feature.optional:
        lines += ["presence {", "  min_count: 0", "}"]
    else:
        lines += ["presence {", "  min_fraction: 1.0", "  min_count: 1", "}"]
    lines += ["annotation {", "  comment: " + _quote(feature.doc, '"'), "}"]
    if not feature.repeated and not feature.optional:
        lines += ["shape {", "  dim {", "    size: 1", "  }", "}"]
    if feature.content is Content.IMAGE:
        lines += ["image_domain {", "}"]
    return lines


def _label_map_item(label_id: int, name: str) -> str:
    if not MIN_LABEL_ID <= label_id <= MAX_LABEL_ID:
        raise ValueError(
            f"label id must be an int32, got {label_id} for {name!r}: renumber the categories"
        )
    return _block("item", [f"id: {label_id}", "name: " + _quote(name, "'")])


def _block(name: str, lines: Sequence[str]) -> str:
    return "".join([f"{name} {{\n", *(f"  {line}\n" for line in lines), "}\n"])


def _quote(text: str, mark: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text must be valid Unicode, got {text!r}: it holds half of a surrogate pair"
        ) from error
    return mark + text.translate(_ESCAPES) + mark
