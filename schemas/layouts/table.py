"""The `table` layout: one Example per row, one feature per column, and an image if there is one."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from beam_tfrec.schemas.columns import ColumnType, cast_cells, columns_of_found, steps_of, values_of
from beam_tfrec.schemas.example import encode_column, join_columns
from beam_tfrec.schemas.features import Feature, FeatureSpec, Kind, class_label, roles_of_spec, text
from beam_tfrec.schemas.fields import EncodedImage, labels_of, row_bytes, row_of
from beam_tfrec.schemas.layouts import Built, Labels, Layout, Unfit
from beam_tfrec.schemas.layouts.classification import IMAGE_VALUES
from beam_tfrec.schemas.samples import Sample

LABEL_KEY, TEXT_KEY = "image/class/label", "image/class/text"
_BYTES_BESIDE_IMAGE = 300
_BYTES_BESIDE_ROW = 64


@dataclass(frozen=True)
class TableLayout(Layout):
    """One Example or SequenceExample per row.

    Attributes:
        types: given types, by column; types of other columns are inferred from their cells.
        label_columns: names of the columns that hold classes.
        with_image: whether every row has an image.
        first_label: number of the first class.
        sequence_columns: names of columns with lists that become a SequenceExample's steps. Rows
            become Examples if it is empty.
        columns: types of the columns that become features; empty before `resolved`.
        many_labels: whether a row may have several classes; set by `resolved`.
    """

    sample_noun: ClassVar[str] = "sample"

    types: Mapping[str, ColumnType] = field(default_factory=dict)
    label_columns: tuple[str, ...] = ()
    with_image: bool = False
    first_label: int = 0
    sequence_columns: tuple[str, ...] = ()
    columns: Mapping[str, ColumnType] = field(default_factory=dict)
    many_labels: bool = False

    def __post_init__(self) -> None:
        """Refuse columns that are named twice, and nested types outside sequences."""
        names = [*self.label_columns, *self.sequence_columns]
        for name in names:
            if names.count(name) > 1 or (name in self.types and name in self.label_columns):
                what = "label_column must name each column once, and none of types or sequence"
                raise ValueError(f"{what}, got {name!r}: remove one mention")
        for name, wanted in self.types.items():
            if wanted.nested and name not in self.sequence_columns:
                what = f"types may be lists of lists only for --sequence, got {wanted} of {name!r}"
                raise ValueError(f"{what}: add it there, or give {name}={wanted.kind.value}[]")

    @property
    def name(self) -> str:
        """The layout's name in the manifest. SequenceExamples have another than Examples."""
        return "sequence" if self.sequence_columns else "table"

    @property
    def spec(self) -> FeatureSpec:
        """The features of every Example."""
        images = IMAGE_VALUES.features if self.with_image else ()
        columns = tuple(map(self._column_feature, sorted(self.columns)))
        return FeatureSpec(self.name, (*images, *self._label_features(), *columns))

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
            found: the texts of `found_of_columns`.

        Raises:
            ValueError: when a requested column is missing, or cannot be a feature.
        """
        columns = columns_of_found(found)
        if found:
            self._refuse_unknown(columns)
        for name, wanted in self.types.items():
            missing = name in columns and columns[name].optional
            columns[name] = replace(wanted, optional=wanted.optional or missing)
        for name in self.sequence_columns if found else ():
            if not (wanted := columns[name]).repeated:
                what = f"sequence must name columns of lists, got {name!r} of {wanted}"
                remedy = f"leave it out, or give --types {name}={wanted.kind.value}[]"
                raise ValueError(f"{what}: {remedy}")
        labels = [columns.pop(name) for name in self.label_columns if name in columns]
        many_labels = len(self.label_columns) > 1 or any(column.repeated for column in labels)
        columns = {
            name: replace(column, optional=column.optional and not column.repeated)
            for name, column in columns.items()
        }
        if not (columns or self.with_image or self.label_columns):
            what = "types must name the columns when no row has any, got none"
            remedy = "give .csv, .tsv, .jsonl or .parquet files with rows, or --types age=int64"
            raise ValueError(f"{what}: {remedy}")
        self._refuse_keys(columns)
        return replace(self, columns=columns, many_labels=many_labels)

    def classes_of(self, sample: Sample) -> tuple[str, ...]:
        """Return the classes of a row."""
        return labels_of(row_of(sample), self.label_columns)

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's estimated size; numbers may take fewer or more bytes in it."""
        images = sum(_BYTES_BESIDE_IMAGE + blob.read_bytes for blob in sample.blobs)
        return _BYTES_BESIDE_ROW + row_bytes(sample) + images

    def build(self, sample: Sample, images: Sequence[EncodedImage], labels: Labels) -> Built:
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
                what = f"column {name!r} is {wanted} and holds {error}"
                raise Unfit("E-ROW-TYPE", what) from None
        named = []
        if self.label_columns:
            named = [labels[name] for name in labels_of(cells, self.label_columns)]
            if not named and not self.many_labels:
                raise Unfit("E-SRC-LABEL", f"column {self.label_columns[0]!r} names no class")
            features[LABEL_KEY] = Kind.INT64, [label.id for label in named]
            texts = [(label.text or label.name).encode() for label in named]
            features[TEXT_KEY] = Kind.BYTES, texts
        for image in images:
            values_of_image = IMAGE_VALUES(image)
            features |= {f.key: (f.kind, values_of_image[f.key]) for f in IMAGE_VALUES.features}
        feature_lists = steps if self.sequence_columns else None
        return Built(features, [], [], [label.id for label in named], feature_lists)

    def examples(self, samples: Sequence[Sample]) -> list[bytes] | None:
        """Return the Examples of rows, or None if they are more than single values.

        They are made column by column, which takes a third of the time.

        Raises:
            ValueError: when a cell does not fit its type.
            OverflowError: when a number is beyond int64 or float32.
        """
        roles = roles_of_spec(self.spec)  # values with these are also in the index
        has_lists = any(column.repeated for column in self.columns.values())
        if has_lists or self.label_columns or roles.images or roles.pixels or roles.objects:
            return None
        rows = [*map(row_of, samples)]
        columns = []
        for name, wanted in sorted(self.columns.items()):
            cells = [row.get(name) for row in rows]
            held = cast_cells([cell for cell in cells if cell is not None], wanted.kind)
            entries = iter(encode_column(name, wanted.kind, held))
            columns.append([b"" if cell is None else next(entries) for cell in cells])
        return join_columns(columns)

    def _refuse_unknown(self, columns: Collection[str]) -> None:
        """Refuse options with columns that the table does not have."""
        for name in (*self.types, *self.label_columns, *self.sequence_columns):
            if name not in columns:
                shown = ", ".join(sorted(columns)[:20])
                what = "types, label_column and sequence must name columns"
                raise ValueError(f"{what}, got {name!r}: give one of {shown}")

    def _refuse_keys(self, columns: Collection[str]) -> None:
        """Refuse column names that cannot be keys, or that are keys of the image or label."""
        own: set[str] = set()
        if self.with_image or self.label_columns:
            own = {LABEL_KEY, TEXT_KEY, *(feature.key for feature in IMAGE_VALUES.features)}
        for name in columns:
            if name in own or not all(name.split("/")):
                what = "column names must be like a or a/b, and no keys of image and label"
                raise ValueError(f"{what}, got {name!r}: rename it")

    def _column_feature(self, name: str) -> Feature:
        wanted = self.columns[name]
        per_step = name in self.sequence_columns
        return Feature(
            name,
            wanted.kind,
            wanted.nested if per_step else wanted.repeated,
            " ".join(["column", *name.split()]),
            optional=wanted.optional,
            per_step=per_step,
        )

    def _label_features(self) -> tuple[Feature, ...]:
        if not self.label_columns:
            return ()
        what = "ids in label_map.pbtxt" if self.many_labels else "id in label_map.pbtxt"
        names = "names of the classes" if self.many_labels else "name of the class"
        return (
            class_label(LABEL_KEY, what, repeated=self.many_labels),
            text(TEXT_KEY, names, repeated=self.many_labels),
        )
