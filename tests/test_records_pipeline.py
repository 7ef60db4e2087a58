"""Copying records: reshard, merge, divide and choose, from data sets and other TFRecord files."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from beam_tfrec.pipelines import coco, records
from beam_tfrec.pipelines.verify import run as verify
from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import OBJECT_TEXT, Kind
from beam_tfrec.schemas.tfrecord import frame_record
from beam_tfrec.transforms.shard_index import index_from_parquet, index_to_parquet
from tests import oracle
from tests.coco_command import Run, committed_by, digests, run_pipeline
from tests.conftest import draw, thorough
from tests.gcs_stand_in import GcsStandIn
from tests.gcs_stand_in import Kind as RequestKind
from tests.invariants import files_of, keyed_records
from tests.small_runs import write_set

TRAIN = [
    *("--images", oracle.DATA / "coco_train/images", "--no_report"),
    *("--annotations", oracle.DATA / "coco_train/annotations/instances.json"),
]
KEY = ("--key_feature", "image/source_id")


def convert(output: Path, *flags: object) -> Path:
    """Convert the photos of the split `train`, and return the output."""
    assert run_pipeline(coco.run, *TRAIN, *flags, "--output", output).code == 0
    return output


def copy(output: Path, *flags: object) -> Run:
    return run_pipeline(records.run, *flags, "--no_report", "--output", output)


def copied(output: Path, *flags: object) -> dict[str, Any]:
    """Copy records, check all invariants, and return the manifest."""
    return committed_by(records.run, output, *flags, "--no_report")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of two shards."""
    return convert(tmp_path_factory.mktemp("whole") / "out", "--num_shards", 2)


@pytest.fixture(scope="module")
def resharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same photos in three shards and another order."""
    out = tmp_path_factory.mktemp("resharded") / "out"
    return convert(out, "--num_shards", 3, "--seed", 5)


QUICK = ["coco detection, captions and keypoints"]
OTHERS = [
    "table of JSON Lines, sequences",
    "pairs",
    "coco detection, split by hash",
    "coco keras, in order of the input",
    "coco tfds, panoptic",
    "folder imagenet",
    "table of Parquet, with images",
    "arrays of .npz, raw",
]


@pytest.mark.parametrize("name", [*QUICK, *map(thorough, OTHERS)])
def test_resharding_there_and_back_gives_the_same_shards(
    name: str, oracle_sources: Path, tmp_path: Path
) -> None:
    case = oracle.CASES[name]
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    manifest = committed_by(case.run, first, *case.words(oracle_sources), "--no_report")
    splits, options = manifest["plan"]["splits"], manifest["plan"]["options"]
    order = ["--order", *options["order"].replace("all=", "").split(" ")]
    sources = [f"{split}={first}" for split in splits]
    seed = () if options["order"] == "all=input" else ("--seed", 5)
    copied(second, "--records", *sources, "--num_shards", 2, *seed, *order)
    sources = [f"{split}={second}" for split in splits]
    sizes = ["--num_shards", *(f"{split}={splits[split]['shards']}" for split in splits)]
    if options["records_per_shard"]:
        sizes = ["--records_per_shard", options["records_per_shard"]]
    seed = seed and ("--seed", options["seed"])
    names = ["--shard_names", options["shard_names"], *seed]
    again = copied(third, "--records", *sources, *sizes, *names, *order)
    files = "*.tfrec", "features.json", "*.pbtxt"
    assert digests(third, *files) == digests(first, *files)
    assert again["layout"] == manifest["layout"]
    assert run_pipeline(verify, third, "--deep").code == 0


def shards_alone(data_set: Path, folder: Path) -> Path:
    """Copy the shards of a data set into a folder, as if another program had written them."""
    folder.mkdir()
    for path in data_set.glob("*.tfrec"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_ids_and_names_of_another_program_agree_with_numbered_classes(tmp_path: Path) -> None:
    first = convert(tmp_path / "first", "--category_ids", "contiguous")
    files = shards_alone(first, tmp_path / "files")
    copied(tmp_path / "both", "--records", f"train={first}", f"other={files}")
    assert digests(tmp_path / "both", "label_map.pbtxt") == digests(first, "label_map.pbtxt")


def test_files_of_another_program_give_the_same_shards(
    whole: Path, resharded: Path, tmp_path: Path
) -> None:
    files = shards_alone(whole, tmp_path / "in")
    flags = ("--num_shards", 3, "--seed", 5)
    manifest = copied(tmp_path / "out", "--records", files / "*.tfrec", *KEY, *flags)
    assert digests(tmp_path / "out", "*.tfrec") == digests(resharded, "*.tfrec")
    features = {feature["key"]: feature for feature in manifest["features"]}
    assert features["image/encoded"]["content"] == "image"
    assert features["image/object/bbox/xmin"]["repeated"]
    assert run_pipeline(verify, tmp_path / "out", "--deep").code == 0


def keys_of(output: Path) -> set[str]:
    return {key for _, key in keyed_records(files_of(output))}


def test_a_subset_is_counted(whole: Path, tmp_path: Path) -> None:
    every = sorted(keys_of(whole))
    chosen, dropped = tmp_path / "keys", tmp_path / "drop"
    chosen.write_text("\n".join([*every[:4], ""]))
    dropped.write_text(every[0])
    flags = ("--records", whole, "--keys", chosen, "--drop_keys", dropped)
    manifest = copied(tmp_path / "out", *flags)
    assert keys_of(tmp_path / "out") == {*every[1:4]}
    left_out = {"in_drop_keys": 1, "not_in_keys": len(every) - 4}
    assert manifest["splits"]["train"]["skipped"] == left_out
    named = "\r\n".join([*every[2:], "typo"])  # as Windows writes it
    chosen.write_bytes(b"\xef\xbb\xbf" + named.encode())
    run = copy(tmp_path / "other", "--records", whole, "--keys", chosen)
    assert keys_of(tmp_path / "other") == {*every[2:]}
    lost = f"no record has 1 of {len(every) - 1} keys in {chosen}\n"
    assert lost in run.err


def test_a_feature_decides_the_split(tmp_path: Path) -> None:
    write_records(tmp_path / "in/a.tfrecord", [row(1, "val"), row(2, "test")])
    copied(tmp_path / "old", "--records", tmp_path / "in")
    manifest = copied(tmp_path / "out", "--records", tmp_path / "old", "--split_by", "text")
    assert (list(manifest["splits"]), len(manifest["features"])) == (["test", "val"], 2)


@pytest.mark.thorough
def test_a_larger_sample_holds_the_smaller_one(whole: Path, tmp_path: Path) -> None:
    found = []
    for share in ("20%", "60%", "1"):
        copied(tmp_path / share, "--records", whole, "--sample", share)
        found.append(keys_of(tmp_path / share))
    assert found[0] < found[1] < found[2] == keys_of(whole)


@pytest.mark.parametrize("foreign", [False, thorough(True)])
def test_records_of_a_class(whole: Path, tmp_path: Path, foreign: bool) -> None:
    source = shards_alone(whole, tmp_path / "in") if foreign else whole
    copied(tmp_path / "out", "--records", source, *KEY, "--classes", "person,dog")
    spec = json.loads((oracle.DATA / "coco_train/annotations/instances.json").read_text())
    ids = {c["id"] for c in spec["categories"] if c["name"] in ("person", "dog")}
    wanted = {str(a["image_id"]) for a in spec["annotations"] if a["category_id"] in ids}
    assert keys_of(tmp_path / "out") == wanted


@pytest.mark.parametrize("keep", [thorough("first"), "last"])
def test_one_record_of_equal_keys_is_kept(keep: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_records(
            tmp_path / f"in/{name}.tfrecord", [row(1, name), row(2 + (name == "b"), name)]
        )
    flags = ("--records", f"{tmp_path}/in/*.tfrecord", "--key_feature", "id", "--order", "input")
    refused = copy(tmp_path / "stop", *flags).fault
    assert "E-SET-DUPLICATE split train: two samples have the key '1'" in refused
    manifest = copied(tmp_path / keep, *flags, "--on_duplicate", keep)
    found = keyed_records(files_of(tmp_path / keep))
    assert [key for _, key in found] == (["1", "2", "3"] if keep == "first" else ["2", "1", "3"])
    assert found["train", "1"] == row(1, "a" if keep == "first" else "b")
    assert manifest["splits"]["train"]["skipped"] == {"repeated_keys": 1}


def row(number: int, text: str, **others: Sequence[int]) -> bytes:
    features: dict[str, tuple[Kind, Sequence]] = {
        "id": (Kind.INT64, [number]),
        "text": (Kind.BYTES, [text.encode()]),
    }
    more = {key: (Kind.INT64, values) for key, values in others.items()}
    return encode_example(dict(sorted((features | more).items())))


def write_records(path: Path, examples: Sequence[bytes]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(part for data in examples for part in frame_record([data])))


@pytest.mark.thorough
def test_a_second_run_finds_all_done_or_another_source(tmp_path: Path) -> None:
    path = tmp_path / "in/a.tfrecord"
    write_records(path, [row(1, "a"), row(2, "b")])
    flags = ("--records", path.parent)
    copied(tmp_path / "out", *flags)
    left = tmp_path / "out/_staged" / f"{0:032x}"  # by a run that was killed after its commit
    left.mkdir(parents=True)
    assert "already complete" in copy(tmp_path / "out", *flags).out
    assert not left.parent.exists()
    before = files_of(tmp_path / "out")
    path.write_bytes(path.read_bytes())  # another time, the same bytes
    assert copy(tmp_path / "out", *flags).code == 0
    changed = {n for n, data in files_of(tmp_path / "out").items() if before.get(n) != data}
    assert all(name.startswith("_sources/") for name in changed)
    write_records(path.with_name("b.tfrecord"), [row(1, "a"), row(2, "b")])
    for name, code in (("a*", 0), ("b*", 5)):  # the same listing
        assert copy(tmp_path / "glob", "--records", path.with_name(name)).code == code
    path.with_name("b.tfrecord").unlink()
    write_records(path, [row(1, "a"), row(2, "c")])
    assert copy(tmp_path / "out", *flags).ended == (5, "E-OUT-PLAN")


@pytest.fixture(scope="module")
def odd_sources(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set, `old`, and with sources and keys that cannot be read."""
    odd = tmp_path_factory.mktemp("odd")
    for name in ("old", "half"):
        shutil.copytree(whole, odd / name)
    index = min(odd.glob("half/index/*.parquet"))
    index.write_bytes(index_to_parquet(index_from_parquet(index.read_bytes())[:2]))
    shards_alone(whole, odd / "files")
    (odd / "unfinished").mkdir()
    (odd / "unfinished/_plan.json").write_text("{}")
    (odd / "unfinished/train-00000-of-00002-9.tfrec").write_bytes(b"")
    links = {"a_file": (b"b.tfrecord", "nowhere"), "a_folder": (b"\xff", ".")}
    for name, (link, target) in links.items():
        write_records(odd / name / "a.tfrecord", [row(1, "a")])
        (odd / name / os.fsdecode(link)).symlink_to(target)
    kind, step = {"id": (Kind.FLOAT, [1.5])}, {"id": (Kind.INT64, [[1]])}
    write_records(odd / "kinds/a.tfrecord", [row(1, "a"), encode_example(kind)])
    write_records(odd / "steps/a.tfrecord", [row(1, "a"), encode_example({}, step)])
    write_records(odd / "keys/a.tfrecord", [row(1, "a", **{"a//b": [1]})])
    yeti = {"image/object/class/label": (Kind.INT64, [1]), OBJECT_TEXT: (Kind.BYTES, [b"Yeti"])}
    write_records(odd / "names/a.tfrecord", [encode_example(yeti)])
    (odd / "other_keys").write_bytes(b"other")
    (odd / "latin_keys").write_bytes(b"\xff")
    return odd


DIVIDED = "--split_by hash --splits a=1,b=1"
OPAQUE = {"key_feature": "", "classes": "", "split_by": "", "group_by": DIVIDED}
OF_ONE_KIND = "feature 'id' must be of one kind in all records, got"
REFUSED = [
    ("nowhere", "no such folder"),
    ("old/index", "has no TFRecord file; give a folder, file or quoted glob of TFRecord files"),
    ("old/no*", "no file matches 'no*'"),
    ("a_file", "b.tfrecord: a dangling link, not a file; repair it, or remove it"),
    ("a_folder/**/a*", "a directory whose name is not UTF-8, not a file; repair it, or remove it"),
    ("val=old", "has no records of split val; give train="),
    (f"val=old {DIVIDED}", "divides all splits of a data set, got val; give it without SPLIT="),
    ("old --classes unicorn", "has no class 'unicorn'; it has"),
    ("files --classes unicorn", "no record with features is left; check sources, --keys and --cla"),
    ("old --keys other_keys", "E-SET-EMPTY split train: none of 7 records is left (7 not_in_keys)"),
    ("old --keys latin_keys", "invalid start byte; save it as UTF-8"),
    ("unfinished", "is not a finished data set"),
    ("half", "do not fill the shard's"),
    ("kinds", f"{OF_ONE_KIND} float and int64"),
    ("steps", f"{OF_ONE_KIND} int64 a step and int64"),
    ("keys", "key must be like a or a/b, got 'a//b'; remove the empty part"),
    (
        "old names",
        "E-ANN-LABELS all records: category 1 'Yeti' contradicts category 1 'person'",
    ),
    *(
        (f"old --record_type bytes {more} --{option} a", f"{option} needs features, got 'a'; leave")
        for option, more in OPAQUE.items()
    ),
    ("old " * 501, "at most 500 sources per split, got 501; give a folder, or a glob in quotes"),
    ("old --sample 120%", "sample must be above 0 and at most 100%, got 120%; correct it"),
    ("old --sample few", "such as 10%, got 'few'"),
    ("old --since new", "since must come without records, got both"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED, ids=[flags[:40] for flags, _ in REFUSED])
def test_it_is_refused(
    flags: str, message: str, odd_sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(odd_sources)
    run = copy(tmp_path / "out", "--records", *flags.split())
    assert run.code in (2, 3, 7)
    assert message in run.fault
    assert not (tmp_path / "out").exists()


def test_a_bucket_s_records_are_read_together(
    whole: Path, resharded: Path, stand_in: GcsStandIn
) -> None:
    for name, data in files_of(whole).items():
        stand_in.put("in", f"old/{name}", data)
    flags = ("--records", "gs://in/old", "--num_shards", 3, "--seed", 5)
    stand_in.make_bucket("out")
    run = run_pipeline(records.run, *flags, "--output", "gs://out/new")
    assert run.code == 0, run.err
    found = stand_in.objects("out")
    for path in resharded.glob("*.tfrec"):
        assert found[f"new/{path.name}"] == path.read_bytes()
    read = [r.name for r in stand_in.requests if r.kind is RequestKind.READ]
    shards_read = [name for name in read if name.endswith(".tfrec")]
    records_there = len(keys_of(whole))
    assert 2 <= len(shards_read) < records_there  # not one request a record


PHOTOS = 12


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
        ["--hosts", 1 if shares else 1 + number % 3],  # numbers by size are estimates
    ]
    return [*found, *drawn(st.sampled_from(sizes))]


@pytest.mark.slow
@draw(12, phases=[Phase.generate])  # to shrink takes minutes, as an example takes seconds
@given(flags=options())
def test_copies_equal_a_fresh_conversion(
    flags: list[object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A reshard, a merge and a relabelled copy give the same shards."""
    out = tmp_path_factory.mktemp("out")
    old, (images, annotations) = out / "old", write_set(out, PHOTOS)
    annotated = ("--annotations", annotations, "--no_report")
    parts = [old / f"train-0000{number}-*" for number in range(2)]
    runs: Mapping[str, tuple[Callable, tuple[object, ...]]] = {
        "fresh": (coco.run, ("--images", images, *annotated)),
        "reshard": (records.run, ("--records", old, "--no_report")),
        "merge": (records.run, ("--records", *parts, "--no_report")),
        "relabel": (coco.run, ("--images", old, *annotated)),
    }
    in_order = ("--num_shards", 2, "--order", "input")
    committed_by(coco.run, old, "--images", images, *annotated, *in_order)
    for name, (run, given_flags) in runs.items():
        committed_by(run, out / name, *given_flags, *flags)
        assert digests(out / name, "*.tfrec") == digests(out / "fresh", "*.tfrec"), name
