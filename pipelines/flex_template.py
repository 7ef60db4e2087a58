"""The program that Dataflow's Flex Template starts: turns its parameters into a command's flags.

The parameter `pipeline` names the command; every other parameter is one of its flags, as a string.
`python -m beam_tfrec.pipelines.flex_template --describe > metadata.json` describes them all.
"""

import argparse
import importlib
import json
import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from beam_tfrec.pipelines.cli import PIPELINES, guarded
from beam_tfrec.pipelines.engines import beam_parser, flags_of
from beam_tfrec.pipelines.run import Command

# The launcher starts this module as a file, whose `__name__` is `__main__`.
_LOG = logging.getLogger("beam_tfrec.pipelines.flex_template")
_SEVERAL = "; separate several values by spaces, and quote a value with spaces as in a shell"
_DOCS = "docs/dataflow.md of the project"
_DEFAULT_PIPELINE = "coco"
_PIPELINE = {
    "name": "pipeline",
    "label": "Pipeline",
    "helpText": f"the command, by the kind of source (default {_DEFAULT_PIPELINE})",
    "isOptional": True,
    "paramType": "ENUM",
    "enumOptions": [{"value": pipeline, "label": pipeline} for pipeline in PIPELINES],
    "defaultValue": _DEFAULT_PIPELINE,
}
_IMAGE = {
    "name": "sdk_container_image",
    "label": "Sdk container image",
    "helpText": "image that workers run in: the one that this template was built with (required)",
    "isOptional": False,
    "paramType": "TEXT",
}


def describe() -> dict[str, Any]:
    """Return a template's metadata: every flag of every pipeline as a parameter.

    A flag that some pipelines lack names the others in its help, and the console shows it for
    those alone. `pipeline` has a default value, since the console shows nothing of a pipeline
    before one is chosen. Other defaults stand in the help: the console would send them, and
    `--shard_size 150MB` does not go with `--num_shards`.
    """
    flags: dict[str, dict[str, argparse.Action]] = {}
    for pipeline in PIPELINES:
        for option, flag in _flags(pipeline).items():
            flags.setdefault(option, {})[pipeline] = flag
    return {
        "name": "beam-tfrec",
        "description": f"Images, annotations and tables to sharded .tfrec files. See {_DOCS}.",
        "parameters": [_PIPELINE, _IMAGE, *(_parameter(*flag) for flag in flags.items())],
    }


def command_of(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the pipeline and the command line that a template's arguments mean.

    >>> command_of(["--pipeline=folder", "--images=train=gs://b/t 'val=gs://b/my v'"])
    ('folder', ['--images', 'train=gs://b/t', 'val=gs://b/my v'])

    Args:
        arguments: `--name=value` for each parameter, and what Dataflow's launcher adds.

    Raises:
        ValueError: for an unknown pipeline, a wrong value, or another pipeline's parameter.
    """
    values = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    pipeline = values.get("--pipeline") or _DEFAULT_PIPELINE
    if pipeline not in PIPELINES:
        raise ValueError(f"no pipeline is called {pipeline!r}: give one of {', '.join(PIPELINES)}")
    flags = _flags(pipeline)
    known_flags = flags_of(beam_parser()) | set(flags)
    words: list[str] = []
    known = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if argument.startswith("--"):  # else it is the value of the flag before it
            known = name in known_flags
            if not known and name != "--pipeline":
                _leave_out(name, value, pipeline)
        if known:
            words += _words(name, value, flags[name]) if equals and name in flags else [argument]
    return pipeline, words


def run(arguments: Sequence[str]) -> None:
    """Launch as the template's parameters say, or describe them."""
    if list(arguments) == ["--describe"]:
        print(json.dumps(describe(), indent=2))
    else:
        pipeline, words = command_of(arguments)
        _command(pipeline)(words)


def _command(pipeline: str) -> Command:
    command: Command = importlib.import_module(f"beam_tfrec.pipelines.{pipeline}").run
    return command


def _flags(pipeline: str) -> dict[str, argparse.Action]:
    """Return a pipeline's flags by their names."""
    unused = {"no_wait", "plan", "quiet"}  # a launcher never waits, and makes a job
    flags = _command(pipeline).parser().flags
    shown = [flag for flag in flags if flag.help != argparse.SUPPRESS and flag.dest not in unused]
    return {flag.option_strings[0]: flag for flag in shown}


def _leave_out(name: str, value: str, pipeline: str) -> None:
    """Leave out an argument that neither the pipeline nor Beam knows; refuse other pipelines'.

    Dataflow refuses parameters that the metadata does not list. So anything else comes from its
    launcher, which may be newer than our Beam.
    """
    others = ", ".join(other for other in PIPELINES if name in _flags(other))
    if not others:
        _LOG.warning("%s is not known to this version of Beam: left out", name)
    elif value:  # the console may send an optional parameter empty
        raise ValueError(f"{pipeline} has no parameter {name[2:]}, which is for {others}: omit it")


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


def _parameter(option: str, flags: Mapping[str, argparse.Action]) -> dict[str, Any]:
    """Describe one flag.

    Args:
        option: the flag's name, with its dashes.
        flags: the flag of each pipeline that has it.
    """
    name, flag = option.removeprefix("--"), next(iter(flags.values()))
    in_all = len(flags) == len(PIPELINES)
    pipelines_of: dict[str, list[str]] = {}
    for pipeline, its_flag in flags.items():
        pipelines_of.setdefault(str(its_flag.help), []).append(pipeline)
    helps = [f"{', '.join(pipelines)}: {help}" for help, pipelines in pipelines_of.items()]
    text = "; ".join(helps) if len(helps) > 1 or not in_all else str(flag.help)
    parameter = {
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "helpText": f"{text}{_SEVERAL if flag.nargs == '+' else ''}",
        "isOptional": not (flag.required and in_all),
    }
    if not in_all:
        parameter |= {"parentName": "pipeline", "parentTriggerValues": [*flags]}
    if flag.choices:
        choices = dict.fromkeys(choice for f in flags.values() for choice in f.choices or ())
        options = [{"value": choice, "label": choice} for choice in choices]
        return parameter | {"paramType": "ENUM", "enumOptions": options}
    kind = "NUMBER" if flag.type in (int, float) else "TEXT"
    return parameter | {"paramType": "BOOLEAN" if flag.nargs == 0 else kind}


if __name__ == "__main__":
    sys.exit(guarded(run, sys.argv[1:]))
