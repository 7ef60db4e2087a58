"""Files joined by name."""

from collections.abc import Callable

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from beam_tfrec.transforms.shuffle.elements import spool_for
from beam_tfrec.transforms.sources.join_files import (
    OTHER_SIDE,
    JoinedFiles,
    JoinFiles,
    NamedFile,
    join_files,
)
from beam_tfrec.transforms.sources.list_blobs import ListedFile
from beam_tfrec.transforms.storage import Entry


def file(name: str, root: str = "train/low") -> ListedFile:
    return ListedFile(root, Entry(name, 1, "1"))


def named(name: str, side: int, file_name: str = "", source: str = "train") -> NamedFile:
    return NamedFile(source, name, side, file(file_name or f"{name}.png"))


def test_files_of_equal_name_are_joined_in_order() -> None:
    files = [named("b", 1), named("a", 1, "a.png"), named("a", 0), named("a", 1, "a.jpg")]
    others = [named("train/x", OTHER_SIDE, "x")]
    assert join_files("train", [*files, *others]) == [
        JoinedFiles("train", "a", [file("a.png")], [file("a.jpg"), file("a.png")]),
        JoinedFiles("train", "b", [], [file("b.png")]),
        JoinedFiles("train", "train/x", [], [], [file("x")]),
    ]


@pytest.mark.parametrize("spooled", [False, True])
def test_each_source_is_joined_on_its_own(
    test_pipeline: Callable[[], beam.Pipeline], spooled: bool
) -> None:
    files = [named(f"{n}", side, source=s) for n in range(40) for side in (0, 1) for s in "ab"]
    with test_pipeline() as pipeline:
        spool = spool_for(pipeline) if spooled else None
        joined = pipeline | beam.Create(files) | JoinFiles(spool)
        pairs = joined | beam.Map(lambda one: (one.source, one.name, one.first == one.second))
        assert_that(pairs, equal_to([(s, f"{n}", True) for n in range(40) for s in "ab"]))
