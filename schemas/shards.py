"""`ShardPlan` and `ShardInfo`, and the one grammar of a shard's file names."""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

import google_crc32c
import msgspec

from schemas.faults import Rejected
from schemas.samples import Sample

COUNTED = "{split}-{index:05}-of-{num_shards:05}-{records}.tfrec"
PLAIN = "{split}-{index:05}-of-{num_shards:05}.tfrec"
NAMED_TEMPLATES: Mapping[str, str] = {"counted": COUNTED, "plain": PLAIN}
RECEIPTS_DIR = "_receipts"
INDEX_DIR = "index"
_MAX_NAME_BYTES = 255  # of a file on most disks
_NUMBER_FORMAT = re.compile(r"(0[0-9]{1,2})?d?")  # what `matches` can read back
_FIELD_FORMATS = {
    "split": re.compile(""),
    "index": _NUMBER_FORMAT,
    "num_shards": _NUMBER_FORMAT,
    "records": _NUMBER_FORMAT,
}
_NUMBER_BEHIND_FIELD = re.compile(r"\}[0-9]*\{(index|num_shards|records)")
_SPLIT_GROUP = "[a-z][a-z0-9_]*"
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
    digits = max(5, len(str(num_shards)))
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

    Attributes:
        template: of the fields `split`, `index`, `num_shards`, `records`.

    Raises:
        ValueError: when the template has another field, holds a `/`, formats a number otherwise
            than `:05` or in two ways, puts a number right after another field, or has neither
            `{index}` nor a usual suffix. Without `{index}` it names one shard a split.
    """

    template: str = COUNTED

    def __post_init__(self) -> None:
        """Refuse a template that could not name every shard once."""
        fields = self._fields()
        if not fields <= _FIELD_FORMATS.keys():
            raise ValueError(
                f"shard_names must be counted, plain or a template with {{index}} and at most"
                f" {{split}}, {{num_shards}}, {{records}}; got {self.template!r}"
            )
        if "index" not in fields and not self.template.endswith(_SHARD_SUFFIXES):
            raise ValueError(  # it might be the name of another file of the data set
                "shard_names without {index} must end in .tfrec, .tfrecord, .tfrecords or .record,"
                f" got {self.template!r}: add one"
            )
        if "/" in self.template or self.template.startswith((".", "_")):
            raise ValueError(
                f"shard_names must name files in the output itself, not hidden ones,"
                f" got {self.template!r}: remove the slash, dot or underscore"
            )
        if not self.template.isprintable():  # each shard is a line of the log
            raise ValueError(
                f"shard_names must be printable, got {self.template!r}: remove line breaks and"
                " control characters"
            )
        self._check_formats()
        if _NUMBER_BEHIND_FIELD.search(self.template):
            raise ValueError(
                f"shard_names must keep numbers apart from other fields, got {self.template!r}:"
                " put a '-' between them"
            )

    def check_splits(self, splits: Sequence[str], num_shards: Mapping[str, int]) -> None:
        """Refuse a template that would call two shards alike.

        Args:
            splits: of the data set.
            num_shards: that are asked for, by split; under `""` for the others.
        """
        asked = {num_shards.get(split, num_shards.get("")) for split in splits}
        if asked - {1} and "index" not in self._fields():
            raise ValueError(
                f"shard_names must hold {{index}} for several shards, got {self.template!r}:"
                " add it, or give --num_shards 1"
            )
        if len(splits) > 1 and "split" not in self._fields():
            raise ValueError(
                f"shard_names must hold {{split}} for splits {sorted(splits)},"
                f" got {self.template!r}: add it"
            )
        for split in splits:
            size_bytes = len(self.file_name(split, 0, 1, 10**9).encode())
            if size_bytes > _MAX_NAME_BYTES:
                raise ValueError(
                    f"shard_names must make names of at most {_MAX_NAME_BYTES} bytes, got one of"
                    f" {size_bytes} for split {split}: give a shorter template or split"
                )

    def file_name(self, split: str, index: int, num_shards: int, records: int) -> str:
        """Return a shard's file name.

        >>> ShardNames().file_name("train", 3, 16, 750)
        'train-00003-of-00016-750.tfrec'
        >>> ShardNames("file_{index:02}-{records}.tfrec").file_name("train", 0, 1, 4096)
        'file_00-4096.tfrec'
        """
        values = {"split": split, "index": index, "num_shards": num_shards, "records": records}
        digits = max(5, len(str(num_shards)))  # names sort, so all get what the largest needs
        parts: list[str] = []
        for literal, field, spec, _ in string.Formatter().parse(self.template):
            parts.append(literal)
            if field is not None:
                wide = f"0{digits}" if spec in ("05", "05d") else spec or ""
                parts.append(format(values[field], wide))
        return "".join(parts)

    def matches(self, name: str) -> str | None:
        """Return the split of a file name that this grammar can produce, else None.

        A template without `{split}` gives the empty string.
        """
        match = self._pattern().fullmatch(name)
        return None if match is None else match.groupdict().get("split", "")

    def _check_formats(self) -> None:
        formats: dict[str, str | None] = {}
        for _, field, spec, conversion in string.Formatter().parse(self.template):
            if field is None:
                continue
            if conversion or not _FIELD_FORMATS[field].fullmatch(spec or ""):
                raise ValueError(
                    f"shard_names has a bad format of {{{field}}} in {self.template!r}:"
                    " use {split} and {index:05}"
                )
            if formats.setdefault(field, spec) != spec:  # `matches` looks for the same digits
                raise ValueError(
                    f"shard_names has two formats of {{{field}}} in {self.template!r}: use one"
                )

    def _fields(self) -> set[str]:
        try:
            parts = list(string.Formatter().parse(self.template))
        except ValueError as error:
            raise ValueError(
                f"shard_names has a bad format in {self.template!r} ({error}): use {{index:05}}"
            ) from None
        return {field for _, field, _, _ in parts if field is not None}

    def _pattern(self) -> re.Pattern[str]:
        parts: list[str] = []
        seen: set[str] = set()
        for literal, field, _, _ in string.Formatter().parse(self.template):
            parts.append(re.escape(literal))
            if field is None:
                continue
            group = _SPLIT_GROUP if field == "split" else "[0-9]+"
            parts.append(f"(?P={field})" if field in seen else f"(?P<{field}>{group})")
            seen.add(field)
        return re.compile("".join(parts))


def is_split_name(text: str) -> bool:
    """Return whether `text` can name a split: lower-case letters, digits, `_`, a letter first."""
    return re.fullmatch(_SPLIT_GROUP, text) is not None
