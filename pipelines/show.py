"""Print features and records of a data set or any TFRecord file: `beam-tfrec show --help`.

This module imports neither Beam nor TensorFlow.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from beam_tfrec.pipelines.cli import (
    FlagParser,
    add_reading_flags,
    main,
    not_empty,
    reading_access,
    say,
)
from beam_tfrec.schemas.example_rules import InferredSchema, aligned
from beam_tfrec.schemas.faults import counted, fault_line, printable
from beam_tfrec.schemas.manifest import MANIFEST_NAME, PLAN_NAME, Manifest, read_manifest
from beam_tfrec.schemas.parse_example import parse_record
from beam_tfrec.transforms.storage import Access, check_uri, join_uri, open_storage
from beam_tfrec.transforms.verify.show_record import (
    pictures_of,
    record_lines,
    records_of_file,
    records_of_set,
)

_SCHEMA_RECORDS = 100


@dataclass(frozen=True)
class ShowConfig:
    """What to print.

    Attributes:
        path: a data set or a TFRecord file.
        key: key of one record; None for any.
        record: number of one record, from 0, in its file or split; None for any.
        limit: number of records to print if neither is given.
        split: split of a data set; empty for its first one, or for all if a key is given.
        images: folder to save pictures in; empty for none.
        access: how to reach the store.
    """

    path: str
    key: str | None = None
    record: int | None = None
    limit: int = 3
    split: str = ""
    images: str = ""
    access: Access = field(default_factory=Access)

    def __post_init__(self) -> None:
        """Refuse negative numbers."""
        for name, number in (("limit", self.limit), ("record", self.record or 0)):
            if number < 0:
                raise ValueError(f"{name} must be at least 0, got {number}: give a larger number")
        check_uri(self.path)


def parser() -> FlagParser:
    """Return the parser of the command line."""
    found = FlagParser("show", "Print the features and records of a data set or TFRecord file.")
    found.add_argument(
        "path",
        type=not_empty,
        metavar="PATH",
        help="a data set (a folder or URI with a manifest.json), or a TFRecord file of any origin",
    )
    which = found.group("which records", exclusive=True)
    which.text("--key", "show the record with this key, of a data set (default: none)", "K")
    which.number("--record", "show record N, from 0, of the file or split (default: none)")
    which.number("--limit", "show the first N records", ShowConfig.limit)
    group = found.group("what is shown")
    group.text("--split", "split of a data set (default: its first; for --key all)", "S")
    group.text(
        "--images",
        "folder to save pictures of the records in, tensors as PNG; existing files are kept",
        "DIR",
    )
    add_reading_flags(found)
    return found


def run(argv: Sequence[str]) -> None:
    """Print what the arguments ask for."""
    flags = parser().parse_args(argv)
    config = ShowConfig(
        path=flags.path,
        key=flags.key,
        record=flags.record,
        limit=flags.limit,
        split=flags.split or "",
        images=flags.images or "",
        access=reading_access(flags, [flags.path]),
    )
    for line in show(config):
        say(line)


def show(config: ShowConfig) -> Iterator[str]:
    """Yield the lines of the schema, and of the records with their values.

    Raises:
        ValueError: when the configuration does not suit the path.
        RuntimeError: `E-ARG` when there is no such record, `E-IO-…` when the store fails.
    """
    is_one = config.key is not None or config.record is not None
    limit, first, among = 1 if is_one else config.limit, config.record or 0, ""
    storage = open_storage(config.path, config.access)
    if storage.stat(MANIFEST_NAME) is not None:
        where = join_uri(config.path, MANIFEST_NAME)
        manifest = read_manifest(storage.read(MANIFEST_NAME), where, "path")
        yield from _manifest_lines(config.path, manifest)
        splits = _splits_to_search(config, manifest)
        among = f" among the {' and '.join(f'{manifest.splits[s].records} of {s}' for s in splits)}"
        found = [
            records_of_set(config.path, config.access, manifest, split, first, config.key)
            for split in splits
        ]
    else:
        if storage.stat(PLAN_NAME) is not None:
            what, remedy = "is not complete", "run its command again"
            raise RuntimeError(fault_line("E-ARG", config.path, what, remedy))
        if config.key is not None or config.split:
            raise ValueError(
                f"key and split must come with a data set, got {config.key or config.split!r} for a"
                " file, which has no index: give --record"
            )
        yield from _schema_lines(config)
        found = [records_of_file(config.path, config.access, first)]
    shown = 0
    for record in (record for records in found for record in itertools.islice(records, limit)):
        yield from record_lines(record)
        if config.images:
            for name, data in pictures_of(record):
                yield _saved(config.images, name, data)
        shown += 1
    if not is_one and not shown and config.limit:
        yield f"{printable(config.path)}: no records"
    if is_one and not shown:
        what = f"has no record {config.record if config.key is None else config.key!r}{among}"
        remedy = (
            "give another --record or --key; without them, the first records and keys are shown"
        )
        raise RuntimeError(fault_line("E-ARG", config.path, what, remedy))


def _splits_to_search(config: ShowConfig, manifest: Manifest) -> list[str]:
    """Return the given split; without it, all splits for a key, or the first one."""
    splits = [*dict.fromkeys(shard.split for shard in manifest.shards)]
    if config.split and config.split not in splits:
        names = ", ".join(splits)
        raise ValueError(f"split must be one of {names}, got {config.split!r}: name one of them")
    if config.split:
        return [config.split]
    return splits if config.key is not None else splits[:1]


def _manifest_lines(path: str, manifest: Manifest) -> Iterator[str]:
    splits = manifest.splits.items()
    counts = ", ".join(f"{name} {counted(split.records, 'record')}" for name, split in splits)
    yield f"{printable(path)}: layout {printable(manifest.layout)}; {counts}"
    rows = [(f.key, f.kind.value, f.num_values, f.doc) for f in manifest.features]
    yield from (f"  {printable(line)}" for line in aligned(rows))


def _schema_lines(config: ShowConfig) -> Iterator[str]:
    """Yield the features of a file's first records."""
    schema = InferredSchema()
    records = records_of_file(config.path, config.access)
    for record in itertools.islice(records, _SCHEMA_RECORDS):
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
