"""What every record of a data set must be, by its manifest, and whether a record is that."""

import hashlib
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from schemas.faults import printable
from schemas.features import Content, Kind
from schemas.manifest import FeatureEntry, Label, Manifest
from schemas.parse_example import Message, Sequences, Values, kind_of, read_features, read_sequence

_SHA256_KEY = "image/key/sha256"
_IMAGE_KEY = "image/encoded"
_SIZE_KEYS = ("image/height", "image/width")
_SHOWN_LABELS = 10
_PANOPTIC = "panoptic_objects/"  # their labels are in no index
_INDEXED_LAYOUTS = frozenset(
    [
        *("detection", "keras", "tfds", "table", "arrays"),
        *("classification", "imagenet", "tutorial", "tensor"),
    ]
)
"""Our layouts that write the index's labels into the record; a user's own layout may not."""


@dataclass(frozen=True)
class Rule:
    """What one feature must be.

    Attributes:
        kind: kind of its values.
        repeated: whether it has any number of values, instead of one.
        optional: whether it may be absent.
        labels: ids that its values may be; None where they may be anything.
    """

    kind: Kind
    repeated: bool
    optional: bool
    labels: frozenset[int] | None = None

    @cached_property
    def listed(self) -> Callable[[Message], Sequence[Any]]:
        """Function that returns a `Feature`'s values, none where they are of another kind."""
        return operator.attrgetter(f"{self.kind.value}_list.value")

    def wrong(self, key: str, feature: Message) -> Iterator[str]:
        """Yield what is wrong with a feature."""
        values = self.listed(feature)
        if not values and (kind := kind_of(feature)) is not self.kind:
            found = "no kind" if kind is None else kind.value
            yield f"feature {key!r} is of {found}, not of {self.kind.value}"
        elif len(values) != 1 and not self.repeated:
            yield f"feature {key!r} has {len(values)} values, not one"
        elif self.labels is not None and not self.labels.issuperset(values):
            unknown = min(set(values) - self.labels)
            yield f"feature {key!r} has the label {unknown}, which is not in the label map"


@dataclass(frozen=True)
class ExampleRules:
    """What every record of a data set must be.

    Attributes:
        context: rules by key, of the features of an Example or of a SequenceExample's context.
        steps: rules by key, of a SequenceExample's feature lists; empty for Examples.
        labels: ids of the label map; empty where there is none.
        images: keys of image files.
        row_label: key of the labels that the index holds too; empty where there is none.
        size_keys: keys of a picture's height and width, which the index holds too; none where a
            record does not state them.
    """

    context: Mapping[str, Rule]
    steps: Mapping[str, Rule] = field(default_factory=dict)
    labels: frozenset[int] = frozenset()
    images: tuple[str, ...] = ()
    row_label: str = ""
    size_keys: tuple[str, ...] = ()

    def find_wrong(
        self,
        data: bytes,
        sources: Sequence[str] = (),
        row_labels: Sequence[int] | None = None,
        row_size_px: tuple[int | None, ...] = (),
        *,
        hashes: bool = False,
    ) -> list[str]:
        """Return what is wrong with a record.

        Args:
            data: its bytes.
            sources: hex SHA-256 of its source files, where images are those files; else none.
            row_labels: its labels in the index; None where the index has no such record.
            row_size_px: height and width of its picture in the index; none where it has neither.
            hashes: whether to compare SHA-256 of images.
        """
        steps: Mapping[str, Message] = {}
        try:
            if self.steps:
                context, steps = read_sequence(data)
            else:
                context = read_features(data)
        except ValueError as error:
            return [f"no Example: {error}"]
        wrong: list[str] = []
        get, known = context.get, 0
        for key, listed, labels, rule in self._by_key:
            if (feature := get(key)) is None:
                continue
            known += 1
            values = listed(feature)
            # One value, and a known label: the usual feature is judged without a call.
            if len(values) != 1 or not (labels is None or values[0] in labels):
                wrong += rule.wrong(key, feature)
            if row_labels is not None and key == self.row_label and values != row_labels:
                wrong.append(_wrong_labels(key, values, row_labels))
        if known != len(self._by_key) or known != len(context):
            wrong += _wrong_keys(context, self.context)
        if self.steps or steps:
            wrong += self._wrong_steps(steps)
        for key, value in zip(self.size_keys, row_size_px, strict=False):
            stated = list(context[key].int64_list.value) if key in context else []
            if value is not None and stated != [value]:
                wrong.append(f"feature {key!r} is {_some(stated)}, the index says {value}")
        if hashes:
            wrong += self._wrong_hashes(context, sources)
        return wrong

    @cached_property
    def _by_key(self) -> list[tuple[str, Callable[[Message], Sequence[Any]], Any, Rule]]:
        """The rules of the context, looked up once and not for each of millions of records."""
        return [(key, rule.listed, rule.labels, rule) for key, rule in self.context.items()]

    def _wrong_steps(self, steps: Mapping[str, Message]) -> Iterator[str]:
        yield from _wrong_keys(steps, self.steps)
        for key, rule in self.steps.items():
            for feature in steps[key].feature if key in steps else ():
                yield from rule.wrong(key, feature)

    def _wrong_hashes(
        self, context: Mapping[str, Message], sources: Sequence[str]
    ) -> Iterator[str]:
        """Compare images with the hash next to them, and with those of their sources."""
        digests = {
            key: hashlib.sha256(value).hexdigest()
            for key in self.images
            if key in context
            for value in context[key].bytes_list.value
        }
        if _SHA256_KEY in context and _IMAGE_KEY in digests:
            text = b"".join(context[_SHA256_KEY].bytes_list.value).decode("ascii", "replace")
            if text != digests[_IMAGE_KEY]:
                yield f"{_SHA256_KEY!r} is {text!r}, {_IMAGE_KEY!r} has {digests[_IMAGE_KEY]}"
        for key, digest in digests.items():
            if sources and digest not in sources:
                yield f"{key!r} has the SHA-256 {digest}, which is none of its sources by the index"


def _wrong_keys(found: Mapping[str, Message], rules: Mapping[str, Rule]) -> Iterator[str]:
    for key, rule in rules.items():
        if key not in found and not rule.optional:
            yield f"feature {key!r} is not there"
    for key in sorted(found):
        if key not in rules:
            yield f"feature {key!r} is not in the manifest"


def _wrong_labels(key: str, found: Sequence[int], row_labels: Sequence[int]) -> str:
    return f"feature {key!r} has the labels {_some(found)}, the index says {_some(row_labels)}"


def rules_of(manifest: Manifest) -> ExampleRules:
    """Return what a manifest says of every record."""
    return make_rules(manifest.features, manifest.plan.labels, manifest.layout)


def make_rules(
    features: Sequence[FeatureEntry], labels: Sequence[Label], layout: str = ""
) -> ExampleRules:
    """Return what every record with these features must be.

    Args:
        features: of the records.
        labels: of the label map.
        layout: name of the layout, where it is one of ours.
    """
    ids = frozenset(label.id for label in labels)
    class_labels = {f.key for f in features if f.content == Content.CLASS_LABEL.value}
    rules = {
        feature.key: Rule(
            Kind(feature.kind),
            feature.repeated,
            feature.optional,
            ids if ids and feature.key in class_labels else None,
        )
        for feature in features
    }
    steps = {feature.key for feature in features if feature.per_step}
    return ExampleRules(
        {key: rule for key, rule in rules.items() if key not in steps},
        {key: rule for key, rule in rules.items() if key in steps},
        ids,
        tuple(f.key for f in features if f.content == Content.IMAGE.value and f.key not in steps),
        _row_label(class_labels - steps) if layout in _INDEXED_LAYOUTS else "",
        _SIZE_KEYS if layout in _INDEXED_LAYOUTS and rules.keys() >= {*_SIZE_KEYS} else (),
    )


def _row_label(class_labels: Collection[str]) -> str:
    """Return the key of the labels that the index holds too; empty where there is not just one."""
    keys = [key for key in class_labels if not key.startswith(_PANOPTIC)]
    return keys[0] if len(keys) == 1 else ""


def _some(labels: Sequence[object]) -> str:
    """Return labels as text, the first of many."""
    shown = " ".join(map(str, labels[:_SHOWN_LABELS]))
    more = len(labels) - _SHOWN_LABELS
    return f"[{shown}{f' and {more} more' if more > 0 else ''}]"


MAX_KEYS = 1000
"""Of a schema; more are counted alone."""

NO_KIND = "empty"
"""A feature without a list, which readers take for one without values."""

Place = tuple[str, int, int]
"""A record: its file, its number and the offset of its frame."""


class KindFacts(msgspec.Struct):
    """A feature's values of one kind.

    Attributes:
        records: that hold them.
        least: fewest values in one record, of a feature list in one step.
        most: most values.
        first: the first such record.
    """

    records: int
    least: int
    most: int
    first: Place

    def add(self, other: "KindFacts") -> None:
        """Add another's records, which come after these."""
        self.records += other.records
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)


class FeatureFacts(msgspec.Struct):
    """One feature of the records.

    Attributes:
        per_step: whether it is a feature list of SequenceExamples.
        kinds: facts by kind: bytes, float, int64 or `NO_KIND`.
        steps: fewest and most steps, of a feature list.
        images: values that are image files, by their format.
        no_images: values that are none, empty ones left out.
        first_no_image: the first record that holds one.
    """

    per_step: bool = False
    kinds: dict[str, KindFacts] = {}
    steps: tuple[int, int] | None = None
    images: dict[str, int] = {}
    no_images: int = 0
    first_no_image: Place | None = None

    @property
    def records(self) -> int:
        """How many records have it."""
        return sum(facts.records for facts in self.kinds.values())

    def is_image(self) -> bool:
        """Return whether it holds image files: more than half of its values are."""
        return sum(self.images.values()) > self.no_images

    def add_values(self, values: Values, place: Place) -> None:
        """Add what a record, or a step, holds."""
        count = len(values.values)
        kind = NO_KIND if values.kind is None else values.kind.value
        self._add_kind(kind, KindFacts(1, count, count, place))

    def extend(self, other: "FeatureFacts") -> None:
        """Add another's records, which come after these."""
        for kind, facts in other.kinds.items():
            self._add_kind(kind, facts)
        if other.steps is not None:
            self.add_steps(*other.steps)
        for name, count in other.images.items():
            self.images[name] = self.images.get(name, 0) + count
        self.no_images += other.no_images
        self.first_no_image = self.first_no_image or other.first_no_image

    def add_steps(self, fewest: int, most: int) -> None:
        """Add numbers of steps."""
        low, high = self.steps or (fewest, most)
        self.steps = min(low, fewest), max(high, most)

    def _add_kind(self, kind: str, facts: KindFacts) -> None:
        if kind in self.kinds:
            self.kinds[kind].add(facts)
        else:
            self.kinds[kind] = msgspec.structs.replace(facts)


class InferredSchema(msgspec.Struct):
    """What records hold; schemas of files add up.

    Attributes:
        records: Examples or SequenceExamples.
        features: by key.
        others: records that are neither.
        first_other: the first of those.
        unlisted: features beyond `MAX_KEYS`, counted once a record.
    """

    records: int = 0
    features: dict[str, FeatureFacts] = {}
    others: int = 0
    first_other: Place | None = None
    unlisted: int = 0

    def add(self, record: Sequences, place: Place) -> None:
        """Add a record."""
        self.records += 1
        for key, values in record.context.items():
            if facts := self.feature(key):
                facts.add_values(values, place)
        for key, steps in record.feature_lists.items():
            if facts := self.feature(key, per_step=True):
                facts.add_steps(len(steps), len(steps))
                self._add_steps(facts, steps, place)

    def add_other(self, place: Place) -> None:
        """Add a record that is no Example."""
        self.others += 1
        self.first_other = self.first_other or place

    def feature(self, key: str, *, per_step: bool = False) -> FeatureFacts | None:
        """Return what is known of a feature; None where there are too many."""
        if key not in self.features:
            if len(self.features) >= MAX_KEYS:
                self.unlisted += 1
                return None
            self.features[key] = FeatureFacts(per_step)
        return self.features[key]

    def extend(self, other: "InferredSchema") -> None:
        """Add a file's records, which come after these."""
        self.records += other.records
        self.others += other.others
        self.first_other = self.first_other or other.first_other
        self.unlisted += other.unlisted
        for key, facts in other.features.items():
            if mine := self.feature(key, per_step=facts.per_step):
                mine.extend(facts)

    def lines(self) -> Iterator[str]:
        """Yield a line a feature: key, kind, records that have it, number of values."""
        rows = [
            (printable(key), *_row(facts, self.records))
            for key, facts in sorted(self.features.items())
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
        for row in rows:
            yield "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            ).rstrip()
        if self.unlisted:
            yield f"more than {MAX_KEYS} features: the others are not listed"

    @staticmethod
    def _add_steps(facts: FeatureFacts, steps: list[Values], place: Place) -> None:
        """Add a record's steps as one record of each of their kinds."""
        counts: dict[str, list[int]] = {}
        for values in steps:
            kind = NO_KIND if values.kind is None else values.kind.value
            counts.setdefault(kind, []).append(len(values.values))
        for kind, found in (counts or {NO_KIND: [0]}).items():
            facts._add_kind(kind, KindFacts(1, min(found), max(found), place))


def conflicts(schema: InferredSchema) -> Iterator[tuple[Place, str]]:
    """Yield where a feature begins to be of another kind than in most records."""
    for key, facts in sorted(schema.features.items()):
        kinds = {kind: found for kind, found in facts.kinds.items() if kind != NO_KIND}
        if len(kinds) < 2:
            continue
        usual = max(kinds, key=lambda kind: kinds[kind].records)
        for kind, found in kinds.items():
            if kind != usual:
                what = f"feature {key!r} is of {kind} in {found.records} records, and of {usual}"
                yield found.first, f"{what} in {kinds[usual].records}"


def _row(facts: FeatureFacts, records: int) -> tuple[str, str, str, str]:
    known: Mapping[str, KindFacts] = facts.kinds
    kinds = " or ".join(kind for kind in known if kind != NO_KIND or len(known) == 1)
    least = min((found.least for found in known.values()), default=0)
    most = max((found.most for found in known.values()), default=0)
    count = str(most) if least == most else f"{least} to {most}"
    values = f"{count} value{'' if most == 1 else 's'}"
    if facts.steps is not None:
        low, high = facts.steps
        values += f" in each of {low if low == high else f'{low} to {high}'} steps"
    images = ", ".join(f"{count} {name}" for name, count in sorted(facts.images.items()))
    return kinds, f"in {facts.records} of {records}", values, images if facts.is_image() else ""
