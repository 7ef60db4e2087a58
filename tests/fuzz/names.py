"""File names of images."""

import posixpath
import re

from beam_tfrec.schemas.annotations.coco_file import blob_name
from beam_tfrec.schemas.faults import printable
from tests.fuzz.target import Target

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


TARGETS = (Target("file_names", run_file_name, "names.dict", 64),)
