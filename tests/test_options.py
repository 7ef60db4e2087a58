"""Every flag of `python -m pipelines.coco`: its effect, its validation, its help."""

import contextlib
import importlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines import coco
from pipelines.options import FlagParser, beam_flags, parse_flags, parse_per_split, parse_size
from tests.coco_command import (
    check_committed,
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
from tests.conftest import coco_dict, jpeg_bytes
from tests.gcs_stand_in import GcsStandIn, Kind
from tests.small_images import chunk, ihdr, png
from transforms import write_shards
from transforms.storage import Access, gcs
from transforms.storage.local import LocalStorage

MakeCoco = Callable[..., tuple[Path, Path]]
OUR_FLAGS = sorted(set(coco.parser()._option_string_actions) - {"-h", "--help"})
SHOWN: set[str] = set()


def shows(*flags: str) -> Callable:
    """Note which flags' effects a test shows."""
    SHOWN.update(flags)
    return lambda test: test


def command(sources: tuple[Path, Path], out: Path) -> list[str]:
    images, annotations = sources
    return ["--images", str(images), "--annotations", str(annotations), "--output", str(out)]


def committed(sources: tuple[Path, Path], out: Path, *flags: object) -> dict[str, Any]:
    """Run the command, which must succeed, and return the manifest."""
    run = run_coco(*command(sources, out), *flags)
    assert run.code == 0, run.err
    return check_committed(out)


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


@shows("--orphans")
def test_orphans(make_coco: MakeCoco, tmp_path: Path) -> None:
    def orphan(spec: dict) -> None:
        spec["annotations"][0]["image_id"] = 99

    sources = make_coco(2, edit=orphan)
    assert run_coco(*command(sources, tmp_path / "out")).ended == (3, "E-ANN-ORPHAN")
    assert run_coco(*command(sources, tmp_path / "out"), "--orphans", "stop").code == 3
    manifest = committed(sources, tmp_path / "out", "--orphans", "drop")
    assert manifest["splits"]["train"]["annotations"]["dropped"] == {"E-ANN-ORPHAN": 1}


@shows("--check")
def test_check(make_coco: MakeCoco, tmp_path: Path) -> None:
    """A PNG whose chunks are right, checksums too, and whose pixels are no zlib stream."""
    sources = make_coco(3, width=8, height=8, objects=0)
    (sources[0] / "a001.jpg").write_bytes(png(ihdr(8, 8), chunk(b"IDAT", b"no zlib")))
    assert committed(sources, tmp_path / "walked")["splits"]["train"]["records"] == 3
    run = run_coco(*command(sources, tmp_path / "decoded"), "--check", "decode")
    assert run.code == 4
    assert [line["code"] for line in rejected_of(tmp_path / "decoded")] == ["E-IMG-DAMAGED"]


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
    ],
)
def test_shard_names(names: str, expected: list[str], make_coco: MakeCoco, tmp_path: Path) -> None:
    manifest = committed(make_coco(5), tmp_path / "out", "--shard_names", names, "--num_shards", 2)
    assert [path.name for path in shard_paths(tmp_path / "out")] == expected
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
@pytest.mark.parametrize("limit", [1, 3])
def test_shards_in_flight(
    limit: int, make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    building = Concurrency(write_shards.build_shard, 0.02)
    monkeypatch.setattr(write_shards, "build_shard", building)
    committed(make_coco(12), tmp_path / "out", "--num_shards", 12, "--shards_in_flight", limit)
    assert building.most == limit


def readers_at_work(
    sources: tuple[Path, Path], out: Path, monkeypatch: pytest.MonkeyPatch, *flags: object
) -> int:
    """Return how many images were read at once, at most; each is about 0.6 MB."""
    read = LocalStorage.read
    images = Concurrency(read, 0.02)

    def counted(storage: LocalStorage, name: str, expected: Any = None) -> bytes:
        reader = images if name.endswith(".jpg") else read
        return reader(storage, name, expected)

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
@pytest.mark.parametrize("limit", [1, 4])
def test_readers(
    limit: int, large_images: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = readers_at_work(large_images, tmp_path / "out", monkeypatch, "--readers", limit)
    assert most == limit


@shows("--bytes_in_flight")
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
    def no_credentials() -> None:
        raise AssertionError("credentials were looked for")

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(gcs, "_credentials", no_credentials)
    gcs._client(Access(anonymous=True), "")
    gcs._store("b", Access(anonymous=True), "")
    with pytest.raises(AssertionError, match="credentials were looked for"):
        gcs._client(Access(billing_project="another"), "")
    config = coco.configure([*IN_BUCKET, "--anonymous"])[0].config
    assert config.access == Access(anonymous=True)


@shows("--spool_dir")
def test_spool_dir(bucket: GcsStandIn, tmp_path: Path) -> None:
    run = run_coco(*IN_BUCKET, "--spool_dir", tmp_path / "not there")
    assert run.ended == (6, "E-IO-READONLY")
    assert f"{tmp_path}/not there: " in run.fault
    assert run_coco(*IN_BUCKET, "--spool_dir", tmp_path).code == 0


@shows("--max_reads_per_second")
def test_max_reads_per_second(bucket: GcsStandIn, tmp_path: Path) -> None:
    started_s = time.monotonic()
    run = run_coco(*IN_BUCKET, "--max_reads_per_second", "20")
    assert run.code == 0, run.err
    reads = [r for r in bucket.requests if r.kind is not Kind.UPLOAD]
    assert time.monotonic() - started_s > (len(reads) - 5) / 20 > 0.5


@pytest.mark.parametrize(("root", "readers"), [("photos", 2), ("gs://b/photos", 32)])
def test_more_readers_by_default_where_each_read_takes_long(root: str, readers: int) -> None:
    given = ["--images", root, "--annotations", "a.json", "--output", "out"]
    assert coco.configure(given)[0].config.limits.readers == readers


def test_every_flag_has_a_test_that_shows_its_effect() -> None:
    assert sorted(SHOWN) == OUR_FLAGS


SOURCES = ("--images", "i", "--annotations", "a.json")
NEEDED = (*SOURCES, "--output", "no-such-output")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "the following arguments are required: --images, --annotations, --output; see --help"),
        (SOURCES, "the following arguments are required: --output; see --help"),
        (("--images",), "argument --images: expected at least one argument; see --help"),
        ((*SOURCES, "--output", ""), "argument --output: must not be empty; see --help"),
        ((*NEEDED, "--exclude", ""), "argument --exclude: must not be empty; see --help"),
        (
            (*NEEDED, "--images", "train=j"),
            "images of train must come once, got 'i' and 'j'; remove one",
        ),
        (
            ("--images", "train=", "--annotations", "a.json", "--output", "o"),
            "images of train must not be empty; give a value",
        ),
        (
            ("--images", "", "--annotations", "a.json", "--output", "o"),
            "images of train must not be empty; give a value",
        ),
        (
            (*NEEDED, "--images", "val=j"),
            "images and annotations must name the same splits, got images ['train', 'val'] and"
            " annotations ['train']; give both as SPLIT=PATH",
        ),
        (
            ("--images", "all=i", "--annotations", "all=a.json", "--output", "o"),
            "a split must be lower-case letters, digits and _, a letter first, and not 'all'; got"
            " 'all'; rename it",
        ),
        (
            (*NEEDED, "--split", "Train"),
            "a split must be lower-case letters, digits and _, a letter first, and not 'all'; got"
            " 'Train'; rename it",
        ),
        (
            (*NEEDED, "--split", ""),
            "a split must be lower-case letters, digits and _, a letter first, and not 'all'; got"
            " ''; rename it",
        ),
        (
            (*NEEDED, "--orphans", "keep"),
            "argument --orphans: invalid choice: 'keep' (choose from stop, drop); see --help",
        ),
        (
            (*NEEDED, "--check", "none"),
            "argument --check: invalid choice: 'none' (choose from header, decode); see --help",
        ),
        (
            (*NEEDED, "--on_size_mismatch", "keep"),
            "argument --on_size_mismatch: invalid choice: 'keep' (choose from auto, reject,"
            " trust_image, trust_json); see --help",
        ),
        (
            (*NEEDED, "--num_shards", "0"),
            "num_shards must be at least 1, got 0; give a larger number",
        ),
        (
            (*NEEDED, "--num_shards", "many"),
            "num_shards must be a whole number, got 'many'; see --help",
        ),
        (
            (*NEEDED, "--num_shards", "1.5"),
            "num_shards must be a whole number, got '1.5'; see --help",
        ),
        (
            (*NEEDED, "--num_shards", "4", "5"),
            "num_shards of all splits must come once, got '4' and '5'; remove one",
        ),
        (
            (*NEEDED, "--num_shards", "val=3"),
            "num_shards must name splits of --images, got ['val']; give ['train']",
        ),
        (
            (*NEEDED, "--num_shards", "4", "--hosts", "3"),
            "num_shards must be a multiple of hosts 3, got 4; give 3 or 6",
        ),
        (
            (*NEEDED, "--num_shards", "2", "--hosts", "3"),
            "num_shards must be a multiple of hosts 3, got 2; give 3",
        ),
        (
            (*NEEDED, "--num_shards", "4", "--records_per_shard", "2"),
            "argument --records_per_shard: not allowed with argument --num_shards; see --help",
        ),
        (
            (*NEEDED, "--num_shards", "4", "--shard_size", "1MB"),
            "argument --shard_size: not allowed with argument --num_shards; see --help",
        ),
        (
            (*NEEDED, "--records_per_shard", "0"),
            "records_per_shard must be at least 1, got 0; give a larger number",
        ),
        (
            (*NEEDED, "--records_per_shard", "x"),
            "argument --records_per_shard: invalid int value: 'x'; see --help",
        ),
        ((*NEEDED, "--hosts", "0"), "hosts must be at least 1, got 0; give a larger number"),
        ((*NEEDED, "--hosts", "x"), "argument --hosts: invalid int value: 'x'; see --help"),
        (
            (*NEEDED, "--shard_size", "0"),
            "shard_size must be at least 1, got 0; give a larger number",
        ),
        (
            (*NEEDED, "--shard_size", "0.4B"),
            "shard_size must be at least 1, got 0; give a larger number",
        ),
        (
            (*NEEDED, "--shard_size=-5MB"),
            "shard_size must be a size such as 150MB or 256MiB, got '-5MB'; see --help",
        ),
        (
            (*NEEDED, "--shard_size", "5 parsecs"),
            "shard_size must be a size such as 150MB or 256MiB, got '5 parsecs'; see --help",
        ),
        (
            (*NEEDED, "--shard_size", "inf"),
            "shard_size must be a size such as 150MB or 256MiB, got 'inf'; see --help",
        ),
        (
            (*NEEDED, "--shard_names", "all.tfrec"),
            "shard_names must be counted, plain or a template with {index} and at most {split},"
            " {num_shards}, {records}; got 'all.tfrec'; see --help",
        ),
        (
            (*NEEDED, "--shard_names", "{index}-{host}"),
            "shard_names must be counted, plain or a template with {index} and at most {split},"
            " {num_shards}, {records}; got '{index}-{host}'; see --help",
        ),
        (
            (*NEEDED, "--shard_names", "a/{index}"),
            "shard_names must name files in the output itself, not hidden ones, got 'a/{index}';"
            " remove the slash, dot or underscore",
        ),
        (
            (*NEEDED, "--shard_names", "_{index}"),
            "shard_names must name files in the output itself, not hidden ones, got '_{index}';"
            " remove the slash, dot or underscore",
        ),
        (
            (*NEEDED, "--shard_names", "{index}", "--images", "val=i", "--annotations", "val=a"),
            "shard_names must hold {split} for splits ['train', 'val'], got '{index}'; add it",
        ),
        (
            (*NEEDED, "--order", "random"),
            "order must be shuffled or input, got 'random'; see --help",
        ),
        (
            (*NEEDED, "--order", "val=input"),
            "order must name splits of --images, got ['val']; give ['train']",
        ),
        (
            (*NEEDED, "--max_reads_per_second", "100"),
            "max_reads_per_second must come with images that are not local, got 100; leave it out",
        ),
        (
            (*NEEDED, "--max_reads_per_second=-1"),
            "max_reads_per_second must be a number of requests, or 0 for no limit, got -1.0;"
            " give one such as 1000",
        ),
        ((*NEEDED, "--seed", "x"), "argument --seed: invalid int value: 'x'; see --help"),
        (
            (*NEEDED, "--max_rejected", "some"),
            "max_rejected must be a count such as 5 or a percentage such as 1%, got 'some'; see"
            " --help",
        ),
        (
            (*NEEDED, "--max_rejected", "101%"),
            "max_rejected must be a count such as 5 or a percentage such as 1%, got '101%'; see"
            " --help",
        ),
        (
            (*NEEDED, "--max_rejected", "nan%"),
            "max_rejected must be a count such as 5 or a percentage such as 1%, got 'nan%'; see"
            " --help",
        ),
        (
            (*NEEDED, "--max_rejected=-1"),
            "max_rejected must be a count such as 5 or a percentage such as 1%, got '-1'; see"
            " --help",
        ),
        (
            (*NEEDED, "--shards_in_flight", "0"),
            "shards_in_flight must be at least 1, got 0; give a larger number",
        ),
        (
            (*NEEDED, "--bytes_in_flight", "0"),
            "bytes_in_flight must be at least 1, got 0; give a larger number",
        ),
        (
            (*NEEDED, "--bytes_in_flight", ""),
            "bytes_in_flight must be a size such as 150MB or 256MiB, got ''; see --help",
        ),
        ((*NEEDED, "--readers", "0"), "readers must be at least 1, got 0; give a larger number"),
        ((*NEEDED, "stray"), "unknown argument 'stray'; see --help"),
        ((*NEEDED, "--imagse", "x"), "unknown argument '--imagse'; did you mean --images?"),
        (("--imagse", "x"), "unknown argument '--imagse'; did you mean --images?"),
        (("--imagse=x",), "unknown argument '--imagse'; did you mean --images?"),
        ((*NEEDED, "--max_rej", "1"), "unknown argument '--max_rej'; did you mean --max_rejected?"),
        ((*NEEDED, "--xyzzy", "1"), "unknown argument '--xyzzy'; see --help"),
        (
            (*NEEDED, "--direct_num_workers", "x"),
            "argument --direct_num_workers: invalid int value: 'x'; see --help",
        ),
    ],
)
def test_refuses_in_one_line(
    arguments: tuple[str, ...], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12.8 and 3.13.1 leave out the quotes around argparse's choices."""
    monkeypatch.chdir(tmp_path)
    run = run_coco(*arguments)
    err = re.sub(r"choose from [^)]*", lambda match: match[0].replace("'", ""), run.err)
    assert (run.code, run.out, err) == (2, "", f"E-ARG command line: {line}\n")
    assert list(tmp_path.iterdir()) == []  # refused before anything is touched


@pytest.mark.parametrize(
    ("flag", "number"),
    [
        ("--num_shards", 2**63),
        ("--num_shards", 10**400),
        ("--records_per_shard", 10**30),
        ("--hosts", 10**30),
        ("--shard_size", "9" * 400),
        ("--shard_size", "9" * 300 + "TB"),
        ("--seed", 10**70),
        ("--seed", -(10**70)),
    ],
)
def test_refuses_numbers_beyond_all_measure(
    flag: str, number: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, and before the sources are read; no float's or hash's own words."""
    monkeypatch.chdir(tmp_path)
    run = run_coco(*NEEDED, f"{flag}={number}")
    assert run.ended == (2, "E-ARG")
    assert run.fault.startswith(f"E-ARG command line: {flag.strip('-')} must be ")
    assert list(tmp_path.iterdir()) == []


def test_takes_large_numbers(make_coco: MakeCoco, tmp_path: Path) -> None:
    """As many bytes, readers and shards in flight as anybody could have."""
    large = ("--bytes_in_flight", "1024TiB", "--readers", 1000, "--shards_in_flight", 10**6)
    out = tmp_path / "out"
    committed(make_coco(2), out, "--records_per_shard", 2**63 - 1, "--seed", 2**63, *large)
    assert counts(out) == [2]
    sources = make_coco(2, name="val")
    committed(sources, tmp_path / "size", "--shard_size", "9000000TB")
    run = run_coco(*command(sources, tmp_path / "many"), "--num_shards", 2**63 - 1)
    assert run.ended == (2, "E-ARG")
    assert run.fault.endswith("; give at most --num_shards 2")


def test_records_per_shard_cannot_promise_shards_for_hosts(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    """Three shards for two hosts: a multiple of --hosts was promised, so one of them has to go."""
    run = run_coco(*command(make_coco(7), tmp_path / "out"), "--records_per_shard", 3, "--hosts", 2)
    assert run.ended == (2, "E-ARG")


def test_hosts_beyond_the_samples(make_coco: MakeCoco, tmp_path: Path) -> None:
    run = run_coco(*command(make_coco(5), tmp_path / "out"), "--hosts", 7)
    assert run.ended == (2, "E-ARG")
    assert "--hosts 7 " in run.fault
    assert " 5 samples" in run.fault


def test_unknown_runner(make_coco: MakeCoco, tmp_path: Path) -> None:
    run = run_coco(*command(make_coco(1), tmp_path / "out"), "--runner", "NoSuchRunner")
    assert run.ended == (2, "E-ARG")
    assert "NoSuchRunner" in run.fault


@pytest.mark.parametrize("runner", ["DirectRunner", "FnApiRunner"])
def test_in_process_runners(runner: str, make_coco: MakeCoco, tmp_path: Path) -> None:
    committed(make_coco(2), tmp_path / "out", "--runner", runner)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("150MB", 150_000_000),
        ("150 MB", 150_000_000),
        ("1.1GB", 1_100_000_000),
        ("0.3kB", 300),
        ("256MiB", 268_435_456),
        ("256Mi", 268_435_456),
        ("2T", 2 * 10**12),
        ("1TiB", 2**40),
        ("7", 7),
        ("7B", 7),
        ("1.9", 1),
        (" 5k ", 5000),
        ("9007199254740993", 2**53 + 1),  # one more than a float holds
    ],
)
def test_parse_size(text: str, size_bytes: int) -> None:
    assert parse_size("shard_size", text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "MB", "-1", "1e6", "1.", ".5MB", "1MiBB", "1 M B", "1KB", "٣"]
)
def test_parse_size_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"^shard_size must be a size such as 150MB"):
        parse_size("shard_size", text)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], {}),
        (["a"], {"bare": "a"}),
        (["train=a", "val=b"], {"train": "a", "val": "b"}),
        (["/x/a=b"], {"bare": "/x/a=b"}),  # what stands before = can be no split
        (["Train=a"], {"bare": "Train=a"}),
        (["train=a=b"], {"train": "a=b"}),
        (["=a"], {"bare": "=a"}),
        (["gs://b/o?x=1"], {"bare": "gs://b/o?x=1"}),
        (["./train=a"], {"bare": "./train=a"}),  # how a folder with = in its name is given
    ],
)
def test_parse_per_split(values: list[str], expected: dict[str, str]) -> None:
    assert parse_per_split("images", values, bare="bare") == expected


def test_no_flag_is_beams() -> None:
    for module in ("dataflow.dataflow_runner", "interactive.interactive_runner", "portability"):
        with contextlib.suppress(ImportError):  # loads more of Beam's options
            importlib.import_module(f"apache_beam.runners.{module}")
    assert "--runner" in beam_flags()
    assert sorted(beam_flags().intersection(OUR_FLAGS)) == []


def test_beams_flags_are_handed_on() -> None:
    flags, others = parse_flags(
        coco.parser(),
        [*NEEDED, "--runner=FlinkRunner", "--job_name", "j", "--streaming", "--seed", "3"],
    )
    assert flags.seed == 3
    assert others == ["--runner=FlinkRunner", "--job_name", "j", "--streaming"]


def test_a_dash_and_a_space_begin_a_value() -> None:
    flags, _ = parse_flags(coco.parser(), ["--images", "--my photos", *NEEDED[2:]])
    assert flags.images == ["--my photos"]


def test_help_gives_default_or_need_of_every_flag() -> None:
    for action in coco.parser()._actions:
        flag, text = action.option_strings[-1], action.help or ""
        if flag == "--help":
            continue
        assert ("(required)" in text) == action.required, flag
        assert action.required or "default" in text, flag
        if isinstance(action.default, str | int) and not isinstance(action.default, bool):
            assert str(action.default) in text, flag
        assert action.metavar not in (None, flag.lstrip("-").upper()) or (
            action.choices or action.nargs == 0 or flag in ("--split", "--seed")
        ), f"{flag} has no metavar that says its unit or kind"


def test_help_is_complete_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        coco.run(["--help"])
    text = capsys.readouterr().out
    assert text.isascii()
    for flag in OUR_FLAGS:
        assert f"\n  {flag}" in text


def test_flag_parser_takes_no_abbreviations() -> None:
    flags = FlagParser("p", "d")
    flags.add_argument("--number")
    with pytest.raises(ValueError, match=r"^unknown argument '--num': did you mean --number\?$"):
        parse_flags(flags, ["--num", "1"])


def test_one_image_root_can_serve_two_splits(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    spec = coco_dict(4)
    for place, image in enumerate(spec["images"]):
        (images / image["file_name"]).write_bytes(jpeg_bytes(color=place))
    for split in ("train", "val"):
        (tmp_path / f"{split}.json").write_text(json.dumps(spec))
    run = run_coco(
        *("--images", f"train={images}", f"val={images}/"),
        *("--annotations", f"train={tmp_path}/train.json", f"val={tmp_path}/val.json"),
        *("--output", tmp_path / "out"),
    )
    assert run.code == 0, run.err
    check_committed(tmp_path / "out")
    assert sorted(source_ids(tmp_path / "out", "train")) == [1, 2, 3, 4]
    assert sorted(source_ids(tmp_path / "out", "val")) == [1, 2, 3, 4]
