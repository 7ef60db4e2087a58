"""File names of images, and tables of their groups."""

import io
import posixpath
import re
import tempfile
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from beam_tfrec.schemas.annotations.coco_file import blob_name
from beam_tfrec.schemas.faults import printable
from beam_tfrec.schemas.splits import HASH, Splitting
from beam_tfrec.transforms.sources.split_tables import read_groups
from beam_tfrec.transforms.storage import DEFAULT_ACCESS
from tests.fuzz.target import Target, require_fault_line

_ROOT = "/data/root"
_URL = re.compile("[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def require_below_root(name: str) -> None:
    """Require that a name stays below its root on every system."""
    joined = posixpath.normpath(posixpath.join(_ROOT, name))
    assert joined.startswith(_ROOT + "/"), name
    assert "\0" not in name and not _URL.match(name)
    assert ".." not in name.replace("\\", "/").split("/"), name


def run_file_name(data: bytes) -> None:
    """Require that a file name in an annotation file is refused or stays below the root."""
    text = data.decode("utf-8", "replace")
    try:
        name = blob_name(text)
    except ValueError as error:
        assert printable(str(error)) == str(error)
        return
    require_below_root(name)
    assert blob_name(name) == name
    assert posixpath.normpath(name) == posixpath.normpath(text), "another file"


def run_group_table(data: bytes) -> None:
    """Require that a table is refused in one line, or draws one split for each group."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"groups{'.parquet' if data.startswith(b'PAR1') else '.csv'}"
        path.write_bytes(data)
        rule = Splitting(HASH, {"train": Fraction(2), "test": Fraction(1)}, str(path))
        try:
            keys, groups = read_groups(rule, DEFAULT_ACCESS)
        except RuntimeError as error:
            require_fault_line(error, ("E-TAB-", "E-SRC-SPLIT"))
            return
    assert len(keys) == len(groups) > 0
    assert (keys[:-1] < keys[1:]).all()


def _group_seeds() -> Iterable[bytes]:
    yield b"key,group\na,1\nb,1\na,1\n"
    yield b'cluster,key\n"x\ny",a\n,b\n'
    table, parquet = pa.table({"key": [1, 2], "cluster": ["a", "b"]}), io.BytesIO()
    pq.write_table(table, parquet)
    yield parquet.getvalue()


TARGETS = (
    Target("file_names", run_file_name, "names.dict", 64),
    Target("group_table", run_group_table, max_bytes=1024, seeds=_group_seeds),
)
