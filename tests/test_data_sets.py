"""Find data sets by their manifests, share their records among hosts, and report their damage."""

import datetime
import functools
import operator
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import beam_tfrec
from beam_tfrec.readers.data_sets import find_data_sets
from beam_tfrec.readers.shares import Part, deal
from beam_tfrec.schemas.faults import find_fault
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec, Kind
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.transforms.earlier import Since, find_earlier_sets
from beam_tfrec.transforms.shard_index import IndexRow, index_from_parquet, index_to_parquet
from tests.gcs_stand_in import Fault, GcsStandIn, What
from tests.gcs_stand_in import Kind as Request
from tests.small_data_sets import Values, write_data_set, write_manifest, write_rows, write_values
from tests.test_records import COUNTS, ids, make_shards, plain
from tests.test_records import SPEC as OF_IDS
from tests.test_verify_data_set import edit

N = Feature("n", Kind.INT64, False, "number")
LABEL = Feature("label", Kind.INT64, False, "class", Content.CLASS_LABEL)
SPEC = FeatureSpec("small", (N, LABEL))
RECORD: Values = {"n": [1], "label": [0]}
CAT, DOG = Label(0, "cat"), Label(1, "dog")


def write(folder: Path, *counts: int, labels: tuple[Label, ...] = (CAT,), **given: Any) -> str:
    """Write a data set of shards of so many records; return its path."""
    shards = [[RECORD] * count for count in counts or (2,)]
    spec = given.pop("spec", SPEC)
    splits = dict.fromkeys(given.pop("splits", ("train",)), shards)
    return str(write_values(folder, spec, splits, labels, **given))


def refusal(*roots: str) -> str:
    with pytest.raises(ValueError) as refused:
        find_data_sets(roots)
    return str(refused.value)


def test_several_data_sets_are_read_as_one(tmp_path: Path) -> None:
    """One of them may lack a split; the labels of all are united."""
    one = write(tmp_path / "one", 3, 0)
    two = write(tmp_path / "two", 1, labels=(CAT, DOG), splits=("train", "val"))
    found = find_data_sets([one, two])
    shards = found.shards("train")
    assert [(s.data_set, s.entry.records) for s in shards] == [(0, 3), (0, 0), (1, 1)]
    assert shards[0].entry.index_names[0] == "index/train-00000-of-00002-3.parquet"
    assert [s.uri for s in found.shards("val")] == [f"{two}/val-00000-of-00001-1.tfrec"]
    assert (found.labels, found.spec) == ((CAT, DOG), SPEC)


def test_a_missing_split_is_refused(tmp_path: Path) -> None:
    """The data set has other splits, or none, as `--allow_empty` writes it."""
    empty = write_values(tmp_path / "empty", SPEC, {"train": []})
    for root, known in (
        (write(tmp_path / "a", splits=("train", "val")), "train, val"),
        (empty, "none, as there are no records"),
    ):
        with pytest.raises(ValueError, match=f"^split must be one of {known} in .*, got 'test'$"):
            find_data_sets(root).shards("test")


def test_several_splits_are_read_as_one(tmp_path: Path) -> None:
    """Hosts share all records of the splits: two of three folds here."""
    root = write(tmp_path / "a", 2, 1, splits=("fold0", "fold1", "fold2"))
    train = ["fold2", "fold0"]
    assert len(beam_tfrec.open(root, train)) == 6
    assert [len(beam_tfrec.open(root, train, host=n, hosts=4)) for n in range(4)] == [2, 1, 2, 1]
    assert repr(beam_tfrec.open(root, train)).startswith("<Records of fold2+fold0 in ")
    assert len(beam_tfrec.load(root, train, batch_size=4)) == 2
    assert beam_tfrec.steps_per_epoch(root, train, 4) == 2
    for batch, what in {3: "a multiple of hosts=2", -8: "at least 1", 0.5: "a whole num"}.items():
        with pytest.raises(ValueError, match=rf"^global_batch must be {what}.*, got {batch}\b"):
            beam_tfrec.steps_per_epoch(root, train, batch, 2)
    with pytest.raises(ValueError, match=r"^hosts must be a whole number, got '2': give one"):
        beam_tfrec.load(root, train, hosts="2")
    with pytest.raises(ValueError, match=r"^global_batch must be at most 6, got 8"):
        beam_tfrec.steps_per_epoch(root, train, 8, 2)
    for split in ([], ["fold0", "fold0"]):
        with pytest.raises(ValueError, match=r"^split must name each split once, got "):
            beam_tfrec.open(root, split)
    with pytest.raises(
        ValueError, match=r"^split must be one of fold0, fold1, fold2 in .*, got 'val'$"
    ):
        beam_tfrec.open(root, ["fold0", "val"])


def test_each_fold_validates_the_others(tmp_path: Path) -> None:
    root = write(tmp_path / "a", splits=("fold0", "fold1", "fold2", "test"))
    assert beam_tfrec.folds(root, 3) == [
        (["fold1", "fold2"], "fold0"),
        (["fold0", "fold2"], "fold1"),
        (["fold0", "fold1"], "fold2"),
    ]
    for k, message in (
        (1, "folds must be 2 to 1,000, got 1: "),
        (2, "k must be the number of folds, got 2 for folds fold0, fold1, fold2: "),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            beam_tfrec.folds(root, k)


def test_relative_paths_survive_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(write(tmp_path / "a", 2))
    monkeypatch.chdir(root.parent)
    found = find_data_sets(root.name)
    records = beam_tfrec.open(root.name, "train")
    dataset = beam_tfrec.load(root.name, "train")
    monkeypatch.chdir("/")
    assert found.roots == (str(root),)
    assert len(list(records)) == len(list(dataset)) == 2


def test_an_output_without_a_manifest_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards alone are not a data set. An empty path, as of an unset variable, is none either."""
    root = write(tmp_path / "out")
    monkeypatch.chdir(root)
    assert refusal("") == "data_sets must be paths or URIs, got '': give text"
    (tmp_path / "out/manifest.json").unlink()
    with pytest.raises(RuntimeError, match="is not a finished data set: it has no manifest"):
        find_data_sets(root)


@pytest.mark.parametrize(
    ("features", "what"),
    [
        ([Feature("n", Kind.FLOAT, False, "x")], "n"),
        ([Feature("n", Kind.INT64, False, "x", optional=True)], "n"),
        ([Feature("m", Kind.INT64, False, "x")], "m, n"),
        ([N, Feature("x", Kind.INT64, False, "more")], "x"),
    ],
)
def test_other_features_are_refused(tmp_path: Path, features: list[Feature], what: str) -> None:
    one = write(tmp_path / "one")
    two = write(tmp_path / "two", 0, spec=FeatureSpec("small", (*features, LABEL)))
    assert refusal(one, two) == (
        f"data_sets must be alike, {two!r} differs in {what}: read it alone"
    )


def test_one_label_for_two_classes_is_refused(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one"), write(tmp_path / "two", labels=(Label(0, "cow"),))
    assert refusal(one, two) == (
        f"data_sets must have one label map, got 'cat' and, in {two!r}, 'cow' for 0:"
        " write the later one with --since"
    )


NAMED = "shard 0 of split train is the file 'train-00001-of-00003-2.tfrec', by number and records"
Change = Callable[[dict[str, Any]], object]
CONTRADICTIONS: dict[str, tuple[Change, str]] = {
    "an entry is dropped": (
        lambda m: m["shards"].pop(1),
        "shards of split train are 2 by its entries, 3 by its sums",
    ),
    "two entries are swapped": (
        lambda m: m["shards"].__setitem__(slice(0, 2), m["shards"][1::-1]),
        NAMED,
    ),
    "a split is dropped": (
        lambda m: (m["splits"].clear(), m["shards"].clear()),
        "its plan or shards have a split train, but it has no summary of it",
    ),
    "a name template is invalid": (
        lambda m: m["plan"]["options"].update(shard_names="{other}"),
        "its options: shard_names must be counted, plain, tfds, maxdiffusion or a template",
    ),
    "its version is older than its plan's": (
        lambda m: m.update(format_version=1),
        "its format version is 1, its plan has",
    ),
}


@pytest.mark.parametrize(("change", "what"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictory_manifests_are_refused(change: Change, what: str, tmp_path: Path) -> None:
    """Readers and `--since` refuse it before any record is read."""
    root = write(tmp_path, 3, 2, 1)
    edit(Path(root) / "manifest.json", change)
    since = Since([root], datetime.date(2026, 11, 20))
    for read in (
        lambda: beam_tfrec.load(root, "train"),
        lambda: beam_tfrec.open(root, "train"),
        lambda: find_earlier_sets(since, "/nowhere/out", "small"),
    ):
        with pytest.raises(RuntimeError) as refused:
            read()
        assert str(refused.value).startswith(f"E-VER-MANIFEST {root}/manifest.json: {what}")
        assert str(refused.value).endswith(
            "; run `beam-tfrec verify` on its folder, and restore the manifest from a copy"
        )


@pytest.mark.parametrize(
    ("order", "is_in_order"),
    [("all=input", True), ("all=shuffled train=input", True), ("all=input train=shuffled", False)],
)
def test_order_of_a_split_comes_from_the_options(
    tmp_path: Path, order: str, is_in_order: bool
) -> None:
    found = find_data_sets(write(tmp_path, options={"order": order}))
    assert found.is_in_input_order("train") == is_in_order


def test_repeat_factors_follow_lvis(tmp_path: Path) -> None:
    """Class 1 is in 4 of 5 records, and class 2 in one; an object more changes nothing."""
    shards = []
    for number, labels in enumerate([[[1], [1, 1, 1], []], [], [[1, 2, 2], [1]]]):
        rows = [IndexRow(str(n), 20 * n, 20, [], labels[n]) for n in range(len(labels))]
        shards.append(write_rows(tmp_path, "train", number, 3, rows))
    write_manifest(tmp_path, SPEC, {"train": shards})
    factors = beam_tfrec.repeat_factors(tmp_path, "train", 0.9)
    once = (0.9 / 0.8) ** 0.5
    assert factors.tolist() == pytest.approx([once, once, 1, (0.9 / 0.2) ** 0.5, once])
    assert beam_tfrec.repeat_factors([tmp_path, tmp_path], "train", 0.1).tolist() == [1] * 10
    with pytest.raises(ValueError, match=r"^threshold must be above 0, got 0: give a share"):
        beam_tfrec.repeat_factors(tmp_path, "train", 0)
    unlabelled = write(tmp_path / "table", 2)
    assert beam_tfrec.repeat_factors(unlabelled, "train", 0.1).tolist() == [1, 1]


SHARD_RECORDS = st.lists(st.integers(0, 40), min_size=1, max_size=40)


def read_by(parts: list[Part]) -> list[tuple[int, int]]:
    return [(part.shard, record) for part in parts for record in range(part.first, part.stop)]


@given(SHARD_RECORDS, st.integers(1, 16))
def test_hosts_read_everything_once_in_equal_shares(records: list[int], hosts: int) -> None:
    shares = [read_by(deal(records, host, hosts)) for host in range(hosts)]
    everything = [(shard, record) for shard, count in enumerate(records) for record in range(count)]
    assert sorted(record for share in shares for record in share) == everything
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(share == sorted(share) for share in shares)


@given(SHARD_RECORDS, st.integers(1, 16))
def test_dropping_the_remainder_gives_all_hosts_equal_counts(
    records: list[int], hosts: int
) -> None:
    shares = [read_by(deal(records, host, hosts, drop_remainder=True)) for host in range(hosts)]
    assert {len(share) for share in shares} == {sum(records) // hosts}
    assert len({record for share in shares for record in share}) == sum(map(len, shares))


# --- damaged shards and indexes ---


SHARD = "train-00000-of-00001-3.tfrec"
INDEX = "index/train-00000-of-00001-3.parquet"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return write_data_set(tmp_path / "out", OF_IDS, {"train": make_shards([3], 10)})


def fault_of(read: Callable[[], Any]) -> tuple[str, str]:
    """Return code and line of the fault that a read raises."""
    with pytest.raises(RuntimeError) as caught:
        read()
    found = find_fault(str(caught.value))
    assert found is not None
    assert found[1] == str(caught.value)
    return found


def test_a_flipped_bit_of_every_byte_is_reported_with_record_and_byte(output: Path) -> None:
    records = beam_tfrec.open(str(output), "train")
    begins = list(records.reader.offsets(0))
    path = output / SHARD
    data = path.read_bytes()
    whole = [[*map(plain, record.values())] for record in records]
    file = path.open("r+b")
    stat = path.stat()
    for at in range(len(data)):
        number = max(n for n in range(3) if begins[n] <= at)
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        file.seek(0)
        file.write(flipped)
        file.flush()
        # As after a fault of a disk: size and modification time stay the same.
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        code, line = fault_of(functools.partial(operator.getitem, records, number))
        in_header = at - begins[number] < 12
        assert code == ("E-VER-FRAME" if in_header else "E-VER-CRC"), at
        where = f"{code} {path} record {number} (key 'k{number}') at byte {begins[number]}: "
        assert line.startswith(where)
        assert fault_of(lambda: list(records))[1] == line
        assert fault_of(lambda: records.__getitems__([0, 1, 2]))[1] == line
        others = [n for n in range(3) if n != number]
        found = records.__getitems__(others)
        assert [[*map(plain, record.values())] for record in found] == [whole[n] for n in others]
    file.close()


def test_a_shard_that_changes_while_it_is_open_is_reported(output: Path) -> None:
    records = beam_tfrec.open(str(output), "train")
    assert int(records[0]["id"]) == 0
    data = (output / SHARD).read_bytes()
    for change in (data, data[:-1], b""):
        (output / SHARD).write_bytes(change)
        assert fault_of(lambda: records[0])[0] == "E-SRC-CHANGED"
        assert fault_of(lambda: list(records))[0] == "E-SRC-CHANGED"


def test_an_index_of_another_shard_is_reported(output: Path, tmp_path: Path) -> None:
    whole = (output / INDEX).read_bytes()
    for name, counts, size in (("more", [4], 10), ("longer", [3], 11)):
        other = write_data_set(tmp_path / name, OF_IDS, {"train": make_shards(counts, size)})
        (index,) = other.glob("index/*.parquet")
        (output / INDEX).write_bytes(index.read_bytes())
        _, line = fault_of(lambda: beam_tfrec.open(str(output), "train")[0])
        assert line.startswith(f"E-VER-INDEX {output}/{INDEX}: ")
    rows = index_from_parquet(whole)  # other lengths, but the same sum
    changed = [
        replace(rows[0], size=rows[0].size + 1),
        replace(rows[1], offset=rows[1].offset + 1, size=rows[1].size - 1),
        rows[2],
    ]
    (output / INDEX).write_bytes(index_to_parquet(changed))
    opened = beam_tfrec.open(str(output), "train")
    _, line = fault_of(lambda: opened[0])
    assert line.startswith(f"E-VER-FRAME {output}/{SHARD} record 0 (key 'k0') at byte 0: ")
    assert fault_of(lambda: opened[1])[0] == "E-VER-FRAME"  # no record begins there
    (output / INDEX).unlink()
    _, line = fault_of(lambda: beam_tfrec.open(str(output), "train")[0])
    assert line.startswith(f"E-VER-MISSING {output}/{INDEX}: is missing; ")


def test_damage_in_a_bucket_is_reported(tmp_path: Path, stand_in: GcsStandIn) -> None:
    """A store has no checksum of a part of an object. The record's own checksum finds it."""
    output = write_data_set(tmp_path / "out", OF_IDS, {"train": make_shards(COUNTS)})
    for path in output.rglob("*.*"):
        stand_in.put("b", f"out/{path.relative_to(output)}", path.read_bytes())
    records = beam_tfrec.open("gs://b/out", "train")
    shard = records.reader.shards[0].entry.file
    stand_in.inject(Fault(What.FLIPPED_BIT, Request.READ, f"out/{shard}"))
    code, line = fault_of(lambda: list(records))
    assert code in ("E-VER-CRC", "E-VER-FRAME")
    assert re.match(rf"{code} gs://b/out/{shard} record \d \(key 'k\d'\) at byte \d+: ", line)
    assert ids(records) == list(range(10))
    data = bytearray(stand_in.objects("b")[f"out/{shard}"])
    data[20] ^= 1
    stand_in.put("b", f"out/{shard}", bytes(data))
    assert fault_of(lambda: records[0])[0] == "E-SRC-CHANGED"
    _, line = fault_of(lambda: beam_tfrec.open("gs://b/out", "train"))  # from the listing alone
    assert line.startswith(f"E-VER-CRC gs://b/out/{shard}: its store lists CRC-32C ")
