"""What readers share: labels, exclusion, the identity of files, the pipeline."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.transforms.sources.read_samples import (
    SplitTally,
    excluded_keys,
    merge_labels,
    uri_identity,
)


def reject(code: str, **changes: Any) -> Rejected:
    whole = {"split": "train", "key": "1", "file_name": "1.jpg", **changes}
    return Rejected(code=code, stage="read_coco", detail="", **whole)


def file_with(*labels: tuple[int, str], split: str = "train") -> SplitTally:
    return SplitTally(split, "", 1, 0, 0, 0, 0, [Label(*label) for label in labels])


def test_labels_of_several_files_merge() -> None:
    files = [file_with((3, "c"), (1, "a")), file_with((1, "a"), (2, "b"), split="val")]
    assert merge_labels(files) == [Label(1, "a"), Label(2, "b"), Label(3, "c")]
    assert merge_labels([]) == []
    with pytest.raises(RuntimeError, match=r"^E-ANN-LABELS .*: category 1 'a' "):
        merge_labels([*files, file_with((1, "dog"), split="val")])


def test_rejected_lines_name_the_samples_to_exclude() -> None:
    rejects = [
        reject("E-IMG-MISSING"),
        reject("E-IMG-TYPE", key="2"),
        reject("E-IMG-TYPE", key="2", split="val"),
        reject("E-BOX-EMPTY", key="3"),  # its sample was written
        reject("E-ANN-ORPHAN", key=""),
    ]
    data = b"".join(msgspec.json.encode(line) + b"\n" for line in rejects)
    assert excluded_keys(data, "rejected.jsonl") == {
        "train": {"1": "1.jpg", "2": "1.jpg"},
        "val": {"2": "1.jpg"},
    }
    assert excluded_keys(b"", "rejected.jsonl") == {}


@pytest.mark.parametrize(
    "line",
    [
        b"not JSON",
        b'{"code": "E-NEW-CODE", "stage": "", "split": "train"}',  # from a newer version
        b"",
        pytest.param(b'{"later": ' + b"[" * 10_000, id="nested"),
    ],
)
def test_bad_lines_of_rejects_are_refused(line: bytes) -> None:
    good = msgspec.json.encode(reject("E-IMG-TYPE"))
    with pytest.raises(RuntimeError) as raised:
        excluded_keys(b"\n".join([good, line, good]), "gs://b/rejected.jsonl")
    text, where = str(raised.value), "E-ARG gs://b/rejected.jsonl: line 2"
    assert text.startswith(f"{where} is not a line of a rejected.jsonl (")
    assert text.endswith("; give --exclude the rejected.jsonl of an earlier run")


def test_files_are_recognised_by_sizes_and_checksums_in_any_order(tmp_path: Path) -> None:
    uris = [str(tmp_path / name) for name in ("a.json", "b.json", "rejected.jsonl")]
    for uri, data in zip(uris, (b"123456789", b"", b""), strict=True):
        Path(uri).write_bytes(data)
    assert uri_identity(uris[:1], "") == "9:e3069283"
    for order in (uris[:2], uris[1::-1]):
        assert uri_identity(order, uris[2]) == "0:00000000 and 9:e3069283 without 0:00000000"
    Path(uris[1]).unlink()
    for missing, exclude in ((uris[:1], uris[1]), (uris[:2], "")):
        with pytest.raises(RuntimeError) as raised:
            uri_identity(missing, exclude)
        assert str(raised.value) == f"E-ARG {uris[1]}: no such file; give the path of a file"
