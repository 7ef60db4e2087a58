"""Features of which an Example may lack the key, as their readers see them."""

import json
from pathlib import Path

import pytest

from schemas.documents.tensorflow_files import (
    TfdsSplit,
    dataset_info_json,
    features_json,
    schema_pbtxt,
)
from schemas.example import encode_example
from schemas.features import Content, Feature, FeatureSpec, Kind, parse_spec
from schemas.manifest import FeatureEntry, from_json, to_json
from schemas.tfrecord import frame_record

OPTIONAL = FeatureSpec(
    "table",
    (
        Feature("age", Kind.INT64, False, "column age", optional=True),
        Feature("name", Kind.BYTES, False, "column name", Content.TEXT, optional=True),
        Feature("row", Kind.INT64, False, "column row"),
        Feature("weight", Kind.FLOAT, False, "column weight", optional=True),
    ),
)
FULL = {
    "age": (Kind.INT64, [7]),
    "name": (Kind.BYTES, [b"ann"]),
    "row": (Kind.INT64, [0]),
    "weight": (Kind.FLOAT, [1.5]),
}
HOLES = {"row": (Kind.INT64, [1])}


def test_parse_spec_gives_the_default_of_the_kind() -> None:
    import tensorflow as tf

    records = [encode_example(FULL), encode_example(HOLES)]
    parsed = tf.io.parse_example(records, parse_spec(OPTIONAL))

    assert {key: value.numpy().tolist() for key, value in parsed.items()} == {
        "age": [7, 0],
        "name": [b"ann", b""],
        "row": [0, 1],
        "weight": [1.5, 0.0],
    }


def test_tfds_gives_its_own_default(tmp_path: Path) -> None:
    import tensorflow_datasets as tfds

    framed = [b"".join(frame_record([encode_example(values)])) for values in (FULL, HOLES)]
    (tmp_path / "train-00000-of-00001.tfrec").write_bytes(b"".join(framed))
    (tmp_path / "features.json").write_text(features_json(OPTIONAL))
    split = TfdsSplit("train", (2,), sum(map(len, framed)))
    (tmp_path / "dataset_info.json").write_text(dataset_info_json("t", "1.0.0", "d", [split]))

    rows = list(tfds.as_numpy(tfds.builder_from_directory(tmp_path).as_dataset(split="train")))

    assert rows[0] == {"age": 7, "name": b"ann", "row": 0, "weight": 1.5}
    assert (rows[1]["age"], rows[1]["name"], rows[1]["row"]) == (-(2**63), b"", 1)
    assert rows[1]["weight"] < -3e38


def test_schema_says_that_they_may_be_missing() -> None:
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = text_format.Parse(schema_pbtxt(OPTIONAL), schema_pb2.Schema())
    presence = {feature.name: feature.presence for feature in schema.feature}

    assert text_format.MessageToString(schema, as_utf8=True) == schema_pbtxt(OPTIONAL)
    assert {name: found.min_fraction for name, found in presence.items()} == {
        "age": 0,
        "name": 0,
        "row": 1,
        "weight": 0,
    }
    assert [f.value_count.max for f in schema.feature] == [1, 1, 0, 1]


def test_manifest_names_them_alone() -> None:
    required = FeatureEntry("row", "int64", False, "d", "plain")
    optional = FeatureEntry("age", "int64", False, "d", "plain", optional=True)

    assert "optional" not in json.loads(to_json(required))
    assert json.loads(to_json(optional))["optional"] is True
    assert from_json(to_json(optional), FeatureEntry) == optional


def test_a_list_is_never_optional() -> None:
    with pytest.raises(ValueError) as raised:
        Feature("tags", Kind.BYTES, True, "d", optional=True)

    assert str(raised.value) == (
        "optional must be a feature of one value, got tags of any number: no value, or no step,"
        " says that there is none"
    )
