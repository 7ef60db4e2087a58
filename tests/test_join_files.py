"""Files joined by name, and the check that most of them have a partner."""

from collections.abc import Callable

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from schemas.faults import RejectBudget
from transforms.sources.elements import spool_for
from transforms.sources.join_files import (
    OTHER_SIDE,
    JoinedFiles,
    JoinFiles,
    JoinTally,
    NamedFile,
    Sides,
    add_join_tallies,
    join_files,
    refuse_mostly_alone,
    tally_of,
)
from transforms.sources.list_blobs import ListedFile
from transforms.storage import Entry

SIDES = Sides("--low", "--high", "check both")


def file(name: str, root: str = "train/low") -> ListedFile:
    return ListedFile(root, Entry(name, 1, "1"))


def named(name: str, side: int, file_name: str = "", source: str = "train") -> NamedFile:
    return NamedFile(source, name, side, file(file_name or f"{name}.png"))


def test_files_of_a_name_come_together_in_order() -> None:
    files = [named("b", 1), named("a", 1, "a.png"), named("a", 0), named("a", 1, "a.jpg")]
    others = [named("train/x", OTHER_SIDE, "x")]
    assert join_files("train", [*files, *others]) == [
        JoinedFiles("train", "a", [file("a.png")], [file("a.jpg"), file("a.png")]),
        JoinedFiles("train", "b", [], [file("b.png")]),
        JoinedFiles("train", "train/x", [], [], [file("x")]),
    ]


def test_tallies_add_up_and_ignore_other_files() -> None:
    joined = join_files("train", [named("b", 1), named("a", 0), named("c", 0), named("c", 1)])
    others = join_files("train", [named("x", OTHER_SIDE), named("0", 0)])
    assert tally_of(joined) == JoinTally(1, 1, 1, "a.png", "b.png")
    assert tally_of(others) == JoinTally(0, 1, 0, "0.png", "")
    sum_of_both = JoinTally(1, 2, 1, "0.png", "b.png")
    assert add_join_tallies([tally_of(joined), tally_of(others)]) == sum_of_both


@pytest.mark.parametrize(
    ("tally", "sides", "refused"),
    [
        (JoinTally(5, 5, 0, "a"), SIDES, False),  # a half
        (JoinTally(5, 6, 0, "a"), SIDES, True),
        (JoinTally(5, 3, 3, "a", "b"), SIDES, True),
        (JoinTally(0, 6, 0, "a"), Sides("", "", "", budget=RejectBudget(percent=100)), False),
        (JoinTally(0, 5, 1, "a", "b"), Sides("", "", "", budget=RejectBudget(percent=100)), True),
        (JoinTally(1, 99, 0, "a"), Sides("", "", "", first_may_be_alone=True), False),
        (JoinTally(1, 99, 2, "a", "b"), Sides("", "", "", first_may_be_alone=True), True),
        (JoinTally(), SIDES, False),
    ],
)
def test_most_names_must_have_a_partner(tally: JoinTally, sides: Sides, refused: bool) -> None:
    if not refused:
        refuse_mostly_alone("train", tally, sides)
        return
    with pytest.raises(RuntimeError, match=r"^E-SET-MISSING files of train: "):
        refuse_mostly_alone("train", tally, sides)


@pytest.mark.parametrize("spooled", [False, True])
def test_sources_are_joined_apart(
    test_pipeline: Callable[[], beam.Pipeline], spooled: bool
) -> None:
    files = [named(f"{n}", side, source=s) for n in range(40) for side in (0, 1) for s in "ab"]
    with test_pipeline() as pipeline:
        spool = spool_for(pipeline) if spooled else None
        joined = pipeline | beam.Create(files) | JoinFiles(SIDES, spool)
        pairs = joined | beam.Map(lambda one: (one.source, one.name, one.first == one.second))
        assert_that(pairs, equal_to([(s, f"{n}", True) for n in range(40) for s in "ab"]))
