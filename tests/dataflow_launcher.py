"""`run_dataflow.sh` in its own folder, with fakes of the programs that it calls."""

import shutil
from pathlib import Path
from subprocess import CompletedProcess

from tests.coco_command import PROJECT
from tests.fake_programs import FakePrograms

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
