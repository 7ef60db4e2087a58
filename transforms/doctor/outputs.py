"""Outputs: whether files can be created there, shown by a probe that leaves nothing.

On a disk the probe is what every run does: a file that gets its name whole, in a folder of the
probe's own. On `gs://` it is an upload that never ends (`transforms/doctor/buckets.py`). Other
stores have no such thing, so there an object is created and deleted; its name is always the same,
so that one who may not delete leaves one at most, and the next run finds what a killed one left.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator

from transforms.doctor.buckets import PROBE_NAME, check_creating, check_deleting
from transforms.doctor.diagnosis import Diagnosis, fine, of_error, warning, wrong
from transforms.doctor.machine import nearest_folder
from transforms.storage import SPOOL_DIR, Access, Storage, is_local, join_uri, open_storage
from transforms.storage.local import LocalStorage, coded

_PROBE_DATA = b"A probe of beam-tfrec doctor; it may be deleted.\n"
_OURS = re.compile(r"probe-[0-9a-f]{32}|[0-9a-f]{32}")
_DELETE = "grant the permission to delete, or delete it"


def check_output(uri: str, access: Access, *, overwrite: bool = False) -> Iterator[Diagnosis]:
    """Yield whether files can be created below a URI, and deleted where that is asked for.

    Args:
        uri: of a data set or of a folder for temporary files.
        access: how stores are reached.
        overwrite: whether what is there is to be deleted.
    """
    if is_local(uri):
        yield from _check_folder(uri.removeprefix("file://"))
    elif uri.startswith("gs://"):
        yield from check_creating(uri, access)
        if overwrite:
            yield from check_deleting(uri, access)
    else:
        yield from check_by_object(open_storage(uri, access))


def check_by_object(storage: Storage) -> Iterator[Diagnosis]:
    """Yield whether an object can be created, by one that is deleted again."""
    where = join_uri(storage.root, PROBE_NAME)
    if storage.stat(PROBE_NAME) is not None:
        if storage.read(PROBE_NAME) != _PROBE_DATA:
            yield warning(where, "is there, and not the doctor's: no probe was made", "rename it")
            return
        storage.delete(PROBE_NAME)
        yield fine(where, "was left by an earlier doctor, and is deleted now")
    storage.create(PROBE_NAME, _PROBE_DATA)
    try:
        storage.delete(PROBE_NAME)
    except RuntimeError as error:
        told = of_error(error)
        said = told.what if told else str(error)
        yield warning(
            where, f"could be created, and not deleted ({said}): it is still there", _DELETE
        )
        return
    yield fine(storage.root, "objects can be created (one was, and deleted)")


def _check_folder(path: str) -> Iterator[Diagnosis]:
    """Probe in a folder of our own, in the output or in what is there of its path."""
    above, in_place = nearest_folder(path), _nearest(path)
    if not os.path.isdir(in_place):  # a file, or a link to nothing
        is_it = in_place == os.path.abspath(path)
        what = "is no folder" if is_it else f"{in_place} is no folder"
        yield wrong("E-IO-READONLY", path, what, "give an --output that is a folder")
        return
    folder = os.path.join(above, PROBE_NAME)
    if os.path.lexists(folder):
        if not _remove_probe(folder):
            yield warning(folder, "is there, and not the doctor's: no probe was made", "rename it")
            return
        yield fine(folder, "was left by an earlier doctor, and is deleted now")
    try:
        os.mkdir(folder)
    except OSError as error:
        raise coded(error, path) from error
    try:
        LocalStorage(folder).probe()
    finally:
        _remove_probe(folder)
    in_what = "" if above == os.path.abspath(path) else f", which is to be made in {above}"
    yield fine(path, f"files can be created (one was, and deleted){in_what}")


def _nearest(path: str) -> str:
    """Return a path, or the nearest one above it that is there, whatever it is."""
    path = os.path.abspath(path)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _remove_probe(folder: str) -> bool:
    """Delete a folder of a probe; False where it holds anything else, which stays."""
    spools = os.path.join(folder, SPOOL_DIR)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISDIR(os.lstat(folder).st_mode) or {*os.listdir(folder)} - {SPOOL_DIR}:
            return False
        inside = os.listdir(spools) if os.path.isdir(spools) else []
        if not all(map(_OURS.fullmatch, inside)):
            return False
        for name in inside:
            os.unlink(os.path.join(spools, name))
        if os.path.isdir(spools):
            os.rmdir(spools)
        os.rmdir(folder)
    return True
