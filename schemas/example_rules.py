"""What every record of a data set must be, by its manifest, and whether a record is that."""

import hashlib
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from schemas.features import Content, Kind
from schemas.manifest import FeatureEntry, Label, Manifest
from schemas.parse_example import Message, kind_of, read_features, read_sequence

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
