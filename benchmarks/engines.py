"""Time that each engine adds to a job that has next to nothing to do.

`.venv/bin/python benchmarks/engines.py` converts 30 tiny photos into 4 shards, on each engine in
turn, for a few rounds. Servers are started before the first round, as on a machine in use; only
Prism is always started by the command itself. `make engines` installs the engines.
"""

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.coco_command import check_committed, command, finish, start_coco, write_coco
from tests.conftest import coco_dict, jpeg_bytes
from tests.servers import started
from tests.test_engines import PRISM

IMAGES, SHARDS, ROUNDS = 30, 4, 3
JOB_S = 600
JOB_SERVICE = "apache_beam.runners.portability.local_job_service_main"


def engines(servers: ExitStack) -> dict[str, list[str]]:
    """Start the engines' servers, and yield the flags of each engine."""
    port, _ = servers.enter_context(
        started(lambda port: [sys.executable, "-m", JOB_SERVICE, "-p", str(port)])
    )
    service = ["--runner", "PortableRunner", "--job_endpoint", f"localhost:{port}"]
    return {
        "in process": [],
        "job service": [*service, "--environment_type", "LOOPBACK"],
        "Prism": ["--runner", "PrismRunner", "--prism_location", str(PRISM)],
    }


def wall_s(sources: tuple[Path, Path], out: Path, flags: list[str]) -> float:
    """Return the seconds of the whole command, which must succeed."""
    started_s = time.monotonic()
    run = finish(start_coco(*command(sources, out, "--num_shards", SHARDS, *flags)), JOB_S)
    taken_s = time.monotonic() - started_s
    assert run.code == 0, run.err
    check_committed(out)
    return taken_s


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as servers:
        folder, spec = Path(temporary), coco_dict(IMAGES)
        (folder / "images").mkdir()
        for place, image in enumerate(spec["images"]):
            (folder / "images" / image["file_name"]).write_bytes(jpeg_bytes(color=place))
        sources = folder / "images", write_coco(folder, spec)
        flags = engines(servers)
        taken: dict[str, list[float]] = {name: [] for name in flags}
        for number in range(ROUNDS):
            for name in flags:
                out = folder / f"{number}-{name}"
                taken[name].append(wall_s(sources, out, flags[name]))
                print(f"round {number + 1}, {name}: {taken[name][-1]:.1f} s", file=sys.stderr)
    print("| engine | wall s, median | least | most |\n|---|---|---|---|")
    for name, seconds in taken.items():
        median = statistics.median(seconds)
        print(f"| {name} | {median:.1f} | {min(seconds):.1f} | {max(seconds):.1f} |")


if __name__ == "__main__":
    main()
