"""Other people's readers of our files: Croissant, TFDV, Model Garden, PyTorch, Grain, `tfrecord`.

`.ci/run` installs them in environments of their own, so that their packages do not replace ours,
and names the Python of each.
"""

import json
import math
import os
import subprocess
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from beam_tfrec.pipelines import coco, records, table
from beam_tfrec.schemas.documents.croissant import croissant_json
from beam_tfrec.schemas.documents.data_card import is_sealed
from beam_tfrec.schemas.shards import MAXDIFFUSION
from tests.coco_command import (
    PROJECT,
    MakeCoco,
    command,
    committed,
    committed_by,
    examples,
    manifest_of,
    run_coco,
    run_pipeline,
    shard_paths,
    value,
)
from tests.conftest import TEST_DATA
from tests.drawn_sources import draw_coco
from tests.test_docs import block_of
from tests.test_manifest import MANIFEST
from tests.torch_reader.digests import digest

TESTS = Path(__file__).parent


def needs(python: str) -> Any:
    """Return the mark of a thorough test that needs an environment, by its variable."""
    reason = f"{python} names no Python; .ci/run installs one"
    is_missing = pytest.mark.skipif(not os.environ.get(python), reason=reason)
    return lambda test: pytest.mark.thorough(is_missing(test))


def run_by(python: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program in an environment until it ends well."""
    command = [os.environ[python], *map(str, arguments)]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=PROJECT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done


# --- croissant.json ---


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


@needs("MLCROISSANT_PYTHON")
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
    done = run_by("MLCROISSANT_PYTHON", TESTS / "mlcroissant/load.py", out / "croissant.json")
    assert "Could not match" not in done.stderr
    found, manifest = json.loads(done.stdout), manifest_of(out)
    assert (found["errors"], found["licenses"]) == ([], licenses)
    missing = ("http://mlcommons.org/croissant/citeAs", "https://schema.org/datePublished")
    expected = [said for said in found["warnings"] if any(name in said for name in missing)]
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


# --- schema.pbtxt ---


@needs("TFDV_PYTHON")
def test_our_shards_have_no_anomaly(tmp_path: Path) -> None:
    """Of pictures in every layout, and of a table with missing cells; TFDV starts slowly."""
    sources = draw_coco(tmp_path, 4)
    for layout in ("detection", "keras", "tfds"):
        committed(sources, tmp_path / layout, "--num_shards", 2, "--layout", layout)
    (tmp_path / "t.csv").write_text("id,x,name\n1,0.5,a\n2,,b\n3,,\n")
    committed_by(table.run, tmp_path / "table", "--table", tmp_path / "t.csv")
    outs = [tmp_path / name for name in ("detection", "keras", "tfds", "table")]
    cases = {out.name: (f"{out}/schema.pbtxt", f"{out}/*.tfrec") for out in outs}
    done = run_by("TFDV_PYTHON", TESTS / "tfdv/validate.py", json.dumps(cases))
    manifests = {out.name: manifest_of(out) for out in outs}
    assert json.loads(done.stdout.splitlines()[-1]) == {
        name: {
            "features": len(manifest["features"]),
            "examples": manifest["splits"]["train"]["records"],
            "statistics": {},
            "anomalous": {"": 0},
        }
        for name, manifest in manifests.items()
    }


# --- Model Garden's script, decoder and RetinaNet ---


CASES = [  # data, annotation files, features, number of images
    (
        "coco_val",
        ("captions", "person_keypoints", "instances"),
        "boxes,masks,polygons,keypoints,captions,license",
        5,
    ),
    ("coco_train", ("panoptic", "instances"), "boxes,masks,panoptic", 7),
]


@needs("MODEL_GARDEN_PYTHON")
@pytest.mark.parametrize(("data", "names", "features", "count"), CASES)
def test_records_equal_those_of_its_script(
    data: str, names: tuple[str, ...], features: str, count: int, tmp_path: Path
) -> None:
    images, annotations = (TEST_DATA / data / name for name in ("images", "annotations"))
    files = {f"--{name}": annotations / f"{name}.json" for name in names}
    pngs = ("--panoptic_images", annotations / "panoptic") if "panoptic" in names else ()
    run = run_coco(
        *("--images", images, "--annotations", *files.values(), *pngs),
        *("--features", features, "--output", tmp_path / "out"),
    )
    assert run.code == 0, run.err
    files.pop("--person_keypoints", None)  # the script does not write these
    given = [argument for pair in files.items() for argument in pair]
    shards = shard_paths(tmp_path / "out")
    flags = ("--shards", *shards, "--images", images, "--masks", *given, *pngs)
    done = run_by("MODEL_GARDEN_PYTHON", TESTS / "model_garden/compare.py", *flags)
    assert done.stdout == f"{count} Examples compared, 0 differ\n"


@needs("MODEL_GARDEN_PYTHON")
def test_the_configuration_of_the_document_trains(tmp_path: Path) -> None:
    images, annotations = draw_coco(tmp_path, 8)
    files = ("--annotations", f"train={annotations}", f"val={annotations}")
    committed_by(coco.run, tmp_path / "out", "--images", f"train={images}", f"val={images}", *files)
    text = block_of("docs/start-model-garden.md", "train_data", "yaml")
    assert text.count("gs://bucket/coco-tfrec") == text.count("64") == 2
    config = tmp_path / "config.yaml"
    config.write_text(text.replace("gs://bucket/coco-tfrec", f"{tmp_path}/out").replace("64", "4"))
    done = run_by("MODEL_GARDEN_PYTHON", TESTS / "model_garden/configure.py", config)
    got = json.loads(done.stdout)
    assert math.isfinite(got["loss"])
    first = examples(tmp_path / "out", "val")[:4]
    assert got["classes"] == [value(example, "image/object/class/label") for example in first]


# --- PyTorch, Grain and the `tfrecord` package ---


LOADERS = ("DataLoader, 2 forked workers", "DataLoader, 2 spawned workers")
IN_ORDER = (*LOADERS, "tfrecord, by index")
OF_ARRAY_RECORD = (*LOADERS, "ArrayRecordDataSource")
SHUFFLED = "DataLoader, shuffled"
GRAIN = ("Grain, shuffled", "Grain, 2 workers, resumed")
MULTI = "tfrecord, all shards"
INDEX = "tfrecord2idx"
by_loaders = needs("TORCH_READER_PYTHON")


def read(out: Path, *ways: str) -> dict[str, list[str]]:
    """Return the records by way of reading, tried one after the other in one process."""
    program = "tests.torch_reader.read"
    return json.loads(run_by("TORCH_READER_PYTHON", "-m", program, out, "train", *ways).stdout)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pictures in three shards, with up to six objects each."""
    folder = tmp_path_factory.mktemp("drawn")
    run = run_coco(*command(draw_coco(folder, 40), folder / "out", "--num_shards", "3"))
    assert run.code == 0, run.err
    return folder / "out"


@pytest.fixture(scope="module")
def expected(out: Path) -> list[str]:
    """Digests of all Examples as TensorFlow reads them, shard by shard."""
    digests = [
        digest({key: value(example, key) for key in example.features.feature})
        for example in examples(out)
    ]
    assert len(set(digests)) == 40
    return digests


@pytest.fixture(scope="module")
def got(out: Path) -> dict[str, list[str]]:
    return read(out, *IN_ORDER, SHUFFLED, *GRAIN, INDEX)


@pytest.fixture
def of_array_record(out: Path) -> dict[str, list[str]]:
    """Reads of a copy in ArrayRecord files, with the plan of the other."""
    flags = ("--num_shards", 3, "--record_format", "array_record", "--no_report")
    copy = out.parent / "array_record"
    assert run_pipeline(records.run, "--records", out, *flags, "--output", copy).code == 0
    return read(copy, *OF_ARRAY_RECORD, *GRAIN)


@by_loaders
def test_every_value_is_read_in_the_order_of_the_shards(
    expected: list[str], got: dict[str, list[str]], of_array_record: dict[str, list[str]]
) -> None:
    """Of both formats, which Grain shuffles alike."""
    assert {way: got[way] for way in IN_ORDER} == dict.fromkeys(IN_ORDER, expected)
    in_order = {way: of_array_record.pop(way) for way in OF_ARRAY_RECORD}
    assert in_order == dict.fromkeys(OF_ARRAY_RECORD, expected)
    assert of_array_record == {way: got[way] for way in GRAIN}


@by_loaders
def test_other_orders_have_every_record(expected: list[str], got: dict[str, list[str]]) -> None:
    """Two epochs of a shuffled loader differ; Grain keeps its order after a restore."""
    first, second = got[SHUFFLED][: len(expected)], got[SHUFFLED][len(expected) :]
    shuffled, resumed = (got[way] for way in GRAIN)
    assert sorted(first) == sorted(second) == sorted(shuffled) == sorted(expected)
    assert len({*map(tuple, (first, second, shuffled, expected))}) == 4
    assert resumed == shuffled


@by_loaders
@pytest.mark.parametrize("names", ["counted", "tfds", "maxdiffusion", "{split}.{index}"])
def test_all_shards_are_found_by_patterns(
    out: Path, expected: list[str], names: str, tmp_path: Path
) -> None:
    flags = ("--num_shards", "3", "--shard_names", names, "--no_report")
    images, annotations = draw_coco(out.parent, 40)
    run = run_coco(*command((images, annotations), tmp_path / "out", *flags))
    assert run.code == 0, run.err
    assert sorted(read(tmp_path / "out", MULTI)[MULTI]) == sorted(expected)


@by_loaders
def test_index_files_equal_those_of_tfrecord2idx(out: Path, got: dict[str, list[str]]) -> None:
    assert got[INDEX] == [path.name for path in shard_paths(out)]
