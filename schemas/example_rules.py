"""What a manifest says of every record, and whether a record is like that."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.features import Content, Kind
from schemas.manifest import FeatureEntry, Label, Manifest
from schemas.parse_example import Values, parse_example, parse_sequence_example
from schemas.plain_examples import PlainEntry, is_plain, plain_entry

_SHA256_KEY = "image/key/sha256"
_IMAGE_KEY = "image/encoded"
_SHOWN_LABELS = 10
_PANOPTIC = "panoptic_objects/"  # whose labels no index has
_INDEXED_LAYOUTS = frozenset(
    [
        *("detection", "keras", "tfds", "table", "arrays"),
        *("classification", "imagenet", "tutorial", "tensor"),
    ]
)
"""Those of ours that write the labels of an index into the record; a user's own may not."""


@dataclass(frozen=True)
class Rule:
    """What one feature is to be.

    Attributes:
        kind: of its values.
        repeated: whether there may be any number of them, instead of one.
        optional: whether it may be absent.
        is_label: whether they are ids of the label map.
    """

    kind: Kind
    repeated: bool
    optional: bool
    is_label: bool


@dataclass(frozen=True)
class ExampleRules:
    """What every record of a data set is to be.

    Attributes:
        context: rules by key, of the features of an Example or of a SequenceExample's context.
        steps: rules by key, of a SequenceExample's feature lists; empty for Examples.
        labels: ids of the label map; empty where there is none.
        images: keys of image files.
        plain: entries of an Example in which all is right; none where that cannot be told so.
        row_label: key of the labels that an index has too; empty where there is none.
    """

    context: Mapping[str, Rule]
    steps: Mapping[str, Rule] = field(default_factory=dict)
    labels: frozenset[int] = frozenset()
    images: tuple[str, ...] = ()
    plain: tuple[PlainEntry, ...] = ()
    row_label: str = ""

    def find_wrong(
        self,
        data: bytes,
        sources: Sequence[str] = (),
        row_labels: Sequence[int] | None = None,
        *,
        hashes: bool = False,
    ) -> Iterator[str]:
        """Yield what is wrong with a record.

        Args:
            data: its bytes.
            sources: SHA-256 of what it was made of, hex, where images are those files; else none.
            row_labels: of the record by the index; None where that has no such record.
            hashes: whether to compare SHA-256 of images.
        """
        if self.plain and not hashes and is_plain(data, self.plain, row_labels):
            return
        try:
            if self.steps:
                context, steps = parse_sequence_example(data)
            else:
                context, steps = parse_example(data), {}
        except ValueError as error:
            yield f"no Example: {error}"
            return
        yield from self._wrong_keys(context, self.context)
        yield from self._wrong_keys(steps, self.steps)
        for key, values in context.items():
            if rule := self.context.get(key):
                yield from self._wrong_values(key, values, rule)
        for key, of_steps in steps.items():
            if rule := self.steps.get(key):
                for values in of_steps:
                    yield from self._wrong_values(key, values, rule)
        if self.row_label and row_labels is not None:
            yield from self._wrong_labels(context, row_labels)
        if hashes:
            yield from _wrong_hashes(context, self.images, sources)

    def _wrong_keys(self, found: Mapping[str, object], rules: Mapping[str, Rule]) -> Iterator[str]:
        if found.keys() == rules.keys():
            return
        for key, rule in rules.items():
            if key not in found and not rule.optional:
                yield f"feature {key!r} is not there"
        for key in found:
            if key not in rules:
                yield f"feature {key!r} is not in the manifest"

    def _wrong_values(self, key: str, values: Values, rule: Rule) -> Iterator[str]:
        if values.kind is not rule.kind:
            kind = "no kind" if values.kind is None else values.kind.value
            yield f"feature {key!r} is of {kind}, not of {rule.kind.value}"
        elif not rule.repeated and len(values.values) != 1:
            yield f"feature {key!r} has {len(values.values)} values, not one"
        elif rule.is_label and self.labels and (unknown := set(values.values) - self.labels):
            yield f"feature {key!r} has the label {min(unknown)}, which is not in the label map"

    def _wrong_labels(
        self, context: Mapping[str, Values], row_labels: Sequence[int]
    ) -> Iterator[str]:
        found = context.get(self.row_label)
        if found is not None and list(found.values) != list(row_labels):
            yield (
                f"feature {self.row_label!r} has the labels {_some(found.values)}, the index says"
                f" {_some(row_labels)}"
            )


def rules_of(manifest: Manifest) -> ExampleRules:
    """Return what a manifest says of every record."""
    return make_rules(manifest.features, manifest.plan.labels, manifest.layout)


def make_rules(
    features: Sequence[FeatureEntry], labels: Sequence[Label], layout: str = ""
) -> ExampleRules:
    """Return what every record with these features is to be, of a layout if it is one of ours."""
    rules = {
        feature.key: Rule(
            Kind(feature.kind),
            feature.repeated,
            feature.optional,
            feature.content == Content.CLASS_LABEL.value,
        )
        for feature in features
    }
    steps = {feature.key for feature in features if feature.per_step}
    ids = frozenset(label.id for label in labels)
    has_plain = not steps and not any(feature.optional for feature in features)
    row_label = _row_label(rules, steps) if layout in _INDEXED_LAYOUTS else ""
    return ExampleRules(
        {key: rule for key, rule in rules.items() if key not in steps},
        {key: rule for key, rule in rules.items() if key in steps},
        ids,
        tuple(f.key for f in features if f.content == Content.IMAGE.value and f.key not in steps),
        tuple(_plain_entries(rules, ids, row_label)) if has_plain else (),
        row_label,
    )


def _row_label(rules: Mapping[str, Rule], steps: Collection[str]) -> str:
    """Return the key of the labels that an index has too; empty where there is not just one."""
    keys = [key for key, rule in rules.items() if rule.is_label and key not in steps]
    keys = [key for key in keys if not key.startswith(_PANOPTIC)]
    return keys[0] if len(keys) == 1 else ""


def _some(labels: Sequence[object]) -> str:
    """Return labels as text, the first of many."""
    shown = " ".join(map(str, labels[:_SHOWN_LABELS]))
    more = len(labels) - _SHOWN_LABELS
    return f"[{shown}{f' and {more} more' if more > 0 else ''}]"


def _plain_entries(
    rules: Mapping[str, Rule], ids: frozenset[int], row_label: str
) -> Iterator[PlainEntry]:
    for key, rule in sorted(rules.items()):
        labels = ids if rule.is_label and ids else None
        is_in_index = key == row_label
        yield plain_entry(
            key, rule.kind, repeated=rule.repeated, labels=labels, is_in_index=is_in_index
        )


def _wrong_hashes(
    context: Mapping[str, Values], images: Sequence[str], sources: Sequence[str]
) -> Iterator[str]:
    """Compare images with the hash that stands beside them, and with those of the sources."""
    digests = {
        key: hashlib.sha256(value).hexdigest()
        for key in images
        if key in context and context[key].kind is Kind.BYTES
        for value in context[key].values
    }
    given = context.get(_SHA256_KEY)
    if given is not None and _IMAGE_KEY in digests and given.kind is Kind.BYTES:
        text = b"".join(given.values).decode("ascii", "replace")
        if text != digests[_IMAGE_KEY]:
            yield f"{_SHA256_KEY!r} is {text!r}, {_IMAGE_KEY!r} has {digests[_IMAGE_KEY]}"
    for key, digest in digests.items():
        if sources and digest not in sources:
            yield f"{key!r} has the SHA-256 {digest}, which is none of its sources by the index"
