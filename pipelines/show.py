"""Print features and records of a data set or any TFRecord file: `beam-tfrec show --help`.

This module imports neither Beam nor TensorFlow.
"""

import argparse
import itertools
from collections.abc import Iterator, Sequence

from beam_tfrec.pipelines.cli import A_SET, FlagParser, add_reading_flags, main, reading_access, say
from beam_tfrec.schemas.example_rules import InferredSchema, aligned
from beam_tfrec.schemas.faults import counted, printable, require_at_least, run_fault
from beam_tfrec.schemas.manifest import MANIFEST_NAME, PLAN_NAME, Manifest
from beam_tfrec.schemas.parse_example import parse_record
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, join_uri, open_storage
from beam_tfrec.transforms.storage.read_data_set import read_finished
from beam_tfrec.transforms.verify import show_record

_SCHEMA_RECORDS = 100


def parser() -> FlagParser:
    """Return the parser of the command line."""
    found = FlagParser("show")
    found.path("path", f"{A_SET}, or a TFRecord or ArrayRecord file of any origin")
    which = found.group("which records", exclusive=True)
    which.text("--key", "show the record with this key, of a data set (default: none)", "K")
    which.number("--record", "show record N, from 0, of the file or split (default: none)")
    which.number("--limit", "show the first N records", 3)
    group = found.group("what is shown")
    group.text("--split", "split of a data set (default: its first; for --key all)", "S")
    images = "folder to save pictures of the records in, tensors as PNG; existing files are kept"
    group.text("--images", images, "DIR")
    add_reading_flags(found)
    return found


def run(argv: Sequence[str]) -> None:
    """Print what the arguments ask for."""
    flags = parser().parse_args(argv)
    for line in show(flags, reading_access(flags, [flags.path])):
        say(line)


def show(flags: argparse.Namespace, access: Access = DEFAULT_ACCESS) -> Iterator[str]:
    """Yield the lines of the schema, and of the records with their values.

    Args:
        flags: as `parser` returns them.
        access: how to reach the store.

    Raises:
        ValueError: when a number is negative, or the flags do not suit the path.
        RuntimeError: `E-ARG` when there is no such record, a fault of `read_finished`, or `E-IO-…`
            when the store fails.
    """
    require_at_least(0, limit=flags.limit, record=flags.record)
    is_one = flags.key is not None or flags.record is not None
    limit, first, among = 1 if is_one else flags.limit, flags.record or 0, ""
    storage = open_storage(flags.path, access)
    if any(storage.stat(name) is not None for name in (MANIFEST_NAME, PLAN_NAME)):
        manifest, _ = read_finished(storage, "path")
        yield from _manifest_lines(flags.path, manifest)
        splits = _splits_to_search(flags, manifest)
        among = f" among the {' and '.join(f'{manifest.splits[s].records} of {s}' for s in splits)}"
        found = [
            show_record.records_of_set(flags.path, access, manifest, split, first, flags.key)
            for split in splits
        ]
    else:
        if flags.key is not None or flags.split:
            what = f"a data set, got {flags.key or flags.split!r} for a file, which has no index"
            raise ValueError(f"key and split must come with {what}: give --record")
        yield from _schema_lines(flags.path, access)
        found = [show_record.records_of_file(flags.path, access, first)]
    shown = 0
    for record in (record for records in found for record in itertools.islice(records, limit)):
        yield from show_record.record_lines(record)
        if flags.images:
            for name, data in show_record.pictures_of(record):
                yield _saved(flags.images, name, data)
        shown += 1
    if not is_one and not shown and flags.limit:
        yield f"{printable(flags.path)}: no records"
    if is_one and not shown:
        what = f"has no record {flags.record if flags.key is None else flags.key!r}{among}"
        remedy = "give another --record or --key; without them, the first records are shown"
        raise run_fault("E-ARG", flags.path, what, remedy)


def _splits_to_search(flags: argparse.Namespace, manifest: Manifest) -> list[str]:
    """Return the given split; without it, all splits for a key, or the first one."""
    splits = [*dict.fromkeys(shard.split for shard in manifest.shards)]
    if flags.split and flags.split not in splits:
        names = ", ".join(splits)
        raise ValueError(f"split must be one of {names}, got {flags.split!r}: name one of them")
    if flags.split:
        return [flags.split]
    return splits if flags.key is not None else splits[:1]


def _manifest_lines(path: str, manifest: Manifest) -> Iterator[str]:
    splits = manifest.splits.items()
    counts = ", ".join(f"{name} {counted(split.records, 'record')}" for name, split in splits)
    yield f"{printable(path)}: layout {printable(manifest.layout)}; {counts}"
    rows = [(f.key, f.kind.value, f.num_values, f.doc) for f in manifest.features]
    yield from (f"  {printable(line)}" for line in aligned(rows))


def _schema_lines(path: str, access: Access) -> Iterator[str]:
    """Yield the features of a file's first records."""
    schema = InferredSchema()
    for record in itertools.islice(show_record.records_of_file(path, access), _SCHEMA_RECORDS):
        found = None if record.data is None else parse_record(record.data)
        if found is not None:
            schema.add(found, (record.file, record.number, record.offset))
    if schema.records:
        yield f"features of the first {counted(schema.records, 'Example')}:"
        yield from (f"  {line}" for line in schema.lines())


def _saved(folder: str, name: str, data: bytes) -> str:
    storage = open_storage(folder)
    where = printable(join_uri(folder, name))
    if storage.stat("") is None:
        storage.probe()
    is_new = storage.create(name, data)
    return f"  saved {where}" if is_new else f"  {where} is there already: left as it is"


if __name__ == "__main__":
    main("show")
