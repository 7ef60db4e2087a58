"""Files that TensorFlow's tools read with the shards: a schema, a label map, and TFDS's metadata.

Written by hand, so that neither tensorflow-metadata, the Object Detection API nor TFDS is needed.
Quoting: https://protobuf.dev/reference/protobuf/textformat-spec/#string. With `features.json` and
`dataset_info.json`, `tfds.builder_from_directory` loads a data set without generation code. They
are the JSON form of TFDS's protos, as TFDS 4.9.10 writes it; 64-bit integers are strings there.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from schemas.features import SEQUENCE_KEY, Content, Feature, FeatureSpec, Kind
from schemas.labels import MAX_LABEL_ID
from schemas.layouts import Layout
from schemas.manifest import FORMAT_VERSION, Manifest
from schemas.shards import PLAIN

MIN_LABEL_ID = -(2**31)

LABEL_FILES = {
    "image/class/label": "image-class-label.labels.txt",
    "label": "label.labels.txt",
    "objects/label": "objects-label.labels.txt",
    "panoptic_objects/label": "panoptic_objects-label.labels.txt",
}
"""Names of class labels lie in these files, by key, where labels are counted from 0."""

PLAIN_SHARD_TEMPLATE = "{SPLIT}-{SHARD_X_OF_Y}.tfrec"  # train-00000-of-00016.tfrec
NOT_PLAIN_TEMPLATE = "{SPLIT}-{SHARD_X_OF_Y} (TFDS needs shards written with --shard_names plain)"
"""Names no file: TFDS looks for it where it cannot express the shards' names, and its error is that
this is not there."""

_Json = dict[str, object]

_CLASS_PREFIX = "tensorflow_datasets.core.features."
_DTYPES = {Kind.BYTES: "string", Kind.FLOAT: "float32", Kind.INT64: "int64"}
_TFMD_TYPES = {Kind.BYTES: "BYTES", Kind.FLOAT: "FLOAT", Kind.INT64: "INT"}

# C0, DEL, C1, and the two separators at which str.splitlines breaks a line. Fixed, not
# str.isprintable: that one follows the Python version's Unicode tables, and the file must not.
_CONTROL_CODES = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
_ESCAPES = str.maketrans(
    {code: "".join(f"\\{byte:03o}" for byte in chr(code).encode()) for code in _CONTROL_CODES}
    | {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", "'": "\\'", '"': '\\"'}
)


class TfdsSplit(NamedTuple):
    """One split, as TFDS finds and counts its files.

    Attributes:
        name: `train`. TFDS cannot read a split named `all`, which means every split there.
        shard_lengths: records per shard, in the order of the shards; 0 is allowed.
        shards_bytes: size of all shards together.
        filepath_template: file names with TFDS's fields SPLIT, SHARD_INDEX, NUM_SHARDS and
            SHARD_X_OF_Y, whose numbers have max(5, needed) digits. A record count that differs
            between the shards cannot be expressed.
    """

    name: str
    shard_lengths: tuple[int, ...]
    shards_bytes: int
    filepath_template: str = PLAIN_SHARD_TEMPLATE


def metadata_files(manifest: Manifest, layout: Layout) -> dict[str, str]:
    """Return the files that other tools read with the shards, by file name."""
    return metadata_of_spec(manifest, layout.spec, has_names=layout.first_label_id == 0)


def metadata_of_spec(manifest: Manifest, spec: FeatureSpec, *, has_names: bool) -> dict[str, str]:
    """Return the same for the features of a layout.

    Args:
        manifest: of the data set.
        spec: of its layout.
        has_names: whether the layout counts labels from 0, so that TFDS can have their names.
    """
    labels = [(label.id, label.name) for label in manifest.plan.labels]
    is_plain = manifest.plan.options.get("shard_names") == PLAIN
    template = PLAIN_SHARD_TEMPLATE if is_plain else NOT_PLAIN_TEMPLATE
    splits = [
        TfdsSplit(
            name=split,
            shard_lengths=tuple(e.records for e in manifest.shards if e.split == split),
            shards_bytes=summary.bytes,
            filepath_template=template,
        )
        for split, summary in manifest.splits.items()
        if summary.shards
    ]
    names = [label.name for label in manifest.plan.labels] if has_names else []
    texts = {"label_map.pbtxt": label_map_pbtxt(labels), "schema.pbtxt": schema_pbtxt(spec)}
    if spec.is_sequence:  # TFDS would take them for Examples, and find the context alone
        return texts
    description = f"{manifest.layout} Examples written by beam-tfrec; see manifest.json."
    return texts | {
        "features.json": features_json(spec, len(names)),
        "dataset_info.json": dataset_info_json(
            f"beam_tfrec_{manifest.layout}", f"{FORMAT_VERSION}.0.0", description, splits
        ),
        **(label_files(spec, names) if names else {}),
    }


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
        items: (id, name) pairs in any order; ids differ, and may have gaps.

    Raises:
        ValueError: if an id is no int32.
    """
    return "".join(_label_map_item(label_id, name) for label_id, name in sorted(items))


def features_json(spec: FeatureSpec, num_labels: int = 0) -> str:
    """Return TFDS's `features.json`: a FeaturesDict nested along the keys' slashes.

    `image/object/area` is read as `example["image"]["object"]["area"]`. Where one key continues
    another (`image`, `image/filename`) the longer one stays flat beside it, as in TFDS's own COCO.

    Images are decoded to uint8 RGB of shape (height, width, 3): JPEG, PNG and BMP, mixed at will.
    GIF and WebP decode to a fourth axis, which fails; `tfds.decode.SkipDecoding()` gives the bytes
    of any format. Class labels are int64: TFDS's ClassLabel counts from 0 without gaps, which a
    label map need not. An optional value that is missing is TFDS's default: b"", or the least
    number of its type.

    Args:
        spec: the features; its sequences become TFDS's, of a dictionary each.
        num_labels: of class labels with a file in `LABEL_FILES`, which are counted from 0 then;
            0 where they are not.

    Raises:
        ValueError: when records are SequenceExamples, which TFDS 4.9.10 does not read.
    """
    if spec.is_sequence:
        raise ValueError(
            f"spec must be of Examples, which is what TFDS reads, got {spec.name!r} of"
            " SequenceExamples: write no features.json"
        )
    in_sequences = tuple(f"{sequence}/" for sequence in spec.sequences)
    features = [f for f in spec.features if not f.key.startswith(in_sequences)]
    leaves = {feature.key: _feature(feature, num_labels) for feature in features}
    for sequence in spec.sequences:
        prefix = f"{sequence}/"
        members = [f for f in spec.features if f.key.startswith(prefix)]
        values = {f.key.removeprefix(prefix): _member(f, num_labels) for f in members}
        leaves[sequence] = _sequence(_features_dict(values))
    return _to_text(_features_dict(leaves))


def label_files(spec: FeatureSpec, names: Sequence[str]) -> dict[str, str]:
    r"""Return the names of class labels as TFDS reads them, by file name.

    Args:
        spec: of a layout whose labels are counted from 0.
        names: of the labels, by id.

    >>> key = Feature("objects/label", Kind.INT64, True, "ids", Content.CLASS_LABEL)
    >>> label_files(FeatureSpec("tfds", (key,)), ["person", " "])
    {'objects-label.labels.txt': 'person\nclass_1\n'}
    """
    lines = (_label_line(number, name) for number, name in enumerate(names))
    text = "".join(f"{line}\n" for line in lines)
    keys = {feature.key for feature in spec.features}
    return {name: text for key, name in LABEL_FILES.items() if key in keys}


def dataset_info_json(
    name: str, version: str, description: str, splits: Sequence[TfdsSplit]
) -> str:
    """Return TFDS's `dataset_info.json` for uncompressed TFRecord shards.

    Args:
        name: letters, digits and underscores, a letter first: `coco_tfrec`.
        version: three numbers, `1.0.0`.
        description: free text.
        splits: in any order, of different names; written by name.
    """
    written = [
        {
            "name": split.name,
            "shardLengths": [str(length) for length in split.shard_lengths],
            "numBytes": str(split.shards_bytes),
            "filepathTemplate": split.filepath_template,
        }
        for split in sorted(splits)
    ]
    head = {"name": name, "version": version, "description": description}
    return _to_text({**head, "fileFormat": "tfrecord", "splits": written})


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
    return mark + text.translate(_ESCAPES) + mark


def _features_dict(leaves: Mapping[str, _Json]) -> _Json:
    features: dict[str, _Json] = {}
    groups: dict[str, dict[str, _Json]] = {}
    for path, leaf in leaves.items():
        head, _, rest = path.partition("/")
        if rest and head not in leaves:
            groups.setdefault(head, {})[rest] = leaf
        else:
            features[path] = leaf
    features |= {head: _features_dict(group) for head, group in groups.items()}
    return _connector("features_dict.FeaturesDict", featuresDict={"features": features})


def _feature(feature: Feature, num_labels: int) -> _Json:
    value = _value(feature, num_labels)
    if feature.repeated:
        value = _sequence(value)
    return value | {"description": feature.doc}


def _sequence(of: _Json) -> _Json:
    return _connector("sequence_feature.Sequence", sequence={"feature": of, "length": "-1"})


def _member(feature: Feature, num_labels: int) -> _Json:
    """Return one value of a feature that belongs to a sequence of dictionaries."""
    value = _value(feature, num_labels)
    if feature.content is Content.FLAG:
        tensor = {"shape": {}, "dtype": "bool", "encoding": "none"}
        value = _connector("tensor_feature.Tensor", tensor=tensor)
    elif feature.content is Content.BOX_YXYX:
        box = {"shape": {"dimensions": ["4"]}, "dtype": "float32", "bboxFormat": "REL_YXYX"}
        value = _connector("bounding_boxes.BBoxFeature", boundingBox=box)
    return value | {"description": feature.doc}


def _label_line(number: int, name: str) -> str:
    """Return a name, or a number where TFDS would read another: it strips lines."""
    survives = name and name == name.strip() and not set("\r\n") & set(name)
    return name if survives else f"class_{number}"


def _value(feature: Feature, num_labels: int) -> _Json:
    if num_labels and feature.key in LABEL_FILES:
        label = {"numClasses": str(num_labels)}
        return _connector("class_label_feature.ClassLabel", classLabel=label)
    if feature.content is Content.IMAGE:
        # No encodingFormat: it would only name the format that TFDS itself writes.
        image = {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}
        return _connector("image_feature.Image", image=image)
    if feature.content is Content.TEXT and not feature.optional:
        return _connector("text_feature.Text", text={})
    tensor: _Json = {"shape": {}, "dtype": _DTYPES[feature.kind], "encoding": "none"}
    if feature.optional:
        tensor["optional"] = True
    return _connector("tensor_feature.Tensor", tensor=tensor)


def _connector(class_name: str, **content: Mapping[str, object]) -> _Json:
    return {"pythonClassName": _CLASS_PREFIX + class_name, **content}


def _to_text(content: _Json) -> str:
    # ASCII only: readers open the file in whatever encoding their locale has.
    return json.dumps(content, indent=2, sort_keys=True) + "\n"
