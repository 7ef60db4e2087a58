"""Labels and licenses of annotation files: what several files must agree on, and counts."""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from schemas.faults import fault_line
from schemas.manifest import Label, LicenseCount

_MOST_CHARACTERS = 2000

_MOST_LICENSES = 10_000


class License(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """A license of an annotation file: its id there, its name and its URL, any text.

    Attributes:
        id: by which images name it.
        name: empty where it has none.
        url: likewise.
    """

    id: int
    name: str = ""
    url: str = ""


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
        other = united.setdefault(label.id, label)
        if label.keypoints and other.keypoints and label.keypoints != other.keypoints:
            theirs, ours = (", ".join(names.keypoints) for names in (other, label))
            what = f"keypoints of category {label.id} {label.name!r} are both {theirs} and {ours}"
            remedy = "give each category one list of keypoints"
            raise RuntimeError(fault_line("E-ANN-LABELS", where, f"the {what}", remedy))
        united[label.id] = msgspec.structs.replace(
            other, keypoints=other.keypoints or label.keypoints
        )
    return list(united.values())


def read_licenses(section: bytes | msgspec.Raw) -> list[License]:
    """Return the licenses of a file's section `licenses`, as far as it is as COCO has it.

    >>> read_licenses(b'[{"id": 4, "name": "CC BY", "url": "http://x"}, {"id": "5"}, 6]')
    [License(id=4, name='CC BY', url='http://x')]
    """
    try:
        entries = msgspec.json.decode(section, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        return []
    found = map(_read_license, entries[:_MOST_LICENSES])
    return sorted({license for license in found if license is not None})


def count_licenses(
    counts: Iterable[Mapping[str, int]], licenses: Iterable[License]
) -> list[LicenseCount]:
    """Return the records under each license, by id, from the counts of all shards.

    >>> count_licenses([{"4": 2}, {"4": 1}], [License(4, "CC BY"), License(5, "CC BY-SA")])
    [LicenseCount(id=4, records=3, name='CC BY', url='')]
    """
    total = Counter[int]()
    for part in counts:
        total.update({int(number): records for number, records in part.items()})
    names: dict[int, set[str]] = {}
    urls: dict[int, set[str]] = {}
    for license in licenses:
        names.setdefault(license.id, set()).add(license.name)
        urls.setdefault(license.id, set()).add(license.url)
    return [
        LicenseCount(number, total[number], _either(names.get(number)), _either(urls.get(number)))
        for number in sorted(total)
    ]


def is_link(url: str) -> bool:
    """Return whether text may stand as a link: a plain http(s) URL, and nothing that runs.

    >>> is_link("http://creativecommons.org/licenses/by/2.0/"), is_link("javascript:alert(1)")
    (True, False)
    """
    plain = url.isascii() and url.isprintable() and not set(" <>\"'`()[]{}|\\^") & set(url)
    return plain and url.startswith(("http://", "https://")) and len(url) <= _MOST_CHARACTERS


def _read_license(entry: msgspec.Raw) -> License | None:
    try:
        found = msgspec.json.decode(entry, type=License)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    fits = -(2**63) <= found.id < 2**63 and len(found.name) + len(found.url) <= _MOST_CHARACTERS
    return found if fits else None


def _either(texts: set[str] | None) -> str:
    return " or ".join(sorted(filter(None, texts or ())))
