"""Describe records that no index describes: their features, and the columns of an index."""

import functools
import hashlib
import operator

from beam_tfrec.schemas.columns import LIST, ColumnNotes
from beam_tfrec.schemas.features import OBJECT_TEXT, Kind, Roles, roles_of_keys, values_at
from beam_tfrec.schemas.layouts.records import BIT_OF_KIND, IMAGE, NO_IMAGE, NO_STEPS, STEPS
from beam_tfrec.schemas.parse_example import Sequences, Values
from beam_tfrec.transforms.build_records import record_facts
from beam_tfrec.transforms.images.check_images import looks_like_image
from beam_tfrec.transforms.shard_index import ReadyRow
from beam_tfrec.transforms.sources.read_samples import SplitTally


class RecordNotes(ColumnNotes):
    """Facts about the records of a split.

    Attributes:
        named_ids: ids and names of their classes, such as `7 cat`.
    """

    def __init__(self) -> None:
        """Begin without records."""
        super().__init__()
        self.named_ids: set[str] = set()

    def add_record(self, kinds: dict[str, int], named_ids: set[str]) -> None:
        """Add a record, as `describe_record` describes it."""
        self.add(kinds, kinds)
        self.named_ids |= named_ids

    def tally(self, split: str) -> SplitTally:
        """Return the facts of all records."""
        named = sorted(self.named_ids)
        return SplitTally(split, columns=self.facts(), rows=self.rows, named_ids=named)


def bits_in(record: Sequences) -> dict[str, int]:
    """Return the bits of the features of a record's context, by key."""
    return {key: _bits_of(held) for key, held in record.context.items()}


def _bits_of(held: Values) -> int:
    kind, values = held
    if len(values) != 1:
        return BIT_OF_KIND[kind] | LIST
    if kind is not Kind.BYTES:
        return BIT_OF_KIND[kind]
    return BIT_OF_KIND[kind] | (IMAGE if looks_like_image(values[0]) else NO_IMAGE)


def describe_record(
    record: Sequences, data: bytes, crc32c: int, name: str
) -> tuple[ReadyRow, dict[str, int], set[str]]:
    """Return the index columns of a record's copy, and the facts for `RecordNotes.add_record`.

    The source of a record of another program is its first image. Its class ids have names only if
    it holds as many names as ids.

    Args:
        record: the parsed record.
        data: the record's bytes.
        crc32c: CRC-32C of the bytes.
        name: name of the source in the index.

    >>> from beam_tfrec.schemas.example import encode_example
    >>> from beam_tfrec.schemas.parse_example import parse_record
    >>> of_class = encode_example({"image/object/class/label": (Kind.INT64, [7])})  # without boxes
    >>> describe_record(parse_record(of_class), of_class, 0, "a")[0].labels
    [7]
    """
    bits = bits_in(record)
    kinds = {key: found | NO_STEPS for key, found in bits.items()}
    for key, steps in record.feature_lists.items():
        found = kinds.get(key, 0) | STEPS
        kinds[key] = functools.reduce(operator.or_, map(_bits_of, steps), found)
    values, roles = record.context, _roles(tuple(bits.items()))
    source = values[roles.images[0]].values[0] if roles.images else data
    label_key, text_key = roles.class_keys
    if not label_key:  # perhaps without boxes
        label_key, text_key = "image/object/class/label", OBJECT_TEXT
    labels = [*values_at(values, label_key, Kind.INT64)]
    names = [*values_at(values, text_key, Kind.BYTES)]
    named = zip(labels, names, strict=True) if len(labels) == len(names) else ()
    named_ids = {f"{number} {text.decode(errors='replace')}" for number, text in named}
    sources = [(name, len(source), hashlib.sha256(source).hexdigest())]
    return ReadyRow(crc32c, sources, labels, *record_facts(values, roles)), kinds, named_ids


def classes_in(record: Sequences) -> set[str]:
    """Return the names of a record's classes, if it holds names.

    >>> from beam_tfrec.schemas.example import encode_example
    >>> from beam_tfrec.schemas.parse_example import parse_record
    >>> of_text = encode_example({OBJECT_TEXT: (Kind.BYTES, [b"cat"])})  # without boxes
    >>> classes_in(parse_record(of_text))
    {'cat'}
    """
    roles = _roles(tuple(bits_in(record).items()))
    keys = {OBJECT_TEXT, roles.class_text, *(objects.texts for objects in roles.objects)}
    values = (value for key in keys for value in values_at(record.context, key, Kind.BYTES))
    return {value.decode(errors="replace") for value in values}


@functools.lru_cache(maxsize=256)  # most files have records of few forms
def _roles(bits: tuple[tuple[str, int], ...]) -> Roles:
    kinds = {key: kind for key, held in bits for kind, bit in BIT_OF_KIND.items() if held & bit}
    images = [key for key, held in bits if held & IMAGE]
    return roles_of_keys({key: kind for key, kind in kinds.items() if kind}, images)
