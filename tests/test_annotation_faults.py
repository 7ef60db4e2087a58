"""Faults of annotation files, one per code, through the whole command."""

import re
from pathlib import Path

import pytest

from tests.coco_command import (
    MakeCoco,
    command,
    committed,
    examples,
    rejected_of,
    run_coco,
    value,
)
from tests.faulty_sources import cut_off


def test_a_fault_of_an_annotation_file_ends_the_run(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Exit 3 before any image is read: the line names the file, the place and the remedy."""
    sources = make_coco(3, edit=lambda spec: spec["annotations"][0].update(image_id=99))
    run = run_coco(*command(sources, tmp_path / "out"))
    assert run.ended == (3, "E-ANN-ORPHAN"), run.err
    what = "annotation 1: image_id 99"
    assert re.match(
        rf"E-ANN-ORPHAN {re.escape(str(sources[1]))}: .*{re.escape(what)}.*; [a-z].+", run.fault
    )
    assert run.out == ""
    assert not (tmp_path / "out").exists()


def test_bad_boxes_are_dropped_and_counted(make_coco: MakeCoco, tmp_path: Path) -> None:
    """One box per image; the second image also holds a good box, which stays."""
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
    manifest = committed((images, annotations), out, "--max_dropped", "100%")
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
