"""Run each Python block of the pages, here or in the test that `ELSEWHERE` names."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import beam_tfrec
from beam_tfrec.pipelines import arrays, cli, coco, table
from beam_tfrec.schemas.features import Feature, FeatureSpec, Kind
from beam_tfrec.schemas.tensors import encode_tensor
from tests.coco_command import PROJECT, committed_by, run_pipeline
from tests.drawn_sources import draw_classes, draw_coco
from tests.gcs_stand_in import GcsStandIn
from tests.small_data_sets import write_values
from tests.test_docs import NAMES, block_of, code_blocks, commands

HOSTS = "import beam_tfrec; out, global_batch, host, hosts, epoch = 'out', 8, 1, 2, 0"
MIXED = "import beam_tfrec, os; [os.symlink('out', name) for name in ('coco', 'openimages')]"
MODEL = "from unittest.mock import Mock; model = Mock(); my_inputs = lambda r: r['image/encoded']"
RECORD = "import glob; record = open(glob.glob('out/*.tfrec')[0], 'rb').read()[12:-4]"
ROWS = "rows = {'clip': ['a', 'b', 'a'], 'frame': [2, 1, 1], 'token': [5, 6, 7]}"
HERE = {  # page and words of a block: folder, code before it, condition after it
    ("docs/api.md", "build("): ("", "", "manifest"),
    ("docs/readers.md", "model.fit"): ("demo-out", MODEL, "len([*model.fit.call_args[0][0]]) == 1"),
    ("docs/readers.md", "find_damaged_images"): ("demo-out", HOSTS, "True"),
    ("docs/readers.md", "mixture"): ("demo-out", MIXED, "len(next(iter(mixture))) > 0"),
    ("docs/readers.md", "factors"): ("demo-out", HOSTS, "len(places) >= len(factors) == 48"),
    ("docs/readers.md", "per_host"): ("demo-out", HOSTS, "len(list(per_host)) == steps == 6"),
    ("docs/readers.md", "records[42]"): ("demo-out", "", "len(records) == 48"),
    ("docs/sources.md", "raw_image"): ("arrays", RECORD, "image.shape == (4, 5, 3)"),
    ("docs/start-model-garden.md", "steps"): ("demo-out", "", "steps == 1"),
    ("docs/start.md", "demo-out/tfrec"): ("", "", "len(records) == 48"),
    ("docs/tables.md", "lengths"): ("clips", "", "[*map(int, lengths['tokens'])] == [2, 1]"),
    ("docs/write-examples.md", "WriteExamples"): ("", "", "len(records) == 100"),
    ("docs/tables.md", "rows"): ("", ROWS, "clips['token_list'].to_pylist() == [[6], [7, 5]]"),
}
KERAS = "test_examples.py the_keras_tutorial_trains"
WITHOUT_TENSORFLOW = "test_examples.py loaders_of_the_documents_read"
ELSEWHERE = {
    ("README.md", "steps"): "test_load.py keras_trains_the_same_steps_in_each_epoch",
    ("docs/layouts.md", "PeopleLayout"): "test_docs.py the_example_layout_runs",
    ("docs/readers.md", "DataLoader"): WITHOUT_TENSORFLOW,
    ("docs/readers.md", "mix("): WITHOUT_TENSORFLOW,
    ("docs/readers.md", "make(context)"): "test_reader_values.py a_mirrored_strategy_reads_it",
    ("docs/scheduled-runs.md", "json.load"): "test_daily_runs.py the_script_names_the_next_step",
    ("docs/splits.md", "beam_tfrec.folds"): "test_data_sets.py each_fold_validates_the_others",
    ("docs/start-jax.md", "import grain"): WITHOUT_TENSORFLOW,
    ("docs/start-jax.md", "import jax"): WITHOUT_TENSORFLOW,
    ("docs/start-keras.md", "to_pair(record)"): KERAS,
    ("docs/start-keras.md", "import keras"): KERAS,
    ("docs/start-pytorch.md", "torch"): WITHOUT_TENSORFLOW,
}


@pytest.mark.parametrize("page", NAMES)
def test_each_block_is_in_one_of_the_tables(page: str) -> None:
    listed = [[words] for name, words in [*HERE, *ELSEWHERE] if name == page]
    text = (PROJECT / page).read_text()
    found = [[words for (words,) in listed if words in block] for block in code_blocks(text)]
    assert sorted(found) == sorted(listed), "each block must be in HERE or ELSEWHERE, once"
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"^    (?:\w+ = |[\w.]+\(|import |from ).*", outside, re.MULTILINE)
    for test in (test for (name, _), test in ELSEWHERE.items() if name == page):
        file, name = test.split()
        assert f"\ndef test_{name}" in (PROJECT / "tests" / file).read_text()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with sources, and folders with a data set `out`; one is also in a bucket."""
    root = tmp_path_factory.mktemp("folders")
    draw_classes(root / "classes" / "photos", 10)
    images, annotations = draw_coco(root, 48)
    images = images.rename(root / "photos")
    annotations = annotations.rename(root / "instances.json")
    boxes, rows, npz = root / "demo-out" / "tfrec", root / "clips.jsonl", root / "x.npz"
    committed_by(coco.run, boxes, "--images", images, "--annotations", annotations)
    boxes.with_name("out").symlink_to(boxes)
    rows.write_text('{"frames": ["a", "b"], "tokens": [1, 2]}\n{"frames": ["c"], "tokens": [3]}')
    flags = ("--sequence", "frames,tokens", "--order", "input")
    committed_by(table.run, root / "clips" / "out", "--table", rows, *flags)
    np.savez(npz, x=np.zeros((1, 4, 5, 3), np.uint8), y=np.zeros(1, int))
    committed_by(arrays.run, root / "arrays" / "out", "--arrays", npz, "--label_array", "y")
    with GcsStandIn() as stand_in, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", stand_in.url)
        for path in boxes.rglob("*.*"):
            stand_in.put("bucket", f"coco-tfrec/{path.relative_to(boxes)}", path.read_bytes())
        yield root


@pytest.mark.parametrize(("page", "words"), HERE)
def test_block_runs(
    page: str,
    words: str,
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also without a warning by Beam, which logs with the root logger."""
    folder, before, true_then = HERE[page, words]
    monkeypatch.chdir(folders / folder)
    names: dict[str, Any] = {}
    exec(f"{before}\n{block_of(page, words)}", names)
    assert eval(true_then, names)
    assert [record.msg for record in caplog.records if record.name == "root"] == []


@pytest.mark.thorough
def test_the_first_commands_run(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, *flags in commands((PROJECT / "docs" / "start.md").read_text()):
        monkeypatch.chdir(folders / ("classes" if name == "folder" else ""))
        run = run_pipeline(cli.run_command, name, *flags)
        assert run.code == 0, run.err


def test_expressions_parse_tensors_and_masks(tmp_path: Path) -> None:
    """Those between backticks in docs/readers.md."""
    tensor = Feature("hr", Kind.BYTES, False, "a tensor")
    masks = Feature("image/object/mask", Kind.BYTES, True, "masks")
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    png = tf.io.encode_png(pixels[:, :, :1]).numpy()
    record = {"hr": [encode_tensor(pixels)], "image/object/mask": [png] * 2}
    write_values(tmp_path, FeatureSpec("bytes", (tensor, masks)), {"train": [[record]]})
    dataset = beam_tfrec.load(str(tmp_path), "train")
    text = (PROJECT / "docs/readers.md").read_text()
    (parse,) = re.findall(r"`(dataset\.map\(.*?)`\.", text)
    (decode,) = re.findall(r"`(tf\.map_fn\(.*?)`\.", text)
    (parsed,) = eval(parse)
    assert parsed["hr"].numpy().tolist() == pixels.tolist()
    (decoded,) = dataset.map(lambda record: eval(decode, {"tf": tf, "record": record}))
    assert decoded.numpy().tolist() == [pixels[:, :, :1].tolist()] * 2
