"""Names of shards, indexes and receipts."""

import re
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_tfrec.schemas.shards import COUNTED, MAXDIFFUSION, PLAIN, TFDS, ShardNames, is_index_name


@pytest.mark.parametrize(
    ("template", "shard", "name"),
    [
        (COUNTED, ("train", 0, 16, 750), "train-00000-of-00016-750.tfrec"),
        (PLAIN, ("train", 15, 16, 750), "train-00015-of-00016.tfrec"),
        ("file_{index:02}-{records}.tfrec", ("a", 0, 9, 4096), "file_00-4096.tfrec"),  # Keras's
        (COUNTED, ("val", 7, 100_000, 1), "val-000007-of-100000-1.tfrec"),
        ("{index:05d}.tfrec", ("val", 7, 100_000, 1), "000007.tfrec"),
        (TFDS, ("val", 7, 8, 1), "beam_tfrec-val.tfrecord-00007-of-00008"),
        (MAXDIFFUSION, ("val", 7, 8, 1), "val/00007-of-00008.tfrec"),
        ("set-{split}/{records}_{index}", ("val", 7, 8, 1), "set-val/1_7"),
    ],
)
def test_file_names(template: str, shard: tuple, name: str) -> None:
    names = ShardNames(template)
    assert names.file_name(*shard) == name
    assert names.matches(name) == (shard[0] if "{split}" in template else "")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (PLAIN, "train-00000-of-00016-750.tfrec"),
        (COUNTED, "train-00000-of-00016.tfrec"),
        (PLAIN, "train-0000\u0661-of-00016.tfrec"),  # an Arabic digit
        (PLAIN, "sub/train-00000-of-00016.tfrec"),
        (MAXDIFFUSION, "sub/train/00000-of-00016.tfrec"),
        (MAXDIFFUSION, "_receipts/00000-of-00016.tfrec"),
    ],
)
def test_other_names_do_not_match(template: str, name: str) -> None:
    assert ShardNames(template).matches(name) is None


SPLITS = st.from_regex("[a-z][a-z0-9_]{0,8}", fullmatch=True)
TEMPLATES = [
    COUNTED,
    PLAIN,
    MAXDIFFUSION,
    "a-{split}/{index}-{records}.tfrec",
    "{index}{split}-{records:08}",
    "{records}of{split}0x{index:03d}",
    "[{split}]*?{index}+({num_shards}).tfrec",
]
SHARDS = st.tuples(SPLITS, st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**7))


@given(st.sampled_from(TEMPLATES), SHARDS)
def test_matches_is_the_inverse_of_file_name(template: str, shard: tuple) -> None:
    names = ShardNames(template)
    assert names.matches(names.file_name(*shard)) == shard[0]


UNKNOWN = "must be counted, plain, tfds, maxdiffusion or a template with {index:05} and at most"
HIDDEN = "must name files that are not hidden, in printable text, got"
FOLDER = "must have at most one folder, of letters, digits and {split}, got"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("README.md", "without {index} must end in ('.tfrec', '.tfrecord',"),
        ("{index}-{shard}", UNKNOWN),
        ("{index:05}-{index:03}", UNKNOWN),
        ("_{split}/{index}", HIDDEN),
        ("{split}/.{index}", HIDDEN),
        ("data/{split}-{index}", FOLDER),
        ("..{split}/{index}", FOLDER),
        ("/{split}-{index}", FOLDER),
        ("{index}/{split}", FOLDER),
        ("{split}/", "without {index} must end in"),
        ("{split}/{split}-{index}", UNKNOWN),
        ("{index}\n.tfrec", HIDDEN),
        ("{index}{records}.tfrec", "must keep numbers apart from other fields, got"),
    ],
)
def test_bad_templates_are_refused(template: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^shard_names {re.escape(message)}"):
        ShardNames(template)


INDEX = "hold {index} for several shards, got"
# Template, splits, --num_shards, and what the template must do; empty if it is accepted.
SPLITS_OF_TEMPLATES = [
    ("{index}.tfrec", ["train"], {}, ""),
    ("{index}.tfrec", ["val", "train"], {}, "hold {split} for splits ['train', 'val'], got"),
    ("{split}.tfrecord", ["train", "val"], {"train": 1, "val": 1}, ""),
    ("{split}.tfrecord", ["train", "val"], {"train": 1}, INDEX),
    ("{split}.tfrecord", ["train", "val"], {"": 2, "train": 1}, INDEX),
    ("{split}-{records}.record", ["train"], {}, INDEX),
    ("test.tfrecord", ["test"], {"": 1}, ""),
    ("test.tfrecord", ["test"], {"": 2}, INDEX),
    ("{split}/{index}", ["index", "val"], {}, "not put shards into index/, the folder of indexes"),
    ("of-{split}/{index}", ["index", "val"], {}, ""),
    ("in{split}/{index}", ["dex"], {}, "not put shards into index/"),
]


@pytest.mark.parametrize(("template", "splits", "num_shards", "must"), SPLITS_OF_TEMPLATES)
def test_a_template_names_every_shard_once(
    template: str, splits: list[str], num_shards: dict[str, int], must: str
) -> None:
    refused = pytest.raises(ValueError, match=f"^shard_names must {re.escape(must)}")
    with refused if must else nullcontext():
        ShardNames(template).check_splits(splits, num_shards)


@pytest.mark.parametrize(
    "name",
    [
        "index/notes.txt",
        "index/sub/train-00000-of-00001.idx",
        "train-00000-of-00001.idx",
        "index/train-00000-of-00001xidx",
        "index/file_00-4096.idx",
    ],
)
def test_other_files_are_not_indexes(name: str) -> None:
    assert not is_index_name(name, ShardNames())
