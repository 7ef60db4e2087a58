"""The keys that docs/layouts.md lists for folders, against the code."""

import re
from pathlib import Path

import pytest

from beam_tfrec.pipelines import folder

DOCS = Path(__file__).resolve().parent.parent / "docs"
LAYOUTS = (DOCS / "layouts.md").read_text()


@pytest.mark.parametrize("name", folder.LAYOUTS)
def test_every_key_is_listed(name: str) -> None:
    section = LAYOUTS.split(f"\n## {name}\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"`([^`]+)`", section))
    assert {feature.key for feature in folder.LAYOUTS[name]().spec.features} - listed == set()
