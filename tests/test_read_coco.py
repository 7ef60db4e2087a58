"""COCO files as samples, and what readers share: orphans, labels, exclusion, file identity."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import google_crc32c
import msgspec
import pytest
from apache_beam.testing.util import assert_that, equal_to

from schemas.faults import Rejected
from schemas.fields import ObjectFields, PictureFields
from schemas.manifest import Label
from schemas.samples import Blob, Sample, pack
from tests.coco_texts import read_counted
from transforms.sources.read_coco import CocoReader, CocoRules, CocoSource
from transforms.sources.read_samples import (
    ReadSamples,
    SplitSource,
    excluded_keys,
    merge_labels,
    uri_identity,
)

STRICT, DROPPING = CocoRules(), CocoRules(drop_orphans=True)
BBOX = [1.5, 2, 10, 20.25]


def coco_json(
    images: Sequence[dict] = (),
    annotations: Sequence[dict] = (),
    categories: Sequence[dict] = ({"id": 1, "name": "person"}, {"id": 90, "name": "toothbrush"}),
) -> bytes:
    sections = {"images": images, "annotations": annotations, "categories": categories}
    return json.dumps(sections).encode()


def image(image_id: int | str, file_name: str = "") -> dict:
    return {"id": image_id, "file_name": file_name or f"{image_id}.jpg", "width": 64, "height": 48}


def annotation(annotation_id: int | str, image_id: int | str, **changes: Any) -> dict:
    whole = {"id": annotation_id, "image_id": image_id, "category_id": 1, "bbox": BBOX}
    return {**whole, "area": 5.5, "iscrowd": 0, **changes}


def read(
    data: bytes, rules: CocoRules = STRICT, exclude: Sequence[str] = ()
) -> tuple[list[Sample], list[Rejected], SplitSource]:
    """Return a file's samples, rejects and summary, which comes last."""
    source = CocoSource(data, "instances.json")
    left_out = {"train": dict.fromkeys(exclude, "")}
    *items, file = read_counted([source], "train", rules, left_out)
    samples = [item for item in items if isinstance(item, Sample)]
    rejected = [item for item in items if isinstance(item, Rejected)]
    assert len(samples) + len(rejected) == len(items)
    return samples, rejected, file


def sample(
    key: str, position: int, objects: Sequence[ObjectFields] = (), ids: tuple = ()
) -> Sample:
    fields = pack(PictureFields(64, 48, list(objects), image_id=int(key)))
    return Sample("train", key, position, (Blob("train", f"{key}.jpg"),), fields, ids)


def file_of(*counts: Any, **more: Any) -> SplitSource:
    """Return the summary of files of objects alone."""
    return SplitSource(*counts, found=["boxes"], **more)


PERSON = ObjectFields(1, (1.5, 2.0, 10.0, 20.25), 5.5, 0)
LABELS = [Label(1, "person"), Label(90, "toothbrush")]


def reject(code: str, detail: str, **changes: Any) -> Rejected:
    whole = {"split": "train", "key": "1", "annotation_ids": (5,), "file_name": "1.jpg"}
    return Rejected(code=code, stage="read_coco", detail=detail, **{**whole, **changes})


ORPHANS = [
    (
        annotation(5, 99),
        reject("E-ANN-ORPHAN", "image_id 99 is not in images", key="", file_name=""),
    ),
    (
        annotation(5, 1, category_id=2),
        reject("E-ANN-CATEGORY", "category_id 2 is not in categories"),
    ),
]


@pytest.mark.parametrize(("orphan", "rejected"), ORPHANS)
def test_orphans_stop_the_run(orphan: dict, rejected: Rejected) -> None:
    with pytest.raises(RuntimeError) as raised:
        read(coco_json([image(1)], [annotation(6, 1), orphan]))

    assert str(raised.value) == (
        f"{rejected.code} instances.json: $.annotations[1] (id 5): {rejected.detail};"
        " correct the file, or give --orphans drop"
    )


@pytest.mark.parametrize(("orphan", "rejected"), ORPHANS)
def test_orphans_are_dropped_on_request(orphan: dict, rejected: Rejected) -> None:
    data = coco_json([image(1)], [annotation(6, 1), orphan])

    assert read(data, DROPPING) == (
        [sample("1", 0, [PERSON], (6,))],
        [rejected],
        file_of("train", "", 1, 2, 0, 0, 0, LABELS),
    )


# --- several files ---


def file_with(*labels: tuple[int, str], split: str = "train") -> SplitSource:
    return SplitSource(split, "", 1, 0, 0, 0, 0, [Label(*label) for label in labels])


def test_labels_of_several_files_merge() -> None:
    files = [file_with((3, "c"), (1, "a")), file_with((1, "a"), (2, "b"), split="val")]

    assert merge_labels(files) == [Label(1, "a"), Label(2, "b"), Label(3, "c")]
    assert merge_labels([]) == []


def test_rejected_lines_name_the_samples_to_exclude() -> None:
    rejects = [
        reject("E-IMG-MISSING", ""),
        reject("E-IMG-TYPE", "", key="2"),
        reject("E-IMG-TYPE", "", key="2", split="val"),
        reject("E-BOX-EMPTY", "", key="3"),  # its sample was written
        reject("E-ANN-ORPHAN", "", key=""),
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
        b'{"key": "1"}',
        b'{"code": "E-NEW-CODE", "stage": "", "split": "train"}',  # of a newer version
        b"",
        pytest.param(b'{"later": ' + b"[" * 10_000, id="nested"),
    ],
)
def test_bad_lines_cannot_be_excluded(line: bytes) -> None:
    good = msgspec.json.encode(reject("E-IMG-TYPE", ""))

    with pytest.raises(RuntimeError) as raised:
        excluded_keys(b"\n".join([good, line, good]), "gs://b/rejected.jsonl")

    text = str(raised.value)
    assert text.startswith("E-ARG gs://b/rejected.jsonl: line 2 is no line of rejected.jsonl (")
    assert text.endswith("; give --exclude the file of an earlier run")


def test_a_file_is_recognised_by_size_and_checksum(tmp_path: Path) -> None:
    uri, exclude = tmp_path / "a.json", tmp_path / "rejected.jsonl"
    uri.write_bytes(b"123456789")
    exclude.write_bytes(b"")

    assert uri_identity([str(uri)], "") == "9:e3069283"
    assert uri_identity([str(uri)], str(exclude)) == "9:e3069283 without 0:00000000"


def test_files_are_recognised_in_any_order(tmp_path: Path) -> None:
    uris = [str(tmp_path / name) for name in ("a.json", "b.json", "rejected.jsonl")]
    for uri, data in zip(uris, (b"123456789", b"", b"x"), strict=True):
        Path(uri).write_bytes(data)
    expected = "0:00000000 and 9:e3069283 without 1:a2e14c0f"

    found = {uri_identity(order, uris[2]) for order in (uris[:2], uris[1::-1])}

    assert len(found) == 1
    assert found.pop().rpartition(":")[0] == expected.rpartition(":")[0]


@pytest.mark.parametrize("exclude", [False, True])
def test_a_file_that_is_not_there_is_an_argument_to_correct(tmp_path: Path, exclude: bool) -> None:
    there, not_there = tmp_path / "a.json", tmp_path / "b.json"
    there.write_bytes(b"")
    uris = ([there], not_there) if exclude else ([there, not_there], "")

    with pytest.raises(RuntimeError) as raised:
        uri_identity(list(map(str, uris[0])), str(uris[1]))

    assert str(raised.value) == f"E-ARG {not_there}: no such file; give the path of a file"


# --- the pipeline ---


@pytest.fixture
def uris(tmp_path: Path) -> dict[str, list[str]]:
    """Two files: `train` with a bad box, `val` with an orphan."""
    bad_box = annotation(6, 2, bbox=[0, 0, 0.0, 0.0])
    train = coco_json([image(1), image(2)], [annotation(5, 1), bad_box])
    val = coco_json([image(1)], [annotation(5, 99)], [{"id": 1, "name": "person"}])
    for name, data in (("train", train), ("val", val)):
        (tmp_path / f"{name}.json").write_bytes(data)
    return {name: [str(tmp_path / f"{name}.json")] for name in ("train", "val")}


def identity(uris: Sequence[str]) -> str:
    (uri,) = uris
    data = Path(uri).read_bytes()
    return f"{len(data)}:{google_crc32c.value(data):08x}"


def test_the_pipeline_reads_every_file(
    test_pipeline: Callable[[], beam.Pipeline], uris: dict[str, list[str]]
) -> None:
    with test_pipeline() as pipeline:
        pieces = pipeline | beam.Create([(split, tuple(given)) for split, given in uris.items()])
        out = pieces | ReadSamples(CocoReader(DROPPING), uris)
        val = Sample(
            "val", "1", 0, (Blob("val", "1.jpg"),), pack(PictureFields(64, 48, [], image_id=1)), ()
        )
        assert_that(
            out.samples,
            equal_to([sample("1", 0, [PERSON], (5,)), sample("2", 1), val]),
            label="samples",
        )
        assert_that(
            out.rejected,
            equal_to(
                [
                    reject(
                        "E-BOX-EMPTY",
                        "width 0.0 and height 0.0",
                        key="2",
                        annotation_ids=(6,),
                        file_name="2.jpg",
                    ),
                    reject(
                        "E-ANN-ORPHAN",
                        "image_id 99 is not in images",
                        split="val",
                        key="",
                        file_name="",
                    ),
                ]
            ),
            label="rejected",
        )
        assert_that(
            out.files,
            equal_to(
                [
                    file_of("train", identity(uris["train"]), 2, 2, 0, 0, 0, LABELS),
                    file_of("val", identity(uris["val"]), 1, 1, 0, 0, 0, LABELS[:1]),
                ]
            ),
            label="files",
        )
