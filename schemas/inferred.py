"""The features that records of unknown origin turn out to hold, and how often."""

from collections.abc import Iterator, Mapping

import msgspec

from schemas.faults import printable
from schemas.parse_example import Sequences, Values

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
