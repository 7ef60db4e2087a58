"""The `table` layout: a row of a table, a feature a column, with its image where it has one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from schemas.columns import ColumnType, check_named, columns_of_found, steps_of, values_of
from schemas.example import FeatureValues
from schemas.features import Content, Feature, FeatureSpec, Kind
from schemas.fields import EncodedImage, labels_of, row_bytes, row_of
from schemas.layouts import Built, Labels, Layout, Unfit
from schemas.layouts.classification import CLASSIFICATION
from schemas.samples import Sample

LABEL_KEY, TEXT_KEY = "image/class/label", "image/class/text"
_IMAGE_FEATURES = tuple(f for f in CLASSIFICATION.features if f.key not in (LABEL_KEY, TEXT_KEY))
_BYTES_BESIDE_IMAGE = 300
_BYTES_BESIDE_ROW = 64


@dataclass(frozen=True)
class TableLayout(Layout):
    """One Example or SequenceExample per row.

    Attributes:
        types: of columns, where they are given; those of others follow from their cells.
        label_columns: names of the columns that hold classes.
        with_image: every row has an image.
        first_label: number of the first class.
        sequence_columns: names of the columns whose lists are a SequenceExample's steps; of these
            it is one per row, if there are any.
        columns: the columns that are features, with their types; none before `resolved`.
        many_labels: a row may have several classes; known when it is resolved.
    """

    types: Mapping[str, ColumnType] = field(default_factory=dict)
    label_columns: tuple[str, ...] = ()
    with_image: bool = False
    first_label: int = 0
    sequence_columns: tuple[str, ...] = ()
    columns: Mapping[str, ColumnType] = field(default_factory=dict)
    many_labels: bool = False

    def __post_init__(self) -> None:
        """Refuse types of what is no feature."""
        if both := sorted({*self.types} & {*self.label_columns}):
            raise ValueError(f"types must not be of a label_column, got {both[0]!r}: leave one out")
        if len(set(self.label_columns)) < len(self.label_columns):
            raise ValueError(
                f"label_column must name each column once, got {[*self.label_columns]}: remove one"
            )
        self._refuse_sequences()

    @property
    def name(self) -> str:
        """The layout's name in the manifest: no reader takes Examples for SequenceExamples."""
        return "sequence" if self.sequence_columns else "table"

    @property
    def spec(self) -> FeatureSpec:
        """The features of every Example."""
        images = _IMAGE_FEATURES if self.with_image else ()
        columns = tuple(map(self._column_feature, sorted(self.columns)))
        return FeatureSpec(self.name, (*images, *self._label_features(), *columns))

    @property
    def first_label_id(self) -> int:
        """The number from which labels are counted."""
        return self.first_label

    @property
    def has_payloads(self) -> bool:
        """Whether samples may have payloads: large rows are."""
        return True

    @property
    def sample_noun(self) -> str:
        """What a sample of its sources is called in messages."""
        return "sample"

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes."""
        types = (f"{name}={wanted}" for name, wanted in sorted(self.types.items()))
        options = {"types": ",".join(types), "label_column": ",".join(self.label_columns)}
        if self.label_columns:
            options["first_label"] = str(self.first_label)
        if self.sequence_columns:
            options["sequence"] = ",".join(sorted(self.sequence_columns))
        return options

    def resolved(self, found: Sequence[str]) -> Self:
        """Return the layout with the types of all columns.

        Args:
            found: what `found_of_columns` gives.

        Raises:
            ValueError: when a column that is asked for is not there, or cannot be a feature.
        """
        columns = columns_of_found(found)
        if found:
            check_named("types", self.types, columns)
            check_named("label_column", self.label_columns, columns)
            check_named("sequence", self.sequence_columns, columns)
        for name, wanted in self.types.items():
            missing = name in columns and columns[name].optional
            columns[name] = replace(wanted, optional=wanted.optional or missing)
        _refuse_single_values({name: columns[name] for name in self.sequence_columns if found})
        labels = [columns.pop(name) for name in self.label_columns if name in columns]
        many_labels = len(self.label_columns) > 1 or any(column.repeated for column in labels)
        columns = {
            name: replace(column, optional=column.optional and not column.repeated)
            for name, column in columns.items()
        }
        layout = replace(self, columns=columns, many_labels=many_labels)
        if not (columns or self.with_image or self.label_columns):
            raise ValueError(
                "types must name the columns when no row has any, got none: give such as"
                " --types age=int64, or a table with rows"
            )
        _refuse_keys(layout)
        return layout

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's size to within the form of its numbers."""
        images = sum(_BYTES_BESIDE_IMAGE + blob.size_bytes for blob in sample.blobs)
        return _BYTES_BESIDE_ROW + row_bytes(sample) + images

    def build(
        self, sample: Sample, images: Sequence[EncodedImage], labels: Labels
    ) -> Built | Unfit:
        """Return the Example's values."""
        cells = row_of(sample)
        features: dict[str, tuple[Kind, Sequence]] = {}
        steps: dict[str, tuple[Kind, Sequence[Sequence]]] = {}
        for name, wanted in self.columns.items():
            try:
                if name in self.sequence_columns:
                    steps[name] = wanted.kind, steps_of(cells.get(name), wanted)
                elif (values := values_of(cells.get(name), wanted)) is not None:
                    features[name] = wanted.kind, values
            except ValueError as error:
                return Unfit("E-ROW-TYPE", f"column {name!r} is {wanted} and holds {error}")
        named = [labels[name] for name in labels_of(cells, self.label_columns)]
        if self.label_columns:
            if not named and not self.many_labels:
                return Unfit("E-SRC-LABEL", f"column {self.label_columns[0]!r} names no class")
            features[LABEL_KEY] = Kind.INT64, [label.id for label in named]
            features[TEXT_KEY] = (
                Kind.BYTES,
                [(label.text or label.name).encode() for label in named],
            )
        for image in images:
            features |= _image_values(image)
        feature_lists = steps if self.sequence_columns else None
        return Built(features, [], [], [label.id for label in named], feature_lists)

    def _refuse_sequences(self) -> None:
        """Refuse columns of sequences that cannot be, and types that only those can have."""
        named = self.sequence_columns
        if len(set(named)) < len(named):
            raise ValueError(f"sequence must name each column once, got {[*named]}: remove one")
        if both := sorted({*named} & {*self.label_columns}):
            raise ValueError(
                f"sequence must not name a label_column, got {both[0]!r}: leave one out"
            )
        for name, wanted in self.types.items():
            if wanted.nested and name not in named:
                raise ValueError(
                    f"types must be of lists of lists for columns of sequence alone, got {wanted}"
                    f" of {name!r}: give such as {name}={wanted.kind.value}[], or name it there"
                )

    def _column_feature(self, name: str) -> Feature:
        wanted = self.columns[name]
        per_step = name in self.sequence_columns
        return Feature(
            name,
            wanted.kind,
            wanted.nested if per_step else wanted.repeated,
            _doc(name),
            Content.PLAIN,
            optional=wanted.optional,
            per_step=per_step,
        )

    def _label_features(self) -> tuple[Feature, ...]:
        if not self.label_columns:
            return ()
        what = "ids in label_map.pbtxt" if self.many_labels else "id in label_map.pbtxt"
        names = "names of the classes" if self.many_labels else "name of the class"
        return (
            Feature(LABEL_KEY, Kind.INT64, self.many_labels, what, Content.CLASS_LABEL),
            Feature(TEXT_KEY, Kind.BYTES, self.many_labels, names, Content.TEXT),
        )


def _doc(name: str) -> str:
    return " ".join(["column", *name.split()])


def _refuse_keys(layout: TableLayout) -> None:
    """Refuse columns whose names cannot be keys, or are those of an image or a label."""
    own = (
        {f.key for f in CLASSIFICATION.features}
        if layout.with_image or layout.label_columns
        else set()
    )
    for name in layout.columns:
        if name in own:
            raise ValueError(
                f"a column must not be called as a feature of images is, got {name!r}: rename it"
            )
        if not all(name.split("/")):
            raise ValueError(
                f"a column must be called by names with single slashes between, got {name!r}:"
                " rename it, as in 'a/b'"
            )
        layout._column_feature(name)


def _refuse_single_values(columns: Mapping[str, ColumnType]) -> None:
    for name, wanted in columns.items():
        if not wanted.repeated:
            raise ValueError(
                f"sequence must name columns of lists, got {name!r} of {wanted}: leave it out, or"
                f" give --types {name}={wanted.kind.value}[] for sequences of one step"
            )


def _image_values(image: EncodedImage) -> FeatureValues:
    return {
        "image/encoded": (Kind.BYTES, [image.data]),
        "image/format": (Kind.BYTES, [image.info.format.encode()]),
        "image/height": (Kind.INT64, [image.info.height_px]),
        "image/width": (Kind.INT64, [image.info.width_px]),
        "image/filename": (Kind.BYTES, [image.name.encode()]),
        "image/key/sha256": (Kind.BYTES, [image.sha256.encode()]),
    }
