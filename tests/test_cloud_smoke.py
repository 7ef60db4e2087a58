"""`make cloud-smoke` on a cloud of folders: its steps, what it cleans up, and its report."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.coco_command import PROJECT

NEEDED = ("--project", "my-project", "--bucket", "gs://bucket/", "--region", "us-central1")

FAKE = f"""\
import runpy, sys
sys.path.insert(0, {str(PROJECT)!r})
runpy.run_module("tests.fake_cloud", run_name="__main__")
"""


class Cloud:
    """A cloud in a folder, and the programs that reach it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cloud"
        self.programs = folder / "bin"
        (self.folder / "buckets/bucket").mkdir(parents=True)
        self.programs.mkdir()
        for name in ("gcloud", "python"):
            self.add(name, f"#!{sys.executable}\n{FAKE}")
        self.add("docker", "#!/bin/sh\nexit 1\n")  # it does not run: Cloud Build builds

    def add(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def start(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        given = {"FAKE_CLOUD": str(self.folder), "PYTHON": str(self.programs / "python")}
        path = f"{self.programs}:{os.environ['PATH']}"
        fast = ("--images", "20", "--poll_s", "0.01")
        return subprocess.Popen(
            [sys.executable, "-m", "tests.cloud_smoke", *NEEDED, *fast, *options],
            cwd=PROJECT,
            env={**os.environ, "PATH": path, **given, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def smoke(self, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*options, **environment)
        out, err = process.communicate(timeout=100)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def left(self) -> list[str]:
        """Return what is there that a run should have deleted, jobs that still run among it."""
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
def test_all_three_runs_make_the_same_and_nothing_is_left(cloud: Cloud) -> None:
    run = cloud.smoke()
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("## beam-tfrec on Dataflow: passed\n\n`tfrec-smoke-")
    name = run.stdout.split("`")[1]
    for job in ("submitted", "scheduled"):
        assert f"| {job}: complete, and the same bytes |" in run.stdout
    assert f"- deleted the VM `{name}-a-11211200-ab12-harness-x1`" in run.stdout
    assert "shards, sha256 of their sha256 list `" in run.stdout
    assert cloud.left() == []
    check_calls(cloud, name)


def check_calls(cloud: Cloud, name: str) -> None:
    """Check that calls name the project and this run alone."""
    image = f"us-central1-docker.pkg.dev/my-project/{name}/beam-tfrec:1"
    assert cloud.calls("builds submit", f"--tag={image}")
    (created,) = cloud.calls("scheduler jobs create http")
    assert "--oauth-service-account-email=1234-compute@developer.gserviceaccount.com" in created
    assert "/projects/my-project/locations/us-central1/flexTemplates:launch" in created
    checked, submitted = cloud.calls("-m pipelines.coco --runner=DataflowRunner")
    assert checked == f"{submitted} --dry_run=True"
    for word in (f"--sdk_container_image={image}", "--max_num_workers=2", "--no_wait"):
        assert word in submitted
    makes = "create", "delete", "rsync", "rm ", "submit", "run ", "cancel"
    making = [call for call in cloud.calls("gcloud ") if any(word in call for word in makes)]
    assert len(making) > 10
    assert [call for call in making if "--project=my-project" not in call or name not in call] == []


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["builds submit", "compute instances delete"])
def test_a_failure_is_reported_and_everything_deleted(cloud: Cloud, fails: str) -> None:
    run = cloud.smoke(FAKE_CLOUD_FAILS=fails)
    assert run.returncode == 1
    assert run.stdout.startswith("## beam-tfrec on Dataflow: failed")
    (fault,) = [line for line in run.stdout.splitlines() if line.startswith("- **failed**: ")]
    assert "ERROR: quota exceeded" in fault or "flex_template" in fault
    assert cloud.left() == []


@pytest.mark.slow
def test_interrupted_run_cleans_up(cloud: Cloud) -> None:
    process = cloud.start(FAKE_CLOUD_STATE="JOB_STATE_RUNNING")
    assert process.stderr is not None
    while "ended" not in (line := process.stderr.readline()):
        assert line, "it ended before it waited for a job"
    assert cloud.left() != []
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert out.startswith("## beam-tfrec on Dataflow: failed") and "interrupted" in out
    assert cloud.left() == []
