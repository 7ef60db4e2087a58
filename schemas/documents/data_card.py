"""The data card: `README.md` of a data set, from its manifest alone.

It says what people ask first: contents, counts, features with units, licenses, origin, and how to
read it. There is no clock and no path in it, so equal data sets have equal cards. Text of the data
shows as it is in CommonMark and GitHub's dialect: it is never a link, a tag or a new line.

`README.md` and `croissant.json` have names that users give files of their own. Those that a run
writes hold a digest of their own text, their seal. A file without it, or edited since, is the
user's.
"""

import hashlib
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from schemas.faults import FAULTS
from schemas.features import Feature, Kind
from schemas.labels import is_link
from schemas.manifest import (
    DUPLICATES_NAME,
    MANIFEST_NAME,
    REJECTED_NAME,
    Label,
    Manifest,
    SplitSummary,
    spec_of,
)
from schemas.shards import PLAIN

CARD_NAME = "README.md"

_SHOWN_CLASSES = 50
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
_PARSED_AS = {  # dtype, and what stands for an optional value that is not there
    Kind.BYTES: ("tf.string", 'b""'),
    Kind.FLOAT: ("tf.float32", "0.0"),
    Kind.INT64: ("tf.int64", "0"),
}
_FILES = {
    f"`{MANIFEST_NAME}`": "shards, sums, features, classes and options; the commit",
    "`index/`": "key, offset, size, sources, labels, image size and number of objects of every"
    " record: Parquet, and `.idx` for DALI and the PyTorch `tfrecord` package",
    f"`{REJECTED_NAME}`": "what was rejected or dropped, and why",
    "`label_map.pbtxt`": "the classes, for the Object Detection API",
    "`schema.pbtxt`": "the features, for TFX and TensorFlow Data Validation",
    "`croissant.json`": "this data set for search engines and `mlcroissant`",
}

_ROOT = 'root = "."  # where this file lies: a folder, or a gs:// URI'
_PRINT_KEYS = """for record in dataset.take(1):
    print(record.keys())"""
_WAYS = {
    "tf.data": f"""\
`pip install 'beam-tfrec[tensorflow]'`

```python
import readers

{_ROOT}
dataset = readers.load(root, "SPLIT", shuffle=True)  # or batch_size=8, see its help
{_PRINT_KEYS}
```""",
    "tf.data, without this package": f"""\
`pip install tensorflow`

```python
import json
import tensorflow as tf

{_ROOT}
shards = json.load(tf.io.gfile.GFile(f"{{root}}/manifest.json"))["shards"]
files = [f"{{root}}/{{s['file']}}" for s in shards if s["split"] == "SPLIT"]
FEATURES
dataset = tf.data.TFRecordDataset(files)
dataset = dataset.map(lambda record: PARSE)
```""",
    "PyTorch, Grain and others": f"""\
`pip install beam-tfrec torch`; no TensorFlow. Grain takes `records` as a `MapDataset.source`.

```python
import readers
from torch.utils.data import DataLoader

{_ROOT}
records = readers.open(root, "SPLIT")  # records[0]: NumPy arrays and bytes by key
loader = DataLoader(records, batch_size=8, shuffle=True, collate_fn=list)
for batch in loader:
    print(len(batch))
```""",
    "TFDS": f"""\
`pip install tensorflow tensorflow-datasets`

```python
import tensorflow_datasets as tfds

{_ROOT}
builder = tfds.builder_from_directory(root)
dataset = builder.as_dataset(split="SPLIT[:50%]")
{_PRINT_KEYS}
```""",
}
"""What to install, and code, of each way to read a data set."""

_NO_TFDS_SEQUENCES = "TFDS reads Examples alone, and these records are SequenceExamples."
_NO_TFDS_NAMES = (
    "`tfds.builder_from_directory` finds shards of plain names: write the data set with"
    " `--shard_names plain`."
)
_PARSE = (
    "tf.io.parse_single_example(record, features)",
    "tf.io.parse_single_sequence_example(record, features, steps)",
)
_MOST_CHARACTERS = 100
# Control, bidi and invisible characters, separators of lines, halves of surrogate pairs, tags.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    "\u2028-\u202f\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"
    "\ud800-\udfff\U000e0000-\U0010ffff]"
)
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MARKS = str.maketrans(_ENTITIES | {mark: f"\\{mark}" for mark in "\\`*_[]{}|~$@"})
_LINK = re.compile(r"(?i)(:)(?=//)|(?<=www)(\.)")  # what GitHub makes a link of by itself

BLANK_SEAL = f"beam-tfrec-sha256:{'0' * 64}"
"""Place of the seal in a text, before anything that comes from the data."""

_SEAL = re.compile(rb"beam-tfrec-sha256:([0-9a-f]{64})")


class Markdown(str):
    """Text that is Markdown already."""


def data_card(manifest: Manifest) -> str:
    """Return the data card of a data set, in Markdown."""
    marker = f"<!-- {BLANK_SEAL}: made by beam-tfrec; once edited it is yours, and stays -->"
    blocks = [
        f"{marker}\n# TFRecord data set of layout {escaped(manifest.layout)}",
        _what_it_is(manifest),
        "## Splits",
        *_splits(manifest),
        *_left_out(manifest.splits),
        *_classes(manifest.plan.labels),
        "## Features of every record",
        _features(manifest.features),
        "## Licenses",
        _licenses(manifest.splits),
        "## How it was made",
        *_sources(manifest),
        *_reading(manifest),
        "## Files",
        table(("file", "what it holds"), [map(Markdown, row) for row in _FILES.items()]),
    ]
    return sealed("\n\n".join(blocks) + "\n")


def source_kind(manifest: Manifest) -> str:
    """Return what a data set was made from, in words."""
    kinds = [text for option, text in _SOURCES.items() if option in manifest.plan.options]
    return (kinds or [_SOURCES_BY_LAYOUT.get(manifest.layout, "sources of the user's own")])[0]


def table(head: Sequence[str], rows: Iterable[Iterable[str | int]]) -> str:
    """Return a table; text in its cells is escaped, except for Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)])


def escaped(text: str) -> str:
    r"""Return text that Markdown shows as it is, on one line, anywhere but at the line's beginning.

    Unseen characters are shown as Python escapes them; long text is cut.

    >>> escaped("a|b <script>\n"), escaped("http://x.org/_a_")
    ('a\\|b &lt;script&gt;\\\\n', 'http\\://x.org/\\_a\\_')
    """
    marked = seen(text, _MOST_CHARACTERS).translate(_MARKS)
    return _LINK.sub(lambda found: f"\\{found[0]}", marked)


def seen(text: str, most_characters: int) -> str:
    r"""Return the first characters of a text, those that cannot be seen as Python escapes them.

    What is left stays dangerous to Markdown and HTML.

    >>> seen("gpj\u202e.exe\n", 100), seen("abcdef", 4)
    ('gpj\\u202e.exe\\n', 'abc…')
    """
    shown = text if len(text) <= most_characters else f"{text[: most_characters - 1]}…"
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], shown)


def sealed(text: str) -> str:
    """Return a text with its seal in the place of `BLANK_SEAL`.

    >>> is_sealed(sealed(f"<!-- {BLANK_SEAL} -->").encode())
    True
    """
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text.replace(BLANK_SEAL, BLANK_SEAL.replace("0" * 64, digest), 1)


def is_sealed(data: bytes) -> bool:
    """Return whether a file is as a run of ours has written it, whichever run that was."""
    found = _SEAL.search(data)
    if found is None:
        return False
    blank = data[: found.start(1)] + b"0" * 64 + data[found.end(1) :]
    return hashlib.sha256(blank).hexdigest().encode() == found[1]


def _cell(value: str | int) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, Markdown) else escaped(value)


def _what_it_is(manifest: Manifest) -> str:
    splits = manifest.splits.values()
    records, shards = sum(s.records for s in splits), sum(s.shards for s in splits)
    message = "SequenceExample" if spec_of(manifest).is_sequence else "Example"
    return (
        f"{records:,} records (`tf.train.{message}`) in {shards:,} shards of uncompressed TFRecord,"
        f" {sum(s.bytes for s in splits):,} bytes, written by beam-tfrec in format version"
        f" {manifest.format_version}.\n"
        f"`{MANIFEST_NAME}` names every shard with its size and checksums. It was written last:"
        " it says that the data set is complete, and a reader takes the files from it."
    )


def _splits(manifest: Manifest) -> Iterator[str]:
    columns = {
        "records": "records",
        "shards": "shards",
        "bytes": "bytes",
        "samples in the sources": "listed",
        "annotations written": "annotations.written",
        "annotations in the sources": "annotations.listed",
    }
    counts = operator.attrgetter(*columns.values())
    rows = [(name, *counts(split)) for name, split in manifest.splits.items()]
    yield table(("split", *columns), rows)
    if by := manifest.plan.options.get("split_by"):
        yield f"The splits were drawn by {escaped(by)}, see the options below."
    for pair in manifest.duplicates or ():
        (one, other), names = map(escaped, pair.splits), map(escaped, pair.names)
        yield (
            f"**{pair.contents:,} sources of {one} have the bytes of one of {other}**, such as"
            f" {' and '.join(names)}: see `{DUPLICATES_NAME}`."
        )


def _left_out(splits: Mapping[str, SplitSummary]) -> Iterator[str]:
    """Yield the section of everything that is not as in the sources."""
    rows: list[tuple[str, str, str, int]] = []
    for name, split in splits.items():
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
                meaning = f": {FAULTS[reason].meaning}" if reason in FAULTS else ""
                rows.append((name, what, reason + meaning, count))
    if rows := [row for row in rows if row[-1]]:
        yield "## What is not as in the sources"
        yield f"Every sample and annotation rejected or dropped is a line of `{REJECTED_NAME}`."
        yield table(("split", "what", "reason", "count"), rows)


def _classes(labels: Sequence[Label]) -> Iterator[str]:
    if labels:
        shown, more = labels[:_SHOWN_CLASSES], len(labels) - _SHOWN_CLASSES
        yield "## Classes"
        rows = [(str(label.id), label.name, label.text) for label in shown]
        width = 3 if any(label.text for label in labels) else 2
        yield table(("label", "name", "text")[:width], [row[:width] for row in rows])
        if more > 0:
            yield f"And {more:,} more, in `label_map.pbtxt`."


def _features(features: Sequence[Feature]) -> str:
    head = ("key", "type", "values", "content", "meaning, unit, order")
    rows = ((f.key, f.kind.value, f.num_values, f.content.value, f.doc) for f in features)
    return table(head, rows)


def _licenses(splits: Mapping[str, SplitSummary]) -> str:
    if not any(split.licenses for split in splits.values()):
        return "The sources name no licenses."
    rows: list[tuple[str | int, ...]] = []
    for name, split in splits.items():
        for found in split.licenses:
            is_shown = is_link(found.url) and "|" not in found.url
            url = Markdown(f"<{found.url}>") if is_shown else found.url
            rows.append((name, str(found.id), found.name, url, found.records))
        if without := split.records - sum(found.records for found in split.licenses):
            rows.append((name, "", "none", "", without))
    listed = table(("split", "id", "license", "URL", "records"), rows)
    return f"Licenses of the images as the annotation files state them, unchecked.\n\n{listed}"


def _sources(manifest: Manifest) -> Iterator[str]:
    kind = source_kind(manifest)
    yield f"From {kind}. The same sources and these options give the same bytes again."
    files = [
        (name, file.kind, file.images, file.annotations, file.categories)
        for name, split in manifest.splits.items()
        for file in split.sources
    ]
    if files:
        yield table(("split", "annotation file", "images", "annotations", "categories"), files)
    options = sorted(manifest.plan.options.items())
    yield table(("option", "value"), [row for row in options if row[1]])


def _reading(manifest: Manifest) -> Iterator[str]:
    """Yield the ways to read a data set's first split that has shards.

    The code runs in the folder of the data set, or with `root` set to its path or `gs://` URI.
    """
    if not manifest.shards:
        return
    yield "## How to read it"
    spec = spec_of(manifest)
    ways = dict(_WAYS)
    if spec.is_sequence:
        ways["TFDS"] = _NO_TFDS_SEQUENCES
    elif manifest.plan.options.get("shard_names") != PLAIN:
        ways["TFDS"] = _NO_TFDS_NAMES
    for title, text in ways.items():
        text = text.replace("SPLIT", manifest.shards[0].split)
        if "FEATURES" in text:  # keys may be any text, such as PARSE
            text = text.replace("PARSE", _PARSE[spec.is_sequence])
            text = text.replace("FEATURES", _spec(manifest.features))
        yield f"### {title}\n\n{text}"


def _spec(features: Sequence[Feature]) -> str:
    """Return the code of the features that `tf.io` parses."""
    parts = {"features": [f for f in features if not f.per_step]}
    if steps := [feature for feature in features if feature.per_step]:
        parts["steps"] = steps
    lines: list[str] = []
    for name, some in parts.items():
        # Keys may be any text: as `ascii` writes them they are one literal on one line.
        rows = (f"    {feature.key!a}: {_parser(feature)}," for feature in some)
        lines += [f"{name} = {{", *rows, "}"]
    return "\n".join(lines)


def _parser(feature: Feature) -> str:
    dtype, default = _PARSED_AS[feature.kind]
    if feature.repeated:
        return f"tf.io.RaggedFeature({dtype})"
    if feature.per_step:
        return f"tf.io.FixedLenSequenceFeature([], {dtype})"
    return f"tf.io.FixedLenFeature([], {dtype}{f', {default}' if feature.optional else ''})"
