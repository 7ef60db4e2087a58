"""Untrusted text in Markdown and text protos, read by parsers that we did not write."""

import re
import string

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from tensorflow_metadata.proto.v0 import schema_pb2

from beam_tfrec.schemas.documents.data_card import BLANK_SEAL, escaped, is_sealed, sealed, seen
from beam_tfrec.schemas.documents.tensorflow_files import label_map_pbtxt, schema_pbtxt
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec, Kind
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.manifest import Label

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
HOSTILE = [
    "|",
    "a|b\\|c",
    "`code`",
    "```\nimport os",
    "<script>alert(1)</script>",
    "<!-- ",
    "-->",
    "&lt;",
    "[x](javascript:alert(1))",
    "![x](http://evil/x.png)",
    "<http://evil>",
    "*a* _b_ **c** ~~d~~",
    "line\nbreak\r\nmore",
    "# title",
    "- item",
    "1. item",
    "\u202egnp.exe",
    "zero\u200bwidth",
    "$x$ @someone",
    "\\",
    "\x00\x1b[31m",
    "",
    " ",
]


def cells(markdown: str) -> list[str]:
    """Return the text of a table's cells, which must hold nothing but text."""
    tokens = PARSER.parse(markdown)
    assert {token.type.split("_")[0] for token in tokens} <= {
        *("table", "thead", "tbody", "tr", "th", "td", "inline")
    }
    inline = [token for token in tokens if token.type == "inline"]
    return ["".join(map(text_of, token.children or [])) for token in inline]


def text_of(token: Token) -> str:
    assert token.type in ("text", "text_special"), token
    return token.content


@given(st.text(max_size=60))
@pytest.mark.parametrize("text", HOSTILE)
def test_text_in_a_cell_stays_text(text: str, other: str) -> None:
    rows = [f"| {escaped(cell)} | x |" for cell in (text, other)]
    found = cells("\n".join(["| a | b |", "|---|---|", *rows]))
    assert found == ["a", "b", seen(text, 100).strip(), "x", seen(other, 100).strip(), "x"]


BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
INVISIBLE = "\xad\u200b\u200c\u200d\u2060\ufeff\U000e0041"


@given(st.characters(categories=["Cc", "Cs", "Zl", "Zp"]) | st.sampled_from(BIDI + INVISIBLE))
def test_invisible_and_bidi_characters_are_escaped(character: str) -> None:
    assert escaped(character).isascii()
    assert escaped(character).isprintable()


@pytest.mark.parametrize("text", ["http://evil.org", "https://x", "www.evil.org", "a@b.org"])
def test_github_does_not_link_addresses(text: str) -> None:
    assert re.search(r"(?<!\\)://|www\.|(?<!\\)@", escaped(text)) is None
    (token,) = (t for t in PARSER.parse(escaped(text)) if t.type == "inline")
    assert "".join(map(text_of, token.children or [])) == text


def test_a_seal_covers_the_whole_text() -> None:
    text = f"<!-- {BLANK_SEAL} -->\n# Straße\n"
    data = sealed(text).encode()
    assert is_sealed(data)
    assert not any(is_sealed(data[:place] + data[place + 1 :]) for place in range(len(data)))
    for other in (data + b" ", b"", b"# My data", text.encode(), b"\xff\x00" * 9):
        assert not is_sealed(other)
    two = sealed(text + BLANK_SEAL)  # only the first is filled in
    assert two.endswith(BLANK_SEAL) and is_sealed(two.encode())


# --- schema.pbtxt and label_map.pbtxt ---


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
    quoted = 'the "file\'s" \\ é\t'
    labels = Feature("image/label", Kind.INT64, True, quoted, Content.CLASS_LABEL)
    text = schema_pbtxt(FeatureSpec("every case", (*DetectionLayout().spec.features, labels)))
    schema = text_format.Parse(text, schema_pb2.Schema())
    assert text_format.MessageToString(schema, as_utf8=True) == text


@given(
    st.dictionaries(
        st.integers(-(2**31), 2**31 - 1),
        st.text(st.characters(exclude_categories=["Cs"]))
        | st.text(string.digits + "xn\\'\"\n\r\t\0\x7f\x85\u2028é"),
    )
)
def test_label_map_pbtxt_is_read_back_by_protobuf(names_by_id):
    text = label_map_pbtxt([Label(*item) for item in names_by_id.items()])
    for source in (text, text.encode()):
        label_map = text_format.Parse(source, LabelMap())
        assert [(item.id, item.name) for item in label_map.item] == sorted(names_by_id.items())
    # No line break of any kind within a name: readers may go by lines, or translate \r.
    assert len(text.splitlines()) == 4 * len(names_by_id)
