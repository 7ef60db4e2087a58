"""A run on the real Dataflow, for what emulators cannot prove: `make cloud-smoke`.

Photos are converted here, and by a Dataflow job that loses a worker's VM. Both must make the same
bytes. Everything that this makes has the run's name, and is deleted at the end. It prints each step
and its seconds.
"""

import argparse
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.invariants import check_committed, files_of

PROJECT_ROOT = Path(__file__).resolve().parent.parent
NUM_WORKERS = "2"
READS_PER_SECOND = "4"
"""Of each of four worker processes: 2,000 photos take two minutes, in which a VM can be deleted."""
ENDED = ("JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_DRAINED")
CLEANING_S = 300


class Failed(Exception):
    """What ended the run, in a line."""


class Smoke:
    """One run: its options, its names in the cloud, and what must be deleted at the end."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Choose a name, and start the clock."""
        self.options = options
        self.name = f"tfrec-smoke-{secrets.token_hex(3)}"
        self.base = f"gs://{options.bucket}/{self.name}"
        registry = f"{options.region}-docker.pkg.dev/{options.project}"
        self.image = f"{registry}/{self.name}/beam-tfrec:1"
        self.undo = contextlib.ExitStack()
        self.deadline_s = time.monotonic() + 60 * options.minutes
        self._step = ("", time.monotonic())

    def step(self, what: str) -> None:
        """Print how long the last step took, and begin the next one."""
        last, started_s = self._step
        if last:
            print(f"{time.monotonic() - started_s:5.0f} s  {last}", flush=True)
        self._step = (what, time.monotonic())

    def run(self, *command: str | Path) -> str:
        """Run a command, and return what it prints."""
        words = list(map(str, command))
        environment = os.environ | {"PYTHON": os.environ.get("PYTHON", sys.executable)}
        left_s = max(1.0, self.deadline_s - time.monotonic())
        try:
            run = subprocess.run(
                words,
                cwd=PROJECT_ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=left_s,
            )
        except FileNotFoundError:
            raise Failed(f"{words[0]} is not installed") from None
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(words[:4])}: not done in time") from None
        if run.returncode:
            said = (run.stderr.strip() or run.stdout.strip() or "nothing").splitlines()[-1]
            raise Failed(f"{' '.join(words[:4])}: exit code {run.returncode}: {said}")
        return run.stdout.strip()

    def gcloud(self, *words: str) -> str:
        """Run gcloud in the project, and return what it prints."""
        return self.run("gcloud", *words, f"--project={self.options.project}", "--quiet")

    def at_the_end(self, *words: str) -> None:
        """Have gcloud do this at the end, whatever happens; print what then fails."""

        def delete() -> None:
            self.deadline_s = time.monotonic() + CLEANING_S
            try:
                self.gcloud(*words)
            except Failed as error:
                print(f"NOT DELETED: {error}")

        self.undo.callback(delete)

    def jobs(self, *words: str) -> str:
        """Run `gcloud dataflow jobs` in the region."""
        return self.gcloud("dataflow", "jobs", *words, f"--region={self.options.region}")

    def state(self, job_id: str) -> str:
        """Return a job's state, such as JOB_STATE_DONE."""
        return self.jobs("describe", job_id, "--format=value(currentState)")

    def pause(self) -> None:
        """Wait before asking again; fail when the time is up."""
        if time.monotonic() > self.deadline_s:
            raise Failed(f"not done within {self.options.minutes:g} minutes")
        time.sleep(self.options.poll_s)


def smoke_test(smoke: Smoke, folder: Path) -> None:
    """Do all steps."""
    source, local, made = folder / "source", folder / "local", folder / "made"
    smoke.step("photos drawn and converted here")
    photos = ("--images", str(smoke.options.images), "--scale", "0.25")
    smoke.run(sys.executable, "benchmarks/generate.py", "--out", source, *photos)
    smoke.run(sys.executable, "-m", "pipelines.coco", *flags_of(source, local))
    smoke.step("job's graph checked")  # first: a package may be missing here
    smoke.run(*submission(smoke, "--check_only"))
    smoke.step("photos uploaded")
    smoke.at_the_end("storage", "rm", "--recursive", smoke.base)
    smoke.gcloud("storage", "rsync", "--recursive", str(source), f"{smoke.base}/source")
    smoke.step("image built, job submitted by run_dataflow.sh")
    repositories, region = ("artifacts", "repositories"), f"--location={smoke.options.region}"
    smoke.at_the_end(*repositories, "delete", smoke.name, region)
    smoke.gcloud(*repositories, "create", smoke.name, region, "--repository-format=docker")
    smoke.undo.callback(cancel_job, smoke)
    smoke.run(*submission(smoke))
    job_id = find_job(smoke)
    smoke.step("a worker's VM deleted while shards were made")
    delete_a_worker(smoke, job_id)
    smoke.step("job ended")
    while (state := smoke.state(job_id)) not in ENDED:
        smoke.pause()
    if state != "JOB_STATE_DONE":
        raise Failed(f"job {job_id} ended as {state}")
    smoke.step("outputs compared")
    made.mkdir()
    smoke.gcloud("storage", "rsync", "--recursive", f"{smoke.base}/made", str(made))
    compare(made, local)
    smoke.step("")


def flags_of(source: object, output: object) -> list[str]:
    """Return the flags that both runs have in common."""
    sources = ("--images", f"{source}/images", "--annotations", f"{source}/instances.json")
    return [*sources, "--output", str(output)]


def submission(smoke: Smoke, *more: str) -> list[str]:
    """Return the command that submits the job."""
    options = smoke.options
    return [
        *("./run_dataflow.sh", "coco", "--project", options.project, "--region", options.region),
        *("--staging", f"{smoke.base}/jobs", "--job_name", smoke.name),
        *("--machine_type", "n2-standard-2", "--max_workers", NUM_WORKERS),
        *("--build_container", smoke.image, "--labels", f"smoke={smoke.name}", *more),
        *("--service_account", options.service_account, "--"),
        *flags_of(f"{smoke.base}/source", f"{smoke.base}/made"),
        *("--num_workers", NUM_WORKERS, "--max_reads_per_second", READS_PER_SECOND),
    ]


def cancel_job(smoke: Smoke) -> None:
    """End the job, before what it writes is deleted."""
    smoke.deadline_s = time.monotonic() + CLEANING_S
    of_this_run = (f"--filter=name={smoke.name}", "--status=active", "--format=value(id)")
    try:
        while running := smoke.jobs("list", *of_this_run):
            smoke.jobs("cancel", *running.split())
            smoke.pause()
    except Failed as error:
        print(f"NOT CANCELLED: {error}")


def find_job(smoke: Smoke) -> str:
    """Return the job's id, once Dataflow knows it."""
    while not (found := smoke.jobs("list", f"--filter=name={smoke.name}", "--format=value(id)")):
        smoke.pause()
    return found.split()[0]


def delete_a_worker(smoke: Smoke, job_id: str) -> None:
    """Delete the VM of one worker when the first shard is there, and others are being made."""
    receipts = f"{smoke.base}/made/_receipts/"
    while True:
        with contextlib.suppress(Failed):  # so gcloud says that there is nothing yet
            smoke.gcloud("storage", "ls", receipts)
            break
        if smoke.state(job_id) in ENDED:
            raise Failed("the job ended before one of its workers could be deleted")
        smoke.pause()
    wanted = (f'--filter=name~"^{smoke.name}-.*harness"', "--format=value(name,zone.basename())")
    found = smoke.gcloud("compute", "instances", "list", *wanted).split()
    if not found:
        raise Failed("the job has no VM")
    smoke.gcloud("compute", "instances", "delete", found[0], f"--zone={found[1]}")


def compare(made: Path, local: Path) -> None:
    """Compare what the job made with what this machine made."""
    found, expected = (check_committed(files_of(path)) for path in (made, local))
    if any(found[part] != expected[part] for part in ("shards", "splits")):
        raise Failed("manifest.json differs from the one made here")
    for path in local.glob("*.tfrec"):
        if (made / path.name).read_bytes() != path.read_bytes():
            raise Failed(f"{path.name} differs from the one made here")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; a missing one ends the program with 2."""
    parser = argparse.ArgumentParser(prog="make cloud-smoke", description=__doc__)
    for name in ("project", "bucket", "region", "service_account"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--images", type=int, default=2000, help="photos (default 2000)")
    parser.add_argument("--minutes", type=float, default=20, help="for all of it (default 20)")
    parser.add_argument("--poll_s", type=float, default=10, help="between questions (default 10)")
    options = parser.parse_args(arguments)
    for name in ("project", "bucket", "region"):
        if not getattr(options, name):
            parser.error(f"{name.upper()} is missing: make cloud-smoke PROJECT= BUCKET= REGION=")
    options.bucket = options.bucket.removeprefix("gs://").rstrip("/")
    return options


def main(arguments: Sequence[str]) -> int:
    """Run, clean up, report; return the exit code."""
    smoke = Smoke(parse(arguments))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that it cleans up
    print(f"{smoke.name} in {smoke.options.project}, {smoke.base}", flush=True)
    try:
        with tempfile.TemporaryDirectory() as folder, smoke.undo:
            if not smoke.options.service_account:  # Compute Engine's
                of = ("projects", "describe", smoke.options.project)
                number = smoke.gcloud(*of, "--format=value(projectNumber)")
                smoke.options.service_account = f"{number}-compute@developer.gserviceaccount.com"
            smoke_test(smoke, Path(folder))
    except (Failed, AssertionError) as error:
        print(f"failed: {error}")
        return 1
    print("passed: the job made the bytes that were made here")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
