"""What flags of `python -m pipelines.coco` do, where no other file shows it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import google.auth
import pytest

from pipelines import coco
from tests.coco_command import (
    MakeCoco,
    command,
    committed,
    counts,
    examples,
    manifest_of,
    rejected_of,
    run_coco,
    shard_paths,
    snapshot,
    source_ids,
    value,
)
from tests.gcs_stand_in import GcsStandIn, Kind
from transforms.gate import GateLimits
from transforms.storage import Access, gcs

OUR_FLAGS = sorted(set(coco.COMMAND.parser()._option_string_actions) - {"-h", "--help"})


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


def test_shard_size(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(20)
    one = committed(sources, tmp_path / "default")
    (shard,) = one["shards"]
    committed(sources, tmp_path / "small", "--shard_size", f"{shard['bytes'] // 3}B")
    assert counts(tmp_path / "small") in ([5] * 4, [7, 7, 6])
    too_small = run_coco(*command(sources, tmp_path / "tiny"), "--shard_size", "100B")
    assert too_small.ended == (2, "E-ARG")
    assert "--shard_size" in too_small.fault


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


def test_records_per_shard(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(7)
    committed(sources, tmp_path / "three", "--records_per_shard", 3)
    assert counts(tmp_path / "three") == [3, 3, 1]
    committed(sources, tmp_path / "seven", "--records_per_shard", 7)
    assert counts(tmp_path / "seven") == [7]


def test_hosts(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(11)
    committed(sources, tmp_path / "out", "--hosts", 4)
    assert counts(tmp_path / "out") == [3, 3, 3, 2]


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


def test_seed(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(30)
    orders = {}
    for seed in ("default", 0, -1):
        committed(sources, tmp_path / f"{seed}", *([] if seed == "default" else ["--seed", seed]))
        orders[seed] = source_ids(tmp_path / f"{seed}")
    assert orders.pop("default") == orders[0]
    assert orders[0] != orders[-1]
    assert all(sorted(order) == list(range(1, 31)) for order in orders.values())


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


def test_who_pays_and_the_key(bucket: GcsStandIn) -> None:
    run = run_coco(*IN_BUCKET, "--billing_project", "payer", "--kms_key", "projects/p/key")
    assert run.code == 0, run.err
    for request in bucket.requests:
        payer = request.query.get("userProject", request.headers.get("x-goog-user-project"))
        assert payer == "payer", request
        if request.kind is Kind.UPLOAD:
            assert request.query["kmsKeyName"] == "projects/p/key"


def test_anonymous(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_credentials(**_: object) -> None:
        raise AssertionError("credentials were looked for")

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    for made in (gcs.credentials, gcs.session, gcs.client, gcs.reader):
        made.cache_clear()
    monkeypatch.setattr(google.auth, "default", no_credentials)
    gcs.session(True)
    gcs.reader("b", Access(anonymous=True), "")
    with pytest.raises(AssertionError, match="credentials were looked for"):
        gcs.session(False)
    config = coco.COMMAND.configure([*IN_BUCKET, "--anonymous"])[0].config
    assert config.access == Access(anonymous=True)


def test_limits_reach_the_workers() -> None:
    """What each limit does is in `tests/test_gate.py`."""
    flags = "--shards_in_flight 3 --bytes_in_flight 700kB --readers 5 --workers 4"
    config = coco.COMMAND.configure([*IN_BUCKET, *flags.split()])[0].config
    assert config.limits == GateLimits(3, 700_000, 5, 4)


def test_every_flag_is_tested() -> None:
    used = {
        flag
        for path in Path(__file__).parent.glob("test_*.py")
        for flag in re.findall(r"--[a-z_]+", path.read_text())
    }
    assert set(OUR_FLAGS) - used == set()
