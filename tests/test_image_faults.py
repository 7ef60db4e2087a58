"""Every fault of an image through the command: exit code, one line, `rejected.jsonl`."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from schemas.faults import FAULTS
from tests.coco_command import (
    MakeCoco,
    check_visible,
    command,
    committed,
    rejected_of,
    run_coco,
    source_ids,
)
from tests.faulty_sources import (
    NO_PIXELS,
    cut_off,
    make_dangling,
    make_directory,
    make_fifo,
    make_loop,
    make_socket,
)
from tests.small_images import idat, ihdr, png
from transforms.sources.list_blobs import MAX_IMAGE_BYTES

BEFORE_PLANNING = "pin_blobs"
IN_SHARDS = "write_shards"


class ImageFaultCase(NamedTuple):
    """What is done to one image, and the reject that it must lead to."""

    spoil: Callable[[Path], object]
    code: str
    stage: str
    detail: str
    flags: tuple[str, ...] = ()


def make_sparse(path: Path) -> None:
    os.truncate(path, MAX_IMAGE_BYTES + 1)


def content(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


BOMB = png(ihdr(20_000, 20_000), idat())
WRONG_CRC = png(ihdr(64, 48), idat()[:-1] + b"\0")

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


@pytest.mark.parametrize("name", ["missing", "JPEG cut off"])
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
    unreached = {"E-EX-TOO-LARGE", "E-EX-EMPTY", "E-EX-FAILED"}  # of a layout, not of an image
    codes = {code for code in FAULTS if code.startswith(("E-IMG-", "E-EX-"))}
    assert {case.code for case in IMAGE_FAULTS.values()} == codes - unreached


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
    assert not out.exists()
