"""The code by which a data set is read, as its card shows it: five lines each, and they run.

Each is run in the folder of the data set, or with `root` set to its path or `gs://` URI.
"""

from typing import NamedTuple

from schemas.manifest import FeatureEntry, Manifest
from schemas.shards import PLAIN

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
