"""Find data sets by their manifests; refuse those that differ, contradict themselves or are new."""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import beam_tfrec
from beam_tfrec.readers.data_sets import find_data_sets
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec, Kind
from beam_tfrec.schemas.manifest import NEWEST_VERSION, Label
from beam_tfrec.transforms.earlier import Since, find_earlier_sets
from tests.small_data_sets import Values, write_values

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


def edit(root: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a data set's manifest."""
    path = Path(root) / "manifest.json"
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_text(json.dumps(manifest))


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
    assert shards[0].index_name == "index/train-00000-of-00002-3.parquet"
    assert [s.uri for s in found.shards("val")] == [f"{two}/val-00000-of-00001-1.tfrec"]
    assert (found.labels, found.spec) == ((CAT, DOG), SPEC)


def test_a_missing_split_is_refused(tmp_path: Path) -> None:
    """The data set has other splits, or none, as `--allow_empty` writes it."""
    empty = str(write_values(tmp_path / "empty", SPEC, {"train": []}))
    for root, message in (
        (
            write(tmp_path / "a", splits=("train", "val")),
            "split must be one of train, val, got 'te",
        ),
        (empty, f"{empty}: no records: give another data set"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            find_data_sets(root).shards("test")


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


def test_an_output_without_a_manifest_is_refused(tmp_path: Path) -> None:
    """Shards alone are not a data set: the run has not finished."""
    root = write(tmp_path / "out")
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
        f"data_sets must have one label map, label 0 is 'cat' and, in {two!r}, 'cow':"
        " write the later one with --since"
    )


def test_a_newer_format_version_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path)
    edit(root, lambda manifest: manifest.update(format_version=NEWEST_VERSION + 1, features=7))
    what = f"format version {NEWEST_VERSION + 1} is newer than {NEWEST_VERSION}; upgrade"
    with pytest.raises(RuntimeError, match=f"^E-OUT-FOREIGN {root}/manifest.json: {what} beam-t"):
        find_data_sets(root)


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
        "shard_names must be counted, plain or a template",
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
    edit(root, change)
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
