"""Paths as users type them: what works, and what is refused in one line that names them."""

import importlib
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.coco_command import CODE, MakeCoco, Run, Sources, check_committed, run_coco, snapshot


@pytest.fixture(autouse=True)
def sources(make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """Two photos and their annotations, in the working directory."""
    monkeypatch.chdir(tmp_path)
    return make_coco(2)


USUAL = {"--images": "train-images", "--annotations": "train.json", "--output": "out"}


def convert(**given: str) -> Run:
    flags = USUAL | {f"--{name}": path for name, path in given.items()}
    return run_coco(*(word for pair in flags.items() for word in pair))


@pytest.mark.thorough
@pytest.mark.parametrize("out", ["./dotted/../relative/", "caf\u00e9 \u202e\n", "a[1]*?{x}%20"])
def test_odd_output_paths_work(out: str) -> None:
    Path("dotted").mkdir()
    run = convert(images="train-images/", annotations="./train.json", output=out)
    assert run.code == 0, run.err
    check_committed(Path(out))
    for text in (run.out, run.err):
        assert text.isascii()
        assert all(line.isprintable() for line in text.splitlines())
    again = convert(output=out)
    assert again.out.startswith("already complete: ")
    assert again.out.isascii()
    assert again.out.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        ("coco --images gs://b/photos --annotations a.json --output gs://b/photos/out", True),
        ("coco --images gs://b/photos --annotations a.json --output gs://b", True),
        ("coco --images gs://b/photos --annotations a.json --output gs://b/photos2", False),
        ("coco --images gs://b/photos --annotations a.json --output photos", False),
        ("coco --images i --annotations gs://b/out/a.json --output gs://b/out", False),
        ("coco --images i --annotations a.json --panoptic_images p --output p/out", True),
        ("coco --images i --annotations a.json --exclude r.jsonl --output r.jsonl", True),
        ("coco --images i --annotations a.json --exclude o/rejected.jsonl --output o", True),
        ("folder --images i --label_file l.txt --output l.txt", True),
        ("table --table t/a.csv --output t/out", False),
        ("table --table t/a.csv --output t/a.csv", True),
        ("table --table t/*.csv --output t/out", True),
        ("table --table t/ --output t", True),
        ("table --table t/a.csv --image_column c --output t/out", True),  # images lie in t/
        ("table --table t/a.csv --image_column c --image_root i --output t/out", False),
        ("sidecar --images i --annotations a/**/*.json --output a/out", True),
        ("voc --images i --annotations a --image_sets s --splits a,b --output i/out", True),
        ("pairs --low lr --high hr --output lr/out", True),
        ("pairs --low d/lr --high d/hr --output d", True),
        ("arrays --arrays d/x.npz --output d/out", False),
        ("arrays --arrays d/x.npz --output d/x.npz", True),
        ("arrays --arrays d/ --output d/out", True),
        ("arrays --arrays x.npy --label_array y.npy --output y.npy", True),
    ],
)
def test_an_output_lies_apart_from_all_sources(arguments: str, refused: bool) -> None:
    name, *argv = arguments.split()
    configure = importlib.import_module(f"beam_tfrec.pipelines.{name}").run.configure
    with pytest.raises(ValueError, match="output must lie apart") if refused else nullcontext():
        configure(argv)


@pytest.mark.parametrize(
    ("flag", "path", "codes"),
    [
        ("annotations", "nowhere.json", (2,)),
        ("annotations", "train-images", (2,)),
        ("annotations", "fifo", (2, 6)),
        ("images", "nowhere", (2, 3)),
        ("images", "train.json", (2, 3)),
        ("images", "dangling", (2, 3)),
        ("images", "nul\0", (2,)),
        ("images", "gs://bucket/x", (2, 6)),
        ("images", "nope://bucket/x", (2,)),
        ("output", "train.json", (2, 6)),
        ("output", "file", (2,)),
        ("output", "dangling", (2, 6)),
        ("output", "/proc/out", (2, 6)),
        ("output", "x" * 300, (2, 6)),
        ("output", "nul\0", (2,)),
    ],
)
def test_errors_name_the_path(
    flag: str, path: str, codes: tuple[int, ...], sources: Sources
) -> None:
    """Whatever is wrong, the error is one line that names the path."""
    Path("file").touch()
    Path("dangling").symlink_to("nowhere")
    os.mkfifo("fifo")
    writer = os.open("fifo", os.O_RDWR)  # else a reader would wait forever
    before = snapshot(sources[0])
    run = convert(**{flag: path})
    os.close(writer)
    assert run.code in codes, run.err
    assert "running" not in run.fault  # Beam adds this to messages
    assert CODE.findall(run.fault)[0] != "E-IO-RETRIES"
    assert ascii(path)[1:-1].split("/")[-1] in run.fault
    assert snapshot(sources[0]) == before
    assert not Path("out/manifest.json").exists()
