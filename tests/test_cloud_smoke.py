"""`make cloud-smoke` on a cloud of folders: its steps, what it deletes, and what it prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.coco_command import PROJECT

NEEDED = ("--project", "my-project", "--bucket", "gs://bucket/", "--region", "us-central1")
FAST = ("--images", "20", "--poll_s", "0.01")
FAKE = f"""\
#!{sys.executable}
import runpy, sys
sys.path.insert(0, {str(PROJECT)!r})
runpy.run_module("tests.fake_cloud", run_name="__main__")
"""


class Cloud:
    """A cloud in a folder, and the programs that reach it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.programs = folder / "cloud", folder / "bin"
        (self.folder / "buckets/bucket").mkdir(parents=True)
        self.programs.mkdir()
        no_docker = "#!/bin/sh\nexit 1\n"  # Cloud Build builds
        for name, text in (("gcloud", FAKE), ("python", FAKE), ("docker", no_docker)):
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)

    def start(self, **environment: str) -> subprocess.Popen[str]:
        given = {"FAKE_CLOUD": str(self.folder), "PYTHON": str(self.programs / "python")}
        path = f"{self.programs}:{os.environ['PATH']}"
        return subprocess.Popen(
            [sys.executable, "-m", "tests.cloud_smoke", *NEEDED, *FAST],
            cwd=PROJECT,
            env={**os.environ, "PATH": path, **given, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def left(self) -> list[str]:
        """Return what a run should have deleted or cancelled, and has not."""
        jobs = [path for path in self.folder.glob("jobs/*") if "RUNNING" in path.read_text()]
        made = [*self.folder.glob("buckets/bucket/*"), *self.folder.glob("made/*"), *jobs]
        return [path.name for path in made]

    def calls(self, *words: str) -> list[str]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [line for line in lines if all(word in line for word in words)]


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path)


@pytest.mark.slow
def test_job_makes_the_same_bytes_and_nothing_is_left(cloud: Cloud) -> None:
    run = cloud.start()
    out, _ = run.communicate(timeout=100)
    assert run.returncode == 0, out
    assert out.endswith("passed: the job made the bytes that were made here\n")
    assert cloud.left() == []
    name = out.split()[0]
    image = f"us-central1-docker.pkg.dev/my-project/{name}/beam-tfrec:1"
    assert cloud.calls("builds submit", f"--tag={image}")
    assert cloud.calls("compute instances delete", f"{name}-11211200-ab12-harness-x1")
    checked, submitted = cloud.calls("-m pipelines.coco --runner=DataflowRunner")
    assert "1234-compute@developer.gserviceaccount.com" in submitted
    assert checked == f"{submitted} --dry_run=True"
    makes = ("create", "delete", "rsync", "rm ", "submit", "run ", "cancel")
    making = [call for call in cloud.calls("gcloud ") if any(word in call for word in makes)]
    assert len(making) > 5
    assert [call for call in making if "--project=my-project" not in call or name not in call] == []


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["builds submit", "instances delete"])
def test_a_failure_is_printed_and_everything_deleted(cloud: Cloud, fails: str) -> None:
    run = cloud.start(FAKE_CLOUD_FAILS=fails)
    out, _ = run.communicate(timeout=100)
    assert run.returncode == 1
    assert out.splitlines()[-1].startswith("failed: ")
    assert cloud.left() == []


@pytest.mark.slow
def test_interrupted_run_cleans_up(cloud: Cloud) -> None:
    run = cloud.start(FAKE_CLOUD_STATE="JOB_STATE_RUNNING")
    assert run.stdout is not None
    while "VM deleted" not in (line := run.stdout.readline()):
        assert line, "it ended before it waited for a job"
    assert cloud.left() != []
    run.terminate()
    run.communicate(timeout=60)
    assert run.returncode == 143
    assert cloud.left() == []
