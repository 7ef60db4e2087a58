"""What docs/folders.md and docs/layouts.md say of folders, against the code."""

import re
import shlex
from pathlib import Path

import pytest

from beam_tfrec.pipelines import folder

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDERS, LAYOUTS = ((DOCS / name).read_text() for name in ("folders.md", "layouts.md"))
COMMANDS = re.findall(r"^ +beam-tfrec folder (.*?)(?: +#.*)?$", FOLDERS, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one(command: str) -> None:
    config, beam_args = folder.COMMAND.configure(shlex.split(command))
    assert (config.output, beam_args) == ("out", [])


def test_there_are_commands() -> None:
    assert len(COMMANDS) == 5


def test_every_flag_is_one() -> None:
    known = folder.COMMAND.parser().format_help()
    assert [flag for flag in set(re.findall(r"--[a-z_]+", FOLDERS)) if flag not in known] == []


@pytest.mark.parametrize("name", folder.LAYOUTS)
def test_every_key_is_listed(name: str) -> None:
    section = LAYOUTS.split(f"\n## {name}\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"`([^`]+)`", section))
    assert {feature.key for feature in folder.LAYOUTS[name]().spec.features} - listed == set()
