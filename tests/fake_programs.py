"""Fake programs for scripts such as `run_dataflow.sh` to call: they record arguments and answer."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

from tests.coco_command import PROJECT

_PROGRAM = """\
#!{python} -SEs
import json, os, sys

folder, name = {folder!r}, os.path.basename(__file__)
with open(folder + "/calls.jsonl", "a") as calls:
    calls.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
with open(folder + "/answers.json") as file:
    answers = json.load(file)
said = " ".join([name, *sys.argv[1:]])
for answer in reversed(answers):
    if all(word in said for word in answer["words"]):
        sys.stdout.write(answer["out"])
        sys.stderr.write(answer["err"])
        sys.exit(answer["code"])
"""


@dataclass
class FakePrograms:
    """A PATH of fake programs, with links to a few real ones.

    Attributes:
        folder: where they are; it is created.
        real: names of real programs to link.
    """

    folder: Path
    real: Sequence[str] = ("bash", "cat", "date", "dirname")
    _answers: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        for name in self.real:
            (self.folder / name).symlink_to(str(shutil.which(name)))
        self.answer("")

    def add(self, *names: str, at: Path | None = None) -> None:
        """Add programs, on the PATH or as the one file `at`."""
        for name in names:
            path = at or self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_PROGRAM.format(python=sys.executable, folder=str(self.folder)))
            path.chmod(0o755)

    def remove(self, name: str) -> None:
        """Remove a program."""
        (self.folder / name).unlink()

    def answer(self, *words: str, out: str = "", err: str = "", code: int = 0) -> None:
        """Set the answer to calls with all these words; the last matching one counts."""
        self._answers.append({"words": words, "out": out, "err": err, "code": code})
        (self.folder / "answers.json").write_text(json.dumps(self._answers))

    def calls(self, *words: str) -> list[list[str]]:
        """Return the calls that contain all these words, in order."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if all(w in " ".join(call) for w in words)]

    def run(
        self, *command: str | Path, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command with only these programs on its PATH."""
        return subprocess.run(
            list(map(str, command)),
            cwd=cwd,
            env={"PATH": str(self.folder), "HOME": os.environ.get("HOME", "/"), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )


SCRIPT = PROJECT / "run_dataflow.sh"
REQUIRED = ("--project", "my-project", "--region", "us-central1", "--staging", "gs://stage/jobs/")
SOURCES = ("--images", "gs://in/photos", "--annotations", "gs://in/a.json")
FLAGS = (*SOURCES, "--output", "gs://out/set")
IMAGE = "us-central1-docker.pkg.dev/my-project/images/beam-tfrec:1"


class Launcher:
    """A copy of the script in a folder with a name to quote, and fakes of the programs it calls."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = tmp_path / "it's my project"
        self.home.mkdir()
        shutil.copy(SCRIPT, self.home)
        self.python = self.home / ".venv/bin/python"
        self.programs = FakePrograms(tmp_path / "bin")
        self.programs.add("gcloud", "docker")
        self.programs.add("python", at=self.python)
        self.programs.answer("gcloud version", out="528.0.0\n")
        self.bucket_lies_in("US-CENTRAL1\tregion\t")

    def bucket_lies_in(self, answer: str, bucket: str = "") -> None:
        """Have gcloud give this location for a bucket, or for all."""
        self.programs.answer("buckets describe", f"gs://{bucket}", out=f"{answer}\n")

    def __call__(self, *words: str, **environment: str) -> CompletedProcess[str]:
        """Run the script."""
        script = self.home / "run_dataflow.sh"
        return self.programs.run(script, *words, cwd=self.home.parent, **environment)

    def submit(
        self, *options: str, flags: tuple[str, ...] = FLAGS, **environment: str
    ) -> CompletedProcess[str]:
        """Run it with all required options and the given ones."""
        return self("coco", *REQUIRED, *options, "--", *flags, **environment)

    def job(self) -> list[str]:
        """Return the arguments that the pipeline was started with."""
        (call,) = self.programs.calls("-m beam_tfrec.pipelines.coco")
        return call[1:]


def refused(run: CompletedProcess[str], code: int, line: str) -> None:
    """Check that the script ended with an exit code and one line."""
    assert (run.returncode, run.stderr) == (code, f"{line}\n")


def quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"
