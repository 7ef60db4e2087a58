"""`beam-tfrec verify`: exit codes and literal lines, and the same lines with `--runner`."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from beam_tfrec.pipelines.verify import VerifyConfig, verify, verify_elsewhere
from beam_tfrec.schemas.tfrecord import frame_record
from beam_tfrec.transforms.verify import Around, Findings, gather
from tests.coco_command import PROJECT
from tests.conftest import jpeg_bytes
from tests.memory_runs import Sources, make_sources, run_on
from tests.memory_store import MemoryStore, Moment, Process, Step
from tests.test_verify_data_set import FAULTS, edit, flip, whole
from tests.test_verify_files import example, printed_by, verified, write

__all__ = ["whole"]
PRISM = PROJECT / ".tools" / "prism"
TIME = re.compile(r"in \d+\.\d s( \(\d+\.\d\d GB/s\))?")
RECORD = b"".join(frame_record([bytes.fromhex("0a0c0a0a0a016112051a030a0101")]))


def run(
    *arguments: object, program: str = "beam_tfrec.pipelines.verify"
) -> tuple[int, list[str], str]:
    found = subprocess.run(
        [sys.executable, "-m", program, *map(str, arguments)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return found.returncode, found.stdout.splitlines(), found.stderr


def test_exit_codes_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(2 * RECORD)
    code, lines, err = run("verify", path, program="beam_tfrec.pipelines.cli")
    assert (code, err) == (0, "")
    assert lines[:2] == ["features of 2 Examples:", "  a  int64  in 2 of 2  1 value"]
    assert re.match(r"1 file, 2 records, 60 B read in 0\..*: all is well$", lines[2])
    path.write_bytes(RECORD[:-1] + b"\0" + RECORD)
    code, lines, err = run(path)
    assert (code, err) == (7, "")
    assert lines[0].startswith(f"E-VER-CRC {path} record 0 at byte 0: its data's checksum is ")
    assert lines[-1].endswith(": 1 finding")
    code, lines, err = run("a" * 300 + ".tfrecord")
    assert (code, lines) == (6, []) and err.startswith("E-IO-READONLY ./aaa")


USAGE = {
    "an unknown flag": (("a", "--shallow"), "unrecognized arguments: --shallow"),
    "a missing file": (("no/such",), "E-ARG no/such: no such file; give a finished data set"),
    "a folder without records": ((PROJECT / "docs",), "has no manifest.json and no TFRecord files"),
    "workers": (("a", "--workers", "0"), "workers must be at least 1, got 0"),
    "sources of files": ((__file__, "--sources", "b"), "sources must come with one complete"),
    "an empty source": ((__file__, "--sources", "val="), "sources of val must not be empty"),
}


@pytest.mark.parametrize(("arguments", "said"), USAGE.values(), ids=USAGE)
def test_wrong_usage_is_exit_code_2(arguments: tuple[object, ...], said: str) -> None:
    code, lines, err = run(*arguments)
    assert (code, lines) == (2, [])
    assert err.startswith("E-ARG ") and said in err and len(err.splitlines()) == 1


# --- as a Beam pipeline ---


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A folder with `images` and the data set `out`, to be damaged."""
    shutil.copytree(whole, tmp_path / "set")
    return tmp_path / "set"


def here(*paths: Path, **config: Any) -> tuple[bool, list[str]]:
    found, lines = verified(*paths, **config)
    return found, without_time(lines)


def elsewhere(*arguments: object) -> tuple[bool, list[str]]:
    given = ["--runner", "FnApiRunner", *map(str, arguments)]
    found, lines = printed_by(verify_elsewhere, given)
    return found, without_time(lines)


def without_time(lines: list[str]) -> list[str]:
    return [TIME.sub("", line) for line in lines]


def bits_flipped(out: Path) -> None:
    for path in out.glob("*.tfrec"):
        flip(path, 200)


PLANTED: Mapping[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "bits flipped in each shard": bits_flipped,
    "another seed": lambda out: edit(
        out / "manifest.json", lambda m: m["plan"]["options"].update(seed="7")
    ),
    "files are gone": FAULTS["files are gone"][0],
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_planted_faults_are_found_as_in_process(
    plant: Callable[[Path], object], folder: Path, tmp_path: Path
) -> None:
    plant(folder / "out")
    flags = ("--job_name", "x=y", "--temp_location", tmp_path)  # values, not paths to verify
    found, printed = elsewhere(*flags, folder / "out", "--deep")
    assert (found, printed) == here(folder / "out", deep=True)
    assert found is (plant is not PLANTED["nothing"])


def test_sources_and_several_paths_in_one_job(folder: Path, tmp_path: Path) -> None:
    out, images = folder / "out", folder / "images"
    flip(images / "a001.jpg", 100)
    write(tmp_path / "a.tfrecord", [example(image=[jpeg_bytes(8, 8)[:-20]]), example(image=[b""])])
    write(tmp_path / "b.tfrecord", [example(image=[jpeg_bytes(8, 8)], x=[1]), b"no Example"])
    write(tmp_path / "c.tfrecord.gz", [example(x=[1.5])], "GZIP")
    several = (out, tmp_path / "b.tfrecord", tmp_path)
    found, printed = elsewhere(*several, "--sources", images)
    assert (found, printed) == here(*several, sources={"": (str(images),)})
    codes = {line.split()[0] for line in printed if line.startswith("E-")}
    assert codes == {"E-VER-SOURCE", "E-VER-IMAGE", "E-VER-EXAMPLE"}
    assert "10 source files compared with the index" in printed
    assert any(
        line.startswith("2 records of other bytes than Examples: the first") for line in printed
    )


def test_lost_results_are_an_error() -> None:
    around = Around(VerifyConfig(("a",)), Findings(), [], tasks=2)
    with pytest.raises(RuntimeError, match="1 results of 2 tasks: run again"):
        gather(around, [("a", Findings(files=1))])


NO_JOBS = {
    "threads": (("a", "--workers", "2"), "workers must come without --runner, got 2"),
    "a template": (
        ("gs://b/a", "--template_location", "gs://b/t"),
        "template_location must come with --runner DataflowRunner",
    ),
    "no job service": (("a", "--job_endpoint", "localhost:1"), "job_endpoint must come with"),
    "a missing file": (("no/such",), "E-ARG no/such: no such file; give a finished data set"),
    "no folder for the result": (
        (__file__, "--temp_location", "no/such"),
        "E-ARG no/such: no such folder; give the path of a folder",
    ),
}


@pytest.mark.parametrize(("arguments", "said"), NO_JOBS.values(), ids=NO_JOBS)
def test_wrong_usage_is_refused_before_a_job(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=re.escape(said)):
        verify_elsewhere(["--runner", "DirectRunner", *arguments])


@pytest.mark.slow
@pytest.mark.parametrize("deep", [(), ("--deep",)], ids=["local", "deep"])
def test_prism_prints_the_same_lines(deep: tuple[str, ...], folder: Path) -> None:
    """Its workers get all their objects as bytes."""
    if not PRISM.exists():
        pytest.skip("no .tools/prism; `make engines` builds it, with Go")
    out = folder / "out"
    given = (out, "--sources", folder / "images", *deep)
    prism = ("--runner", "PrismRunner", "--prism_location", PRISM)
    for plant, code in ((lambda _: None, 0), (bits_flipped, 7)):
        plant(out)
        here, there = run(*given), run(*given, *prism)
        assert (here[0], here[2]) == (code, "")
        assert (there[0], *map(without_time, there[1:2])) == (code, without_time(here[1]))


# --- in a store that lists checksums ---


@pytest.fixture(scope="module")
def sources(memory_served: None) -> Sources:
    return make_sources()


@pytest.fixture
def store(sources: Sources) -> MemoryStore:
    found = sources.store.copy()
    run_on(found.start())
    return found


def printed(process: Process, *, deep: bool = False) -> list[str]:
    root = f"{process.uri}/out"
    return [line.replace(root, "OUT") for line in verified(root, deep=deep, workers=2)[1]]


@pytest.mark.parametrize("deep", [False, True])
def test_only_deep_reads_shards(deep: bool, store: MemoryStore) -> None:
    process = store.start()
    *notes, last = printed(process, deep=deep)
    note = "sizes and checksums from the store's listing were compared: --deep reads all bytes"
    assert notes == ([] if deep else [note])
    assert last.startswith(f"4 files, 9 records, {'' if deep else '0 B read in '}")
    read = [step.name for step in process.steps if step.operation == "read"]
    assert sum(name.endswith(".tfrec") for name in read) == (4 if deep else 0)


@pytest.mark.parametrize("deep", [False, True])
def test_a_changed_shard_is_found_by_its_checksum_and_nothing_is_written(
    deep: bool, store: MemoryStore
) -> None:
    (name,) = (name for name in store.files("out/") if name.startswith("train-00002"))
    data = bytearray(store.files("out/")[name])
    data[20] ^= 1
    store.put(f"out/{name}", bytes(data))
    before, process = store.files(), store.start()
    found = printed(process, deep=deep)
    assert found[0].startswith(f"E-VER-CRC OUT/{name}: its store lists CRC-32C ")
    of_record = [line for line in found if line.startswith(f"E-VER-CRC {name} record 0 (key ")]
    assert len(of_record) == deep
    assert store.files() == before
    assert {step.operation for step in process.steps} <= {"list", "read", "stat"}


def test_a_store_that_fails_is_not_damage(store: MemoryStore) -> None:
    def fail(step: Step, now: Moment) -> None:
        if step.operation == "read" and now is Moment.BEFORE and "index" in step.name:
            raise RuntimeError("E-IO-RETRIES out: kept failing; run again")

    with pytest.raises(RuntimeError, match="E-IO-RETRIES"):
        verify(VerifyConfig((f"{store.start(fail).uri}/out",)))
