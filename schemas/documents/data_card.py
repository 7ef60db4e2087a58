"""The data card: `README.md` of a data set, from its manifest alone.

It says what people ask first: what is in there, how many, which features in which units, under
which licenses, made how, and how to read it. There is no clock and no path in it, so that equal
data sets have equal cards; every text of the data is escaped.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from schemas.documents.markdown import code_block, escaped, table
from schemas.documents.seals import BLANK_SEAL, sealed
from schemas.faults import FAULTS
from schemas.labels import is_link
from schemas.manifest import (
    DUPLICATES_NAME,
    MANIFEST_NAME,
    REJECTED_NAME,
    FeatureEntry,
    Label,
    Manifest,
    SplitSummary,
)
from schemas.shards import PLAIN

CARD_NAME = "README.md"

_SHOWN_CLASSES = 50
_SHOWN_FEATURES = 200
_SOURCES = {  # by an option that only this source has
    "orphans": "COCO annotation files and their images",
    "join_by": "images with a JSON file beside each",
    "key_column": "rows of tables",
    "low_suffix": "pairs of images",
}
_SOURCES_BY_LAYOUT = {
    "arrays": "arrays in `.npy` and `.npz` files",
    **dict.fromkeys(
        ("classification", "imagenet", "tutorial", "tensor"), "images in folders of classes"
    ),
}


def data_card(manifest: Manifest) -> str:
    """Return the data card of a data set, in Markdown."""
    parts = [
        _what_it_is(manifest),
        _splits(manifest),
        _left_out(manifest),
        _classes(manifest.plan.labels),
        _features(manifest.features),
        _licenses(manifest.splits),
        _sources(manifest),
        _reading(manifest),
        _files(),
    ]
    marker = f"<!-- {BLANK_SEAL}: made by beam-tfrec; once edited it is yours, and stays -->"
    lines = [marker, *(line for part in parts for line in part)]
    return sealed("\n".join(lines) + "\n")


def source_kind(manifest: Manifest) -> str:
    """Return what a data set was made from, in words."""
    kinds = [text for option, text in _SOURCES.items() if option in manifest.plan.options]
    return (kinds or [_SOURCES_BY_LAYOUT.get(manifest.layout, "sources of the user's own")])[0]


def _what_it_is(manifest: Manifest) -> Iterator[str]:
    splits = manifest.splits.values()
    records, shards = sum(s.records for s in splits), sum(s.shards for s in splits)
    is_sequence = any(feature.per_step for feature in manifest.features)
    message = "tf.train.SequenceExample" if is_sequence else "tf.train.Example"
    yield f"# TFRecord data set of layout {escaped(manifest.layout)}"
    yield ""
    yield (
        f"{_count(records)} records (`{message}`) in {_count(shards)} shards of uncompressed"
        f" TFRecord, {_count(sum(s.bytes for s in splits))} bytes, written by beam-tfrec in format"
        f" version {manifest.format_version}."
    )
    yield (
        f"`{MANIFEST_NAME}` names every shard with its size and checksums. It was written last:"
        " it says that the data set is complete, and a reader takes the files from it."
    )
    yield ""


def _splits(manifest: Manifest) -> Iterator[str]:
    yield "## Splits"
    yield ""
    rows = [
        [
            escaped(name),
            *map(_count, (split.records, split.shards, split.bytes, split.listed)),
            _count(split.annotations.written),
            _count(split.annotations.listed),
        ]
        for name, split in manifest.splits.items()
    ]
    head = ("split", "records", "shards", "bytes", "samples in the sources")
    yield from table((*head, "annotations written", "annotations in the sources"), rows)
    yield ""
    drawn = "split_by" in manifest.plan.options
    if drawn:
        by = escaped(manifest.plan.options["split_by"])
        yield f"The splits were drawn by {by}, see the options below."
        yield ""
    for pair in manifest.duplicates or ():
        yield (
            f"**{_count(pair.contents)} sources of {escaped(pair.splits[0])} have the bytes of one"
            f" of {escaped(pair.splits[1])}**, such as {escaped(pair.names[0])} and"
            f" {escaped(pair.names[1])}: see `{DUPLICATES_NAME}`."
        )
        yield ""


def _left_out(manifest: Manifest) -> Iterator[str]:
    rows = [
        [escaped(name), *row] for name, split in manifest.splits.items() for row in _fates(split)
    ]
    if not rows:
        return
    yield "## What is not as in the sources"
    yield ""
    yield f"Every sample and annotation rejected or dropped is a line of `{REJECTED_NAME}`."
    yield ""
    yield from table(("split", "what", "reason", "count"), rows)
    yield ""


def _fates(split: SplitSummary) -> Iterator[list[str]]:
    """Yield (what, reason, count) of everything that is not as in the sources."""
    fate = split.annotations
    counts: Mapping[str, Mapping[str, int]] = {
        "samples rejected": split.rejected,
        "samples in earlier data sets": {"": split.earlier},
        "samples excluded": {"on request": split.excluded},
        "samples skipped": split.skipped,
        "annotations dropped": fate.dropped,
        "annotations lost": {"with their images": fate.lost},
        "annotations in earlier data sets": {"": fate.earlier},
        "annotations excluded": {"on request": fate.excluded},
        "annotations skipped": fate.skipped,
        "mended": split.repairs,
        "unusual": split.traits,
    }
    for what, reasons in counts.items():
        for reason, count in reasons.items():
            if count:
                yield [what, _reason(reason), _count(count)]


def _reason(reason: str) -> str:
    fault = FAULTS.get(reason)
    return f"{reason}: {escaped(fault.meaning)}" if fault else escaped(reason)


def _classes(labels: list[Label]) -> Iterator[str]:
    if not labels:
        return
    yield "## Classes"
    yield ""
    has_text = any(label.text for label in labels)
    rows = [
        [str(label.id), escaped(label.name), *([escaped(label.text)] if has_text else [])]
        for label in labels[:_SHOWN_CLASSES]
    ]
    yield from table(("label", "name", *(["text"] if has_text else [])), rows)
    yield ""
    if more := labels[_SHOWN_CLASSES:]:
        yield f"And {_count(len(more))} more, in `label_map.pbtxt`."
        yield ""


def _features(features: list[FeatureEntry]) -> Iterator[str]:
    yield "## Features of every record"
    yield ""
    rows = [
        [escaped(f.key), f.kind, _values(f), f.content.replace("_", " "), escaped(f.doc)]
        for f in features[:_SHOWN_FEATURES]
    ]
    yield from table(("key", "type", "values", "content", "meaning, unit, order"), rows)
    yield ""
    if more := features[_SHOWN_FEATURES:]:
        yield f"And {_count(len(more))} more, in `{MANIFEST_NAME}`."
        yield ""


def _values(feature: FeatureEntry) -> str:
    values = "0 or more" if feature.repeated else "at most 1" if feature.optional else "1"
    return f"{values} a step" if feature.per_step else values


def _licenses(splits: Mapping[str, SplitSummary]) -> Iterator[str]:
    yield "## Licenses"
    yield ""
    if not any(split.licenses for split in splits.values()):
        yield "The sources say nothing of licenses."
        yield ""
        return
    rows = [
        [escaped(name), str(found.id), escaped(found.name), _link(found.url), _count(found.records)]
        for name, split in splits.items()
        for found in split.licenses
    ]
    yield "What the annotation files say of the images; nobody has checked it."
    yield ""
    yield from table(("split", "id", "license", "URL", "records"), rows)
    yield ""
    for name, split in splits.items():
        if without := split.records - sum(found.records for found in split.licenses):
            yield f"{_count(without)} records of {escaped(name)} have none."
            yield ""


def _link(url: str) -> str:
    return f"<{url}>" if is_link(url) and "|" not in url else escaped(url)


def _sources(manifest: Manifest) -> Iterator[str]:
    options = manifest.plan.options
    yield "## How it was made"
    yield ""
    kind = source_kind(manifest)
    yield f"From {kind}. The same sources and these options give the same bytes again."
    yield ""
    files = [
        [escaped(name), f.kind, *map(_count, (f.images, f.annotations, f.categories))]
        for name, split in manifest.splits.items()
        for f in split.sources
    ]
    if files:
        head = ("split", "annotation file", "images", "annotations", "categories")
        yield from table(head, files)
        yield ""
    rows = [[escaped(name), escaped(value)] for name, value in sorted(options.items()) if value]
    yield from table(("option", "value"), rows)
    yield ""


def _reading(manifest: Manifest) -> Iterator[str]:
    ways = reading_code(manifest)
    if not ways:
        return
    yield "## How to read it"
    yield ""
    for way in ways:
        yield f"### {way.title}"
        yield ""
        yield way.needs
        yield ""
        yield from code_block("python", way.lines)
        yield ""
    if not is_read_by_tfds(manifest):
        yield "### TFDS"
        yield ""
        if any(feature.per_step for feature in manifest.features):
            yield "TFDS reads Examples alone, and these records are SequenceExamples."
        else:
            yield (
                "`tfds.builder_from_directory` finds shards of plain names: write the data set"
                " with `--shard_names plain`."
            )
        yield ""


def _files() -> Iterator[str]:
    yield "## Files"
    yield ""
    rows = {
        f"`{MANIFEST_NAME}`": "shards, sums, features, classes and options; the commit",
        "`index/`": "key, offset, size, sources, labels, image size and number of objects of every"
        " record: Parquet, and `.idx` for DALI and the PyTorch `tfrecord` package",
        f"`{REJECTED_NAME}`": "what was rejected or dropped, and why",
        "`label_map.pbtxt`": "the classes, for the Object Detection API",
        "`schema.pbtxt`": "the features, for TFX and TensorFlow Data Validation",
        "`croissant.json`": "this data set for search engines and `mlcroissant`",
    }
    yield from table(("file", "what it holds"), rows.items())


def _count(number: int) -> str:
    return f"{number:,}"


_ROOT = 'root = "."  # where this file lies: a folder, or a gs:// URI'
_DTYPES = {"bytes": "tf.string", "float": "tf.float32", "int64": "tf.int64"}
_DEFAULTS = {"bytes": 'b""', "float": "0.0", "int64": "0"}


class ReadingCode(NamedTuple):
    """One way to read a data set.

    Attributes:
        title: what reads it.
        needs: what is to be installed, a line of Markdown.
        lines: of Python.
    """

    title: str
    needs: str
    lines: list[str]


def reading_code(manifest: Manifest) -> list[ReadingCode]:
    """Return the ways to read a data set's first split that has shards; none where none has."""
    if not manifest.shards:
        return []
    split = manifest.shards[0].split
    ways = [_load(split), _plain(manifest.features, split), _open(split), _grain(split)]
    return [*ways, _tfds(split)] if is_read_by_tfds(manifest) else ways


def is_read_by_tfds(manifest: Manifest) -> bool:
    """Return whether TFDS finds the shards of a data set, and can read their records."""
    is_sequence = any(feature.per_step for feature in manifest.features)
    return not is_sequence and manifest.plan.options.get("shard_names") == PLAIN


def _load(split: str) -> ReadingCode:
    lines = [
        "import readers",
        "",
        _ROOT,
        f'dataset = readers.load(root, "{split}", shuffle=True)  # or batch_size=8, see its help',
        "for record in dataset.take(1):",
        "    print(record.keys())",
    ]
    return ReadingCode("tf.data", "`pip install 'beam-tfrec[tensorflow]'`", lines)


def _plain(features: list[FeatureEntry], split: str) -> ReadingCode:
    steps = [feature for feature in features if feature.per_step]
    context = [feature for feature in features if not feature.per_step]
    parse = "tf.io.parse_single_example(record, features)"
    if steps:
        parse = "tf.io.parse_single_sequence_example(record, features, steps)"
    lines = [
        "import json",
        "import tensorflow as tf",
        "",
        _ROOT,
        'shards = json.load(tf.io.gfile.GFile(f"{root}/manifest.json"))["shards"]',
        f'files = [f"{{root}}/{{s[\'file\']}}" for s in shards if s["split"] == "{split}"]',
        *_spec("features", context),
        *(_spec("steps", steps) if steps else []),
        "dataset = tf.data.TFRecordDataset(files)",
        f"dataset = dataset.map(lambda record: {parse})",
    ]
    return ReadingCode("tf.data, without this package", "`pip install tensorflow`", lines)


def _spec(name: str, features: list[FeatureEntry]) -> list[str]:
    # Keys may be any text: as `ascii` writes them they are one literal on one line.
    return [
        f"{name} = {{",
        *(f"    {feature.key!a}: {_parser(feature)}," for feature in features),
        "}",
    ]


def _parser(feature: FeatureEntry) -> str:
    dtype = _DTYPES[feature.kind]
    if feature.repeated:
        return f"tf.io.RaggedFeature({dtype})"
    if feature.per_step:
        return f"tf.io.FixedLenSequenceFeature([], {dtype})"
    if feature.optional:
        return f"tf.io.FixedLenFeature([], {dtype}, {_DEFAULTS[feature.kind]})"
    return f"tf.io.FixedLenFeature([], {dtype})"


def _open(split: str) -> ReadingCode:
    lines = [
        "import readers",
        "from torch.utils.data import DataLoader",
        "",
        _ROOT,
        f'records = readers.open(root, "{split}")  # records[0]: NumPy arrays and bytes by key',
        "loader = DataLoader(records, batch_size=8, shuffle=True, collate_fn=list)",
        "for batch in loader:",
        "    print(len(batch))",
    ]
    return ReadingCode("PyTorch", "`pip install beam-tfrec torch`; no TensorFlow", lines)


def _grain(split: str) -> ReadingCode:
    lines = [
        "import grain",
        "import readers",
        "",
        _ROOT,
        f'dataset = grain.MapDataset.source(readers.open(root, "{split}")).seed(0).shuffle()',
        "for record in dataset.slice(slice(8)):",
        "    print(record.keys())",
    ]
    return ReadingCode("Grain", "`pip install beam-tfrec grain`", lines)


def _tfds(split: str) -> ReadingCode:
    lines = [
        "import tensorflow_datasets as tfds",
        "",
        _ROOT,
        "builder = tfds.builder_from_directory(root)",
        f'dataset = builder.as_dataset(split="{split}[:50%]")',
        "for record in dataset.take(1):",
        "    print(record.keys())",
    ]
    return ReadingCode("TFDS", "`pip install tensorflow tensorflow-datasets`", lines)
