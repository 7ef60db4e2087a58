"""`schema.pbtxt` and `label_map.pbtxt` as protobuf reads them."""

import string

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_metadata.proto.v0 import schema_pb2

from beam_tfrec.schemas.documents.tensorflow_files import label_map_pbtxt, schema_pbtxt
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec, Kind
from beam_tfrec.schemas.layouts.detection import DETECTION

# object_detection/protos/string_int_label_map.proto
LABEL_MAP = """
name: "label_map.proto" package: "od"
message_type {
  name: "Item"
  field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "id" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
}
message_type {
  name: "Map"
  field { name: "item" number: 1 type: TYPE_MESSAGE type_name: ".od.Item" label: LABEL_REPEATED }
}
"""
POOL = descriptor_pool.DescriptorPool()
POOL.Add(text_format.Parse(LABEL_MAP, descriptor_pb2.FileDescriptorProto()))
LabelMap = message_factory.GetMessageClass(POOL.FindMessageTypeByName("od.Map"))


def test_schema_pbtxt_equals_what_tensorflow_metadata_prints():
    labels = Feature("image/label", Kind.INT64, True, "the file's", Content.CLASS_LABEL)
    text = schema_pbtxt(FeatureSpec("every case", (*DETECTION.features, labels)))
    schema = text_format.Parse(text, schema_pb2.Schema())
    assert text_format.MessageToString(schema, as_utf8=True) == text


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_schema_pbtxt_quotes_any_text(docs):
    features = tuple(
        Feature(f"key {i} '\"\\", Kind.BYTES, False, " ".join(doc.splitlines()) or "none")
        for i, doc in enumerate(docs)
    )
    schema = text_format.Parse(schema_pbtxt(FeatureSpec("x", features)), schema_pb2.Schema())
    assert {(f.name, *f.annotation.comment) for f in schema.feature} == {
        (f.key, f.doc) for f in features
    }


@given(
    st.dictionaries(
        st.integers(-(2**31), 2**31 - 1),
        st.text(st.characters(exclude_categories=["Cs"]))
        | st.text(string.digits + "xn\\'\"\n\r\t\0\x7f\x85\u2028é"),
    )
)
def test_label_map_pbtxt_is_read_back_by_protobuf(names_by_id):
    text = label_map_pbtxt(list(names_by_id.items()))
    for source in (text, text.encode()):
        label_map = text_format.Parse(source, LabelMap())
        assert [(item.id, item.name) for item in label_map.item] == sorted(names_by_id.items())
    # No line break of any kind within a name: readers may go by lines, or translate \r.
    assert len(text.splitlines()) == 4 * len(names_by_id)
