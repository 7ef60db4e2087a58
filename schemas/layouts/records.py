"""The `records` layout: finished records, copied byte for byte.

Features come from the manifests of data sets, or from the values found in the records. Both
become texts in `JobPlan.found`.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import msgspec

from beam_tfrec.schemas.columns import FLOAT, INT, LIST, TEXT, ColumnFacts, add_facts
from beam_tfrec.schemas.features import OPAQUE, Content, Feature, FeatureSpec, Kind
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Sample

STEPS, NO_STEPS, IMAGE, NO_IMAGE = (1 << place for place in range(7, 11))
"""Bits of a feature, next to those of `columns`: it has steps, is in the context, holds image
files, holds other bytes.
"""

BIT_OF_KIND: Mapping[Kind | None, int] = {
    Kind.BYTES: TEXT,
    Kind.FLOAT: FLOAT,
    Kind.INT64: INT,
    None: 0,
}

_ROW = tuple[int, msgspec.Raw, list[int], msgspec.Raw, msgspec.Raw, msgspec.Raw]  # `ReadyRow`
_LAYOUT, _FEATURE, _FROM_0 = "layout ", "feature ", "labels from 0"
_LABEL_KEYS = ("image/class/label", "image/object/class/label")


def found_of_data_set(layout: str, labels: Sequence[Label]) -> list[str]:
    """Return a data set's layout and numbering of classes, for `RecordsLayout.resolved`."""
    without_gaps = [*range(len(labels))] == sorted(label.id for label in labels)
    return [_LAYOUT + layout, *([_FROM_0] if labels and without_gaps else [])]


def facts_of_data_set(features: Iterable[Feature], records: int) -> list[ColumnFacts]:
    """Return the features of a manifest as facts; the name of each is the feature as JSON."""
    return [ColumnFacts(_text_of(feature), 0, records) for feature in features]


def found_of_features(facts: Iterable[ColumnFacts], records: int) -> list[str]:
    """Return one text per feature; a feature that some records lack is optional.

    A key whose values are of several kinds gives a text for each, which `resolved` refuses.

    Args:
        facts: facts of features by key, or as `facts_of_data_set` returns them.
        records: number of records.

    Raises:
        ValueError: when a key cannot be declared.
    """
    features: dict[tuple[str, Kind, bool], Feature] = {}
    held: dict[str, int] = {}
    for fact in add_facts(facts):
        for feature in _features_of(fact):
            place = feature.key, feature.kind, feature.per_step
            features[place] = _united(features.get(place, feature), feature)
            held[feature.key] = held.get(feature.key, 0) + fact.cells
    for place, feature in features.items():
        if held[feature.key] < records:
            features[place] = msgspec.structs.replace(feature, optional=True)
    return [_FEATURE + _text_of(feature) for feature in features.values()]


class RecordType(enum.Enum):
    """What records are."""

    EXAMPLE = "example"  # tf.train.Example or SequenceExample
    BYTES = "bytes"  # anything; they are not parsed, and have no features


@dataclass(frozen=True)
class RecordsLayout(Layout):
    """Finished records; `resolved` sets the other attributes.

    Attributes:
        record_type: what the records are.
        of_layout: layout of the data sets; `records` if unknown, or if there are several.
        features: features of the records.
    """

    reads_images: ClassVar[bool] = False
    copies_records: ClassVar[bool] = True
    sample_noun: ClassVar[str] = "record"

    record_type: RecordType = RecordType.EXAMPLE
    of_layout: str = "records"
    features: tuple[Feature, ...] = ()
    first_label: int | None = None

    @property
    def name(self) -> str:
        """The layout's name in the manifest."""
        return OPAQUE if self.is_opaque else self.of_layout

    @property
    def is_opaque(self) -> bool:
        """Whether records are any bytes."""
        return self.record_type is RecordType.BYTES

    @property
    def spec(self) -> FeatureSpec:
        """The features of every record."""
        return FeatureSpec(self.name, self.features)

    def resolved(self, found: Sequence[str]) -> Self:
        """Return the layout with the features of the records.

        Raises:
            ValueError: when a feature has values of several kinds, or there are none.
        """
        if self.is_opaque:
            return self
        layouts = [text.removeprefix(_LAYOUT) for text in found if text.startswith(_LAYOUT)]
        texts = (text.removeprefix(_FEATURE) for text in found if text.startswith(_FEATURE))
        if OPAQUE in layouts:
            what = f"record_type must be {OPAQUE} for a data set of layout {OPAQUE}"
            remedy = f"give --record_type {OPAQUE}"
            raise ValueError(f"{what}, got {self.record_type.value}: {remedy}")
        features = [msgspec.json.decode(text, type=Feature) for text in texts]
        by_key: dict[str, Feature] = {}
        for feature in features:
            other = by_key.setdefault(feature.key, feature)
            if other is not feature:
                what = f"feature {feature.key!r} must be of one kind in all records"
                kinds = f"{_what_is(other)} and {_what_is(feature)}"
                raise ValueError(f"{what}, got {kinds}: convert them into two data sets")
        if not by_key:
            raise ValueError("no record with features is left: check sources, --keys and --classes")
        return replace(
            self,
            of_layout=layouts[0] if len(layouts) == 1 else "records",
            features=tuple(features),
            first_label=0 if _FROM_0 in found else None,
        )

    def found_of(self, columns: Iterable[ColumnFacts], rows: int) -> list[str]:
        """Return the features of the records as texts, for `resolved`."""
        return [] if self.is_opaque else found_of_features(columns, rows)

    def classes_of(self, sample: Sample) -> set[int]:
        """Return the class labels of a record."""
        return {*msgspec.msgpack.decode(sample.fields, type=_ROW)[2]}

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's size with framing."""
        return sample.blobs[0].read_bytes


def _features_of(fact: ColumnFacts) -> list[Feature]:
    """Return the features that a fact describes: one for each kind of its values and place.

    >>> image = TEXT | IMAGE  # in steps it stays bytes: they are not a single image
    >>> kinds = image | NO_STEPS, image | STEPS
    >>> [of.content.value for bits in kinds for of in _features_of(ColumnFacts("a", bits, 1))]
    ['image', 'plain']
    """
    if fact.name.startswith("{"):
        return [msgspec.json.decode(fact.name, type=Feature)]
    bits, key = fact.kinds, fact.name
    kinds = [kind for kind, bit in BIT_OF_KIND.items() if kind and bits & bit] or [Kind.BYTES]
    content = Content.PLAIN
    if kinds == [Kind.BYTES] and bits & IMAGE and not bits & (NO_IMAGE | LIST | STEPS):
        content = Content.IMAGE
    elif kinds == [Kind.INT64] and key in _LABEL_KEYS:
        content = Content.CLASS_LABEL
    return [
        Feature(key, kind, bool(bits & LIST), "found in the records", content, per_step=per_step)
        for kind in kinds
        for per_step in (False, True)
        if bits & (STEPS if per_step else NO_STEPS)
    ]


def _united(feature: Feature, other: Feature) -> Feature:
    """Return a feature that describes the values of both."""
    return msgspec.structs.replace(
        feature,
        repeated=feature.repeated or other.repeated,
        optional=feature.optional or other.optional,
        content=feature.content if feature.content is other.content else Content.PLAIN,
    )


def _what_is(feature: Feature) -> str:
    return f"{feature.kind.value}{' a step' if feature.per_step else ''}"


def _text_of(feature: Feature) -> str:
    return msgspec.json.encode(feature).decode()
