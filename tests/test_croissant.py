"""`croissant.json`: its content, and what MLCommons' reader loads from it, if installed.

`.ci/run` installs `mlcroissant` in an environment of its own and names its Python in
MLCROISSANT_PYTHON: its pandas and pyarrow must not touch ours.
"""

import json
import os
import subprocess
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from beam_tfrec.pipelines import table
from beam_tfrec.schemas.documents.croissant import croissant_json
from beam_tfrec.schemas.documents.data_card import is_sealed
from beam_tfrec.schemas.shards import MAXDIFFUSION
from tests.coco_command import MakeCoco, command, committed_by, manifest_of, run_coco
from tests.test_manifest import MANIFEST

PYTHON = os.environ.get("MLCROISSANT_PYTHON", "")
LOAD = Path(__file__).parent / "mlcroissant" / "load.py"
RECOMMENDED = ("http://mlcommons.org/croissant/citeAs", "https://schema.org/datePublished")


def described(manifest: Any = MANIFEST) -> dict[str, Any]:
    return json.loads(croissant_json(manifest))


def test_croissant_describes_the_data_set() -> None:
    found = described()
    assert is_sealed(croissant_json(MANIFEST).encode()) and croissant_json(MANIFEST).isascii()
    assert found["@context"]["cr"] == "http://mlcommons.org/croissant/"
    assert {key: found[key] for key in ("@type", "conformsTo", "name", "version")} == {
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "beam_tfrec_detection",
        "version": "4.0.0",
    }
    assert found["isLiveDataset"] is False
    assert found["description"] == (
        "detection records in TFRecord files written by beam-tfrec (train 9);"
        " see README.md and manifest.json."
    )
    shard, index = found["distribution"]
    assert shard == {
        "@type": "cr:FileObject",
        "@id": "train-00000-of-00001-9.tfrec",
        "name": "train-00000-of-00001-9.tfrec",
        "contentUrl": "train-00000-of-00001-9.tfrec",
        "contentSize": "1000 B",
        "encodingFormat": "application/x-tfrecord",
        "sha256": "00",
    }
    assert (index["@type"], index["includes"]) == ("cr:FileSet", "index/*.parquet")
    options = {**MANIFEST.plan.options, "shard_names": MAXDIFFUSION}
    plan = msgspec.structs.replace(MANIFEST.plan, options=options)
    in_folders = described(msgspec.structs.replace(MANIFEST, plan=plan))
    assert in_folders["distribution"][-1]["includes"] == "index/*/*.parquet"
    sets = {record_set["@id"]: record_set for record_set in found["recordSet"]}
    assert list(sets) == ["splits", "features", "labels", "records"]
    assert sets["splits"]["data"] == [{"splits/name": "train"}]
    assert sets["labels"]["data"] == [
        {"labels/id": 1, "labels/name": "person"},
        {"labels/id": 90, "labels/name": "Zahnbürste"},
    ]


def test_empty_parts_are_left_out() -> None:
    plan = msgspec.structs.replace(MANIFEST.plan, labels=[])
    found = described(msgspec.structs.replace(MANIFEST, plan=plan, shards=[]))
    assert "license" not in found
    assert "distribution" not in found
    assert [record_set["@id"] for record_set in found["recordSet"]] == ["splits", "features"]


@pytest.mark.thorough
@pytest.mark.skipif(not PYTHON, reason="MLCROISSANT_PYTHON names no Python; .ci/run installs one")
def test_mlcroissant_loads_several_splits_and_tables_without_labels(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    def with_license(spec: dict[str, Any]) -> None:
        spec["licenses"] = [{"id": 4, "name": "CC BY", "url": "http://x.org/by"}]
        for image in spec["images"]:
            image["license"] = 4

    sources, out = make_coco(20, edit=with_license), tmp_path / "coco"
    flags = ("--split_by", "hash", "--splits", "train=60,val=40", "--shard_names", "plain")
    run = run_coco(*command(sources, out, *flags))
    assert run.code == 0, run.err
    check_loaded(out, [["CC BY", "http://x.org/by"]])
    source = tmp_path / "t.csv"
    source.write_text("id,x\n1,0.5\n2,\n")
    committed_by(table.run, tmp_path / "table", "--table", source)
    check_loaded(tmp_path / "table", [])


def check_loaded(out: Path, licenses: list[list[str]]) -> None:
    """Compare what mlcroissant loads with the indexes and the manifest."""
    command = [PYTHON, str(LOAD), str(out / "croissant.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "Could not match" not in done.stderr
    found, manifest = json.loads(done.stdout), manifest_of(out)
    assert (found["errors"], found["licenses"]) == ([], licenses)
    expected = [said for said in found["warnings"] if any(name in said for name in RECOMMENDED)]
    assert [said for said in found["warnings"] if "license" not in said] == expected
    files = {shard["file"]: shard["sha256"] for shard in manifest["shards"]}
    assert found["files"] == files | {"index": None}
    assert found["sets"]["splits"] == [{"splits/name": name} for name in manifest["splits"]]
    assert found["sets"].get("labels", []) == [
        {"labels/id": label["id"], "labels/name": label["name"]}
        for label in manifest["plan"]["labels"]
    ]
    assert [
        (row["features/key"], row["features/type"], row["features/repeated"])
        for row in found["sets"]["features"]
    ] == [(f["key"], f["kind"], f["repeated"]) for f in manifest["features"]]
    wanted = [
        {
            "records/key": row["key"],
            "records/split": shard["split"],
            "records/shard": index,
            "records/offset": row["offset"],
            "records/size": row["size"],
            "records/labels": row["labels"],
        }
        for split in manifest["splits"]
        for index, shard in enumerate(s for s in manifest["shards"] if s["split"] == split)
        for row in pq.read_table(out / f"index/{shard['index_stem']}.parquet").to_pylist()
    ]
    by_place = itemgetter("records/split", "records/shard", "records/offset")
    assert sorted(found["sets"]["records"], key=by_place) == wanted
