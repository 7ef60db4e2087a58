"""Resize photos to 512 px as JPEG 90: beam-tfrec against img2dataset, in interleaved rounds.

Ours also converts annotations, and resizes their boxes.

    python3.11 benchmarks/convert.py                   1,500 photos, 3 rounds, one worker and two

Prints Markdown; progress goes to standard error. img2dataset reads the photos by file:// URLs; it
is installed into benchmarks/.venv-img2dataset unless IMG2DATASET_PYTHON names a Python that has it.
Standard library only, Linux only.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
from pathlib import Path

from contenders import HERE, OUR_PYTHON, PROJECT
from figures import machine
from measure import Run, run_measured

VENV = HERE / ".venv-img2dataset"
PINNED = "img2dataset==1.47.0"
WORKERS = (1, 2)
COMPARISONS = (
    ("ours, 1 worker", "img2dataset, 1 process"),
    ("ours, 2 workers", "img2dataset, 2 processes"),
    ("ours, 2 workers", "ours, 1 worker"),
)


def img2dataset_python() -> Path:
    """Return the Python that has img2dataset; install it unless IMG2DATASET_PYTHON is set."""
    if given := os.environ.get("IMG2DATASET_PYTHON"):
        return Path(given)
    python = VENV / "bin/python"
    if not (VENV / ".installed").exists():
        print(f"setting up {VENV} (once)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", PINNED], check=True, stdout=sys.stderr
        )
        (VENV / ".installed").touch()
    return python


def contenders(drawn: Path, urls: Path, out: Path, peer: Path) -> dict[str, list[str]]:
    """Return the command of each contender."""
    ours = [str(OUR_PYTHON), "-m", "beam_tfrec.pipelines.coco", "--images", str(drawn / "images")]
    ours += ["--annotations", str(drawn / "instances.json")]
    ours += ["--no_report", "--output", str(out), "--resize", "512", "--quality", "90", "--workers"]
    theirs = [str(peer), str(HERE / "peers/img2dataset_resize.py"), str(urls), str(out)]
    found: dict[str, list[str]] = {}
    for workers in WORKERS:
        plural = "" if workers == 1 else "s"
        found[f"ours, {workers} worker{plural}"] = [*ours, str(workers)]
        found[f"img2dataset, {workers} process{plural and 'es'}"] = [*theirs, str(workers)]
    return found


def count_images(out: Path) -> int:
    """Return how many images were written."""
    manifest = out / "manifest.json"
    if manifest.exists():
        splits = json.loads(manifest.read_text())["splits"]
        return sum(split["records"] for split in splits.values())
    names = (name for tar in out.glob("*.tar") for name in tarfile.open(tar).getnames())
    return sum(name.endswith(".jpg") for name in names)


def measured(command: list[str], out: Path, images: int, limit_s: float) -> Run:
    """Run one contender; a broken output ends the benchmark."""
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    run = run_measured(command, PROJECT, limit_s)
    written = count_images(out)
    shutil.rmtree(out, ignore_errors=True)
    if run.exit_code != 0 or written != images:
        raise SystemExit(f"{command}: exit code {run.exit_code}, {written} images; {run.last_line}")
    return run


def table(runs: dict[str, list[Run]], images: int) -> str:
    """Return the Markdown table of medians, and ratios within rounds."""
    rows = ["| | wall s | images/s | CPU ms an image | peak MB |", "|---|---|---|---|---|"]
    for name, found in runs.items():
        wall_s = statistics.median(run.wall_s for run in found)
        cpu_ms = statistics.median(run.cpu_s for run in found) / images * 1e3
        peak_mb = statistics.median(run.peak_mb for run in found)
        rows.append(
            f"| {name} | {wall_s:.1f} | {images / wall_s:,.0f} | {cpu_ms:.1f} | {peak_mb:,.0f} |"
        )
    rows.append("")
    for name, other in COMPARISONS:
        pairs = zip(runs[other], runs[name], strict=True)
        ratio = statistics.median(theirs.wall_s / ours.wall_s for theirs, ours in pairs)
        rows.append(f"{name}: {ratio:.2f} x the images/s of {other}.")
    return "\n".join(rows)


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1500, help="photos (default 1500)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3)")
    parser.add_argument("--limit", type=float, default=900, help="seconds a run (default 900)")
    parser.add_argument("--data-dir", type=Path, default=HERE / "data", help="for photos, outputs")
    args = parser.parse_args(argv)
    data_dir, peer = args.data_dir.resolve(), img2dataset_python()
    drawn = data_dir / f"photos-{args.images}"
    script = [str(OUR_PYTHON), str(HERE / "generate.py"), "--out", str(drawn)]
    subprocess.run([*script, "--images", str(args.images)], check=True, stdout=sys.stderr)
    urls = drawn / "urls.txt"
    photos = sorted((drawn / "images").iterdir())
    urls.write_text("".join(f"{photo.as_uri()}\n" for photo in photos))
    commands = contenders(drawn, urls, drawn.with_name(f"{drawn.name}-converted"), peer)
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for round_number in range(args.rounds):
        names = list(commands)
        shift = round_number % len(names)
        for name in names[shift:] + names[:shift]:
            print(f"round {round_number + 1}: {name}", file=sys.stderr)
            out = drawn.with_name(f"{drawn.name}-converted")
            runs[name].append(measured(commands[name], out, args.images, args.limit))
    print(f"{args.images:,} photos, {args.rounds} rounds, medians; {machine()}.\n")
    print(table(runs, args.images))
    return 0


if __name__ == "__main__":
    sys.exit(main())
