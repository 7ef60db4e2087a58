"""What Dataflow's Flex Template starts: its parameters, a string each, as flags of `coco`.

`python -m beam_tfrec.pipelines.flex_template --describe > metadata.json` describes the parameters.
"""

import argparse
import json
import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from beam_tfrec.pipelines import coco
from beam_tfrec.pipelines.cli import FlagParser, guarded
from beam_tfrec.pipelines.engines import beam_flags

_LOG = logging.getLogger(
    "beam_tfrec.pipelines.flex_template"
)  # started as a file, it has another name
_SEVERAL = "; several are divided by blanks, and quoted as in a shell where they hold one"
_DOCS = "docs/dataflow.md of the project"
_IMAGE = {
    "name": "sdk_container_image",
    "label": "Sdk container image",
    "helpText": "image that workers run in: the one that this template was built with (required)",
    "isOptional": False,
    "paramType": "TEXT",
}


def describe(parser: FlagParser) -> dict[str, Any]:
    """Return a template's metadata: every flag of the parser as a parameter.

    No defaults are given, which the console would send: `--shard_size 150MB` does not go with
    `--num_shards`. The help names them.
    """
    return {
        "name": parser.prog,
        "description": f"{parser.description} See {_DOCS}.",
        "parameters": [_IMAGE, *map(_parameter, _flags(parser))],
    }


def flags_of(arguments: Sequence[str], parser: FlagParser) -> list[str]:
    """Return the command line that a template's arguments mean.

    >>> parser = coco.COMMAND.parser()
    >>> flags_of(["--images=train=gs://b/t 'val=gs://b/my v'", "--overwrite=true"], parser)
    ['--images', 'train=gs://b/t', 'val=gs://b/my v', '--overwrite']

    Args:
        arguments: `--name=value` for each parameter, and what Dataflow's launcher adds.
        parser: of the pipeline.
    """
    flags = {flag.option_strings[0]: flag for flag in _flags(parser)}
    known_flags = beam_flags() | set(flags)
    words: list[str] = []
    known = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if argument.startswith("--"):  # else it is the value of the flag before it
            known = name in known_flags
            if not known:  # parameters are checked by Dataflow: its launcher is newer than our Beam
                _LOG.warning("%s is not known to this version of Beam: left out", name)
        if known:
            words += _words(name, value, flags[name]) if equals and name in flags else [argument]
    return words


def run(arguments: Sequence[str]) -> None:
    """Launch as the template's parameters say, or describe them."""
    parser = coco.COMMAND.parser()
    if list(arguments) == ["--describe"]:
        print(json.dumps(describe(parser), indent=2))
    else:
        coco.run(flags_of(arguments, parser))


def _flags(parser: FlagParser) -> Iterator[argparse.Action]:
    unused = {"no_wait", "plan"}  # a launcher never waits, and makes a job
    return (action for action in parser.flags if action.dest not in unused)


def _words(name: str, value: str, flag: argparse.Action) -> list[str]:
    if not value and name == "--since":  # else everything would be written again
        raise ValueError("since must not be empty, got '': leave the parameter out")
    if not value:  # an optional parameter that was left empty
        return []
    if flag.nargs == "+":
        return [name, *shlex.split(value)]
    if flag.nargs != 0:
        return [f"{name}={value}"]
    if value not in ("true", "false"):
        raise ValueError(f"{name} must be true or false, got {value!r}: give one of them")
    return [name] if value == "true" else []


def _parameter(flag: argparse.Action) -> dict[str, Any]:
    name = flag.option_strings[0].removeprefix("--")
    parameter: dict[str, Any] = {
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "helpText": f"{flag.help}{_SEVERAL if flag.nargs == '+' else ''}",
        "isOptional": not flag.required,
    }
    if flag.choices:
        choices = [{"value": choice, "label": choice} for choice in flag.choices]
        return parameter | {"paramType": "ENUM", "enumOptions": choices}
    kind = "NUMBER" if flag.type in (int, float) else "TEXT"
    kind = "BOOLEAN" if flag.nargs == 0 else kind
    return parameter | {"paramType": kind}


if __name__ == "__main__":
    sys.exit(guarded(run, sys.argv[1:]))
