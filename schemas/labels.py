"""The label map: which categories there are, and what no two of them may say."""

from collections.abc import Iterable

import msgspec

from schemas.faults import fault_line
from schemas.manifest import Label


def check_labels(labels: Iterable[tuple[int, str]], where: str) -> None:
    """Refuse labels whose ids and names do not pair up.

    Raises:
        RuntimeError: `E-ANN-LABELS`.
    """
    names: dict[int, str] = {}
    ids: dict[str, int] = {}
    for label_id, name in labels:
        what = ""
        if names.setdefault(label_id, name) != name:
            what = f"category {label_id} is both {names[label_id]!r} and {name!r}"
        elif ids.setdefault(name, label_id) != label_id:
            what = f"{name!r} is both category {ids[name]} and {label_id}"
        if what:
            remedy = "give each id one name and each name one id"
            raise RuntimeError(fault_line("E-ANN-LABELS", where, what, remedy))


def unite_labels(labels: Iterable[Label], where: str) -> list[Label]:
    """Return the labels of several files, by id; one without keypoints takes another's.

    >>> unite_labels([Label(1, "person"), Label(1, "person", keypoints=("nose",))], "two files")
    [Label(id=1, name='person', category_id=None, keypoints=('nose',), text='')]

    Raises:
        RuntimeError: `E-ANN-LABELS` when two contradict.
    """
    given = sorted(set(labels))
    check_labels([(label.id, label.name) for label in given], where)
    united: dict[int, Label] = {}
    for label in given:
        united[label.id] = with_keypoints_of(united.get(label.id, label), label, where)
    return list(united.values())


def with_keypoints_of(label: Label, other: Label, where: str) -> Label:
    """Return a label with the names of keypoints that it has, or else another of its class has.

    Raises:
        RuntimeError: `E-ANN-LABELS` when both name some, and not the same.
    """
    if not label.keypoints or not other.keypoints or label.keypoints == other.keypoints:
        return msgspec.structs.replace(label, keypoints=label.keypoints or other.keypoints)
    theirs, ours = (", ".join(names.keypoints) for names in (label, other))
    what = f"the keypoints of category {label.id} {label.name!r} are both {theirs} and {ours}"
    raise RuntimeError(
        fault_line("E-ANN-LABELS", where, what, "give each category one list of keypoints")
    )
