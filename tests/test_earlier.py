"""`--since`: which earlier data sets are found, their classes, and which samples are left out."""

import datetime
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.features import Feature, FeatureSpec, Kind
from beam_tfrec.schemas.labels import number_labels, number_names, unite_labels
from beam_tfrec.schemas.manifest import JobPlan, Label, Manifest, to_json
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.transforms.earlier import (
    EarlierSet,
    EarlierSets,
    Since,
    date_in,
    find_earlier_sets,
    parse_date,
    refuse_changed_earlier,
)
from beam_tfrec.transforms.leave_out_earlier import (
    JoinBatch,
    leave_out_earlier,
    list_earlier_shards,
    read_written,
)
from beam_tfrec.transforms.shard_index import IndexRow, index_to_parquet
from beam_tfrec.transforms.sources.read_samples import SplitTally
from beam_tfrec.transforms.storage import DEFAULT_ACCESS
from tests.small_data_sets import write_data_set
from tests.small_runs import build_run, plan_run, write_set

CAT, DOG, CUP = Label(1, "cat"), Label(2, "dog"), Label(90, "cup")
TODAY = datetime.date(2026, 11, 20)


def manifest(seed: str = "0", labels: tuple[Label, ...] = (CAT,), **changes: Any) -> Manifest:
    plan = JobPlan(2, {"seed": seed}, list(labels), {}, "ff")
    known: dict[str, Any] = {"layout": "detection", "plan": plan, "format_version": 2, "shards": []}
    return Manifest(**{**known, **changes}, splits={}, features=[])


def put(folder: Path, content: Manifest | str) -> str:
    """Write a finished data set, or a file of this name; return the data set's path."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Manifest):
        (folder / "manifest.json").write_bytes(to_json(content))
    else:
        (folder / content).write_bytes(b"{}")
    return str(folder)


def days(folder: Path, contents: Mapping[str, Manifest | str]) -> str:
    """Write data sets of days of November 2026, and return their pattern."""
    for day, content in contents.items():
        put(folder / f"coco-2026-11-{day}", content)
    return f"{folder}/coco-{{date}}"


def find(*names: str, output: str = "/nowhere/out", **options: Any) -> EarlierSets:
    return find_earlier_sets(Since(names, TODAY), output, "detection", **options)


def found(*names: str, **options: Any) -> list[str]:
    return sorted(earlier.uri for earlier in find(*names, **options).sets)


def refused(*names: str, **options: Any) -> str:
    with pytest.raises(RuntimeError) as raised:
        find(*names, **options)
    return str(raised.value)


@pytest.mark.parametrize(
    "text", ["20261120", "2026-W47-5", "2026-11-31", "2026-1-2", " 2026-11-20", "\u0662026-11-20"]
)
def test_other_date_formats_are_refused(text: str) -> None:
    line = rf"^date must be a day as YYYY-MM-DD, got {text!r}: give one such as 2026-11-20$"
    with pytest.raises(ValueError, match=line):
        parse_date(text)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("2026-11-20_2026-11-21", "{date}_{date}"),  # two days
        ("coco-2026-11-20-old", "coco-{date}"),
        ("old-coco-2026-11-20", "coco-{date}"),
        ("coco-2026-11-31", "coco-{date}"),
    ],
)
def test_other_names_have_no_day(name: str, pattern: str) -> None:
    assert date_in(name, pattern) is None


NO_SET = (
    "E-ARG {}: is not a finished data set: it has no manifest.json;"
    " run its command again, or give another --since"
)
OTHER_LAYOUT = "its layout is keras, this run's is detection; give --since data sets of one layout"


def test_the_output_must_not_be_an_earlier_data_set(tmp_path: Path) -> None:
    name = put(tmp_path / "one", manifest())
    line = f"E-ARG {name}: is given as --output and as --since; remove it from --since"
    assert refused(name, output=f"{tmp_path}/./one/") == line


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("_plan.json", NO_SET),
        ("notes.txt", NO_SET),
        ("manifest.json", "E-OUT-FOREIGN {}/manifest.json: "),
        (manifest(layout="keras"), f"E-ARG {{}}: {OTHER_LAYOUT}"),
    ],
)
def test_other_data_sets_are_refused(tmp_path: Path, content: Manifest | str, line: str) -> None:
    uri = put(tmp_path / "other", content)
    assert refused(uri).startswith(line.format(uri))


def test_a_data_set_with_an_other_or_missing_shard_is_refused(tmp_path: Path) -> None:
    """Otherwise its records would be in neither data set."""
    spec = FeatureSpec("detection", (Feature("n", Kind.INT64, False, "a number"),))
    one = write_data_set(tmp_path / "one", spec, {"train": [{"1": b""}]})
    (shard,) = one.glob("*.tfrec")
    shard.write_bytes(b"other")
    assert refused(str(one)).startswith(f"E-VER-SIZE {shard}: ")
    shard.unlink()
    assert refused(str(one)).startswith(f"E-VER-MISSING {shard}: ")


BEGUN = "E-OUT-DATES {}-19: is unfinished; finish it with --date 2026-11-19, or delete it"
LATER = (
    "E-OUT-DATES {0}-21: is of a later day, and was made without {0}-20;"
    " give a --date after 2026-11-22, or delete the later data sets"
)
DONE = {day: manifest(day) for day in ("18", "19", "20")}


@pytest.mark.parametrize(
    ("there", "output", "expected"),
    [
        ({**DONE, "17": "notes.txt"}, "out", ["18", "19"]),
        (DONE, "19/./", ["18"]),  # never itself
        # Samples of an unfinished day may be among today's.
        ({"18": manifest(), "19": "_plan.json"}, "out", BEGUN),
        ({"18": manifest(), "19": "_plan.json"}, "19", ["18"]),
        # Later days may hold samples that an earlier one would write.
        ({"19": manifest(), "21": manifest(), "22": "_plan.json"}, "20", LATER),
        ({"19": manifest(), "21": "_plan.json", "22": "_plan.json"}, "20", LATER),
        ({"19": manifest(), "20": manifest("1"), "21": manifest("2")}, "20", ["19"]),  # finished
    ],
)
def test_earlier_days_are_found(
    tmp_path: Path, there: dict[str, Manifest | str], output: str, expected: list[str] | str
) -> None:
    pattern, day = days(tmp_path, there), f"{tmp_path}/coco-2026-11"
    given = {"output": f"{day}-{output}"}
    if isinstance(expected, str):
        assert refused(pattern, **given) == expected.format(day)
    else:
        assert found(pattern, **given) == [f"{day}-{each}" for each in expected]


@pytest.mark.parametrize(
    ("day", "content", "what"),
    [
        ("21", "_plan.json", "coco-2026-11-21: is of a later day"),
        ("19", manifest("19"), "coco-2026-11-20: 2 data sets of earlier days now, 1 when"),
    ],
)
def test_a_day_that_appears_during_the_run_stops_it(
    tmp_path: Path, day: str, content: Manifest | str, what: str
) -> None:
    pattern, output = days(tmp_path, {"18": manifest("18")}), f"{tmp_path}/coco-2026-11-20"
    at_launch = find(pattern, output=output)
    refuse_changed_earlier(at_launch, output, "detection", DEFAULT_ACCESS)
    days(tmp_path, {day: content})
    with pytest.raises(RuntimeError, match=f"^E-OUT-DATES {tmp_path}/{what}"):
        refuse_changed_earlier(at_launch, output, "detection", DEFAULT_ACCESS)


def test_a_finished_day_is_replaced_only_as_the_last(tmp_path: Path) -> None:
    pattern = days(tmp_path, {**DONE, "21": manifest()})
    given = {"output": f"{tmp_path}/coco-2026-11-20", "overwrite": True}
    assert refused(pattern, **given).startswith("E-OUT-DATES ")
    (tmp_path / "coco-2026-11-21" / "manifest.json").unlink()
    assert len(found(pattern, **given)) == 2


def test_the_option_depends_on_the_data_sets_and_not_on_their_paths(tmp_path: Path) -> None:
    """It never changes, or older runs could not be resumed."""
    one, two = put(tmp_path / "one", manifest("1")), put(tmp_path / "two", manifest("2"))
    copy = put(tmp_path / "far" / "away", manifest("1"))
    assert find(one, two).options() == find(two, copy, one, f"{one}/").options()
    assert len({str(found.options()) for found in (find(one), find(two), find(one, two))}) == 3
    sets = (EarlierSet("ab" * 16, "gs://b/1"), EarlierSet("cd" * 16, "gs://b/2"))
    assert EarlierSets(sets).options() == {"since": "2 data sets 73f03305f891920bddf573a3a54e12d4"}
    (earlier,) = find(put(tmp_path / "three", manifest())).sets
    assert earlier.digest == "3942dcf0eb15e0f8d504980cd3635e22"


def test_a_manifest_that_changes_during_the_run_stops_it(tmp_path: Path) -> None:
    uri = put(tmp_path / "one", manifest("1"))
    (earlier,) = find(uri).sets
    assert list_earlier_shards(earlier, ["train"]) == []
    put(tmp_path / "one", manifest("2"))
    line = f"^E-SRC-CHANGED {uri}/manifest.json: another data set than when the run began; run ag"
    with pytest.raises(RuntimeError, match=line):
        list_earlier_shards(earlier, ["train"])


def test_labels_are_those_of_all_data_sets_by_id(tmp_path: Path) -> None:
    one = put(tmp_path / "one", manifest("1", (DOG,)))
    two = put(tmp_path / "two", manifest("2", (CAT, DOG)))
    assert find(one, two).labels == (CAT, DOG)


@pytest.mark.parametrize(
    ("earlier", "first_id", "numbered"),
    [
        ([], None, [CUP, CAT]),  # as annotated
        ([], 1, [CAT, Label(2, "cup", 90)]),  # by category id
        ([], 0, [Label(0, "cat", 1), Label(1, "cup", 90)]),
        ([Label(1, "cup", 90)], 1, [Label(2, "cat", 1), Label(1, "cup", 90)]),  # keeps its own
        ([Label(1, "cup", 90), Label(2, "dog", 3)], 1, [Label(3, "cat", 1), Label(1, "cup", 90)]),
    ],
)
def test_number_labels(earlier: list[Label], first_id: int | None, numbered: list[Label]) -> None:
    assert number_labels(earlier, [CUP, CAT], first_id) == numbered
    assert [label.annotated_id for label in numbered].count(90) == 1


def test_category_ids_must_fit_label_maps(caplog: pytest.LogCaptureFixture) -> None:
    label = Label(2**31, "dog")
    line = "^E-ANN-LABELS all annotation files: category id 2147483648 of 'dog' is not from 0 to 21"
    with pytest.raises(RuntimeError, match=line):
        number_labels([], [CAT, label], None)
    assert number_labels([], [label], 1) == [Label(1, "dog", 2**31)]
    assert caplog.messages == []
    assert number_labels([], [Label(0, "dog")], None) == [Label(0, "dog")]
    (message,) = caplog.messages
    assert message.startswith("category id 0 of dog: the Object Detection API refuses a label map")


@pytest.mark.parametrize(
    ("earlier", "first_id", "how"),
    [
        ([Label(3, "cat")], 1, "from 1 without gaps"),
        ([Label(1, "cat", 3)], None, "by the files' ids"),
        ([Label(1, "cat", 3), CUP], 1, "from 1 without gaps"),
    ],
)
def test_another_numbering_is_refused(earlier: list[Label], first_id: int | None, how: str) -> None:
    line = f"^E-ARG --since: classes of the earlier data sets are not numbered {how};"
    with pytest.raises(RuntimeError, match=line):
        number_labels(earlier, [CAT], first_id)


def test_class_names_keep_their_labels() -> None:
    numbered = [Label(1, "ant"), Label(2, "cat"), Label(0, "dog")]
    assert number_names([Label(0, "dog")], ["cat", "dog", "ant"], 0) == numbered
    with pytest.raises(RuntimeError, match=r"^E-ARG --since: .* not numbered from 1"):
        number_names([Label(0, "dog")], ["dog"], 1)


@pytest.mark.parametrize("change", [{"text": "house cat"}, {"keypoints": ("nose",)}])
def test_details_of_a_class_can_be_added_later(change: dict[str, Any]) -> None:
    detailed = msgspec.structs.replace(CAT, **change)
    labels = unite_labels([CAT, DOG, detailed], "second")
    assert labels == [detailed, DOG] == unite_labels([*labels, CAT], "third")


@pytest.mark.parametrize(
    ("label", "what"),
    [
        (Label(1, "lion", 3), "category 3 'cat' contradicts category 3 'lion'"),
        (Label(9, "cat"), "category 3 'cat' contradicts category 9 'cat'"),
        (
            Label(2, "dog", text="wild dog"),
            "category 2 'dog' (house dog) contradicts category 2 'dog' (wild dog)",
        ),
        (
            Label(4, "fox", None, ("nose", "tail")),
            "category 4 'fox' of nose contradicts category 4 'fox' of nose, tail",
        ),
    ],
)
def test_a_changed_class_stops_the_run(label: Label, what: str) -> None:
    house_dog, fox = Label(2, "dog", text="house dog"), Label(4, "fox", None, ("nose",))
    line = f"^E-ANN-LABELS gs://b/second: {re.escape(what)}; give each class one id and one name"
    with pytest.raises(RuntimeError, match=line):
        unite_labels([Label(1, "cat", 3), house_dog, fox, label], "gs://b/second")


def sample(key: str, split: str = "train", annotations: tuple[int, ...] = (1, 2)) -> Sample:
    is_written = key.isascii() and key.isdecimal() and int(key) > 0
    name = f"a{int(key) - 1:03}.jpg" if is_written else f"{key}.jpg"  # as in `write_set`
    return Sample(split, key, 0, (Blob(split, name),), b"fields", annotations)


def held(*keys: str) -> dict[str, tuple[str, int]]:
    """Return the file of each of these samples and a size, by key."""
    return {key: (sample(key).blobs[0].name, 7) for key in keys}


def dropped(key: str, annotation_id: int, split: str = "train", **fields: Any) -> Rejected:
    ids = {"annotation_ids": (annotation_id,), "code": "E-BOX-EMPTY"} | fields
    return Rejected(stage="read_coco", split=split, key=key, **ids)


def of_earlier(images: int, annotations: int) -> SplitTally:
    return SplitTally("train", earlier_samples=images, earlier_annotations=annotations)


def leave_out(
    samples: list[Sample], rejected: list[Rejected], sources: dict[str, tuple[str, int]]
) -> list:
    """Return the samples and rejects that are kept of a split, then the tally of the others."""
    batches = [JoinBatch(samples, rejected), JoinBatch(sources=sources)]
    return [getattr(left, "value", left) for left in leave_out_earlier((("train", 0), batches))]


def test_earlier_samples_are_left_out_with_their_annotations() -> None:
    samples = [sample("1"), sample("2", annotations=(5,)), sample("3", annotations=())]
    gone = dropped("7", 0, code="E-IMG-EMPTY", annotation_ids=(1, 2), file_name="a.jpg")
    new = dropped("8", 0, code="E-IMG-EMPTY", annotation_ids=(1, 2), file_name="b.jpg")
    orphan = dropped("", 99)
    rejected = [dropped("1", 3), dropped("2", 6), orphan, gone, new]
    left = leave_out(samples, rejected, held("1", "3", "7", ""))
    assert left == [samples[1], dropped("2", 6), orphan, new, of_earlier(3, 5)]


MEMBER = Blob("train", "8b.tar", 9999, "", None, 512, 30, "1.jpg")


@pytest.mark.parametrize(
    ("blob", "earlier", "what"),
    [
        (Blob("train", "a000.jpg"), ("b.jpg", 7), "its file is 'a000.jpg', but 'b.jpg' in"),
        (MEMBER, ("1.jpg", 31), "'1.jpg' has 30 bytes, but 31 in"),
        (MEMBER, ("1.jpg", 30), ""),  # the same photo, perhaps in another tar file
        (Blob("train", "a000.jpg", 8), ("a000.jpg", 7), ""),  # files may change
    ],
)
def test_a_key_with_another_file_stops_the_run(
    blob: Blob, earlier: tuple[str, int], what: str
) -> None:
    """Ids that start again each day would silently leave out new images."""
    given = msgspec.structs.replace(sample("1"), blobs=(blob,)), {"1": earlier}
    if not what:
        assert leave_out([given[0]], [], given[1]) == [of_earlier(1, 2)]
        return
    line = (
        f"^E-SET-DUPLICATE sample 1 of train: {what} an earlier"
        " data set; give new images new ids, and keep the names of old ones$"
    )
    with pytest.raises(RuntimeError, match=line):
        leave_out([given[0]], [], given[1])


def test_an_index_that_differs_from_the_manifest_stops_the_run(tmp_path: Path) -> None:
    """A sample whose key is missing would be written again."""
    out = tmp_path / "out"
    build_run(plan_run(*write_set(tmp_path, 5), out))
    (earlier,) = find(str(out)).sets
    (shard,) = out.glob("train-00001-of-00002-*.tfrec")
    path, size = out / "index" / f"{shard.stem}.parquet", shard.stat().st_size
    path.write_bytes(index_to_parquet([IndexRow("4", 0, 20, [], [])]))
    line = f"E-VER-INDEX {path}: its records do not fill the shard's {size} bytes; restore index/"
    with pytest.raises(RuntimeError, match=f"^{line} of that data set"):
        for index in list_earlier_shards(earlier, ["train"]):
            list(read_written(index, DEFAULT_ACCESS, 1))
