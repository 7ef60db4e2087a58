"""The command `beam-tfrec`; `python -m beam_tfrec.pipelines.coco` must do the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import beam_tfrec
from beam_tfrec.pipelines import cli
from beam_tfrec.transforms.progress import PROGRESS, Counts
from tests.coco_command import PROJECT, MakeCoco, digests, run_coco, run_pipeline, spawn_coco

SCRIPT = Path(sys.executable).parent / "beam-tfrec"


@pytest.mark.thorough
@pytest.mark.skipif(not SCRIPT.exists(), reason=f"beam-tfrec is not next to {sys.executable}")
def test_console_script_and_module_do_the_same_in_any_folder(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    """Paths are relative, and the first run prints the command that accepts the reject."""
    images, annotations = make_coco(4)
    (images / "a001.jpg").write_bytes(b"")

    def script(*more: str) -> "subprocess.CompletedProcess[str]":
        given = ("--images=train-images", "--annotations=train.json", "--output=script", *more)
        command = [SCRIPT, "coco", *given]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    refused, accepted = script(), script("--max_rejected", "1")
    assert (refused.returncode, accepted.returncode) == (4, 0)
    accept = "accept with beam-tfrec coco --images=train-images --annotations=train.json"
    assert f"{accept} --output=script --max_rejected 1\n" in refused.stderr
    sources = ("--images", images, "--annotations", annotations, "--max_rejected", 1)
    assert run_coco(*sources, "--output", tmp_path / "module").code == 0
    assert digests(tmp_path / "script") == digests(tmp_path / "module")
    line = "E-ARG command line: unknown argument '--imagse'; did you mean --images?\n"
    unknown = script("--imagse", "x")
    assert (unknown.returncode, unknown.stdout, unknown.stderr) == (2, "", line)
    assert spawn_coco("--imagse", "x") == (2, "", line)


@pytest.mark.parametrize("command", sorted({*cli.COMMANDS} - {"plan", *cli.PIPELINES}))
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`test_options.py` tests the help of sources."""
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.run_command([command, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: beam-tfrec {command} ")


@pytest.mark.parametrize(
    ("words", "names", "code"),
    [
        (["-h"], cli.COMMANDS, 0),
        (["plan", "--help"], cli.PIPELINES, 0),
        ([], cli.COMMANDS, 2),
        (["plan"], cli.PIPELINES, 2),
    ],
)
def test_commands_are_listed_one_per_line(
    words: list[str], names: dict[str, str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list is on standard output only if it was asked for."""
    with pytest.raises(SystemExit) as ended:
        cli.run_command(words)
    assert ended.value.code == code
    printed = capsys.readouterr()
    lines = (printed.err if code else printed.out).splitlines()
    assert (printed.out if code else printed.err) == ""
    assert lines[0] == f"usage: {' '.join(['beam-tfrec', *words[: 'plan' in words]])} COMMAND ..."
    assert [tuple(line.split(maxsplit=1)) for line in lines[2:-2]] == [*names.items()]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run_command(["--version"])
    assert capsys.readouterr().out == f"beam-tfrec {beam_tfrec.__version__}\n"


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_a_closed_pipe_is_no_fault(word: str) -> None:
    command = [sys.executable, "-m", "beam_tfrec.pipelines.cli", word]
    read, write = os.pipe()
    os.close(read)
    run = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, cwd=PROJECT, timeout=60)
    os.close(write)
    assert (run.returncode, run.stderr) == (0, b"")


LISTED = [f"{', '.join(names)}; see --help" for names in (cli.COMMANDS, cli.PIPELINES)]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["plan", "verify"], "unknown command 'verify'; give one of " + LISTED[1]),
        (["a\n\u202e"], "unknown command 'a\\n\\u202e'; give one of " + LISTED[0]),
        (["coc"], "unknown command 'coc'; did you mean coco?"),
        (["help"], "unknown command 'help'; did you mean --help?"),
        (["version"], "unknown command 'version'; did you mean --version?"),
    ],
)
def test_unknown_commands_are_refused(words: list[str], line: str) -> None:
    assert run_pipeline(cli.run_command, *words) == (2, "", f"E-ARG command line: {line}\n")


def test_paths_after_two_hyphens_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_pipeline(cli.run_command, "verify", "--", "--a-b")
    assert run.code == 2
    assert run.err.startswith("E-ARG --a-b: ")


FULL = "E-IO-NOSPACE out: No space left on device, 1 MB are free"
RESUME = "free some space, then run again to resume"


@pytest.mark.parametrize(
    ("planned", "line", "expected"),
    [
        (8, f"{FULL}; {RESUME}", f"{FULL}, about 6 MB more are needed; {RESUME}"),
        (2, f"{FULL}; {RESUME}", f"{FULL}; {RESUME}"),  # only small files are missing
        (8, f"{FULL}; give a --spool_dir", f"{FULL}; give a --spool_dir"),
        (
            8,
            "E-IO-NOSPACE out: File too large; ask for smaller shards with --shard_size",
            "E-IO-NOSPACE out: File too large; ask for smaller shards with --shard_size",
        ),
    ],
)
def test_only_a_full_output_says_how_much_is_needed(planned: int, line: str, expected: str) -> None:
    def fail(_: object) -> None:
        PROGRESS.plan(planned, 1)
        PROGRESS.add(Counts(done=2, bytes=2_000_000))
        raise RuntimeError(line)

    PROGRESS.reset()
    try:
        assert run_pipeline(fail) == (6, "", f"{expected}\n")
    finally:
        PROGRESS.reset()


@pytest.mark.thorough
def test_works_without_a_locale(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Containers often have LC_ALL=C and no HOME; names must still be UTF-8."""
    images, annotations = make_coco(1)
    (images / "a000.jpg").rename(images / "caf\u00e9.jpg")
    annotations.write_bytes(annotations.read_bytes().replace(b"a000", "caf\u00e9".encode()))
    given = ("--images", images, "--annotations", annotations, "--output", tmp_path / "out")
    run = spawn_coco(*given, LC_ALL="C", HOME="/nonexistent")
    assert run.code == 0, run.err


def test_path_that_is_not_unicode(make_coco: MakeCoco, tmp_path: Path) -> None:
    """A folder's name may be any bytes: the run works, or one line refuses the name."""
    images, annotations = make_coco(2)
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    images.rename(odd)
    run = run_coco(f"--images={odd}", f"--annotations={annotations}", f"--output={odd}-out")
    assert run.code in (0, 2), run.err
    assert len(run.err.splitlines()) == 1
    assert "Traceback" not in run.err
