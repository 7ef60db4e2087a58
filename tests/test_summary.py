"""What a run prints: log lines, the summary, and the progress bar on a terminal."""

import ast
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from beam_tfrec.pipelines.run import summarize
from beam_tfrec.schemas.faults import printable
from beam_tfrec.schemas.manifest import Annotations, SourceFile
from tests.coco_command import PROJECT, MakeCoco, run_coco
from tests.gcs_stand_in import GcsStandIn
from tests.report_contents import NO_COUNTS
from tests.test_manifest import MANIFEST

SIZE = re.compile(r"\b[0-9.]+ kB\b")
DURATION = re.compile(r"in [0-9.]+ s \([0-9,]+ records/s\)")
TIME = r"\[\d\d:\d\d"
PROGRESS = re.compile(rf"reading sources {TIME}\]|converting: .*{TIME}[<,].* records/s.*\]")


def not_progress(text: str) -> list[str]:
    """Return the lines of standard error that show no progress, as one in ten seconds does."""
    return [line for line in text.splitlines() if not PROGRESS.fullmatch(line)]


def masked(text: str, out: Path) -> str:
    """Return a summary without the values that differ from run to run."""
    text = DURATION.sub("in ? s (? records/s)", SIZE.sub("? kB", text))
    return text.replace(str(out), "OUT")


SUMMARY = """\
OUT: 11 records in ? s (? records/s)
  train: 8 of 10 images in 2 shards, ? kB; 14 of 20 annotations
    rejected: 1 E-IMG-EMPTY, 1 E-IMG-TRUNCATED
    annotations left out: 4 lost with images
    annotations dropped, see rejected.jsonl: 1 E-BOX-EMPTY, 1 E-BOX-OUTSIDE
    repaired: 1 box_clipped
    unusual: 1 trailing_bytes
  val: 3 of 3 images in 1 shard, ? kB; 6 of 6 annotations
  classes (2): person, crowd of people
  warning: train and val share 3 sources, byte for byte, such as a002.jpg (key 3)\
 and a002.jpg (key 3): OUT/duplicates.jsonl
  rejects: OUT/rejected.jsonl
  all counts: OUT/manifest.json
  read it:
    import beam_tfrec
    dataset = beam_tfrec.load('OUT', 'train')  # tf.data
    records = beam_tfrec.open('OUT', 'train')  # without TensorFlow
  read it by other tools: OUT/README.md
  report: OUT/report.html
"""


def test_summary_of_a_run(make_coco: MakeCoco, tmp_path: Path) -> None:
    def spoil(spec: dict) -> None:
        for place, box in ((2, [60, 40, 9, 9]), (4, [0, 0, 0, 9]), (6, [99, 99, 9, 9])):
            spec["annotations"][place]["bbox"] = box

    train, val = make_coco(10, edit=spoil), make_coco(3, name="val")
    (train[0] / "a007.jpg").write_bytes(b"")
    (train[0] / "a008.jpg").write_bytes((train[0] / "a008.jpg").read_bytes()[:-9])
    with (train[0] / "a009.jpg").open("ab") as image:
        image.write(b"trailer")
    out = tmp_path / "out"
    run = run_coco(
        *("--images", f"train={train[0]}", f"val={val[0]}"),
        *("--annotations", f"train={train[1]}", f"val={val[1]}"),
        *("--output", out, "--num_shards", "train=2", "val=1", "--max_rejected", "2"),
        *("--max_dropped", "2"),
    )
    assert run.code == 0, run.err
    assert masked(run.out, out) == SUMMARY
    assert not_progress(run.err) == []


FATE = Annotations(listed=9, written=6, dropped={}, lost=0, excluded=0, skipped={"crowd": 3})


@pytest.mark.parametrize(
    ("split", "lines"),
    [
        ({"listed": 4}, ["  dev: 1 of 4 pairs in 1 shard, 5 kB"]),
        (
            {"excluded": 3, "earlier": 1, "skipped": {"license": 2}},
            ["    left out: 3 excluded, 1 in earlier data sets, 2 license"],
        ),
        (
            {"annotations": FATE, "repeated_annotation_ids": 7},
            ["    annotations left out: 3 crowd", "    unusual: 7 repeated_annotation_ids"],
        ),
        (
            {"sources": [SourceFile("captions", 3, 5, 0, images_not_listed=1)]},
            ["    captions: 3 images, 5 annotations"],
        ),
        ({"images": 33}, ["    33 images: a photo is stored once for each object"]),
        ({"listed": 5, "earlier": 5}, ["    nothing is new: the split is empty here"]),
    ],
)
def test_summary_of_a_split(split: dict[str, Any], lines: list[str]) -> None:
    splits, output = {"dev": replace(NO_COUNTS, **split)}, "it's \\ caf\u00e9\n\u202e"
    text = [*summarize(replace(MANIFEST, splits=splits), output, 2.0, "pair")]
    assert text[0] == f"{printable(output)}: 1 record in 2.0 s (0 records/s)"
    assert [line for line in text if line in lines] == lines
    code = re.search(r"open\((.*)\)", text[-1])[1]
    assert code.isascii() and ast.literal_eval(code) == (output, "train")


def on_a_terminal(arguments: list[object]) -> tuple[int, str]:
    """Run the command on a terminal of 100 columns; return its exit code and what it showed."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "beam_tfrec.pipelines.coco", *map(str, arguments)],
        cwd=PROJECT,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # the other end was closed
        while piece := os.read(master, 1 << 16):
            shown += piece
    os.close(master)
    return process.wait(30), shown.decode()


def lines_left(shown: str) -> list[str]:
    """Return the lines that stay on the screen, after carriage returns overwrote others."""
    lines = []
    for line in shown.replace("\r\n", "\n").split("\n"):
        left = ""
        for part in line.split("\r"):
            left = part + left[len(part) :]
        lines.append(left.rstrip())
    return lines


@pytest.mark.thorough
def test_bar_on_a_terminal(make_coco: MakeCoco, tmp_path: Path) -> None:
    (images, annotations), out = make_coco(120), tmp_path / "out"
    (images / "a002.jpg").write_bytes(b"<html>")
    (images / "unnamed \u202e\x07.jpg").write_bytes(b"")
    given = ("--images", images, "--annotations", annotations, "--num_shards", 60)
    code, shown = on_a_terminal([*given, "--max_rejected", 1, "--output", out])
    assert code == 0, shown
    assert re.search(r"\rconverting: +\d+%\|", shown)
    lines = lines_left(shown)
    bars = [line for line in lines if "%|" in line]
    assert len(bars) == 1, lines  # one full bar, on its own line
    done = r"converting: 100%\|\S+\| 120/120 \[.*records/s, 60/60 shards, 1 reject"
    assert re.match(done, bars[0]) and len(bars[0]) <= 100
    assert any(line.endswith("such as unnamed \\u202e\\x07.jpg") for line in lines)
    assert lines[lines.index(bars[0]) + 1].startswith(f"{out}: 119 records in ")
    assert "\x1b" not in shown.replace("\x1b[A", "")  # no colours, no hidden cursor


@pytest.mark.slow
def test_lines_of_a_long_run(make_coco: MakeCoco, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, a line is printed every ten seconds."""
    images, annotations = make_coco(24)
    with GcsStandIn() as gcs:
        for path in images.iterdir():
            gcs.put("b", f"photos/{path.name}", path.read_bytes())
        gcs.make_bucket("out")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        sources = ("--images", "gs://b/photos", "--annotations", annotations)
        slow = ("--max_reads_per_second", 2, "--readers", 1)
        run = run_coco(*sources, "--output", "gs://out/o", *slow)
    assert run.code == 0, run.err
    lines = run.err.splitlines()
    assert 1 <= len(lines) <= float(re.findall(r" in ([0-9.]+) s ", run.out)[0]) / 10
    assert not_progress(run.err) == []


@pytest.mark.thorough
def test_quiet(make_coco: MakeCoco, tmp_path: Path) -> None:
    """No progress and no notes; the summary and a fault are printed."""
    images, annotations = make_coco(3)
    (images / "spare.jpg").write_bytes(b"")
    (tmp_path / "quiet").mkdir()
    (tmp_path / "quiet/README.md").write_text("mine")
    runs = [
        run_coco("--images", images, "--annotations", annotations, "--output", out, *flags)
        for out, flags in ((tmp_path / "loud", []), (tmp_path / "quiet", ["--quiet"]))
    ]
    assert [run.code for run in runs] == [0, 0]
    assert ["README.md" in run.out for run in runs] == [True, False]  # no line on the user's own
    note = "1 file of root train not used by any sample, such as spare.jpg\n"
    assert note in runs[0].err and runs[1].err == ""
    assert [line for line in runs[1].out.splitlines() if line.startswith("  train: 3 of 3")]
    (images / "a002.jpg").unlink()
    refused = ("--images", images, "--annotations", annotations, "--output", tmp_path / "out")
    assert run_coco(*refused, "--quiet").err.startswith("E-BUDGET ")


@pytest.mark.thorough
def test_log_level(make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BEAM_TFREC_LOG: fewer lines, or the traceback of a fault."""
    images, annotations = make_coco(1)
    command = ("--images", images, "--annotations", annotations)
    monkeypatch.setenv("BEAM_TFREC_LOG", "WARNING")
    assert not_progress(run_coco(*command, "--output", tmp_path / "quiet").err) == []
    monkeypatch.setenv("BEAM_TFREC_LOG", "DEBUG")
    annotations.write_text("{")
    run = run_coco(*command, "--output", tmp_path / "loud")
    assert "Traceback" in run.err
    assert run.err.splitlines()[-1].startswith("E-ANN-JSON ")
