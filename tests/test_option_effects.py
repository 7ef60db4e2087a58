"""Every flag of `python -m pipelines.coco`: a test that shows its effect."""

import datetime
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google.auth
import pytest

from pipelines import coco
from tests.coco_command import (
    MakeCoco,
    command,
    committed,
    counts,
    digests,
    examples,
    manifest_of,
    rejected_of,
    run_coco,
    shard_paths,
    snapshot,
    source_ids,
    value,
)
from tests.conftest import jpeg_bytes
from tests.dataflow_stand_in import DataflowStandIn
from tests.gcs_stand_in import GcsStandIn, Kind
from tests.small_images import chunk, idat, ihdr, png
from tests.turned_images import as_stored, oriented
from transforms import build_records, build_shard
from transforms.storage import Access, gcs
from transforms.storage.local import LocalStorage

OUR_FLAGS = sorted(set(coco.COMMAND.parser()._option_string_actions) - {"-h", "--help"})
SHOWN: set[str] = set()


def shows(*flags: str) -> Callable:
    """Note which flags' effects a test shows."""
    SHOWN.update(flags)
    return lambda test: test


@shows("--images", "--annotations", "--output", "--split")
def test_sources_per_split(make_coco: MakeCoco, tmp_path: Path) -> None:
    train, val = make_coco(5), make_coco(3, name="val")
    run = run_coco(
        *("--images", f"train={train[0]}", f"val={val[0]}"),
        *("--annotations", f"train={train[1]}", "--annotations", f"val={val[1]}"),
        *("--output", tmp_path / "both"),
    )
    assert run.code == 0, run.err
    assert [p.name for p in shard_paths(tmp_path / "both")] == [
        "train-00000-of-00001-5.tfrec",
        "val-00000-of-00001-3.tfrec",
    ]
    committed(val, tmp_path / "bare")
    assert counts(tmp_path / "bare", "train") == [3]
    committed(val, tmp_path / "named", "--split", "holdout")
    assert [p.name for p in shard_paths(tmp_path / "named")] == ["holdout-00000-of-00001-3.tfrec"]


@shows("--string_ids")
def test_string_ids(make_coco: MakeCoco, tmp_path: Path) -> None:
    def name_by_text(spec: dict) -> None:
        for entry in spec["images"]:
            entry["id"] = f"img{entry['id']}"
        for entry in spec["annotations"]:
            entry["image_id"] = f"img{entry['image_id']}"

    sources = make_coco(2, edit=name_by_text)
    refused = run_coco(*command(sources, tmp_path / "out"))
    assert refused.ended == (3, "E-ANN-TYPE")
    assert "give --string_ids" in refused.fault
    committed(sources, tmp_path / "out", "--string_ids")
    ids = {value(example, "image/source_id")[0] for example in examples(tmp_path / "out")}
    assert ids == {b"img1", b"img2"}


@shows("--split_by", "--splits", "--group_by", "--split_seed")
def test_drawn_splits(make_coco: MakeCoco, tmp_path: Path) -> None:
    """More is in `tests/test_coco_splits.py`."""

    def add_scenes(spec: dict) -> None:
        for entry in spec["images"]:
            entry["scene"] = entry["id"] // 4

    def drawn(name: str, *flags: object) -> set[int]:
        by_hash = ("--split_by", "hash", "--splits", "train=2,val=1")
        committed(sources, tmp_path / name, *by_hash, *flags)
        assert sorted(source_ids(tmp_path / name)) == list(range(1, 25))
        return set(source_ids(tmp_path / name, "val"))

    sources = make_coco(24, edit=add_scenes)
    val, otherwise = drawn("by key"), drawn("otherwise", "--split_seed", 1)
    by_scene = drawn("by scene", "--group_by", "scene")
    assert 0 < len(val) < 24 and len({*map(frozenset, (val, otherwise, by_scene))}) == 3
    assert {n for n in range(1, 25) if n // 4 in {key // 4 for key in by_scene}} == by_scene


def licensed(spec: dict) -> None:
    """Two licenses, small boxes of the third image, none on the last."""
    for place, entry in enumerate(spec["images"]):
        entry["license"] = 4 + place % 2
    for entry in spec["annotations"]:
        if entry["image_id"] == 3:
            entry["bbox"] = [1, 1, 30, 3]
    spec["annotations"] = [a for a in spec["annotations"] if a["image_id"] != 5]


FILTERS: dict[str, tuple[list[str], list[int], dict, dict]] = {
    "--licenses": (["--licenses", "5,7"], [2, 4], {"license": 3}, {"license": 4}),
    "--skip_crowd": (["--skip_crowd"], [1, 2, 3, 4, 5], {}, {"crowd": 4}),
    "--min_box_px": (["--min_box_px", "3.5"], [1, 2, 3, 4, 5], {}, {"small_box": 2}),
    "--skip_unannotated": (["--skip_unannotated"], [1, 2, 3, 4], {"unannotated": 1}, {}),
}


@shows("--licenses", "--skip_crowd", "--min_box_px", "--skip_unannotated")
@pytest.mark.parametrize(("flags", "left", "images", "annotations"), FILTERS.values(), ids=FILTERS)
def test_filters(
    flags: list[str],
    left: list[int],
    images: dict,
    annotations: dict,
    make_coco: MakeCoco,
    tmp_path: Path,
) -> None:
    """What is left out is counted, and a plan with another filter is another plan."""
    sources, out = make_coco(5, edit=licensed), tmp_path / "out"
    split = committed(sources, out, *flags)["splits"]["train"]
    assert sorted(source_ids(out)) == left
    assert split.get("skipped", {}) == images
    assert split["annotations"].get("skipped", {}) == annotations
    assert run_coco(*command(sources, out)).ended == (5, "E-OUT-PLAN")


@shows("--orphans")
def test_orphans(make_coco: MakeCoco, tmp_path: Path) -> None:
    def orphan(spec: dict) -> None:
        spec["annotations"][0]["image_id"] = 99

    sources = make_coco(2, edit=orphan)
    assert run_coco(*command(sources, tmp_path / "out")).ended == (3, "E-ANN-ORPHAN")
    assert run_coco(*command(sources, tmp_path / "out"), "--orphans", "stop").code == 3
    manifest = committed(sources, tmp_path / "out", "--orphans", "drop")
    assert manifest["splits"]["train"]["annotations"]["dropped"] == {"E-ANN-ORPHAN": 1}


@shows("--orientation")
def test_orientation(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Of one image, which is annotated as it is stored."""
    sources = make_coco(2)
    (sources[0] / "a001.jpg").write_bytes(oriented(jpeg_bytes(64, 48), 6))
    committed(sources, tmp_path / "kept", "--orientation", "keep")
    committed(sources, tmp_path / "upright", "--orientation", "upright")
    sizes = {
        name: sorted(
            value(example, "image/width") + value(example, "image/height")
            for example in examples(tmp_path / name)
        )
        for name in ("kept", "upright")
    }
    assert sizes == {"kept": [[64, 48], [64, 48]], "upright": [[48, 64], [64, 48]]}


@shows("--resize", "--resize_mode", "--reencode", "--quality", "--color")
@pytest.mark.parametrize(
    ("flags", "size", "file_format", "channels"),
    [
        (["--resize", "32"], (32, 24), b"jpeg", 3),
        (["--resize", "16x12"], (16, 12), b"jpeg", 3),
        (["--resize", "max:20"], (20, 15), b"jpeg", 3),
        (["--resize", "32", "--resize_mode", "fill"], (32, 32), b"jpeg", 3),
        (["--resize", "32x10", "--resize_mode", "stretch"], (32, 10), b"jpeg", 3),
        (["--resize", "32x12", "--resize_mode", "fit"], (16, 12), b"jpeg", 3),
        (["--reencode", "png"], (64, 48), b"png", 3),
        (["--color", "gray"], (64, 48), b"jpeg", 1),
        (["--color", "rgb", "--reencode", "jpeg", "--quality", "5"], (64, 48), b"jpeg", 3),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_conversion(
    flags: list[str],
    size: tuple[int, int],
    file_format: bytes,
    channels: int,
    make_coco: MakeCoco,
    tmp_path: Path,
) -> None:
    sources, out = make_coco(1), tmp_path / "out"
    committed(sources, out, *flags)
    (example,) = examples(out)
    assert value(example, "image/width") + value(example, "image/height") == list(size)
    assert value(example, "image/format") == [file_format]
    (data,) = value(example, "image/encoded")
    pixels = as_stored(data)
    assert pixels.shape[1::-1] == size and (pixels.shape[2:] or (1,)) == (channels,)
    if "--quality" in flags:
        assert len(data) < min(path.stat().st_size for path in sources[0].iterdir())
    assert run_coco(*command(sources, out)).ended == (5, "E-OUT-PLAN")


@shows("--panoptic_images")
def test_panoptic_images(make_coco: MakeCoco, tmp_path: Path) -> None:
    def make_panoptic(spec: dict) -> None:
        segment = {"id": 5, "category_id": 1, "bbox": [0, 0, 2, 2], "area": 4, "iscrowd": 0}
        annotation = {"image_id": 1, "file_name": "a.png", "segments_info": [segment]}
        spec["annotations"] = [annotation]
        for category in spec["categories"]:
            category["isthing"] = 1

    sources = make_coco(1, edit=make_panoptic, width=2, height=2)
    refused = run_coco(*command(sources, tmp_path / "out"))
    assert refused.code == 2 and "--panoptic_images" in refused.fault
    (tmp_path / "panoptic").mkdir()
    pixels = png(ihdr(2, 2, 8, 2), idat(2 * (b"\0" + 2 * b"\5\0\0")))
    (tmp_path / "panoptic" / "a.png").write_bytes(pixels)
    committed(sources, tmp_path / "out", "--panoptic_images", tmp_path / "panoptic")
    (example,) = examples(tmp_path / "out")
    (mask,) = value(example, "image/panoptic/category_mask")
    assert as_stored(mask).tolist() == [[1, 1], [1, 1]]


@shows("--check")
def test_check(make_coco: MakeCoco, tmp_path: Path) -> None:
    """A PNG whose chunks are right, checksums too, and whose pixels are no zlib stream."""
    sources = make_coco(3, width=8, height=8, objects=0)
    (sources[0] / "a001.jpg").write_bytes(png(ihdr(8, 8), chunk(b"IDAT", b"no zlib")))
    assert committed(sources, tmp_path / "walked")["splits"]["train"]["records"] == 3
    run = run_coco(*command(sources, tmp_path / "decoded"), "--check", "decode")
    assert run.code == 4
    assert [line["code"] for line in rejected_of(tmp_path / "decoded")] == ["E-IMG-DAMAGED"]


@shows("--layout", "--features", "--category_ids")
def test_what_an_example_holds(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(2, objects=1, edit=lambda spec: spec["categories"].reverse())
    for flags, key, labels in (
        ("--features boxes", "image/object/class/label", [1]),
        ("--layout tfds", "objects/label", [0]),
        ("--layout keras --category_ids contiguous", "category_id", [1]),
    ):
        committed(sources, tmp_path / flags, *flags.split())
        assert [value(example, key) for example in examples(tmp_path / flags)] == [labels] * 2
    refused = run_coco(*command(sources, tmp_path / "out"), "--features", "boxes,captions")
    assert refused.ended == (2, "E-ARG")


@shows("--on_size_mismatch")
def test_on_size_mismatch(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Image 1 is annotated at twice its size, image 2 at another aspect."""

    def annotate_elsewhere(spec: dict) -> None:
        spec["images"][0] |= {"width": 128, "height": 96}
        spec["images"][1] |= {"width": 64, "height": 24}
        spec["annotations"][0]["bbox"] = spec["annotations"][2]["bbox"] = [8.0, 6.0, 16.0, 12.0]

    sources = make_coco(4, edit=annotate_elsewhere, objects=1)
    spec = json.loads(sources[1].read_text())
    spec["annotations"][0]["bbox"] = spec["annotations"][1]["bbox"] = [8.0, 6.0, 16.0, 12.0]
    sources[1].write_text(json.dumps(spec))
    found = {}
    for policy in ("auto", "reject", "trust_image", "trust_json"):
        out = tmp_path / policy
        run = run_coco(
            *command(sources, out), "--on_size_mismatch", policy, "--max_rejected", "100%"
        )
        assert run.code == 0, run.err
        found[policy] = {
            int(value(example, "image/source_id")[0]): tuple(
                value(example, f"image/object/bbox/{edge}")[0]
                for edge in ("xmin", "ymin", "xmax", "ymax")
            )
            for example in examples(out)
            if value(example, "image/source_id")[0] in (b"1", b"2")
        }
    assert found == {
        "auto": {1: (0.0625, 0.0625, 0.1875, 0.1875)},
        "reject": {},
        "trust_image": {1: (0.125, 0.125, 0.375, 0.375), 2: (0.125, 0.125, 0.375, 0.375)},
        "trust_json": {1: (0.0625, 0.0625, 0.1875, 0.1875), 2: (0.125, 0.25, 0.375, 0.75)},
    }
    default = committed(sources, tmp_path / "default", "--max_rejected", "1")
    assert default["splits"] == manifest_of(tmp_path / "auto")["splits"]
    rejected = {line["key"]: line["detail"] for line in rejected_of(tmp_path / "auto")}
    assert rejected == {"2": "64 x 48 in the file, 64 x 24 annotated"}


@shows("--shard_size")
def test_shard_size(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(20)
    one = committed(sources, tmp_path / "default")
    (shard,) = one["shards"]
    committed(sources, tmp_path / "small", "--shard_size", f"{shard['bytes'] // 3}B")
    assert counts(tmp_path / "small") in ([5] * 4, [7, 7, 6])
    too_small = run_coco(*command(sources, tmp_path / "tiny"), "--shard_size", "100B")
    assert too_small.ended == (2, "E-ARG")
    assert "--shard_size" in too_small.fault


@shows("--num_shards")
def test_num_shards(make_coco: MakeCoco, tmp_path: Path) -> None:
    train, val = make_coco(7), make_coco(3, name="val")
    both = [
        *("--images", f"train={train[0]}", f"val={val[0]}"),
        *("--annotations", f"train={train[1]}", f"val={val[1]}"),
    ]
    assert run_coco(*both, "--output", tmp_path / "all", "--num_shards", 3).code == 0
    assert (counts(tmp_path / "all", "train"), counts(tmp_path / "all", "val")) == (
        [3, 2, 2],
        [1, 1, 1],
    )
    each = ["--num_shards", "train=4", "val=1"]
    assert run_coco(*both, "--output", tmp_path / "each", *each).code == 0
    assert (counts(tmp_path / "each", "train"), counts(tmp_path / "each", "val")) == (
        [2, 2, 2, 1],
        [3],
    )


@shows("--records_per_shard")
def test_records_per_shard(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(7)
    committed(sources, tmp_path / "three", "--records_per_shard", 3)
    assert counts(tmp_path / "three") == [3, 3, 1]
    committed(sources, tmp_path / "seven", "--records_per_shard", 7)
    assert counts(tmp_path / "seven") == [7]


@shows("--hosts")
def test_hosts(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(11)
    committed(sources, tmp_path / "out", "--hosts", 4)
    assert counts(tmp_path / "out") == [3, 3, 3, 2]


@shows("--shard_names")
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("counted", ["train-00000-of-00002-3.tfrec", "train-00001-of-00002-2.tfrec"]),
        ("plain", ["train-00000-of-00002.tfrec", "train-00001-of-00002.tfrec"]),
        ("file_{index:02}-{records}.tfrec", ["file_00-3.tfrec", "file_01-2.tfrec"]),
        ("{split}-{index:02}-{num_shards}.tfrec", ["train-00-2.tfrec", "train-01-2.tfrec"]),
        ("test.tfrec", ["test.tfrec"]),
    ],
)
def test_shard_names(names: str, expected: list[str], make_coco: MakeCoco, tmp_path: Path) -> None:
    number = ("--num_shards", len(expected))
    manifest = committed(make_coco(5), tmp_path / "out", "--shard_names", names, *number)
    assert sorted(path.name for path in (tmp_path / "out").glob("*.tfrec")) == expected
    assert [shard["file"] for shard in manifest["shards"]] == expected


@shows("--order")
def test_order(make_coco: MakeCoco, tmp_path: Path) -> None:
    def reverse(spec: dict) -> None:
        spec["images"].reverse()

    train, val = make_coco(30, edit=reverse), make_coco(30, name="val")
    both = [
        *("--images", f"train={train[0]}", f"val={val[0]}"),
        *("--annotations", f"train={train[1]}", f"val={val[1]}"),
        *("--num_shards", "4"),
    ]
    assert run_coco(*both, "--output", tmp_path / "in", "--order", "input").code == 0
    assert source_ids(tmp_path / "in", "train") == list(range(30, 0, -1))
    assert source_ids(tmp_path / "in", "val") == list(range(1, 31))
    assert run_coco(*both, "--output", tmp_path / "one", "--order", "val=input").code == 0
    assert source_ids(tmp_path / "one", "val") == list(range(1, 31))
    shuffled = source_ids(tmp_path / "one", "train")
    assert sorted(shuffled) == list(range(1, 31))
    assert shuffled not in (sorted(shuffled), sorted(shuffled, reverse=True))


@shows("--seed")
def test_seed(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(30)
    orders = {}
    for seed in ("default", 0, -1):
        committed(sources, tmp_path / f"{seed}", *([] if seed == "default" else ["--seed", seed]))
        orders[seed] = source_ids(tmp_path / f"{seed}")
    assert orders.pop("default") == orders[0]
    assert orders[0] != orders[-1]
    assert all(sorted(order) == list(range(1, 31)) for order in orders.values())


@shows("--max_rejected")
def test_max_rejected(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(8)
    for name in ("a000.jpg", "a001.jpg"):
        (sources[0] / name).write_bytes(b"")
    for budget, code in (("1", 4), ("24%", 4), ("2", 0), ("25%", 0)):
        out = tmp_path / budget
        assert run_coco(*command(sources, out), "--max_rejected", budget).code == code, budget
    assert run_coco(*command(sources, tmp_path / "default")).code == 4


@shows("--max_dropped")
def test_max_dropped(make_coco: MakeCoco, tmp_path: Path) -> None:
    """The budget is no part of the plan: a run with a larger one commits what is there."""

    def spoil(spec: dict) -> None:
        for annotation in spec["annotations"][:4]:
            annotation["bbox"] = [64, 0, 5, 5]  # outside, which only building its record tells

    sources, out = make_coco(8, edit=spoil), tmp_path / "out"
    for budget, code in (("3", 4), ("24%", 4), ("4", 0)):
        run = run_coco(*command(sources, out), "--max_dropped", budget)
        assert run.code == code, budget
    assert "kept" in run.err and "wrote" not in run.err
    assert (
        "    warning: 4 of 16 annotations dropped: 4 E-BOX-OUTSIDE; see rejected.jsonl\n" in run.out
    )


@shows("--exclude")
def test_exclude(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(8)
    (sources[0] / "a003.jpg").write_bytes(b"<html>")
    assert run_coco(*command(sources, tmp_path / "first")).code == 4
    exclude = tmp_path / "first" / "rejected.jsonl"
    split = committed(sources, tmp_path / "second", "--exclude", exclude)["splits"]["train"]
    assert (split["listed"], split["excluded"], split["records"], split["rejected"]) == (
        8,
        1,
        7,
        {},
    )
    assert split["annotations"]["excluded"] == 2
    assert sorted(source_ids(tmp_path / "second")) == [1, 2, 3, 5, 6, 7, 8]


@shows("--date")
def test_date(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(2)
    run = run_coco(*command(sources, tmp_path / "out-{date}"), "--date", "2026-11-20")
    assert run.code == 0, run.err
    assert counts(tmp_path / "out-2026-11-20") == [2]
    before = datetime.datetime.now(datetime.UTC).date()
    assert run_coco(*command(sources, tmp_path / "{date}" / "{x}")).code == 0
    after = datetime.datetime.now(datetime.UTC).date()
    (today,) = (path.parent for path in tmp_path.glob("*/{x}"))
    assert today.name in {before.isoformat(), after.isoformat()}


@shows("--since")
def test_since(make_coco: MakeCoco, tmp_path: Path) -> None:
    first, second = make_coco(3), make_coco(8, name="second")
    committed(first, tmp_path / "first")
    split = committed(second, tmp_path / "second", "--since", tmp_path / "first")["splits"]["train"]
    assert (split["listed"], split["earlier"], split["records"]) == (8, 3, 5)
    assert split["annotations"]["earlier"] == 6
    assert sorted(source_ids(tmp_path / "second")) == [4, 5, 6, 7, 8]
    assert "earlier" not in committed(second, tmp_path / "all")["splits"]["train"]


@shows("--allow_empty")
def test_allow_empty(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(0)
    assert run_coco(*command(sources, tmp_path / "out")).ended == (3, "E-SET-EMPTY")
    split = committed(sources, tmp_path / "out", "--allow_empty")["splits"]["train"]
    assert (split["listed"], split["shards"]) == (0, 0)


@shows("--overwrite")
def test_overwrite(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(6), tmp_path / "out"
    committed(sources, out, "--num_shards", 3)
    assert run_coco(*command(sources, out), "--num_shards", 2).ended == (5, "E-OUT-PLAN")
    assert counts(out) == [2, 2, 2]
    committed(sources, out, "--num_shards", 2, "--overwrite")
    committed(sources, tmp_path / "fresh", "--num_shards", 2)
    assert digests(out) == digests(tmp_path / "fresh")


@shows("--trust_manifest")
def test_trust_manifest(make_coco: MakeCoco, tmp_path: Path) -> None:
    """With it the sources are not even listed: they may be gone."""
    sources, out = make_coco(3), tmp_path / "out"
    committed(sources, out)
    before = snapshot(out)
    sources[0].rename(tmp_path / "moved")
    sources[1].unlink()
    assert run_coco(*command(sources, out)).code != 0
    run = run_coco(*command(sources, out), "--trust_manifest")
    assert (run.code, run.out) == (0, f"already complete: {out}/manifest.json\n")
    assert run_coco(*command(sources, out), "--trust_manifest", "--seed", 1).ended == (
        5,
        "E-OUT-PLAN",
    )
    assert snapshot(out) == before


class Concurrency:
    """How many calls of a function ran at once, at most."""

    def __init__(self, function: Callable, least_s: float) -> None:
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()
        self._function = function
        self._least_s = least_s

    def __get__(self, instance: Any, owner: Any = None) -> Callable:
        return lambda *args, **kwargs: self(instance, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            time.sleep(self._least_s)
            return self._function(*args, **kwargs)
        finally:
            with self._lock:
                self._now -= 1


@shows("--shards_in_flight")
@pytest.mark.usefixtures("no_builders_beside")
@pytest.mark.parametrize("limit", [1, 3])
def test_shards_in_flight(
    limit: int, make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    building = Concurrency(build_shard.build_shard, 0.02)
    monkeypatch.setattr(build_shard, "build_shard", building)
    committed(make_coco(12), tmp_path / "out", "--num_shards", 12, "--shards_in_flight", limit)
    assert building.most == limit


def readers_at_work(
    sources: tuple[Path, Path], out: Path, monkeypatch: pytest.MonkeyPatch, *flags: object
) -> int:
    """Return how many images were read at once, at most; each is about 0.6 MB."""
    read = LocalStorage.read
    images = Concurrency(read, 0.02)

    def counted(storage: LocalStorage, name: str, expected: Any = None, span: Any = None) -> bytes:
        reader = images if name.endswith(".jpg") else read
        return reader(storage, name, expected, span)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "read", counted)
        committed(sources, out, "--num_shards", 1, *flags)
    return images.most


@pytest.fixture
def large_images(make_coco: MakeCoco) -> tuple[Path, Path]:
    sources = make_coco(12)
    for path in sources[0].iterdir():  # bytes behind the end marker are kept
        path.write_bytes(path.read_bytes() + bytes(600_000))
    return sources


@shows("--readers")
@pytest.mark.usefixtures("no_builders_beside")
@pytest.mark.parametrize("limit", [1, 4])
def test_readers(
    limit: int, large_images: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = readers_at_work(large_images, tmp_path / "out", monkeypatch, "--readers", limit)
    assert most == limit


@shows("--workers")
@pytest.mark.usefixtures("no_builders_beside")
@pytest.mark.parametrize("limit", [1, 3])
def test_workers(
    limit: int, large_images: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = Concurrency(build_records.check_image, 0.02)
    monkeypatch.setattr(build_records, "check_image", checks)
    flags = ("--num_shards", 1, "--readers", 6, "--workers", limit)
    committed(large_images, tmp_path / "out", *flags)
    assert checks.most == limit


@shows("--bytes_in_flight")
@pytest.mark.usefixtures("no_builders_beside")
@pytest.mark.parametrize(
    ("limit", "expected"),
    [("256MiB", 4), ("1.3MB", 2), ("700kB", 1), ("1B", 1)],  # an image too large goes alone
)
def test_bytes_in_flight(
    limit: str,
    expected: int,
    large_images: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = ("--readers", 4, "--bytes_in_flight", limit)
    most = readers_at_work(large_images, tmp_path / "out", monkeypatch, *flags)
    assert most == expected


@pytest.fixture
def bucket(make_coco: MakeCoco, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStandIn]:
    images, annotations = make_coco(3)
    with GcsStandIn() as gcs:
        for path in images.iterdir():
            gcs.put("b", f"photos/{path.name}", path.read_bytes())
        gcs.put("b", "instances.json", annotations.read_bytes())
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        yield gcs


IN_BUCKET = (
    *("--images", "gs://b/photos", "--annotations", "gs://b/instances.json"),
    *("--output", "gs://b/out"),
)


@shows("--billing_project", "--kms_key")
def test_who_pays_and_the_key(bucket: GcsStandIn) -> None:
    run = run_coco(*IN_BUCKET, "--billing_project", "payer", "--kms_key", "projects/p/key")
    assert run.code == 0, run.err
    for request in bucket.requests:
        payer = request.query.get("userProject", request.headers.get("x-goog-user-project"))
        assert payer == "payer", request
        if request.kind is Kind.UPLOAD:
            assert request.query["kmsKeyName"] == "projects/p/key"


@shows("--anonymous")
def test_anonymous(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_credentials(**_: object) -> None:
        raise AssertionError("credentials were looked for")

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    for made in (
        gcs.credentials,
        gcs.session,
        gcs.client,
        gcs.reader,
    ):
        made.cache_clear()
    monkeypatch.setattr(google.auth, "default", no_credentials)
    gcs.session(True)
    gcs.reader("b", Access(anonymous=True), "")
    with pytest.raises(AssertionError, match="credentials were looked for"):
        gcs.session(False)
    config = coco.COMMAND.configure([*IN_BUCKET, "--anonymous"])[0].config
    assert config.access == Access(anonymous=True)


@shows("--spool_dir")
def test_spool_dir(bucket: GcsStandIn, tmp_path: Path) -> None:
    run = run_coco(*IN_BUCKET, "--spool_dir", tmp_path / "not there")
    assert run.ended == (6, "E-IO-READONLY")
    assert f"{tmp_path}/not there: " in run.fault
    assert run_coco(*IN_BUCKET, "--spool_dir", tmp_path).code == 0


@shows("--report", "--no_report")
def test_report(bucket: GcsStandIn, make_coco: MakeCoco, tmp_path: Path) -> None:
    """More is in `tests/test_write_report.py`."""
    assert run_coco(*IN_BUCKET).code == 0
    assert "out/report.html" not in bucket.objects("b")
    run = run_coco(*IN_BUCKET, "--report")
    assert run.out.splitlines() == [
        "already complete: gs://b/out/manifest.json",
        "report: gs://b/out/report.html",
    ]
    assert b"data:image/jpeg;base64," in bucket.objects("b")["out/report.html"]
    for flags, is_made in (((), True), (("--no_report",), False)):
        committed(make_coco(1, name=f"of {is_made}"), tmp_path / str(is_made), *flags)
        assert (tmp_path / str(is_made) / "report.html").exists() == is_made


@shows("--max_reads_per_second")
def test_max_reads_per_second(bucket: GcsStandIn, tmp_path: Path) -> None:
    started_s = time.monotonic()
    run = run_coco(*IN_BUCKET, "--max_reads_per_second", "20")
    assert run.code == 0, run.err
    reads = [r for r in bucket.requests if r.kind is not Kind.UPLOAD]
    assert time.monotonic() - started_s > (len(reads) - 5) / 20 > 0.5


def done(_: object) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], 0, "", "")


@shows("--no_wait")
def test_no_wait(bucket: GcsStandIn) -> None:
    """A waiting command would miss the manifest, which this job does not make."""
    bucket.make_bucket("bin")
    with DataflowStandIn(done) as dataflow:
        run = run_coco(
            *IN_BUCKET,
            *("--runner", "DataflowRunner", "--project", "my-project", "--region", "us-central1"),
            *("--temp_location", "gs://bin/temp", "--sdk_container_image", "example.com/i:1"),
            *("--dataflow_endpoint", dataflow.url, "--no_auth", "--no_wait"),
        )
        assert run.code == 0, run.err
        assert run.out.startswith("submitted: https://console.cloud.google.com/dataflow/jobs/")
        assert len(dataflow.jobs) == 1


@shows("--plan")
def test_plan(make_coco: MakeCoco, tmp_path: Path) -> None:
    """More is in `tests/test_plan_run.py` and `tests/test_plan_output.py`."""
    made, out = make_coco(3), tmp_path / "out"
    run = run_coco(*command(made, out, "--plan"))
    assert (run.code, out.exists()) == (0, False), run.err
    assert "train: 3 of 3 images in 1 shard" in run.out
    told = json.loads(run_coco(*command(made, out, "--plan", "json")).out)
    made_bytes = committed(made, out)["splits"]["train"]["bytes"]
    assert abs(told["splits"]["train"]["bytes"] - made_bytes) <= 0.05 * made_bytes


def test_every_flag_has_a_test_that_shows_its_effect() -> None:
    assert sorted(SHOWN) == OUR_FLAGS
