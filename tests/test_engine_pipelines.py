"""Every pipeline writes the same files on Prism, where all elements are encoded to bytes.

Each has two splits, so that duplicates between them are found. COCO is in `test_engines.py`.
"""

import gzip
from pathlib import Path

import pytest

from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import Kind
from beam_tfrec.schemas.tfrecord import frame_record
from tests import oracle
from tests.coco_command import PROJECT, REPORTED, check_committed, digests, finish, start_command

PRISM = PROJECT / ".tools" / "prism"
BY_HASH = ("--split_by", "hash", "--splits", "train=1,val=1", "--num_shards", "1")
CASES = {
    "folder": "folder classification",
    "table": "odd images, header check",
    "pairs": "pairs",
    "sidecar": "sidecar of LabelMe, masks",  # outlines are payloads
    "arrays": "arrays of .npz, raw",
    "webdataset": "webdataset, fields",
}


def write_records(folder: Path) -> Path:
    """Write a plain file of records and a compressed one, whose records are staged."""
    examples = [encode_example({"id": (Kind.INT64, [number])}) for number in range(40)]
    data = b"".join(part for example in examples for part in frame_record([example]))
    folder.mkdir()
    (folder / "a.tfrecord").write_bytes(data)
    (folder / "b.tfrecord.gz").write_bytes(gzip.compress(data))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", [*CASES, "records"])
def test_prism_writes_the_files_of_a_run_in_process(pipeline: str, tmp_path: Path) -> None:
    if not PRISM.exists():
        pytest.skip("no .tools/prism; `make engines` builds it, with Go")
    if pipeline == "records":
        given = ["--records", str(write_records(tmp_path / "in")), *BY_HASH]
    elif pipeline == "folder":  # each photo is in both splits
        given = ["--images", *(f"{split}={oracle.DATA}/classes" for split in ("train", "val"))]
    else:
        oracle.make_sources(tmp_path)
        given = [*oracle.CASES[CASES[pipeline]].words(tmp_path), *BY_HASH]
    here = finish(start_command(pipeline, *given, "--output", tmp_path / "here"))
    assert here.code == 0, here.err
    prism = ("--runner", "PrismRunner", "--prism_location", PRISM)
    elsewhere = (*given, "--output", tmp_path / "there", *REPORTED, *prism)
    there = finish(start_command(pipeline, *elsewhere), timeout_s=120)
    assert there.code == 0, there.err
    manifest = check_committed(tmp_path / "there")
    assert [bool(split["records"]) for split in manifest["splits"].values()] == [True, True]
    assert ("duplicates" in manifest) == (pipeline in ("folder", "records"))
    assert digests(tmp_path / "there") == digests(tmp_path / "here")
