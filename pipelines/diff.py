"""Compare two data sets by the indexes of their shards: `beam-tfrec diff --help`.

A record is matched with the one of the same key in the same split, else in another split. The
SHA-256 of the sources says whether the images are the same. Size and CRC-32C say whether the
records are. An index before format version 4 has no CRC-32C. Then the checksums at the ends of the
records' frames are read from the shard.

This module imports neither Beam nor TensorFlow.
"""

import functools
import gc
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from beam_tfrec.pipelines.cli import A_SET, FlagParser, add_reading_flags, main, reading_access, say
from beam_tfrec.schemas.example_rules import aligned
from beam_tfrec.schemas.faults import EXIT_DIFFERENT, run_fault
from beam_tfrec.schemas.manifest import Manifest
from beam_tfrec.schemas.tfrecord import CRC_BYTES, FRAME_BYTES, is_array_record, unmasked_crc
from beam_tfrec.transforms.shard_index import IndexRow
from beam_tfrec.transforms.storage import Access, Storage, is_local, open_storage, open_stored
from beam_tfrec.transforms.storage.read_data_set import Shard, list_shards, read_finished, read_rows

COUNTS = ("a", "b", "equal", "removed", "added", "moved_out", "moved_in", "image", "annotations")
"""Counts of a split: its records in both data sets, and what became of them.

`b == equal + added + image + annotations`. A moved record also counts in one of these, by its new
split.
"""

_READERS = 16
_READ_AT_ONCE_BYTES = 8 << 20  # of a shard in a store, with the checksums of many records
_VERIFY = "run beam-tfrec verify for details"

Records = Mapping[tuple[str, str], IndexRow]
"""Records of a data set by split and key."""


class DataSet(NamedTuple):
    """A data set to compare."""

    manifest: Manifest
    records: Records


class Change(NamedTuple):
    """A difference of one record.

    Attributes:
        what: `removed`, `added`, `moved`, `image` (another one) or `annotations` (other ones).
        old_split: its split in the first data set; empty if it is added.
        new_split: its split in the second data set; empty if it is removed.
        key: its key.
        old_labels: its class labels in the first data set; empty if it moved.
        new_labels: its class labels in the second data set; empty if it moved.
    """

    what: str
    old_split: str
    new_split: str
    key: str
    old_labels: Sequence[int] = ()
    new_labels: Sequence[int] = ()

    @property
    def line(self) -> str:
        """The difference as one line, the key last."""
        if self.what == "moved":
            return f"moved {self.old_split} {self.new_split} {self.key}"
        changed = "changed " if self.old_split and self.new_split else ""
        return f"{changed}{self.what} {self.new_split or self.old_split} {self.key}"


class Difference(msgspec.Struct, kw_only=True):
    """The result of a comparison.

    Attributes:
        equal: whether nothing differs.
        splits: `COUNTS` of each split.
        total: their sums.
        classes: removed, added and changed records that hold a class, by label and name.
        contrasts: lines on a different layout, features and labels.
        notes: lines that are not differences, such as other options.
        keys: a line for each difference of a record.
    """

    equal: bool
    splits: dict[str, dict[str, int]]
    total: dict[str, int]
    classes: list[dict[str, Any]]
    contrasts: list[str]
    notes: list[str]
    keys: list[str]


def parser() -> FlagParser:
    """Return the parser of the command line."""
    by = "By keys, by the SHA-256 of sources and by checksums of records, from their indexes."
    found = FlagParser("diff", f"{by} Exit code 0: equal; 1: different.")
    for name in ("a", "b"):
        found.path(name, A_SET, name.upper())
    group = found.group("output")
    keys = "print a line for each record that differs, such as `changed image train 139`, sorted"
    group.switch("--keys", keys)
    group.choice("--format", "print text, or one JSON object", ("text", "json"), "text")
    add_reading_flags(found)
    return found


def run(argv: Sequence[str]) -> None:
    """Compare two data sets, print the differences, and exit with 1 if there are any.

    Raises:
        RuntimeError: as `open_data_set` says.
    """
    flags = parser().parse_args(argv)
    gc.set_threshold(100_000, 20, 20)  # rows have no cycles, and looking for them takes long
    access = reading_access(flags, [flags.a, flags.b])
    found = compare(open_data_set(flags.a, access), open_data_set(flags.b, access))
    if not flags.keys:
        found.keys.clear()
    as_json = json.dumps(msgspec.to_builtins(found), indent=2).splitlines()
    for line in as_json if flags.format == "json" else text_lines(found):
        say(line)
    if not found.equal:
        sys.exit(EXIT_DIFFERENT)


def text_lines(found: Difference) -> Iterator[str]:
    """Yield the lines of a comparison for people; the last one is the result."""
    yield from found.keys
    yield from found.contrasts
    rows = [("split", *(what.replace("_", " ") for what in COUNTS))]
    splits = [*found.splits.items(), ("all", found.total)]
    rows += [(name, *map(str, counts.values())) for name, counts in splits]
    yield from aligned(rows)
    words = ("removed", "added", "changed")
    rows = [(f"{c['id']} {c['name']}", *(str(c[word]) for word in words)) for c in found.classes]
    yield from aligned([("class", *words), *rows] if rows else ())
    yield from (f"note: {note}" for note in found.notes)
    yield "equal" if found.equal else "different"


def open_data_set(root: str, access: Access) -> DataSet:
    """Read the manifest and the indexes of a data set.

    Raises:
        RuntimeError: `E-ARG` for an unfinished data set, or none; `E-OUT-FOREIGN` for a manifest
            that cannot be read; `E-VER-…` for damage; or a storage fault.
    """
    storage = open_storage(root, access)
    manifest, _ = read_finished(storage, "path")
    shards = list_shards(storage, manifest, _VERIFY)
    with ThreadPoolExecutor(_READERS, "read-indexes") as pool:
        indexes = list(pool.map(functools.partial(_read_rows, storage), shards))
    records = {
        (shard.entry.split, row.key): row
        for shard, rows in zip(shards, indexes, strict=True)
        for row in rows
    }
    if len(records) < sum(shard.entry.records for shard in shards):
        raise run_fault("E-VER-ORDER", root, "keys occur twice", _VERIFY)
    return DataSet(manifest, records)


def _read_rows(storage: Storage, shard: Shard) -> list[IndexRow]:
    """Return the rows of a shard's index, with checksums from the shard if they have none."""
    rows = read_rows(storage, shard.entry, _VERIFY)
    if is_array_record(shard.entry.file):  # sizes as in TFRecord files, to compare both formats
        return [replace(row, size=row.size + FRAME_BYTES) for row in rows]
    if all(row.crc32c is not None for row in rows):
        return rows
    crcs = _stored_crcs(storage, shard, [row.size for row in rows])
    return [replace(row, crc32c=crc32c) for row, crc32c in zip(rows, crcs, strict=True)]


def _stored_crcs(storage: Storage, shard: Shard, sizes: Sequence[int]) -> Iterator[int]:
    """Yield the checksum at the end of each record's frame."""
    at_once_bytes = CRC_BYTES if is_local(storage.root) else _READ_AT_ONCE_BYTES
    stream = open_stored(storage, shard.file, at_once_bytes)
    for end in itertools.accumulate(sizes):
        stream.seek(end - CRC_BYTES)
        yield unmasked_crc(stream.read(CRC_BYTES))


def find_changes(a: Records, b: Records) -> Iterator[Change]:
    """Yield each difference of a record; one that moved and changed has two."""
    elsewhere: dict[str, list[str]] = {}  # splits of records that only B has, by key
    for split, key in sorted(b.keys() - a.keys()):
        elsewhere.setdefault(key, []).append(split)
    for (split, key), old in a.items():
        new_split, new = split, b.get((split, key))
        if new is None and elsewhere.get(key):
            new_split = elsewhere[key].pop(0)
            new = b[new_split, key]
            yield Change("moved", split, new_split, key)
        if new is None:
            yield Change("removed", split, "", key, old.labels)
        elif [source.sha256 for source in old.sources] != [each.sha256 for each in new.sources]:
            yield Change("image", split, new_split, key, old.labels, new.labels)
        elif (old.size, old.crc32c) != (new.size, new.crc32c):
            yield Change("annotations", split, new_split, key, old.labels, new.labels)
    for key, splits in elsewhere.items():
        yield from (Change("added", "", split, key, (), b[split, key].labels) for split in splits)


def compare(a: DataSet, b: DataSet) -> Difference:
    """Return the differences from data set `a` to `b`."""
    both, changes = (a.manifest, b.manifest), [*find_changes(a.records, b.records)]
    splits = {name: dict.fromkeys(COUNTS, 0) for name in sorted({*both[0].splits, *both[1].splits})}
    for side, manifest in zip("ab", both, strict=True):
        for name, summary in manifest.splits.items():
            splits[name][side] = summary.records
    classes: dict[tuple[int, str], dict[str, int]] = {}
    class_names = [{i.id: i.text or i.name for i in each.plan.labels} for each in both]
    for what, old_split, new_split, _, *labels in changes:
        if what == "moved":
            splits[old_split]["moved_out"] += 1
            splits[new_split]["moved_in"] += 1
        else:
            splits[new_split or old_split][what] += 1
        word = what if what in ("removed", "added") else "changed"
        pairs = zip(class_names, labels, strict=True)
        for one in {(i, names.get(i, "")) for names, held in pairs for i in held}:
            blank = dict.fromkeys(("removed", "added", "changed"), 0)
            classes.setdefault(one, blank)[word] += 1
    for found in splits.values():
        found["equal"] = found["b"] - found["added"] - found["image"] - found["annotations"]
    contrasts = [
        *_contrasts("layout", *({"": each.layout} for each in both)),
        *_contrasts("feature ", *map(_features, both)),
        *_contrasts("label ", *map(_labels, both)),
    ]
    older = [side for side, each in zip("AB", both, strict=True) if each.format_version < 4]
    notes = [*_contrasts("option ", *(each.plan.options for each in both))]
    notes += [f"the indexes of {side} have no checksums: its shards were read" for side in older]
    return Difference(
        equal=not changes and not contrasts,
        splits=splits,
        total={what: sum(found[what] for found in splits.values()) for what in COUNTS},
        classes=[{"id": one[0], "name": one[1], **classes[one]} for one in sorted(classes)],
        contrasts=contrasts,
        notes=notes,
        keys=sorted(change.line for change in changes),
    )


def _features(manifest: Manifest) -> dict[str, str]:
    return {f.key: f"{f.kind.value}, {f.num_values}" for f in manifest.features}


def _labels(manifest: Manifest) -> dict[str, str]:
    labels = manifest.plan.labels
    return {str(i.id): " ".join(filter(None, [i.name, i.text, *i.keypoints])) for i in labels}


def _contrasts(what: str, a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[str]:
    for name in {**a, **b}:
        one, other = a.get(name), b.get(name)
        if (one or "") != (other or ""):
            yield f"{what}{name}: {one or 'none'} in A, {other or 'none'} in B"


if __name__ == "__main__":
    main("diff")
