"""Licenses of COCO files, and label files."""

import json

import pytest
from msgspec.structs import replace

from beam_tfrec.schemas.documents.data_card import data_card
from beam_tfrec.schemas.labels import (
    License,
    count_licenses,
    is_link,
    read_label_file,
    read_licenses,
    refuse_unlisted,
)
from beam_tfrec.schemas.manifest import Label, LicenseCount
from tests.test_manifest import MANIFEST

BY = {"id": 4, "name": "Attribution License", "url": "http://creativecommons.org/licenses/by/2.0/"}


@pytest.mark.parametrize(
    ("section", "licenses"),
    [
        (b"null", []),
        (json.dumps([BY]).encode(), [License(4, BY["name"], BY["url"])]),
        (b'[{"id": 1}]', [License(1)]),
        (b'[{"id": 1}, {"name": "no id"}]', []),
        (b'[{"id": 1, "name": null}]', []),
        (b'[{"id": 18446744073709551616}]', []),
        (b'[{"id": 1, "name": "%b"}]' % (b"x" * 2001), []),
        (b'[{"id": 2}, {"id": 1}, {"id": 2}]', [License(1), License(2)]),
    ],
)
def test_licenses_of_another_form_are_ignored(section: bytes, licenses: list[License]) -> None:
    assert read_licenses(section) == licenses


def test_counts_of_shards_add_up() -> None:
    licenses = [License(4, "CC BY", "http://a"), License(4, "by", "http://a"), License(9)]
    assert count_licenses([{"4": 2, "9": 1}, {"4": 1}, {}, {"7": 5}], licenses) == [
        LicenseCount(4, 3, "CC BY or by", "http://a"),
        LicenseCount(7, 5),
        LicenseCount(9, 1),
    ]


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        (BY["url"], True),
        ("javascript:alert(1)", False),
        ("http://x.org/)[y](javascript:alert(1)", False),
        ("", False),
    ],
)
def test_only_plain_urls_are_links(url: str, is_one: bool) -> None:
    assert is_link(url) is is_one


def test_the_card_counts_records_by_license() -> None:
    licenses = [LicenseCount(4, 2, BY["name"], BY["url"]), LicenseCount(5, 3)]
    split = replace(MANIFEST.splits["train"], records=8, licenses=licenses)
    card = data_card(replace(MANIFEST, splits={"train": split}))
    assert f"| train | 4 | {BY['name']} | <{BY['url']}> | 2 |\n| train | 5 |  |  | 3 |" in card
    assert "| train |  | none |  | 3 |" in card


# --- label files

CAT, DOG = Label(0, "cat"), Label(1, "dog")
TENCH = Label(1, "n01440764", text="tench, Tinca tinca")

# Contents of the file, id of its first line, labels.
FILES = {
    "names": (b"cat\ndog\n", 0, [CAT, DOG]),
    "ids from 1": (b"cat\ndog\n", 1, [Label(1, "cat"), Label(2, "dog")]),
    "empty lines at the end": (b"cat\ndog\n\n \n", 0, [CAT, DOG]),
    "Windows line ends": (b"cat\r\ndog\r\n", 0, [CAT, DOG]),
    "byte order mark": (b"\xef\xbb\xbfcat\ndog\n", 0, [CAT, DOG]),
    "Unicode line separator": ("a\u2028b\n".encode(), 0, [Label(0, "a\u2028b")]),
    "synset": (b"n01440764 tench, Tinca tinca\n", 1, [TENCH]),
    "nearly a synset": (b"n0144076 tench\n", 1, [Label(1, "n0144076 tench")]),
    "name and tab": (b"polar bear\tUrsus\n", 0, [Label(0, "polar bear", text="Ursus")]),
}


@pytest.mark.parametrize(("data", "first_id", "labels"), FILES.values(), ids=FILES)
def test_read_label_file(data: bytes, first_id: int, labels: list[Label]) -> None:
    assert read_label_file(data, first_id, "a.txt") == labels


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_of_a_csv_file(end: str) -> None:
    data = f'LabelName,DisplayName{end}cat,"A, b\u2028c"{end}dog{end}'.encode()
    assert read_label_file(data, 0, "a.csv") == [Label(0, "cat", text="A, b\u2028c"), DOG]


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        ("a.txt", b"", "no classes; write one class per line"),
        ("a.txt", b"cat\n\ndog\n", "line 2 is empty; remove it, or name a class there"),
        ("a.txt", b"cat\ndog\ncat\n", "'cat' is in lines 1 and 3; give each class one line"),
        ("a.txt", b"cat\n\xff\n", "not UTF-8 at byte 4; save it as UTF-8"),
        ("a.csv", b'cat,a\n"dog,b\ncup', "line 3: unexpected end of data; correct its quotes"),
    ],
)
def test_bad_label_files_are_refused(name: str, data: bytes, line: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        read_label_file(data, 0, f"gs://b/{name}")
    assert str(raised.value) == f"E-ANN-LABELS gs://b/{name}: {line}"


@pytest.mark.parametrize(
    ("names", "others"), [(["dog", "cow"], ""), (["emu", "cow", "fox"], " and 2 more")]
)
def test_classes_missing_from_the_file_are_refused(names: list[str], others: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        refuse_unlisted([CAT, DOG], names, "a.txt")
    assert str(raised.value) == (
        f"E-ANN-LABELS a.txt: it lacks the sources' class 'cow'{others};"
        " add it at the end, or leave its samples out of the sources"
    )
