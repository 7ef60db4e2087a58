"""NumPy arrays to sharded .tfrec: `beam-tfrec arrays --help`."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import apache_beam as beam

from beam_tfrec.pipelines.cli import main
from beam_tfrec.pipelines.data_set import DataSetConfig, check_splits_named, keys_option
from beam_tfrec.pipelines.flags import SourceParser, parse_per_split, paths_of
from beam_tfrec.pipelines.run import Command
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.layouts.arrays import FEATURE_KEYS, ArraysLayout, Encoding
from beam_tfrec.schemas.tensors import BFLOAT16
from beam_tfrec.transforms.sources.read_arrays import ArrayReader, ArraySource, PlanArrays
from beam_tfrec.transforms.sources.read_blobs import NPY
from beam_tfrec.transforms.sources.read_samples import SourceSamples

_FEATURE_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class ArraysConfig(DataSetConfig):
    """A whole conversion of arrays.

    Attributes:
        arrays: URI of a `.npy` or `.npz` file, or of a folder of them, per split.
        image_array: name of the image array per split; the empty name stands for all other splits.
        label_array: name of the label array, or URI of its file, per split.
        feature_arrays: names of arrays with one value per record, to write as features.
        tensor_arrays: names of arrays whose items are features of their own, instead of raw_image;
            the first one is the image array.
        key_array: name of the array with each sample's key; empty for row numbers.
        dtype: type of two-byte values that have none; None if there are no such values.
        one_sample_per_file: each file of a folder is one sample, not an array of samples.
    """

    arrays: Mapping[str, str]
    image_array: Mapping[str, str] = field(default_factory=dict)
    label_array: Mapping[str, str] = field(default_factory=dict)
    feature_arrays: tuple[str, ...] = ()
    tensor_arrays: tuple[str, ...] = ()
    key_array: str = ""
    dtype: str | None = None
    one_sample_per_file: bool = False
    layout: Layout = field(default_factory=ArraysLayout, kw_only=True)

    source_flag: ClassVar[str] = "--arrays"

    def __post_init__(self) -> None:
        """Refuse options that do not fit together."""
        super().__post_init__()
        self._check_tensors()
        for option, given in (("image_array", self.image_array), ("label_array", self.label_array)):
            check_splits_named(option, given, "--arrays", self.arrays)
        for name in (*self.feature_arrays, *self.tensor_arrays):
            if name in FEATURE_KEYS or not _FEATURE_NAME.fullmatch(name):
                option = "feature_arrays" if name in self.feature_arrays else "tensor_arrays"
                what = f"be letters, digits and _, and none of {', '.join(sorted(FEATURE_KEYS))}"
                raise ValueError(f"{option} must {what}, got {name!r}: rename it")
        for split, source in self.sources.items():
            if self.label_array and not source.label:
                what = f"be given for every split, got none for {split}"
                raise ValueError(f"label_array must {what}: add it, or convert {split} by itself")
            if source.image and source.uri.endswith(NPY):
                option = "tensor_arrays" if source.tensors else "image_array"
                what = f"a folder or an .npz file, got {source.image!r} with {source.uri!r}"
                raise ValueError(f"{option} must come with {what}: leave it out")
            if len(set(source.sides)) < len(source.sides) or source.image in source.sides:
                names = f"{[*filter(None, [source.image])]} and {[*source.sides]}"
                raise ValueError(f"arrays must be named once, got {names}: name each for one use")

    def _check_tensors(self) -> None:
        """Refuse tensors and keys together with options of other arrays."""
        tensors, alone = ",".join(self.tensor_arrays), self.one_sample_per_file
        raw = isinstance(self.layout, ArraysLayout) and self.layout.encoding is Encoding.RAW
        for option, value, other, is_given in (
            ("tensor_arrays", tensors, "image_array", bool(self.image_array)),
            ("tensor_arrays", tensors, "encoding raw", raw),
            ("tensor_arrays", tensors, "one_sample_per_file", alone),
            ("key_array", self.key_array, "one_sample_per_file", alone),
        ):
            if value and is_given:
                raise ValueError(f"{option} must come without {other}, got {value}: omit one")

    @property
    def split_fields(self) -> frozenset[str]:
        """Fields that `split_by` and `group_by` may name."""
        return frozenset(self.feature_arrays)

    @property
    def sources(self) -> dict[str, ArraySource]:
        """Where the arrays of each given split lie."""
        first = next(iter(self.tensor_arrays), "")
        return {
            split: ArraySource(
                uri,
                image=_of_split(self.image_array, split) or first,
                label=_of_split(self.label_array, split),
                features=self.feature_arrays,
                tensors=self.tensor_arrays,
                key=self.key_array,
                dtype=self.dtype,
                one_sample_per_file=self.one_sample_per_file,
            )
            for split, uri in self.arrays.items()
        }

    @property
    def roots(self) -> Mapping[str, str]:
        """URI per root name of the samples' blobs."""
        return {split: source.folder for split, source in self.sources.items()}

    @property
    def listed_roots(self) -> Mapping[str, str]:
        """URI per root name of folders; files are identified one by one."""
        return {split: s.uri for split, s in self.sources.items() if not s.is_file}

    def files_of(self, split: str) -> Sequence[str]:
        """Return the URIs of files that identify the sources of a given split."""
        return [*self.shared_files, *self.sources[split].files]

    @property
    def unpacks_archives(self) -> bool:
        """Whether workers unpack archives to disk."""
        return any(not source.uri.endswith(NPY) for source in self.sources.values())

    def read_sources(self, root: beam.Pipeline) -> SourceSamples:
        """Build the part of the graph that reads samples from ranges of arrays."""
        planned = root | "PlanArrays" >> PlanArrays(self.sources, self.access)
        reader = ArrayReader(self.splitting, self.sources, self.access)
        read = planned.pieces | "ReadArrays" >> self.samples_step(reader)
        return read._replace(root_tallies=planned.root_tallies)

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        labels = {
            split: "file" if name.endswith(NPY) else name
            for split, name in self.label_array.items()
        }
        chosen = {
            "image_array": _named(self.image_array),
            "label_array": _named(labels),
            "feature_arrays": ",".join(self.feature_arrays),
            "tensor_arrays": ",".join(self.tensor_arrays),
            "key_array": self.key_array,
            "dtype": self.dtype or "",
            "one_sample_per_file": "yes" if self.one_sample_per_file else "",
        }
        keys = keys_option({split: _keys_of(source) for split, source in self.sources.items()})
        return super().options() | {name: value for name, value in chosen.items() if value} | keys


def _keys_of(source: ArraySource) -> str:
    """Return the parts of keys other than the row number, as far as the source's name shows."""
    if source.key:
        return "key"
    if source.one_sample_per_file:
        return "file"
    if source.is_file:
        return ""
    return "array" if source.image else "file:row"  # one file, or in each of several archives


def add_flags(parser: SourceParser) -> None:
    """Add the flags of the source and its layout."""
    paths = ".npy or .npz file per split, or a folder of these; the first axis counts samples"
    group = parser.add_sources("sources (docs/sources.md)", arrays=("PATH", paths))
    images = "images: an array of the .npz file, or a .npy file of the folder"
    default = "(default: the only array, else x, images or image)"
    group.several("--image_array", f"{images} {default}", "[SPLIT=]NAME")
    labels = "labels, as numbers or names: an array or a .npy file"
    group.several("--label_array", labels, "[SPLIT=]NAME|FILE.npy")
    features = "arrays with a number or text for each sample, to write as features"
    group.text("--feature_arrays", features, "NAME,NAME")
    tensors = "arrays of any shape, each to write as a tensor of its name, instead of raw_image"
    group.text("--tensor_arrays", tensors, "NAME,NAME")
    keys = "array with each sample's unique key, a text or whole number (default: row numbers)"
    group.text("--key_array", keys, "NAME")
    group.switch("--one_sample_per_file", "take each file of a folder as one sample")
    dtype = "type of two-byte values that have none (V2 in NumPy)"
    group.choice("--dtype", dtype, [BFLOAT16])
    encoding = "of raw_image: tensor for tf.io.parse_tensor, raw for tf.io.decode_raw"
    group.choice("--encoding", encoding, Encoding, "tensor")


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own."""
    tensors = tuple(flags.tensor_arrays.split(",")) if flags.tensor_arrays else ()
    return {
        **paths_of(flags, "arrays"),
        "image_array": parse_per_split("image_array", flags.image_array),
        "label_array": parse_per_split("label_array", flags.label_array),
        "feature_arrays": tuple(flags.feature_arrays.split(",")) if flags.feature_arrays else (),
        "tensor_arrays": tensors,
        "layout": ArraysLayout(flags.encoding, tensors=tensors),
    }


def _of_split(names: Mapping[str, str], split: str) -> str:
    return names.get(split, names.get("", ""))


def _named(names: Mapping[str, str]) -> str:
    return " ".join(f"{split}={name}" if split else name for split, name in sorted(names.items()))


run = Command("arrays", ArraysConfig, add_flags, fields_of, "--arrays cifar.npz", images=False)

if __name__ == "__main__":
    main(run.name)
