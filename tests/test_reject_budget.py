"""The budget of rejects, the printed command that accepts them, and `--exclude`."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.coco_command import (
    MakeCoco,
    Run,
    check_committed,
    check_visible,
    command,
    committed,
    counts,
    cut_off,
    digests,
    forbid_image_reads,
    rejected_of,
    run_coco,
    shard_paths,
)

pytestmark = pytest.mark.thorough


def accepting(run: Run) -> list[str]:
    """Return the arguments of the command that the budget's line prints."""
    command_line = run.err.splitlines()[-1].partition(" accept with ")[2]
    said = subprocess.run(["bash", "-c", f"printf '%s\\0' {command_line}"], stdout=subprocess.PIPE)
    words = os.fsdecode(said.stdout).split("\0")[:-1]
    assert words[:2] == ["beam-tfrec", "coco"], run.err
    flags = [word for word in words if word.startswith("--")]
    assert sorted({*flags}) == sorted(flags)  # each once
    return words[2:]


def test_printed_command_commits_without_reading_an_image(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, out = make_coco(12), tmp_path / "a 'quoted' $HOME; COUNT folder"
    for name in ("a000.jpg", "a005.jpg", "a009.jpg"):
        cut_off(sources[0] / name)
    (sources[0] / "a001.jpg").write_bytes(b"")
    first = run_coco(*command(sources, out, "--num_shards", 4, "--max_rejected", 3))
    assert (first.code, check_visible(out)) == (4, 4)
    assert not (out / "manifest.json").exists()
    shards = digests(out, "*.tfrec")
    forbid_image_reads(monkeypatch)
    monkeypatch.setenv("BEAM_TFREC_LOG", "DEBUG")  # names each shard
    second = run_coco(*accepting(first))
    assert second.code == 0, second.err
    assert (second.err.count("wrote"), second.err.count("kept")) == (0, 4)
    manifest = check_committed(out)
    assert digests(out, "*.tfrec") == shards
    assert manifest["splits"]["train"]["rejected"] == {"E-IMG-EMPTY": 1, "E-IMG-TRUNCATED": 3}


@pytest.mark.parametrize(
    ("bbox", "code", "shards"),
    [("1,1,5,5", "E-BOX-SHAPE", 0), ([64, 0, 5, 5], "E-BOX-OUTSIDE", 1)],
    ids=["known before the first shard", "known once shards are built"],
)
def test_a_data_set_without_any_label_is_over_budget(
    bbox: object, code: str, shards: int, make_coco: MakeCoco, tmp_path: Path
) -> None:
    def spoil(spec: dict) -> None:
        for annotation in spec["annotations"]:
            annotation["bbox"] = bbox

    out = tmp_path / "out"
    run = run_coco(*command(make_coco(3, edit=spoil), out, "--max_rejected", 1))
    assert run.code == 4
    said = f"6 of 6 annotations of train dropped (6 {code}), at most 1 allowed (first id 1"
    assert said in run.err.splitlines()[-1]
    assert len(shard_paths(out)) == shards and not (out / "manifest.json").exists()
    assert accepting(run)[-4:] == ["--max_rejected", "1", "--max_dropped", "6"]
    second = run_coco(*accepting(run))
    assert second.code == 0, second.err
    assert check_committed(out)["splits"]["train"]["annotations"]["dropped"] == {code: 6}


def test_exclude_leaves_the_data_set_of_the_others(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Shards are as exact as if the excluded samples had never been listed."""
    sources, first, second = make_coco(10), tmp_path / "first", tmp_path / "second"
    cut_off(sources[0] / "a002.jpg")
    (sources[0] / "a004.jpg").write_bytes(b"")
    flags = ("--num_shards", 4, "--max_rejected", 2)
    committed(sources, first, *flags)
    manifest = committed(sources, second, "--num_shards", 4, "--exclude", first / "rejected.jsonl")
    split = manifest["splits"]["train"]
    assert counts(second) == [2, 2, 2, 2]
    assert (split["listed"], split["excluded"], split["annotations"]["excluded"]) == (10, 2, 4)
    assert rejected_of(second) == []
    again = run_coco(*command(sources, second, *flags))
    assert again.ended == (5, "E-OUT-PLAN")  # without --exclude the plan differs
