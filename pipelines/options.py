"""Flags: how the command line becomes values, and what is refused before anything is read."""

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.flags import FlagParser, add_reading_flags, not_empty, parse_several_per_split
from schemas.shards import NAMED_TEMPLATES, ShardNames, is_split_name
from transforms.gate import (
    DEFAULT_BYTES,
    DEFAULT_READERS,
    DEFAULT_REMOTE_READERS,
    DEFAULT_SHARDS,
    GateLimits,
)
from transforms.plan_shards import Order
from transforms.publish_plan import RejectBudget
from transforms.shard_table import Sharding
from transforms.storage import Access

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?i?B?)")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_RESERVED_SPLITS = {"all"}
_MAX_SPLIT_CHARS = 200  # of 255 that a file name may have


def parse_flags(parser: FlagParser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return our flags' values and the arguments that are Beam's.

    Raises:
        ValueError: when a flag is neither ours nor Beam's, which Beam would drop with a warning.
    """
    of_beam = beam_parser()
    known = [*parser._option_string_actions, *of_beam._option_string_actions]
    for argument in argv:  # first, since a misspelt flag also leaves a required one missing
        flag = argument.split("=")[0]
        if flag.startswith("--") and " " not in flag and flag not in known:
            raise _unknown(flag, known)
    flags, others = parser.parse_known_args(list(argv))
    _, unknown = of_beam.parse_known_args(others)
    if unknown:
        raise _unknown(unknown[0], known)
    return flags, others


def _unknown(argument: str, known: Sequence[str]) -> ValueError:
    close = difflib.get_close_matches(argument, known, n=1)
    remedy = f"did you mean {close[0]}?" if close else "see --help"
    return ValueError(f"unknown argument {argument!r}: {remedy}")


def beam_flags() -> set[str]:
    """Return every flag that Beam's own options know."""
    return set(beam_parser()._option_string_actions)


def beam_parser() -> FlagParser:
    """Return a parser of every flag that Beam's own options know."""
    parser = FlagParser("beam", "Beam's own options")
    parser.conflict_handler = "resolve"
    for options in _subclasses(PipelineOptions):
        if options.__module__.startswith("apache_beam."):
            options._add_argparse_args(parser)
    return parser


def _subclasses(of: Any) -> list[Any]:
    return [found for child in of.__subclasses__() for found in (child, *_subclasses(child))]


def add_output_flags(parser: FlagParser) -> None:
    """Add the flags that every pipeline has: shards, rejects, limits, output."""
    group = parser.add_argument_group("shards")
    number = group.add_mutually_exclusive_group()
    number.add_argument(
        "--shard_size",
        metavar="SIZE",
        help="output bytes a shard to aim at, decimal units or KiB/MiB/GiB (default: 150MB, and at"
        " least 16 shards a split where each keeps 64 records; a given size is obeyed)",
    )
    number.add_argument(
        "--num_shards",
        nargs="+",
        metavar="[SPLIT=]N",
        help="exact number of shards, for all splits or each (default: from --shard_size)",
    )
    number.add_argument(
        "--records_per_shard",
        type=int,
        metavar="N",
        help="fill every shard but a split's last with N records (default: equal shares)",
    )
    group.add_argument(
        "--hosts",
        type=int,
        default=1,
        metavar="N",
        help="hosts that will read files[h::N]; shards become a multiple of it (default 1)",
    )
    group.add_argument(
        "--shard_names",
        metavar="NAMES",
        help="counted (train-00000-of-00016-750.tfrec, the default), plain (without the record"
        " count, as TFDS wants it; the default of --layout tfds), or a template of {split}"
        " {index:05} {num_shards:05} {records}; with --num_shards 1 also a name such as"
        " test.tfrecord",
    )
    group.add_argument(
        "--order",
        nargs="+",
        default=["shuffled"],
        metavar="[SPLIT=]ORDER",
        help="shuffled (globally, by --seed; the default) or input, for all splits or each",
    )
    group.add_argument("--seed", type=int, default=0, help="of the shuffle (default 0)")
    _add_reject_flags(parser)
    _add_output_and_limits(parser)


def _add_reject_flags(parser: FlagParser) -> None:
    group = parser.add_argument_group("rejects")
    group.add_argument(
        "--max_rejected",
        default="0",
        metavar="K|P%",
        help="samples that may be rejected: a count, or a percentage of those listed (default 0)."
        " More end the run with exit code 4 after all shards are built; run it again with a"
        " larger number to commit what is there",
    )
    group.add_argument(
        "--exclude",
        type=not_empty,
        metavar="REJECTED.jsonl",
        help="leave out the samples that this file of an earlier run names (default none)",
    )
    group.add_argument(
        "--allow_empty", action="store_true", help="accept a split without images (default: stop)"
    )


def add_drop_flag(parser: FlagParser) -> None:
    """Add the flag of pipelines that have annotations."""
    parser.add_argument_group("dropped annotations").add_argument(
        "--max_dropped",
        metavar="COUNT|SHARE%",
        help="annotations of each split that may be dropped, such as boxes without an area: a"
        " count, or a percentage of those listed (default 1 in 100, rounded up, but never all of"
        " a split). More end the run with exit code 4, as with --max_rejected",
    )


def _add_output_and_limits(parser: FlagParser) -> None:
    group = parser.add_argument_group("output and limits")
    group.add_argument(
        "--output",
        type=not_empty,
        required=True,
        metavar="DIR",
        help="folder or URI that the data set goes to (required)",
    )
    group.add_argument(
        "--plan",
        nargs="?",
        const="text",
        choices=["text", "json"],
        help="say what the run would make and how large, as text or json, and write nothing"
        " (default: run; --plan alone: text)",
    )
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="delete what an earlier run left in --output, its manifest first: from then on there"
        " is no data set until this run ends (default: resume the same run, refuse another)",
    )
    group.add_argument(
        "--trust_manifest",
        action="store_true",
        help="take a complete --output made with the same options for up to date, without listing"
        " the sources (default: list them)",
    )
    group.add_argument(
        "--no_wait",
        action="store_true",
        help="end once a runner elsewhere has taken the job (default: wait for its end, say what"
        " was made, and exit with the code of its fault)",
    )
    group.add_argument(
        "--shards_in_flight",
        type=int,
        default=DEFAULT_SHARDS,
        metavar="N",
        help="shards built at once by a worker process, or by all processes of a run on this"
        " machine, and at most as many more uploaded to gs://"
        f" (default {DEFAULT_SHARDS}; 1: one process)",
    )
    group.add_argument(
        "--bytes_in_flight",
        default=f"{DEFAULT_BYTES // 2**20}MiB",
        metavar="SIZE",
        help="image bytes held at once by a worker process, or by all processes of a run on this"
        " machine; an image larger than a process's part goes alone there"
        f" (default {DEFAULT_BYTES // 2**20}MiB)",
    )
    group.add_argument(
        "--readers",
        type=int,
        metavar="N",
        help="images read at once by a worker process, or by all processes of a run on this"
        f" machine (default {DEFAULT_READERS}, or {DEFAULT_REMOTE_READERS} for images elsewhere,"
        " and at least as many as --workers; 1: one process)",
    )
    group.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="images checked and encoded at once by a worker process, or by all processes of a run"
        " on this machine, on a core each (default: all cores it may use; 1: one process)",
    )
    group.add_argument(
        "--spool_dir",
        default="",
        metavar="DIR",
        help="where a worker keeps shards on their way to a store that is not local, as large as"
        " --shards_in_flight of them, twice that for gs://, and unpacked members of .npz files; and"
        " a run in this process its samples while they are sorted (default: the system's temporary"
        " folder)",
    )
    group.add_argument(
        "--max_reads_per_second",
        type=float,
        default=0,
        metavar="N",
        help="requests that read or list a bucket, of a worker process at most (default 0: as"
        " many as it answers, fewer while it throttles); for --images that are not local",
    )
    _add_access_flags(parser)


def _add_access_flags(parser: FlagParser) -> None:
    group = add_reading_flags(parser)
    group.add_argument(
        "--kms_key",
        default="",
        metavar="NAME",
        help="Cloud KMS key that encrypts what is written (default: the bucket's)",
    )


def sharding_of(flags: argparse.Namespace) -> Sharding:
    """Return the sharding that the flags ask for."""
    size = flags.shard_size
    return Sharding(
        num_shards={
            split: _int("num_shards", value)
            for split, value in parse_per_split("num_shards", flags.num_shards or []).items()
        },
        records_per_shard=flags.records_per_shard,
        shard_bytes=None if size is None else parse_size("shard_size", size),
        hosts=flags.hosts,
        order={
            split: _choice("order", value, Order)
            for split, value in parse_per_split("order", flags.order).items()
        },
        seed=flags.seed,
    )


def shard_names_of(flags: argparse.Namespace, *, plain: bool = False) -> ShardNames:
    """Return the file names that the flags ask for, or else counted or plain ones."""
    if flags.shard_names is None:
        return ShardNames(NAMED_TEMPLATES["plain" if plain else "counted"])
    return ShardNames(NAMED_TEMPLATES.get(flags.shard_names, flags.shard_names))


def access_of(flags: argparse.Namespace) -> Access:
    """Return how the flags ask for stores to be reached."""
    return Access(
        flags.anonymous,
        flags.billing_project,
        flags.kms_key,
        flags.spool_dir,
        flags.max_reads_per_second,
    )


def limits_of(flags: argparse.Namespace) -> GateLimits:
    """Return the limits that the flags ask for, of a worker process or a run on this machine."""
    return GateLimits(
        shards_in_flight=flags.shards_in_flight,
        bytes_in_flight=parse_size("bytes_in_flight", flags.bytes_in_flight),
        readers=flags.readers,
        workers=flags.workers,
    )


def budget_of(flags: argparse.Namespace) -> RejectBudget:
    """Return the reject budget that the flags ask for."""
    return _budget("max_rejected", flags.max_rejected)


def drop_budget_of(flags: argparse.Namespace) -> RejectBudget | None:
    """Return how many annotations the flags allow to be dropped; None for the default."""
    return None if flags.max_dropped is None else _budget("max_dropped", flags.max_dropped)


def _budget(name: str, text: str) -> RejectBudget:
    try:
        if text.endswith("%"):
            return RejectBudget(percent=float(text[:-1]))
        return RejectBudget(count=int(text))
    except ValueError:
        raise ValueError(
            f"{name} must be a count such as 5 or a percentage such as 1%, got {text!r}"
        ) from None


def parse_size(name: str, text: str) -> int:
    """Return a size in bytes; units are decimal unless they have an `i`.

    >>> parse_size("shard_size", "150MB"), parse_size("bytes_in_flight", "256MiB")
    (150000000, 268435456)
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match[2].removesuffix("B") if match else ""
    if match is None or unit not in _UNITS:
        raise ValueError(f"{name} must be a size such as 150MB or 256MiB, got {text!r}")
    return int(Decimal(match[1]) * _UNITS[unit])


def parse_per_split(name: str, values: Sequence[str], bare: str = "") -> dict[str, str]:
    """Return the value per split of `train=a val=b`, a bare value under `bare`.

    What stands before `=` is a split only if it can name one; else it belongs to the value.

    >>> parse_per_split("images", ["train=gs://b/train", "/data/a=b"], bare="val")
    {'train': 'gs://b/train', 'val': '/data/a=b'}

    Raises:
        ValueError: when a split comes twice.
    """
    per_split: dict[str, str] = {}
    for split, given in parse_several_per_split(name, values, bare).items():
        if len(given) > 1:
            raise ValueError(
                f"{name} of {split or 'all splits'} must come once,"
                f" got {given[0]!r} and {given[1]!r}: remove one"
            )
        per_split[split] = given[0]
    return per_split


def parse_numbers(name: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers of a list with commas.

    >>> parse_numbers("licenses", "4,5")
    (4, 5)

    Raises:
        ValueError: when one is none.
    """
    return tuple(_int(name, part.strip()) for part in text.split(","))


def check_split_names(splits: Mapping[str, Any]) -> None:
    """Refuse names that cannot be splits; `all` is TFDS's word for every split."""
    for split in splits:
        if len(split) > _MAX_SPLIT_CHARS:
            raise ValueError(
                f"a split must have at most {_MAX_SPLIT_CHARS} characters, got {len(split)}:"
                " give a shorter one"
            )
        if not is_split_name(split) or split in _RESERVED_SPLITS:
            raise ValueError(
                f"a split must be lower-case letters, digits and _, a letter first, and not 'all';"
                f" got {split!r}: rename it"
            )


def _int(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, got {text!r}") from None


def _choice(name: str, text: str, choices: Any) -> Any:
    try:
        return choices(text)
    except ValueError:
        values = " or ".join(choice.value for choice in choices)
        raise ValueError(f"{name} must be {values}, got {text!r}") from None
