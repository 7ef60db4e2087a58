"""A reshard, a merge and a relabelled copy give the shards of a fresh conversion."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from beam_tfrec.pipelines import coco, records
from tests.coco_command import digests, run_pipeline
from tests.conftest import draw
from tests.invariants import check_committed, files_of
from tests.small_runs import write_set

PHOTOS = 12


def shards(run: Callable[..., None], output: Path, *flags: object) -> dict[str, str]:
    """Run a command, check all invariants, and return the SHA-256 of each shard."""
    ended = run_pipeline(run, *flags, "--no_report", "--output", output)
    assert ended.code == 0, ended.err
    check_committed(files_of(output))
    return digests(output, "*.tfrec")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos, their annotations, and a data set of two shards in their order."""
    folder = tmp_path_factory.mktemp("made")
    photos, annotations = write_set(folder, PHOTOS)
    flags = ("--images", photos, "--annotations", annotations, "--num_shards", 2)
    shards(coco.run, folder / "whole", *flags, "--order", "input")
    return folder


@st.composite
def options(drawn: st.DrawFn) -> list[object]:
    """Flags of shards, order, seed and splits that fit together."""
    seed = drawn(st.integers(0, 2**31))
    found = drawn(st.sampled_from([["--order", "input"], ["--seed", seed]]))
    shares = drawn(st.sampled_from(["", "train=1,val=1", "train=8,val=3,test=1"]))
    if shares:
        found += ["--split_by", "hash", "--splits", shares, "--split_seed", seed % 7]
        found += ["--allow_empty"]
    number = drawn(st.integers(1, PHOTOS))
    sizes = [
        ["--num_shards", 1 if shares else number],  # a split may be empty or small
        ["--records_per_shard", number],
        ["--shard_size", f"{2 + number}kB", "--hosts", 1 if shares else 1 + number % 3],
    ]
    return [*found, *drawn(st.sampled_from(sizes))]


@pytest.mark.slow
@draw(12, phases=[Phase.generate])  # to shrink takes minutes, as an example takes seconds
@given(flags=options())
def test_copies_equal_a_fresh_conversion(
    flags: list[object], made: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out, old = tmp_path_factory.mktemp("out"), made / "whole"
    annotated = ("--annotations", made / "instances.json", *flags)
    fresh = shards(coco.run, out / "fresh", "--images", made / "images", *annotated)
    assert shards(records.run, out / "reshard", "--records", old, *flags) == fresh
    parts = [old / f"train-0000{number}-*" for number in range(2)]
    assert shards(records.run, out / "merge", "--records", *parts, *flags) == fresh
    assert shards(coco.run, out / "relabel", "--images", old, *annotated) == fresh
