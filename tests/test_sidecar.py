"""Images with a JSON file each, end to end: joining, rejects, fields, flags."""

import json
from pathlib import Path

from beam_tfrec.pipelines import sidecar
from tests.coco_command import committed_by, examples, rejected_of, run_pipeline, shard_paths, value
from tests.side_folders import labelme, shape, sources, write_side_files

CAT_AND_DOG = labelme(shape(), shape("dog"))


def rejects(out: Path) -> list[tuple[str, str, str]]:
    return [(one["code"], one["key"], one["detail"]) for one in rejected_of(out)]


def test_each_bad_sample_is_one_reject(tmp_path: Path) -> None:
    files = {
        **{f"good{number}": CAT_AND_DOG for number in range(8)},
        "broken": b'{"shapes": [}',
        "gbk": json.dumps(labelme(shape("\u72d7")), ensure_ascii=False).encode("gbk"),
        "alone": None,
        "gone": CAT_AND_DOG,
        "two": labelme(),
        "bad": labelme(shape(), shape("x", "point", (1, 1))),
    }
    images, _ = folders = write_side_files(tmp_path, files)
    (images / "gone.jpg").unlink()
    (images / "two.png").write_bytes((images / "two.jpg").read_bytes())
    (images / "good7.jpg").write_bytes(b"")
    manifest = committed_by(sidecar.run, tmp_path / "out", *sources(folders), "--max_rejected", 8)
    twice = "2 images and 1 annotation files have its name"
    broken = "broken.json: JSON is malformed: invalid character (byte 12)"
    assert rejects(tmp_path / "out") == [
        ("E-ANN-MISSING", "alone.jpg", "no annotation file has its name"),
        ("E-ANN-SHAPE", "bad.jpg", "shape_type is 'point'"),
        ("E-ANN-FILE", "broken.jpg", broken),
        ("E-ANN-FILE", "gbk.jpg", "gbk.json: not UTF-8 (byte 136): save the file as UTF-8"),
        ("E-IMG-MISSING", "gone.json", "no such image"),
        ("E-IMG-EMPTY", "good7.jpg", "0 bytes"),
        ("E-SRC-TWICE", "two.jpg", twice),
        ("E-SRC-TWICE", "two.json", twice),
        ("E-SRC-TWICE", "two.png", twice),
    ]
    summary = manifest["splits"]["train"]
    assert (summary["listed"], summary["records"]) == (16, 8)
    dropped = {"E-ANN-SHAPE": 1}
    fates = {"dropped": dropped, "excluded": 0, "listed": 20, "lost": 4, "written": 15}
    assert summary["annotations"] == fates


def test_files_may_name_their_images(tmp_path: Path) -> None:
    names = {f"m{number}": f"more{number}.jpg" for number in range(4)}
    files = {name: labelme(shape(), imagePath=f"..\\photos\\{names[name]}") for name in names}
    gone, nameless = labelme(shape(), imagePath="q.jpg"), labelme(shape(), imagePath=None)
    images, annotations = write_side_files(tmp_path, {**files, "y": gone, "z": nameless})
    for name, image in names.items():
        (images / f"{name}.jpg").rename(images / image)
    for name in "yz":
        (images / f"{name}.jpg").unlink()
    flags = ["--join_by", "imagePath", "--max_rejected", 2]
    committed_by(sidecar.run, tmp_path / "out", *sources((images, annotations)), *flags)
    written = {value(e, "image/filename")[0].decode() for e in examples(tmp_path / "out")}
    assert written == {*names.values()}
    assert rejects(tmp_path / "out") == [
        ("E-IMG-MISSING", "y.json", "imagePath 'q.jpg': no such image"),
        ("E-IMG-MISSING", "z.json", "imagePath '': no such image"),
    ]


FIELDS = ("--fields", "a.b=int64,score=float", "tags=bytes[],who=bytes", "b.c=int64?")


def test_fields_are_features_with_the_defaults_of_readers(tmp_path: Path) -> None:
    import tensorflow as tf

    full = {"a": {"b": 7}, "score": 1, "tags": ["x", "y"], "who": "Zoë", "more": [{}]}
    folders = write_side_files(tmp_path, {"1": full, "2": {"tags": None}, "3": {"a": 5, "who": ""}})
    (none := tmp_path / "no.jsonl").touch()
    flags = [*FIELDS, "--exclude", none, "--output", tmp_path / "out"]
    run = run_pipeline(sidecar.run, *sources(folders), *flags)
    assert run.code == 0, run.err
    assert f"of b.c: check the names that you gave\nno sample is in {none}: is it of" in run.err
    features = {
        "image/filename": tf.io.FixedLenFeature([], tf.string),
        "a.b": tf.io.FixedLenFeature([], tf.int64, -1),
        "score": tf.io.FixedLenFeature([], tf.float32, 0.5),
        "tags": tf.io.RaggedFeature(tf.string),
        "who": tf.io.FixedLenFeature([], tf.string, "nobody"),
    }
    got = {}
    for record in tf.data.TFRecordDataset([str(path) for path in shard_paths(tmp_path / "out")]):
        row = {
            key: one.numpy() for key, one in tf.io.parse_single_example(record, features).items()
        }
        name = row.pop("image/filename").decode()
        got[name] = {**row, "tags": row["tags"].tolist()}
    assert got == {
        "1.jpg": {"a.b": 7, "score": 1.0, "tags": [b"x", b"y"], "who": "Zoë".encode()},
        "2.jpg": {"a.b": -1, "score": 0.5, "tags": [], "who": b"nobody"},
        "3.jpg": {"a.b": -1, "score": 0.5, "tags": [], "who": b""},
    }
    manifest = json.loads((tmp_path / "out/manifest.json").read_bytes())
    optional = {f["key"] for f in manifest["features"] if f.get("optional")}
    assert optional == {"a.b", "score", "who", "b.c"}
    assert manifest["layout"] == "table"
