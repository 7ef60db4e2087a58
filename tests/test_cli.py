"""The console command `beam-tfrec`, and that it is the same code as `python -m pipelines.coco`."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines import cli
from tests.coco_command import PROJECT, digests, run_coco, settings_kept, spawn_coco

MakeCoco = Callable[..., tuple[Path, Path]]
COMMAND = (sys.executable, "-m", "pipelines.coco")
SCRIPT = Path(sys.executable).parent / "beam-tfrec"


def run_program(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)), cwd=PROJECT, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def script() -> Path:
    if not SCRIPT.exists():
        pytest.skip(f"beam-tfrec is not installed beside {sys.executable}")
    return SCRIPT


def test_console_script_is_the_module(script: Path, make_coco: MakeCoco, tmp_path: Path) -> None:
    images, annotations = make_coco(4)
    (images / "a001.jpg").write_bytes(b"")
    arguments = ("--images", images, "--annotations", annotations, "--max_rejected", 1)
    by_script = run_program(script, "coco", *arguments, "--output", tmp_path / "script")
    by_module = run_coco(*arguments, "--output", tmp_path / "module")
    assert (by_script.returncode, by_module.code) == (0, 0)
    assert digests(tmp_path / "script") == digests(tmp_path / "module")
    assert by_script.stderr == by_module.err


@pytest.mark.parametrize(
    ("module", "program"),
    [
        (("pipelines.cli", "coco"), "beam-tfrec coco"),
        (("pipelines.coco",), "python -m pipelines.coco"),
    ],
)
def test_rejects_are_accepted_by_the_program_that_was_started(
    module: tuple[str, ...], program: str, make_coco: MakeCoco, tmp_path: Path
) -> None:
    images, annotations = make_coco(2)
    (images / "a001.jpg").write_bytes(b"")
    arguments = ("--images", images, "--annotations", annotations, "--output", tmp_path / "out")
    run = run_program(sys.executable, "-m", *module, *arguments)
    assert run.returncode == 4
    assert f"accept with {program} --images {images} " in run.stderr


def test_same_help(script: Path) -> None:
    by_script = run_program(script, "coco", "--help")
    by_module = run_program(sys.executable, "-m", "pipelines.coco", "--help")
    assert by_script.returncode == by_module.returncode == 0
    assert by_script.stdout == by_module.stdout
    assert by_script.stdout.startswith("usage: beam-tfrec coco ")
    assert by_script.stderr == by_module.stderr == ""


def test_same_exit_codes(script: Path, tmp_path: Path) -> None:
    arguments = ("--imagse", "x")
    by_script = run_program(script, "coco", *arguments)
    by_module = spawn_coco(*arguments)
    line = "E-ARG command line: unknown argument '--imagse'; did you mean --images?\n"
    assert (by_script.returncode, by_script.stdout, by_script.stderr) == (2, "", line)
    assert by_module == (2, "", line)


def test_a_removed_command_says_what_to_do(script: Path) -> None:
    run = run_program(script, "doctor", "coco")
    line = (
        "E-ARG command line: doctor was removed;"
        " run the command with --plan, which checks sources, output and credentials\n"
    )
    assert (run.returncode, run.stdout, run.stderr) == (2, "", line)


def test_from_any_folder(script: Path, make_coco: MakeCoco, tmp_path: Path) -> None:
    """Relative paths are relative to where the user stands."""
    make_coco(2)
    run = subprocess.run(
        [script, "coco", "--images=train-images", "--annotations=train.json", "--output=out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "out/manifest.json").exists()


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["beam-tfrec", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_command_is_the_module_of_its_name(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with settings_kept():
        assert call(monkeypatch, command, "--help") == 0
    usage, module = capsys.readouterr().out, importlib.import_module(f"pipelines.{command}")
    assert usage.startswith(f"usage: beam-tfrec {command} ")
    assert usage == module.parser().format_help()


@pytest.mark.parametrize("words", [("--help",), ("-h",)])
def test_help_names_the_commands(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *words) == 0
    commands = "{" + ",".join(cli.COMMANDS) + "}"
    assert capsys.readouterr() == (
        f"usage: beam-tfrec {commands} ...  (beam-tfrec COMMAND --help)\n",
        "",
    )


@pytest.mark.parametrize("words", [(), ("plan",)])
def test_a_missing_command_is_wrong_and_all_are_listed(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with settings_kept():
        assert call(monkeypatch, *words) == 2
    out, err = capsys.readouterr()
    what, names = ("pipeline", cli.PIPELINES) if words else ("command", cli.COMMANDS)
    line = f"E-ARG command line: no {what}; give one of {', '.join(names)}\n"
    assert (out, err) == ("", line)


@pytest.mark.parametrize("word", ["cocoo", "", "--imagse", "new\nline \u202e"])
def test_unknown_command(
    word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, word) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        err
        == f"E-ARG command line: unknown command {word!a}; give one of {', '.join(cli.COMMANDS)}\n"
    )


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
    run = subprocess.run(
        [*COMMAND, f"--images={odd}", f"--annotations={annotations}", f"--output={odd}-out"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode in (0, 2), run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert "Traceback" not in run.stderr
