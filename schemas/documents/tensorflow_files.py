"""Files that TensorFlow's tools read with the shards: a schema, a label map, and TFDS's metadata.

They are written without tensorflow-metadata, the Object Detection API and TFDS. Text protos are
quoted by https://protobuf.dev/reference/protobuf/textformat-spec/#string. `features.json` and
`dataset_info.json` let `tfds.builder_from_directory` load a data set without generation code. They
are the JSON form of TFDS's protos, as TFDS 4.9.10 writes it: 64-bit integers are strings.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from beam_tfrec.schemas.features import SEQUENCE_KEY, Content, Feature, FeatureSpec, Kind
from beam_tfrec.schemas.manifest import Label, Manifest
from beam_tfrec.schemas.shards import MAXDIFFUSION, PLAIN, TFDS, in_format

_LABELS = ("image/class/label", "label", "objects/label", "panoptic_objects/label")
LABEL_FILES = {key: f"{key.replace('/', '-')}.labels.txt" for key in _LABELS}
"""Names of TFDS's files of class names, by feature key; for layouts that number classes from 0."""

_TFDS_TEMPLATES = (PLAIN, TFDS, MAXDIFFUSION)
# TFDS cannot express a name with a record count. It looks for a file of this name instead, so its
# error message shows the remedy.
_NOT_PLAIN_TEMPLATE = "{SPLIT}-{SHARD_X_OF_Y} (TFDS needs shards written with --shard_names plain)"

_Json = dict[str, object]
_Proto = list[tuple[str, object]]
"""Fields of a proto message in order; a value is a nested message, or the field's text."""

_CLASS_PREFIX = "tensorflow_datasets.core.features."
_DTYPES = {Kind.BYTES: "string", Kind.FLOAT: "float32", Kind.INT64: "int64"}
_TFMD_TYPES = {Kind.BYTES: "BYTES", Kind.FLOAT: "FLOAT", Kind.INT64: "INT"}
_ANY_NUMBER: _Proto = [("min", 0)]
_ONE: _Proto = [("min", 1), ("max", 1)]
_IN_EVERY_RECORD: _Proto = [("min_fraction", "1.0"), ("min_count", 1)]

# C0, DEL, C1, and the two separators at which str.splitlines breaks a line. The list is fixed:
# str.isprintable depends on the Python version's Unicode tables, and the file must not.
_CONTROL_CODES = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
_ESCAPES = str.maketrans(
    {code: "".join(f"\\{byte:03o}" for byte in chr(code).encode()) for code in _CONTROL_CODES}
    | {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", "'": "\\'", '"': '\\"'}
)


def metadata_files(manifest: Manifest, spec: FeatureSpec, *, has_names: bool) -> dict[str, str]:
    """Return the texts of the files, by file name; none for opaque records.

    Args:
        manifest: manifest of the data set.
        spec: features of its layout.
        has_names: whether the layout numbers classes from 0; TFDS supports class names only then.
    """
    if spec.is_opaque:
        return {}
    labels = manifest.plan.labels
    names = [label.name for label in labels] if has_names else []
    texts = {"label_map.pbtxt": label_map_pbtxt(labels), "schema.pbtxt": schema_pbtxt(spec)}
    if spec.is_sequence:  # TFDS would parse them as Examples and only find the context
        return texts
    return texts | {
        "features.json": features_json(spec, len(names)),
        "dataset_info.json": dataset_info_json(manifest),
        **(label_files(spec, names) if names else {}),
    }


def schema_pbtxt(spec: FeatureSpec) -> str:
    """Return the TensorFlow Metadata `Schema` of an Example, as protobuf's own printer writes it.

    A feature that is not optional is declared present in every Example. A feature of exactly one
    value has the shape [1]. Per-step features are members of the struct `##SEQUENCE##`, where TFX
    and TensorFlow Data Validation expect them.
    """
    features, steps = (
        [("feature", _schema_feature(f)) for f in spec.sorted_features if f.per_step == per_step]
        for per_step in (False, True)
    )
    if steps:
        name = f'"{SEQUENCE_KEY}"'
        features += [("feature", [("name", name), ("type", "STRUCT"), ("struct_domain", steps)])]
    return _proto_text(features)


def label_map_pbtxt(labels: Iterable[Label]) -> str:
    r"""Return a `StringIntLabelMap` sorted by id, for the TF Object Detection API.

    Id 0 is written like any other id. But the Object Detection API reserves it for the background:
    its `label_map_util` refuses an item 0 of another name, and any negative id.

    >>> print(label_map_pbtxt([Label(2, "driver's cab"), Label(1, "person")]), end="")
    item {
      id: 1
      name: 'person'
    }
    item {
      id: 2
      name: 'driver\'s cab'
    }

    Args:
        labels: the labels in any order. Ids have 32 bits, differ, and may have gaps.
    """
    return _proto_text(
        ("item", [("id", label.id), ("name", _quote(label.name, "'"))]) for label in sorted(labels)
    )


def features_json(spec: FeatureSpec, num_labels: int = 0) -> str:
    """Return TFDS's `features.json`: a FeaturesDict nested along the keys' slashes.

    `image/object/area` is read as `example["image"]["object"]["area"]`. If a key is the beginning
    of another one (`image`, `image/filename`), the longer key is not nested, as in TFDS's own COCO.

    JPEG, PNG and BMP images, in any mix, are decoded to uint8 RGB of shape (height, width, 3). GIF
    and WebP fail, since they decode to four axes; `tfds.decode.SkipDecoding()` gives the bytes of
    any format. Class labels are int64 unless `num_labels` is given: TFDS's ClassLabel needs ids
    from 0 without gaps. A missing optional value becomes TFDS's default: b"", or the least number
    of its type.

    Args:
        spec: features of the Examples. Boxes, and other lists with their prefix, become a TFDS
            Sequence of a dict, if all features with that prefix are lists.
        num_labels: number of classes if they are numbered from 0 and have a file in `LABEL_FILES`;
            else 0.
    """
    leaves: dict[str, _Json] = {}
    members: dict[str, dict[str, _Json]] = {}
    for feature in spec.features:
        prefix, slash, _ = feature.key.rpartition("/")
        alike = [f.repeated for f in spec.features if f.key.startswith(prefix + slash)]
        if feature.content is Content.BOX_YXYX and slash and all(alike):
            members[prefix] = {}
    for feature in spec.features:
        parents = [key for key in members if feature.key.startswith(f"{key}/")]
        value = _value(feature, num_labels, is_member=bool(parents))
        if feature.repeated and not parents:
            value = _sequence(value)
        value["description"] = feature.doc
        leaves |= {} if parents else {feature.key: value}
        for key in parents:
            members[key][feature.key.removeprefix(f"{key}/")] = value
    leaves |= {key: _sequence(_features_dict(values)) for key, values in members.items()}
    return _to_text(_features_dict(leaves))


def label_files(spec: FeatureSpec, names: Sequence[str]) -> dict[str, str]:
    r"""Return TFDS's files of class names, by file name.

    TFDS strips lines. A name that would change by this is replaced by `class_` and its number.

    Args:
        spec: features of a layout that numbers classes from 0.
        names: class names, by id.

    >>> key = Feature("objects/label", Kind.INT64, True, "ids", Content.CLASS_LABEL)
    >>> label_files(FeatureSpec("tfds", (key,)), ["person", " "])
    {'objects-label.labels.txt': 'person\nclass_1\n'}
    """
    text = ""
    for number, name in enumerate(names):
        survives = name and name == name.strip() and not set("\r\n") & set(name)
        text += f"{name if survives else f'class_{number}'}\n"
    keys = {feature.key for feature in spec.features}
    return {name: text for key, name in LABEL_FILES.items() if key in keys}


def tfds_template(manifest: Manifest) -> str | None:
    """Return TFDS's form of a data set's shard names; None if TFDS cannot express them."""
    names, is_array = manifest.plan.options.get("shard_names", ""), manifest.is_array_record
    if names not in (in_format(ours, array_record=is_array) for ours in _TFDS_TEMPLATES):
        return None
    template = names.replace("{split}", "{SPLIT}")  # {SHARD_X_OF_Y} is 00000-of-00016
    return template.replace("{index:05}-of-{num_shards:05}", "{SHARD_X_OF_Y}")


def dataset_info_json(manifest: Manifest) -> str:
    """Return TFDS's `dataset_info.json`. TFDS cannot read a split named `all`."""
    splits = [
        {
            "name": split,
            "shardLengths": [str(e.records) for e in manifest.shards if e.split == split],
            "numBytes": str(summary.bytes),
            "filepathTemplate": tfds_template(manifest) or _NOT_PLAIN_TEMPLATE,
        }
        for split, summary in sorted(manifest.splits.items())
        if summary.shards
    ]
    return _to_text(
        {
            "name": f"beam_tfrec_{manifest.layout}",
            "version": f"{manifest.format_version}.0.0",
            "description": f"{manifest.layout} Examples written by beam-tfrec; see manifest.json.",
            "fileFormat": "array_record" if manifest.is_array_record else "tfrecord",
            "splits": splits,
        }
    )


def _schema_feature(feature: Feature) -> _Proto:
    """Return a feature's fields in the order of their numbers, like protobuf's printer."""
    num_values = _ANY_NUMBER if feature.repeated else _ONE
    fields: _Proto = [("name", _quote(feature.key, '"'))]
    if not feature.per_step and (feature.repeated or feature.optional):
        fields.append(("value_count", num_values))
    fields.append(("type", _TFMD_TYPES[feature.kind]))
    if feature.content is Content.CLASS_LABEL:
        fields.append(("int_domain", [("is_categorical", "true")]))
    fields.append(("presence", [("min_count", 0)] if feature.optional else _IN_EVERY_RECORD))
    fields.append(("annotation", [("comment", _quote(feature.doc, '"'))]))
    if feature.num_values == "1":
        fields.append(("shape", [("dim", [("size", 1)])]))
    if feature.content is Content.IMAGE:
        fields.append(("image_domain", []))
    if feature.per_step:  # any number of steps, then the values of each
        counts = [("value_count", _ANY_NUMBER), ("value_count", num_values)]
        fields.append(("value_counts", counts))
    return fields


def _proto_text(fields: Iterable[tuple[str, object]], indent: str = "") -> str:
    text = ""
    for name, value in fields:
        if isinstance(value, list):
            text += f"{indent}{name} {{\n{_proto_text(value, indent + '  ')}{indent}}}\n"
        else:
            text += f"{indent}{name}: {value}\n"
    return text


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


def _value(feature: Feature, num_labels: int, *, is_member: bool) -> _Json:
    """Return TFDS's feature for one value.

    Args:
        feature: feature of the spec.
        num_labels: see `features_json`.
        is_member: whether the feature belongs to a sequence of the spec.
    """
    if num_labels and feature.key in LABEL_FILES:
        label = {"numClasses": str(num_labels)}
        return _connector("class_label_feature.ClassLabel", classLabel=label)
    if feature.content is Content.IMAGE:
        # encodingFormat is left out: it only matters when TFDS itself writes images.
        image = {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}
        return _connector("image_feature.Image", image=image)
    if feature.content is Content.TEXT and not feature.optional:
        return _connector("text_feature.Text", text={})
    if feature.content is Content.BOX_YXYX and is_member:
        box = {"shape": {"dimensions": ["4"]}, "dtype": "float32", "bboxFormat": "REL_YXYX"}
        return _connector("bounding_boxes.BBoxFeature", boundingBox=box)
    is_bool = feature.content is Content.FLAG and is_member
    dtype = "bool" if is_bool else _DTYPES[feature.kind]
    tensor: _Json = {"shape": {}, "dtype": dtype, "encoding": "none"}
    if feature.optional:
        tensor["optional"] = True
    return _connector("tensor_feature.Tensor", tensor=tensor)


def _sequence(of: _Json) -> _Json:
    return _connector("sequence_feature.Sequence", sequence={"feature": of, "length": "-1"})


def _connector(class_name: str, **content: Mapping[str, object]) -> _Json:
    return {"pythonClassName": _CLASS_PREFIX + class_name, **content}


def _to_text(content: _Json) -> str:
    # ASCII only: readers open the file with the encoding of their locale.
    return json.dumps(content, indent=2, sort_keys=True) + "\n"
