"""docs/layouts.md: its example runs, and it lists every key."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import pytest

from beam_tfrec.pipelines import coco, folder
from beam_tfrec.pipelines.data_set import build
from beam_tfrec.schemas.layouts import groups
from tests.coco_command import MakeCoco, check_committed, examples, value

DOC = (Path(__file__).resolve().parent.parent / "docs" / "layouts.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(from .*?)```", DOC, re.DOTALL)


def test_the_example_layout_runs(
    make_coco: MakeCoco,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    test_pipeline: Callable[[], beam.Pipeline],
) -> None:
    """Each picture has two objects; the first is a person."""
    (tmp_path / "my_layouts.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    people = importlib.import_module("my_layouts").PeopleLayout()
    (images, annotations), out = make_coco(3), tmp_path / "out"
    out.mkdir()
    roots, files = {"train": str(images)}, {"train": [str(annotations)]}
    with test_pipeline() as root:
        build(root, coco.CocoConfig(roots, files, output=str(out), layout=people))
    manifest = check_committed(out)
    assert (manifest["layout"], manifest["splits"]["train"]["records"]) == ("people", 3)
    photos = {path.read_bytes() for path in images.iterdir()}
    for example in examples(out):
        assert value(example, "people/bbox") == [1.5, 2.0, 10.0, 12.25]
        assert value(example, "photo")[0] in photos


OF_PNGS = tuple(group.name for group in groups.OF_PNGS)  # these have keys of other groups
OF_COCO = [
    (name, tuple(group.name for group in layout.groups if group.name not in OF_PNGS))
    for name, layout in coco.LAYOUTS.items()
]


@pytest.mark.parametrize(
    ("name", "features"),
    [
        *OF_COCO,
        *(("detection", ("boxes", name)) for name in OF_PNGS),
        *((name, ()) for name in folder.LAYOUTS),
    ],
)
def test_every_key_of_every_group_is_listed(name: str, features: tuple[str, ...]) -> None:
    layout = coco.LAYOUTS[name](features=features) if features else folder.LAYOUTS[name]()
    section = DOC.split(f"\n## {name}\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"`([^`]+)`", section))
    assert {*features, *(feature.key for feature in layout.spec.features)} - listed == set()
