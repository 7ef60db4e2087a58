"""Copying records: reshard, merge, divide and choose, from data sets and other TFRecord files."""

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_tfrec
from beam_tfrec.pipelines import coco, records
from beam_tfrec.pipelines.diff import run as diff
from beam_tfrec.pipelines.show import run as show
from beam_tfrec.pipelines.verify import run as verify
from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import Kind
from beam_tfrec.schemas.tfrecord import frame_record
from beam_tfrec.transforms.shard_index import index_from_parquet, index_to_parquet
from tests import oracle
from tests.coco_command import Run, literal_png, run_pipeline
from tests.conftest import jpeg_bytes
from tests.gcs_stand_in import GcsStandIn
from tests.gcs_stand_in import Kind as RequestKind
from tests.invariants import check_committed, files_of, keyed_records

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
    run = copy(output, *flags)
    assert run.code == 0, run.err
    return check_committed(files_of(output))


def shards(output: Path) -> dict[str, str]:
    found = sorted(output.glob("*.tfrec"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of two shards."""
    return convert(tmp_path_factory.mktemp("whole") / "out", "--num_shards", 2)


@pytest.fixture(scope="module")
def resharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same photos in three shards and another order."""
    out = tmp_path_factory.mktemp("resharded") / "out"
    return convert(out, "--num_shards", 3, "--seed", 5)


CASES = [name for name in oracle.CASES if not name.startswith("odd")]
QUICK = ("coco detection, captions and keypoints", "table of JSON Lines, sequences", "pairs")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    oracle.make_sources(folder)
    return folder


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.thorough) for n in CASES],
)
def test_resharding_there_and_back_gives_the_same_shards(
    name: str, made: Path, tmp_path: Path
) -> None:
    case = oracle.CASES[name]
    first = tmp_path / "first"
    assert run_pipeline(case.run, *case.words(made), "--no_report", "--output", first).code == 0
    manifest = json.loads((first / "manifest.json").read_text())
    plan = manifest["plan"]
    splits, options = plan["splits"], plan["options"]
    order = ["--order", *options["order"].replace("all=", "").split(" ")]
    second, third = tmp_path / "second", tmp_path / "third"
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
    assert shards(third) == shards(first)
    assert again["layout"] == manifest["layout"]
    for document in ("features.json", "schema.pbtxt", "label_map.pbtxt"):
        if (first / document).exists():
            assert (third / document).read_bytes() == (first / document).read_bytes()
    assert run_pipeline(verify, third, "--deep").code == 0


def shards_alone(data_set: Path, folder: Path) -> Path:
    """Copy the shards of a data set into a folder, as if another program had written them."""
    folder.mkdir()
    for path in data_set.glob("*.tfrec"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_files_of_another_program_give_the_same_shards(
    whole: Path, resharded: Path, tmp_path: Path
) -> None:
    files = shards_alone(whole, tmp_path / "in")
    flags = ("--num_shards", 3, "--seed", 5)
    manifest = copied(tmp_path / "out", "--records", files / "*.tfrec", *KEY, *flags)
    assert shards(tmp_path / "out") == shards(resharded)
    features = {feature["key"]: feature for feature in manifest["features"]}
    assert features["image/encoded"]["content"] == "image"
    assert features["image/object/bbox/xmin"]["repeated"]
    assert run_pipeline(verify, tmp_path / "out", "--deep").code == 0


def test_two_halves_merge_to_the_whole(whole: Path, tmp_path: Path) -> None:
    halves = tmp_path / "halves"
    divide = ("--split_by", "hash", "--splits", "one=1,two=1")
    copied(halves, "--records", whole, *divide)
    parts = [f"train={halves}/{half}-*.tfrec" for half in ("two", "one")]
    copied(tmp_path / "merged", "--records", *parts, "--num_shards", 2)
    assert shards(tmp_path / "merged") == shards(whole)


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


def test_a_larger_sample_holds_the_smaller_one(whole: Path, tmp_path: Path) -> None:
    found = []
    for share in ("20%", "60%", "1"):
        copied(tmp_path / share, "--records", whole, "--sample", share)
        found.append(keys_of(tmp_path / share))
    assert found[0] < found[1] < found[2] == keys_of(whole)


@pytest.mark.parametrize("foreign", [False, True])
def test_records_of_a_class(whole: Path, tmp_path: Path, foreign: bool) -> None:
    source = shards_alone(whole, tmp_path / "in") if foreign else whole
    copied(tmp_path / "out", "--records", source, *KEY, "--classes", "person,dog")
    spec = json.loads((oracle.DATA / "coco_train/annotations/instances.json").read_text())
    ids = {c["id"] for c in spec["categories"] if c["name"] in ("person", "dog")}
    wanted = {str(a["image_id"]) for a in spec["annotations"] if a["category_id"] in ids}
    assert keys_of(tmp_path / "out") == wanted


@pytest.mark.parametrize("keep", ["first", "last"])
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


ANY_BYTES = [b"", b"\xff" * 9, b"\n\x03abc", *(b"%d" % number for number in range(5))]


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


def test_features_are_those_of_all_records(tmp_path: Path) -> None:
    rows = [row(1, "a", few=[1], many=[]), row(2, "b", many=[1, 2])]
    write_records(tmp_path / "in/a.tfrecord", rows)
    manifest = copied(tmp_path / "out", "--records", tmp_path / "in/a.tfrecord")
    found = {f["key"]: (f["kind"], f["repeated"], f.get("optional", False))
             for f in manifest["features"]}  # fmt: skip
    assert found == {
        "few": ("int64", False, True),
        "id": ("int64", False, False),
        "many": ("int64", True, False),
        "text": ("bytes", False, False),
    }
    assert keys_of(tmp_path / "out") == {"a.tfrecord:0", "a.tfrecord:1"}
    assert run_pipeline(verify, tmp_path / "out").code == 0


@pytest.fixture(scope="module")
def any_bytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of records that are no Examples, copied from a plain and a compressed file."""
    folder = tmp_path_factory.mktemp("any")
    write_records(folder / "in/a-1.tfrecord", ANY_BYTES[:3])
    framed = b"".join(part for data in ANY_BYTES[3:] for part in frame_record([data]))
    (folder / "in/b.tfrecord.gz").write_bytes(gzip.compress(framed))
    flags = ("--record_type", "bytes", "--num_shards", 3)
    manifest = copied(folder / "out", "--records", folder / "in", *flags)
    assert (manifest["layout"], manifest["features"]) == ("bytes", [])
    return folder / "out"


def test_records_of_any_bytes_are_copied(any_bytes: Path) -> None:
    keys = [f"a-1.tfrecord:{number}" for number in range(3)]
    keys += [f"b.tfrecord.gz:{number}" for number in range(5)]
    places = [("train", key) for key in keys]
    assert keyed_records(files_of(any_bytes)) == dict(zip(places, ANY_BYTES, strict=True))
    opened = beam_tfrec.open(str(any_bytes), "train")
    assert [dict(opened[opened.find(key)]) for key in keys] == [{"record": b} for b in ANY_BYTES]


@pytest.mark.thorough
def test_records_of_any_bytes_are_data_sets_like_others(any_bytes: Path, tmp_path: Path) -> None:
    assert not [*any_bytes.glob("*.pbtxt"), *any_bytes.glob("features.json")]
    assert run_pipeline(verify, any_bytes, "--deep").code == 0
    assert "9 bytes: ff ff" in run_pipeline(show, any_bytes).out
    card = (any_bytes / "README.md").read_text()
    assert "None: records are any bytes" in card and "tf.io.parse" not in card
    loaded = [record["record"].numpy() for record in beam_tfrec.load(str(any_bytes), "train")]
    (batch,) = beam_tfrec.load(str(any_bytes), "train", batch_size=8)
    assert sorted(loaded) == sorted(batch["record"].numpy()) == sorted(ANY_BYTES)

    out, flags = tmp_path / "out", ("--records", any_bytes, "--num_shards", 2)
    assert "got example; give --record_type bytes" in copy(out, *flags).fault
    copied(out, *flags, "--record_type", "bytes")
    assert run_pipeline(diff, any_bytes, out).code == 0


@pytest.mark.thorough
def test_steps_that_some_records_lack_are_optional(tmp_path: Path) -> None:
    ids = {"id": (Kind.INT64, [7])}
    lists = [{"one": (Kind.INT64, [[1]]), "more": (Kind.FLOAT, [[0.5, 2], []])}, {}, None]
    rows = [encode_example(ids, steps) for steps in lists]
    write_records(tmp_path / "in/a.tfrecord", rows)
    flags = ("--records", tmp_path / "in", "--order", "input")
    manifest = copied(tmp_path / "out", *flags)
    optional = {f["key"]: f.get("optional", False) for f in manifest["features"]}
    assert optional == {"id": False, "more": True, "one": True}
    assert [*keyed_records(files_of(tmp_path / "out")).values()] == rows
    assert run_pipeline(verify, tmp_path / "out").code == 0
    steps = [len(record["one"]) for record in beam_tfrec.open(str(tmp_path / "out"), "train")]
    loaded = [*beam_tfrec.load(str(tmp_path / "out"), "train")]
    assert steps == [1, 0, 0] == [record["one"].shape[0] for record in loaded]
    assert [record["more"].to_list() for record in loaded] == [[[0.5, 2], []], [], []]


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


SIZE = len(row(1, "a")) + 16  # of each frame
DAMAGES: Mapping[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "a byte of a record": (lambda d: flip(d, SIZE + 20), 1, f"record 1 at byte {SIZE}: "),
    "the end": (lambda d: d[:-3], 1, f"record 2 at byte {2 * SIZE}: "),
    "no Example": (lambda d: d + b"".join(frame_record([b"\xff" * 9])), 1, "of another kind"),
    "no key": (lambda d: d + b"".join(frame_record([encode_example({})])), 1, "no single value"),
}


def test_a_file_that_cannot_be_read_on_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "in/a.tfrecord"
    write_records(path, [row(number, "a") for number in (1, 2, 3)])
    path.write_bytes(flip(path.read_bytes(), SIZE))
    run = copy(tmp_path / "out", "--records", path, "--max_rejected", 3)
    assert run.ended == (3, "E-SRC-DAMAGED")
    assert f"a.tfrecord: record 1 at byte {SIZE}: " in run.fault


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_record_is_rejected(name: str, tmp_path: Path) -> None:
    damage, lost, detail = DAMAGES[name]
    path = tmp_path / "in/a.tfrecord"
    write_records(path, [row(number, "a") for number in (1, 2, 3)])
    path.write_bytes(damage(path.read_bytes()))
    flags = ("--records", path, "--key_feature", "id")
    assert copy(tmp_path / "out", *flags).code == 4
    copied(tmp_path / "out", *flags, "--max_rejected", lost)
    (line,) = (tmp_path / "out/rejected.jsonl").read_text().splitlines()
    reject = json.loads(line)
    assert reject["file_name"] == "a.tfrecord" and detail in reject["detail"]


def test_a_damaged_record_of_a_data_set_is_rejected(whole: Path, tmp_path: Path) -> None:
    for name, data in files_of(whole).items():
        (tmp_path / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "old" / name).write_bytes(data)
    path = min((tmp_path / "old").glob("*.tfrec"))
    path.write_bytes(flip(path.read_bytes(), 100))
    manifest = copied(tmp_path / "out", "--records", tmp_path / "old", "--max_rejected", 1)
    assert manifest["splits"]["train"]["rejected"] == {"E-REC-DAMAGED": 1}
    (reject,) = map(json.loads, (tmp_path / "out/rejected.jsonl").read_text().splitlines())
    assert reject["file_name"] == path.name and "at byte 0: " in reject["detail"]


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


def unfinished(folder: Path) -> Iterator[object]:
    folder.mkdir()
    (folder / "_plan.json").write_text("{}")
    (folder / "train-00000-of-00002-9.tfrec").write_bytes(b"")
    yield from ("--records", folder)


def with_index(old: Path, folder: Path, rows: int) -> Iterator[object]:
    shutil.copytree(old, folder)
    index = min(folder.glob("index/*.parquet"))
    kept = index_from_parquet(index.read_bytes())[:rows]
    index.unlink()
    if kept:
        index.write_bytes(index_to_parquet(kept))
    yield from ("--records", folder)


def utf_16(old: Path, keys: Path) -> Iterator[object]:
    keys.write_text("1", "utf-16")
    yield from ("--records", old, "--keys", keys)


def mixed(folder: Path, other: bytes) -> Iterator[object]:
    folder.mkdir()
    write_records(folder / "a.tfrecord", [row(1, "a"), other])
    yield from ("--records", folder)


REFUSED: Mapping[str, tuple[Callable[[Path, Path], Sequence[object]], str]] = {
    "no folder": (lambda _, new: ("--records", new), "no such folder"),
    "unquoted": (lambda old, _: ("--records", *[old] * 1025), "got 1025; give a folder, or a glob"),
    "no records": (
        lambda old, _: ("--records", old / "index"),
        "has no TFRecord file; give a folder, file or quoted glob of TFRecord files",
    ),
    "no match": (lambda old, _: ("--records", old / "no*"), "no file matches 'no*'"),
    "no split": (
        lambda old, _: ("--records", f"val={old}"),
        "is a data set without a split val; give one of train as SPLIT=",
    ),
    "no class": (
        lambda old, _: ("--records", old, "--classes", "unicorn"),
        "has no class 'unicorn'; it has",
    ),
    "unfinished": (lambda _, new: [*unfinished(new)], "is not a finished data set"),
    "half an index": (lambda old, new: [*with_index(old, new, 2)], "do not fill the shard's"),
    "no index": (
        lambda old, new: [*with_index(old, new, 0)],
        "parquet: is missing; restore",
    ),
    "keys": (lambda old, new: [*utf_16(old, new)], "invalid start byte; save it as UTF-8"),
    "kinds": (
        lambda _, new: [*mixed(new, encode_example({"id": (Kind.FLOAT, [1.5])}))],
        "feature 'id' must be of one kind, got float in some records and int64 in others",
    ),
    "steps": (
        lambda _, new: [*mixed(new, encode_example({}, {"id": (Kind.INT64, [[1]])}))],
        "feature 'id' must be of one kind, got int64 a step in some records and int64 in others",
    ),
    **{
        f"{option} of bytes": (
            lambda old, _, flags=flags: ("--records", old, "--record_type", "bytes", *flags),
            f"{option} needs features, got 'a'; leave it out",
        )
        for option, flags in {
            "key_feature": ("--key_feature", "a"),
            "classes": ("--classes", "a"),
            "split_by": ("--split_by", "a"),
            "group_by": ("--split_by", "hash", "--splits", "a=1,b=1", "--group_by", "a"),
        }.items()
    },
    "output in the source": (
        lambda old, _: ("--records", old, "--output", old / "new"),
        "output must lie apart from all sources",
    ),
    "a glob without quotes": (
        lambda old, _: ("--records", *[old / f"{n}.tfrec" for n in range(501)]),
        "at most 500 sources per split, got 501; give a folder, or a glob in quotes",
    ),
    "share": (lambda old, _: ("--records", old, "--sample", "120%"), "sample must be above 0"),
    "no share": (lambda old, _: ("--records", old, "--sample", "few"), "such as 10%, got 'few'"),
    "since": (
        lambda old, new: ("--records", old, "--since", new),
        "since must come without records, got both",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    flags, message = REFUSED[name]
    run = run_pipeline(
        records.run, "--output", tmp_path / "out", *flags(whole, tmp_path / "new"), "--no_report"
    )
    assert run.code in (2, 3, 7)
    assert message in run.fault
    assert not (tmp_path / "out").exists()


def write_by_tensorflow(folder: Path) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as writer:
        for number in range(20):
            values = tf.train.Int64List(value=range(number))
            features = {"values": tf.train.Feature(int64_list=values)}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def write_by_tfds(folder: Path) -> None:
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=["even", "odd"]),
            "numbers": tfds.features.Sequence(np.int64),
        }
    )
    version, place = tfds.core.Version("1.0.0"), {"data_dir": str(folder), "module_name": "numbers"}
    identity = tfds.core.DatasetIdentity(name="numbers", version=version, **place)
    info = tfds.core.DatasetInfo(builder=identity, features=features)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=8)
    writer.initialize_splits(["train"])
    for number in range(20):
        image = np.full((4, 5 + number, 3), number, np.uint8)
        example = {"image": image, "label": number % 2, "numbers": [*range(number)]}
        writer.add_examples({"train": [example]})
    writer.close_all()


def tf_feature(value: Any) -> Any:
    """Return a `tf.train.Feature` of a value, or of a list of them."""
    import tensorflow as tf

    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    values = [v.encode() if isinstance(v, str) else v for v in values]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def write_features(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            features = tf.train.Features(feature={key: tf_feature(row[key]) for key in row})
            writer.write(tf.train.Example(features=features).SerializeToString())


def write_by_keras_recipe(folder: Path) -> None:
    """Keys and file names of keras.io, "Creating TFRecords": an Example for each annotation."""
    rows = [
        {
            "image": jpeg_bytes(color=number),
            "path": f"val2017/{number:012}.jpg",
            "area": 702.1 + number,
            "bbox": [473.07, 395.93, 38.65, 28.67],
            "category_id": 18,
            "id": 1768 + number,
            "image_id": 289343 + number // 2,
        }
        for number in range(20)
    ]
    for number in range(2):
        write_features(folder / f"file_{number:02}-10.tfrec", rows[10 * number : 10 * number + 10])


def write_by_model_garden(folder: Path) -> None:
    """Keys of create_coco_tf_record.py with masks; photos without objects lack those of boxes."""
    rows = []
    for number in range(20):
        data, objects = jpeg_bytes(color=number), number % 5
        lists = {f"bbox/{edge}": 0.25 + number / 50 for edge in ("xmin", "xmax", "ymin", "ymax")}
        lists |= {"class/text": "cat", "class/label": 17, "is_crowd": 0, "area": 122.5}
        lists |= {"mask": literal_png(64, 48, 255)}
        rows.append(
            {
                "image/height": 48,
                "image/width": 64,
                "image/filename": f"{number:012}.jpg",
                "image/source_id": str(number),
                "image/key/sha256": hashlib.sha256(data).hexdigest(),
                "image/encoded": data,
                "image/format": "jpg",
                **{f"image/object/{key}": [of] * objects for key, of in lists.items() if objects},
            }
        )
    for shard in range(2):
        write_features(folder / f"coco-{shard:05}-of-00002.tfrecord", rows[shard::2])


WRITERS: Mapping[str, Callable[[Path], None]] = {
    "TensorFlow": write_by_tensorflow,
    "TFDS": write_by_tfds,
    "Keras recipe": write_by_keras_recipe,
    "Model Garden": write_by_model_garden,
}
QUICK_WRITERS = ("TensorFlow", "TFDS")


@pytest.mark.parametrize(
    "writer",
    [pytest.param(n, marks=() if n in QUICK_WRITERS else pytest.mark.thorough) for n in WRITERS],
)
def test_records_of_another_program_keep_their_bytes(writer: str, tmp_path: Path) -> None:
    import tensorflow as tf

    (tmp_path / "in").mkdir()
    WRITERS[writer](tmp_path / "in")
    flags = ("--records", f"{tmp_path}/in/**/*.tfrec*", "--num_shards", 3)
    copied(tmp_path / "out", *flags)
    read = {
        folder: sorted(
            record.numpy()
            for record in tf.data.TFRecordDataset(
                sorted(str(path) for path in (tmp_path / folder).rglob("*.tfrec*"))
            )
        )
        for folder in ("in", "out")
    }
    assert len(read["in"]) == 20 and read["out"] == read["in"]
    assert run_pipeline(verify, tmp_path / "out", "--deep").code == 0


def test_a_bucket_s_records_are_read_together(
    whole: Path, resharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GcsStandIn() as stand_in:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stand_in.url)
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
