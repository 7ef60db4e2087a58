"""The data card: `README.md` of a data set, from its manifest alone.

It says what people ask first: what is in there, how many, which features in which units, under
which licenses, made how, and how to read it. There is no clock and no path in it, so that equal
data sets have equal cards; every text of the data is escaped.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

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
_ROOT = 'root = "."  # where this file lies: a folder, or a gs:// URI'
_DTYPES = {"bytes": "tf.string", "float": "tf.float32", "int64": "tf.int64"}
_DEFAULTS = {"bytes": 'b""', "float": "0.0", "int64": "0"}
_PRINT_KEYS = ("for record in dataset.take(1):", "    print(record.keys())")
_FILES = {
    f"`{MANIFEST_NAME}`": "shards, sums, features, classes and options; the commit",
    "`index/`": "key, offset, size, sources, labels, image size and number of objects of every"
    " record: Parquet, and `.idx` for DALI and the PyTorch `tfrecord` package",
    f"`{REJECTED_NAME}`": "what was rejected or dropped, and why",
    "`label_map.pbtxt`": "the classes, for the Object Detection API",
    "`schema.pbtxt`": "the features, for TFX and TensorFlow Data Validation",
    "`croissant.json`": "this data set for search engines and `mlcroissant`",
}


def data_card(manifest: Manifest) -> str:
    """Return the data card of a data set, in Markdown."""
    marker = f"<!-- {BLANK_SEAL}: made by beam-tfrec; once edited it is yours, and stays -->"
    sections = [
        [marker, *_section(f"# TFRecord data set of layout {escaped(manifest.layout)}")],
        _what_it_is(manifest),
        _section("## Splits", *_splits(manifest)),
        _left_out(manifest.splits),
        _classes(manifest.plan.labels),
        _section("## Features of every record", *_features(manifest.features)),
        _section("## Licenses", *_licenses(manifest.splits)),
        _section("## How it was made", *_sources(manifest)),
        _reading(manifest),
        _section("## Files", table(("file", "what it holds"), _FILES.items())),
    ]
    lines = [line for section in sections for line in section]
    return sealed("\n".join(lines[:-1]) + "\n")


def source_kind(manifest: Manifest) -> str:
    """Return what a data set was made from, in words."""
    kinds = [text for option, text in _SOURCES.items() if option in manifest.plan.options]
    return (kinds or [_SOURCES_BY_LAYOUT.get(manifest.layout, "sources of the user's own")])[0]


def _section(title: str, *blocks: str | Sequence[str]) -> list[str]:
    """Return the lines of paragraphs, tables and code below a title, with empty ones between."""
    lines = [title, ""]
    for block in blocks:
        lines += [*([block] if isinstance(block, str) else block), ""]
    return lines


def _what_it_is(manifest: Manifest) -> list[str]:
    splits = manifest.splits.values()
    records, shards = sum(s.records for s in splits), sum(s.shards for s in splits)
    message = "tf.train.SequenceExample" if _is_sequence(manifest) else "tf.train.Example"
    return [
        f"{_count(records)} records (`{message}`) in {_count(shards)} shards of uncompressed"
        f" TFRecord, {_count(sum(s.bytes for s in splits))} bytes, written by beam-tfrec in format"
        f" version {manifest.format_version}.",
        f"`{MANIFEST_NAME}` names every shard with its size and checksums. It was written last:"
        " it says that the data set is complete, and a reader takes the files from it.",
        "",
    ]


def _splits(manifest: Manifest) -> list[str | Sequence[str]]:
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
    blocks: list[str | Sequence[str]] = [
        table((*head, "annotations written", "annotations in the sources"), rows)
    ]
    if by := manifest.plan.options.get("split_by"):
        blocks.append(f"The splits were drawn by {escaped(by)}, see the options below.")
    return blocks + [
        f"**{_count(pair.contents)} sources of {escaped(pair.splits[0])} have the bytes of one"
        f" of {escaped(pair.splits[1])}**, such as {escaped(pair.names[0])} and"
        f" {escaped(pair.names[1])}: see `{DUPLICATES_NAME}`."
        for pair in manifest.duplicates or ()
    ]


def _left_out(splits: Mapping[str, SplitSummary]) -> list[str]:
    rows = [[escaped(name), *row] for name, split in splits.items() for row in _fates(split)]
    if not rows:
        return []
    text = f"Every sample and annotation rejected or dropped is a line of `{REJECTED_NAME}`."
    head = ("split", "what", "reason", "count")
    return _section("## What is not as in the sources", text, table(head, rows))


def _fates(split: SplitSummary) -> list[list[str]]:
    """Return (what, reason, count) of everything that is not as in the sources."""
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
    return [
        [what, _reason(reason), _count(count)]
        for what, reasons in counts.items()
        for reason, count in reasons.items()
        if count
    ]


def _reason(reason: str) -> str:
    fault = FAULTS.get(reason)
    return f"{reason}: {escaped(fault.meaning)}" if fault else escaped(reason)


def _classes(labels: list[Label]) -> list[str]:
    if not labels:
        return []
    head, shown = ["label", "name"], labels[:_SHOWN_CLASSES]
    rows = [[str(label.id), escaped(label.name)] for label in shown]
    if any(label.text for label in labels):
        head.append("text")
        rows = [[*row, escaped(label.text)] for row, label in zip(rows, shown, strict=True)]
    more = _more(labels, _SHOWN_CLASSES, "label_map.pbtxt")
    return _section("## Classes", table(head, rows), *more)


def _features(features: list[FeatureEntry]) -> list[str | Sequence[str]]:
    rows = [
        [escaped(f.key), f.kind, _values(f), f.content.replace("_", " "), escaped(f.doc)]
        for f in features[:_SHOWN_FEATURES]
    ]
    head = ("key", "type", "values", "content", "meaning, unit, order")
    return [table(head, rows), *_more(features, _SHOWN_FEATURES, MANIFEST_NAME)]


def _more(items: Sequence[object], shown: int, file: str) -> list[str]:
    more = len(items) - shown
    return [f"And {_count(more)} more, in `{file}`."] if more > 0 else []


def _values(feature: FeatureEntry) -> str:
    values = "0 or more" if feature.repeated else "at most 1" if feature.optional else "1"
    return f"{values} a step" if feature.per_step else values


def _licenses(splits: Mapping[str, SplitSummary]) -> list[str | Sequence[str]]:
    if not any(split.licenses for split in splits.values()):
        return ["The sources say nothing of licenses."]
    rows = [
        [escaped(name), str(found.id), escaped(found.name), _link(found.url), _count(found.records)]
        for name, split in splits.items()
        for found in split.licenses
    ]
    without = {
        name: split.records - sum(found.records for found in split.licenses)
        for name, split in splits.items()
    }
    return [
        "What the annotation files say of the images; nobody has checked it.",
        table(("split", "id", "license", "URL", "records"), rows),
        *(f"{_count(n)} records of {escaped(name)} have none." for name, n in without.items() if n),
    ]


def _link(url: str) -> str:
    return f"<{url}>" if is_link(url) and "|" not in url else escaped(url)


def _sources(manifest: Manifest) -> list[str | Sequence[str]]:
    kind = source_kind(manifest)
    files = [
        [escaped(name), f.kind, *map(_count, (f.images, f.annotations, f.categories))]
        for name, split in manifest.splits.items()
        for f in split.sources
    ]
    head = ("split", "annotation file", "images", "annotations", "categories")
    options = sorted(manifest.plan.options.items())
    rows = [[escaped(name), escaped(value)] for name, value in options if value]
    return [
        f"From {kind}. The same sources and these options give the same bytes again.",
        *([table(head, files)] if files else []),
        table(("option", "value"), rows),
    ]


def _reading(manifest: Manifest) -> list[str]:
    ways = reading_code(manifest)
    if not ways:
        return []
    lines = _section("## How to read it")
    for way in ways:
        lines += _section(f"### {way.title}", way.needs, code_block("python", way.lines))
    if _is_sequence(manifest):
        text = "TFDS reads Examples alone, and these records are SequenceExamples."
        lines += _section("### TFDS", text)
    elif not is_read_by_tfds(manifest):
        text = (
            "`tfds.builder_from_directory` finds shards of plain names: write the data set"
            " with `--shard_names plain`."
        )
        lines += _section("### TFDS", text)
    return lines


def _is_sequence(manifest: Manifest) -> bool:
    return any(feature.per_step for feature in manifest.features)


def _count(number: int) -> str:
    return f"{number:,}"


# --- the code that reads a data set: a few lines each, and they run


class ReadingCode(NamedTuple):
    """One way to read a data set.

    Attributes:
        title: reader's name.
        needs: what is to be installed, a line of Markdown.
        lines: lines of Python.
    """

    title: str
    needs: str
    lines: list[str]


def is_read_by_tfds(manifest: Manifest) -> bool:
    """Return whether TFDS finds the shards of a data set, and can read their records."""
    is_plain = manifest.plan.options.get("shard_names") == PLAIN
    return is_plain and not _is_sequence(manifest)


def reading_code(manifest: Manifest) -> list[ReadingCode]:
    """Return the ways to read a data set's first split that has shards; none where none has.

    Each runs in the folder of the data set, or with `root` set to its path or `gs://` URI.
    """
    if not manifest.shards:
        return []
    split = manifest.shards[0].split
    ways = [
        _way(
            "tf.data",
            "`pip install 'beam-tfrec[tensorflow]'`",
            ["import readers"],
            f'dataset = readers.load(root, "{split}", shuffle=True)'
            "  # or batch_size=8, see its help",
            *_PRINT_KEYS,
        ),
        _way(
            "tf.data, without this package",
            "`pip install tensorflow`",
            ["import json", "import tensorflow as tf"],
            *_plain_tf_data(manifest.features, split),
        ),
        _way(
            "PyTorch",
            "`pip install beam-tfrec torch`; no TensorFlow",
            ["import readers", "from torch.utils.data import DataLoader"],
            f'records = readers.open(root, "{split}")  # records[0]: NumPy arrays and bytes by key',
            "loader = DataLoader(records, batch_size=8, shuffle=True, collate_fn=list)",
            "for batch in loader:",
            "    print(len(batch))",
        ),
        _way(
            "Grain",
            "`pip install beam-tfrec grain`",
            ["import grain", "import readers"],
            f'dataset = grain.MapDataset.source(readers.open(root, "{split}")).seed(0).shuffle()',
            "for record in dataset.slice(slice(8)):",
            "    print(record.keys())",
        ),
    ]
    tfds = _way(
        "TFDS",
        "`pip install tensorflow tensorflow-datasets`",
        ["import tensorflow_datasets as tfds"],
        "builder = tfds.builder_from_directory(root)",
        f'dataset = builder.as_dataset(split="{split}[:50%]")',
        *_PRINT_KEYS,
    )
    return [*ways, tfds] if is_read_by_tfds(manifest) else ways


def _way(title: str, needs: str, imports: Sequence[str], *lines: str) -> ReadingCode:
    return ReadingCode(title, needs, [*imports, "", _ROOT, *lines])


def _plain_tf_data(features: list[FeatureEntry], split: str) -> list[str]:
    steps = [feature for feature in features if feature.per_step]
    context = [feature for feature in features if not feature.per_step]
    parse = "tf.io.parse_single_example(record, features)"
    if steps:
        parse = "tf.io.parse_single_sequence_example(record, features, steps)"
    return [
        'shards = json.load(tf.io.gfile.GFile(f"{root}/manifest.json"))["shards"]',
        f'files = [f"{{root}}/{{s[\'file\']}}" for s in shards if s["split"] == "{split}"]',
        *_spec("features", context),
        *(_spec("steps", steps) if steps else []),
        "dataset = tf.data.TFRecordDataset(files)",
        f"dataset = dataset.map(lambda record: {parse})",
    ]


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


def escaped(text: str) -> str:
    r"""Return text that Markdown shows as it is, on one line, anywhere but at the line's beginning.

    What cannot be seen is shown as Python escapes it; of long text the first characters.

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


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table, whose cells are Markdown already."""
    cells = [[str(cell) for cell in row] for row in rows]
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def code_block(language: str, lines: Iterable[str]) -> list[str]:
    """Return the lines of a fenced block; no line of the code may begin with a backtick."""
    return [f"```{language}", *lines, "```"]


BLANK_SEAL = f"beam-tfrec-sha256:{'0' * 64}"
"""What a text holds once, before anything that comes from the data, where its seal will stand."""

_SEAL = re.compile(rb"beam-tfrec-sha256:([0-9a-f]{64})")


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
