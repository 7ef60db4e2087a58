"""Files that two processes read give what one reads, whatever becomes of the other one."""

import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas import json_pieces
from schemas.coco import CocoFiles
from schemas.coco_file import CocoFile
from schemas.coco_pieces import CocoPieces, join_halves, read_front, read_in_pieces, read_rest
from schemas.json_pieces import HeldText
from tests.children import processes_beside
from tests.coco_command import MakeCoco, committed, digests
from tests.coco_texts import annotation, coco, image
from transforms import coco_halves, source_text
from transforms.coco_halves import read_in_halves
from transforms.source_text import SourceText
from transforms.sources import uri_identity

IMAGES = [image(n, f"{n}.jpg", license=n % 3) for n in range(1, 9)]
ODD = {3: {"bbox": None}, 17: {"bbox": [1, 2]}, 18: {"bbox": [0, 0, 0, 0]}, 30: {"category_id": 8}}
ANNOTATIONS = [annotation(n, image_id=1 + n % 8, **ODD.get(n, {})) for n in range(40)]
FILE = coco(IMAGES, ANNOTATIONS)
SECTIONS = json.loads(FILE)
LAST_FIRST = json.dumps({key: SECTIONS[key] for key in reversed(SECTIONS)}).encode()
ENDS_EARLY = b'{"images": %b, "categories": %b, "annotations": [%b]}, %b]}' % tuple(
    json.dumps(part).encode()
    for part in (IMAGES, SECTIONS["categories"], ANNOTATIONS[0], ANNOTATIONS[1])
)
"""An annotation stands behind the object, which reads as a front that is whole, and a rest."""


def told(pieces: CocoPieces | None) -> object:
    """Return all that is read of a file, in a form that compares; None where it is not."""
    if pieces is None:
        return None
    files = CocoFiles([CocoFile(b"", "f.json", read_pieces=lambda _: pieces)])
    of_images = [(found.image.name, found[1:]) for found in files.annotated_images()]
    return of_images, files.labels, files.licenses, files.num_repeated_ids, pieces.keys


def every_cut(data: bytes) -> list[int]:
    return [match.start(1) for match in json_pieces._NEXT_ENTRY.finditer(data)]


def halved(data: bytes, cut: int) -> CocoPieces | None:
    front, rest = HeldText(data[:cut], 100), HeldText(data[cut + 1 :], 100)
    return join_halves(read_front(front.pieces()), read_rest(rest.pieces()))


@pytest.mark.parametrize("data", [FILE, LAST_FIRST, json.dumps(SECTIONS, indent=1).encode()])
def test_halves_say_what_the_file_says_wherever_an_annotation_ends(data: bytes) -> None:
    whole = told(read_in_pieces(HeldText(data)))
    found = [told(halved(data, cut)) for cut in every_cut(data)]

    assert whole is not None
    assert len(found) == len(IMAGES) - 1 + len(ANNOTATIONS) - 1
    assert found.count(whole) == len(ANNOTATIONS) - 1
    assert found.count(None) == len(IMAGES) - 1  # cut between images


@pytest.mark.parametrize(
    "data",
    [
        FILE.replace(b'"categories"', b'"images"'),
        FILE.replace(b'"categories"', b'"annotations"'),
        FILE.replace(b'"categories"', b'"Categories"'),
        FILE.replace(b'"id": 7,', b'"id": "7",'),
        FILE.replace(b'"id": 35,', b'"id": 35, "keypoints": [],'),
        FILE[:-1],
        FILE + b"x",
        ENDS_EARLY,
    ],
)
def test_what_is_out_of_the_ordinary_is_no_two_halves(data: bytes) -> None:
    assert data != FILE
    assert [halved(data, cut) for cut in every_cut(data)] == [None] * len(every_cut(data))


@pytest.fixture
def long_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file that is long enough for two."""
    path = tmp_path / "instances.json"
    path.write_bytes(FILE)
    monkeypatch.setattr(source_text, "_BYTES_AT_ONCE", 1000)
    monkeypatch.setattr(coco_halves, "SHORTEST_BYTES", 1000)
    monkeypatch.setattr(coco_halves, "usable_cores", lambda: 2)
    return str(path)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each process beside this one has read its half."""
    outcomes: list[bool] = []
    take = coco_halves._RestReader.take

    def take_and_note(reader: coco_halves._RestReader) -> CocoPieces | None:
        rest = take(reader)
        outcomes.append(rest is not None)
        return rest

    monkeypatch.setattr(coco_halves._RestReader, "take", take_and_note)
    return outcomes


def check(uri: str) -> None:
    """Check that a file is read as by one alone, and that nothing is left of who helped."""
    text = SourceText(uri)
    open_before = len(os.listdir("/proc/self/fd"))
    assert told(read_in_halves(text)) == told(read_in_pieces(SourceText(uri)))
    assert text.identity == uri_identity([uri], "")
    assert processes_beside(os.getpid(), coco_halves._MODULE) == []
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_two_read_what_one_reads(long_file: str, taken: list[bool]) -> None:
    check(long_file)
    assert taken == [True]


def test_a_file_that_is_no_ordinary_one_is_read_alone(long_file: str, taken: list[bool]) -> None:
    Path(long_file).write_bytes(FILE[:-1] + b', "images": []}')
    assert read_in_halves(SourceText(long_file)) is None
    assert taken == [True]


def test_a_front_that_is_no_front_does_not_wait_for_the_rest(
    long_file: str, taken: list[bool]
) -> None:
    Path(long_file).write_bytes(FILE.replace(b'"id": 7,', b'"id": "7",'))
    assert read_in_halves(SourceText(long_file)) is None
    assert taken == []


def end_by_signal(reader: coco_halves._RestReader) -> None:
    os.kill(reader._process.pid, signal.SIGKILL)


def close_connection(reader: coco_halves._RestReader) -> None:
    reader._connection.close()


@pytest.mark.parametrize("spoil", [end_by_signal, close_connection])
def test_who_ends_before_he_has_read_is_done_without(
    spoil: Callable[[coco_halves._RestReader], None],
    long_file: str,
    taken: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    take = coco_halves._RestReader.take

    def spoil_and_take(reader: coco_halves._RestReader) -> CocoPieces | None:
        spoil(reader)
        return take(reader)

    monkeypatch.setattr(coco_halves._RestReader, "take", spoil_and_take)
    with caplog.at_level(logging.INFO, "transforms"):
        check(long_file)
    assert taken == [False]
    assert "the process beside this one has read nothing" in caplog.text


@pytest.mark.parametrize("program", ["/bin/false", "/bin/nothing-there"])
def test_where_none_can_start_one_reads_alone(
    program: str, long_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transforms.process_beside.sys.executable", program)
    check(long_file)


def no_process(*_: Any) -> None:
    raise AssertionError("a process was started")


@pytest.mark.parametrize(("cores", "shortest_bytes"), [(1, 1000), (2, len(FILE) + 1)])
def test_a_short_file_and_one_core_are_for_one(
    cores: int, shortest_bytes: int, long_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coco_halves, "usable_cores", lambda: cores)
    monkeypatch.setattr(coco_halves, "SHORTEST_BYTES", shortest_bytes)
    monkeypatch.setattr(coco_halves, "start_beside", no_process)
    check(long_file)


def test_a_file_whose_annotations_come_before_its_middle_is_for_one(
    long_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(long_file).write_bytes(FILE[:-1] + b', "info": "%b"}' % (b"x" * 9000))
    monkeypatch.setattr(coco_halves, "start_beside", no_process)
    check(long_file)


def test_a_file_that_changes_meanwhile_is_refused(
    long_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = coco_halves.read_front

    def change_and_read(pieces: Any) -> CocoPieces | None:
        Path(long_file).write_bytes(FILE.replace(b"cat", b"dogs"))
        return front(pieces)

    monkeypatch.setattr(coco_halves, "read_front", change_and_read)
    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED"):
        read_in_halves(SourceText(long_file))


def test_a_run_writes_the_same(
    make_coco: MakeCoco, tmp_path: Path, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = make_coco(12)
    committed(sources, tmp_path / "by-one", "--num_shards", 2)
    monkeypatch.setattr(coco_halves, "SHORTEST_BYTES", 1)
    monkeypatch.setattr(coco_halves, "usable_cores", lambda: 2)
    committed(sources, tmp_path / "by-two", "--num_shards", 2)

    assert taken == [True]
    assert digests(tmp_path / "by-one") == digests(tmp_path / "by-two")
