"""Payloads of a run in this process are kept in an unnamed file."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from beam_tfrec.pipelines import table
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.transforms.shuffle import run_spool
from beam_tfrec.transforms.shuffle.run_spool import RunSpool, close_spool


def sample(key: str, payload: bytes = b"") -> Sample:
    return Sample("train", key, 0, (), b"fields", (), payload)


@pytest.fixture
def spools() -> Iterator[Callable[[], RunSpool]]:
    numbers = itertools.count(10**9)
    yield lambda: RunSpool(next(numbers))
    for number in range(10**9, next(numbers)):
        close_spool(number)


@pytest.fixture
def spool(spools: Callable[[], RunSpool]) -> RunSpool:
    return spools()


def test_payloads_beyond_the_buffer_are_read_back(spool: RunSpool) -> None:
    parts = [bytes([n]) * size for n, size in enumerate([5, 2**20, 7, 2**19, 2**19, 3 * 2**20, 1])]
    places = [spool.put(part) for part in parts]
    assert [spool.get(place) for place in reversed(places)] == parts[::-1]
    later = spool.put(b"later")
    assert (spool.get(later), spool.get(places[0])) == (b"later", parts[0])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^E-IO-READONLY .*gone: .*give a --spool_dir"):
        RunSpool(10**9, str(tmp_path / "gone")).put(b"polygons")


def test_a_full_disk_is_one_line(spool: RunSpool) -> None:
    """`/dev/full` refuses every write."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    light = spool.store_payload(sample("1", b"x"))
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, run_spool._OPEN[spool.number]._file.fileno())
    os.close(full)
    for use in (
        lambda: spool.store_payload(sample("2", b"y" * 2**20)),
        lambda: spool.load_payload(light),
    ):
        full = r"^E-IO-NOSPACE .*: No space left on device, .* are free; give"
        with pytest.raises(RuntimeError, match=full):
            use()


@pytest.mark.thorough
def test_a_finished_command_frees_the_disk(tmp_path: Path) -> None:
    """Even while its pipeline waits for the garbage collector."""
    (tmp_path / "t.csv").write_text("a\n1\n")
    before = {*run_spool._OPEN}
    for number, shards in enumerate(("1", "1", "9")):
        output = str(tmp_path / f"out{number}")
        arguments = ["--table", str(tmp_path / "t.csv"), "--output", output, "--num_shards", shards]
        with pytest.raises(RuntimeError, match="E-ARG") if shards == "9" else nullcontext():
            table.run(arguments)
        assert {*run_spool._OPEN} <= before


@pytest.mark.parametrize("there", [b"abd", b"ab", b""])
def test_other_bytes_at_a_place_stop_the_run(spools: Callable[[], RunSpool], there: bytes) -> None:
    place, elsewhere = spools().put(b"abc"), spools()
    elsewhere.put(there)
    with pytest.raises(RuntimeError) as raised:
        elsewhere.get(place)
    assert str(raised.value) == (
        "E-IO-RETRIES temporary folder: 3 bytes at 0 of a temporary file have changed;"
        " check the disk"
    )


def test_another_process_reads_the_payloads(spools: Callable[[], RunSpool]) -> None:
    """Those still buffered in this process, too."""
    spool, theirs = spools(), spools()  # the second is the other process's copy
    light, place = spool.store_payload(sample("1", b"polygons")), spool.put(b"abc")
    theirs.adopt(os.dup(spool.written_file()))
    assert theirs.load_payload(light) == sample("1", b"polygons")
    assert theirs.get(place) == b"abc"
    close_spool(theirs.number)
    assert spool.get(place) == b"abc"
