"""Plan a run by its command, then run it, and compare what was told with what was made."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.coco_command import Run, check_committed
from tests.pipeline_command import run_pipeline

Command = Callable[[Sequence[str]], None]
"""A pipeline's `run`."""
PASSED_THROUGH = 0.1  # of tiny photos and items, where a few bytes a record count
CONVERTED = 0.2


def everything_below(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return mtime and bytes of every file and folder."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [folder, *folder.rglob("*")]
    }


def plan_only(run: Command, folder: Path, *arguments: object) -> tuple[Run, dict[str, Any]]:
    """Plan by the command, which must leave a folder as it is; return how it ended, and the plan.

    The plan is empty where the command printed none.
    """
    before = everything_below(folder)
    ended = run_pipeline(run, *arguments, "--plan", "json")
    assert everything_below(folder) == before
    return ended, json.loads(ended.out) if ended.out.startswith("{") else {}


def plan_then_run(
    run: Command, folder: Path, *arguments: object, within: float = PASSED_THROUGH
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plan and run a command that has its output in `folder/out`; return plan and manifest.

    Args:
        run: the command.
        folder: that holds everything, and stays as it is while the run is planned.
        arguments: of the command, without its output.
        within: share by which shard sizes may be off.
    """
    asked = (*arguments, "--output", folder / "out")
    ended, plan = plan_only(run, folder, *asked)
    assert ended.code == 0, ended.err
    ended = run_pipeline(run, *asked)
    assert ended.code == 0, ended.err
    manifest = check_committed(folder / "out")
    check_plan(plan, manifest, within)
    return plan, manifest


def check_plan(plan: dict[str, Any], manifest: dict[str, Any], within: float) -> None:
    """Check that a plan told what a run has made."""
    assert sorted(plan["splits"]) == sorted(manifest["splits"])
    for name, made in manifest["splits"].items():
        told = plan["splits"][name]
        shards = [shard for shard in manifest["shards"] if shard["split"] == name]
        assert (told["listed"], told["planned"]) == (made["listed"], made["planned"])
        assert [records for records, _ in told["shards"]] == [s["planned"] for s in shards]
        for (_, size), shard in zip(told["shards"], shards, strict=True):
            assert abs(size - shard["bytes"]) <= within * shard["bytes"], (size, shard)
        assert abs(told["bytes"] - made["bytes"]) <= within * made["bytes"]
        assert told["images"] == made.get("images")
        early = made["rejected_before_planning"]
        assert sum(known["count"] for known in told["rejected"].values()) == early
        left_out = made["excluded"] + made.get("earlier", 0) + sum(made.get("skipped", {}).values())
        assert sum(told["left_out"].values()) == left_out
