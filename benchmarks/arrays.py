"""Convert a large `.npy` file, and measure time and memory.

`.venv/bin/python benchmarks/arrays.py [GB] [HEIGHT]` draws random uint8 items, HEIGHT x HEIGHT x 3
(224), with labels of 0 to 9 into a temporary folder (TMPDIR), which needs three times their size.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import Run, run_measured

PROJECT = Path(__file__).resolve().parent.parent
LIMIT_S = 1800.0


def draw(path: Path, items: int, height: int) -> None:
    """Write an array of random items, some at a time."""
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (items, height, height, 3))
    rng = np.random.default_rng(0)
    at_once = max(1, (64 << 20) // array[0].size)
    for start in range(0, items, at_once):
        part = array[start : start + at_once]
        part[:] = np.frombuffer(rng.bytes(part.size), np.uint8).reshape(part.shape)
        array.flush()


def convert(source: Path, output: Path, *flags: str) -> Run:
    """Run the pipeline in its own process."""
    command = [
        sys.executable,
        "-m",
        "beam_tfrec.pipelines.arrays",
        "--no_report",
        "--arrays",
        str(source),
    ]
    run = run_measured([*command, "--output", str(output), *flags], PROJECT, LIMIT_S)
    if run.exit_code:
        raise SystemExit(f"exit code {run.exit_code}: {run.last_line}")
    return run


def main(size_gb: float, height: int) -> None:
    """Measure a first and a second run, and print a row for each."""
    items = int(size_gb * 1e9) // (height * height * 3)
    with tempfile.TemporaryDirectory() as folder:
        images, labels = Path(folder, "images.npy"), Path(folder, "labels.npy")
        began = time.perf_counter()
        draw(images, items, height)
        np.save(labels, np.random.default_rng(1).integers(0, 10, items))
        print(f"{items} items drawn in {time.perf_counter() - began:.0f} s", file=sys.stderr)
        run = convert(images, Path(folder, "out"), "--label_array", "labels")
        print(
            f"| .npy, {size_gb:g} GB, {items} items | {run.wall_s:.1f} | {items / run.wall_s:,.0f}"
            f" | {run.cpu_s:.1f} | {run.peak_mb:.0f} |"
        )
        again = convert(images, Path(folder, "out"), "--label_array", "labels")
        print(f"| the same, already complete | {again.wall_s:.1f} | | | {again.peak_mb:.0f} |")


if __name__ == "__main__":
    main(float(sys.argv[1]) if sys.argv[1:] else 4, int(sys.argv[2]) if sys.argv[2:] else 224)
