"""A run on the real Dataflow, for what emulators cannot prove: `make cloud-smoke`.

Photos are converted here, by a Dataflow job that loses a worker's VM, and by one that Cloud
Scheduler launches from the Flex Template; all three must make the same bytes. Everything that it
makes bears the run's name, and is deleted at the end, however that comes. Prints a report.
"""

import argparse
import contextlib
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.invariants import check_committed, files_of

PROJECT_ROOT = Path(__file__).resolve().parent.parent
NUM_WORKERS = 2
READS_PER_SECOND = 4
"""Of each of four worker processes: 2,000 photos take two minutes, in which a VM can be deleted."""
ENDED = ("JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_DRAINED")
CLEANING_S = 300
"""There is always time for each thing that is to be deleted."""
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class Failed(Exception):
    """What ended the run, in a line."""


@dataclass
class Smoke:
    """One run.

    Attributes:
        options: of the command line.
        name: of this run, and of all that it makes.
        steps: what was done, and in how many seconds.
        notes: facts for the report.
        undo: deletes what was made, the last first.
    """

    options: argparse.Namespace
    name: str = field(default_factory=lambda: f"tfrec-smoke-{secrets.token_hex(3)}")
    steps: list[tuple[str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    deadline_s: float = 0

    def __post_init__(self) -> None:
        """Start the clock, which ends this but not the cleaning."""
        self.deadline_s = time.monotonic() + 60 * self.options.minutes

    @property
    def base(self) -> str:
        """The folder of this run in the bucket."""
        return f"gs://{self.options.bucket}/{self.name}"

    @property
    def repository(self) -> str:
        """The repository of this run's image."""
        return f"{self.options.region}-docker.pkg.dev/{self.options.project}/{self.name}"

    @property
    def image(self) -> str:
        """The image of workers and template."""
        return f"{self.repository}/beam-tfrec:1"

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Time a step."""
        print(f"... {what}", file=sys.stderr, flush=True)
        started_s = time.monotonic()
        yield
        self.steps.append((what, time.monotonic() - started_s))

    def run(self, *command: str | Path) -> str:
        """Run a command, and return what it prints."""
        self.check_time()
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
            raise Failed(f"{' '.join(words[:4])}: no end in sight") from None
        if run.returncode:
            said = (run.stderr.strip() or run.stdout.strip() or "no word").splitlines()[-1]
            raise Failed(f"{' '.join(words[:4])}: exit code {run.returncode}: {said}")
        return run.stdout.strip()

    def gcloud(self, *words: str) -> str:
        """Run gcloud in the project, and return what it prints."""
        return self.run("gcloud", *words, f"--project={self.options.project}", "--quiet")

    def at_the_end(self, *words: str) -> None:
        """Have gcloud do this at the end; what fails then is told."""

        def delete() -> None:
            self.deadline_s = time.monotonic() + CLEANING_S
            try:
                self.gcloud(*words)
            except Failed as error:
                self.notes.append(f"**left behind**: {error}")

        self.undo.callback(delete)

    def check_time(self) -> None:
        """Fail when the time is up."""
        if time.monotonic() > self.deadline_s:
            raise Failed(f"not done within {self.options.minutes:g} minutes")

    def pause(self) -> None:
        """Wait before asking again."""
        self.check_time()
        time.sleep(self.options.poll_s)


# --- the steps


def draw_and_convert(smoke: Smoke, folder: Path) -> Path:
    """Draw photos into `folder/source` and return what this machine makes of them."""
    photos = ("--images", str(smoke.options.images), "--scale", "0.25")
    with smoke.step(f"{smoke.options.images} photos drawn"):
        drawing = PROJECT_ROOT / "benchmarks/generate.py"
        smoke.run(sys.executable, drawing, "--out", folder / "source", *photos)
    local = folder / "local"
    with smoke.step("converted here"):
        here = flags_of(str(folder / "source"), str(local))
        smoke.run(sys.executable, "-m", "pipelines.coco", *here)
    return local


def flags_of(source: str, output: str) -> list[str]:
    """Return what all three runs have in common."""
    sources = ("--images", f"{source}/images", "--annotations", f"{source}/instances.json")
    return [*sources, "--output", output]


def upload(smoke: Smoke, folder: Path) -> None:
    """Copy the photos to the bucket."""
    with smoke.step("uploaded"):
        smoke.at_the_end("storage", "rm", "--recursive", smoke.base)
        smoke.gcloud(
            "storage", "rsync", "--recursive", str(folder / "source"), f"{smoke.base}/source"
        )


def build_template(smoke: Smoke) -> None:
    """Build and push image and template."""
    region = f"--location={smoke.options.region}"
    with smoke.step("image and template built"):
        smoke.at_the_end("artifacts", "repositories", "delete", smoke.name, region)
        docker = "--repository-format=docker"
        smoke.gcloud("artifacts", "repositories", "create", smoke.name, region, docker)
        words = (f"IMAGE={smoke.image}", f"TEMPLATE={smoke.base}/coco.json")
        project = f"PROJECT={smoke.options.project}"
        smoke.run("make", "--no-print-directory", "flex_template", *words, project)


def schedule(smoke: Smoke, folder: Path) -> str:
    """Have Cloud Scheduler launch the template once; return the job's name."""
    region, job = f"--location={smoke.options.region}", f"{smoke.name}-b"
    body = folder / "launch.json"
    body.write_text(json.dumps(launch_request(smoke, job)))
    place = f"projects/{smoke.options.project}/locations/{smoke.options.region}"
    with smoke.step("launched by Cloud Scheduler"):
        smoke.at_the_end("scheduler", "jobs", "delete", smoke.name, region)
        smoke.gcloud(
            *("scheduler", "jobs", "create", "http", smoke.name, region, "--schedule=0 3 1 1 *"),
            f"--uri=https://dataflow.googleapis.com/v1b3/{place}/flexTemplates:launch",
            *("--http-method=POST", "--headers=Content-Type=application/json"),
            f"--message-body-from-file={body}",
            *(f"--oauth-service-account-email={account(smoke)}", f"--oauth-token-scope={SCOPE}"),
        )
        smoke.gcloud("scheduler", "jobs", "run", smoke.name, region)
    return job


def launch_request(smoke: Smoke, job: str) -> dict[str, object]:
    """Return the body of a request that launches the template."""
    words = flags_of(f"{smoke.base}/source", f"{smoke.base}/scheduled")
    flags = dict(zip((word.removeprefix("--") for word in words[::2]), words[1::2], strict=True))
    environment = {
        "machineType": "n2-standard-2",
        "maxWorkers": NUM_WORKERS,
        "serviceAccountEmail": account(smoke),
        "stagingLocation": f"{smoke.base}/jobs/staging",
        "tempLocation": f"{smoke.base}/jobs/temp",
    }
    return {
        "launchParameter": {
            "jobName": job,
            "containerSpecGcsPath": f"{smoke.base}/coco.json",
            "parameters": {**flags, "sdk_container_image": smoke.image},
            "environment": environment,
        }
    }


def account(smoke: Smoke) -> str:
    """Return the service account that the schedule runs as."""
    if smoke.options.service_account:
        return smoke.options.service_account
    of = ("projects", "describe", smoke.options.project, "--format=value(projectNumber)")
    return f"{smoke.gcloud(*of)}-compute@developer.gserviceaccount.com"


def check_graph(smoke: Smoke) -> None:
    """Check the job before anything is built: a package may be missing here."""
    with smoke.step("job's graph checked"):
        smoke.run(*submission(smoke, "--check_only"))


def submit(smoke: Smoke) -> str:
    """Submit a job as a user would; return its name."""
    with smoke.step("submitted by run_dataflow.sh"):
        smoke.run(*submission(smoke))
    return f"{smoke.name}-a"


def submission(smoke: Smoke, *more: str) -> list[str]:
    """Return the command that submits a job."""
    options = smoke.options
    return [
        *("./run_dataflow.sh", "coco", "--project", options.project, "--region", options.region),
        *("--staging", f"{smoke.base}/jobs", "--job_name", f"{smoke.name}-a"),
        *("--machine_type", "n2-standard-2", "--max_workers", str(NUM_WORKERS)),
        *("--sdk_container_image", smoke.image, "--labels", f"smoke={smoke.name}", *more),
        *("--service_account", account(smoke), "--"),
        *flags_of(f"{smoke.base}/source", f"{smoke.base}/submitted"),
        *("--num_workers", str(NUM_WORKERS), "--max_reads_per_second", str(READS_PER_SECOND)),
    ]


def cancel_at_the_end(smoke: Smoke) -> None:
    """Have all jobs of this run ended before what they write is deleted."""
    region = f"--region={smoke.options.region}"
    of_this_run = (f'--filter=name~"^{smoke.name}"', "--status=active", "--format=value(id)")

    def cancel() -> None:
        smoke.deadline_s = time.monotonic() + CLEANING_S
        try:
            while running := smoke.gcloud("dataflow", "jobs", "list", region, *of_this_run):
                smoke.gcloud("dataflow", "jobs", "cancel", *running.split(), region)
                smoke.pause()
        except Failed as error:
            smoke.notes.append(f"**left behind**: {error}")

    smoke.undo.callback(cancel)


def find_job(smoke: Smoke, job: str) -> str:
    """Return a job's id, once Dataflow knows it."""
    region, fields = f"--region={smoke.options.region}", "--format=value(id)"
    while not (
        found := smoke.gcloud("dataflow", "jobs", "list", region, f"--filter=name={job}", fields)
    ):
        check_launch(smoke, job)
        smoke.pause()
    job_id = found.split()[0]
    smoke.notes.append(f"job `{job}` is `{job_id}`")
    return job_id


def check_launch(smoke: Smoke, job: str) -> None:
    """Fail when the schedule could not launch its job: nothing else tells why."""
    if job != f"{smoke.name}-b":
        return
    region, fields = (
        f"--location={smoke.options.region}",
        "--format=value(status.code,status.message)",
    )
    if said := smoke.gcloud("scheduler", "jobs", "describe", smoke.name, region, fields):
        raise Failed(f"Cloud Scheduler could not launch {job}: {said}")


def state_of(smoke: Smoke, job_id: str) -> str:
    """Return a job's state."""
    region = f"--region={smoke.options.region}"
    return smoke.gcloud(
        "dataflow", "jobs", "describe", job_id, region, "--format=value(currentState)"
    )


def delete_a_worker(smoke: Smoke, job: str, job_id: str) -> None:
    """Delete the VM of one worker when the first shard is there, and others are being made."""
    with smoke.step("a worker's VM deleted while shards were made"):
        while not has_receipts(smoke):
            if state_of(smoke, job_id) in ENDED:
                raise Failed("the job ended before one of its workers could be deleted")
            smoke.pause()
        name, zone = worker_of(smoke, job)
        smoke.gcloud("compute", "instances", "delete", name, f"--zone={zone}")
        smoke.notes.append(f"deleted the VM `{name}`")


def has_receipts(smoke: Smoke) -> bool:
    """Return whether a shard is finished."""
    try:
        return bool(smoke.gcloud("storage", "ls", f"{smoke.base}/submitted/_receipts/"))
    except Failed:  # so gcloud says that there is nothing
        return False


def worker_of(smoke: Smoke, job: str) -> tuple[str, str]:
    """Return name and zone of one of a job's VMs."""
    fields = "--format=value(name,zone.basename())"
    said = smoke.gcloud("compute", "instances", "list", f'--filter=name~"^{job}-.*harness"', fields)
    if not said:
        raise Failed(f"no VM of {job} is to be found")
    name, zone = said.splitlines()[0].split()
    return name, zone


def wait(smoke: Smoke, job: str, job_id: str) -> None:
    """Wait until a job has succeeded."""
    with smoke.step(f"job {job} ended"):
        while (state := state_of(smoke, job_id)) not in ENDED:
            smoke.pause()
        if state != "JOB_STATE_DONE":
            raise Failed(f"job {job} ended as {state}")


def compare(smoke: Smoke, folder: Path, local: Path) -> None:
    """Compare what both jobs made with what this machine made."""
    expected = digests(local)
    manifest = json.loads((local / "manifest.json").read_bytes())
    for name in ("submitted", "scheduled"):
        with smoke.step(f"{name}: complete, and the same bytes"):
            made = folder / name
            made.mkdir()
            smoke.gcloud("storage", "rsync", "--recursive", f"{smoke.base}/{name}", str(made))
            found = check_committed(files_of(made))
            if digests(made) != expected:
                raise Failed(f"{name}: the shards are not those that were made here")
            for part in ("shards", "splits"):
                if found[part] != manifest[part]:
                    raise Failed(f"{name}: manifest.json tells of other {part}")
    listed = "".join(f"{digest}  {file}\n" for file, digest in expected.items())
    total = hashlib.sha256(listed.encode()).hexdigest()
    smoke.notes.append(f"{len(expected)} shards, sha256 of their sha256 list `{total}`")


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every shard."""
    paths = sorted(folder.glob("*.tfrec"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


# --- the whole


def smoke_test(smoke: Smoke, folder: Path) -> None:
    """Do all steps; the scheduled job starts while the other runs."""
    local = draw_and_convert(smoke, folder)
    check_graph(smoke)
    upload(smoke, folder)
    build_template(smoke)
    cancel_at_the_end(smoke)
    scheduled = schedule(smoke, folder)
    submitted = submit(smoke)
    submitted_id = find_job(smoke, submitted)
    delete_a_worker(smoke, submitted, submitted_id)
    scheduled_id = find_job(smoke, scheduled)
    wait(smoke, submitted, submitted_id)
    wait(smoke, scheduled, scheduled_id)
    compare(smoke, folder, local)


def report(smoke: Smoke, fault: str) -> str:
    """Return the report."""
    options = smoke.options
    lines = [
        f"## beam-tfrec on Dataflow: {'failed' if fault else 'passed'}",
        "",
        f"`{smoke.name}` in {options.project}, {options.region}, gs://{options.bucket}",
        "",
        "| step | s |",
        "|---|---|",
        *(f"| {what} | {seconds:.0f} |" for what, seconds in smoke.steps),
        "",
        *(f"- {note}" for note in smoke.notes),
        *([f"- **failed**: {fault}"] if fault else []),
    ]
    return "\n".join(lines)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; a missing one ends the program with 2."""
    parser = argparse.ArgumentParser(prog="make cloud-smoke", description=__doc__)
    for name in ("project", "bucket", "region"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument(
        "--service_account", default="", help="of schedule and workers (default Compute Engine's)"
    )
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
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # as an exception, so that it is cleaned up
    fault = "interrupted"
    try:
        with tempfile.TemporaryDirectory() as folder, smoke.undo:
            try:
                smoke_test(smoke, Path(folder))
                fault = ""
            except (Failed, AssertionError) as error:
                fault = str(error)
    finally:
        print(report(smoke, fault))
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
