"""Which earlier data sets a run adds to: found by their manifests alone."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.example import encode_example
from schemas.features import Feature, FeatureSpec, Kind
from schemas.manifest import FORMAT_VERSION, JobPlan, Label, Manifest, to_json
from tests.small_data_sets import write_data_set
from transforms.earlier import (
    EarlierSet,
    EarlierSets,
    InheritedLabel,
    Since,
    add_labels,
    check_turn,
    find_earlier_sets,
    list_days,
    manifest_of,
)
from transforms.storage import DEFAULT_ACCESS

CAT, DOG, BIRD = Label(1, "cat"), Label(2, "dog"), Label(3, "bird")
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
    """Write data sets of days, and return their pattern."""
    for day, content in contents.items():
        put(folder / f"coco-{day}", content)
    return f"{folder}/coco-{{date}}"


def find(*names: str, output: str = "/nowhere/out", **options: Any) -> EarlierSets:
    return find_earlier_sets(Since(names, TODAY), output, "detection", **options)


def found(*names: str, **options: Any) -> list[str]:
    return sorted(earlier.uri for earlier in find(*names, **options).sets)


def refused(*names: str, **options: Any) -> str:
    with pytest.raises(RuntimeError) as raised:
        find(*names, **options)
    return str(raised.value)


# --- names and patterns ---


@pytest.mark.parametrize("name", ["gs://coco-{date}/out", "gs://{date}", "s3://{date}/out"])
def test_buckets_are_not_searched(name: str) -> None:
    with pytest.raises(ValueError) as raised:
        Since(["gs://b/one", name], TODAY)

    assert str(raised.value) == (
        f"since must have {{date}} behind the bucket, got {name!r}: give the data sets by their"
        " names"
    )


def test_folders_of_other_names_are_no_days(tmp_path: Path) -> None:
    pattern = days(tmp_path, {"2026-11-19": manifest(), "2026-11-18": "notes.txt"})
    put(tmp_path / "coco-latest", manifest())
    put(tmp_path / "coco-2026-11-31", manifest())
    put(tmp_path / "deeper" / "coco-2026-11-17", manifest())
    (tmp_path / "coco-2026-11-16").write_bytes(b"a file")

    assert list_days(pattern) == [datetime.date(2026, 11, 18), datetime.date(2026, 11, 19)]


# --- which are found ---


def test_a_pattern_means_what_is_finished_and_of_an_earlier_day(tmp_path: Path) -> None:
    pattern = days(
        tmp_path,
        {
            "2026-11-18": manifest("18"),
            "2026-11-19": manifest("19"),
            "2026-11-17": "notes.txt",  # no data set
            "2026-11-20": manifest("20"),  # this run's day
        },
    )

    assert found(pattern) == [f"{tmp_path}/coco-2026-11-18", f"{tmp_path}/coco-2026-11-19"]


def test_the_first_day_has_none_before_it(tmp_path: Path) -> None:
    for pattern in (f"{tmp_path}/coco-{{date}}", f"{tmp_path}/no/{{date}}"):
        none = find(pattern)
        assert (none.sets, none.labels, none.options()) == ((), (), {})


def test_the_output_is_never_among_them(tmp_path: Path) -> None:
    pattern = days(tmp_path, {"2026-11-18": manifest("18"), "2026-11-19": manifest("19")})
    output = f"{tmp_path}/./coco-2026-11-19/"

    assert found(pattern, output=output) == [f"{tmp_path}/coco-2026-11-18"]
    assert refused(f"{tmp_path}/coco-2026-11-19", output=output) == (
        f"E-ARG {tmp_path}/coco-2026-11-19: is --output and --since at once; leave it out"
    )


def test_a_data_set_counts_once_whatever_it_is_called(tmp_path: Path) -> None:
    one, copy = put(tmp_path / "one", manifest()), put(tmp_path / "copy", manifest())

    assert len(find(one, one, copy, f"{one}/").sets) == 1


# --- which are refused ---


def test_a_name_without_a_manifest_is_refused(tmp_path: Path) -> None:
    begun = put(tmp_path / "begun", "_plan.json")

    assert refused(begun) == (
        f"E-ARG {begun}: no manifest.json, hence no finished data set; finish it, or give --since"
        " others"
    )
    assert refused(f"{tmp_path}/nothing").startswith(f"E-ARG {tmp_path}/nothing: no manifest.json")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (None, "lacks train-00000-of-00001-1.tfrec, one of 1 missing shard"),
        (b"abcd", "has 4 bytes or a checksum that"),
    ],
)
def test_a_data_set_without_one_of_its_shards_is_refused(
    tmp_path: Path, data: bytes | None, what: str
) -> None:
    """Else its records would be left out, and be in no data set at all."""
    spec = FeatureSpec("one", (Feature("n", Kind.INT64, False, "a number"),))
    record = encode_example({"n": (Kind.INT64, [7])})
    one = write_data_set(tmp_path / "one", spec, {"train": [{"1": record}]})
    (shard,) = one.glob("*.tfrec")
    shard.unlink()
    if data is not None:
        shard.write_bytes(data)

    line = refused(str(one))
    assert line.startswith(f"E-OUT-CONFLICT {one}")
    assert what in line


def test_another_layout_is_refused(tmp_path: Path) -> None:
    other = put(tmp_path / "keras", manifest(layout="keras"))

    assert refused(other) == (
        f"E-ARG {other}: its layout is keras, this run's is detection;"
        " give --since data sets of one layout"
    )


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    newer = put(
        tmp_path / "newer", msgspec.structs.replace(manifest(), format_version=FORMAT_VERSION + 1)
    )

    assert refused(newer) == (
        f"E-OUT-FOREIGN {newer}/manifest.json: format version {FORMAT_VERSION + 1},"
        f" this program reads {FORMAT_VERSION};"
        " upgrade beam-tfrec"
    )


def test_what_is_no_manifest_is_refused_by_the_right_flag(tmp_path: Path) -> None:
    assert refused(put(tmp_path / "other", "manifest.json")).endswith("; give another --since")


def test_an_unfinished_day_stops_later_days(tmp_path: Path) -> None:
    """Until it is finished, any of today's samples may belong to it."""
    pattern = days(tmp_path, {"2026-11-18": manifest(), "2026-11-19": "_plan.json"})

    assert refused(pattern) == (
        f"E-OUT-DATES {tmp_path}/coco-2026-11-19: is begun and not finished;"
        " finish it with --date 2026-11-19, or delete it"
    )
    assert found(pattern, output=f"{tmp_path}/coco-2026-11-19") == [f"{tmp_path}/coco-2026-11-18"]


@pytest.mark.parametrize("later", [manifest(), "_plan.json"])
def test_a_day_between_others_is_not_filled_in(tmp_path: Path, later: Manifest | str) -> None:
    """The later ones may hold what it would write."""
    contents = {"2026-11-19": manifest("19"), "2026-11-21": later, "2026-11-22": "_plan.json"}
    pattern = days(tmp_path, contents)
    output = f"{tmp_path}/coco-2026-11-20"

    assert refused(pattern, output=output) == (
        f"E-OUT-DATES {tmp_path}/coco-2026-11-21: is there already, and was made without {output};"
        " give --date 2026-11-22 or a later one, or delete what is later"
    )


@pytest.mark.parametrize(
    ("day", "content", "what"),
    [
        ("2026-11-21", "_plan.json", "coco-2026-11-21: is there already"),
        ("2026-11-19", "_plan.json", "coco-2026-11-19: is begun and not finished"),
        ("2026-11-19", manifest("19"), "coco-2026-11-20: 2 data sets of earlier days, when this"),
    ],
)
def test_a_day_that_came_since_the_run_began_stops_it(
    tmp_path: Path, day: str, content: Manifest | str, what: str
) -> None:
    pattern = days(tmp_path, {"2026-11-18": manifest("18")})
    output = f"{tmp_path}/coco-2026-11-20"
    at_launch = find(pattern, output=output)
    check_turn(at_launch, output, "detection", DEFAULT_ACCESS)
    days(tmp_path, {day: content})

    with pytest.raises(RuntimeError, match=f"^E-OUT-DATES {tmp_path}/{what}"):
        check_turn(at_launch, output, "detection", DEFAULT_ACCESS)


def test_a_day_that_is_finished_is_found_again_but_not_replaced(tmp_path: Path) -> None:
    contents = {
        "2026-11-19": manifest("19"),
        "2026-11-20": manifest("20"),
        "2026-11-21": manifest(),
    }
    pattern = days(tmp_path, contents)
    output = f"{tmp_path}/coco-2026-11-20"

    assert found(pattern, output=output) == [f"{tmp_path}/coco-2026-11-19"]
    assert refused(pattern, output=output, overwrite=True).startswith("E-OUT-DATES ")
    (tmp_path / "coco-2026-11-21" / "manifest.json").unlink()  # now the day is the last one
    assert found(pattern, output=output, overwrite=True) == [f"{tmp_path}/coco-2026-11-19"]


# --- what is known of them ---


def test_the_option_tells_what_they_hold_and_not_where_they_are(tmp_path: Path) -> None:
    one, two = put(tmp_path / "one", manifest("1")), put(tmp_path / "two", manifest("2"))
    moved = put(tmp_path / "far" / "away", manifest("1"))

    option = find(one, two).options()

    assert option == find(two, moved).options()
    assert list(option) == ["since"]
    assert option["since"].startswith("2 data sets ")
    assert len({str(found.options()) for found in (find(one), find(two), find(one, two))}) == 3
    assert find(one).options()["since"].startswith("1 data set ")


def test_the_option_is_this_for_ever(tmp_path: Path) -> None:
    """Another one would be another plan, and no run of before could be resumed."""
    sets = (EarlierSet("ab" * 16, "gs://b/1"), EarlierSet("cd" * 16, "gs://b/2"))

    assert EarlierSets(sets).options() == {"since": "2 data sets 73f03305f891920bddf573a3a54e12d4"}
    (earlier,) = find(put(tmp_path / "one", manifest())).sets
    assert earlier.digest == "3942dcf0eb15e0f8d504980cd3635e22"


def test_a_manifest_that_has_changed_since_stops_the_run(tmp_path: Path) -> None:
    uri = put(tmp_path / "one", manifest("1"))
    (earlier,) = find(uri).sets
    assert manifest_of(earlier) == manifest("1")

    put(tmp_path / "one", manifest("2"))

    with pytest.raises(RuntimeError) as raised:
        manifest_of(earlier)
    assert str(raised.value) == (
        f"E-SRC-CHANGED {uri}/manifest.json: another data set than when the run began;"
        " run again when the source is at rest"
    )


def test_labels_are_those_of_all_by_id(tmp_path: Path) -> None:
    one = put(tmp_path / "one", manifest("1", (DOG,)))
    two = put(tmp_path / "two", manifest("2", (CAT, DOG)))

    assert find(one, two).labels == (InheritedLabel(CAT, two), InheritedLabel(DOG, one))


def test_what_a_class_is_called_may_come_later_and_stays() -> None:
    called = Label(1, "cat", text="house cat")

    labels = add_labels(add_labels([], [CAT, DOG], "first"), [called], "second")

    assert labels == [InheritedLabel(called, "second"), InheritedLabel(DOG, "first")]
    assert add_labels(labels, [CAT], "third") == labels


@pytest.mark.parametrize(
    ("label", "what"),
    [
        (Label(1, "lion"), "category 1 is 'lion', but gs://b/first has 1 for 'cat'"),
        (Label(9, "cat"), "category 9 is 'cat', but gs://b/first has 1 for 'cat'"),
        (
            Label(2, "dog", text="wild dog"),
            "category 2 is 'dog' (wild dog), but gs://b/first has 2 for 'dog' (house dog)",
        ),
    ],
)
def test_a_class_that_changed_stops_the_run_and_names_both(label: Label, what: str) -> None:
    known = add_labels([], [CAT, Label(2, "dog", text="house dog")], "gs://b/first")

    with pytest.raises(RuntimeError) as raised:
        add_labels(known, [DOG, label], "gs://b/second")

    remedy = "give each class the id and the name that it had"
    assert str(raised.value) == f"E-ANN-LABELS gs://b/second: {what}; {remedy}"
