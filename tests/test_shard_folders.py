"""Shards in folders of their splits, such as MaxDiffusion reads, from the run to the readers."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

import beam_tfrec
from beam_tfrec.pipelines import coco, records
from beam_tfrec.pipelines.verify import VerifyConfig, verify
from beam_tfrec.schemas.shards import MAXDIFFUSION, ShardNames
from beam_tfrec.transforms.output_files import refuse_others, remove_output
from beam_tfrec.transforms.storage import open_storage
from tests.coco_command import committed_by, run_coco
from tests.invariants import files_of
from tests.small_runs import write_set

FLAGS = ("--num_shards", "2", "--shard_names", "maxdiffusion", "--no_report")
SPLITS = ["train", "val"]
SHARDS = [f"{split}/{index:05}-of-00002.tfrec" for split in SPLITS for index in range(2)]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Flags of sources: two splits of the same seven images."""
    images, annotations = write_set(tmp_path_factory.mktemp("sources"), 7)
    flags: list[object] = ["--images", *(f"{split}={images}" for split in SPLITS)]
    return [*flags, "--annotations", *(f"{split}={annotations}" for split in SPLITS)]


@pytest.fixture(scope="module")
def made(given: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "out"
    committed_by(coco.run, out, *given, *FLAGS)
    assert "already complete" in run_coco(*given, *FLAGS, "--output", out).out
    return out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """A copy of the data set."""
    return Path(shutil.copytree(made, tmp_path / "out"))


def test_a_folder_holds_the_shards_of_its_split_and_readers_find_them(made: Path) -> None:
    files = files_of(made)
    assert [name for name in files if name.startswith(("train/", "val/"))] == SHARDS
    indexes = [f"index/{name.removesuffix('tfrec')}idx" for name in SHARDS]
    assert [name for name in files if name.endswith(".idx")] == indexes
    for split in SPLITS:
        by_glob = tf.data.TFRecordDataset(tf.io.gfile.glob(str(made / split / "*")))
        opened = beam_tfrec.open(made, split)
        loaded = beam_tfrec.load(made, split, decode_images=False)
        assert [len(list(found)) for found in (by_glob, opened, loaded)] == [7] * 3
        for data, record in zip(by_glob, opened, strict=True):
            assert record["image/source_id"] in data.numpy()
    assert verify(VerifyConfig((str(made),), deep=True)) is False  # no finding


@pytest.mark.parametrize(
    "name", [SHARDS[0].replace("00002", "00009"), "val/notes.txt", "index/train/00007-of-00009.idx"]
)
def test_verify_finds_other_files(out: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    (out / name).touch()
    (out / "photos").mkdir()
    (out / "photos" / "00000-of-00002.tfrec").touch()  # of no split
    assert verify(VerifyConfig((str(out),))) is True
    lines = capfd.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == [f"E-VER-FOREIGN {name}"]


@pytest.mark.thorough
@pytest.mark.parametrize("flags", [(), ("--overwrite",), ("--plan",)])
def test_files_of_others_stop_a_run_at_once(
    out: Path, given: list[object], flags: tuple[str, ...]
) -> None:
    (out / "val" / "notes.txt").touch()
    before = files_of(out)
    run = run_coco(*given, *FLAGS, *flags, "--output", out)
    assert run.ended == (5, "E-OUT-FOREIGN")
    assert "val/notes.txt is in a folder of shards only; give another --output" in run.fault
    assert files_of(out) == before


def forget_plans(out: Path) -> None:
    """Delete all but receipts and shards."""
    for path in (*out.glob("*.json"), *out.glob("index/*/*")):
        path.unlink()


@pytest.mark.thorough
@pytest.mark.parametrize("names", [ShardNames(), ShardNames(MAXDIFFUSION)])
@pytest.mark.parametrize("prepare", [lambda out: None, forget_plans])
def test_a_data_set_is_removed_whatever_the_names_of_the_new_one(
    out: Path, names: ShardNames, prepare: Callable[[Path], None]
) -> None:
    prepare(out)
    output, other = open_storage(str(out)), ShardNames("{split}/{index}")
    refuse_others(output, other, SPLITS, overwrite=True)
    (out / "val" / "notes.txt").touch()
    with pytest.raises(RuntimeError, match=r"val/notes\.txt is in a folder of shards only"):
        refuse_others(output, other, SPLITS, overwrite=True)
    remove_output(output, names, SPLITS)
    assert [*files_of(out)] == ["val/notes.txt"]


@pytest.mark.thorough
def test_records_come_from_folders_and_go_to_folders(out: Path, tmp_path: Path) -> None:
    for source, names in ((out, "plain"), (tmp_path / "plain", "maxdiffusion")):
        flags = ("--records", f"train={source}", f"val={source}", "--num_shards", 2)
        committed_by(records.run, tmp_path / names, *flags, "--shard_names", names, "--no_report")
    for name in SHARDS:
        assert (tmp_path / "maxdiffusion" / name).read_bytes() == (out / name).read_bytes()
    committed_by(records.run, tmp_path / "one", "--records", f"train={out}/train/00001*")
    assert len(beam_tfrec.open(tmp_path / "one", "train")) == 3
