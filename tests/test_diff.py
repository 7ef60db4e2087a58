"""The command `beam-tfrec diff`: each planted difference is found, and nothing else."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from beam_tfrec.pipelines import diff
from beam_tfrec.transforms.shard_index import index_from_parquet, index_to_parquet
from tests.coco_command import run_pipeline
from tests.conftest import coco_dict, jpeg_bytes
from tests.small_data_sets import older_index
from tests.small_runs import build_run, plan_run
from tests.test_verify_data_set import edit, flip

Change = Callable[[dict, Path], object]


def build(folder: Path, change: Change | None = None, num_shards: int = 2, seed: int = 0) -> None:
    """Build a data set of two splits, with image ids 1 to 6 and 11 to 13, in `folder/out`."""
    roots, files = {}, {}
    specs = {"train": coco_dict(6, width=16, height=16), "val": coco_dict(3, width=16, height=16)}
    for image in (*specs["val"]["images"], *specs["val"]["annotations"]):
        image["image_id" if "bbox" in image else "id"] += 10
    for split, spec in specs.items():
        roots[split], files[split] = folder / split, folder / f"{split}.json"
        roots[split].mkdir(parents=True)
        for image in spec["images"]:
            image["file_name"] = f"{image['id']}.jpg"
            path = roots[split] / image["file_name"]
            path.write_bytes(jpeg_bytes(16, 16, color=image["id"]))
    if change:
        change(specs, folder)
    for split, spec in specs.items():
        files[split].write_text(json.dumps(spec))
    build_run(plan_run(roots, files, folder / "out", num_shards, seed=seed))


def change_all(specs: dict, folder: Path) -> None:
    train, val = specs["train"], specs["val"]
    val["images"] += [train["images"].pop(0), train["images"].pop()]
    val["images"][-1].update(id=7, file_name="7.jpg")  # it was 6
    val["annotations"] += [train["annotations"].pop(0) for _ in range(2)]
    del train["annotations"][-2:]
    (folder / "train/1.jpg").rename(folder / "val/1.jpg")
    (folder / "train/6.jpg").rename(folder / "val/7.jpg")
    (folder / "train/2.jpg").write_bytes(jpeg_bytes(16, 16, color=99))
    train["annotations"][2]["bbox"][0] += 1  # of 3: as many bytes
    train["annotations"][4]["category_id"] = 2  # of 4


def compared(*arguments: object) -> tuple[int, list[str]]:
    """Return the command's exit code and its lines."""
    run = run_pipeline(diff.run, *arguments)
    return run.code, run.out.splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data sets `a/out` and `b/out`."""
    folder = tmp_path_factory.mktemp("diff")
    build(folder / "a")
    build(folder / "b", change_all)
    return folder


@pytest.fixture
def out(folder: Path, tmp_path: Path) -> Path:
    """A copy of `a/out`, to be changed."""
    return Path(shutil.copytree(folder / "a/out", tmp_path / "out"))


KEYS = [
    "added val 7",
    "changed annotations train 3",
    "changed annotations train 4",
    "changed image train 2",
    "moved train val 1",
    "removed train 6",
]
TABLE = """\
split  a  b  equal  removed  added  moved out  moved in  image  annotations
train  6  4  1      1        0      1          0         1      2
val    3  5  4      0        1      0          1         0      0
all    9  9  5      1        1      1          1         1      2
class              removed  added  changed
1 person           1        0      3
2 crowd of people  1        0      3
different""".splitlines()
NOTE = "note: the indexes of A have no checksums: its shards were read"


def test_each_change_is_found(folder: Path) -> None:
    a, b = folder / "a/out", folder / "b/out"
    assert compared(a, b) == (1, TABLE)
    assert compared(a, b, "--keys") == (1, KEYS + TABLE)
    code, lines = compared(b, a, "--keys")
    back = [KEYS[0].replace("added", "removed"), "moved val train 1", "added train 6"]
    assert (code, lines[:6]) == (1, sorted([*back, *KEYS[1:4]]))
    code, lines = compared(a, b, "--format", "json", "--keys")
    found = json.loads("".join(lines))
    assert (code, found["equal"], found["keys"], found["notes"]) == (1, False, KEYS, [])
    assert [[*map(str, row.values())] for row in found["splits"].values()] == [
        line.split()[1:] for line in TABLE[1:3]
    ]
    assert found["total"]["annotations"] == 2
    assert found["classes"][0] == {
        "id": 1,
        "name": "person",
        "removed": 1,
        "added": 0,
        "changed": 3,
    }


def test_order_and_shards_are_no_difference(folder: Path, tmp_path: Path) -> None:
    build(tmp_path, num_shards=1, seed=7)
    code, lines = compared(folder / "a/out", tmp_path / "out")
    assert (code, lines[3].split()) == (0, ["all", "9", "9", "9", *"000000"])
    options = [
        "note: option num_shards: all=2 in A, all=1 in B",
        "note: option seed: 0 in A, 7 in B",
    ]
    assert (sorted(lines[4:-1]), lines[-1]) == (options, "equal")


def test_checksums_of_older_data_sets_are_read_from_their_shards(folder: Path, out: Path) -> None:
    version = {"format_version": 3}
    edit(out / "manifest.json", lambda m: m.update(version, plan={**m["plan"], **version}))
    for path in (out / "index").glob("*.parquet"):
        path.write_bytes(older_index(path.read_bytes()))
    assert compared(out, folder / "b/out", "--keys") == (1, [*KEYS, *TABLE[:-1], NOTE, "different"])
    code, lines = compared(out, folder / "a/out")
    assert (code, lines[-2:]) == (0, [NOTE, "equal"])


def test_other_features_layouts_and_labels(folder: Path, out: Path) -> None:
    def change(manifest: dict) -> None:
        manifest["layout"] = "mine"
        manifest["features"][0]["repeated"] ^= True
        del manifest["features"][-1]
        manifest["plan"]["labels"][1]["name"] = "crowd"

    edit(out / "manifest.json", change)
    first, *_, last = json.loads((folder / "a/out/manifest.json").read_bytes())["features"]
    code, lines = compared(folder / "a/out", out)
    assert (code, lines[:4], lines[-1]) == (
        1,
        [
            "layout: detection in A, mine in B",
            f"feature {first['key']}: {first['kind']}, 1 in A, {first['kind']}, 0..n in B",
            f"feature {last['key']}: {last['kind']}, 1 in A, none in B",
            "label 2: crowd of people in A, crowd in B",
        ],
        "different",
    )


def repeat_a_shard(out: Path) -> None:
    """Give the keys of a shard to another of as many records."""
    one, other = sorted((out / "index").glob("train-*.parquet"))
    rows = index_from_parquet(one.read_bytes()), index_from_parquet(other.read_bytes())
    both = zip(*rows, strict=True)
    anew = [msgspec.structs.replace(row, key=twin.key) for twin, row in both]
    other.write_bytes(index_to_parquet(anew))


def first_index(out: Path) -> Path:
    return min((out / "index").glob("*.parquet"))


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "unfinished": (
        lambda out: (out / "manifest.json").unlink(),
        "E-ARG OUT: is not a finished data set: it has no manifest.json; run its command again",
    ),
    "no shard": (
        lambda out: min(out.glob("*.tfrec")).unlink(),
        "E-VER-MISSING OUT/train-00000-of-00002-3.tfrec: is missing; run beam-tfrec verify",
    ),
    "a short shard": (
        lambda out: min(out.glob("*.tfrec")).write_bytes(b""),
        "E-VER-SIZE OUT/train-00000-of-00002-3.tfrec: has 0 bytes, ",
    ),
    "no index": (
        lambda out: first_index(out).unlink(),
        "E-VER-MISSING OUT/index/train-00000-of-00002-3.parquet: is missing; run",
    ),
    "a flipped bit": (  # of its own checksum
        lambda out: flip(first_index(out), first_index(out).read_bytes().rindex(b"crc32c:") + 10),
        "E-VER-INDEX OUT/index/train-00000-of-00002-3.parquet: its bytes do not match its own",
    ),
    "keys twice": (repeat_a_shard, "E-VER-ORDER OUT: keys occur twice; run beam-tfrec verify"),
}


@pytest.mark.parametrize(("damage", "said"), FAULTS.values(), ids=FAULTS)
def test_damage_is_a_fault_and_no_difference(
    damage: Callable[[Path], object], said: str, folder: Path, out: Path
) -> None:
    damage(out)
    with pytest.raises(RuntimeError, match="^" + re.escape(said.replace(" OUT", f" {out}"))):
        diff.run([f"{folder}/a/out", f"{out}"])
