"""Masks of every object: beam-tfrec against Model Garden's script, in interleaved rounds.

    python3.11 benchmarks/masks.py                     2,000 photos, 14,000 objects, 3 rounds

Prints Markdown; progress goes to standard error. On first use it sets up Model Garden's environment
from tests/model_garden/requirements.lock (2 GB), unless MODEL_GARDEN_PYTHON names a Python that has
it, and draws the photos. Standard library only, Linux only.
"""

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from contenders import (
    CONTENDERS,
    HERE,
    OUR_PACKAGES,
    OUR_PYTHON,
    PROJECT,
    SHARDS,
    Contender,
    Data,
    compile_all,
)
from figures import machine
from rounds import Results, run_rounds
from writing import TRIAL_IMAGES

LOCK = PROJECT / "tests/model_garden/requirements.lock"
VENV = HERE / ".venv-model-garden"
AT_LEAST = 2.0
"""Target: our images/s as a multiple of the script's."""
OURS = (
    *(
        str(OUR_PYTHON),
        "-m",
        "beam_tfrec.pipelines.coco",
        "--no_report",
        "--features",
        "boxes,masks",
    ),
    *("--images", "train={images}", "--annotations", "train={annotations}"),
    *("--output", "{out}", "--num_shards", str(SHARDS)),
)

CAT = (str(HERE / "peers/cat_files.py"), "{images}", "{annotations}", "{out}")


def model_garden_python() -> Path:
    """Return the Python that has Model Garden; install it unless MODEL_GARDEN_PYTHON is set."""
    if given := os.environ.get("MODEL_GARDEN_PYTHON"):
        return Path(given)
    python, stamp = VENV / "bin/python", VENV / ".installed"
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        print(f"setting up {VENV} (once, some minutes)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        install = "install --quiet --disable-pip-version-check --require-hashes --no-deps -r"
        command = [str(python), "-m", "pip", *install.split(), str(LOCK)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        stamp.write_text(digest)
    return python


def draw(python: Path, data_dir: Path, images: int) -> Data:
    """Draw photos once; later calls find them."""
    folder = data_dir / f"photos-{images}"
    script = [str(python), str(HERE / "generate.py"), "--out", str(folder)]
    subprocess.run([*script, "--images", str(images)], check=True, stdout=sys.stderr)
    return Data(folder, images)


def masks_table(results: Results, images: int) -> str:
    """Return the Markdown table of medians and the ratio of the rounds' rates."""
    rows = ["| | wall s | images/s | CPU s | peak MB |", "|---|---|---|---|---|"]
    for name in ("ours", "model_garden"):
        wall_s = results.median(name, "wall_s")
        if wall_s is None:
            rows.append(f"| {name} | failed: {results.failures.get(name, 'not run')} | | | |")
            continue
        cpu_s, peak_mb = results.median(name, "cpu_s"), results.median(name, "peak_mb")
        rows.append(
            f"| {name} | {wall_s:.2f} | {images / wall_s:,.0f} | {cpu_s:.1f} | {peak_mb:,.0f} |"
        )
    faster = results.ratio("model_garden", "ours")
    if faster is not None:
        verdict = "met" if faster >= AT_LEAST else "MISSED"
        rows += ["", f"Ours makes {faster:.2f} x the images/s (at least {AT_LEAST}: {verdict})."]
    return "\n".join(rows)


def main(argv: list[str] | None = None) -> int:
    """Measure and print; return 1 if one of the two failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=2000, help="photos (default 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3)")
    parser.add_argument("--limit", type=float, default=900, help="seconds a run (default 900)")
    parser.add_argument("--data-dir", type=Path, default=HERE / "data", help="for photos, outputs")
    args = parser.parse_args(argv)
    python = model_garden_python()
    theirs = (
        str(python),
        str(HERE / "peers/model_garden.py"),
        "{images}",
        "{annotations}",
        "{out}",
    )
    CONTENDERS["ours"] = Contender(OURS, exact=True)
    CONTENDERS["model_garden"] = Contender(theirs)
    # Warms the page cache.
    CONTENDERS["cat"] = Contender((sys.executable, *CAT), records=None)
    names = ["ours", "model_garden"]
    compile_all(OUR_PYTHON, *(PROJECT / name for name in OUR_PACKAGES))
    compile_all(python, HERE / "peers", python.parent.parent / "lib")
    data_dir = args.data_dir.resolve()
    data_dir.mkdir(parents=True, exist_ok=True)
    described = machine()
    trial = run_rounds(names, draw(python, data_dir, TRIAL_IMAGES), 1, args.limit)
    data = draw(python, data_dir, args.images)
    results = run_rounds(names, data, args.rounds, args.limit)
    print(f"{args.images:,} photos, {args.rounds} rounds, medians; {described}.\n")
    print(masks_table(results, args.images))
    return int(bool(trial.failures or results.failures))


if __name__ == "__main__":
    sys.exit(main())
