"""Label files: a class a line, whose place gives the number that records hold.

A line is a class's name, as folders and columns have it; what people call it may follow behind a
tab, or behind a space where the name is a WordNet synset, as in ImageNet's lists:
`n01440764 tench, Tinca tinca`.
"""

import re
from collections.abc import Iterable, Sequence

from schemas.faults import fault_line
from schemas.labels import check_labels
from schemas.manifest import Label

_SYNSET = re.compile(r"([anrsv][0-9]{8}) +(.+)")
_UTF8_BOM = b"\xef\xbb\xbf"


def read_label_file(data: bytes, first_id: int, where: str) -> list[Label]:
    r"""Return the classes of a label file, numbered by their lines.

    Space around names and texts is no part of them, nor is an empty line at the end. One before it
    is refused, since whether it takes a number is anybody's guess.

    Args:
        data: the file; UTF-8, with or without a byte order mark.
        first_id: number of the first line.
        where: the file's name, for messages.

    Raises:
        RuntimeError: `E-ANN-LABELS` when a line is empty, a class comes twice, there is none, or
            the file is no UTF-8.

    >>> read_label_file(b"cat\ndog\n", 0, "a.txt")[1]
    Label(id=1, name='dog', category_id=None, keypoints=(), text='')
    >>> read_label_file(b"n01440764 tench, Tinca tinca\n", 1, "a.txt")[0].text
    'tench, Tinca tinca'
    """
    try:
        text = data.removeprefix(_UTF8_BOM).decode()
    except UnicodeDecodeError as error:
        raise _refused(where, f"no UTF-8 at byte {error.start}", "save it as UTF-8") from None
    lines = text.rstrip().split("\n")
    if lines == [""]:
        raise _refused(where, "no classes", "give one a line")
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
    check_labels([(label.id, label.name) for label in labels], where)
    return labels


def refuse_unlisted(labels: Sequence[Label], names: Iterable[str], where: str) -> None:
    """Stop where sources have a class that the label file lacks.

    Args:
        labels: of the file.
        names: of the sources' classes.
        where: the file's name, for messages.

    Raises:
        RuntimeError: `E-ANN-LABELS`.
    """
    unlisted = sorted({*names} - {label.name for label in labels})
    if unlisted:
        others = f", nor are {len(unlisted) - 1} others" if unlisted[1:] else ""
        what = f"class {unlisted[0]!r} of the sources is not there{others}"
        raise _refused(where, what, "add it at the end, or leave its samples out of the sources")


def _name_and_text(line: str) -> tuple[str, str]:
    name, tab, text = line.partition("\t")
    if not tab and (synset := _SYNSET.fullmatch(line.strip())):
        name, text = synset.groups()
    return name.strip(), text.strip()


def _refused(where: str, what: str, remedy: str) -> RuntimeError:
    return RuntimeError(fault_line("E-ANN-LABELS", where, what, remedy))
