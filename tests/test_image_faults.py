"""Every fault of an image, found by the command: `rejected.jsonl` and the sums of the manifest."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from beam_tfrec.schemas.faults import FAULTS
from beam_tfrec.transforms.sources.listing import MAX_IMAGE_BYTES
from tests.coco_command import MakeCoco, committed, rejected_of, source_ids
from tests.conftest import jpeg_bytes
from tests.small_images import chunk, idat, ihdr, png

BEFORE_PLANNING = {"E-IMG-MISSING", "E-IMG-NOT-A-FILE", "E-IMG-EMPTY", "E-IMG-TOO-LARGE"}
NO_PIXELS = png(ihdr(64, 48), chunk(b"IDAT", b"no zlib stream"))


def make_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, MAX_IMAGE_BYTES + 1)


def content(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


# What takes the place of an image, then the code and the detail of its reject.
CASES: list[tuple[Callable[[Path], object], str, str]] = [
    (lambda path: None, "E-IMG-MISSING", "not in the listing"),
    (lambda path: path.symlink_to("nowhere"), "E-IMG-MISSING", "a link to nothing"),
    (lambda path: path.symlink_to(path.name), "E-IMG-MISSING", "a link to nothing"),
    (Path.mkdir, "E-IMG-NOT-A-FILE", "a directory"),
    (os.mkfifo, "E-IMG-NOT-A-FILE", "a fifo"),
    (content(b""), "E-IMG-EMPTY", "0 bytes"),
    (make_sparse, "E-IMG-TOO-LARGE", "268435457 bytes, the limit is 268435456"),
    (content(jpeg_bytes()[:-20]), "E-IMG-TRUNCATED", "no end marker in"),
    (content(png(ihdr(64, 48), idat(), end=b"")), "E-IMG-TRUNCATED", "IEND"),
    (content(png(ihdr(64, 48), idat()[:-1] + b"\0")), "E-IMG-DAMAGED", "wrong checksum"),
    (content(NO_PIXELS), "E-IMG-DAMAGED", ""),  # by --check decode
    (content(b"<html>404</html>"), "E-IMG-TYPE", "HTML"),
    (content(png(ihdr(20_000, 20_000), idat())), "E-IMG-PIXELS", "= 400000000 pixels, limit 17895"),
    (content(png(ihdr(3, 2), idat(bytes(8)))), "E-IMG-SIZE", "3 x 2 in the file, 64 x 48 annotate"),
]
FLAGS = ("--on_size_mismatch", "reject", "--check", "decode")


def test_each_image_fault_is_a_reject(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Each is listed with all fields and counted; all other images are written."""
    sources, out = make_coco(2 * len(CASES)), tmp_path / "out"
    for place, (spoil, _, _) in enumerate(CASES):
        path = sources[0] / f"a{place:03}.jpg"
        path.unlink()
        spoil(path)
    manifest = committed(sources, out, *FLAGS, "--max_rejected", len(CASES))
    lines = {line["file_name"]: line for line in rejected_of(out)}
    for place, (_, code, detail) in enumerate(CASES):
        line = lines.pop(f"a{place:03}.jpg")
        assert detail in line.pop("detail")
        is_early = code in BEFORE_PLANNING
        assert line == {
            "code": code,
            "stage": "pin_blobs" if is_early else "write_shards",
            "split": "train",
            "key": f"{place + 1}",
            "annotation_ids": [100 * place + 1, 100 * place + 2],
            "file_name": f"a{place:03}.jpg",
            "shard": "" if is_early else "train-00000-of-00001",
        }
    assert lines == {}
    split = manifest["splits"]["train"]
    assert split["rejected"] == dict(sorted(Counter(code for _, code, _ in CASES).items()))
    assert (split["annotations"]["written"], split["annotations"]["lost"]) == (2 * len(CASES),) * 2
    assert sorted(source_ids(out)) == list(range(len(CASES) + 1, 2 * len(CASES) + 1))


def test_every_image_code_has_a_case() -> None:
    unreached = {"E-EX-TOO-LARGE", "E-EX-EMPTY", "E-EX-FAILED"}  # of a layout, not of an image
    unreached.add("E-IMG-SIMILAR")  # of two images
    codes = {code for code in FAULTS if code.startswith(("E-IMG-", "E-EX-"))}
    assert {code for _, code, _ in CASES} == codes - unreached
