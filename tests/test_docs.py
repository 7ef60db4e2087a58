"""README, docs and examples: commands parse, links work. See also test_code_blocks.py."""

import importlib
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from beam_tfrec.pipelines import coco, folder
from beam_tfrec.pipelines.cli import COMMANDS, PIPELINES
from beam_tfrec.pipelines.data_set import build
from beam_tfrec.schemas.layouts import groups
from tests.coco_command import MakeCoco, check_committed, examples, value
from tests.docs_pages import gather_pages
from tests.side_folders import with_data_file

PROJECT = Path(__file__).resolve().parent.parent
PAGES = [
    *sorted(PROJECT.glob("*.md")),
    PROJECT / "examples" / "README.md",
    *sorted((PROJECT / "docs").glob("*.md")),
]
NAMES = [str(page.relative_to(PROJECT)) for page in PAGES]
OF_BEAM = {"--runner", "--prism_location"}
ELISIONS = {"…", "..."}
each_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)


def code_blocks(text: str, language: str = "python") -> list[str]:
    """Return the blocks of Python, or of another language, without their indentation."""
    blocks = re.findall(rf"^ *```{language}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in blocks]


def block_of(page: str, words: str, language: str = "python") -> str:
    """Return the only block of the page that contains the words."""
    blocks = code_blocks((PROJECT / page).read_text(), language)
    (block,) = (block for block in blocks if words in block)
    return block


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words after `beam-tfrec` of each command in a block or between backticks."""
    joined = re.sub(r"\\\n\s*", "", text)
    found = re.findall(r"^(?:    |\$ )(?:\$ )?beam-tfrec (.*)$", joined, re.MULTILINE)
    found += re.findall(r"`beam-tfrec ([a-z]+ [^`]+)`", joined)
    for command in found:
        yield shlex.split(command.replace("\\|", "|"), comments=True)


@each_page
def test_commands_parse(page: Path) -> None:
    for name, *arguments in commands(page.read_text()):
        if name in ("plan", "similar"):
            name, *arguments = arguments
        if name in {*PIPELINES, *COMMANDS} and arguments != ["--help"]:
            check_command(name, arguments)
        else:
            assert name in {"SOURCE", "COMMAND", *PIPELINES}, name


def check_command(name: str, arguments: list[str]) -> None:
    """Parse a command; if it is only a part of one, check the names of its flags."""
    module = importlib.import_module(f"beam_tfrec.pipelines.{name}")
    source = module.run if name in PIPELINES else module
    if ELISIONS & {*arguments} or (name in PIPELINES and "--output" not in arguments):
        known = OF_BEAM.union(*(flag.option_strings for flag in source.parser().flags))
        assert {word for word in arguments if word.startswith("--")} <= known
    elif name in PIPELINES:
        _, of_beam = source.configure(with_data_file(arguments))
        assert bool(of_beam) == ("--runner" in arguments)
    else:
        given = arguments[: arguments.index("--runner")] if "--runner" in arguments else arguments
        source.parser().parse_args(given)


def test_the_readme_has_a_command_for_each_source() -> None:
    readme = (PROJECT / "README.md").read_text()
    assert len({name for name, *_ in commands(readme)} & {*PIPELINES}) == len(PIPELINES)


@each_page
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)|(?:src|srcset)=\"([^\"]+)\"", page.read_text())
    local = [target for pair in links for target in pair if target and "://" not in target]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_the_site_lists_every_flag_of_a_source_once(tmp_path: Path) -> None:
    gather_pages(tmp_path)
    _, _, text = (tmp_path / "docs" / "flags.md").read_text().partition("## All flags\n")
    sections = dict(part.split("\n", 1) for part in text.split("\n### ")[1:])
    assert sections.keys() == {"All sources", *COMMANDS} - {"plan"}
    for name in PIPELINES:
        flags = importlib.import_module(f"beam_tfrec.pipelines.{name}").run.parser().flags
        listed = re.findall(r"^\| `(--\w+)", sections["All sources"] + sections[name], re.MULTILINE)
        assert sorted(listed) == sorted(flag.option_strings[0] for flag in flags)


def test_the_example_layout_runs(
    make_coco: MakeCoco,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    test_pipeline: Callable[[], beam.Pipeline],
) -> None:
    """Each picture has two objects; the first is a person."""
    (tmp_path / "my_layouts.py").write_text(block_of("docs/layouts.md", "PeopleLayout"))
    monkeypatch.syspath_prepend(tmp_path)
    people = importlib.import_module("my_layouts").PeopleLayout()
    (images, annotations), out = make_coco(3), tmp_path / "out"
    out.mkdir()
    roots, files = {"train": str(images)}, {"train": [str(annotations)]}
    with test_pipeline() as root:
        made = build(root, coco.CocoConfig(roots, files, output=str(out), layout=people))
        assert_that(made | beam.Map(lambda manifest: manifest.layout), equal_to(["people"]))
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
    layouts = (PROJECT / "docs/layouts.md").read_text()
    section = layouts.split(f"\n## {name}\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"`([^`]+)`", section))
    assert {*features, *(feature.key for feature in layout.spec.features)} - listed == set()
