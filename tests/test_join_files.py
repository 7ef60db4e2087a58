"""Files and rows joined by name."""

from beam_tfrec.transforms.sources.join_files import JoinedFiles, join_files


def test_rows_of_equal_name_are_joined_in_order() -> None:
    rows = ("boxes", 2, ["y"]), ("boxes", 3, ["x"])
    parts = [JoinedFiles("train", "a", rows=(row,)) for row in reversed(rows)]
    joined = [JoinedFiles("train", "a", rows=rows), JoinedFiles("train", "only a name")]
    assert [*join_files("train", [joined[1], *parts])] == joined
