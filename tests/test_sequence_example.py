"""`tf.train.SequenceExample` without TensorFlow: its bytes, its parse spec and its schema."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.documents.tensorflow_files import features_json, schema_pbtxt
from schemas.example import (
    FeatureListValues,
    FeatureValues,
    encode_sequence_example,
    encode_sequence_example_parts,
)
from schemas.features import Feature, FeatureSpec, Kind, RepeatedAs, parse_sequence_spec, parse_spec
from tests.test_example import (
    BYTES,
    FEATURES,
    FLOATS,
    KEYS,
    LITERAL,
    NUMBERS,
    many,
    tensorflow_example,
    value_lists,
)

STEPS: FeatureListValues = {
    "tokens": (Kind.INT64, [[1], [300], [-1], [0]]),
    "frames": (Kind.BYTES, [[b"\xff\xd8" + bytes(5000)], [b"small"], [b"", b"x"], []]),
    "scores": (Kind.FLOAT, [[0.1, 1e39], [], [-0.0]]),
    "nothing": (Kind.INT64, []),
}


def tensorflow_sequence(context: FeatureValues, feature_lists: FeatureListValues) -> Any:
    import tensorflow as tf

    def feature(kind: Kind, values: Sequence) -> tf.train.Feature:
        return tensorflow_example({"a": (kind, values)}).features.feature["a"]

    by_key = {
        key: tf.train.FeatureList(feature=[feature(kind, values) for values in steps])
        for key, (kind, steps) in feature_lists.items()
    }
    return tf.train.SequenceExample(
        context=tensorflow_example(context).features,
        feature_lists=tf.train.FeatureLists(feature_list=by_key),
    )


def check_against_tensorflow(context: FeatureValues, feature_lists: FeatureListValues) -> None:
    expected = tensorflow_sequence(context, feature_lists).SerializeToString(deterministic=True)
    assert encode_sequence_example(context, feature_lists) == expected


# --- bytes ---


def test_the_bytes_of_a_sequence_example_are_these_for_ever() -> None:
    encoded = encode_sequence_example(LITERAL, STEPS)
    assert (len(encoded), hashlib.sha256(encoded).hexdigest()) == (
        10399,
        "4e88dbf64eed12ee68f910d8f06b9f71bdf2645f6af114afe2579ab2eb9d3ce6",
    )
    check_against_tensorflow(LITERAL, STEPS)


# Remark, context, feature lists, the message in hex: by hand from the encoding's specification.
MESSAGES: dict[str, tuple[FeatureValues, FeatureListValues, str]] = {
    "nothing": ({}, {}, "0a001200"),
    "context alone": ({"a": (Kind.INT64, [1])}, {}, "0a0c0a0a0a016112051a030a01011200"),
    "no steps": ({}, {"a": (Kind.INT64, [])}, "0a0012070a050a01611200"),
    "steps of one, none, two": (
        {},
        {"a": (Kind.INT64, [[1], [], [2, 3]])},
        "0a00121a0a180a016112130a051a030a01010a021a000a061a040a020203",
    ),
    "bytes": (
        {},
        {"a": (Kind.BYTES, [[b"x"], []])},
        "0a0012120a100a0161120b0a050a030a01780a020a00",
    ),
}


@pytest.mark.parametrize(("context", "steps", "message"), MESSAGES.values(), ids=MESSAGES)
def test_messages_by_hand(context: FeatureValues, steps: FeatureListValues, message: str) -> None:
    assert encode_sequence_example(context, steps).hex() == message
    check_against_tensorflow(context, steps)


FEATURE_LISTS = st.dictionaries(
    (KEYS | st.sampled_from(["image/encoded", "k" * 127])).map("{}$".format),
    st.one_of(
        st.tuples(st.just(Kind.BYTES), st.lists(st.lists(BYTES, max_size=3), max_size=4)),
        st.tuples(st.just(Kind.FLOAT), st.lists(value_lists(FLOATS), max_size=4)),
        st.tuples(st.just(Kind.INT64), st.lists(value_lists(NUMBERS), max_size=4)),
        st.tuples(st.just(Kind.INT64), st.integers(0, 3000).map(lambda n: [[n % 200]] * n)),
    ),
    max_size=4,
)


@many(1_000)
@given(FEATURES, FEATURE_LISTS)
def test_random_ones_equal_tensorflow_s(
    context: FeatureValues, feature_lists: FeatureListValues
) -> None:
    check_against_tensorflow(context, feature_lists)


@pytest.mark.parametrize("size_bytes", [4096, 200_000])
def test_large_values_are_handed_on_uncopied(size_bytes: int) -> None:
    first, second = bytes(size_bytes), b"\1" * size_bytes
    steps = {"a": (Kind.BYTES, [[first, b"small"], [second]]), "b": (Kind.INT64, [[1]])}
    parts = encode_sequence_example_parts({"c": (Kind.BYTES, [first])}, steps)
    assert [part is first or part is second for part in parts] == [
        *(False, True, False),
        *(False, True, False, True, False),
    ]


@pytest.mark.parametrize(
    ("kind", "steps", "error", "message"),
    [
        (Kind.INT64, [[1], [2**63]], OverflowError, "take -2^63 to 2^63-1, got 92233720368547"),
        (Kind.BYTES, [["a"]], TypeError, "bytes features take bytes, got str"),
    ],
)
def test_values_that_do_not_fit(
    kind: Kind, steps: Sequence, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        encode_sequence_example({}, {"a": (kind, steps)})


# --- parse spec and schema ---

SPEC = FeatureSpec(
    "table",
    (
        Feature("age", Kind.INT64, False, "column age", optional=True),
        Feature("id", Kind.INT64, False, "column id"),
        Feature("tags", Kind.BYTES, True, "column tags"),
        Feature("boxes", Kind.FLOAT, True, "column boxes", per_step=True),
        Feature("tokens", Kind.INT64, False, "column tokens", per_step=True),
    ),
)
FIRST = encode_sequence_example(
    {"age": (Kind.INT64, [7]), "id": (Kind.INT64, [0]), "tags": (Kind.BYTES, [b"x", b"y"])},
    {"boxes": (Kind.FLOAT, [[0.5, 1.0], [], [2.0]]), "tokens": (Kind.INT64, [[3], [4]])},
)
SECOND = encode_sequence_example(
    {"id": (Kind.INT64, [1]), "tags": (Kind.BYTES, [])},
    {"boxes": (Kind.FLOAT, []), "tokens": (Kind.INT64, [[5], [6], [7]])},
)


def test_the_parse_spec_reads_none() -> None:
    import tensorflow as tf

    _, steps = tf.io.parse_single_sequence_example(SECOND, *parse_sequence_spec(SPEC))
    assert tf.sparse.to_dense(steps["boxes"]).numpy().tolist() == []
    empty = encode_sequence_example(
        {"id": (Kind.INT64, [1]), "tags": (Kind.BYTES, [])},
        {"boxes": (Kind.FLOAT, []), "tokens": (Kind.INT64, [])},
    )
    _, steps = tf.io.parse_single_sequence_example(empty, *parse_sequence_spec(SPEC))
    assert steps["tokens"].numpy().tolist() == []


def test_the_parse_spec_reads_a_batch() -> None:
    import tensorflow as tf

    context, steps, lengths = tf.io.parse_sequence_example(
        [FIRST, SECOND], *parse_sequence_spec(SPEC, RepeatedAs.RAGGED)
    )
    assert context["age"].numpy().tolist() == [7, 0]
    assert context["tags"].to_list() == [[b"x", b"y"], []]
    assert steps["boxes"].to_list() == [[[0.5, 1.0], [], [2.0]], []]
    assert steps["tokens"].numpy().tolist() == [[3, 4, 0], [5, 6, 7]]
    assert lengths["tokens"].numpy().tolist() == [2, 3]


def test_a_parse_spec_of_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="SequenceExamples: use parse_sequence_spec"):
        parse_spec(SPEC)


def test_there_is_no_features_json() -> None:
    with pytest.raises(ValueError, match=r"SequenceExamples: write no features\.json"):
        features_json(SPEC)


def test_no_feature_of_steps_is_optional() -> None:
    with pytest.raises(ValueError, match="any number of steps: no step says that there is none"):
        Feature("a", Kind.INT64, False, "a", optional=True, per_step=True)


def test_the_name_of_the_struct_is_taken() -> None:
    features = (
        Feature("##SEQUENCE##", Kind.INT64, False, "a"),
        Feature("b", Kind.INT64, False, "b", per_step=True),
    )
    assert not FeatureSpec("table", features[:1]).is_sequence
    with pytest.raises(ValueError, match=r"must not be '##SEQUENCE##', .*: rename it"):
        FeatureSpec("table", features)


STEPS_OF_SCHEMA = """\
feature {
  name: "##SEQUENCE##"
  type: STRUCT
  struct_domain {
    feature {
      name: "boxes"
      type: FLOAT
      presence {
        min_fraction: 1.0
        min_count: 1
      }
      annotation {
        comment: "column boxes"
      }
      value_counts {
        value_count {
          min: 0
        }
        value_count {
          min: 0
        }
      }
    }
    feature {
      name: "tokens"
      type: INT
      presence {
        min_fraction: 1.0
        min_count: 1
      }
      annotation {
        comment: "column tokens"
      }
      value_counts {
        value_count {
          min: 0
        }
        value_count {
          min: 1
          max: 1
        }
      }
    }
  }
}
"""


def test_the_schema_has_the_steps_where_tfx_looks_for_them() -> None:
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    text = schema_pbtxt(SPEC)
    schema = text_format.Parse(text, schema_pb2.Schema())
    assert text.endswith(STEPS_OF_SCHEMA)
    assert [feature.name for feature in schema.feature] == ["age", "id", "tags", "##SEQUENCE##"]
    assert text_format.MessageToString(schema, as_utf8=True) == text
