"""ArrayRecord files: the same plan, order and payload as TFRecord files, read back by others."""

import json
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordWriter
from msgspec.structs import replace

import beam_tfrec
from beam_tfrec.pipelines import diff, records, report, show
from beam_tfrec.pipelines.verify import verify
from beam_tfrec.transforms.shard_index import index_from_parquet, index_to_parquet
from beam_tfrec.transforms.verify import VerifyConfig
from tests import oracle
from tests.coco_command import Run, finish, run_coco, run_pipeline, start_coco
from tests.gcs_stand_in import GcsStandIn
from tests.invariants import files_of, read_records

TRAIN = [
    *("--images", oracle.DATA / "coco_train/images", "--no_report"),
    *("--annotations", oracle.DATA / "coco_train/annotations/instances.json"),
]
TWO = ("--num_shards", 2, "--shard_names", "plain")
ARRAY = ("--record_format", "array_record")
RECORD = 1  # number of a record in the first shard that tests damage


def convert(output: Path, *flags: object) -> Path:
    run = run_coco(*TRAIN, *flags, "--output", output)
    assert run.code == 0, run.err
    return output


@pytest.fixture(scope="module")
def tfrecord(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(tmp_path_factory.mktemp("tfrecord") / "out", *TWO)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(tmp_path_factory.mktemp("whole") / "out", *ARRAY, *TWO)


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "out")


def payloads(folder: Path) -> list[bytes]:
    """Return the records of all shards in order: by our tests' reader, or by the library."""
    if files := sorted(folder.glob("*.tfrec")):
        return [data for path in files for data in read_records(path.read_bytes(), path)]
    return list(ArrayRecordDataSource([*map(str, sorted(folder.glob("*.array_record")))]))


def shards(folder: Path) -> dict[str, bytes]:
    return {n: data for n, data in files_of(folder).items() if n.startswith("train-")}


def damage(out: Path) -> None:
    """Flip a bit within a record of the first shard."""
    path = min(out.glob("*.array_record"))
    data = bytearray(path.read_bytes())
    data[data.index(payloads(out)[RECORD][5000:5100])] ^= 1
    path.write_bytes(data)


def shift(out: Path) -> None:
    """Write an index with byte offsets, as of a TFRecord file."""
    path = min(out.glob("index/*.parquet"))
    rows = index_from_parquet(path.read_bytes())
    path.write_bytes(index_to_parquet([replace(row, offset=100 * row.offset) for row in rows]))


def test_the_same_records_in_the_same_order(tfrecord: Path, whole: Path) -> None:
    assert payloads(whole) == payloads(tfrecord)
    manifest = json.loads((whole / "manifest.json").read_text())
    assert (manifest["record_format"], manifest["format_version"]) == ("array_record", 5)
    wanted = "array_record group_size:1,uncompressed, by array_record "
    assert manifest["plan"]["options"]["record_format"].startswith(wanted)
    assert "record_format" not in (tfrecord / "manifest.json").read_text()
    info = json.loads((whole / "dataset_info.json").read_text())
    assert info["fileFormat"] == "array_record"
    index = sorted(path.name for path in (whole / "index").iterdir())
    assert index == [f"train-0000{n}-of-00002.array_record.parquet" for n in (0, 1)]
    rows = index_from_parquet((whole / "index" / index[0]).read_bytes())
    assert [row.offset for row in rows] == [*range(len(rows))]
    assert [row.size for row in rows] == [len(data) for data in payloads(whole)[: len(rows)]]


@pytest.mark.thorough
def test_tfds_reads_it_at_random(whole: Path, tfrecord: Path) -> None:
    import tensorflow_datasets as tfds

    source = tfds.builder_from_directory(whole).as_data_source(split="train")
    ours = beam_tfrec.open(tfrecord, "train")
    assert len(source) == len(ours)
    for place in (5, 0, len(ours) - 1):
        image, record = source[place]["image"], ours[place]
        assert image["source_id"] == record["image/source_id"]
        assert [*image["object"]["class"]["label"]] == [*record["image/object/class/label"]]
    with pytest.raises(ValueError, match=r"reads no ArrayRecord files.*use beam_tfrec.open, Grain"):
        beam_tfrec.load(whole, "train")


@pytest.mark.thorough
def test_a_killed_run_resumes(tmp_path: Path) -> None:
    flags = ["--num_shards", 7, *ARRAY, "--workers", 2]
    temporary, out = tmp_path / "temporary", tmp_path / "out"
    temporary.mkdir()
    undisturbed = convert(tmp_path / "undisturbed", *flags)
    process = start_coco(*TRAIN, *flags, "--output", out, TMPDIR=str(temporary))
    while process.poll() is None and not [*out.glob("*.array_record")]:
        pass
    process.send_signal(signal.SIGKILL)
    finish(process)
    assert [*temporary.glob("tmp*")] == []
    convert(out, *flags)
    assert shards(out) == shards(undisturbed)


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (damage, "E-VER-CRC train-00000-of-00002.array_record record 1 (key '"),
        (shift, "E-VER-INDEX index/train-00000-of-00002.array_record.parquet: its offsets"),
    ],
)
def test_verify_finds(
    plant: Callable[[Path], None], said: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not verify(VerifyConfig((str(out),), deep=True))
    plant(out)
    assert verify(VerifyConfig((str(out),), deep=True))
    assert said in capsys.readouterr().out.replace(str(out), "OUT")


def test_records_are_opened_at_random(whole: Path, tfrecord: Path) -> None:
    ours, others = (beam_tfrec.open(folder, "train") for folder in (whole, tfrecord))
    places = [4, 2, 2, len(others) - 1, 0]
    for got, wanted in zip(ours.__getitems__(places), others.__getitems__(places), strict=True):
        assert repr(got) == repr(wanted)
        assert got["image/encoded"] == wanted["image/encoded"]
    assert [repr(record) for record in ours] == [repr(record) for record in others]
    assert ours.key(4) == others.key(4)
    assert repr(ours[:4][-1]) == repr(others[3])


def test_damage_and_changes_are_told(out: Path) -> None:
    opened = beam_tfrec.open(out, "train")
    assert opened[0]
    damage(out)
    damaged = beam_tfrec.open(out, "train")
    with pytest.raises(RuntimeError, match=r"^E-VER-CRC .*array_record: record 1: .*mismatch"):
        damaged[RECORD]
    assert damaged[RECORD + 1]
    touched = beam_tfrec.open(out, "train")
    min(out.glob("*.array_record")).touch()
    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED"):
        touched[0]


def copy(output: Path | str, *flags: object) -> Run:
    return run_pipeline(records.run, "--records", *flags, "--no_report", "--output", output)


@pytest.mark.thorough
def test_a_bucket_is_written_verified_and_copied_from(
    whole: Path, tfrecord: Path, stand_in: GcsStandIn, tmp_path: Path
) -> None:
    stand_in.make_bucket("b")
    assert copy("gs://b/new", tfrecord, *TWO, *ARRAY).code == 0
    for name, data in shards(whole).items():
        assert stand_in.objects("b")[f"new/{name}"] == data
    assert not verify(VerifyConfig(("gs://b/new",), deep=True))
    assert copy(tmp_path / "out", "gs://b/new", *TWO).code == 0
    assert shards(tmp_path / "out") == shards(tfrecord)
    assert run_pipeline(diff.run, tmp_path / "out", whole).out.endswith("equal\n")
    assert not (tmp_path / "out/_staged").exists()
    with pytest.raises(RuntimeError, match=r"^E-ARG gs://b/new/.*copy the data set to a disk"):
        beam_tfrec.open("gs://b/new", "train")[0]


@pytest.mark.thorough
def test_files_of_another_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "in" / "a.array_record-00000-of-00001", tmp_path / "out"
    path.parent.mkdir()
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for number in range(6):
        writer.write(b"" if number == 4 else bytes([number]) * 1000)
    writer.close()
    assert not verify(VerifyConfig((str(path),)))
    data = path.read_bytes()
    path.write_bytes(data.replace(bytes([2]) * 1000, bytes([2]) * 999 + b"x"))
    assert verify(VerifyConfig((str(path),)))
    assert f"E-VER-CRC {path} record 2: " in capsys.readouterr().out
    flags = ("--record_type", "bytes", "--max_rejected", 1, "--order", "input", *ARRAY)
    assert copy(out, path.parent, *flags, "--array_record_options", "group_size:2").code == 0
    assert payloads(out) == [b"" if n == 4 else bytes([n]) * 1000 for n in (0, 1, 3, 4, 5)]
    assert not verify(VerifyConfig((str(out),), deep=True))
    path.write_bytes(data[:-1])
    assert copy(tmp_path / "cut", path.parent, *flags).ended[1] == "E-SRC-DAMAGED"


@pytest.mark.thorough
def test_it_is_shown_and_reported(whole: Path, tmp_path: Path) -> None:
    key = beam_tfrec.open(whole, "train").key(1)
    shown = run_pipeline(show.run, whole, "--key", key).out
    assert f"array_record record 1 (key '{key}'): " in shown
    alone = run_pipeline(show.run, min(whole.glob("*.array_record")), "--record", 1).out
    assert alone.splitlines()[-1] == shown.splitlines()[-1]
    for paths in ([whole], sorted(whole.glob("*.array_record"))):
        run = run_pipeline(report.run, *paths, "--output", tmp_path / f"{len(paths)}.html")
        assert f"{len(payloads(whole))} records" in run.out, run.err


def test_what_does_not_fit_is_refused(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = ("--output", tmp_path / "out")
    relabelled = run_coco("--images", whole, *TRAIN[2:], *output)
    assert "has ArrayRecord files" in relabelled.fault
    of_no_size = run_coco(*TRAIN, *ARRAY, "--array_record_options", "group_size:0", *output)
    assert "group_size: invalid" in of_no_size.fault
    monkeypatch.setitem(sys.modules, "array_record.python", None)
    without_package = run_coco(*TRAIN, *ARRAY, *output)
    assert "pip install 'beam-tfrec[array_record]'" in without_package.fault
    assert not (tmp_path / "out").exists()
