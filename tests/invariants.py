"""Check an output, whatever happened to the runs that made it.

The checks see a mapping of names to bytes: of a folder, of a bucket, or of the store in memory.
They do not use the code under test. The numbers in messages mean:
1. nothing is lost silently; 2. the same bytes; 3. shards are exact; 4. the manifest commits;
7. transient errors are never rejects. Other tests check 5 (memory) and 6 (no TensorFlow).
"""

import hashlib
import io
import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow.parquet as pq

Files = Mapping[str, bytes]
MANIFEST = "manifest.json"
_COUNTED_NAME = re.compile(r"([a-z][a-z0-9_]*)-([0-9]{5})-of-([0-9]{5})-([0-9]+)\.tfrec")
_IN_FOLDER = re.compile(r"(train|val)/[0-9]{5}-of-[0-9]{5}\.tfrec")
_OF_THE_SAMPLE = (
    *("E-IMG-", "E-EX-", "E-REC-", "E-ROW-"),
    *("E-SRC-LABEL", "E-SRC-TWICE", "E-ANN-MISSING", "E-ANN-FILE"),
)
_OF_THE_ANNOTATION = (
    *("E-BOX-", "E-RLE-", "E-SEG-", "E-ANN-ORPHAN", "E-ANN-CATEGORY", "E-ANN-SHAPE"),
    *("E-ANN-ROW", "E-ANN-TWICE"),
)
_OWN_COUNT = "counted"  # by a layout that a test defines
_DOC = Path(__file__).parents[1] / "docs" / "faults.md"


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def check_output(files: Files, undisturbed: Files, foreign: Files | None = None) -> bool:
    """Check an output against the undisturbed build; return whether it is committed.

    Args:
        files: the output.
        undisturbed: output of an undisturbed build of this plan.
        foreign: files of the user's, which must not change.
    """
    for name, data in (foreign or {}).items():
        assert files.get(name) == data, f"4: {name} of the user is gone or changed"
    own = {name: data for name, data in files.items() if name not in (foreign or {})}
    check_visible(own)
    for name, data in own.items():
        assert name in undisturbed, f"4: {name} is left over"
        assert data == undisturbed[name], f"2: {name} has other bytes"
    if MANIFEST not in own:
        return False
    check_committed(own)
    assert own.keys() == undisturbed.keys(), "4: a manifest, but not all its files"
    return True


def check_visible(files: Files) -> int:
    """Check every shard that a glob finds against its receipt; return how many."""
    receipts = {receipt["file"]: receipt for receipt in _receipts(files).values()}
    for name in data_files(files):
        data = files[name]
        assert name in receipts, f"4: {name} has no receipt"
        receipt = receipts[name]
        assert len(read_records(data, name)) == receipt["records"], f"4: {name}"
        assert _sums(data) == (receipt["bytes"], receipt["crc32c"], receipt["sha256"]), f"4: {name}"
        rejected = [line["code"] for line in receipt["rejected"]]
        check_rejects(rejected)
        assert receipt["planned"] == receipt["records"] + sum(map(_is_of_sample, rejected)), (
            f"1: {name}"
        )
    return len(data_files(files))


def check_committed(files: Files) -> dict[str, Any]:
    """Check a committed data set against every promise that its own files make.

    Files and manifest agree, all sums hold, indexes point at the records, shards are exact.
    """
    manifest = json.loads(files[MANIFEST])
    receipts = _receipts(files)
    assert check_visible(files) == len(manifest["shards"]) == len(receipts), "4: shards, receipts"
    in_order = sorted(data_files(files), key=_by_split_and_index)
    assert [shard["file"] for shard in manifest["shards"]] == in_order, "4: the manifest's files"
    for shard in manifest["shards"]:
        data = files[shard["file"]]
        assert _sums(data) == (shard["bytes"], shard["crc32c"], shard["sha256"]), f"4: {shard}"
        assert shard["records"] == len(read_records(data, shard["file"])), f"1: {shard}"
    for stem, receipt in receipts.items():
        _check_index(files, receipt, stem)
    rejected = [json.loads(line) for line in files["rejected.jsonl"].splitlines()]
    check_rejects(line["code"] for line in rejected)
    for name, split in manifest["splits"].items():
        shards = [shard for shard in manifest["shards"] if shard["split"] == name]
        _check_exact(name, [shard["planned"] for shard in shards], manifest["plan"]["options"])
        _check_sums(name, split, shards, rejected)
        unknown = split["repairs"].keys() - _documented("Repaired") - {_OWN_COUNT}
        unknown |= split.get("skipped", {}).keys() - _documented("Skipped")
        assert not unknown, f"1: docs/faults.md lacks {unknown}"
    assert not any(name.startswith("_spool-") for name in files), "4: a spool is left over"
    return manifest


def _documented(section: str) -> set[str]:
    """Return the counts in a section of docs/faults.md."""
    _, _, text = _DOC.read_text().partition(f"## {section}\n")
    return {*re.findall("^[|] `([a-z_]+)`", text.partition("\n## ")[0], re.MULTILINE)}


def check_growth(days: Sequence[Files]) -> dict[tuple[str, str], bytes]:
    """Check data sets made with `--since`, each alone and all together; return all Examples.

    Each sample must be in only one of them, and each class must keep its id and name.
    """
    examples: dict[tuple[str, str], bytes] = {}
    labels: list[dict[str, Any]] = []
    for files in days:
        manifest = check_committed(files)
        for key, record in keyed_records(files).items():
            assert key not in examples, f"1: {key} is in two data sets"
            examples[key] = record
        now = manifest["plan"]["labels"]
        assert [label for label in now if label in labels] == labels, "2: a class has changed"
        labels = now
    return examples


def keyed_records(files: Files) -> dict[tuple[str, str], bytes]:
    """Return the Examples of a data set by split and key, as its indexes name them."""
    records: dict[tuple[str, str], bytes] = {}
    for receipt in _receipts(files).values():
        data = files[receipt["file"]]
        rows = pq.read_table(io.BytesIO(files[_index(receipt["file"])])).to_pylist()
        for row in rows:
            record = data[row["offset"] + 12 : row["offset"] + row["size"] - 4]
            records[receipt["split"], row["key"]] = record
    return records


def check_rejects(codes: Iterable[str]) -> None:
    """Check that all rejects are about samples or annotations, never about storage or a machine."""
    for code in codes:
        assert code.startswith(_OF_THE_SAMPLE + _OF_THE_ANNOTATION), f"7: {code} is a reject"


def data_files(files: Files) -> list[str]:
    """Return the names of shard files, as a glob finds them, sorted."""
    top = (name for name in files if "/" not in name and name.endswith(".tfrec"))
    return sorted([*top, *filter(_IN_FOLDER.fullmatch, files)])


def read_records(data: bytes, where: object) -> list[bytes]:
    """Return a TFRecord file's records, after checking every length and checksum."""
    at, records = 0, []
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        assert length_crc == _masked(data[at : at + 8]), f"{where}: checksum of a length at {at}"
        end = at + 12 + length
        assert end + 4 <= len(data), f"{where}: cut off at {at}"
        record = data[at + 12 : end]
        (data_crc,) = struct.unpack_from("<I", data, end)
        assert data_crc == _masked(record), f"{where}: checksum of a record at {at}"
        records.append(record)
        at = end + 4
    return records


def _masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _sums(data: bytes) -> tuple[int, str, str]:
    return len(data), f"{google_crc32c.value(data):08x}", hashlib.sha256(data).hexdigest()


def _receipts(files: Files) -> dict[str, dict[str, Any]]:
    """Return the receipts by the stem of their names."""
    return {
        name.removeprefix("_receipts/").removesuffix(".json"): json.loads(data)
        for name, data in files.items()
        if name.startswith("_receipts/")
    }


def _index(file: str, suffix: str = "parquet") -> str:
    return f"index/{file.removesuffix('.tfrec')}.{suffix}"


def _by_split_and_index(name: str) -> tuple[str, int]:
    match = _COUNTED_NAME.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, 0)


def _check_index(files: Files, receipt: Mapping[str, Any], stem: str) -> None:
    """Read every record by its offset alone, as a random-access reader does."""
    data = files[receipt["file"]]
    rows = pq.read_table(io.BytesIO(files[_index(receipt["file"])])).to_pylist()
    found = [data[row["offset"] + 12 : row["offset"] + row["size"] - 4] for row in rows]
    assert found == read_records(data, receipt["file"]), f"4: index of {stem}"
    sums = [google_crc32c.value(record) for record in found]
    assert sums == [row["crc32c"] for row in rows], f"4: index of {stem}"
    lines = files[_index(receipt["file"], "idx")].decode().splitlines()
    assert lines == [f"{row['offset']} {row['size']}" for row in rows], f"4: index of {stem}"


def _check_exact(name: str, planned: Sequence[int], options: Mapping[str, str]) -> None:
    full = int(options.get("records_per_shard") or 0)
    if full:
        expected = [min(full, sum(planned) - full * index) for index in range(len(planned))]
    else:
        base, extra = divmod(sum(planned), len(planned) or 1)
        expected = [base + (index < extra) for index in range(len(planned))]
    assert list(planned) == expected, f"3: shards of {name}"


def _check_sums(
    name: str, split: Mapping[str, Any], shards: Sequence[Mapping], rejected: Sequence[Mapping]
) -> None:
    mine = [line for line in rejected if line["split"] == name]
    samples = [line for line in mine if _is_of_sample(line["code"])]
    dropped = [line for line in mine if not _is_of_sample(line["code"])]
    fate = split["annotations"]
    left_out = split["excluded"] + split.get("earlier", 0) + sum(split.get("skipped", {}).values())
    early = split["rejected_before_planning"]
    assert split["listed"] == left_out + early + split["planned"], f"1: samples of {name}"
    assert split["planned"] == split["records"] + split["rejected_in_shards"], f"1: plan of {name}"
    assert split["planned"] == sum(shard["planned"] for shard in shards), f"1: plan of {name}"
    assert split["records"] == sum(shard["records"] for shard in shards), f"1: records of {name}"
    assert len(samples) == early + split["rejected_in_shards"], f"1: rejects of {name}"
    assert sum(split["rejected"].values()) == len(samples), f"1: rejects of {name}"
    assert sum(fate["dropped"].values()) == len(dropped), f"1: dropped of {name}"
    lost = sum(len(line["annotation_ids"]) for line in samples)
    assert fate["lost"] == lost, f"1: annotations of {name}"
    left_out = fate["excluded"] + fate.get("earlier", 0) + sum(fate.get("skipped", {}).values())
    assert fate["listed"] == fate["written"] + len(dropped) + lost + left_out, (
        f"1: annotations of {name}"
    )


def _is_of_sample(code: str) -> bool:
    return code.startswith(_OF_THE_SAMPLE)
