"""Licenses of images, as COCO's files name them, and how many records are under each.

The files are written by strangers, and nothing depends on their `licenses`: what is no entry of a
number and texts there is passed over.
"""

from collections.abc import Iterable, Mapping

import msgspec

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


class LicenseCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many records of a split have images under a license.

    Attributes:
        id: by which the annotation files name it.
        records: written.
        name: as the files say; several where they do not agree.
        url: likewise; it may be any text.
    """

    id: int
    records: int
    name: str = ""
    url: str = ""


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
    total: dict[int, int] = {}
    for part in counts:
        for number, records in part.items():
            total[int(number)] = total.get(int(number), 0) + records
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


def _either(texts: set[str] | None) -> str:
    return " or ".join(sorted(filter(None, texts or ())))


def _read_license(entry: msgspec.Raw) -> License | None:
    try:
        found = msgspec.json.decode(entry, type=License)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    fits = -(2**63) <= found.id < 2**63 and len(found.name) + len(found.url) <= _MOST_CHARACTERS
    return found if fits else None
