"""Licenses: read from COCO files, counted per record, listed in the manifest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.labels import License, count_licenses, is_link, read_licenses
from schemas.manifest import LicenseCount
from tests.coco_command import committed, examples, value

BY = {"id": 4, "name": "Attribution License", "url": "http://creativecommons.org/licenses/by/2.0/"}
MakeCoco = Callable[..., tuple[Path, Path]]


@pytest.mark.parametrize(
    ("section", "licenses"),
    [
        (b"null", []),
        (b"[]", []),
        (json.dumps([BY]).encode(), [License(4, BY["name"], BY["url"])]),
        (b'[{"id": 1}]', [License(1)]),
        (b'[{"name": "no id"}, 5, [1], {"id": "1"}, {"id": 1.5}, {"id": true}]', []),
        (b'[{"id": 18446744073709551616}]', []),
        (b'[{"id": 1, "name": "%b"}]' % (b"x" * 2001), []),
        (b'[{"id": 2}, {"id": 1}, {"id": 2}]', [License(1), License(2)]),
    ],
)
def test_entries_without_an_id_are_ignored(section: bytes, licenses: list[License]) -> None:
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
        ("https://x.org/a?b=c#d", True),
        ("javascript:alert(1)", False),
        ("http://x.org/ a", False),
        ("http://x.org/)[y](javascript:alert(1)", False),
        ("", False),
    ],
)
def test_only_plain_urls_are_links(url: str, is_one: bool) -> None:
    assert is_link(url) is is_one


def licensed(*ids: object, licenses: object = None) -> Callable[[dict], None]:
    """Return an edit that gives the images these licenses, in turn."""

    def edit(spec: dict[str, Any]) -> None:
        for place, image in enumerate(spec["images"]):
            image["license"] = ids[place % len(ids)]
        spec["licenses"] = [BY] if licenses is None else licenses

    return edit


def test_records_are_counted_by_the_license_of_their_image(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    sources, out = make_coco(9, edit=licensed(4, 5, None)), tmp_path / "out"
    broken = sources[0] / "a000.jpg"
    broken.write_bytes(broken.read_bytes()[:-9])
    manifest = committed(
        sources, out, "--num_shards", 2, "--max_rejected", 1, "--features", "boxes,license"
    )

    assert manifest["splits"]["train"]["licenses"] == [
        {"id": 4, "records": 2, "name": BY["name"], "url": BY["url"]},
        {"id": 5, "records": 3},
    ]
    in_records = [value(example, "image/license") for example in examples(out)]
    assert sorted(in_records) == [[]] * 3 + [[4]] * 2 + [[5]] * 3
    card = (out / "README.md").read_text()
    assert f"| train | 4 | {BY['name']} | <{BY['url']}> | 2 |\n| train | 5 |  |  | 3 |" in card
    assert "| train |  | none |  | 3 |" in card
    croissant = json.loads((out / "croissant.json").read_bytes())
    assert [found["name"] for found in croissant["license"]] == [BY["name"], "license 5"]
