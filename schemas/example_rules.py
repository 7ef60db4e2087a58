"""Check records against a manifest, and infer a schema from records that have no manifest."""

import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from beam_tfrec.schemas.faults import printable
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec
from beam_tfrec.schemas.parse_example import Message, Sequences, Values, kind_of, read_sequence

_SHA256_KEY = "image/key/sha256"
_IMAGE_KEY = "image/encoded"
_SIZE_KEYS = ("image/height", "image/width")
_SHOWN_LABELS = 10
_PANOPTIC = "panoptic_objects/"  # the index leaves out labels of panoptic segments
_INDEXED_LAYOUTS = {
    *("detection", "keras", "tfds", "table", "arrays"),
    *("classification", "imagenet", "tutorial", "tensor", "raw"),
}
"""Our layouts with the same labels in record and index; a user's own layout may differ."""

Fields = Mapping[str, Message]
"""Parsed features of a record, by key."""

Rules = Mapping[str, tuple[Feature, Callable[[Message], Sequence[Any]]]]
"""By key: the declared feature, and a function that returns a parsed feature's values.

The function returns no values if the parsed feature has another kind than declared.
"""


@dataclass(frozen=True)
class ExampleRules:
    """Rules that every record of a data set must meet.

    Attributes:
        spec: features of a record.
        labels: ids of the label map; empty without a label map.
    """

    spec: FeatureSpec
    labels: frozenset[int] = frozenset()

    def find_wrong(
        self,
        data: bytes,
        sources: Sequence[str] | None = None,
        row_labels: Sequence[int] | None = None,
        row_size_px: tuple[int | None, ...] = (),
    ) -> list[str]:
        """Return the faults of a record, one line each.

        Args:
            data: the record's bytes.
            sources: hex SHA-256 of the source files, if the record holds these files unchanged.
                Empty if it does not, or if they are unknown: then images are only compared with
                the record's own SHA-256. None to compare no SHA-256 at all.
            row_labels: labels of the record in the index; None if the index has no such record.
            row_size_px: height and width of the picture in the index; empty if it has neither.
        """
        if self.spec.is_opaque:
            return []
        try:
            context, steps = read_sequence(data)
        except ValueError as error:
            return [f"not an Example: {error}"]
        wrong = [*self._wrong_keys(context, self._context)]
        if steps or self._steps:
            wrong += self._wrong_keys(steps, self._steps)
        if self.spec.name in _INDEXED_LAYOUTS:
            wrong += self._index_differences(context, row_labels, row_size_px)
        if sources is not None:
            wrong += self._wrong_hashes(context, sources)
        return wrong

    @cached_property
    def _context(self) -> Rules:
        return _rules(feature for feature in self.spec.features if not feature.per_step)

    @cached_property
    def _steps(self) -> Rules:
        return _rules(feature for feature in self.spec.features if feature.per_step)

    @cached_property
    def _indexed_key(self) -> str:
        """Key of the labels that the index repeats; empty unless just one feature has labels."""
        labels = [f.key for f, _ in self._context.values() if f.content is Content.CLASS_LABEL]
        keys = [key for key in labels if not key.startswith(_PANOPTIC)]
        return keys[0] if len(keys) == 1 else ""

    def _wrong_keys(self, found: Fields, wanted: Rules) -> Iterator[str]:
        """Yield the faults of a record's keys and values."""
        known = 0
        for key, (feature, values_of) in wanted.items():
            if (held := found.get(key)) is None:
                if not feature.optional:
                    yield f"feature {key!r} is missing"
                continue
            known += 1
            for one in held.feature if feature.per_step else (held,):
                values = values_of(one)
                if len(values) == 1 and feature.content is not Content.CLASS_LABEL:
                    continue  # most features end here
                if what := self._wrong_values(one, values, feature):
                    yield f"feature {key!r} {what}"
        if known != len(found):
            for key in sorted(set(found) - wanted.keys()):
                yield f"feature {key!r} is not in the manifest"

    def _wrong_values(self, found: Message, values: Sequence[Any], wanted: Feature) -> str:
        if not values and (kind := kind_of(found)) not in (wanted.kind, None):  # None is empty
            return f"is of {kind.value}, not of {wanted.kind.value}"
        if len(values) != 1 and not wanted.repeated:
            return f"has {len(values)} values, not one"
        is_label = self.labels and wanted.content is Content.CLASS_LABEL
        if is_label and (unknown := set(values) - self.labels):
            return f"has the label {min(unknown)}, which is not in the label map"
        return ""

    def _index_differences(
        self, context: Fields, row_labels: Sequence[int] | None, size_px: tuple[int | None, ...]
    ) -> Iterator[str]:
        """Yield differences between a record and its row in the index."""
        key = self._indexed_key
        if row_labels is not None and key in context:
            labels = context[key].int64_list.value
            if labels != row_labels:
                said = f"has the labels {_listed(labels)}, the index says {_listed(row_labels)}"
                yield f"feature {key!r} {said}"
        if size_px != (None, None) and self._context.keys() >= {*_SIZE_KEYS}:
            for key, value in zip(_SIZE_KEYS, size_px, strict=False):
                stated = list(context[key].int64_list.value) if key in context else []
                if value is not None and stated != [value]:
                    yield f"feature {key!r} is {_listed(stated)}, the index says {value}"

    def _wrong_hashes(self, context: Fields, sources: Sequence[str]) -> Iterator[str]:
        """Compare images with the record's own SHA-256, and with the sums of the sources."""
        digests = {
            feature.key: hashlib.sha256(value).hexdigest()
            for feature, _ in self._context.values()
            if feature.content is Content.IMAGE and feature.key in context
            for value in context[feature.key].bytes_list.value
        }
        if _SHA256_KEY in context and _IMAGE_KEY in digests:
            text = b"".join(context[_SHA256_KEY].bytes_list.value).decode("ascii", "replace")
            if text != digests[_IMAGE_KEY]:
                yield f"{_SHA256_KEY!r} is {text!r}, {_IMAGE_KEY!r} has {digests[_IMAGE_KEY]}"
        for key, digest in digests.items():
            if sources and digest not in sources:
                yield f"{key!r} has the SHA-256 {digest}, and no source in the index has it"


def _rules(features: Iterable[Feature]) -> Rules:
    return {
        feature.key: (feature, operator.attrgetter(f"{feature.kind.value}_list.value"))
        for feature in features
    }


def _listed(labels: Sequence[object]) -> str:
    """Return labels as text; of many, the first ones."""
    shown = " ".join(map(str, labels[:_SHOWN_LABELS]))
    more = len(labels) - _SHOWN_LABELS
    return f"[{shown}{f' and {more} more' if more > 0 else ''}]"


MAX_KEYS = 1000
"""Most features that an inferred schema describes; `is_cut` is set if there were more."""

NO_KIND = "empty"
"""Kind of a feature without a list. Readers treat it as a feature without values."""

Place = tuple[str, int, int]
"""Where a record is: its file, its number in it, and the offset of its frame."""


class KindFacts(msgspec.Struct, frozen=True):
    """A feature's values of one kind, or the steps of a feature list.

    Attributes:
        records: number of records that hold them.
        least: fewest values in one record or step; for facts of steps, fewest steps.
        most: largest number of values or steps, likewise.
        first: place of the first such record.
    """

    records: int
    least: int
    most: int
    first: Place

    def __add__(self, later: "KindFacts | None") -> "KindFacts":
        """Return the facts of these records and of later ones."""
        if later is None:
            return self
        least, most = min(self.least, later.least), max(self.most, later.most)
        return KindFacts(self.records + later.records, least, most, self.first)


class FeatureFacts(msgspec.Struct):
    """One feature of the records.

    Attributes:
        kinds: facts by kind: bytes, float, int64 or `NO_KIND`.
        steps: facts of its steps, if it is a feature list.
        images: number of values that are image files, by format.
        no_images: number of non-empty values that are not image files.
        first_no_image: place of the first record with such a value.
    """

    kinds: dict[str, KindFacts] = {}
    steps: KindFacts | None = None
    images: dict[str, int] = {}
    no_images: int = 0
    first_no_image: Place | None = None

    @property
    def records(self) -> int:
        """Number of records that have it."""
        return sum(facts.records for facts in self.kinds.values())

    def is_image(self) -> bool:
        """Return whether more than half of the values are image files."""
        return sum(self.images.values()) > self.no_images

    def extend(self, other: "FeatureFacts") -> None:
        """Add the facts of later records."""
        for kind, facts in other.kinds.items():
            self.kinds[kind] = self.kinds[kind] + facts if kind in self.kinds else facts
        self.steps = self.steps + other.steps if self.steps else other.steps
        for name, count in other.images.items():
            self.images[name] = self.images.get(name, 0) + count
        self.no_images += other.no_images
        self.first_no_image = self.first_no_image or other.first_no_image


class InferredSchema(msgspec.Struct):
    """Features found in records. Schemas of several files can be added up.

    Attributes:
        records: number of Examples or SequenceExamples.
        features: facts by key.
        others: number of records that are neither.
        first_other: place of the first such record.
        is_cut: whether there were more than `MAX_KEYS` features.
    """

    records: int = 0
    features: dict[str, FeatureFacts] = {}
    others: int = 0
    first_other: Place | None = None
    is_cut: bool = False

    def add(self, record: Sequences, place: Place) -> None:
        """Add a record."""
        context = {key: _facts_of([values], place) for key, values in record.context.items()}
        lists = {key: _facts_of(steps, place) for key, steps in record.feature_lists.items()}
        for key, steps in record.feature_lists.items():
            lists[key].steps = KindFacts(1, len(steps), len(steps), place)
        self.extend(InferredSchema(1, context))
        self.extend(InferredSchema(0, lists))

    def extend(self, other: "InferredSchema") -> None:
        """Add records that come after these."""
        self.records += other.records
        self.others += other.others
        self.first_other = self.first_other or other.first_other
        self.is_cut |= other.is_cut
        for key, facts in other.features.items():
            if key in self.features or len(self.features) < MAX_KEYS:
                self.features.setdefault(key, FeatureFacts()).extend(facts)
            else:
                self.is_cut = True

    def lines(self) -> Iterator[str]:
        """Yield one line per feature: key, kind, records that have it, number of values."""
        rows = [
            (printable(key), *_row(facts, self.records))
            for key, facts in sorted(self.features.items())
        ]
        yield from aligned(rows)
        if self.is_cut:
            yield f"more than {MAX_KEYS} features: the others are not listed"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines, with their cells in columns.

    >>> list(aligned([("image", "bytes", "a photo"), ("id", "int64", "")]))
    ['image  bytes  a photo', 'id     int64']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


def conflicts(schema: InferredSchema) -> Iterator[tuple[Place, str]]:
    """Yield the first record of each kind of a feature, except for its most frequent kind."""
    for key, facts in sorted(schema.features.items()):
        kinds = {kind: found for kind, found in facts.kinds.items() if kind != NO_KIND}
        if len(kinds) < 2:
            continue
        usual = max(kinds, key=lambda kind: kinds[kind].records)
        for kind, found in kinds.items():
            if kind != usual:
                what = f"feature {key!r} is of {kind} in {found.records} records, and of {usual}"
                yield found.first, f"{what} in {kinds[usual].records}"


def _facts_of(lists: Sequence[Values], place: Place) -> FeatureFacts:
    """Return the facts of one feature in one record: one list of values, or one list a step."""
    counts: dict[str, list[int]] = {}
    for kind, values in lists:
        counts.setdefault(NO_KIND if kind is None else kind.value, []).append(len(values))
    kinds = {
        name: KindFacts(1, min(found), max(found), place)
        for name, found in (counts or {NO_KIND: [0]}).items()
    }
    return FeatureFacts(kinds)


def _row(facts: FeatureFacts, records: int) -> tuple[str, str, str, str]:
    kinds = " or ".join(kind for kind in facts.kinds if kind != NO_KIND or len(facts.kinds) == 1)
    first, *others = facts.kinds.values()
    total = sum(others, first)
    values = f"{_range(total)} value{'' if total.most == 1 else 's'}"
    if facts.steps is not None:
        values += f" in each of {_range(facts.steps)} steps"
    images = ", ".join(f"{count} {name}" for name, count in sorted(facts.images.items()))
    return kinds, f"in {facts.records} of {records}", values, images if facts.is_image() else ""


def _range(facts: KindFacts) -> str:
    return f"{facts.least} to {facts.most}" if facts.least < facts.most else str(facts.most)
