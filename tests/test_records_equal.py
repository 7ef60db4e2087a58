"""A reshard, a merge and a relabelled copy give the shards of a fresh conversion."""

from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from beam_tfrec.pipelines import coco, records
from beam_tfrec.schemas.samples import Order
from tests.coco_command import digests, run_pipeline
from tests.conftest import draw
from tests.invariants import check_committed, files_of
from tests.small_runs import write_set

pytestmark = pytest.mark.slow

PHOTOS = 12
SPLITS = ["", "train=1,val=1", "train=8,val=3,test=1"]


class Sources(NamedTuple):
    """Photos, two data sets of all of them, and their halves in the order of the photos."""

    photos: Path
    annotations: Path
    whole: Path
    halves: tuple[Path, Path]


def run(command: object, output: Path, *flags: object) -> dict[str, str]:
    """Run a command, check all invariants, and return the SHA-256 of each shard."""
    ended = run_pipeline(command.run, *flags, "--no_report", "--output", output)  # type: ignore[attr-defined]
    assert ended.code == 0, ended.err
    check_committed(files_of(output))
    return digests(output, "*.tfrec")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    folder = tmp_path_factory.mktemp("sources")
    photos, annotations = write_set(folder, PHOTOS)
    in_order = ("--order", "input")
    run(
        coco,
        folder / "whole",
        *("--images", photos, "--annotations", annotations, "--num_shards", 2, *in_order),
    )
    keys = folder / "keys"
    keys.write_text("\n".join(str(number + 1) for number in range(PHOTOS // 2)))
    for half, flag in (("first", "--keys"), ("second", "--drop_keys")):
        run(records, folder / half, "--records", folder / "whole", flag, keys, *in_order)
    halves = folder / "first", folder / "second"
    return Sources(photos, annotations, folder / "whole", halves)


@st.composite
def options(draw_from: st.DrawFn) -> list[object]:
    """Flags of shards, order, seed and splits that fit together."""
    seed = draw_from(st.integers(0, 2**31))
    found: list[object] = ["--order", "input"]
    if draw_from(st.sampled_from(Order)) is Order.SHUFFLED:
        found = ["--seed", seed]
    size = draw_from(st.sampled_from(["--num_shards", "--records_per_shard", "--shard_size"]))
    most = 1 if size == "--num_shards" else 5
    shares = draw_from(st.sampled_from(SPLITS))
    if shares:
        found += ["--split_by", "hash", "--splits", shares, "--split_seed", seed % 7]
        found += ["--allow_empty"]
    else:
        most = PHOTOS
    number = draw_from(st.integers(1, most))
    found += [size, f"{number}kB" if size == "--shard_size" else number]
    if size == "--shard_size":
        found += ["--hosts", draw_from(st.integers(1, 3))]
    return found


@draw(12, phases=[Phase.generate])  # to shrink takes minutes, as an example takes seconds
@given(flags=options())
def test_copies_equal_a_fresh_conversion(
    flags: list[object], sources: Sources, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("out")
    annotated = ("--annotations", sources.annotations, *flags)
    fresh = run(coco, out / "fresh", "--images", sources.photos, *annotated)
    assert run(records, out / "reshard", "--records", sources.whole, *flags) == fresh
    assert run(records, out / "merge", "--records", *sources.halves, *flags) == fresh
    assert run(coco, out / "relabel", "--images", sources.whole, *annotated) == fresh
