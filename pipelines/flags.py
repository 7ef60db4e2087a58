"""Flags that all sources share, and their values as fields of a `DataSetConfig`."""

import argparse
import datetime
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from beam_tfrec.pipelines import cli
from beam_tfrec.schemas.columns import ColumnType, parse_type
from beam_tfrec.schemas.faults import RejectBudget, require_at_least
from beam_tfrec.schemas.geometry.boxes import Resize, ResizeMode, parse_buckets
from beam_tfrec.schemas.layouts.pictures import SizeMismatch
from beam_tfrec.schemas.manifest import REPORT_NAME
from beam_tfrec.schemas.samples import Order
from beam_tfrec.schemas.shards import ShardNames, full_template
from beam_tfrec.schemas.splits import CLASS, GIVEN, USUAL_SPLITS, Splitting, fold_names
from beam_tfrec.transforms.earlier import DATE, Since, expand_date, parse_date
from beam_tfrec.transforms.gate import DEFAULT_READERS, DEFAULT_REMOTE_READERS, GateLimits
from beam_tfrec.transforms.images.check_images import Check
from beam_tfrec.transforms.images.conversion import DEFAULT_QUALITY, Color, Conversion, Encoding
from beam_tfrec.transforms.shard_table import Sharding
from beam_tfrec.transforms.storage import Access
from beam_tfrec.transforms.storage.array_record import DEFAULT_OPTIONS

_FOLDS = re.compile(r"\s*fold\*([0-9]+)\s*")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?i?B?)")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def data_set_fields(flags: argparse.Namespace, *, images: bool) -> dict[str, Any]:
    """Return the fields of a `DataSetConfig` from the flags of every source.

    Args:
        flags: as parsed.
        images: whether the source has image files.

    Raises:
        ValueError: with the value and the remedy.
    """
    fields: dict[str, Any] = {}
    date = _run_date_of(flags)
    if images:
        fields["conversion"] = cli.config_of(
            Conversion,
            flags,
            resize=flags.resize and Resize.parse(flags.resize),
            buckets=parse_buckets(flags.buckets) if flags.buckets else (),
            turns=flags.orientation == "upright",
        )
    is_array = flags.record_format == "array_record"
    if flags.array_record_options is not None and not is_array:
        what = f"record_format array_record, got {flags.array_record_options!r}: leave it out"
        raise ValueError(f"array_record_options must come with {what}")
    names = flags.shard_names or ("plain" if getattr(flags, "layout", "") == "tfds" else "counted")
    shares, splits = parse_splits(flags.splits) if flags.splits else ({}, ())
    return fields | {
        "output": expand_date(flags.output, date),
        "sharding": _sharding_of(flags),
        "names": ShardNames(full_template(names, array_record=is_array)),
        "array_record_options": (flags.array_record_options or DEFAULT_OPTIONS) * is_array,
        "splitting": cli.config_of(
            Splitting, flags, by=flags.split_by, shares=shares, seed=flags.split_seed, names=splits
        ),
        "budget": budget_of("max_rejected", flags.max_rejected),
        "drop_budget": flags.max_dropped and budget_of("max_dropped", flags.max_dropped),
        "limits": cli.config_of(
            GateLimits, flags, bytes_in_flight=parse_size("bytes_in_flight", flags.bytes_in_flight)
        ),
        "access": cli.config_of(Access, flags),
        "since": Since(tuple(flags.since), date),
        "waits": not flags.no_wait,
    }


def _sharding_of(flags: argparse.Namespace) -> Sharding:
    numbers = parse_per_split("num_shards", flags.num_shards)
    orders = parse_per_split("order", flags.order)
    known = [order.value for order in Order]
    for text in orders.values():
        if text not in known:
            raise ValueError(f"order must be {' or '.join(known)}, got {text!r}")
    return cli.config_of(
        Sharding,
        flags,
        num_shards={split: parse_int("num_shards", text) for split, text in numbers.items()},
        shard_bytes=flags.shard_size and parse_size("shard_size", flags.shard_size),
        order={split: Order(text) for split, text in orders.items()},
    )


def _run_date_of(flags: argparse.Namespace) -> datetime.date:
    """Return the day of a run: from the flags, or today.

    No other line of the project lets a clock decide what a run does.

    Raises:
        ValueError: when the text is not a day, or no path has a place for it.
    """
    if flags.date is None:
        return datetime.datetime.now(datetime.UTC).date()
    date = parse_date(flags.date)
    if not any(DATE in name for name in (flags.output, *flags.since)):
        raise ValueError(f"date needs {DATE} in output or since, got {date}: add {DATE} to output")
    return date


def parse_per_split(name: str, values: Sequence[str], bare: str = "") -> dict[str, str]:
    """Return the value per split of `train=a val=b`, a bare value under `bare`.

    Text before `=` belongs to the value unless it is a split name.

    >>> parse_per_split("images", ["train=gs://b/train", "/data/a=b"], bare="val")
    {'train': 'gs://b/train', 'val': '/data/a=b'}

    Raises:
        ValueError: when a split comes twice.
    """
    per_split = cli.parse_several_per_split(name, values, bare)
    for given in per_split.values():
        if len(given) > 1:
            raise ValueError(f"{name} must come once per split, got {', '.join(given)}: remove one")
    return {split: given[0] for split, given in per_split.items()}


def paths_of(flags: argparse.Namespace, *names: str) -> dict[str, dict[str, str]]:
    """Return the path per split of flags that name sources, by the flags' names."""
    return {name: parse_per_split(name, getattr(flags, name), flags.split) for name in names}


def parse_splits(text: str) -> tuple[dict[str, Fraction], tuple[str, ...]]:
    """Return (shares, names) of a list with commas; one of the two is empty.

    >>> parse_splits("train=0.9,val=0.1")
    ({'train': Fraction(9, 10), 'val': Fraction(1, 10)}, ())
    >>> parse_splits("train, test")
    ({}, ('train', 'test'))
    >>> parse_splits("fold*2")
    ({'fold0': Fraction(1, 1), 'fold1': Fraction(1, 1)}, ())

    Raises:
        ValueError: when it is neither shares nor names.
    """
    text = _FOLDS.sub(lambda k: ",".join(f"{fold}=1" for fold in fold_names(int(k[1]))), text)
    parts = [part.strip().partition("=") for part in text.split(",")]
    names = tuple(split.strip() for split, _, _ in parts)
    if repeated := [split for split in names if names.count(split) > 1]:
        raise ValueError(f"splits must name each split once, got {repeated[0]!r} twice: remove one")
    if not any(equals for _, equals, _ in parts) and all(names):
        return {}, names
    try:
        return {split.strip(): Fraction(share.strip()) for split, _, share in parts}, ()
    except (ValueError, ZeroDivisionError):
        what = "splits must be SPLIT=SHARE for all, or SPLIT for all, with commas between"
        raise ValueError(f"{what}, got {text!r}: give such as train=90,val=10") from None


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


def parse_int(name: str, text: str) -> int:
    """Return a whole number."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, got {text!r}") from None


def budget_of(name: str, text: str) -> RejectBudget:
    """Return a budget from a count or a percentage."""
    try:
        if text.endswith("%"):
            return RejectBudget(percent=float(text[:-1]))
        return RejectBudget(count=int(text))
    except ValueError:
        what = "a count such as 5 or a percentage such as 1%"
        raise ValueError(f"{name} must be {what}, got {text!r}") from None


def _add_split_flags(group: cli.FlagGroup) -> None:
    how = "given: the splits that sources name; hash: draw by sample key; stratified: equal shares"
    group.text("--split_by", f"{how} of each class; or the name of a field", "HOW", default=GIVEN)
    usual = f"or the values of --split_by FIELD (default: {','.join(USUAL_SPLITS)})"
    usual = f"shares of the samples, fold*K for K equal folds, {usual}"
    group.text("--splits", usual, "SPLIT[=SHARE],...")
    table = "a .csv or .parquet file with the columns key and cluster, or key and group"
    together = f"keep samples with the same value of this field, or of {table}, in one split"
    group.text("--group_by", together, "FIELD|FILE", rare=True)
    by = "what gets equal shares with --split_by stratified: class, or a field (default class)"
    group.text("--stratify_by", by, "FIELD", default=CLASS, rare=True)
    group.number("--split_seed", "seed of splits by hash or stratified", 0, rare=True)


def _add_image_flags(group: cli.FlagGroup) -> None:
    group.choice("--check", "check each file's header, or decode its pixels too", Check, "header")
    upright = f"upright: turn images as EXIF says, JPEGs at quality {DEFAULT_QUALITY}"
    group.choice("--orientation", f"keep: as stored; {upright}", ["keep", "upright"], "keep")
    group.text("--resize", "size in px: a square, a box, or the longest side", "N|WxH|max:N")
    sizes = "sizes; an image gets the one nearest in aspect ratio; auto:1024:64 makes them"
    group.text("--buckets", f"{sizes} (docs/images.md)", "WxH,WxH", rare=True)
    small = "with --buckets, leave out images with a shorter side below this, in px"
    group.number("--min_bucket", small, 0, dest="min_bucket_px", rare=True)
    mode = "fit into the box, fill it and crop, or stretch"
    unset = "default fit; stretch for plain pixels, fill for --buckets"
    group.choice("--resize_mode", f"{mode} ({unset})", ResizeMode, rare=True)
    reencode = "encode every image in this format (default: only changed images)"
    group.choice("--reencode", reencode, Encoding, rare=True)
    quality = f"quality of encoded JPEGs, on libjpeg's scale (default {DEFAULT_QUALITY})"
    group.number("--quality", quality, rare=True)
    group.choice("--color", "channels (default keep; rgb for plain pixels)", Color, rare=True)
    similar = "write one image of each cluster in this file, which beam-tfrec similar has written"
    group.text("--drop_similar", similar, "FILE.parquet", rare=True)


def _add_shard_flags(parser: cli.FlagParser) -> None:
    group = parser.group("number of shards: give one of these", exclusive=True)
    size = "size of a shard (default 150MB, and at least 16 shards of 64 records)"
    group.text("--shard_size", size, "SIZE")
    number = "number of shards, for each split or for all (default: from --shard_size)"
    group.several("--num_shards", number, "[SPLIT=]N")
    group.number("--records_per_shard", "records of each shard; a split's last may have fewer")
    group = parser.group("shards", rare=True)
    group.number("--hosts", "N hosts read files[h::N]; num_shards becomes a multiple of N", 1)
    how = "counted (train-00000-of-00016-750.tfrec), plain (without -750), tfds"
    how += " (beam_tfrec-train.tfrecord-00000-of-00016), maxdiffusion (train/00000-of-00016.tfrec),"
    how += " or a template of {split} {index:05} {num_shards:05} {records}. '{split}/...' makes a"
    how += " folder for each split (default counted; plain with --layout tfds)"
    group.text("--shard_names", how, "NAMES")
    file_format = "tfrecord, or array_record for random access by Grain and TFDS"
    group.choice("--record_format", file_format, ["tfrecord", "array_record"], "tfrecord")
    writer = f"options of the ArrayRecord writer (default {DEFAULT_OPTIONS})"
    group.text("--array_record_options", writer, "OPTIONS")
    order = "order of records, shuffled or input, for each split or for all (default shuffled)"
    group.several("--order", order, "[SPLIT=]ORDER")
    group.number("--seed", "seed of the shuffle", 0)


def _add_reject_flags(group: cli.FlagGroup) -> None:
    rejected = "number or percentage of samples that may be rejected; with more, exit code 4"
    group.text("--max_rejected", rejected, "K|P%", default="0")
    exclude = "leave out the samples in this file of an earlier run"
    group.text("--exclude", exclude, "REJECTED.jsonl", rare=True)
    group.switch("--allow_empty", "accept a split without samples", rare=True)


def _add_output_flags(parser: cli.FlagParser) -> None:
    group = parser.group("output")
    group.text("--output", "folder or URI of the data set", "DIR", required=True)
    plan = "only print what the run would make, as text or json"
    group.add("--plan", plan, nargs="?", const="text", choices=["text", "json"])
    overwrite = "delete the data set there first (default: resume the same run, refuse another)"
    group.switch("--overwrite", overwrite)
    group.switch("--quiet", "print no progress and no notes, only faults and the summary")
    trust = "if --output is complete with the same options, do not look at the sources"
    group.switch("--trust_manifest", trust, rare=True)
    group.switch("--no_wait", "exit once the runner has accepted the job", rare=True)
    group = parser.group("report", exclusive=True, rare=True)
    report = f"write {REPORT_NAME} at the end (default: for local runs with a local --output)"
    group.add("--report", report, action="store_true", default=None)
    none = f"write no {REPORT_NAME} (default: see --report)"
    group.add("--no_report", none, action="store_false", dest="report")


def _add_daily_flags(group: cli.FlagGroup, *, since: bool) -> None:
    leave_out = f"leave out the samples of these data sets; {DATE} stands for all earlier days"
    group.several("--since", leave_out if since else argparse.SUPPRESS, "DIR")
    date = f"day that replaces {DATE} in names of data sets (default: today in UTC)"
    group.text("--date", date, "YYYY-MM-DD")


def _add_limit_flags(group: cli.FlagGroup) -> None:
    limits = GateLimits()
    at_once = limits.shards_in_flight
    group.number("--shards_in_flight", "shards to build, or to upload, at once", at_once)
    held = f"{limits.bytes_in_flight // 2**20}MiB"
    group.text("--bytes_in_flight", "bytes of images in memory at once", "SIZE", default=held)
    readers = f"{DEFAULT_READERS}, or {DEFAULT_REMOTE_READERS} if remote; at least --workers"
    group.number("--readers", f"images to read at once (default: {readers})")
    group.number("--workers", "images to check and encode at once (default: all cores)")
    group.text("--spool_dir", "folder for temporary files (default: the system's)", "DIR")
    rate = "read and list requests a second to a bucket (default 0: no limit)"
    group.number("--max_reads_per_second", rate, 0, type=float)


class SourceParser(cli.FlagParser):
    """A parser of a source's command, with the flags that several sources share."""

    def add_sources(
        self, title: str = "sources", file: tuple[str, str] | None = None, **flags: tuple[str, str]
    ) -> cli.FlagGroup:
        """Add the flags that name the sources, then those of the output, as the help prints them.

        Args:
            title: the group's title.
            file: name and help of the flag of one file that names all sources, instead of `flags`.
            **flags: metavar and help of each flag with a path per split, by its name.

        Returns:
            The group of the sources, for more flags.
        """
        group = self.group(title)
        self.set_defaults(sources=[*flags], split=None, max_dropped=None)
        if file:
            group.text(*file, "FILE", required=True)
        for name, (value, help) in flags.items():
            group.several(f"--{name}", help, f"[SPLIT=]{value}", required=True)
        if flags:
            split = "split of paths that have no SPLIT= before them (default train)"
            group.text("--split", split, "SPLIT", rare=True)
        _add_output_flags(self)
        return group

    def add_data_set_flags(self, *, images: bool, since: bool) -> None:
        """Add the flags of every source, image flags if it has image files, and show `--since`."""
        _add_split_flags(self.group("splits (docs/splits.md)"))
        if images:
            _add_image_flags(self.group("images (docs/images.md)"))
        _add_shard_flags(self)
        _add_reject_flags(self.group("rejects"))
        _add_daily_flags(self.group("daily runs (docs/scheduled-runs.md)"), since=since)
        limits = "limits of each worker; a local run shares them among its processes"
        _add_limit_flags(self.group(limits, rare=True))
        key = "Cloud KMS key that encrypts the output (default: the bucket's)"
        cli.add_reading_flags(self).text("--kms_key", key, "NAME")

    def add_drop_flag(self, *, rare: bool = False) -> None:
        """Add the flag for sources with annotations."""
        dropped = "annotations of a split that may be dropped (default 1 in 100, never all)"
        self.group("dropped annotations", rare=rare).text("--max_dropped", dropped, "K|P%")

    def add_class_flags(self, default: str) -> None:
        """Add the flags that number classes; `default` is the help's text for the first number."""
        group = self.group("classes")
        classes = "text file with a class a line, in the order of their numbers; a display name may"
        classes += " follow after a tab, in a .csv after a comma"
        unset = "default: the sources' classes, sorted by name"
        group.text("--label_file", f"{classes} ({unset})", "FILE")
        group.number("--first_label", f"number of the first class ({default})", rare=True)

    def add_size_flag(self, group: cli.FlagGroup) -> None:
        """Add the flag for images of another size than their annotations say."""
        how = "if an image has another size than its annotations say, auto rescales boxes where the"
        how += " aspect is the same, and rejects other images; trust_image and trust_json read"
        how += " boxes as pixels of that size (default auto)"
        group.choice("--on_size_mismatch", how, SizeMismatch, rare=True)


def split_of_bare(flags: argparse.Namespace) -> str:
    """Return the split of paths that name none.

    Raises:
        ValueError: when --split is given, but every path names its split, or --split_by decides.
    """
    paths = [cli.parse_several_per_split(name, getattr(flags, name)) for name in flags.sources]
    is_used = flags.split_by == GIVEN and any("" in per_split for per_split in paths)
    if flags.split and not is_used:
        what = f"split must come with a path without SPLIT=, and no split_by, got {flags.split!r}"
        raise ValueError(f"{what}: leave it out, and give only the paths to read")
    return flags.split or "train"


def first_label_of(flags: argparse.Namespace, default: int = 0) -> int:
    """Return the number of the first class.

    Args:
        flags: as parsed.
        default: the layout's own.

    Raises:
        ValueError: when it is negative.
    """
    require_at_least(0, first_label=flags.first_label)
    return default if flags.first_label is None else int(flags.first_label)


def feature_names(text: str | None) -> tuple[str, ...] | None:
    """Return the names of a list with commas, each once; None without a list."""
    return None if text is None else tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def parse_types(given: Sequence[str]) -> dict[str, ColumnType]:
    """Return the types of columns.

    >>> {name: str(wanted) for name, wanted in parse_types(["age=int64,tags=bytes[]"]).items()}
    {'age': 'int64', 'tags': 'bytes[]'}

    Raises:
        ValueError: when a type is unknown, has no column, or comes twice.
    """
    types: dict[str, ColumnType] = {}
    for part in (part for text in given for part in text.split(",")):
        name, _, text = part.strip().rpartition("=")
        if not name or name in types:
            what = f"types must be COLUMN=TYPE, each column once, got {part!r}"
            raise ValueError(f"{what}: give such as age=int64")
        types[name] = parse_type(name, text, may_nest=True)
    return types
