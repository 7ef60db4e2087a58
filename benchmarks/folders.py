"""A folder of many tiny photos, through the whole command: seconds until the plan, and memory.

`.venv/bin/python benchmarks/folders.py [PHOTOS]` makes 100,000 JPEGs in ten class folders, once,
and converts them a few rounds. Equal parameters give equal photos.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measure import run_measured
from tests.conftest import jpeg_bytes

PHOTOS, CLASSES, SIDE_PX, SHARDS, ROUNDS = 100_000, 10, 16, 16, 3
PROJECT = Path(__file__).resolve().parent.parent
LIMIT_S = 900


def make_folder(folder: Path, photos: int) -> None:
    """Make the photos, unless they exist."""
    if folder.is_dir():
        return
    drawn = [jpeg_bytes(SIDE_PX, SIDE_PX, color=color) for color in range(256)]
    making = folder.with_suffix(".making")
    for number in range(CLASSES):
        (making / f"class{number}").mkdir(parents=True, exist_ok=True)
    for number in range(photos):
        path = making / f"class{number % CLASSES}" / f"{number:08}.jpg"
        path.write_bytes(drawn[number % len(drawn)])
    making.rename(folder)


def main() -> None:
    """Print a line per round."""
    photos = int(sys.argv[1]) if len(sys.argv) > 1 else PHOTOS
    sources = Path(tempfile.gettempdir()) / f"beam-tfrec-folders-{photos}"
    make_folder(sources, photos)
    for number in range(ROUNDS):
        out = sources.with_name(f"{sources.name}-out")
        shutil.rmtree(out, ignore_errors=True)
        flags = ["--images", str(sources), "--output", str(out), "--num_shards", str(SHARDS)]
        started_s = time.time()
        command = [sys.executable, "-m", "beam_tfrec.pipelines.folder", "--no_report", *flags]
        run = run_measured(command, PROJECT, LIMIT_S)
        assert run.exit_code == 0 and (out / "manifest.json").exists(), run.last_line
        planned_s = (out / "_plan.json").stat().st_mtime - started_s
        print(
            f"round {number + 1}: {photos} photos planned in {planned_s:.1f} s, all in"
            f" {run.wall_s:.1f} s, CPU {run.cpu_s:.1f} s, peak {run.peak_mb:.0f} MB"
        )
    shutil.rmtree(out)


if __name__ == "__main__":
    main()
