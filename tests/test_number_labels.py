"""Which numbers classes have in records, in one data set and in those that add to it."""

import pytest

from schemas.layouts import labels_by_category
from schemas.manifest import Label, to_json
from transforms.earlier import InheritedLabel, add_labels, number_labels

CAT, CUP = Label(3, "cat"), Label(90, "cup")
FIRST = "gs://b/first"


def known(*labels: Label) -> list[InheritedLabel]:
    return [InheritedLabel(label, FIRST) for label in labels]


# Labels of earlier data sets, first id, the numbered labels of cup and cat.
NUMBERED = {
    "as annotated": ([], None, [CUP, CAT]),
    "by category id": ([], 1, [Label(1, "cat", 3), Label(2, "cup", 90)]),
    "from 0": ([], 0, [Label(0, "cat", 3), Label(1, "cup", 90)]),
    "known ones keep theirs": ([Label(1, "cup", 90)], 1, [Label(2, "cat", 3), Label(1, "cup", 90)]),
    "new ones follow all known": (
        [Label(1, "cup", 90), Label(2, "dog", 1)],
        1,
        [Label(3, "cat"), Label(1, "cup", 90)],
    ),
}


@pytest.mark.parametrize(("earlier", "first_id", "numbered"), NUMBERED.values(), ids=NUMBERED)
def test_number_labels(earlier: list[Label], first_id: int | None, numbered: list[Label]) -> None:
    assert number_labels(known(*earlier), [CUP, CAT], first_id) == numbered


@pytest.mark.parametrize("category_id", [-1, 2**31])
def test_category_ids_that_label_maps_refuse_need_numbers_of_their_own(category_id: int) -> None:
    label = Label(category_id, "dog")
    with pytest.raises(RuntimeError) as raised:
        number_labels([], [CAT, label], None)
    assert str(raised.value) == (
        f"E-ANN-LABELS all annotation files: category id {category_id} of 'dog' is not from 0 to"
        " 2147483647, the numbers that a label map can have;"
        " number classes anew with --category_ids contiguous"
    )
    (numbered,) = number_labels([], [label], 1)
    assert (numbered.id, numbered.annotated_id) == (1, category_id)
    assert number_labels(known(label), [label], None) == [label]  # an earlier data set has it


def test_category_id_0_is_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    label = Label(0, "dog")
    assert number_labels([], [CAT, label], None) == [CAT, label]
    assert caplog.messages == [
        "category id 0 of dog: the Object Detection API refuses a label map with it;"
        " --category_ids contiguous numbers classes from 1"
    ]


@pytest.mark.parametrize(
    ("earlier", "first_id", "what"),
    [
        ([CAT], 1, "the files' own"),
        ([Label(1, "cat", 3)], None, "contiguous"),
        ([Label(1, "cat", 3), Label(3, "cup", 90)], 1, "the files' own"),
    ],
)
def test_another_numbering_is_refused(
    earlier: list[Label], first_id: int | None, what: str
) -> None:
    with pytest.raises(RuntimeError) as raised:
        number_labels(known(*earlier), [CAT], first_id)
    assert str(raised.value) == (
        f"E-ARG {FIRST}: its class ids are {what}; give the --category_ids that it was made with"
    )


@pytest.mark.parametrize(
    ("label", "what"),
    [
        (Label(3, "lion"), "category 3 is 'lion', but gs://b/first has 3 for 'cat'"),
        (Label(5, "cat"), "category 5 is 'cat', but gs://b/first has 3 for 'cat'"),
    ],
)
def test_a_changed_class_is_named_by_the_original_id(label: Label, what: str) -> None:
    earlier = known(Label(1, "cat", 3))
    with pytest.raises(RuntimeError, match=f"^E-ANN-LABELS gs://b/second: {what}; "):
        add_labels(earlier, number_labels(earlier, [label], 1), "gs://b/second")


def test_names_of_keypoints_may_come_later_and_stay() -> None:
    with_nose = Label(3, "cat", keypoints=("nose",))
    later = add_labels(known(CAT), [with_nose], "second")
    assert later == [InheritedLabel(with_nose, "second")]
    assert add_labels(later, [CAT], "third") == later


def test_other_names_of_keypoints_are_refused() -> None:
    earlier = known(Label(3, "cat", keypoints=("nose",)))
    with pytest.raises(RuntimeError) as raised:
        add_labels(earlier, [Label(3, "cat", keypoints=("nose", "tail"))], "second")
    assert str(raised.value).startswith(
        "E-ANN-LABELS second: category 3 is 'cat' of nose, tail, but gs://b/first has 3 for 'cat'"
        " of nose;"
    )


def test_a_label_holds_both_ids() -> None:
    labels = [Label(1, "cat", 3), Label(2, "cup", 90), Label(3, "dog")]
    assert [label.annotated_id for label in labels] == [3, 90, 3]
    assert labels_by_category(labels[1:]) == {90: labels[1], 3: labels[2]}
    assert labels_by_category(labels)["cup"] == labels[1]
    assert to_json(labels[2]) == b'{\n  "id": 3,\n  "name": "dog"\n}\n'
