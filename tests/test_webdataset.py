"""Tar files in the form of WebDataset, end to end: records, rejects, faults, buckets."""

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from beam_tfrec.pipelines import folder, sidecar, webdataset
from beam_tfrec.transforms.sources.read_tar import walk_members
from tests.coco_command import committed_by, digests, examples, rejected_of, run_pipeline, value
from tests.conftest import TEST_DATA, jpeg_bytes, thorough
from tests.gcs_stand_in import GcsStandIn, Kind
from tests.side_folders import labelme, sa1b, shape, sources, write_side_files

PHOTOS = sorted((TEST_DATA / "classes").glob("*/*.jpg"))
CLASSES = sorted({photo.parent.name for photo in PHOTOS})
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
Members = Iterable[tuple[str, bytes]]
RLE = {"size": [48, 64], "counts": [100, 40, 48 * 64 - 140]}
SA1B = sa1b({"id": 1, "bbox": [2, 4, 1, 40], "area": 40, "segmentation": RLE}, width=64, height=48)


def tar_bytes(members: Members, form: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar file as webdataset's `TarWriter` makes it: its pax headers hold the times."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o444, 1_700_000_000.25
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def write_tar(path: Path, members: Members, form: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members, form))
    return path


def members_of(photos: Iterable[Path], *extensions: str, prefix: str = "") -> Members:
    """Yield the members of photos in the order of their extensions, as writers sort them."""
    for photo in photos:
        base = f"{prefix}{photo.parent.name}/{photo.stem}"
        texts = {
            "cls": str(CLASSES.index(photo.parent.name)).encode(),
            "json": b"{}",
            "txt": f"No. {PHOTOS.index(photo)}".encode(),
        }
        for extension in sorted({"jpg", *extensions}):
            yield f"{base}.{extension}", texts.get(extension) or photo.read_bytes()


def records_of(out: Path, split: str = "") -> dict[bytes, Any]:
    """Return the features of every record by the file's name."""
    return {value(one, "image/filename")[0]: one.features for one in examples(out, split)}


@pytest.mark.parametrize("form", ["pax", *map(thorough, ("gnu", "ustar"))])
def test_classes_are_those_of_folders(form: str, tmp_path: Path) -> None:
    # Names of more than 100 bytes need GNU's long names or pax headers; ustar divides them.
    prefix = f"{'a' * 99}/" if form != "ustar" else ""
    for number in range(3):
        members = members_of(PHOTOS[number::3], "cls", "txt", prefix=prefix)
        write_tar(tmp_path / f"tars/t-{number + 8:03}.tar", members, FORMATS[form])
    (tmp_path / "labels.txt").write_text("\n".join(CLASSES))
    flags = ("--label_file", tmp_path / "labels.txt")
    shards = ("--shards", f"{tmp_path}/tars/t-{{008..010}}.tar")
    manifest = committed_by(webdataset.run, tmp_path / "out", *shards, *flags)
    committed_by(folder.run, tmp_path / "wanted", "--images", TEST_DATA / "classes", *flags)
    found, wanted = records_of(tmp_path / "out"), records_of(tmp_path / "wanted")
    for name, features in wanted.items():
        features.feature["image/filename"].bytes_list.value[:] = [prefix.encode() + name]
    assert found == {prefix.encode() + name: features for name, features in wanted.items()}
    assert manifest["layout"] == "classification"
    assert rejected_of(tmp_path / "out") == []


def test_compressed_files_give_equal_data_sets(tmp_path: Path) -> None:
    packers = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    for number, (suffix, pack) in enumerate(packers.items()):
        plain = write_tar(tmp_path / f"plain/{number}.tar", members_of(PHOTOS[number::3], "cls"))
        (tmp_path / "packed").mkdir(exist_ok=True)
        suffix = suffix.upper() if suffix == "gz" else suffix
        (tmp_path / f"packed/{number}.tar.{suffix}").write_bytes(pack(plain.read_bytes()))
    for kind, shards in {"plain": "*.tar", "packed": "*"}.items():
        out = tmp_path / f"{kind}-out"
        committed_by(webdataset.run, out, "--shards", tmp_path / kind / shards)
        assert len(examples(out)) == len(PHOTOS)
        assert not (out / "_staged").exists()
    packed, plain = tmp_path / "packed-out", tmp_path / "plain-out"
    assert digests(packed, "*.tfrec") == digests(plain, "*.tfrec")


BOXES = {
    "xywh": [8, 6, 16, 12],
    "yxyx": [6, 8, 18, 24],
    "rel_center_xywh": [0.25, 0.25, 0.25, 0.25],
}


@pytest.mark.parametrize("form", ["yxyx", thorough("xywh"), thorough("rel_center_xywh")])
def test_a_map_finds_boxes_in_other_json(form: str, tmp_path: Path) -> None:
    objects = {"rect": [BOXES[form], [10**400] * 4], "kind": [3, "cat"], "area": [2**64, 1]}
    objects["id"] = [2**64, 3]
    record = {"found": {"here": objects}, "width": 64, "height": 48}
    members = [("a.jpg", jpeg_bytes()), ("a.json", json.dumps(record).encode())]
    shards = ("--shards", write_tar(tmp_path / "in/t.tar", members), "--max_dropped", "1")
    flags = ("--objects", "found.here", "--object_keys", "rect,kind", "--box_format", form)
    committed_by(webdataset.run, tmp_path / "out", *shards, *flags)
    [example] = examples(tmp_path / "out")
    corners = [value(example, f"image/object/bbox/{side}") for side in ("xmin", "ymin", "xmax")]
    assert corners == [[0.125], [0.125], [0.375]]
    assert value(example, "image/object/class/text") == [b"3"]
    assert [reject["code"] for reject in rejected_of(tmp_path / "out")] == ["E-BOX-NOT-FINITE"]


@pytest.mark.thorough
def test_class_numbers_are_kept_where_classes_are_missing(tmp_path: Path) -> None:
    photo = PHOTOS[0].read_bytes()
    members = [("a.jpg", photo), ("a.cls", b"10\n"), ("b.cls", b"2"), ("b.jpg", photo)]
    shards = ("--shards", write_tar(tmp_path / "in/t.tar", members))
    for layout, first in (("classification", 0), ("imagenet", 1)):
        committed_by(webdataset.run, tmp_path / layout, *shards, "--layout", layout)
        found = {
            value(one, "image/filename")[0]: value(one, "image/class/label")[0]
            for one in examples(tmp_path / layout)
        }
        assert found == {b"a.jpg": 10 + first, b"b.jpg": 2 + first}


@pytest.mark.parametrize(
    ("flags", "good", "bad"),
    [
        (("--format", "auto", "--features", "boxes,masks"), SA1B, SA1B | {"annotations": [{}]}),
        thorough(("--format", "labelme", "--first_label", 0), labelme(shape()), labelme({})),
    ],
)
def test_objects_are_those_of_sidecar(
    flags: tuple, good: dict[str, Any], bad: dict[str, Any], tmp_path: Path
) -> None:
    """Also what is dropped and rejected."""
    files = {photo.stem: good for photo in PHOTOS} | {"bad": bad, "broken": b"{"}
    images, annotations = write_side_files(tmp_path, files)
    paths = sorted(
        [*images.iterdir(), *annotations.iterdir()], key=lambda path: (path.stem, path.name)
    )
    shards = write_tar(tmp_path / "in/t.tar", ((path.name, path.read_bytes()) for path in paths))
    flags = (*flags, "--max_rejected", 1, "--max_dropped", 1)
    manifests = [
        committed_by(webdataset.run, tmp_path / "out", "--shards", shards, *flags),
        committed_by(sidecar.run, tmp_path / "wanted", *sources((images, annotations)), *flags),
    ]
    found, wanted = records_of(tmp_path / "out"), records_of(tmp_path / "wanted")
    for features in (*found.values(), *wanted.values()):
        del features.feature["image/source_id"]
    assert found == wanted
    assert len(found) == len(PHOTOS) + 1
    fates = [manifest["splits"]["train"]["annotations"] for manifest in manifests]
    assert fates[0] == fates[1] and sum(fates[0]["dropped"].values()) == 1
    rejects = [
        sorted(
            (
                one["code"],
                one["key"].removesuffix(".jpg"),
                one["detail"].removeprefix("broken.json: "),
            )
            for one in rejected_of(tmp_path / name)
        )
        for name in ("out", "wanted")
    ]
    assert rejects[0] == rejects[1]
    assert rejected_of(tmp_path / "out")[0]["file_name"] == "t.tar:bad.jpg"


def test_captions_of_img2dataset_are_a_feature(tmp_path: Path) -> None:
    members = [
        *[("000000000.jpg", jpeg_bytes()), ("000000000.json", b'{"key": "000000000"}')],
        *[("000000000.txt", "Zoë\n".encode()), ("000000001.jpg", jpeg_bytes(color=1))],
        ("000000001.json", b'{"key": "000000001", "status": "success"}'),
    ]
    write_tar(tmp_path / "in/00000.tar", members)
    for other in ("00000_stats.json", "._00000.tar"):
        (tmp_path / "in" / other).write_text("{}")
    flags = ("--fields", "txt=bytes,key=bytes", "--order", "input")
    committed_by(webdataset.run, tmp_path / "out", "--shards", f"{tmp_path}/in/*", *flags)
    found = [(value(one, "key"), value(one, "txt")) for one in examples(tmp_path / "out")]
    assert found == [([b"000000000"], ["Zoë\n".encode()]), ([b"000000001"], [])]


JPG, WEBP = jpeg_bytes(), (TEST_DATA / "odd/hopper.webp").read_bytes()
Bad = Sequence[tuple[Mapping[str, bytes], str, str]]
BAD: Bad = [
    ({"cls": b"0"}, "E-IMG-MISSING", "no image with its base name is next to it"),
    ({"jpg": JPG, "png": JPG, "cls": b"0"}, "E-SRC-TWICE", "2.jpg and 2.png have one base name"),
    ({"jpg": b"", "cls": b"0"}, "E-IMG-EMPTY", "0 bytes"),
    ({"jpg": JPG[:-9], "cls": b"0"}, "E-IMG-TRUNCATED", ""),
    ({"webp": WEBP, "cls": b"0"}, "E-IMG-TYPE", ""),
    ({"jpg": JPG}, "E-SRC-LABEL", "no .cls member with its base name is next to it"),
    ({"JPG": JPG, "cls": b"a"}, "E-SRC-LABEL", ".cls holds 'a', not a whole number of 1 to 5"),
    ({"jpg": JPG, "cls": b"-1"}, "E-SRC-LABEL", ".cls holds '-1', not a whole number of 1 to 5"),
    ({"jpg": JPG, "cls": b"7" * 6}, "E-SRC-LABEL", ".cls holds '777777', not a whole number of"),
    ({"jpg": JPG, "cls": b"\xff"}, "E-ANN-FILE", "10.cls: not UTF-8 (byte 0)"),
]
BAD_NAMED: Bad = [
    ({"jpg": JPG, "cls": b"2"}, "E-SRC-LABEL", ".cls holds 2, the label file has 2 classes")
]
BAD_FIELDS: Bad = [
    ({"jpg": JPG, "json": b'{"a": }'}, "E-ANN-FILE", "JSON is malformed: invalid character"),
    ({"jpg": JPG, "txt": b"a"}, "E-ANN-MISSING", "no .json member with its base name"),
    ({"jpg": JPG, "json": b'{"a": "b"}'}, "E-ROW-TYPE", "field 'a' is int64 and holds 'b'"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("bad", "flags"),
    [(BAD, ""), (BAD_NAMED, "--label_file names.txt"), (BAD_FIELDS, "--fields a=int64")],
)
def test_each_bad_sample_is_one_reject(
    bad: Bad, flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = [("/a.b/../x.jpg", JPG), ("/a.b/../x.cls", b"0"), ("/a.b/../x.json", b'{"a": 1}')]
    members = [
        (f"{number}.{extension}", data)
        for number, (sample, _, _) in enumerate(bad, start=1)
        for extension, data in sample.items()
    ]
    path, out = write_tar(tmp_path / "in/t.tar", [*members, *good]), tmp_path / "out"
    Path("names.txt").write_text("2\n1\n")  # names that are also numbers
    committed_by(webdataset.run, out, "--shards", path, *flags.split(), "--max_rejected", len(bad))
    found = {int(line["key"]): line for line in rejected_of(out)}
    assert len(found) == len(bad)
    for number, (sample, code, detail) in enumerate(bad, start=1):
        line = found[number]
        first = f"t.tar:{number}.{next(iter(sample))}"
        assert (line["code"], line["file_name"]) == (code, first)
        assert line["detail"].startswith(detail)
    assert [*records_of(out)] == [b"/a.b/../x.jpg"]


@pytest.mark.thorough
def test_other_members_are_counted(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "in/t.tar", members_of(PHOTOS[:2], "cls"))
    (tmp_path / "link.jpg").symlink_to("/etc/passwd")
    with tarfile.open(path, "a") as tar:
        tar.add(tmp_path, "folder", recursive=False)
        tar.add(tmp_path / "link.jpg", "link.jpg")
        for name in (".hidden.jpg", "a/._b.jpg", "README"):
            tar.addfile(tarfile.TarInfo(name))
    manifest = committed_by(webdataset.run, tmp_path / "out", "--shards", path)
    summary = manifest["splits"]["train"]
    assert summary["skipped"] == {"hidden": 2, "not_a_file": 1, "not_called_an_image": 1}
    assert (summary["listed"], summary["records"]) == (6, 2)


def header(kind: bytes, size: int) -> bytes:
    """Return the header of a member without its data."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


WHOLE = tar_bytes(members_of(PHOTOS[:2], "cls"))
DAMAGED = {
    "cut within a member": WHOLE[: len(WHOLE) // 2],
    "cut at its end": WHOLE.rstrip(b"\0")[: -len(WHOLE.rstrip(b"\0")) % 512 or None],
    "two archives": WHOLE + WHOLE,
    "a damaged header": WHOLE[:2048].replace(b"ustar", b"?????") + WHOLE[2048:],
    "a header of 1 PB": header(tarfile.XHDTYPE, 2**50) + bytes(9999),
    "a negative size": WHOLE[:-1024] + header(tarfile.REGTYPE, -512) + bytes(9999),
    "empty": b"",
    "another format": b"\x1f\x8b" * 600,
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_never_taken_for_the_end(case: str) -> None:
    with pytest.raises(
        RuntimeError, match=r"^E-SRC-DAMAGED t.tar: cannot be read from byte \d+ on"
    ):
        [*walk_members(io.BytesIO(DAMAGED[case]), "t.tar")]


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ("a.tar.lz4", "E-ARG command line: shards must be .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz"),
        ("a-{2..1}.tar", "E-ARG command line: shards must have ranges that ascend, got {2..1};"),
        ("IN/{1..2}.tar", "E-ARG IN/2.tar: no such file;"),
        ("IN/*.zip", "E-ARG IN: has no such .tar file;"),
        ("IN/links/*.tar", "E-ARG IN/links/z.tar: a dangling link, not a file;"),
        ("IN/links", r"E-ARG IN/links/\xff: a directory whose name is not UTF-8, not a file;"),
        ("IN/**/t*.tar", r"E-ARG IN/links/\xff: a directory whose name is not UTF-8, not a file;"),
        ("IN/*", "E-ARG IN/0.tar.zst: its compression is not supported;"),
        ("IN --fields a=int64 --layout tutorial", "E-ARG command line: layout must come without"),
        ("IN --fields a=int64 --format auto", "E-ARG command line: fields must come without"),
        ("IN --features boxes", "E-ARG command line: features must come with format or objects, "),
        ("IN --objects o --object_keys a", "E-ARG command line: object_keys must be BOX,CLASS"),
        ("IN --box_format xyxy", "E-ARG command line: box_format must come with objects, got xyxy"),
        ("IN --objects o --features masks", "E-ARG command line: features must be of boxes, got"),
        ("IN --objects o --format sa1b", "E-ARG command line: format must come without objects, "),
        ("IN/cut/4.tar.gz", "E-SRC-DAMAGED IN/cut/4.tar.gz: cannot be decompressed (Compressed"),
        ("IN/cut/5.tar.xz", "E-SRC-DAMAGED IN/cut/5.tar.xz: cannot be decompressed ("),
        ("IN/1.tar IN/1/2.tar", "E-SET-DUPLICATE "),
        ("IN/cut", "E-SRC-DAMAGED IN/cut/3.tar: cannot be read from byte 1"),
    ],
)
def test_wrong_sources_are_refused(flags: str, fault: str, tmp_path: Path) -> None:
    here = f"{tmp_path}/in"
    photo = write_tar(tmp_path / "in/1.tar", members_of(PHOTOS[:1], "cls")).read_bytes()
    files = {"0.tar.zst": b"", "1/2.tar": photo, "cut/3.tar": photo[:-9_000]}
    files |= {"cut/4.tar.gz": gzip.compress(photo)[:-99], "cut/5.tar.xz": photo}
    for name, data in files.items():
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    (tmp_path / "in/links").mkdir()
    (tmp_path / "in/links/z.tar").symlink_to("nowhere")
    (tmp_path / "in/links" / os.fsdecode(b"\xff")).symlink_to(".")
    words = ["--shards", *flags.replace("IN", here).split(), "--max_rejected", "100%"]
    ended = run_pipeline(webdataset.run, *words, "--output", tmp_path / "out")
    assert ended.fault.startswith(fault.replace("IN", here))
    assert ended.code == (2 if fault.startswith("E-ARG") else 3)
    assert not (tmp_path / "out/_plan.json").exists()  # so that the corrected command may run


@pytest.mark.thorough
def test_a_bucket_is_read_by_ranges(tmp_path: Path, stand_in: GcsStandIn) -> None:
    small = [*members_of(PHOTOS, "cls", "json", "txt")]
    large = [("l/0.cls", b"0"), ("l/0.jpg", PHOTOS[0].read_bytes()), ("l/0.npy", bytes(9 << 20))]
    for name, members in (("small", small), ("large", [*large, ("m.jpg", JPG)])):
        path = write_tar(tmp_path / f"in/{name}.tar", members)
        stand_in.put("b", f"in/{name}.tar", path.read_bytes())
    flags = ("--max_rejected", 1, "--num_shards", 1)
    committed_by(webdataset.run, tmp_path / "far", "--shards", "gs://b/in/*.tar", *flags)
    read = [call.name for call in stand_in.requests if call.kind is Kind.READ]
    committed_by(webdataset.run, tmp_path / "near", "--shards", tmp_path / "in", *flags)
    assert digests(tmp_path / "far", "*.tfrec") == digests(tmp_path / "near", "*.tfrec")
    # A request an image. Headers: the small file at once; two ends of the large one.
    assert Counter(read) == {"in/small.tar": len(PHOTOS) + 1, "in/large.tar": 1 + 2}
