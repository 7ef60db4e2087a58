"""What docs/folders.md and docs/layouts.md say of folders, against the code."""

import re
import shlex
from pathlib import Path

import pytest

from pipelines import folder
from pipelines.engines import parse_flags

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDERS, LAYOUTS = ((DOCS / name).read_text() for name in ("folders.md", "layouts.md"))
COMMANDS = re.findall(r"^ +python -m pipelines\.folder (.*?)(?: +#.*)?$", FOLDERS, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one(command: str) -> None:
    run, beam_args = folder.COMMAND.configure(shlex.split(command))
    assert (run.config.output, beam_args) == ("out", [])


def test_there_are_commands() -> None:
    assert len(COMMANDS) == 6


def test_every_flag_is_one() -> None:
    known = folder.COMMAND.parser().format_help()
    assert [flag for flag in set(re.findall(r"--[a-z_]+", FOLDERS)) if flag not in known] == []


@pytest.mark.parametrize("name", folder.LAYOUTS)
def test_every_key_is_listed(name: str) -> None:
    section = LAYOUTS.split(f"\n## {name}\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"`([^`]+)`", section))
    assert {feature.key for feature in folder.LAYOUTS[name]().spec.features} - listed == set()


def test_the_short_form_means_what_it_is_short_for() -> None:
    flags = folder.COMMAND.parser()
    short, _ = parse_flags(flags, ["--images=in", "--split_folders=train,val", "--output=out"])
    given, _ = parse_flags(flags, ["--images", "train=in/train", "val=in/val", "--output=out"])
    assert folder.images_of(short) == folder.images_of(given)
