"""Google Cloud as far as `tests.cloud_smoke` sees it: buckets are folders, jobs run in process.

Started under the name of the program that it plays: `gcloud`, or the `python` that submits a job.
FAKE_CLOUD names the folder of its state. A call that holds FAKE_CLOUD_FAILS fails, and jobs are in
the state FAKE_CLOUD_STATE if that is set.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
CLOUD = Path(os.environ.get("FAKE_CLOUD", "/nowhere"))
JOBS, MADE = CLOUD / "jobs", CLOUD / "made"
ANSWERS = {
    ("version",): "528.0.0",
    ("projects", "describe"): "1234",
    ("storage", "buckets", "describe"): "US-CENTRAL1\tregion\t",
}


def here(text: str) -> str:
    """Return the words with folders for buckets."""
    return text.replace("gs://", f"{CLOUD}/buckets/")


def option(words: list[str], name: str) -> str:
    """Return the value of `--name=value`."""
    return next((w.partition("=")[2] for w in words if w.startswith(f"--{name}=")), "")


def run_pipeline(name: str, program: list[str], state: str) -> None:
    """Run a job to its end; it says that it is running until a test of it says otherwise."""
    run = subprocess.run([sys.executable, *program], cwd=PROJECT, capture_output=True, text=True)
    JOBS.mkdir(exist_ok=True)
    job = {"state": state if run.returncode == 0 else "JOB_STATE_FAILED", "said": run.stderr}
    (JOBS / name).write_text(json.dumps(job))


def set_state(name: str, state: str) -> None:
    """Have a job end."""
    (JOBS / name).write_text(json.dumps({"state": state}))


def state(name: str) -> str:
    """Return how a job is."""
    return str(json.loads((JOBS / name).read_text())["state"])


def python(words: list[str]) -> None:
    """Take what `run_dataflow.sh` submits: it runs at once, and until its worker is deleted."""
    if words[0] == "-c" or "--dry_run=True" in words:
        return
    name = option(words, "job_name")
    ours = [here(w) for w in words[words.index("--images") :]]
    for flag in ("--num_workers", "--max_reads_per_second"):
        place = ours.index(flag)
        del ours[place : place + 2]
    run_pipeline(name, ["-m", "pipelines.coco", *ours], "JOB_STATE_RUNNING")


def storage(words: list[str]) -> None:
    """Copy, list and delete."""
    verb, paths = words[0], [Path(here(w)) for w in words[1:] if not w.startswith("--")]
    if verb == "rsync":
        shutil.copytree(*paths, dirs_exist_ok=True)
    elif verb == "rm":
        shutil.rmtree(paths[0])
    elif verb == "ls":
        print(*sorted(paths[0].iterdir()), sep="\n")


def dataflow(words: list[str]) -> None:
    """Tell of jobs, and cancel them."""
    if words[:2] == ["jobs", "list"]:
        names = [p.name for p in JOBS.glob(option(words, "filter").removeprefix("name="))]
        active = [n for n in names if state(n) == "JOB_STATE_RUNNING"]
        print(*(active if "--status=active" in words else names), sep="\n")
    elif words[:2] == ["jobs", "describe"]:
        print(os.environ.get("FAKE_CLOUD_STATE") or state(words[2]))
    elif words[:2] == ["jobs", "cancel"]:
        set_state(words[2], "JOB_STATE_CANCELLED")


def artifacts(words: list[str]) -> None:
    """Create and delete a repository."""
    path = MADE / f"repository {words[2]}"
    path.touch() if words[1] == "create" else path.unlink()


def compute(words: list[str]) -> None:
    """Tell of VMs; a job whose VM is deleted goes on, and ends."""
    if words[1] == "list":
        running = [p.name for p in JOBS.glob("*") if state(p.name) == "JOB_STATE_RUNNING"]
        print(*(f"{name}-11211200-ab12-harness-x1\tus-central1-a" for name in running), sep="\n")
    elif words[1] == "delete":
        set_state(words[2].partition("-1121")[0], "JOB_STATE_DONE")


def gcloud(words: list[str]) -> None:
    """Do as the real one would."""
    said = " ".join(words)
    fails = os.environ.get("FAKE_CLOUD_FAILS", "")
    if fails and fails in said:
        print("WARNING: of nothing\nERROR: quota exceeded", file=sys.stderr)
        sys.exit(1)
    for start, answer in ANSWERS.items():
        if tuple(words[: len(start)]) == start:
            print(answer)
            return
    group = {f.__name__: f for f in (storage, dataflow, artifacts, compute)}
    if words[0] in group:
        group[words[0]](words[1:])


if __name__ == "__main__":
    MADE.mkdir(parents=True, exist_ok=True)
    with open(CLOUD / "calls", "a") as calls:
        print(Path(sys.argv[0]).name, *sys.argv[1:], file=calls)
    {"gcloud": gcloud, "python": python}[Path(sys.argv[0]).name](sys.argv[1:])
