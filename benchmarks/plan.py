"""A large annotation file, through the whole command: seconds until the first shard is begun.

`python benchmarks/plan.py IMAGES ANNOTATIONS` starts the command, waits for the first shard's
anonymous file, and ends the command. It prints the seconds from the start of the process, with its
import of Beam, and the peak memory of all its processes until then. Make the input with
`generate.py --annotations-only --sparse-images`. Linux only.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measure import SAMPLE_EVERY_S, environment, kill_session, resident_bytes, tree

PROJECT = Path(__file__).resolve().parent.parent


def writes_shard(pid: int, out: Path) -> bool:
    """Return whether a process has an unnamed file open below a folder."""
    links = Path(f"/proc/{pid}/fd")
    try:
        opened = [os.readlink(link) for link in links.iterdir()]
    except OSError:
        return False  # it has ended, or closed one
    return any(path.startswith(f"{out}/") and path.endswith(" (deleted)") for path in opened)


def main() -> None:
    """Plan the data set that the arguments name; print seconds and peak memory."""
    images, annotations = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder).resolve() / "out"
        flags = ["--images", images, "--annotations", annotations, "--output", str(out)]
        command = [sys.executable, "-m", "beam_tfrec.pipelines.coco", "--no_report", *flags]
        pids: list[int] = []
        peak_bytes, started_s = 0, time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            # Before there is a plan, such a file only probes whether unnamed files work.
            while not ((out / "_plan.json").exists() and any(writes_shard(p, out) for p in pids)):
                if process.poll() is not None:
                    raise SystemExit(f"the command has ended with exit code {process.returncode}")
                time.sleep(SAMPLE_EVERY_S)
                pids = list(tree(process.pid))
                peak_bytes = max(peak_bytes, sum(map(resident_bytes, pids)))
            took_s = time.perf_counter() - started_s
        finally:
            kill_session(process.pid)
            process.wait()
    print(f"the first shard was begun after {took_s:.2f} s, peak {peak_bytes / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
