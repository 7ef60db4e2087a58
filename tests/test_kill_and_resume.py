"""The command as a process: killed, interrupted, cut off from the network; it resumes."""

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from tests import children
from tests.coco_command import (
    MakeCoco,
    Run,
    check_committed,
    check_visible,
    command,
    finish,
    run_coco,
    shard_paths,
    spawn_coco,
    start_coco,
    write_coco,
)
from tests.conftest import coco_dict, jpeg_bytes, rounds
from tests.invariants import check_output, data_files, files_of

NUM_IMAGES, NUM_SHARDS = 300, 150
INTERRUPTED = re.compile(r"interrupted; (\d+) of (\d+) shards done; run again to resume")


class Job(NamedTuple):
    """A conversion that takes a while: many small shards, each made durable."""

    arguments: list[object]
    undisturbed: Mapping[str, bytes]
    run_s: float

    def into(self, out: Path) -> list[object]:
        return [*self.arguments, "--output", out]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    images = folder / "images"
    images.mkdir()
    spec, noise = coco_dict(NUM_IMAGES), random.Random(0)
    for place, image in enumerate(spec["images"]):
        data = jpeg_bytes(color=place) + noise.randbytes(3000)  # bytes after the end are kept
        (images / image["file_name"]).write_bytes(data[:500] if place in (7, 70) else data)
    annotations = write_coco(folder, spec)
    arguments: list[object] = [
        *("--images", images, "--annotations", annotations),
        *("--no_report", "--num_shards", NUM_SHARDS, "--max_rejected", 2),
        *("--workers", 2),  # a second process, even on a machine of one core
    ]
    started_s = time.monotonic()
    run = spawn_coco(*arguments, "--output", folder / "out")
    assert run.code == 0, run.err
    check_committed(folder / "out")
    return Job(arguments, files_of(folder / "out"), time.monotonic() - started_s)


def wait_for_shards(process: subprocess.Popen[str], out: Path, least: int) -> None:
    """Wait for this many visible shards; each must have the size in its receipt."""
    seen: set[Path] = set()
    while process.poll() is None and len(seen) < least:
        for path in set(shard_paths(out)) - seen:
            seen.add(path)
            receipt = (out / "_receipts" / f"{path.name.rpartition('-')[0]}.json").read_text()
            assert path.stat().st_size == json.loads(receipt)["bytes"]
        time.sleep(0.002)


def kill(process: subprocess.Popen[str]) -> Run:
    """Kill a run, and wait until its builder processes have ended, too."""
    builders = children.builders_of(process.pid)
    process.kill()
    run = finish(process)
    children.wait_until_gone(builders)
    return run


def check_resumes(job: Job, out: Path) -> None:
    """Check what a killed run left, run again, and compare every byte."""
    left = files_of(out)
    check_output(left, job.undisturbed)
    visible = len(data_files(left))
    with mock.patch.dict(os.environ, BEAM_TFREC_LOG="DEBUG"):  # names each shard
        run = run_coco(*job.into(out))
    assert run.code == 0, run.err
    if "already complete" not in run.out:
        assert run.err.count("kept ") == visible
        assert run.err.count("wrote ") == NUM_SHARDS - visible
    assert check_output(files_of(out), job.undisturbed)


def test_a_killed_builder_process_ends_the_run(job: Job, tmp_path: Path) -> None:
    process = start_coco(*job.into(tmp_path / "out"))
    wait_for_shards(process, tmp_path / "out", 1)
    (builder,) = children.builders_of(process.pid)
    os.kill(builder, signal.SIGKILL)
    run = finish(process)
    assert run.ended == (6, "E-IO-LIMIT"), run.err
    assert "a builder process was ended by signal 9 (Killed)" in run.fault
    check_resumes(job, tmp_path / "out")


@pytest.mark.parametrize("seed", rounds(few=1, many=8))
def test_runs_killed_again_and_again_make_progress(seed: int, job: Job, tmp_path: Path) -> None:
    """Each run keeps the shards that earlier runs finished."""
    delays, visible = random.Random(seed), [0]
    for _ in range(6):
        process = start_coco(*job.into(tmp_path / "out"))
        time.sleep(delays.uniform(0.7, max(0.8, job.run_s)))
        kill(process)
        visible.append(check_visible(tmp_path / "out"))
    assert visible == sorted(visible)
    check_resumes(job, tmp_path / "out")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_an_interrupted_run_can_be_resumed(
    number: signal.Signals, code: int, job: Job, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = start_coco(*job.into(tmp_path / "out"), TMPDIR=str(temporary))
    wait_for_shards(process, tmp_path / "out", 40)
    process.send_signal(number)
    run = finish(process)
    assert (run.code, run.out) == (code, "")
    assert list(temporary.iterdir()) == []
    lines = [line for line in run.err.splitlines() if line]
    assert len(lines) == 1, run.err
    done, planned = map(int, INTERRUPTED.fullmatch(lines[0]).groups())
    assert planned == NUM_SHARDS
    assert 38 <= done <= check_visible(tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()
    check_resumes(job, tmp_path / "out")


NO_NETWORK = """
import http.client, os, socket, urllib.request

def refuse(*args, **kwargs):
    with open(os.environ["NETWORK_LOG"], "a") as log:
        print(args, file=log)
    raise OSError("no network in this test")

socket.socket.connect = socket.socket.connect_ex = socket.socket.sendto = refuse
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = refuse
http.client.HTTPConnection.connect = urllib.request.urlopen = urllib.request.urlretrieve = refuse
"""


@pytest.mark.thorough
def test_needs_no_network(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Nothing even tries to download, look up or report anything."""

    def with_urls(spec: dict) -> None:
        for image in spec["images"]:
            image["coco_url"] = image["flickr_url"] = "http://127.0.0.1:9/never"

    sources, log = make_coco(4, edit=with_urls), tmp_path / "network.log"
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(NO_NETWORK)
    environment = {"PYTHONPATH": str(tmp_path / "site"), "NETWORK_LOG": str(log)}
    run = spawn_coco(*command(sources, tmp_path / "out"), **environment)
    assert run.code == 0, run.err
    assert not log.exists(), log.read_text()
    check_committed(tmp_path / "out")
