"""`ShardPlan`, `ShardInfo` and the names of a shard's files.

A shard has these files: the TFRecord or ArrayRecord file, its index (in Parquet, and for TFRecord
as text for DALI), and its receipt. A receipt is a JSON file with counts, checksums and rejects of
the finished shard. It is created before the shard, so that a rerun knows which it can keep.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import google_crc32c
import msgspec

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.samples import Sample, read_sample
from beam_tfrec.schemas.tfrecord import ARRAY_RECORD_SUFFIX, is_array_record

COUNTED = "{split}-{index:05}-of-{num_shards:05}-{records}.tfrec"
PLAIN = "{split}-{index:05}-of-{num_shards:05}.tfrec"
TFDS = "beam_tfrec-{split}.tfrecord-{index:05}-of-{num_shards:05}"
MAXDIFFUSION = "{split}/{index:05}-of-{num_shards:05}.tfrec"
NAMED_TEMPLATES: Mapping[str, str] = {
    "counted": COUNTED,
    "plain": PLAIN,
    "tfds": TFDS,
    "maxdiffusion": MAXDIFFUSION,
}
RECEIPTS_DIR = "_receipts"
INDEX_DIR = "index"
_MAX_NAME_BYTES = 255  # limit of most file systems
_FIELD = re.compile(r"\{(split(?=\})|index|num_shards|records)(?::(0[0-9]{1,2})?d?)?\}")
_NUMBER_AFTER_FIELD = re.compile(r"\}[0-9]*\{(?:index|num_shards|records)")
_SPLIT_NAME = "[a-z][a-z0-9_]*"
_INDEX_NAME = re.compile(rf"{INDEX_DIR}/(.+)\.(?:parquet|idx)")
_FOLDER = re.compile(r"[A-Za-z0-9_-]*\{split\}[A-Za-z0-9_-]*")
_FOLDER_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SHARD_SUFFIXES = (".tfrec", ".tfrecord", ".tfrecords", ".record")
RECORD_SUFFIXES = (*_SHARD_SUFFIXES, ARRAY_RECORD_SUFFIX)
"""Suffixes of record files, as written by several programs."""


def full_template(names: str, *, array_record: bool = False) -> str:
    """Return the template of names such as `counted` and `plain`; others are templates.

    >>> full_template("plain", array_record=True)
    '{split}-{index:05}-of-{num_shards:05}.array_record'
    """
    template = NAMED_TEMPLATES.get(names)
    return names if template is None else in_format(template, array_record=array_record)


def in_format(template: str, *, array_record: bool) -> str:
    """Return one of our templates with the suffix of a format of files.

    >>> in_format("beam_tfrec-{split}.tfrecord-{index:05}", array_record=True)
    'beam_tfrec-{split}.array_record-{index:05}'
    """
    return re.sub(r"\.tfrec(ord)?", ARRAY_RECORD_SUFFIX, template) if array_record else template


class ShardPlan(msgspec.Struct, frozen=True, array_like=True):
    """One shard to be written.

    Attributes:
        split: name of its split.
        index: number of the shard in its split, from 0.
        num_shards: number of shards of the split.
        packed: its samples in their final order, packed by `pack`: in a quarter of the memory.
    """

    split: str
    index: int
    num_shards: int
    packed: list[msgspec.Raw]

    @property
    def samples(self) -> Iterator[Sample]:
        """The samples; each is decoded when it is needed."""
        return map(read_sample, self.packed)

    @property
    def name(self) -> str:
        """The shard's name, such as `train-00003-of-00016`; the name of its file may differ."""
        return shard_stem(self.split, self.index, self.num_shards)


class FileSum(msgspec.Struct, frozen=True):
    """Size and CRC-32C (hex) of a file, to check that it is unchanged."""

    bytes: int
    crc32c: str


class WrittenShard(msgspec.Struct, frozen=True, omit_defaults=True):
    """What receipt and manifest say of a finished shard.

    Attributes:
        file: file name in the output.
        split: name of its split.
        planned: samples planned for it; `planned == records + len(sample rejects)`.
        records: records written.
        bytes: size of the file.
        crc32c: CRC-32C of the file, hex.
        sha256: SHA-256 of the file, hex.
        receipt: size and checksum of the stored receipt; left out of the receipt itself, and
            missing before format version 3.
    """

    file: str
    split: str
    planned: int
    records: int
    bytes: int
    crc32c: str
    sha256: str
    receipt: FileSum | None = None

    @property
    def index_stem(self) -> str:
        """The name of its index without extension."""
        return index_stem(self.file)

    @property
    def index_names(self) -> tuple[str, ...]:
        """The names of its index: Parquet, and for TFRecord files DALI's text form."""
        names = f"{INDEX_DIR}/{self.index_stem}.parquet", f"{INDEX_DIR}/{self.index_stem}.idx"
        return names[:1] if is_array_record(self.file) else names


class ShardInfo(WrittenShard, frozen=True, kw_only=True, omit_defaults=True):
    """A finished shard. The receipt is its JSON form.

    Attributes:
        plan: digest of the run's plan, hex.
        index: number of the shard in its split, from 0.
        num_shards: number of shards of the split.
        annotations_listed: annotations of its planned samples.
        annotations_written: annotations in its records.
        repairs: counts of repairs, by name, such as `box_clipped`.
        traits: counts of unusual images, by trait, such as `cmyk`.
        rejected: its rejected samples and dropped annotations, in order.
        licenses: records by license id of their image; left out of the JSON if empty.
    """

    plan: str
    index: int
    num_shards: int
    annotations_listed: int
    annotations_written: int
    repairs: dict[str, int]
    traits: dict[str, int]
    rejected: list[Rejected]
    licenses: dict[str, int] = {}

    @property
    def name(self) -> str:
        """The shard's name, such as `train-00003-of-00016`; the name of its file may differ."""
        return shard_stem(self.split, self.index, self.num_shards)


def file_sum(data: bytes) -> FileSum:
    """Return size and checksum of a file's bytes.

    >>> file_sum(b"123456789")
    FileSum(bytes=9, crc32c='e3069283')
    """
    return FileSum(len(data), f"{google_crc32c.value(data):08x}")


def shard_stems(splits: Sequence[str]) -> list[str]:
    """Return the stems of a data set's shards; see `shard_stem`.

    Args:
        splits: the split of each shard, in the manifest's order.

    >>> shard_stems(["train", "train", "val"])
    ['train-00000-of-00002', 'train-00001-of-00002', 'val-00000-of-00001']
    """
    totals, seen = Counter(splits), Counter[str]()
    stems = []
    for split in splits:
        stems.append(shard_stem(split, seen[split], totals[split]))
        seen[split] += 1
    return stems


def shard_stem(split: str, index: int, num_shards: int) -> str:
    """Return a shard's name without a record count. Its receipt has this name.

    Before format version 3, its index had it too.

    >>> shard_stem("train", 3, 16)
    'train-00003-of-00016'
    """
    digits = _digits(num_shards)
    return f"{split}-{index:0{digits}}-of-{num_shards:0{digits}}"


def receipt_name(stem: str) -> str:
    """Return the receipt's name in the output."""
    return f"{RECEIPTS_DIR}/{stem}.json"


def folder_of(file: str) -> str:
    """Return the folder of a shard file; empty for the output itself.

    It is empty too for a folder that no template makes, such as one outside the output.

    >>> folder_of("train/00003-of-00016.tfrec"), folder_of("00003.tfrec"), folder_of("../3.tfrec")
    ('train', '', '')
    """
    folder = file.rpartition("/")[0]
    return folder if _FOLDER_NAME.fullmatch(folder) else ""


def index_stem(file: str) -> str:
    """Return the stem of a shard's index: the shard's file name without its extension.

    An ArrayRecord file keeps its own, so that the index's name says what `offset` means.

    >>> index_stem("train-00003-of-00016-750.tfrec"), index_stem("train/00003.gz")
    ('train-00003-of-00016-750', 'train/00003.gz')
    """
    return min((file.removesuffix(suffix) for suffix in _SHARD_SUFFIXES), key=len)


def is_index_name(name: str, names: "ShardNames") -> bool:
    """Return whether a file's name is that of an index, by this grammar or a default one.

    The default grammars find the indexes of older data sets.

    >>> is_index_name("index/train-00003-of-00016-750.parquet", ShardNames())
    True
    >>> is_index_name("index/notes.parquet", ShardNames())
    False
    """
    match = _INDEX_NAME.fullmatch(name)
    files = [match[1] + suffix for suffix in ("", *_SHARD_SUFFIXES)] if match else []
    return any(split_in_name(file, names) is not None for file in files)


def split_in_name(name: str, names: "ShardNames") -> str | None:
    """Return the split in a shard file's name; None for any other file.

    Names of the given scheme and of the standard schemes are recognised.
    """
    grammars = (names, *map(ShardNames, NAMED_TEMPLATES.values()))
    return next((s for grammar in grammars if (s := grammar.matches(name)) is not None), None)


class ShardNames(msgspec.Struct, frozen=True):
    """The grammar of shard file names: a template such as `{split}-{index:05}-{records}.tfrec`.

    A template without `{index}` only works for splits of one shard. A template with a slash puts
    each split's shards into a folder of their own, which holds nothing else.

    Attributes:
        template: text with the fields `split`, `index`, `num_shards` and `records`, each at most
            once. Numbers may have a fixed width; `:05` becomes wider from 100,000 shards on.

    Raises:
        ValueError: when the template is malformed, or its names could clash, hide a file, lead to
            a folder that is not of one split, or not be parsed back.
    """

    template: str = COUNTED

    def __post_init__(self) -> None:
        """Refuse a template whose names could clash or could not be parsed back."""
        parts, fields = _FIELD.split(self.template), self._fields()
        if set("".join(parts[::3])) & {*"{}"} or len({*fields}) < len(fields):
            what = f"must be {', '.join(NAMED_TEMPLATES)} or a template with {{index:05}}"
            at_most = "and at most {split}, {num_shards}, {records}"
            raise self._refused(f"{what} {at_most}", "correct it")
        if "index" not in fields and not self.template.endswith(RECORD_SUFFIXES):
            # It might be the name of another file of the data set.
            raise self._refused(f"without {{index}} must end in {RECORD_SUFFIXES}", "add one")
        folder, slash, _ = self.template.rpartition("/")
        if slash and not _FOLDER.fullmatch(folder):
            what = "must have at most one folder, of letters, digits and {split}"
            raise self._refused(what, "start it with '{split}/'")
        is_hidden = any(part.startswith((".", "_")) for part in self.template.split("/"))
        if is_hidden or not self.template.isprintable():
            what = "must name files that are not hidden, in printable text"
            raise self._refused(what, "remove line breaks, a leading dot or underscore")
        if _NUMBER_AFTER_FIELD.search(self.template):
            raise self._refused("must keep numbers apart from other fields", "put a '-' between")

    def check_format(self, *, array_record: bool) -> None:
        """Refuse a template whose names would be those of the other format."""
        if array_record and not is_array_record(self.template):
            raise self._refused(f"must hold {ARRAY_RECORD_SUFFIX} for this format", "add it")
        if is_array_record(self.template) and not array_record:
            what = f"must not hold {ARRAY_RECORD_SUFFIX} for TFRecord files"
            raise self._refused(what, "give --record_format array_record")

    def check_splits(self, splits: Sequence[str], num_shards: Mapping[str, int]) -> None:
        """Refuse a template that would give two shards one name, or a name that is too long.

        Args:
            splits: splits of the data set.
            num_shards: requested numbers of shards by split; `""` for all other splits.
        """
        asked = {num_shards.get(split, num_shards.get("")) for split in splits}
        if asked - {1} and "index" not in self._fields():
            remedy = "add it, or give --num_shards 1"
            raise self._refused("must hold {index} for several shards", remedy)
        if len(splits) > 1 and "split" not in self._fields():
            raise self._refused(f"must hold {{split}} for splits {sorted(splits)}", "add it")
        if INDEX_DIR in self.folders(splits):
            what = f"must not put shards into {INDEX_DIR}/, the folder of indexes"
            raise self._refused(what, "add text to the folder, as in 'shards-{split}/'")
        longest = max(splits, key=len, default="")
        if len(self.file_name(longest, 0, 1, 10**9).encode()) > _MAX_NAME_BYTES:
            what = f"must make names of at most {_MAX_NAME_BYTES} bytes for split {longest}"
            raise self._refused(what, "give a shorter template or split")

    def file_name(self, split: str, index: int, num_shards: int, records: int) -> str:
        """Return a shard's file name.

        >>> ShardNames().file_name("train", 3, 16, 750)
        'train-00003-of-00016-750.tfrec'
        >>> ShardNames("file_{index:02}-{records}.tfrec").file_name("train", 0, 1, 4096)
        'file_00-4096.tfrec'
        """
        values = {"split": split, "index": index, "num_shards": num_shards, "records": records}
        widths = {"05": f"0{_digits(num_shards)}"}

        def value_of(field: re.Match[str]) -> str:
            width = field[2] or ""
            return format(values[field[1]], widths.get(width, width))

        return _FIELD.sub(value_of, self.template)

    def folders(self, splits: Iterable[str]) -> set[str]:
        """Return the folders that may hold files of these splits; `""` is the output itself.

        >>> sorted(ShardNames(MAXDIFFUSION).folders(["train", "val"]))
        ['', 'train', 'val']
        """
        folder = self.template.rpartition("/")[0]
        return {"", *(folder.replace("{split}", split) for split in splits)}

    def matches(self, name: str) -> str | None:
        """Return the split in a file name of this grammar; None for other names.

        The split is empty if the template has no `{split}`.
        """
        parts = _FIELD.split(self.template)
        groups = {"split": f"(?P<split>{_SPLIT_NAME})", "": ""}
        pattern = "".join(
            re.escape(literal) + groups.get(field, "[0-9]+")
            for literal, field in zip(parts[::3], [*parts[1::3], ""], strict=True)
        )
        match = re.fullmatch(pattern, name)
        return None if match is None else match.groupdict().get("split", "")

    def _fields(self) -> list[str]:
        return _FIELD.split(self.template)[1::3]

    def _refused(self, what: str, remedy: str) -> ValueError:
        return ValueError(f"shard_names {what}, got {self.template!r}: {remedy}")


def is_split_name(text: str) -> bool:
    """Return whether `text` is a split name: lower-case letters, digits and `_`, a letter first."""
    return re.fullmatch(_SPLIT_NAME, text) is not None


def _digits(num_shards: int) -> int:
    """Return the number of digits of shard numbers; equal widths make names sort."""
    return max(5, len(str(num_shards)))
