"""Files that are read in pieces give what they give as a whole, faults included."""

import json
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from schemas.annotations.coco import CocoFiles
from schemas.annotations.coco_file import CocoFile
from schemas.annotations.coco_pieces import read_in_pieces
from schemas.annotations.json_pieces import HeldText
from tests.coco_texts import SMALL, annotation, coco, image, small
from transforms.sources import source_text
from transforms.sources.source_text import SourceText
from transforms.sources.split_sources import uri_identity
from transforms.storage import find_uri

TWO = [image(), image(2, "b.jpg")]


def told(data: bytes, *, in_pieces: bool, piece_bytes: int = 100) -> object:
    """Return all that a file says of its images, or the line that refuses it."""
    try:
        text = HeldText(data, piece_bytes)
        read_pieces = read_in_pieces if in_pieces else None
        files = CocoFiles([CocoFile(text, "f.json", read_pieces=read_pieces)])
    except RuntimeError as error:
        return str(error)
    of_images = [
        (found.image.id, found.image.name, found.objects, found.bad)
        for found in files.annotated_images()
    ]
    located = [
        files.locate(bad) for *_, bads in of_images for bad in bads if bad.code == "E-ANN-CATEGORY"
    ]
    sums = files.num_annotations, files.num_repeated_ids, files.repairs, files.found
    first_ids = files.count_first_ids(lambda image_id: str(image_id))
    return of_images, located, sums, files.orphans, files.sources(), files.labels, first_ids


@pytest.mark.parametrize(
    "data",
    [
        SMALL,
        coco([], []),
        coco(TWO, []),
        coco([], [annotation()]),
        coco(TWO, [annotation(9 - n, image_id=1 + n % 2, iscrowd=n % 3 > 1) for n in range(9)]),
        coco(TWO, [annotation(5, category_id=3, area=area) for area in (2, 1.5, -0.0, 1e300)]),
        coco(TWO, [annotation(), annotation(6, bbox=[1, 2, 0, 4.5]), annotation(7, bbox=None)]),
        coco(TWO, [annotation(), annotation(6, bbox=[1, 2]), annotation(7, bbox=[1, 2, 3, -1e-9])]),
        coco(TWO, [annotation(), annotation(4, category_id=8, bbox=[0, 0, 0, 0])]),
        coco(TWO, [annotation(), annotation(6, bbox=[1, 2, 3, 4])]).replace(b"4]", b"4e999]"),
        coco(TWO, [annotation(1, image_id=7), annotation(2), annotation(3, image_id=-7)]),
        coco(TWO, [annotation()], [{"id": n, "name": f"class {n}"} for n in range(30)]),
        coco(TWO, [annotation(2**63 - 1), annotation(-(2**63), image_id=2)]),
    ],
)
def test_pieces_say_what_the_whole_says(data: bytes) -> None:
    assert CocoFile(HeldText(data, 100), "f.json").columns is not None
    assert told(data, in_pieces=True) == told(data, in_pieces=False)


@pytest.mark.parametrize(
    "data",
    [
        small(b'"area":9.5', b'"area":null'),
        small(b'"area":9.5', b'"area":9.5,"keypoints":[]'),
        small(b'"area":9.5', b'"area":9.5,"keypoints":null'),
        small(b'"area":9.5', b'"caption":"a"'),
        small(b'"area":9.5', b'"area":"9.5"'),
        small(b'"area":9.5', b'"area":9.5,"x":"\xff"'),
        small(b'"area":9.5', b'"area":9.5,"x":' + b"[" * 62 + b"]" * 62),
        small(b'"id":5', b'"id":"5"'),
        small(b'"id":5', b'"id":5.0'),
        small(b'"id":5', b'"id":9223372036854775808'),
        small(b'"image_id":1', b'"image_id":"1"'),
        small(b'"images":[{"id":1', b'"images":[{"id":"1"'),
        small(b'"file_name":"a.jpg"', b'"file_name":"../a.jpg"'),
        small(b'"categories"', b'"Categories"'),
        small(b'"categories"', b'"images"'),
        small(b'"name":"cat"', b'"name":7'),
        SMALL[:-1],
        SMALL + b"x",
        b"\xef\xbb\xbf" + SMALL,
        coco([image(), image()], [annotation()]),
        coco(TWO, [annotation(), {"id": 6, "image_id": 1, "caption": "a"}]),
    ],
)
def test_what_is_out_of_the_ordinary_is_told_as_of_the_whole(data: bytes) -> None:
    assert told(data, in_pieces=True) == told(data, in_pieces=False)


def test_an_image_of_a_url_alone_keeps_its_name_and_license() -> None:
    fields = {"coco_url": "http://x/train/7.jpg", "license": 4}
    images = [{"id": 7, "width": 4, "height": 4, **fields}]

    (found,) = CocoFile(coco(images, []), "f.json").images

    assert (found.name, bytes(found.license)) == ("train/7.jpg", b"4")


def test_little_of_a_file_is_held() -> None:
    outline = [[float(n) for n in range(1000)]]
    data = coco(TWO, [annotation(n, segmentation=outline) for n in range(1000)])
    tracemalloc.start()

    file = CocoFile(HeldText(data), "f.json")
    held_bytes, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(data) > 5_000_000
    assert file.columns is not None
    assert held_bytes < 200_000
    assert peak_bytes < 3_000_000


def test_orphans_and_first_ids_are_found_without_entries() -> None:
    data = coco(TWO, [annotation(1, image_id=7), annotation(2), annotation(2, image_id=2)])
    file = CocoFile(HeldText(data, 100), "f.json")

    files = CocoFiles([file])

    assert [(orphan.path, orphan.image_id) for orphan in files.orphans] == [("$.annotations[0]", 7)]
    assert files.count_first_ids(str) == {"7": 1, "1": 1}
    assert "annotations" not in vars(file)


@pytest.fixture
def long_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file that is read in three pieces."""
    path = tmp_path / "instances.json"
    path.write_bytes(SMALL)
    monkeypatch.setattr(source_text, "_BYTES_AT_ONCE", len(SMALL) // 3 + 1)
    return str(path)


def test_a_file_read_in_pieces_is_recognised(long_file: str) -> None:
    text = SourceText(long_file)

    assert len(list(text.pieces())) == 3
    assert text.identity == uri_identity([long_file], "")
    assert b"".join(text.pieces()) == text.whole() == SMALL


def test_a_file_that_changes_between_pieces_is_refused(long_file: str) -> None:
    pieces = SourceText(long_file).pieces()
    next(pieces)
    Path(long_file).write_bytes(SMALL.replace(b"cat", b"dogs"))

    with pytest.raises(RuntimeError, match="E-SRC-CHANGED"):
        list(pieces)


def test_pieces_of_another_checksum_than_the_store_has_are_no_text(
    long_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, entry = find_uri(long_file)
    listed = storage, msgspec.structs.replace(entry, crc32c=1)
    monkeypatch.setattr(source_text, "find_uri", lambda *_: listed)

    with pytest.raises(ValueError, match="has crc32c 1"):
        list(SourceText(long_file).pieces())


def test_a_file_that_is_text_of_one_line_or_many_is_the_same() -> None:
    indented = json.dumps(json.loads(SMALL), indent=1).encode()

    assert told(indented, in_pieces=True, piece_bytes=7) == told(SMALL, in_pieces=False)
