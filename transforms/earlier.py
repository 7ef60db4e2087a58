"""Add to earlier data sets (`--since`): find them by name or day, and keep their labels.

A data set that grows daily consists of several outputs. Their manifests have a few kilobytes each,
and are read before the graph is built.
"""

import contextlib
import datetime
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from beam_tfrec.schemas.faults import counted, run_fault
from beam_tfrec.schemas.labels import unite_labels
from beam_tfrec.schemas.manifest import MANIFEST_NAME, PLAN_NAME, Label, Manifest
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, name_below, open_storage
from beam_tfrec.transforms.storage.read_data_set import list_shards, read_finished

DATE = "{date}"
"""Placeholder of the day in names; other braces have no meaning."""

FLAG = "--since"
_RESTORE = f"restore it, run its command again, or give another {FLAG}"
_OF_SPLITS = ("split_by", "splits", "group_by", "stratify_by", "split_seed", "buckets")
_OF_KEYS = ("key_column", "key_feature", "keys")
_READERS = 16


@dataclass(frozen=True)
class Since:
    """Earlier data sets as the user gives them.

    Attributes:
        names: URIs of data sets. A URI with `{date}` means all data sets of earlier days.
        date: the run's day.
    """

    names: Sequence[str] = ()
    date: datetime.date = datetime.date.max

    def __post_init__(self) -> None:
        """Refuse `{date}` in a bucket's name, since buckets are not listed."""
        for name in self.names:
            if DATE in name and _split_pattern(name)[0].endswith(":/"):
                raise ValueError(f"since needs {DATE} after the bucket, got {name!r}: give names")


class EarlierSet(msgspec.Struct, frozen=True, order=True):
    """A committed data set.

    Attributes:
        digest: digest of its manifest, hex. The manifest holds the checksum of every shard but no
            path, so a copy of the data set has the same digest.
        uri: URI of the data set.
    """

    digest: str
    uri: str


@dataclass(frozen=True)
class EarlierSets:
    """The data sets that a run adds to.

    Attributes:
        sets: data sets without repetition, sorted by digest.
        labels: labels of all data sets, sorted by id.
        since: names that the user gave; None if there was no search.
    """

    sets: tuple[EarlierSet, ...] = ()
    labels: tuple[Label, ...] = ()
    since: Since | None = None

    def options(self) -> dict[str, str]:
        """Return the plan's option `since`, which decides membership; empty without data sets."""
        if not self.sets:
            return {}
        digests = ",".join(earlier.digest for earlier in self.sets)
        digest = hashlib.blake2b(digests.encode(), digest_size=16).hexdigest()
        return {"since": f"{counted(len(self.sets), 'data set')} {digest}"}


NO_EARLIER_SETS = EarlierSets()


def parse_date(text: str) -> datetime.date:
    """Parse a day as `YYYY-MM-DD`, the only form that names have.

    >>> parse_date("2026-11-20")
    datetime.date(2026, 11, 20)

    Raises:
        ValueError: when the text is not such a day.
    """
    with contextlib.suppress(ValueError):
        date = datetime.date.fromisoformat(text)
        if date.isoformat() == text:
            return date
    raise ValueError(f"date must be a day as YYYY-MM-DD, got {text!r}: give one such as 2026-11-20")


def expand_date(name: str, date: datetime.date) -> str:
    """Replace `{date}` in a name by the day.

    >>> expand_date("gs://b/coco-{date}", parse_date("2026-11-20"))
    'gs://b/coco-2026-11-20'
    """
    return name.replace(DATE, date.isoformat())


def date_in(name: str, pattern: str) -> datetime.date | None:
    """Return the day in a name that matches the pattern, None for any other name.

    >>> date_in("coco-2026-11-20", "coco-{date}"), date_in("coco-old", "coco-{date}")
    (datetime.date(2026, 11, 20), None)
    """
    start = pattern.index(DATE)
    with contextlib.suppress(ValueError):
        date = parse_date(name[start : start + len("YYYY-MM-DD")])
        if expand_date(pattern, date) == name:
            return date
    return None


def list_days(pattern: str, access: Access = DEFAULT_ACCESS) -> list[datetime.date]:
    """Return the days for which a folder matches the pattern, in ascending order.

    Raises:
        RuntimeError: `E-ARG` where folders cannot be listed.
    """
    root, folder = _split_pattern(pattern)
    storage = open_storage(root, access)
    if not storage.lists_folders:
        what = f"{DATE} needs a list of folders, which this storage does not give"
        raise run_fault("E-ARG", pattern, what, f"give {FLAG} the data sets by their names")
    entries = storage.list(recursive=False)
    days = (date_in(entry.name, folder) for entry in entries if entry.kind == "directory")
    return sorted(filter(None, days))


def find_earlier_sets(
    since: Since,
    output: str,
    layout: str,
    *,
    access: Access = DEFAULT_ACCESS,
    overwrite: bool = False,
    splitting: Mapping[str, str] | None = None,
) -> EarlierSets:
    """Find the data sets that a run adds to, and read their manifests.

    Args:
        since: names of the data sets.
        output: URI of the run's own data set, which is never one of them.
        layout: the run's layout; earlier data sets must have the same.
        access: credentials and limits for stores.
        overwrite: whether the run replaces its output.
        splitting: the run's `dividing_options`; earlier data sets must have the same. With others,
            a sample could be written again in another split. None to skip this check.

    Raises:
        RuntimeError: one of these faults:
            `E-ARG` for a data set that is unfinished, or has another layout or other splits;
            `E-OUT-FOREIGN` for a manifest that cannot be read;
            `E-VER-…` for a manifest with contradictions, and a missing or different shard;
            `E-OUT-DATES` for an unfinished earlier day or a finished later day;
            `E-ANN-LABELS` for data sets with contradicting labels.
    """
    uris: list[str] = []
    for name in since.names:
        if DATE in name:
            uris += _finished_before(name, since.date, output, access, overwrite=overwrite)
        elif name_below(output, name) == "":
            what = f"is given as --output and as {FLAG}"
            raise run_fault("E-ARG", name, what, f"remove it from {FLAG}")
        else:
            uris.append(name)
    with ThreadPoolExecutor(_READERS, "read-manifests") as pool:
        sets = list(pool.map(lambda uri: _read_set(uri, access), uris))
    by_digest: dict[str, EarlierSet] = {}
    labels: list[Label] = []
    for earlier, manifest in sets:
        _check_alike(earlier.uri, manifest, layout, splitting)
        by_digest.setdefault(earlier.digest, earlier)
        labels = unite_labels([*labels, *manifest.plan.labels], earlier.uri)
    return EarlierSets(tuple(sorted(by_digest.values())), tuple(labels), since)


def dividing_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that decide a sample's split and key.

    >>> dividing_options({"seed": "0", "split_by": "part", "key_column": "id"})
    {'split_by': 'part', 'key_column': 'id'}
    """
    return {name: options[name] for name in _OF_SPLITS + _OF_KEYS if options.get(name)}


def refuse_changed_earlier(earlier: EarlierSets, output: str, layout: str, access: Access) -> None:
    """Check that the earlier data sets are still the same after the output is claimed.

    If the runs of two days overlap, at least one of them fails here.

    Raises:
        RuntimeError: `E-OUT-DATES` when the data sets have changed since the run began.
    """
    since = earlier.since
    if since is None or not any(DATE in name for name in since.names):
        return
    now = find_earlier_sets(since, output, layout, access=access)
    if now.sets != earlier.sets:
        what = f"{counted(len(now.sets), 'data set')} of earlier days now"
        what += f", {len(earlier.sets)} when this run began"
        raise run_fault("E-OUT-DATES", output, what, "run again with --overwrite")


def _split_pattern(pattern: str) -> tuple[str, str]:
    """Split a pattern into the parent folder, and the pattern of the daily folders in it.

    >>> _split_pattern("gs://b/coco/day-{date}/tfrec"), _split_pattern("out-{date}")
    (('gs://b/coco', 'day-{date}'), ('.', 'out-{date}'))
    """
    before = pattern[: pattern.index(DATE)]
    parent, slash, _ = before.rpartition("/")
    folder = pattern[len(parent) + len(slash) :].partition("/")[0]
    return parent or slash or ".", folder


def _finished_before(
    pattern: str, date: datetime.date, output: str, access: Access, *, overwrite: bool
) -> list[str]:
    """Return the finished data sets of days before the run's.

    Days must be processed in order, or two data sets could hold the same sample. An unfinished
    data set may still get any sample, and a later one did not skip this run's samples.
    """
    every = [(day, expand_date(pattern, day)) for day in list_days(pattern, access)]
    days = [(day, uri) for day, uri in every if name_below(output, uri) != ""]
    with ThreadPoolExecutor(_READERS, "look-for-manifests") as pool:
        last_files = list(pool.map(lambda day_uri: _last_file(day_uri[1], access), days))
    finished: list[str] = []
    later: list[tuple[datetime.date, str]] = []
    for (day, uri), last_file in zip(days, last_files, strict=True):
        if day > date and last_file:
            later.append((day, uri))
        elif day < date and last_file == PLAN_NAME:
            remedy = f"finish it with --date {day}, or delete it"
            raise run_fault("E-OUT-DATES", uri, "is unfinished", remedy)
        elif day < date and last_file == MANIFEST_NAME:
            finished.append(uri)
    is_daily = name_below(output, expand_date(pattern, date)) == ""
    if later and is_daily and (overwrite or _last_file(output, access) != MANIFEST_NAME):
        what = f"is of a later day, and was made without {output}"
        remedy = f"give a --date after {later[-1][0]}, or delete the later data sets"
        raise run_fault("E-OUT-DATES", later[0][1], what, remedy)
    return finished


def _last_file(uri: str, access: Access) -> str:
    """Return the manifest's name, or the plan's for an unfinished data set, or an empty text."""
    storage = open_storage(uri, access)
    names = (MANIFEST_NAME, PLAN_NAME)
    return next((name for name in names if storage.stat(name) is not None), "")


def _read_set(uri: str, access: Access) -> tuple[EarlierSet, Manifest]:
    """Check a data set; return it with its manifest, without the list of shards to save memory."""
    storage = open_storage(uri, access)
    manifest, digest = read_finished(storage, FLAG)
    list_shards(storage, manifest, _RESTORE)  # else the samples of a missing one would be lost
    return EarlierSet(digest, uri), msgspec.structs.replace(manifest, shards=[])


def _check_alike(
    uri: str, manifest: Manifest, layout: str, splitting: Mapping[str, str] | None
) -> None:
    if manifest.layout != layout:
        what = f"its layout is {manifest.layout}, this run's is {layout}"
        raise run_fault("E-ARG", uri, what, f"give {FLAG} data sets of one layout")
    theirs = dividing_options(manifest.plan.options)
    if splitting is not None and theirs != splitting:
        what = f"its samples have other splits or keys: {_as_text(theirs)}; this run's are"
        remedy = f"give {FLAG} data sets of the same --split_by, --splits, seed and keys"
        raise run_fault("E-ARG", uri, f"{what} {_as_text(splitting)}", remedy)


def _as_text(splitting: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in splitting.items() if value) or "as given"
