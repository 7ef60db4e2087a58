"""Run the examples and tutorials as a user would, on drawn pictures."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from beam_tfrec.pipelines import coco, folder, pairs
from tests.coco_command import PROJECT, committed_by
from tests.drawn_sources import SCALE, draw_classes, draw_coco, draw_pairs
from tests.test_docs import block_of, code_blocks

EXAMPLES = PROJECT / "examples"
TORCH_READER_PYTHON = os.environ.get("TORCH_READER_PYTHON", "")

in_torch_reader = pytest.mark.skipif(
    not TORCH_READER_PYTHON, reason="TORCH_READER_PYTHON names no Python; .ci/run installs one"
)


def convert_coco(tmp_path: Path, layout: str = "detection") -> Path:
    """Return a data set of boxes in a split `train`."""
    images, annotations = draw_coco(tmp_path, 24)
    sources = ("--images", f"train={images}", "--annotations", f"train={annotations}")
    committed_by(coco.run, tmp_path / "out", *sources, "--num_shards", "3", "--layout", layout)
    return tmp_path / "out"


def convert_classes(tmp_path: Path) -> Path:
    root = draw_classes(tmp_path / "classes", 30)
    committed_by(folder.run, tmp_path / "out", "--images", f"train={root}")
    return tmp_path / "out"


def convert_pairs(tmp_path: Path) -> Path:
    low, high = draw_pairs(tmp_path, 6)
    roots = ("--low", f"train={low}", "--high", f"train={high}", "--scale", SCALE)
    committed_by(pairs.run, tmp_path / "out", *roots)
    return tmp_path / "out"


def said_by(example: str, out: Path, *arguments: str, python: str = sys.executable) -> str:
    """Run an example, which must succeed, and return its output."""
    return run_program(out.parent, python, str(EXAMPLES / f"{example}.py"), str(out), *arguments)


def run_program(folder: Path, *command: str) -> str:
    """Run a command in a folder; it must succeed. Return its output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},  # as if it were installed
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


# Example, its data set, start of its output, and the largest share of loss that may be left.
TRAINED: list[tuple[str, Callable[[Path], Path], str, float]] = [
    ("train_keras_classifier", convert_classes, "3 classes", 0.5),
    ("keras_recipe_classifier", partial(convert_coco, layout="keras"), "", 1),
    ("keras_detection_input", convert_coco, "images (8, 128, 128, 3), boxes (8, 20, 4), number", 1),
    ("super_resolution_pairs", convert_pairs, "", 0.5),
]


@pytest.mark.slow
@pytest.mark.parametrize(("example", "convert", "start", "left"), TRAINED)
def test_training_reduces_the_loss(
    example: str, convert: Callable[[Path], Path], start: str, left: float, tmp_path: Path
) -> None:
    said = said_by(example, convert(tmp_path))
    assert said.startswith(start)
    ((first, last),) = re.findall(r"loss ([0-9.]+) -> ([0-9.]+) after", said)
    assert float(last) < left * float(first)


def tutorial(page: str, blocks: int, *more: str) -> str:
    """Return the first blocks of a tutorial as one program."""
    return "\n".join([*code_blocks((PROJECT / "docs" / page).read_text())[:blocks], *more])


@pytest.mark.slow
def test_the_keras_tutorial_trains(tmp_path: Path) -> None:
    root = draw_classes(tmp_path / "photos", 30)
    splits = ("--split_by", "hash", "--splits", "train=90,val=10")
    committed_by(folder.run, tmp_path / "out", "--images", root, *splits)
    assert "val_loss" in run_program(tmp_path, sys.executable, "-c", tutorial("start-keras.md", 2))


SHOW = "pixels, boxes, labels = next(iter(loader)); print(pixels.shape, len(boxes), len(labels))"
MAPPED = "print(len(records), type(jax.tree.map(lambda leaf: leaf, records[0])))"  # is no leaf
OPENED = 'import beam_tfrec; records = beam_tfrec.open("out", "train"); decode = len'
LOADERS = block_of("docs/readers.md", "DataLoader")
MIXTURE = block_of("docs/readers.md", "mix(").replace('"coco", "openimages"', '"out", "out"')
WITHOUT_TENSORFLOW = {
    tutorial("start-pytorch.md", 1, SHOW): "torch.Size([8, 3, 64, 64]) 8 8",
    tutorial("start-jax.md", 2, MAPPED): "(8, 64, 64, 3)\n24 <class 'dict'>",
    f"{OPENED}\n{LOADERS}\nprint(len(next(iter(loader))), dataset[0].shape)": "24 (24,)",
    f"{MIXTURE}\nprint(len(mixed) > 48, len(mixed[99]['image/object/bbox/xmin']) > 0)": "True True",
}


@in_torch_reader
@pytest.mark.parametrize(
    "program", WITHOUT_TENSORFLOW, ids=["PyTorch", "JAX and Grain", "readers.md", "mixture"]
)
def test_loaders_of_the_documents_read(program: str, tmp_path: Path) -> None:
    convert_coco(tmp_path)
    said = run_program(tmp_path, TORCH_READER_PYTHON, "-c", program)
    assert said == f"{WITHOUT_TENSORFLOW[program]}\n"


@in_torch_reader
@pytest.mark.parametrize(
    ("example", "said"),
    [
        (
            "pytorch_data_loader",
            "24 records; the first has image/encoded, .*"
            r"an epoch: 3 batches, 24 pictures, (2[5-9]|[3-9]\d|\d{3,}) boxes.*",
        ),
        (
            "grain_data_source",
            r"images \(8, 64, 64, 3\), .*restored after the first batch: same rest\n",
        ),
    ],
)
def test_examples_without_tensorflow_read_an_epoch(example: str, said: str, tmp_path: Path) -> None:
    found = said_by(example, convert_coco(tmp_path), python=TORCH_READER_PYTHON)
    assert re.fullmatch(said, found, re.DOTALL), found
