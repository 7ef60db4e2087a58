"""The data card: its content, that texts of the data are never markup, that its code runs."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from beam_tfrec.pipelines import table
from beam_tfrec.schemas.documents.data_card import data_card, is_sealed
from beam_tfrec.schemas.features import Feature, Kind
from beam_tfrec.schemas.manifest import (
    JobPlan,
    Label,
    LicenseCount,
    Manifest,
    PlannedSplit,
    SharedContents,
    SourceFile,
)
from tests.coco_command import (
    MakeCoco,
    command,
    committed,
    committed_by,
    examples,
    manifest_of,
    read_records,
    run_coco,
    snapshot,
    value,
)
from tests.test_manifest import MANIFEST
from tests.test_markdown import HOSTILE, PARSER

BY = "http://creativecommons.org/licenses/by/2.0/"

GOLDEN = """\
# TFRecord data set of layout detection

9 records (`tf.train.Example`) in 1 shards of uncompressed TFRecord, 1,000 bytes, written by \
beam-tfrec in format version 4.
`manifest.json` names every shard with its size and checksums. It was written last, so the data \
set is complete if it exists. Readers take the list of shards from it.

## Splits

| split | records | shards | bytes | samples in the sources | annotations written | annotations \
in the sources |
|---|---|---|---|---|---|---|
| train | 9 | 1 | 1,000 | 13 | 15 | 20 |

## Differences from the sources

`rejected.jsonl` has a line for each rejected sample and each dropped annotation.

| split | what | reason | count |
|---|---|---|---|
| train | samples rejected | E-IMG-EMPTY: the file has no bytes | 3 |
| train | samples excluded | on request | 1 |
| train | annotations dropped | E-BOX-EMPTY: the box has no width or height in float32 | 2 |
| train | annotations lost | with their images | 2 |
| train | annotations excluded | on request | 1 |
| train | repaired | box\\_clipped | 4 |
| train | unusual | cmyk | 1 |

## Classes

| label | name |
|---|---|
| 1 | person |
| 90 | Zahnbürste |

## Features of every record

| key | type | values | content | meaning, unit, order |
|---|---|---|---|---|
| image/width | int64 | 1 | plain | image width in px |

## Licenses

The sources name no licenses.

## How it was made
"""


def card_of(out: Path) -> str:
    return (out / "README.md").read_text()


def code_of(card: str, title: str) -> str:
    """Return the code below a heading of the third level."""
    block = rf"^### {title}\n.*?^```python\n(.*?)^```$"
    return re.findall(block, card, re.DOTALL | re.MULTILINE)[0]


def test_the_text_of_a_card() -> None:
    marker, _, card = data_card(MANIFEST).partition("\n")
    assert re.fullmatch(r"<!-- beam-tfrec-sha256:[0-9a-f]{64}: made by beam-tfrec; .* -->", marker)
    assert card[: len(GOLDEN)] == GOLDEN
    assert is_sealed(data_card(MANIFEST).encode())


def test_long_lists_are_cut_with_a_remark() -> None:
    labels = [Label(number, f"class {number}") for number in range(1234)]
    features = [Feature(f"f{n:04}", Kind.FLOAT, True, "x") for n in range(1234)]
    plan = msgspec.structs.replace(MANIFEST.plan, labels=labels)
    card = data_card(msgspec.structs.replace(MANIFEST, plan=plan, features=features))
    assert "| 49 | class 49 |\n\nAnd 1,184 more, in `label_map.pbtxt`." in card
    assert code_of(card, "tf.data, without this package").count("tf.io.RaggedFeature") == 1234


def test_texts_of_the_data_are_never_markup() -> None:
    """Put every hostile text into every field that can hold text of the data."""
    source = SourceFile("instances", 1, 2, 3)
    for text in HOSTILE:
        manifest = Manifest(
            layout=text or "x",
            plan=JobPlan(
                format_version=2,
                options={text: text, "split_by": text},
                labels=[Label(1, text), Label(2, "b", text=text)],
                splits={"train": PlannedSplit(1, 1)},
                samples="00",
            ),
            splits={
                "train": msgspec.structs.replace(
                    MANIFEST.splits["train"],
                    repairs={text: 1},
                    traits={text: 1},
                    rejected={text: 1},
                    skipped={text: 1},
                    licenses=[LicenseCount(1, 1, text, text), LicenseCount(2, 1, text, BY)],
                    sources=[source],
                )
            },
            shards=MANIFEST.shards,
            features=[Feature(key_of(text), Kind.BYTES, True, " ".join(text.split()) or "x")],
            duplicates=[SharedContents(("train", "val"), 1, "00", (text, text))],
        )
        check_harmless(data_card(manifest), text)


def key_of(text: str) -> str:
    """Return the text as a valid key of a feature."""
    return "/".join(filter(None, text.split("/"))) or "x"


def check_harmless(card: str, text: str) -> None:
    """Check that the text does not change the card's structure, and that only licenses link."""
    tokens = PARSER.parse(card)
    assert [token.content for token in tokens if token.type == "html_block"] == [
        card.partition("\n")[0] + "\n"
    ]
    headings = [
        after.content
        for token, after in itertools.pairwise(tokens)
        if token.type == "heading_open" and token.tag == "h2"
    ]
    assert headings == [
        *("Splits", "Differences from the sources", "Classes", "Features of every record"),
        *("Licenses", "How it was made", "How to read it", "Files"),
    ]
    assert not {token.type for token in tokens} & {"list_item_open", "blockquote_open", "hr"}
    inline = [child for token in tokens for child in token.children or []]
    allowed = {"text", "text_special", "code_inline", "softbreak", "link_open", "link_close"}
    assert {child.type for child in inline} <= {*allowed, "strong_open", "strong_close"}
    links = {child.attrs["href"] for child in inline if child.type == "link_open"}
    assert links <= {BY, "http://evil"}
    fences = [token for token in tokens if token.type == "fence"]
    assert len(fences) == 3
    for fence in fences:
        compile(fence.content, "card", "exec")
    spec = fences[1].content
    assert f"{key_of(text)!a}: tf.io.RaggedFeature(tf.string)," in spec or repr(text) in spec


# --- the code ---


def run_code(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a block in the folder of the data set, as a user does, and return its variables."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    return names


def test_code_of_the_card_reads_every_record(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for PyTorch, which is large: only the lines that do not need it are run."""
    out = tmp_path / "out"
    names = "a b%{split}#{index}.tfrec"
    flags = ("--num_shards", 2, "--shard_names", names)
    assert run_coco(*command(make_coco(7), out, *flags)).code == 0
    card, wanted = card_of(out), examples(out)
    code = code_of(card, "tf.data, without this package")
    plain = run_code(code, out, monkeypatch)["dataset"].as_numpy_iterator()
    for record, example in zip(plain, wanted, strict=True):
        assert record.keys() == example.features.feature.keys()
        for key, got in record.items():
            assert np.atleast_1d(got).tolist() == value(example, key)
    dataset = run_code(code_of(card, "tf.data"), out, monkeypatch)["dataset"]
    code = code_of(card, "PyTorch, Grain and others")
    ours = [ln for ln in code.splitlines() if re.match("import beam_tfrec|(root|records) =", ln)]
    records = run_code("\n".join(ours), out, monkeypatch)["records"]
    ids = sorted(value(example, "image/source_id")[0] for example in wanted)
    for read in (dataset.as_numpy_iterator(), records):
        assert sorted(record["image/source_id"] for record in read) == ids


def flatten(nested: dict, prefix: str = "") -> dict:
    """Return TFDS's nested Example as Examples have it, by '/'-separated key."""
    flat = {}
    for name, found in nested.items():
        key = f"{prefix}{name}"
        flat |= flatten(found, f"{key}/") if isinstance(found, dict) else {key: found}
    return flat


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["plain", "tfds", "maxdiffusion"])
def test_tfds_reads_every_value_and_a_part_of_a_split(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    out = tmp_path / "out"
    flags = ("--num_shards", 2, "--shard_names", scheme)
    assert run_coco(*command(make_coco(7), out, *flags)).code == 0
    manifest = manifest_of(out)
    names = run_code(code_of(card_of(out), "TFDS"), out, monkeypatch)
    assert len(names["dataset"]) == len(list(names["dataset"])) == 4  # half of 7, rounded
    files = [out / shard["file"] for shard in manifest["shards"]]
    parse = tf.train.Example.FromString
    wanted = [parse(data) for path in files for data in read_records(path)]
    builder = names["builder"]
    assert builder.info.full_name == "beam_tfrec_detection/4.0.0"
    train = builder.info.splits["train"]
    assert (train.num_examples, train.shard_lengths) == (7, [4, 3])
    assert train.num_bytes == manifest["splits"]["train"]["bytes"]
    parts = [builder.as_dataset(split=part) for part in ("train[:3]", "train[3:]")]
    assert list(map(len, parts)) == [3, 4]
    found = (nested for part in parts for nested in part.as_numpy_iterator())
    for nested, example in zip(found, wanted, strict=True):
        read = flatten(nested)
        assert read.keys() == example.features.feature.keys()
        assert read.pop("image/encoded").shape == (48, 64, 3)
        for key, got in read.items():
            assert np.atleast_1d(got).tolist() == value(example, key), key


@pytest.mark.thorough
def test_steps_and_missing_cells_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [{"id": 1, "tokens": [5, 6], "x": 0.5}, {"id": 2, "tokens": []}]
    source = tmp_path / "t.jsonl"
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    out = tmp_path / "out"
    committed_by(table.run, out, "--table", source, "--sequence", "tokens", "--order", "input")
    card = card_of(out)
    assert "TFDS reads only Examples" in card
    assert "`tf.train.SequenceExample`" in card
    dataset = run_code(code_of(card, "tf.data, without this package"), out, monkeypatch)["dataset"]
    found = [(c["id"], c["x"], s["tokens"].tolist()) for c, s in dataset.as_numpy_iterator()]
    assert found == [(1, 0.5, [5, 6]), (2, 0.0, [])]


# --- files of the user's with its name ---


def test_files_of_the_user_are_kept(make_coco: MakeCoco, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("README.md", "report.html"):
        (out / name).write_text("mine")
    run = run_coco(*command(make_coco(3), out))
    assert f"{out}/README.md exists with other content: keeping it" in run.err
    assert f"{out}/report.html exists already, and is not changed" in run.err
    assert "report:" not in run.out
    assert {(out / name).read_text() for name in ("README.md", "report.html")} == {"mine"}
    assert is_sealed((out / "croissant.json").read_bytes())


@pytest.mark.thorough
def test_overwrite_replaces_documents_unless_they_were_edited(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    sources, out, fresh = make_coco(3), tmp_path / "out", tmp_path / "fresh/out"
    committed(sources, out)
    committed(sources, out, "--num_shards", 3, "--overwrite")
    committed(sources, fresh, "--num_shards", 3)
    documents = "README.md", "croissant.json", "report.html"
    for name in documents:
        assert (out / name).read_text() == (fresh / name).read_text()
        (out / name).write_text((fresh / name).read_text() + "\nThese photos are mine.\n")
    edited = snapshot(out)
    committed(sources, out, "--overwrite")
    kept = snapshot(out)
    assert [kept[name] for name in documents] == [edited[name] for name in documents]
