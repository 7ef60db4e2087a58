"""Flags of every source, and their values as fields of a `DataSetConfig`."""

import argparse
import datetime
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
from schemas.geometry.resizing import Resize, ResizeMode
from schemas.manifest import REPORT_NAME
from schemas.run_date import DATE, expand_date, parse_date
from schemas.shards import NAMED_TEMPLATES, ShardNames
from transforms.gate import (
    DEFAULT_BYTES,
    DEFAULT_READERS,
    DEFAULT_REMOTE_READERS,
    DEFAULT_SHARDS,
    GateLimits,
)
from transforms.images.check_images import Check
from transforms.images.convert_images import DEFAULT_QUALITY, Color, Conversion, Encoding
from transforms.images.turn_images import JPEG_QUALITY, Orientation
from transforms.plan_shards import Order
from transforms.publish_plan import RejectBudget
from transforms.shard_table import Sharding
from transforms.splits import GIVEN, USUAL_SPLITS, Splitting
from transforms.storage import Access

_Choice = TypeVar("_Choice", Check, Color, Encoding, Order, Orientation, ResizeMode)


def add_data_set_flags(parser: FlagParser, *, images: bool = True) -> None:
    """Add the flags that every pipeline has, behind those of its sources and its layout.

    Args:
        parser: of the pipeline's command.
        images: whether it has image files, which flags are about.
    """
    _add_split_flags(parser)
    if images:
        _add_image_flags(parser)
    _add_daily_flags(parser)
    _add_shard_flags(parser)
    _add_report_flags(parser)


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
    """Add the flags that divide samples into splits."""
    group = parser.add_argument_group("splits")
    group.add_argument(
        "--split_by",
        type=not_empty,
        default=GIVEN,
        metavar="HOW",
        help="given: as the sources are named; hash: by a keyed hash of each sample's key, so that"
        " adding data never moves one; or the name of a field that says it (default given)",
    )
    group.add_argument(
        "--splits",
        type=not_empty,
        metavar="SPLIT[=SHARE],...",
        help="by hash the splits' shares, any positive numbers, such as train=90,val=5,test=5; by a"
        f" field the splits that it may say (default: for a field {', '.join(USUAL_SPLITS)})",
    )
    group.add_argument(
        "--group_by",
        type=not_empty,
        metavar="FIELD",
        help="draw one split for all samples of which this field is the same, such as a scene or a"
        " patient (default: for each sample)",
    )
    group.add_argument(
        "--split_seed", type=int, default=0, metavar="N", help="of the splits by hash (default 0)"
    )


def _add_image_flags(parser: FlagParser) -> None:
    """Add the flags about images."""
    group = parser.add_argument_group("images")
    group.add_argument(
        "--check",
        choices=[check.value for check in Check],
        default=Check.HEADER.value,
        help="header: walk through each file's structure; decode: decode its pixels too"
        " (default header)",
    )
    group.add_argument(
        "--orientation",
        choices=[orientation.value for orientation in Orientation],
        default=Orientation.KEEP.value,
        help="pictures that EXIF asks to be turned: keep them as stored, with boxes to match, or"
        " turn pixels, boxes, polygons, masks and keypoints upright; PNG without loss, JPEG encoded"
        f" again at quality {JPEG_QUALITY} with its chroma subsampling (default keep)",
    )
    _add_conversion_flags(parser)


def _add_conversion_flags(parser: FlagParser) -> None:
    group = parser.add_argument_group("conversion of images (docs/images.md)")
    group.add_argument(
        "--resize",
        metavar="N|WxH|max:N",
        help="width and height in px of the box that images are resized to, N for a square; or the"
        " most that the longer side may have, nothing enlarged; annotations follow"
        " (default: sizes stay)",
    )
    group.add_argument(
        "--resize_mode",
        choices=[mode.value for mode in ResizeMode],
        help="fit: the largest size inside the box with the image's aspect; fill: the box, what is"
        " beyond it cut off on both sides; stretch: the box, whatever the aspect (default fit;"
        " stretch where plain pixels are written)",
    )
    group.add_argument(
        "--reencode",
        choices=[encoding.value for encoding in Encoding],
        help="encode every image as this that is not; WebP, TIFF and AVIF are taken too (default:"
        " changed images in their own format, GIF and BMP as PNG, all others byte for byte)",
    )
    group.add_argument(
        "--quality",
        type=int,
        metavar="1..100",
        help="by libjpeg's scale, of JPEGs that are made; with --reencode jpeg every image is"
        f" (default {DEFAULT_QUALITY})",
    )
    group.add_argument(
        "--color",
        choices=[color.value for color in Color],
        help="rgb: three channels; gray: one; keep: those of the file, inks as RGB once they are"
        " decoded; what rgb, gray and JPEG leave out of alpha is laid on white (default keep; rgb"
        " where plain pixels are written)",
    )


def _add_daily_flags(parser: FlagParser) -> None:
    """Add the flags that every pipeline has for its daily runs."""
    group = parser.add_argument_group("daily runs")
    group.add_argument(
        "--date",
        metavar="YYYY-MM-DD",
        help=f"day that stands for {DATE} in --output and --since, such as that of a run to resume"
        " (default: today in UTC, when the command starts)",
    )
    group.add_argument(
        "--since",
        nargs="+",
        action="extend",
        default=[],
        type=not_empty,
        metavar="DIR",
        help="earlier data sets: what they hold is left out, their label ids stay; with"
        f" {DATE}, all finished ones of that name and an earlier day (default none)",
    )


def _add_shard_flags(parser: FlagParser) -> None:
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


def _add_report_flags(parser: FlagParser) -> None:
    group = parser.add_argument_group("report")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--report",
        action="store_true",
        help=f"make {REPORT_NAME} behind the manifest, and where it is missing beside a complete"
        " --output (default: where the run is in this process and --output is local)",
    )
    which.add_argument(
        "--no_report",
        action="store_true",
        help=f"make no {REPORT_NAME}: beam-tfrec report makes it later (default: see --report)",
    )


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
