"""The console command `beam-tfrec`, and that it is the same code as `python -m pipelines.coco`."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines import cli
from tests.coco_command import PROJECT, digests, run_coco, run_pipeline, spawn_coco

MakeCoco = Callable[..., tuple[Path, Path]]
SCRIPT = Path(sys.executable).parent / "beam-tfrec"


@pytest.fixture
def script() -> Path:
    if not SCRIPT.exists():
        pytest.skip(f"beam-tfrec is not installed beside {sys.executable}")
    return SCRIPT


def test_the_console_script_is_the_module_from_any_folder(
    script: Path, make_coco: MakeCoco, tmp_path: Path
) -> None:
    """With relative paths, and where rejects are accepted by the printed command."""
    images, annotations = make_coco(4)
    (images / "a001.jpg").write_bytes(b"")
    words = [script, "coco", "--images=train-images", "--annotations=train.json", "--output=script"]
    by_script = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert by_script.returncode == 4
    accept = "accept with python -m pipelines.coco --images=train-images --annotations=train.json"
    assert f"{accept} --output=script --max_rejected 1\n" in by_script.stderr
    accepted = subprocess.run([*words, "--max_rejected", "1"], cwd=tmp_path, timeout=60)
    by_module = run_coco(
        *("--images", images, "--annotations", annotations, "--max_rejected", 1),
        *("--output", tmp_path / "module"),
    )
    assert (accepted.returncode, by_module.code) == (0, 0)
    assert digests(tmp_path / "script") == digests(tmp_path / "module")


def test_same_faults(script: Path) -> None:
    by_script = subprocess.run(
        [script, "coco", "--imagse", "x"], cwd=PROJECT, capture_output=True, text=True, timeout=60
    )
    line = "E-ARG command line: unknown argument '--imagse'; did you mean --images?\n"
    assert (by_script.returncode, by_script.stdout, by_script.stderr) == (2, "", line)
    assert spawn_coco("--imagse", "x") == (2, "", line)


@pytest.mark.parametrize("command", [name for name in cli.COMMANDS if name != "plan"])
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run_command([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: beam-tfrec {command} ")


@pytest.mark.parametrize(
    ("words", "names"),
    [(["--help"], cli.COMMANDS), (["-h"], cli.COMMANDS), (["plan", "--help"], cli.PIPELINES)],
)
def test_help_names_the_commands(
    words: list[str], names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.run_command(words)
    assert capsys.readouterr().out.startswith(f"usage: beam-tfrec {{{','.join(names)}}} ...")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], f"no command; give one of {', '.join(cli.COMMANDS)}"),
        (["plan"], f"no command; give one of {', '.join(cli.PIPELINES)}"),
        (["plan", "verify"], f"unknown command 'verify'; give one of {', '.join(cli.PIPELINES)}"),
        (["cocoo"], f"unknown command 'cocoo'; give one of {', '.join(cli.COMMANDS)}"),
        (["a\n\u202e"], f"unknown command 'a\\n\\u202e'; give one of {', '.join(cli.COMMANDS)}"),
    ],
)
def test_a_command_that_is_none(words: list[str], line: str) -> None:
    assert run_pipeline(cli.run_command, *words) == (2, "", f"E-ARG command line: {line}\n")


def test_works_without_a_locale(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Containers often have LC_ALL=C and no HOME; names are UTF-8 all the same."""
    images, annotations = make_coco(1)
    (images / "a000.jpg").rename(images / "caf\u00e9.jpg")
    annotations.write_text(
        annotations.read_text().replace("a000.jpg", "caf\u00e9.jpg"), encoding="utf-8"
    )
    run = spawn_coco(
        *("--images", images, "--annotations", annotations, "--output", tmp_path / "out"),
        **{"LC_ALL": "C", "HOME": "/nonexistent"},
    )
    assert run.code == 0, run.err


def test_path_that_is_no_unicode(make_coco: MakeCoco, tmp_path: Path) -> None:
    """A folder's name is bytes, which need be no UTF-8: it works, or one line refuses it."""
    images, annotations = make_coco(2)
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    images.rename(odd)
    run = run_coco(f"--images={odd}", f"--annotations={annotations}", f"--output={odd}-out")
    assert run.code in (0, 2), run.err
    assert len(run.err.splitlines()) == 1
    assert "Traceback" not in run.err
