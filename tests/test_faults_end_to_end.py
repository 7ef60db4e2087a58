"""Every row of the fault tables through the command: exit code, one line, `rejected.jsonl`."""

import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from schemas.faults import FAULTS
from tests import children
from tests.coco_command import (
    CODE,
    DATA,
    PROJECT,
    Run,
    check_committed,
    check_visible,
    convert_on_small_disk,
    counts,
    digests,
    examples,
    finish,
    rejected_of,
    run_coco,
    shard_paths,
    snapshot,
    source_ids,
    spawn_coco,
    start_coco,
    value,
)
from tests.small_images import chunk, idat, ihdr, png
from transforms import check_images, commit, write_shards
from transforms.blobs import MAX_IMAGE_BYTES
from transforms.check_images import Check, ImageFault
from transforms.storage.local import LocalStorage

MakeCoco = Callable[..., tuple[Path, Path]]
Sources = tuple[Path, Path]
BEFORE_PLANNING = "pin_blobs"
IN_SHARDS = "write_shards"


def command(sources: Sources, out: Path, *flags: object) -> list[str]:
    images, annotations = sources
    return [
        *("--images", str(images), "--annotations", str(annotations), "--output", str(out)),
        *map(str, flags),
    ]


def committed(sources: Sources, out: Path, *flags: object) -> dict[str, Any]:
    run = run_coco(*command(sources, out, *flags))
    assert run.code == 0, run.err
    return check_committed(out)


# Images.


class ImageFaultCase(NamedTuple):
    """What is done to one image, and the reject that it must lead to."""

    spoil: Callable[[Path], object]
    code: str
    stage: str
    detail: str
    flags: tuple[str, ...] = ()


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    path.unlink()
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path has 108 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def make_dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def make_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def make_sparse(path: Path) -> None:
    os.truncate(path, MAX_IMAGE_BYTES + 1)


def content(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


BOMB = png(ihdr(20_000, 20_000), idat())
WRONG_CRC = png(ihdr(64, 48), idat()[:-1] + b"\0")
NO_PIXELS = png(ihdr(64, 48), chunk(b"IDAT", b"no zlib stream"))

IMAGE_FAULTS = {
    "missing": ImageFaultCase(Path.unlink, "E-IMG-MISSING", BEFORE_PLANNING, "not in the listing"),
    "dangling link": ImageFaultCase(
        make_dangling, "E-IMG-MISSING", BEFORE_PLANNING, "a link to nothing"
    ),
    "link to itself": ImageFaultCase(
        make_loop, "E-IMG-MISSING", BEFORE_PLANNING, "a link to nothing"
    ),
    "directory": ImageFaultCase(make_directory, "E-IMG-NOT-A-FILE", BEFORE_PLANNING, "a directory"),
    "fifo": ImageFaultCase(make_fifo, "E-IMG-NOT-A-FILE", BEFORE_PLANNING, "a fifo"),
    "socket": ImageFaultCase(make_socket, "E-IMG-NOT-A-FILE", BEFORE_PLANNING, "a socket"),
    "empty": ImageFaultCase(content(b""), "E-IMG-EMPTY", BEFORE_PLANNING, "0 bytes"),
    "too many bytes": ImageFaultCase(
        make_sparse,
        "E-IMG-TOO-LARGE",
        BEFORE_PLANNING,
        "268435457 bytes, the limit is 268435456",
    ),
    "JPEG cut off": ImageFaultCase(cut_off, "E-IMG-TRUNCATED", IN_SHARDS, "no end marker in"),
    "PNG without IEND": ImageFaultCase(
        content(png(ihdr(64, 48), idat(), end=b"")), "E-IMG-TRUNCATED", IN_SHARDS, "IEND"
    ),
    "PNG with a wrong checksum": ImageFaultCase(
        content(WRONG_CRC), "E-IMG-DAMAGED", IN_SHARDS, "IDAT"
    ),
    "HTML": ImageFaultCase(content(b"<html>404</html>"), "E-IMG-TYPE", IN_SHARDS, "HTML"),
    "text": ImageFaultCase(content(b"hello"), "E-IMG-TYPE", IN_SHARDS, "text"),
    "WebP": ImageFaultCase(content(b"RIFF\x24\0\0\0WEBPVP8 "), "E-IMG-TYPE", IN_SHARDS, "WebP"),
    "zero bytes": ImageFaultCase(content(bytes(700)), "E-IMG-TYPE", IN_SHARDS, "zero bytes"),
    "too many pixels": ImageFaultCase(
        content(BOMB),
        "E-IMG-PIXELS",
        IN_SHARDS,
        "20000 x 20000 = 400000000 pixels, limit 178956970",
    ),
    "other size": ImageFaultCase(
        content(png(ihdr(3, 2), idat(bytes(8)))),
        "E-IMG-SIZE",
        IN_SHARDS,
        "3 x 2 in the file, 64 x 48 annotated",
        ("--on_size_mismatch", "reject"),
    ),
    "damaged inside": ImageFaultCase(
        content(NO_PIXELS), "E-IMG-DAMAGED", IN_SHARDS, "", ("--check", "decode")
    ),
}


@pytest.mark.parametrize("name", IMAGE_FAULTS)
def test_image_fault(name: str, make_coco: MakeCoco, tmp_path: Path) -> None:
    """Exit 4 without a manifest; found before planning it costs no shard, else all are built."""
    case = IMAGE_FAULTS[name]
    sources, out = make_coco(5), tmp_path / "out"
    case.spoil(sources[0] / "a002.jpg")
    run = run_coco(*command(sources, out, *case.flags))
    assert run.code == 4, run.err
    assert "Traceback" not in run.err
    assert run.err.splitlines()[-1].startswith(f"E-BUDGET {out}: 1 of 5 samples rejected")
    assert case.code in run.err
    assert not (out / "manifest.json").exists()
    assert check_visible(out) == (case.stage == IN_SHARDS)


def test_image_faults_accepted(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Each is named with all fields and counted; the other images are all there."""
    cases = list(IMAGE_FAULTS.values())
    sources, out = make_coco(2 * len(cases)), tmp_path / "out"
    for place, case in enumerate(cases):
        case.spoil(sources[0] / f"a{place:03}.jpg")
    flags = sorted({flag for case in cases for flag in zip(*[iter(case.flags)] * 2, strict=True)})
    both = [word for flag in flags for word in flag]
    manifest = committed(sources, out, *both, "--max_rejected", len(cases))
    lines = {line["file_name"]: line for line in rejected_of(out)}
    for place, case in enumerate(cases):
        line = lines.pop(f"a{place:03}.jpg")
        assert case.detail in line.pop("detail")
        assert line == {
            "code": case.code,
            "stage": case.stage,
            "split": "train",
            "key": f"{place + 1}",
            "annotation_ids": [100 * place + 1, 100 * place + 2],
            "file_name": f"a{place:03}.jpg",
            "shard": "train-00000-of-00001" if case.stage == IN_SHARDS else "",
        }
    assert lines == {}
    split = manifest["splits"]["train"]
    assert split["rejected"] == dict(sorted(Counter(case.code for case in cases).items()))
    assert (split["annotations"]["written"], split["annotations"]["lost"]) == (2 * len(cases),) * 2
    assert sorted(source_ids(out)) == list(range(len(cases) + 1, 2 * len(cases) + 1))


def test_every_image_code_is_reached() -> None:
    unreached = {"E-EX-TOO-LARGE", "E-EX-FAILED"}  # of a layout, not of an image
    codes = {code for code in FAULTS if code.startswith(("E-IMG-", "E-EX-"))}
    assert {case.code for case in IMAGE_FAULTS.values()} == codes - unreached


def test_rejects_before_planning_are_told_line_by_line(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(5)
    (sources[0] / "a002.jpg").unlink()
    (sources[0] / "a004.jpg").write_bytes(b"")
    lines = run_coco(*command(sources, tmp_path / "out")).err.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == [
        "E-IMG-MISSING a002.jpg (key 3)",
        "E-IMG-EMPTY a004.jpg (key 5)",
    ]
    assert len(lines) == 3


def test_what_is_said_of_rejected_jsonl_is_true(make_coco: MakeCoco, tmp_path: Path) -> None:
    """A line that says `see rejected.jsonl` needs the file, whatever number was rejected."""
    sources = make_coco(30)
    for number in range(12):
        (sources[0] / f"a{number:03}.jpg").unlink()
    run = run_coco(*command(sources, tmp_path / "out"))
    assert run.code == 4
    assert "see rejected.jsonl" not in run.err or (tmp_path / "out/rejected.jsonl").exists()


def test_budget_line_has_one_code(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Exit codes are taken from a message's one code."""
    sources = make_coco(3)
    cut_off(sources[0] / "a001.jpg")
    run = run_coco(*command(sources, tmp_path / "out"))
    assert set(CODE.findall(run.err.splitlines()[-1])) == {"E-BUDGET"}


def test_content_decides_not_the_extension(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(2, width=2, height=2, objects=0), tmp_path / "out"
    (sources[0] / "a001.jpg").write_bytes(png())
    committed(sources, out)
    formats = {
        value(example, "image/filename")[0]: value(example, "image/format")[0]
        for example in examples(out)
    }
    assert formats == {b"a000.jpg": b"jpeg", b"a001.jpg": b"png"}


def test_mostly_missing_images_stop_before_planning(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(5), tmp_path / "out"
    for name in ("a000.jpg", "a001.jpg", "a004.jpg"):
        (sources[0] / name).rename(sources[0] / f"COCO_{name}")
    run = run_coco(*command(sources, out, "--max_rejected", "100%"))
    assert run.ended == (3, "E-SET-MISSING")
    assert run.fault == (
        "E-SET-MISSING images of train: 3 of 5 images are not there, the first 'a000.jpg'; listed"
        " names look like 'COCO_a000.jpg'; give the folder that file_name is relative to with"
        " --images"
    )
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("check", ["header", "decode"])
def test_odd_files_as_one_data_set(
    check: str, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 96 files gets the check's verdict, sums hold, what is accepted decodes."""
    import tensorflow as tf

    images, out = shared_data / "odd", tmp_path / "out"
    names = sorted(path.name for path in images.iterdir())
    assert len(names) == 96  # two of them tell of the others
    spec = {
        "images": [
            {"id": place, "file_name": name, "width": 9, "height": 9}
            for place, name in enumerate(names)
        ],
        "annotations": [
            {"id": place, "image_id": place, "category_id": 1, "bbox": [0, 0, 1, 1]}
            for place in range(len(names))
        ],
        "categories": [{"id": 1, "name": "thing"}],
    }
    (tmp_path / "odd.json").write_text(json.dumps(spec))
    flags = ("--on_size_mismatch", "trust_image", "--max_rejected", "100%", "--check", check)
    manifest = committed((images, tmp_path / "odd.json"), out, "--num_shards", 5, *flags)
    verdicts = {
        name: check_images.check_image((images / name).read_bytes(), Check(check)) for name in names
    }
    refused = {
        name: (verdict.code, verdict.detail)
        for name, verdict in verdicts.items()
        if isinstance(verdict, ImageFault)
    }
    assert {
        line["file_name"]: (line["code"], line["detail"]) for line in rejected_of(out)
    } == refused
    accepted = {value(example, "image/filename")[0].decode(): example for example in examples(out)}
    assert set(accepted) | set(refused) == set(names)
    assert len(accepted) + len(refused) == len(names) == manifest["splits"]["train"]["listed"]
    for name, example in accepted.items():
        (data,) = value(example, "image/encoded")
        assert data == (images / name).read_bytes()
        assert value(example, "image/format") == [verdicts[name].format.encode()]
        assert value(example, "image/width") == [verdicts[name].width_px]
        if check == "decode":
            pixels = tf.io.decode_image(data, expand_animations=False)
            assert tuple(pixels.shape[:2]) == (verdicts[name].height_px, verdicts[name].width_px)
    traits: dict[str, int] = {}
    for name in accepted:
        for trait in verdicts[name].traits:
            traits[trait] = traits.get(trait, 0) + 1
    assert manifest["splits"]["train"]["traits"] == dict(sorted(traits.items()))


# Annotations.


def edited(edit: Callable[[dict], Any]) -> Callable[[bytes], bytes]:
    """Return a change of the file's bytes from a change of its values."""

    def change(data: bytes) -> bytes:
        spec = json.loads(data)
        edit(spec)
        return json.dumps(spec).encode()

    return change


def setting(section: str, place: int, **fields: Any) -> Callable[[bytes], bytes]:
    return edited(lambda spec: spec[section][place].update(fields))


def without(section: str, *path: Any) -> Callable[[bytes], bytes]:
    def edit(spec: dict) -> None:
        at = spec
        for step in (section, *path)[:-1]:
            at = at[step]
        del at[(section, *path)[-1]]

    return edited(edit)


def nested(levels: int) -> bytes:
    return b'{"x": ' + b"[" * levels + b"]" * levels + b", "


ANNOTATION_FAULTS: dict[str, tuple[Callable[[bytes], bytes], str, str]] = {
    "empty file": (lambda data: b"", "E-ANN-JSON", "byte offset 0"),
    "cut off": (lambda data: data[:-10], "E-ANN-JSON", "ends at byte offset"),
    "NaN": (
        lambda data: data.replace(b'"area": 122.5', b'"area": NaN', 1),
        "E-ANN-JSON",
        "where 'NaN, ",
    ),
    "UTF-16": (lambda data: data.decode().encode("utf-16"), "E-ANN-JSON", "UTF-16"),
    "Latin-1": (lambda data: data.replace(b"person", b"p\xe9re", 1), "E-ANN-JSON", "UTF-8"),
    "two images sections": (
        lambda data: b'{"images": [], ' + data[1:],
        "E-ANN-SECTION",
        "'images' stands at byte offset 1",
    ),
    "nesting": (lambda data: nested(70) + data[1:], "E-ANN-JSON", "deeper than 64"),
    "a list": (lambda data: b"[" + data + b"]", "E-ANN-JSON", "got `array`"),
    "no images": (without("images"), "E-ANN-SECTION", "'images' is missing"),
    "no annotations": (without("annotations"), "E-ANN-SECTION", "'annotations' is missing"),
    "no categories": (without("categories"), "E-ANN-SECTION", "'categories' is missing"),
    "text id": (setting("images", 1, id="2"), "E-ANN-TYPE", "$.images[1].id"),
    "id beyond int64": (setting("images", 1, id=2**63), "E-ANN-TYPE", "$.images[1].id"),
    "fractional id": (setting("annotations", 1, id=1.5), "E-ANN-TYPE", "$.annotations[1].id"),
    "no width": (without("images", 0, "width"), "E-ANN-TYPE", "width"),
    "zero width": (setting("images", 0, width=0), "E-ANN-TYPE", "$.images[0].width"),
    "null name": (setting("images", 0, file_name=None), "E-ANN-TYPE", "$.images[0].file_name"),
    "text area": (setting("annotations", 0, area="big"), "E-ANN-TYPE", "$.annotations[0].area"),
    "same image id": (setting("images", 1, id=1), "E-ANN-DUPLICATE", "same id '1'"),
    "same file name": (
        setting("images", 1, file_name="a000.jpg"),
        "E-ANN-DUPLICATE",
        "same file_name 'a000.jpg'",
    ),
    "unknown image": (
        setting("annotations", 0, image_id=99),
        "E-ANN-ORPHAN",
        "$.annotations[0] (id 1): image_id 99",
    ),
    "unknown category": (
        setting("annotations", 0, category_id=99),
        "E-ANN-CATEGORY",
        "$.annotations[0] (id 1): category_id 99",
    ),
    "one name, two ids": (
        setting("categories", 1, name="person"),
        "E-ANN-LABELS",
        "'person' is both category 1 and 2",
    ),
    "one id, two names": (setting("categories", 1, id=1), "E-ANN-LABELS", "category 1 is both"),
    "label beyond int32": (setting("categories", 1, id=2**31), "E-ANN-LABELS", "int32"),
    "climbing": (setting("images", 0, file_name="../a.jpg"), "E-ANN-PATH", "climbs out"),
    "climbing inside": (setting("images", 0, file_name="b/../../a.jpg"), "E-ANN-PATH", "climbs"),
    "absolute": (setting("images", 0, file_name="/etc/passwd"), "E-ANN-PATH", "not relative"),
    "scheme": (setting("images", 0, file_name="gs://b/a.jpg"), "E-ANN-PATH", "not relative"),
    "drive": (setting("images", 0, file_name="C:\\a.jpg"), "E-ANN-PATH", "not relative"),
    "backslashes": (setting("images", 0, file_name="..\\a.jpg"), "E-ANN-PATH", "climbs out"),
    "NUL": (setting("images", 0, file_name="a\0.jpg"), "E-ANN-PATH", "NUL"),
    "no name": (setting("images", 0, file_name=""), "E-ANN-PATH", "names no file"),
}


@pytest.mark.parametrize("name", ANNOTATION_FAULTS)
def test_annotation_fault(name: str, make_coco: MakeCoco, tmp_path: Path) -> None:
    """Exit 3 before any image is read: the line names the file, the place and the remedy."""
    change, code, what = ANNOTATION_FAULTS[name]
    images, annotations = make_coco(3)
    annotations.write_bytes(change(annotations.read_bytes()))
    run = run_coco(*command((images, annotations), tmp_path / "out"))
    assert run.ended == (3, code), run.err
    assert re.match(rf"{code} {re.escape(str(annotations))}: .+; [a-z].+", run.fault)
    assert what in run.fault
    assert run.out == ""
    assert list((tmp_path / "out").iterdir()) == []


def test_labels_of_two_splits_must_agree(make_coco: MakeCoco, tmp_path: Path) -> None:
    train = make_coco(2)
    val = make_coco(2, name="val", edit=lambda spec: spec["categories"][0].update(name="dog"))
    run = run_coco(
        *("--images", f"train={train[0]}", f"val={val[0]}"),
        *("--annotations", f"train={train[1]}", f"val={val[1]}"),
        *("--output", tmp_path / "out"),
    )
    assert run.ended == (3, "E-ANN-LABELS")


def test_byte_order_mark_is_accepted(make_coco: MakeCoco, tmp_path: Path) -> None:
    images, annotations = make_coco(2)
    committed((images, annotations), tmp_path / "plain")
    annotations.write_bytes(b"\xef\xbb\xbf" + annotations.read_bytes())
    committed((images, annotations), tmp_path / "marked")
    found = [digests(tmp_path / name, *DATA) for name in ("plain", "marked")]
    assert found[0] == found[1]


def test_bad_boxes_are_dropped_and_counted(make_coco: MakeCoco, tmp_path: Path) -> None:
    """One box an image, but for the first, whose good one stays beside the bad."""
    boxes = {
        "E-BOX-NOT-FINITE": [["1e999", 1, 1, 1]],
        "E-BOX-SHAPE": [[1, 2, 3], [1, 2, 3, 4, 5], "1,2,3,4", None, [1, 2, 3, "4"], {}],
        "E-BOX-EMPTY": [[1, 1, 0, 5], [1, 1, 5, -1], [1, 1, 1e-60, 1]],
        "E-BOX-OUTSIDE": [[64, 0, 5, 5], [-9, -9, 9, 9], [1e300, 1, 1, 1]],
    }
    rows = [(code, box) for code, bad in boxes.items() for box in bad]

    def spoil(spec: dict) -> None:
        for annotation, (_, box) in zip(spec["annotations"][1:], rows, strict=True):
            annotation["bbox"] = box
        spec["annotations"][0]["image_id"] = 2
        spec["annotations"][0]["bbox"] = [-5, 40, 20, 20]  # over two edges

    images, annotations = make_coco(len(rows) + 1, edit=spoil, objects=1)
    annotations.write_bytes(annotations.read_bytes().replace(b'"1e999"', b"1e999"))
    out = tmp_path / "out"
    manifest = committed((images, annotations), out)
    split = manifest["splits"]["train"]
    assert split["annotations"] == {
        "listed": len(rows) + 1,
        "written": 1,
        "dropped": {code: len(bad) for code, bad in sorted(boxes.items())},
        "lost": 0,
        "excluded": 0,
    }
    assert split["repairs"] == {"box_clipped": 1}
    assert split["records"] == len(rows) + 1  # images without objects stay
    lines = {tuple(line["annotation_ids"]): line for line in rejected_of(out)}
    assert {ids: line["code"] for ids, line in lines.items()} == {
        (100 * place + 1,): code for place, (code, _) in enumerate(rows, start=1)
    }
    assert all(line["file_name"] and line["key"] and line["detail"] for line in lines.values())
    (kept,) = [example for example in examples(out) if value(example, "image/object/area")]
    edges = [value(kept, f"image/object/bbox/{e}")[0] for e in ("xmin", "xmax", "ymin", "ymax")]
    assert edges == pytest.approx([0, 15 / 64, 40 / 48, 1])


def test_orphans_dropped_are_named(make_coco: MakeCoco, tmp_path: Path) -> None:
    def spoil(spec: dict) -> None:
        spec["annotations"][0]["image_id"] = 99
        spec["annotations"][2]["category_id"] = 99

    out = tmp_path / "out"
    committed(make_coco(3, edit=spoil), out, "--orphans", "drop")
    assert [
        (line["code"], line["key"], line["annotation_ids"], line["file_name"], line["detail"])
        for line in rejected_of(out)
    ] == [
        ("E-ANN-ORPHAN", "", [1], "", "image_id 99 is not in images"),
        ("E-ANN-CATEGORY", "2", [101], "a001.jpg", "category_id 99 is not in categories"),
    ]


def test_duplicate_annotation_ids_are_counted(make_coco: MakeCoco, tmp_path: Path) -> None:
    def repeat(spec: dict) -> None:
        for annotation in spec["annotations"][:3]:
            annotation["id"] = 7

    manifest = committed(make_coco(3, edit=repeat), tmp_path / "out")
    assert manifest["splits"]["train"]["repeated_annotation_ids"] == 2
    assert manifest["splits"]["train"]["annotations"]["written"] == 6


def test_polygons_and_rle_are_not_carried(make_coco: MakeCoco, tmp_path: Path) -> None:
    """A detection layout has no use for them: broken ones do no harm."""

    def spoil(spec: dict) -> None:
        broken = ([], [[1, 2, 3]], {"counts": "\u20ac", "size": [1]}, None)
        for annotation, segmentation in zip(spec["annotations"], broken, strict=False):
            annotation["segmentation"] = segmentation

    sources = make_coco(3, edit=spoil)
    assert committed(sources, tmp_path / "out")["splits"]["train"]["annotations"]["written"] == 6


NAMES = [
    *("with space.jpg", " lead.jpg", "trail .jpg", "caf\u00e9.jpg", "\U0001f600.jpg"),
    *("new\nline.jpg", "tab\t.jpg", "\u202egpj.jpg", "a[1].jpg", "*.jpg", "q?.jpg", "{x}.jpg"),
    *("-dash.jpg", "%20.jpg", "a&b;$(c).jpg", "con'q\"uote.jpg", "back\\slash.jpg", ".hidden.jpg"),
    *("sub/dir/x.jpg", "sub/x.jpg", "~/x.jpg", "a=b.jpg", "no extension", "x" * 251 + ".jpg"),
]


def test_names_pass_literally(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Globs, line breaks, dashes, hidden files: a name is a name."""

    def rename(spec: dict) -> None:
        for image, name in zip(spec["images"], NAMES, strict=True):
            path = tmp_path / "train-images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "train-images" / image["file_name"]).rename(path)
            image["file_name"] = name

    sources, out = make_coco(len(NAMES), edit=rename), tmp_path / "out"
    cut_off(sources[0] / "new\nline.jpg")
    committed(sources, out, "--max_rejected", 1)
    expected = {name: (sources[0] / name).read_bytes() for name in NAMES if "\n" not in name}
    found = {
        value(example, "image/filename")[0].decode(): value(example, "image/encoded")[0]
        for example in examples(out)
    }
    assert found == expected
    assert [line["file_name"] for line in rejected_of(out)] == ["new\nline.jpg"]


# Storage and execution: what is there, and what a data set can hold.


def test_one_image(make_coco: MakeCoco, tmp_path: Path) -> None:
    committed(make_coco(1), tmp_path / "out")
    assert counts(tmp_path / "out") == [1]


def test_zero_images_in_one_of_two_splits(make_coco: MakeCoco, tmp_path: Path) -> None:
    train, val = make_coco(2), make_coco(0, name="val")
    both = [
        *("--images", f"train={train[0]}", f"val={val[0]}"),
        *("--annotations", f"train={train[1]}", f"val={val[1]}"),
        *("--output", tmp_path / "out"),
    ]
    assert run_coco(*both).ended == (3, "E-SET-EMPTY")
    assert run_coco(*both, "--allow_empty").code == 0
    splits = check_committed(tmp_path / "out")["splits"]
    assert (splits["train"]["records"], splits["val"]["records"]) == (2, 0)


def test_more_shards_than_images(make_coco: MakeCoco, tmp_path: Path) -> None:
    run = run_coco(*command(make_coco(5), tmp_path / "out", "--num_shards", 8, "--hosts", 2))
    assert run.ended == (2, "E-ARG")
    assert run.fault == (
        "E-ARG split train: --num_shards 8, but 5 samples; give at most --num_shards 4"
    )


def test_all_rejected(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(3)
    for path in sources[0].iterdir():
        path.write_bytes(b"<html>")
    run = run_coco(*command(sources, tmp_path / "out"))
    assert run.code == 4
    assert "3 of 3 samples rejected" in run.err
    assert not (tmp_path / "out/manifest.json").exists()


def test_all_rejected_and_accepted_is_an_empty_split(make_coco: MakeCoco, tmp_path: Path) -> None:
    """What --allow_empty is for: without it no data set without a record is committed."""
    sources = make_coco(3)
    for path in sources[0].iterdir():
        path.write_bytes(b"")
    run = run_coco(*command(sources, tmp_path / "out", "--max_rejected", "100%"))
    assert run.code in (3, 4)


def test_image_without_annotations_is_kept(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(2, edit=lambda spec: spec["annotations"].clear())
    committed(sources, tmp_path / "out")
    assert [value(e, "image/object/class/label") for e in examples(tmp_path / "out")] == [[], []]


def test_older_run_with_other_shard_count(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(6), tmp_path / "out"
    committed(sources, out, "--num_shards", 3)
    (out / "manifest.json").unlink()  # as if it had been cut short
    before = snapshot(out)
    run = run_coco(*command(sources, out, "--num_shards", 2))
    assert run.ended == (5, "E-OUT-PLAN")
    assert "num_shards was 'all=3', is 'all=2' now" in run.fault
    assert snapshot(out) == before


@pytest.mark.parametrize(
    "name",
    [
        "train-00000-of-00003-2.tfrec",  # another tool's or an older run's
        "val-00007-of-00008.tfrec",
        "manifest.json",
        "_plan.json",
        "rejected.jsonl",
        "features.json",
        "label_map.pbtxt",
        "_receipts/train-00000-of-00009.json",
    ],
)
def test_foreign_files_are_refused_untouched(
    name: str, make_coco: MakeCoco, tmp_path: Path
) -> None:
    sources, out = make_coco(3), tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    before = snapshot(out)
    run = run_coco(*command(sources, out))
    assert run.ended == (5, "E-OUT-FOREIGN"), run.err
    assert name.split("/")[-1] in run.fault
    assert snapshot(out) == before


def test_newer_format_is_refused_by_name(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(2), tmp_path / "out"
    manifest = committed(sources, out)
    (out / "manifest.json").write_text(json.dumps(manifest | {"format_version": 99}))
    run = run_coco(*command(sources, out))
    assert run.ended == (5, "E-OUT-FOREIGN")
    assert "format version 99" in run.fault


UNRELATED = ("README.md", "notes.txt", "model.ckpt", "index/mine.csv", "sub/train.tfrec", "x.jpg")


def put_unrelated(out: Path) -> None:
    for name in UNRELATED:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(f"this is {name}")


def test_unrelated_files_survive_everything(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(4), tmp_path / "out"
    put_unrelated(out)
    before = snapshot(out)
    committed(sources, out, "--num_shards", 2)
    committed(sources, out, "--num_shards", 4, "--overwrite")
    after = snapshot(out)
    assert {name: after.get(name) for name in UNRELATED} == before
    fresh = tmp_path / "fresh"
    committed(sources, fresh, "--num_shards", 4)
    assert {name: digest for name, digest in digests(out).items() if name not in UNRELATED} == (
        digests(fresh)
    )


@pytest.mark.parametrize(
    "name",
    ["manifest.json", "features.json", "_plan.json", "_sources/mine.txt", "_receipts/bill.pdf"],
)
def test_overwrite_deletes_nothing_that_no_run_of_ours_made(
    name: str, make_coco: MakeCoco, tmp_path: Path
) -> None:
    """A folder with a web app's manifest.json and no plan of ours was never a data set of ours."""
    sources, out = make_coco(2), tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text('{"name": "precious"}')
    run_coco(*command(sources, out, "--overwrite"))
    assert (out / name).exists()
    assert (out / name).read_text() == '{"name": "precious"}'


def test_overwrite_follows_no_receipt_out_of_the_output(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    """Receipts of a downloaded data set are input: no name in one deletes files elsewhere."""
    sources, out = make_coco(4), tmp_path / "out"
    committed(sources, out, "--num_shards", 2)
    receipt = json.loads((out / "_receipts/train-00000-of-00002.json").read_text())
    victims = [tmp_path / "victim.txt", out / "sub/victim.txt", tmp_path / "absolute.txt"]
    for number, victim in enumerate(victims):
        victim.parent.mkdir(exist_ok=True)
        victim.write_text("precious")
        receipt["file"] = str(victim) if number == 2 else os.path.relpath(victim, out)
        (out / f"_receipts/train-0000{number}-of-00007.json").write_text(json.dumps(receipt))
    run_coco(*command(sources, out, "--overwrite"))
    assert [victim for victim in victims if not victim.exists()] == []


def test_overwrite_waits_until_the_arguments_hold(make_coco: MakeCoco, tmp_path: Path) -> None:
    """A slip of the pen in --annotations must not cost the data set that is there."""
    (images, annotations), out = make_coco(3), tmp_path / "out"
    committed((images, annotations), out)
    run = run_coco(*command((images, tmp_path / "typo.json"), out, "--overwrite"))
    assert run.code != 0
    check_committed(out)


def test_overwrite_with_the_outputs_own_rejects_excluded(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    """What a user does next after exit 4, in the same place."""
    sources, out = make_coco(4), tmp_path / "out"
    cut_off(sources[0] / "a001.jpg")
    assert run_coco(*command(sources, out)).code == 4
    manifest = committed(sources, out, "--overwrite", "--exclude", out / "rejected.jsonl")
    assert manifest["splits"]["train"]["excluded"] == 1


# Storage and execution: disks, permissions, limits.


@pytest.fixture(scope="module")
def own_disks() -> None:
    if not children.can_mount():
        pytest.skip("this machine lets no process mount a disk of its own")


@pytest.mark.parametrize("size_kib", [8, 160])
def test_full_disk(size_kib: int, own_disks: None, make_coco: MakeCoco, tmp_path: Path) -> None:
    """Full at the probe, the plan or a shard: nothing partial, and more room resumes."""
    sources = make_coco(60)
    for path in sources[0].iterdir():
        path.write_bytes(path.read_bytes() + bytes(4000))
    disk, reference = tmp_path / "disk", tmp_path / "reference"
    disk.mkdir()
    committed(sources, reference, "--num_shards", 6)
    arguments = command(sources, disk / "out", "--num_shards", 6)
    full, visible, resumed, found = children.outcome_of(
        convert_on_small_disk, arguments, disk, size_kib * 1024
    )
    assert Run(*full).ended == (6, "E-IO-NOSPACE"), full
    assert "run again to resume" in Run(*full).fault
    assert visible < 6
    assert resumed[0] == 0, resumed
    assert found == digests(reference)


def test_read_only_disk(own_disks: None, make_coco: MakeCoco, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    arguments = command(make_coco(2), tmp_path / "disk/out")
    run, *_ = children.outcome_of(convert_on_small_disk, arguments, tmp_path / "disk", 0)
    assert Run(*run).ended == (6, "E-IO-READONLY"), run


def as_ordinary_user(arguments: list[str]) -> subprocess.Popen[str]:
    """Start the command bound by permission bits, which root otherwise is not."""
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    return subprocess.Popen(
        [*(drop if os.geteuid() == 0 else []), sys.executable, "-m", "pipelines.coco", *arguments],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_no_permission(make_coco: MakeCoco, tmp_path: Path) -> None:
    """To list, to read an image or the annotations, to write: stop, never a reject."""
    if os.geteuid() == 0 and subprocess.run(["which", "setpriv"], capture_output=True).returncode:
        pytest.skip("root is bound by no permissions, and setpriv is not there to change that")
    forbidden: dict[str, Path] = {}
    started = {}
    for name in ("folder", "image", "annotations", "output"):
        images, annotations = make_coco(3, name=name)
        out = tmp_path / f"{name}-out"
        out.mkdir()
        paths = {
            "folder": images,
            "image": images / "a001.jpg",
            "annotations": annotations,
            "output": out,
        }
        forbidden[name] = paths[name]
        paths[name].chmod(0o500 if name == "output" else 0)
        started[name] = as_ordinary_user(command((images, annotations), out))
    for name, process in started.items():
        run = finish(process)
        forbidden[name].chmod(0o700)
        assert run.ended == (6, "E-IO-AUTH"), (name, run.err)
        assert str(forbidden[name]) in run.fault
        assert not (tmp_path / f"{name}-out/manifest.json").exists()


def test_file_size_limit(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(40)
    limited = ["bash", "-c", 'ulimit -f 20; exec "$@"', "bash", sys.executable]
    run = subprocess.run(
        [*limited, "-m", "pipelines.coco", *command(sources, tmp_path / "out")],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert Run(run.returncode, run.stdout, run.stderr).ended == (6, "E-IO-NOSPACE"), run.stderr
    assert check_visible(tmp_path / "out") == 0


def test_out_of_memory_is_never_a_reject(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhaust(data: bytes, check: Check) -> None:
        raise MemoryError

    monkeypatch.setattr(write_shards, "check_image", exhaust)
    run = run_coco(*command(make_coco(3), tmp_path / "out", "--max_rejected", "100%"))
    assert run.ended == (6, "E-IO-LIMIT")
    assert not (tmp_path / "out/rejected.jsonl").exists()


def failing_reads(monkeypatch: pytest.MonkeyPatch, fail: Callable[[str, int], None]) -> None:
    """Let `fail(name, attempt)` raise in the place of an image's read."""
    read_once, attempts = LocalStorage._read_once, {}

    def reading(storage: LocalStorage, name: str, *more: Any) -> Any:
        attempts[name] = attempts.get(name, 0) + 1
        if name.endswith(".jpg"):
            fail(name, attempts[name])
        return read_once(storage, name, *more)

    monkeypatch.setattr(LocalStorage, "_read_once", reading)


def test_transient_trouble_is_retried(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, attempt: int) -> None:
        if attempt < 3:
            raise OSError(5, "Input/output error")

    failing_reads(monkeypatch, fail)
    committed(make_coco(3), tmp_path / "out")
    assert rejected_of(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("number", "code"), [(24, "E-IO-LIMIT"), (13, "E-IO-AUTH"), (28, "E-IO-NOSPACE")]
)
def test_trouble_of_the_machine_is_never_a_reject(
    number: int,
    code: str,
    make_coco: MakeCoco,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str, attempt: int) -> None:
        raise OSError(number, os.strerror(number))

    failing_reads(monkeypatch, fail)
    run = run_coco(*command(make_coco(3), tmp_path / "out", "--max_rejected", "100%"))
    assert run.ended == (6, code)
    assert shard_paths(tmp_path / "out") == []


# Storage and execution: sources that change.


def after_planning(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Do something between the plan and the first shard."""
    publish = commit.publish_plan

    def publish_then_change(*args: Any) -> None:
        publish(*args)
        change()

    monkeypatch.setattr(commit, "publish_plan", publish_then_change)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def rewrite(path: Path) -> None:
    """Other bytes of the same size, which a photo of another colour happens to have."""
    data = path.read_bytes()
    path.write_bytes(data[:-2] + b"\0\0")


@pytest.mark.parametrize(
    "change", [Path.unlink, grow, rewrite, make_directory, make_fifo, make_dangling]
)
def test_source_changed_during_the_run(
    change: Callable[[Path], object],
    make_coco: MakeCoco,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources, out = make_coco(6), tmp_path / "out"
    original = (sources[0] / "a003.jpg").read_bytes()
    with monkeypatch.context() as patch:
        after_planning(patch, lambda: change(sources[0] / "a003.jpg"))
        run = run_coco(*command(sources, out, "--num_shards", 6, "--max_rejected", "100%"))
    assert run.ended == (6, "E-SRC-CHANGED")
    assert str(sources[0] / "a003.jpg") in run.fault
    assert not (out / "manifest.json").exists()
    assert check_visible(out) <= 5
    path = sources[0] / "a003.jpg"
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.write_bytes(original)  # put back, with another mtime
    committed(sources, out, "--num_shards", 6, "--max_rejected", "100%")
    assert sorted(source_ids(out)) == [1, 2, 3, 4, 5, 6]


def test_source_rewritten_after_its_shard(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Same names and sizes, hence the same plan; the index tells that the bytes are others."""
    sources, out = make_coco(4), tmp_path / "out"
    committed(sources, out, "--num_shards", 2)
    (out / "manifest.json").unlink()
    before = snapshot(out)
    rewrite(sources[0] / "a002.jpg")
    run = run_coco(*command(sources, out, "--num_shards", 2))
    assert run.ended == (6, "E-SRC-CHANGED")
    assert snapshot(out) == before


def test_source_rewritten_after_the_commit(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(4), tmp_path / "out"
    committed(sources, out)
    rewrite(sources[0] / "a002.jpg")
    before = snapshot(out)
    assert run_coco(*command(sources, out)).ended == (6, "E-SRC-CHANGED")
    grow(sources[0] / "a002.jpg")
    assert run_coco(*command(sources, out)).ended == (5, "E-OUT-PLAN")
    assert snapshot(out) == before


# Storage and execution: files of ours that something has spoilt.


def spoil_shard(out: Path) -> None:
    path = shard_paths(out)[0]
    path.write_bytes(path.read_bytes()[:-1])


def spoil_receipt(out: Path) -> None:
    (out / "_receipts/train-00000-of-00002.json").write_text("{")


def spoil_index(out: Path) -> None:
    (out / "index/train-00000-of-00002.parquet").write_text("PAR1")


def spoil_plan(out: Path) -> None:
    (out / "_plan.json").write_text("{}")


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (spoil_shard, "E-OUT-CONFLICT"),
        (spoil_receipt, "E-OUT-CONFLICT"),
        (spoil_index, "E-OUT-CONFLICT"),
        (spoil_plan, "E-OUT-FOREIGN"),
    ],
)
def test_spoilt_output_is_refused_untouched(
    spoil: Callable[[Path], None], code: str, make_coco: MakeCoco, tmp_path: Path
) -> None:
    sources, out = make_coco(4), tmp_path / "out"
    committed(sources, out, "--num_shards", 2)
    (out / "manifest.json").unlink()
    spoil(out)
    before = snapshot(out)
    assert run_coco(*command(sources, out, "--num_shards", 2)).ended == (5, code)
    after = snapshot(out)
    assert {name: after.get(name) for name in before} == before
    assert "manifest.json" not in after


@pytest.mark.parametrize(
    "pattern",
    [
        "*-00000-of-00002-*.tfrec",
        "index/*-00000-*.parquet",
        "index/*.idx",
        "_receipts/*",
        "*.json*",
    ],
)
def test_lost_files_are_made_again(pattern: str, make_coco: MakeCoco, tmp_path: Path) -> None:
    """Whatever part of an unfinished output is gone, the same run ends with the same bytes."""
    sources, out = make_coco(4), tmp_path / "out"
    committed(sources, out, "--num_shards", 2)
    before = digests(out)
    (out / "manifest.json").unlink()
    lost = [path for path in out.glob(pattern) if path.name != "_plan.json"]
    for path in lost:
        path.unlink()
    committed(sources, out, "--num_shards", 2)
    assert digests(out) == before


# Two runs to one place.


def run_two(first: list[str], second: list[str]) -> list[Run]:
    started = [start_coco(*first), start_coco(*second)]
    return [finish(process) for process in started]


def test_two_runs_of_one_plan(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(40), tmp_path / "out"
    arguments = command(sources, out, "--num_shards", 20)
    runs = run_two(arguments, arguments)
    assert [run.code for run in runs] == [0, 0], runs
    check_committed(out)
    committed(sources, tmp_path / "alone", "--num_shards", 20)
    assert digests(out) == digests(tmp_path / "alone")


def test_probes_at_once(tmp_path: Path) -> None:
    """What every run does first must not trip over another run's doing it."""

    def probe_often(_: int) -> None:
        for _ in range(50):
            LocalStorage(str(tmp_path / "out")).probe()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(probe_often, range(3))) == [None] * 3


def check_two_plans(sources: Sources, out: Path) -> None:
    runs = run_two(
        command(sources, out, "--num_shards", 20), command(sources, out, "--num_shards", 15)
    )
    assert sorted(run.code for run in runs) == [0, 5], runs
    (loser,) = [run for run in runs if run.code]
    assert loser.ended[1] in ("E-OUT-PLAN", "E-OUT-FOREIGN")
    assert "wrote" not in loser.err  # before its first shard
    assert len(check_committed(out)["shards"]) == (20 if runs[0].code == 0 else 15)


def test_two_runs_of_two_plans(make_coco: MakeCoco, tmp_path: Path) -> None:
    check_two_plans(make_coco(40), tmp_path / "out")


@pytest.mark.slow
def test_two_runs_again_and_again(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(40)
    for number in range(8):
        check_two_plans(sources, tmp_path / f"plans-{number}")
        arguments = command(sources, tmp_path / f"same-{number}", "--num_shards", 20)
        assert [run.code for run in run_two(arguments, arguments)] == [0, 0]
        check_committed(tmp_path / f"same-{number}")


# The budget.


def accepting(run: Run) -> list[str]:
    """Return the arguments of the command that the budget's line prints."""
    command_line = run.err.splitlines()[-1].partition(" accept with ")[2]
    said = subprocess.run(["bash", "-c", f"printf '%s\\0' {command_line}"], stdout=subprocess.PIPE)
    words = os.fsdecode(said.stdout).split("\0")[:-1]
    assert words[:3] == ["python", "-m", "pipelines.coco"], run.err
    return words[3:]


def forbid_image_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, attempt: int) -> None:
        raise AssertionError(f"{name} was read")

    failing_reads(monkeypatch, refuse)


@pytest.mark.parametrize(
    ("folder", "given"),
    [
        ("plain", ()),
        ("a 'quoted' $HOME; COUNT folder", ("--max_rejected", "1")),
        ("caf\u00e9", ("--max_rejected=1",)),
    ],
)
def test_printed_command_commits_without_reading_an_image(
    folder: str,
    given: tuple[str, ...],
    make_coco: MakeCoco,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources, out = make_coco(12), tmp_path / folder
    for name in ("a000.jpg", "a005.jpg", "a009.jpg"):
        cut_off(sources[0] / name)
    (sources[0] / "a001.jpg").write_bytes(b"")
    first = run_coco(*command(sources, out, "--num_shards", 4, *given, "--max_rejected", 3))
    assert first.code == 4
    assert not (out / "manifest.json").exists()
    assert check_visible(out) == 4
    shards = digests(out, "*.tfrec")
    with monkeypatch.context() as patch:
        forbid_image_reads(patch)
        second = run_coco(*accepting(first))
    assert second.code == 0, second.err
    assert "wrote" not in second.err
    assert second.err.count("kept") == 4
    manifest = check_committed(out)
    assert digests(out, "*.tfrec") == shards
    assert manifest["splits"]["train"]["rejected"] == {"E-IMG-EMPTY": 1, "E-IMG-TRUNCATED": 3}


def test_printed_command_leaves_overwrite_out(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Else it would throw away what it is to accept."""
    sources = make_coco(4)
    cut_off(sources[0] / "a001.jpg")
    first = run_coco(*command(sources, tmp_path / "out", "--overwrite"))
    assert first.code == 4
    assert "--overwrite" not in accepting(first)
    assert "kept" in run_coco(*accepting(first)).err


def test_printed_command_excludes_what_the_run_excluded(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    """Though the run has put its own rejects in the place of those it left out."""
    sources, out = make_coco(6), tmp_path / "out"
    cut_off(sources[0] / "a001.jpg")
    assert run_coco(*command(sources, out)).code == 4
    (sources[0] / "a003.jpg").write_bytes(NO_PIXELS)
    again = ("--overwrite", "--exclude", out / "rejected.jsonl", "--check", "decode")
    second = run_coco(*command(sources, out, *again))
    assert second.code == 4
    third = run_coco(*accepting(second))
    assert third.code == 0, third.err
    split = check_committed(out)["splits"]["train"]
    assert (split["excluded"], split["rejected"]) == (1, {"E-IMG-DAMAGED": 1})


def test_budget_is_compared_before_the_first_shard(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(6), tmp_path / "out"
    (sources[0] / "a000.jpg").unlink()
    run = run_coco(*command(sources, out))
    assert run.code == 4
    assert "wrote" not in run.err
    assert not shard_paths(out)
    assert not (out / "_plan.json").exists()  # so that mended sources are no other plan
    second = run_coco(*accepting(run))
    assert second.code == 0, second.err
    assert check_committed(out)["splits"]["train"]["rejected"] == {"E-IMG-MISSING": 1}


def test_dropped_annotations_are_outside_the_budget(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(3, edit=lambda spec: spec["annotations"][0].update(bbox=[1, 1, 0, 0]))
    committed(sources, tmp_path / "out", "--max_rejected", 0)
    assert len(rejected_of(tmp_path / "out")) == 1


def test_exclude_makes_the_data_set_of_the_others(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Excluded samples take no place: the shards are as exact as if they had never been listed."""
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
    assert again.ended == (5, "E-OUT-PLAN")  # without --exclude it is another data set
    check_committed(second)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("hello\n", "line 1 is no line of rejected.jsonl"),
        ('{"code": "no such code", "stage": "s", "split": "train"}\n', "line 1"),
        ("[]\n", "line 1"),
    ],
)
def test_exclude_refuses_other_files(
    text: str, what: str, make_coco: MakeCoco, tmp_path: Path
) -> None:
    (tmp_path / "other.jsonl").write_text(text)
    run = run_coco(*command(make_coco(2), tmp_path / "out", "--exclude", tmp_path / "other.jsonl"))
    assert run.ended == (2, "E-ARG")
    assert what in run.fault


def test_exclude_from_nowhere(make_coco: MakeCoco, tmp_path: Path) -> None:
    run = run_coco(*command(make_coco(2), tmp_path / "out", "--exclude", tmp_path / "nowhere"))
    assert run.ended == (2, "E-ARG")
    assert str(tmp_path / "nowhere") in run.fault


# Already complete.


def test_already_complete(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, out = make_coco(5), tmp_path / "out"
    committed(sources, out)
    before = snapshot(out)
    forbid_image_reads(monkeypatch)
    run = run_coco(*command(sources, out))
    assert run == (0, f"already complete: {out}/manifest.json\n", "")
    assert run_coco(*command(sources, out, "--max_rejected", "5%", "--readers", 1)).code == 0
    assert snapshot(out) == before


def test_already_complete_after_a_touch(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Equal contents are accepted: every shard is kept, nothing that is there is written again."""
    sources, out = make_coco(5), tmp_path / "out"
    committed(sources, out)
    before = snapshot(out)
    for path in (*sources[0].iterdir(), sources[1]):
        os.utime(path, (10**9, 10**9))
    touched = run_coco(*command(sources, out))
    assert touched.code == 0
    assert "wrote" not in touched.err
    after = snapshot(out)
    assert {name: after.get(name) for name in before} == before
    assert run_coco(*command(sources, out)).out == f"already complete: {out}/manifest.json\n"
    assert snapshot(out) == after


def test_complete_output_refuses_other_plans(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(6), tmp_path / "out"
    committed(sources, out)
    before = snapshot(out)
    for flags in (("--num_shards", 2), ("--seed", 1), ("--check", "decode"), ("--order", "input")):
        run = run_coco(*command(sources, out, *flags))
        assert run.ended == (5, "E-OUT-PLAN"), flags
        assert flags[0].lstrip("-") in run.fault
    spec = json.loads(sources[1].read_text())
    spec["annotations"][0]["category_id"] = 2
    sources[1].write_text(json.dumps(spec))
    assert run_coco(*command(sources, out)).ended == (5, "E-OUT-PLAN")
    assert snapshot(out) == before


def test_added_image_file_changes_nothing(make_coco: MakeCoco, tmp_path: Path) -> None:
    """A file that no annotation names is told of, and belongs to no plan."""
    sources, out = make_coco(3), tmp_path / "out"
    committed(sources, out)
    (sources[0] / "new \u202e.jpg").write_bytes(b"x")
    run = run_coco(*command(sources, out))
    assert run.code == 0
    assert "new \\u202e.jpg" in run.err
    check_committed(out)


# What users type.


@pytest.fixture
def sources(make_coco: MakeCoco) -> Sources:
    return make_coco(2)


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.mark.parametrize(
    "out",
    [
        "relative",
        "./dotted/../relative/",
        "deep/er/than/that",
        "with space",
        "new\nline",
        "caf\u00e9 \u202e",
        "a[1]*?{x}",
        "percent%20",
    ],
)
def test_outputs(out: str, sources: Sources, in_tmp: Path) -> None:
    (in_tmp / "dotted").mkdir()
    run = run_coco("--images", "train-images/", "--annotations", "./train.json", "--output", out)
    assert run.code == 0, run.err
    check_committed(in_tmp / out)
    for text in (run.out, run.err):
        assert text.isascii()
        assert all(line.isprintable() for line in text.splitlines())
    again = run_coco("--images", "train-images", "--annotations", "train.json", "--output", out)
    assert again.out.startswith("already complete: ")
    assert again.out.isascii()
    assert again.out.count("\n") == 1


def test_leading_dashes(sources: Sources, in_tmp: Path) -> None:
    (in_tmp / "train-images").rename(in_tmp / "-i")
    run = run_coco("--images=-i", "--annotations", "train.json", "--output=-o")
    assert run.code == 0, run.err
    check_committed(in_tmp / "-o")


def test_links_to_folders(sources: Sources, in_tmp: Path) -> None:
    (in_tmp / "real").mkdir()
    (in_tmp / "out").symlink_to("real")
    (in_tmp / "images").symlink_to("train-images")
    (in_tmp / "ann.json").symlink_to("train.json")
    run = run_coco("--images", "images", "--annotations", "ann.json", "--output", "out")
    assert run.code == 0, run.err
    check_committed(in_tmp / "real")


def test_file_uris(sources: Sources, tmp_path: Path) -> None:
    run = run_coco(
        *("--images", f"file://{sources[0]}", "--annotations", f"file://{sources[1]}"),
        *("--output", f"file://{tmp_path}/out"),
    )
    assert run.code == 0, run.err
    check_committed(tmp_path / "out")


@pytest.mark.parametrize("out", ["train-images", "train-images/out"])
def test_output_in_the_image_folder(out: str, sources: Sources, in_tmp: Path) -> None:
    """The data set's own files are no sources: run again, and it is complete."""
    before = snapshot(sources[0])
    arguments = ("--images", "train-images", "--annotations", "train.json", "--output", out)
    run = run_coco(*arguments)
    assert run.code == 0, run.err
    check_committed(in_tmp / out)
    after = snapshot(sources[0])
    assert {name: after.get(name) for name in before} == before
    again = run_coco(*arguments)
    assert (again.code, again.out) == (0, f"already complete: {out}/manifest.json\n")
    assert snapshot(sources[0]) == after


@pytest.mark.parametrize(
    ("flag", "path", "codes"),
    [
        ("--annotations", "nowhere.json", (2,)),
        ("--annotations", "no/where.json", (2,)),
        ("--annotations", "train-images", (2,)),
        ("--annotations", "train.json/x", (2,)),
        ("--annotations", "/", (2,)),
        ("--annotations", "fifo", (2, 6)),
        ("--images", "nowhere", (2, 3)),
        ("--images", "train.json", (2, 3)),
        ("--images", "dangling", (2, 3)),
        ("--images", "~/images", (2, 3)),
        ("--images", "nul\0", (2,)),
        ("--images", "gs://bucket/x", (2, 6)),
        ("--images", "nope://bucket/x", (2,)),
        ("--output", "train.json", (2, 6)),
        ("--output", "train.json/out", (2, 6)),
        ("--output", "dangling", (2, 6)),
        ("--output", "/proc/out", (2, 6)),
        ("--output", "x" * 300, (2, 6)),
        ("--output", "nul\0", (2,)),
    ],
)
def test_paths_that_cannot_be(
    flag: str, path: str, codes: tuple[int, ...], sources: Sources, in_tmp: Path
) -> None:
    """One line that names the path, whatever is wrong with it."""
    (in_tmp / "dangling").symlink_to("nowhere")
    (in_tmp / "fifo").touch()
    (in_tmp / "fifo").unlink()
    os.mkfifo(in_tmp / "fifo")
    writer = os.open(in_tmp / "fifo", os.O_RDWR)  # so that a reader is not kept for ever
    before = snapshot(sources[0])
    arguments = {
        "--images": "train-images",
        "--annotations": "train.json",
        "--output": "out",
        flag: path,
    }
    run = run_coco(*(word for pair in arguments.items() for word in pair))
    os.close(writer)
    assert run.code in codes, run.err
    assert "running" not in run.fault  # what Beam adds to a message
    assert CODE.findall(run.fault)[0] != "E-IO-RETRIES"
    assert ascii(path)[1:-1].split("/")[-1] in run.fault
    assert snapshot(sources[0]) == before
    assert not (in_tmp / "out/manifest.json").exists()


def test_missing_roots_are_told_from_empty_ones(sources: Sources, in_tmp: Path) -> None:
    run = run_coco("--images", "nowhere", "--annotations", "train.json", "--output", "out")
    assert "nowhere" in run.fault
    assert "'nothing'" not in run.fault


def test_file_names_with_dots_and_double_slashes(make_coco: MakeCoco, tmp_path: Path) -> None:
    """`./a.jpg` and `b//c.jpg` name files that are there."""

    def dot(spec: dict) -> None:
        spec["images"][0]["file_name"] = "./a000.jpg"

    sources = make_coco(3, edit=dot)
    committed(sources, tmp_path / "out")
    assert sorted(source_ids(tmp_path / "out")) == [1, 2, 3]


# Beam's other in-process modes, and closed pipes.


@pytest.mark.parametrize("mode", ["multi_threading", "multi_processing"])
def test_exit_codes_in_every_mode(mode: str, make_coco: MakeCoco, tmp_path: Path) -> None:
    images, annotations = make_coco(3)
    annotations.write_bytes(annotations.read_bytes()[:-3])
    run = spawn_coco(
        *command((images, annotations), tmp_path / "out"),
        *("--direct_num_workers=2", f"--direct_running_mode={mode}"),
    )
    assert run.code == 3
    assert run.err.splitlines()[-1].startswith(f"E-ANN-JSON {annotations}: ")
    if mode != "multi_processing":  # whose workers print what they like
        assert run.ended == (3, "E-ANN-JSON")


@pytest.mark.parametrize(
    ("mode", "fault"), [("in_memory", False), ("in_memory", True), ("multi_threading", True)]
)
def test_closed_pipes_neither_hang_nor_fail(
    mode: str, fault: bool, make_coco: MakeCoco, tmp_path: Path
) -> None:
    """`… 2>&1 | head -1`: who does not want to read on has no say in the data set."""
    images, annotations = make_coco(3)
    if fault:
        annotations.write_bytes(b"{")
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [*command((images, annotations), tmp_path / "out"), f"--direct_running_mode={mode}"]
    run = subprocess.run(
        [sys.executable, "-m", "pipelines.coco", *arguments],
        cwd=PROJECT,
        stdout=writer,
        stderr=writer,
        timeout=15,
    )
    os.close(writer)
    assert run.returncode == (3 if fault else 0)
    assert (tmp_path / "out/manifest.json").exists() == (not fault)
