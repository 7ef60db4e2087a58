"""Classes and licenses: merged over files and data sets, numbered, and read from label files."""

import csv
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from beam_tfrec.schemas.faults import printable, run_fault
from beam_tfrec.schemas.manifest import Label, LicenseCount

MAX_LABEL_ID = 2**31 - 1
"""Largest class id: ids of label maps are int32 (`StringIntLabelMapItem.id`)."""

_LOG = logging.getLogger(__name__)
_SYNSET = re.compile(r"([anrsv][0-9]{8}) +(.+)")
_MAX_LICENSES = 10_000
_LicenseId = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_ShortText = Annotated[str, msgspec.Meta(max_length=2000)]


class License(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """A license of an annotation file.

    Attributes:
        id: number by which images refer to it.
        name: name, any text; empty if missing.
        url: URL, any text; empty if missing.
    """

    id: _LicenseId
    name: _ShortText = ""
    url: _ShortText = ""


def unite_labels(labels: Iterable[Label], where: str) -> list[Label]:
    """Return the merged labels of several files or data sets, sorted by id.

    Some of the files may lack the keypoints or the text of a class.

    Raises:
        RuntimeError: `E-ANN-LABELS` when two labels contradict each other.

    >>> unite_labels([Label(1, "person"), Label(1, "person", keypoints=("nose",))], "two files")
    [Label(id=1, name='person', category_id=None, keypoints=('nose',), text='')]
    """
    by_id: dict[int, Label] = {}
    by_name: dict[str, Label] = {}
    for label in sorted({*labels}, key=_as_tuple):
        for other in (by_id.get(label.id), by_name.get(label.name)):
            if other is not None and not _are_one_class(label, other):
                what = f"{_described(other)} contradicts {_described(label)}"
                remedy = "give each class one id and one name in all files and data sets"
                raise run_fault("E-ANN-LABELS", where, what, remedy)
        known = by_id.get(label.id, label)
        by_id[label.id] = by_name[label.name] = msgspec.structs.replace(
            known, keypoints=known.keypoints or label.keypoints, text=known.text or label.text
        )
    return list(by_id.values())


def number_labels(
    known: Sequence[Label], labels: Iterable[Label], first_id: int | None
) -> list[Label]:
    """Return labels with the ids that records hold.

    Args:
        known: labels of earlier data sets, which keep their ids.
        labels: labels of the annotation files.
        first_id: first of a numbering without gaps, in the order of category ids. New categories
            are numbered after the known ones. None to keep category ids.

    Raises:
        RuntimeError: `E-ARG` when earlier data sets are numbered in another way. `E-ANN-LABELS`
            when a kept category id is outside the ids of label maps.

    >>> [label.id for label in number_labels([], [Label(90, "cup"), Label(3, "cat")], 1)]
    [1, 2]
    """
    _check_numbering(known, first_id)
    if first_id is None:
        return [_check_id(label) for label in labels]
    ids = {label.annotated_id: label.id for label in known}
    numbered: list[Label] = []
    for label in sorted(labels):
        number = ids.setdefault(label.id, first_id + len(ids))
        category_id = None if number == label.id else label.id
        numbered.append(msgspec.structs.replace(label, id=number, category_id=category_id))
    return numbered


def number_names(known: Sequence[Label], names: Iterable[str], first_id: int) -> list[Label]:
    """Return numbered labels of classes without category ids, sorted by name.

    Args:
        known: labels of earlier data sets, which keep their ids.
        names: names of the classes.
        first_id: first of the numbering; new classes are numbered after the known ones.

    Raises:
        RuntimeError: `E-ARG` when earlier data sets are numbered in another way.

    >>> number_names([], ["cup", "cat"], 0)[1]
    Label(id=1, name='cup', category_id=None, keypoints=(), text='')
    """
    _check_numbering(known, first_id)
    ids = {label.name: label.id for label in known}
    return [Label(ids.setdefault(name, first_id + len(ids)), name) for name in sorted(set(names))]


def read_label_file(data: bytes, first_id: int, where: str) -> list[Label]:
    r"""Return the classes of a label file, one per line: a name, or a name, a tab and a text.

    If the name is a WordNet synset, spaces can replace the tab, as in ImageNet's lists:
    `n01440764 tench, Tinca tinca`. Space around names and texts is dropped, as are empty lines at
    the end. An empty line before the end is refused: it is unclear whether it takes a number.
    In a `.csv` file a comma replaces the tab, and Open Images' header is skipped.

    Args:
        data: the file's bytes in UTF-8, with or without a byte order mark.
        first_id: id of the first line's class.
        where: the file's name, for messages.

    Raises:
        RuntimeError: `E-ANN-LABELS` when a line is empty, a class is repeated, there are no
            classes, quotes are stray, or the file is not UTF-8.

    >>> read_label_file(b"cat\ndog\n", 0, "a.txt")[1]
    Label(id=1, name='dog', category_id=None, keypoints=(), text='')
    >>> read_label_file(b"n01440764 tench, Tinca tinca\n", 1, "a.txt")[0].text
    'tench, Tinca tinca'
    >>> read_label_file(b'/m/04bcr3,"Table, large"', 1, "a.csv")[0].text
    'Table, large'
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refused(where, f"not UTF-8 at byte {error.start}", "save it as UTF-8") from None
    if where.lower().endswith(".csv"):
        rows = csv.reader(re.split(r"\r\n?|\n", text), strict=True)
        try:
            text = "\n".join(map("\t".join, rows)).removeprefix("LabelName\tDisplayName\n")
        except csv.Error as error:
            raise _refused(where, f"line {rows.line_num}: {error}", "correct its quotes") from None
    lines = text.rstrip().split("\n")
    if lines == [""]:
        raise _refused(where, "no classes", "write one class per line")
    seen: dict[str, int] = {}
    labels: list[Label] = []
    for number, line in enumerate(lines, start=1):
        name, text = _name_and_text(line)
        if not name:
            raise _refused(where, f"line {number} is empty", "remove it, or name a class there")
        if (first := seen.setdefault(name, number)) != number:
            what = f"{name!r} is in lines {first} and {number}"
            raise _refused(where, what, "give each class one line")
        labels.append(Label(first_id + number - 1, name, text=text))
    return labels


def refuse_unlisted(labels: Sequence[Label], names: Iterable[str], where: str) -> None:
    """Refuse sources with a class that the label file lacks.

    Args:
        labels: labels of the label file.
        names: names of the sources' classes.
        where: the label file's name, for messages.

    Raises:
        RuntimeError: `E-ANN-LABELS` when a class is missing.
    """
    unlisted = sorted({*names} - {label.name for label in labels})
    if unlisted:
        others = f" and {len(unlisted) - 1} more" if unlisted[1:] else ""
        what = f"it lacks the sources' class {unlisted[0]!r}{others}"
        raise _refused(where, what, "add it at the end, or leave its samples out of the sources")


def read_licenses(section: bytes | msgspec.Raw) -> list[License]:
    """Return the licenses of a file's section `licenses`; none if any of them is malformed.

    >>> read_licenses(b'[{"id": 4, "name": "CC BY", "url": "http://x"}]')
    [License(id=4, name='CC BY', url='http://x')]
    """
    try:
        found = msgspec.json.decode(section, type=list[License])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    return sorted({*found[:_MAX_LICENSES]})


def count_licenses(
    counts: Iterable[Mapping[str, int]], licenses: Iterable[License]
) -> list[LicenseCount]:
    """Return the number of records per license, sorted by id, from the counts of all shards.

    >>> count_licenses([{"4": 2}, {"4": 1}], [License(4, "CC BY"), License(5, "CC BY-SA")])
    [LicenseCount(id=4, records=3, name='CC BY', url='')]
    """
    total = sum(map(Counter, counts), Counter[str]())
    known = [*licenses]
    counted = []
    for number in sorted(map(int, total)):
        found = [each for each in known if each.id == number]
        names, urls = _joined(each.name for each in found), _joined(each.url for each in found)
        counted.append(LicenseCount(number, total[str(number)], names, urls))
    return counted


def is_link(url: str) -> bool:
    """Return whether text is safe as a link: a plain http(s) URL.

    >>> is_link("http://creativecommons.org/licenses/by/2.0/"), is_link("javascript:alert(1)")
    (True, False)
    """
    plain = url.isascii() and url.isprintable() and not set(" <>\"'`()[]{}|\\^") & set(url)
    return plain and url.startswith(("http://", "https://"))


def _as_tuple(label: Label) -> tuple:
    return label.id, label.name, label.annotated_id, label.keypoints, label.text


def _are_one_class(label: Label, other: Label) -> bool:
    same = _as_tuple(label)[:3] == _as_tuple(other)[:3]
    pairs = (label.keypoints, other.keypoints), (label.text, other.text)
    return same and all(one == two or not (one and two) for one, two in pairs)


def _described(label: Label) -> str:
    text = f" ({label.text})" if label.text else ""
    keypoints = f" of {', '.join(label.keypoints)}" if label.keypoints else ""
    return f"category {label.annotated_id} {label.name!r}{text}{keypoints}"


def _check_numbering(known: Sequence[Label], first_id: int | None) -> None:
    """Refuse earlier data sets with another numbering of classes than this run."""
    if first_id is None:
        same, how = all(label.category_id is None for label in known), "by the files' ids"
    else:
        wanted = range(first_id, first_id + len(known))
        same = sorted(label.id for label in known) == [*wanted]
        how = f"from {first_id} without gaps"
    if not same:
        what = f"classes of the earlier data sets are not numbered {how}"
        remedy = "give the --category_ids or --first_label that made them"
        raise run_fault("E-ARG", "--since", what, remedy)


def _check_id(label: Label) -> Label:
    """Return the label if a label map can hold its id; warn of id 0."""
    if not 0 <= label.id <= MAX_LABEL_ID:
        what = f"category id {label.id} of {label.name!r} is not from 0 to {MAX_LABEL_ID}"
        what += ", the ids that a label map can hold"
        remedy = "number classes anew with --category_ids contiguous"
        raise _refused("all annotation files", what, remedy)
    if label.id == 0:
        what = "category id 0 of %s: the Object Detection API refuses a label map with it;"
        what += " --category_ids contiguous numbers classes from 1"
        _LOG.warning(what, printable(label.name))
    return label


def _name_and_text(line: str) -> tuple[str, str]:
    name, tab, text = line.partition("\t")
    if not tab and (synset := _SYNSET.fullmatch(line.strip())):
        name, text = synset.groups()
    return name.strip(), text.strip()


def _refused(where: str, what: str, remedy: str) -> RuntimeError:
    return run_fault("E-ANN-LABELS", where, what, remedy)


def _joined(texts: Iterable[str]) -> str:
    return " or ".join(sorted({text for text in texts if text}))
