"""Flags of every source, and their values as fields of a `DataSetConfig`."""

import argparse
import datetime
import enum
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeVar

from pipelines.flags import (
    FlagParser,
    add_reading_flags,
    not_empty,
    parse_int,
    parse_per_split,
    parse_size,
)
from schemas.faults import RejectBudget
from schemas.geometry.boxes import Resize, ResizeMode
from schemas.manifest import REPORT_NAME
from schemas.shards import NAMED_TEMPLATES, ShardNames
from schemas.splits import GIVEN, USUAL_SPLITS, Splitting
from transforms.earlier import DATE, expand_date, parse_date
from transforms.gate import (
    DEFAULT_BYTES,
    DEFAULT_SHARDS,
    GateLimits,
)
from transforms.images.check_images import Check
from transforms.images.convert_images import (
    DEFAULT_QUALITY,
    Color,
    Conversion,
    Encoding,
    Orientation,
)
from transforms.plan_shards import Order
from transforms.shard_table import Sharding
from transforms.storage import DEFAULT_READERS, DEFAULT_REMOTE_READERS, Access

_Choice = TypeVar("_Choice", Check, Color, Encoding, Order, Orientation, ResizeMode)


def add_data_set_flags(parser: FlagParser, *, images: bool = True) -> None:
    """Add the flags that every source has, with those about images where it has image files."""
    _add_split_flags(parser)
    if images:
        _add_image_flags(parser)
    _add_daily_flags(parser)
    _add_shard_flags(parser)
    _add_reject_flags(parser)
    _add_output_flags(parser)
    _add_limit_flags(parser)


def data_set_fields(
    flags: argparse.Namespace, date: datetime.date, *, images: bool
) -> dict[str, Any]:
    """Return the fields of a `DataSetConfig` that the flags of every source give.

    Args:
        flags: as parsed.
        date: of the run.
        images: whether the source has image files.

    Raises:
        ValueError: with the value and the remedy.
    """
    return {
        "output": expand_date(flags.output, date),
        "sharding": _sharding_of(flags),
        "names": _shard_names_of(flags),
        "splitting": _splitting_of(flags),
        **(_image_fields(flags) if images else {}),
        "label_file": getattr(flags, "label_file", None) or "",
        "budget": budget_of("max_rejected", flags.max_rejected),
        "drop_budget": _drop_budget_of(flags),
        "exclude": flags.exclude or "",
        "allow_empty": flags.allow_empty,
        "limits": _limits_of(flags),
        "access": _access_of(flags),
    }


def run_date_of(flags: argparse.Namespace) -> datetime.date:
    """Return the day of a run: the one that the flags give, or today.

    Here and nowhere else a clock decides what a run does, once, before anything is read.

    Raises:
        ValueError: when the day is none, or nothing is called by it.
    """
    if flags.date is None:
        return datetime.datetime.now(datetime.UTC).date()
    date = parse_date(flags.date)
    if not _is_dated(flags):
        raise ValueError(
            f"date {date} must have {DATE} to stand for in output or since: add it, or leave"
            " --date out"
        )
    return date


def with_run_date(argv: Sequence[str], flags: argparse.Namespace, date: datetime.date) -> list[str]:
    """Return the arguments that ask for the same run on any day."""
    if flags.date is not None or not _is_dated(flags):
        return list(argv)
    return [*argv, "--date", date.isoformat()]


def parse_splits(text: str) -> tuple[dict[str, Fraction], tuple[str, ...]]:
    """Return (shares, names): the one or the other of a list with commas.

    >>> parse_splits("train=0.9,val=0.1")
    ({'train': Fraction(9, 10), 'val': Fraction(1, 10)}, ())
    >>> parse_splits("train, test")
    ({}, ('train', 'test'))

    Raises:
        ValueError: when it is neither.
    """
    parts = [part.strip().partition("=") for part in text.split(",")]
    names = tuple(split.strip() for split, _, _ in parts)
    if repeated := [split for split in names if names.count(split) > 1]:
        raise ValueError(f"splits must name each split once, got {repeated[0]!r} twice: remove one")
    if not any(equals for _, equals, _ in parts) and all(names):
        return {}, names
    try:
        return {split.strip(): Fraction(share.strip()) for split, _, share in parts}, ()
    except (ValueError, ZeroDivisionError):
        raise ValueError(
            f"splits must be SPLIT=SHARE for all, or SPLIT for all, with commas between, got"
            f" {text!r}: give such as train=90,val=10"
        ) from None


def budget_of(name: str, text: str) -> RejectBudget:
    """Return a budget from a count or a percentage."""
    try:
        if text.endswith("%"):
            return RejectBudget(percent=float(text[:-1]))
        return RejectBudget(count=int(text))
    except ValueError:
        raise ValueError(
            f"{name} must be a count such as 5 or a percentage such as 1%, got {text!r}"
        ) from None


def _add_split_flags(parser: FlagParser) -> None:
    add = parser.add_argument_group("splits (docs/splits.md)").add_argument
    add(
        "--split_by",
        type=not_empty,
        default=GIVEN,
        metavar="HOW",
        help="given: as the sources are named; hash: by a hash of each sample's key; or the name of"
        " a field that says the split (default given)",
    )
    add(
        "--splits",
        type=not_empty,
        metavar="SPLIT[=SHARE],...",
        help="by hash the splits' shares, such as train=90,val=5,test=5; by a field its values"
        f" (default: for a field {', '.join(USUAL_SPLITS)})",
    )
    add(
        "--group_by",
        type=not_empty,
        metavar="FIELD",
        help="samples with the same value of this field share a split (default: none)",
    )
    add("--split_seed", type=int, default=0, metavar="N", help="of splits by hash (default 0)")


def _add_image_flags(parser: FlagParser) -> None:
    add = parser.add_argument_group("images (docs/images.md)").add_argument
    add(
        "--check",
        choices=_values(Check),
        default=Check.HEADER.value,
        help="header: walk through each file's structure; decode: decode its pixels too"
        " (default header)",
    )
    add(
        "--orientation",
        choices=_values(Orientation),
        default=Orientation.KEEP.value,
        help="upright: turn pixels and annotations as EXIF asks; PNG without loss, JPEG at quality"
        f" {DEFAULT_QUALITY}; keep: leave images as stored (default keep)",
    )
    add(
        "--resize",
        metavar="N|WxH|max:N",
        help="box in px that images are resized to, N for a square; or the longest side that they"
        " may have; annotations follow (default: sizes stay)",
    )
    add(
        "--resize_mode",
        choices=_values(ResizeMode),
        help="fit: the largest size inside the box; fill: the whole box, the rest cut off; stretch:"
        " the box, whatever the aspect (default fit; stretch for plain pixels)",
    )
    add(
        "--reencode",
        choices=_values(Encoding),
        help="encode every image as this (default: changed images in their own format, GIF and BMP"
        " as PNG, all others stay byte for byte)",
    )
    add(
        "--quality",
        type=int,
        metavar="1..100",
        help=f"of JPEGs that are encoded, by libjpeg's scale (default {DEFAULT_QUALITY})",
    )
    add(
        "--color",
        choices=_values(Color),
        help="rgb: three channels; gray: one; keep: those of the file (default keep; rgb for plain"
        " pixels); alpha that is dropped is laid on white",
    )


def _add_daily_flags(parser: FlagParser) -> None:
    add = parser.add_argument_group("daily runs (docs/scheduled-runs.md)").add_argument
    add(
        "--date",
        metavar="YYYY-MM-DD",
        help=f"replaces {DATE} in --output and --since (default: today in UTC)",
    )
    add(
        "--since",
        nargs="+",
        action="extend",
        default=[],
        type=not_empty,
        metavar="DIR",
        help="earlier data sets, whose samples are left out and whose label ids stay; with"
        f" {DATE}, all finished ones of an earlier day (default none)",
    )


def _add_shard_flags(parser: FlagParser) -> None:
    group = parser.add_argument_group("shards")
    add_number = group.add_mutually_exclusive_group().add_argument
    add_number(
        "--shard_size",
        metavar="SIZE",
        help="output bytes a shard, in decimal units or KiB/MiB/GiB (default: 150MB, and at least"
        " 16 shards a split where each keeps 64 records)",
    )
    add_number(
        "--num_shards",
        nargs="+",
        metavar="[SPLIT=]N",
        help="number of shards, for all splits or each (default: from --shard_size)",
    )
    add_number(
        "--records_per_shard",
        type=int,
        metavar="N",
        help="records of every shard but a split's last (default: equal shares)",
    )
    add = group.add_argument
    add(
        "--hosts",
        type=int,
        default=1,
        metavar="N",
        help="hosts that read files[h::N]; shards become a multiple of it (default 1)",
    )
    add(
        "--shard_names",
        metavar="NAMES",
        help="counted (train-00000-of-00016-750.tfrec), plain (without the record count, as TFDS"
        " wants it), or a template of {split} {index:05} {num_shards:05} {records}; a plain file"
        " name with --num_shards 1 (default counted; plain with --layout tfds)",
    )
    add(
        "--order",
        nargs="+",
        default=["shuffled"],
        metavar="[SPLIT=]ORDER",
        help="shuffled (globally, by --seed) or input, for all splits or each (default shuffled)",
    )
    add("--seed", type=int, default=0, help="of the shuffle (default 0)")


def _add_reject_flags(parser: FlagParser) -> None:
    add = parser.add_argument_group("rejects").add_argument
    add(
        "--max_rejected",
        default="0",
        metavar="K|P%",
        help="samples that may be rejected, a count or a percentage of those listed; more end the"
        " run with exit code 4 after all shards are built (default 0)",
    )
    add(
        "--exclude",
        type=not_empty,
        metavar="REJECTED.jsonl",
        help="leave out the samples that an earlier run's file names (default none)",
    )
    add("--allow_empty", action="store_true", help="accept an empty split (default: stop)")


def add_drop_flag(parser: FlagParser) -> None:
    """Add the flag of sources that have annotations."""
    parser.add_argument_group("dropped annotations").add_argument(
        "--max_dropped",
        metavar="COUNT|SHARE%",
        help="annotations of each split that may be dropped, a count or a percentage of those"
        " listed; more end the run with exit code 4 (default 1 in 100, never all of a split)",
    )


def _add_output_flags(parser: FlagParser) -> None:
    add = parser.add_argument_group("output").add_argument
    add(
        "--output",
        type=not_empty,
        required=True,
        metavar="DIR",
        help="folder or URI of the data set (required)",
    )
    add(
        "--plan",
        nargs="?",
        const="text",
        choices=["text", "json"],
        help="only say what the run would make, as text or json (default: run)",
    )
    add(
        "--overwrite",
        action="store_true",
        help="first delete what an earlier run left in --output, its manifest before the rest"
        " (default: resume the same run, refuse another)",
    )
    add(
        "--trust_manifest",
        action="store_true",
        help="take a complete --output of the same options for up to date (default: list the"
        " sources)",
    )
    add(
        "--no_wait",
        action="store_true",
        help="end once a runner elsewhere has taken the job (default: wait for its end)",
    )
    which = parser.add_argument_group("report").add_mutually_exclusive_group()
    which.add_argument(
        "--report",
        action="store_true",
        help=f"make {REPORT_NAME} after the manifest, or for a complete --output that lacks it"
        " (default: for local runs with a local --output)",
    )
    which.add_argument(
        "--no_report", action="store_true", help=f"make no {REPORT_NAME} (default: see --report)"
    )


def _add_limit_flags(parser: FlagParser) -> None:
    group = parser.add_argument_group("limits, of each worker or of all processes of a local run")
    add = group.add_argument
    add(
        "--shards_in_flight",
        type=int,
        default=DEFAULT_SHARDS,
        metavar="N",
        help="shards built at once, and at most as many uploaded to gs://"
        f" (default {DEFAULT_SHARDS}; 1: one process)",
    )
    add(
        "--bytes_in_flight",
        default=f"{DEFAULT_BYTES // 2**20}MiB",
        metavar="SIZE",
        help=f"image bytes held at once (default {DEFAULT_BYTES // 2**20}MiB)",
    )
    add(
        "--readers",
        type=int,
        metavar="N",
        help=f"images read at once (default {DEFAULT_READERS}, or {DEFAULT_REMOTE_READERS} for"
        " images elsewhere, and at least --workers; 1: one process)",
    )
    add(
        "--workers",
        type=int,
        metavar="N",
        help="images checked and encoded at once, each on a core (default: all cores; 1: one"
        " process)",
    )
    add(
        "--spool_dir",
        default="",
        metavar="DIR",
        help="folder for shards on their way to a store, unpacked .npz members, and the samples of"
        " a local run (default: the system's temporary folder)",
    )
    add(
        "--max_reads_per_second",
        type=float,
        default=0,
        metavar="N",
        help="requests that read or list a bucket (default 0: as many as it answers)",
    )
    add_reading_flags(parser).add_argument(
        "--kms_key",
        default="",
        metavar="NAME",
        help="Cloud KMS key that encrypts what is written (default: the bucket's)",
    )


def _values(choices: type[enum.Enum]) -> list[str]:
    return [choice.value for choice in choices]


def _sharding_of(flags: argparse.Namespace) -> Sharding:
    """Return the sharding that the flags ask for."""
    size = flags.shard_size
    return Sharding(
        num_shards={
            split: parse_int("num_shards", value)
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


def _shard_names_of(flags: argparse.Namespace) -> ShardNames:
    """Return the file names that the flags ask for; by default those that suit the layout."""
    if flags.shard_names is None:
        is_plain = getattr(flags, "layout", "") == "tfds"
        return ShardNames(NAMED_TEMPLATES["plain" if is_plain else "counted"])
    return ShardNames(NAMED_TEMPLATES.get(flags.shard_names, flags.shard_names))


def _access_of(flags: argparse.Namespace) -> Access:
    """Return how the flags ask for stores to be reached."""
    return Access(
        flags.anonymous,
        flags.billing_project,
        flags.kms_key,
        flags.spool_dir,
        flags.max_reads_per_second,
    )


def _limits_of(flags: argparse.Namespace) -> GateLimits:
    """Return the limits that the flags ask for, of a worker process or a run on this machine."""
    return GateLimits(
        shards_in_flight=flags.shards_in_flight,
        bytes_in_flight=parse_size("bytes_in_flight", flags.bytes_in_flight),
        readers=flags.readers,
        workers=flags.workers,
    )


def _splitting_of(flags: argparse.Namespace) -> Splitting:
    """Return the splitting that the flags ask for.

    Raises:
        ValueError: when a share is no number, a split comes twice, or flags exclude each other.
    """
    shares, names = parse_splits(flags.splits) if flags.splits else ({}, ())
    return Splitting(
        by=flags.split_by,
        shares=shares,
        group_by=flags.group_by or "",
        seed=flags.split_seed,
        names=names,
    )


def _image_fields(flags: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags say of a `DataSetConfig`."""
    return {
        "check": Check(flags.check),
        "orientation": Orientation(flags.orientation),
        "conversion": Conversion(
            resize=None if flags.resize is None else Resize.parse(flags.resize),
            resize_mode=_given(ResizeMode, flags.resize_mode),
            reencode=_given(Encoding, flags.reencode),
            quality=flags.quality,
            color=_given(Color, flags.color),
        ),
    }


def _drop_budget_of(flags: argparse.Namespace) -> RejectBudget | None:
    """Return the budget of dropped annotations; None for the default."""
    given = getattr(flags, "max_dropped", None)
    return None if given is None else budget_of("max_dropped", given)


def _choice(name: str, text: str, choices: Any) -> Any:
    try:
        return choices(text)
    except ValueError:
        values = " or ".join(choice.value for choice in choices)
        raise ValueError(f"{name} must be {values}, got {text!r}") from None


def _given(choices: type[_Choice], text: str | None) -> _Choice | None:
    return None if text is None else choices(text)


def _is_dated(flags: argparse.Namespace) -> bool:
    return any(DATE in name for name in (flags.output, *flags.since))
