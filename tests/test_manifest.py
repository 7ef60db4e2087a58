"""The manifest: digest, JSON, versions, schema."""

import json
import re
from typing import Any

import jsonschema
import msgspec
import pytest

from beam_tfrec.schemas.features import Feature, Kind
from beam_tfrec.schemas.manifest import (
    FORMAT_VERSION,
    Annotations,
    JobPlan,
    Label,
    Manifest,
    PlannedSplit,
    ShardEntry,
    SplitSummary,
    plan_digest,
    read_manifest,
    to_json,
)

PLAN = JobPlan(
    format_version=2,
    options={"seed": "0", "layout": "detection"},
    labels=[Label(1, "person"), Label(90, "Zahnbürste")],
    splits={"train": PlannedSplit(samples=10, shards=2), "a_val": PlannedSplit(3, 1)},
    samples="00ff",
    found=["boxes"],
)
SUMMARY = SplitSummary(
    *(13, 1, 2, 10, 1, 9, 1, 1000),
    annotations=Annotations(listed=20, written=15, dropped={"E-BOX-EMPTY": 2}, lost=2, excluded=1),
    repeated_annotation_ids=0,
    rejected={"E-IMG-EMPTY": 3},
    repairs={"box_clipped": 4},
    traits={"cmyk": 1},
)
MANIFEST = Manifest(
    layout="detection",
    plan=PLAN,
    splits={"train": SUMMARY},
    shards=[ShardEntry("train-00000-of-00001-9.tfrec", "train", 10, 9, 1000, "deadbeef", "00")],
    features=[Feature("image/width", Kind.INT64, False, "image width in px")],
)


def test_a_plans_digest_never_changes() -> None:
    assert plan_digest(PLAN) == "8f9f615c0f5ed0466287fcaf54f53a66"


def test_a_manifest_survives_its_json() -> None:
    data = to_json(MANIFEST)
    assert read_manifest(data, "manifest.json") == MANIFEST
    schema = msgspec.json.schema(Manifest)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(data), schema)
    assert json.loads(data)["format_version"] == FORMAT_VERSION == 4


def edited(**fields: Any) -> bytes:
    return json.dumps({**json.loads(to_json(MANIFEST)), **fields}).encode()


REFUSED = [
    (edited(format_version=6), "format version 6 is newer than 5; upgrade"),
    (edited(format="x"), "not a manifest of beam-tfrec (format 'x'); give another"),
    (to_json(MANIFEST)[:-3], "not a manifest of beam-tfrec (Input data was truncated);"),
    (b'{"format": "\xff"}', "not a manifest of beam-tfrec ('utf-8' codec can't decode"),
    (b'{"x": ' + b"[" * 100_000, "not a manifest of beam-tfrec (maximum rec"),
]


@pytest.mark.parametrize(("data", "what"), REFUSED, ids=range(len(REFUSED)))
def test_other_files_are_refused(data: bytes, what: str) -> None:
    with pytest.raises(RuntimeError, match=f"^E-OUT-FOREIGN m.json: {re.escape(what)}"):
        read_manifest(data, "m.json")
