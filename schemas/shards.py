"""`ShardPlan` and `ShardInfo`, and the one grammar of a shard's file names."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import google_crc32c
import msgspec

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.samples import Sample

COUNTED = "{split}-{index:05}-of-{num_shards:05}-{records}.tfrec"
PLAIN = "{split}-{index:05}-of-{num_shards:05}.tfrec"
NAMED_TEMPLATES: Mapping[str, str] = {"counted": COUNTED, "plain": PLAIN}
RECEIPTS_DIR = "_receipts"
INDEX_DIR = "index"
_MAX_NAME_BYTES = 255  # of a file on most disks
_FIELD = re.compile(r"\{(split(?=\})|index|num_shards|records)(?::(0[0-9]{1,2})?d?)?\}")
_NUMBER_AFTER_FIELD = re.compile(r"\}[0-9]*\{(?:index|num_shards|records)")
_SPLIT_NAME = "[a-z][a-z0-9_]*"
_INDEX_NAME = re.compile(rf"{INDEX_DIR}/([^/]+)\.(?:parquet|idx)")
_SHARD_SUFFIXES = (".tfrec", ".tfrecord", ".tfrecords", ".record")


class ShardPlan(msgspec.Struct, frozen=True, array_like=True):
    """One shard to be written.

    Attributes:
        split: its split.
        index: place among the split's shards, from 0.
        num_shards: shards of the split.
        samples: its samples in their final order.
    """

    split: str
    index: int
    num_shards: int
    samples: list[Sample]

    @property
    def name(self) -> str:
        """What names the shard whatever its file is called: `train-00003-of-00016`."""
        return shard_stem(self.split, self.index, self.num_shards)


class FileSum(msgspec.Struct, frozen=True):
    """What shows that a file is as it was written: its size, and its CRC-32C in hex."""

    bytes: int
    crc32c: str


class ShardInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was made of a shard; as JSON it is the shard's receipt.

    Attributes:
        plan: digest of the plan it belongs to, hex.
        split: its split.
        index: place among the split's shards, from 0.
        num_shards: shards of the split.
        file: file name in the output.
        planned: samples planned for it; `planned == records + len(sample rejects)`.
        records: records written.
        bytes: size of the file.
        crc32c: of the file, hex.
        sha256: of the file, hex.
        annotations_listed: annotations that its planned samples carried.
        annotations_written: of them, those in its records.
        repairs: what was mended, with counts, such as `box_clipped`.
        traits: what is unusual about its images, with counts, such as `cmyk`.
        rejected: its rejected samples and dropped annotations, in order.
        licenses: records by their image's license id; not in the JSON where none has one.
        receipt: sum of the receipt itself, once it is stored; never in the receipt.
    """

    plan: str
    split: str
    index: int
    num_shards: int
    file: str
    planned: int
    records: int
    bytes: int
    crc32c: str
    sha256: str
    annotations_listed: int
    annotations_written: int
    repairs: dict[str, int]
    traits: dict[str, int]
    rejected: list[Rejected]
    licenses: dict[str, int] = {}
    receipt: FileSum | None = None

    @property
    def name(self) -> str:
        """What names the shard whatever its file is called: `train-00003-of-00016`."""
        return shard_stem(self.split, self.index, self.num_shards)


def file_sum(data: bytes) -> FileSum:
    """Return the sum of a file's bytes.

    >>> file_sum(b"123456789")
    FileSum(bytes=9, crc32c='e3069283')
    """
    return FileSum(len(data), f"{google_crc32c.value(data):08x}")


def shard_stems(splits: Sequence[str]) -> list[str]:
    """Return the stems of a data set's shards.

    Args:
        splits: that of each shard, in the manifest's order.

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
    """Return the name that a shard's receipt carries; never with a record count.

    Before format version 3, indexes carried it too.

    >>> shard_stem("train", 3, 16)
    'train-00003-of-00016'
    """
    digits = _digits(num_shards)
    return f"{split}-{index:0{digits}}-of-{num_shards:0{digits}}"


def receipt_name(stem: str) -> str:
    """Return the receipt's name in the output."""
    return f"{RECEIPTS_DIR}/{stem}.json"


def index_stem(file: str) -> str:
    """Return the stem of a shard's index names: the file's own, so that one name finds both.

    >>> index_stem("train-00003-of-00016-750.tfrec"), index_stem("00003.gz")
    ('train-00003-of-00016-750', '00003.gz')
    """
    return min((file.removesuffix(suffix) for suffix in _SHARD_SUFFIXES), key=len)


def index_names(stem: str) -> tuple[str, str]:
    """Return the names of a shard's index: Parquet, and DALI's text form."""
    return f"{INDEX_DIR}/{stem}.parquet", f"{INDEX_DIR}/{stem}.idx"


def is_index_name(name: str, names: "ShardNames") -> bool:
    """Return whether a file of the output can be a shard's index, of older data sets too.

    >>> is_index_name("index/train-00003-of-00016-750.parquet", ShardNames())
    True
    >>> is_index_name("index/notes.parquet", ShardNames())
    False
    """
    match = _INDEX_NAME.fullmatch(name)
    grammars = (names, *map(ShardNames, NAMED_TEMPLATES.values()))
    files = [match[1] + suffix for suffix in ("", *_SHARD_SUFFIXES)] if match else []
    return any(grammar.matches(file) is not None for grammar in grammars for file in files)


class ShardNames(msgspec.Struct, frozen=True):
    """The grammar of shard file names: a template such as `{split}-{index:05}-{records}.tfrec`.

    Without `{index}` it names one shard a split.

    Attributes:
        template: text with the fields `split`, `index`, `num_shards` and `records`, each at most
            once. Numbers may have a fixed width; `:05` becomes wider where the largest needs it.

    Raises:
        ValueError: when the template could not name every shard once.
    """

    template: str = COUNTED

    def __post_init__(self) -> None:
        """Refuse a template that could not name every shard once."""
        parts, fields = _FIELD.split(self.template), self._fields()
        if set("".join(parts[::3])) & {*"{}"} or len({*fields}) < len(fields):
            what = "must be counted, plain or a template with {index:05} and at most {split},"
            raise self._refused(f"{what} {{num_shards}}, {{records}}", "correct it")
        if "index" not in fields and not self.template.endswith(_SHARD_SUFFIXES):
            # It might be the name of another file of the data set.
            raise self._refused(f"without {{index}} must end in {_SHARD_SUFFIXES}", "add one")
        is_hidden = self.template.startswith((".", "_"))
        if is_hidden or "/" in self.template or not self.template.isprintable():
            what = "must name files in the output itself, not hidden ones, in printable text"
            raise self._refused(what, "remove slashes, line breaks, a leading dot or underscore")
        if _NUMBER_AFTER_FIELD.search(self.template):
            raise self._refused("must keep numbers apart from other fields", "put a '-' between")

    def check_splits(self, splits: Sequence[str], num_shards: Mapping[str, int]) -> None:
        """Refuse a template that would call two shards alike.

        Args:
            splits: splits of the data set.
            num_shards: numbers that are asked for, by split; under `""` for the others.
        """
        asked = {num_shards.get(split, num_shards.get("")) for split in splits}
        if asked - {1} and "index" not in self._fields():
            remedy = "add it, or give --num_shards 1"
            raise self._refused("must hold {index} for several shards", remedy)
        if len(splits) > 1 and "split" not in self._fields():
            raise self._refused(f"must hold {{split}} for splits {sorted(splits)}", "add it")
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

    def matches(self, name: str) -> str | None:
        """Return the split of a file name that this grammar can produce, else None.

        A template without `{split}` gives the empty string.
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
    """Return whether `text` can name a split: lower-case letters, digits, `_`, a letter first."""
    return re.fullmatch(_SPLIT_NAME, text) is not None


def _digits(num_shards: int) -> int:
    """Return the digits of every shard's numbers, so that names sort."""
    return max(5, len(str(num_shards)))
