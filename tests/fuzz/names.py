"""Names of images and shards."""

import posixpath
import re
import string

from schemas.annotations.coco_file import blob_name
from schemas.faults import printable
from schemas.shards import ShardNames
from tests.fuzz.target import Choices, Target

_ROOT = "/data/root"
_URL = re.compile("[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SPLITS = ("train", "a", "a_1", "a1", "v0_", "train_train")
_NUMBERS = (0, 1, 9, 10, 99_999, 100_000, 2**31, 10**12)


def require_below_root(name: str) -> None:
    """Require that a name leads below its root, whichever system joins the two."""
    joined = posixpath.normpath(posixpath.join(_ROOT, name))
    assert joined.startswith(_ROOT + "/"), name
    assert "\0" not in name and not _URL.match(name)
    assert ".." not in name.replace("\\", "/").split("/"), name


def run_file_name(data: bytes) -> None:
    """Require that a file name of an annotation file is refused or stays below its root."""
    text = data.decode("utf-8", "replace")
    try:
        name = blob_name(text)
    except ValueError as error:
        assert printable(str(error)) == str(error)
        return
    require_below_root(name)
    assert blob_name(name) == name
    assert posixpath.normpath(name) == posixpath.normpath(text), "another file"


def run_shard_names(data: bytes) -> None:
    """Require that a template is refused, or that its names tell shards apart and are read back."""
    choices = Choices(data)
    shards = [
        (choices.one_of(_SPLITS), choices.one_of(_NUMBERS), choices.one_of(_NUMBERS))
        for _ in range(2)
    ]
    num_shards = max(1, choices.one_of(_NUMBERS))
    shards = [(split, index % num_shards, records) for split, index, records in shards]
    template = choices.rest().decode("utf-8", "replace")
    try:
        names = ShardNames(template)
        names.check_splits([split for split, _, _ in shards], {"": num_shards})
    except ValueError:
        return
    has_split = "split" in {field for _, field, _, _ in string.Formatter().parse(template)}
    files = {}
    for split, index, records in shards:
        file = names.file_name(split, index, num_shards, records)
        assert "/" not in file and file.isprintable() and file not in (".", "..")
        assert names.matches(file) == (split if has_split else ""), file
        files[split if has_split else "", index] = file
    assert len(set(files.values())) == len(files), files


TARGETS = (
    Target("file_names", run_file_name, "names.dict", 64),
    Target("shard_names", run_shard_names, "templates.dict", 96),
)
