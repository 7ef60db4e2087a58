"""Sources: whether their folders can be listed, their files read, and what these begin with."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from schemas.places import bucket_of
from transforms.doctor.diagnosis import Diagnosis, fine, of_error, warning, wrong
from transforms.doctor.google_identity import identity_for_storage
from transforms.images.kinds import name_kind
from transforms.quantities import counted, megabytes
from transforms.storage import Access, Entry, Storage, find_uri, open_storage

_FIRST_NAMES = 1000
_HEAD_BYTES = 4096
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OPENED_FILES = 20


def check_root(uri: str, access: Access) -> Iterator[Diagnosis]:
    """Yield whether a folder can be listed, and its files read."""
    storage = open_storage(uri, access)
    try:
        storage.require_folder()
        first = list(itertools.islice(storage.list(), _FIRST_NAMES))
    except RuntimeError as error:
        yield with_permission(error, uri, access, "storage.objects.list")
        return
    files = [entry for entry in first if entry.kind == "file"]
    if not files:
        remedy = "correct the path, or put the files there"
        yield wrong("E-SET-EMPTY", uri, "holds no files", remedy)
        return
    more = " or more" if len(first) == _FIRST_NAMES else ""
    try:
        _read_head(storage, min(files, key=lambda entry: entry.name))
    except RuntimeError as error:
        yield with_permission(error, uri, access, "storage.objects.get")
        return
    yield fine(uri, f"can be listed and read: {counted(len(files), 'file')}{more}")


def check_file(uri: str, access: Access) -> Iterator[Diagnosis]:
    """Yield whether a file is there, can be read, and begins as its name says."""
    try:
        storage, entry = find_uri(uri, access)
        head = _read_head(storage, entry)
    except RuntimeError as error:
        yield with_permission(error, uri, access, "storage.objects.get")
        return
    said = megabytes(entry.size_bytes)
    if not entry.size_bytes:
        yield wrong("E-SET-EMPTY", uri, "has no bytes", "restore it from where it came from")
    elif uri.endswith(".json") and not _begins_json(head):
        remedy = "give the JSON file itself"
        yield wrong("E-ANN-JSON", uri, f"is no JSON, but {name_kind(head)}", remedy)
    else:
        yield fine(uri, f"can be read: {said}")


def check_side_files(uri: str, matching: Iterable[Entry], access: Access) -> Iterator[Diagnosis]:
    """Yield how many of the first JSON files of a folder can be parsed.

    Args:
        uri: of the folder.
        matching: those of its files that a run would open, in any order.
        access: how stores are reached.
    """
    storage = open_storage(uri, access)
    opened = list(itertools.islice(matching, _OPENED_FILES))
    faulty = [(e.name, said) for e in opened if (said := _json_fault(storage.read(e.name, e)))]
    if faulty:
        name, said = faulty[0]
        what = f"{len(faulty)} of {counted(len(opened), 'file')} looked at cannot be parsed"
        remedy = "mend them, or accept their images' loss with --max_rejected"
        yield warning(uri, f"{what} (first {name!r}: {said})", remedy)
    elif opened:
        yield fine(uri, f"{counted(len(opened), 'JSON file')} of it can be parsed")
    else:
        yield wrong("E-SET-EMPTY", uri, "no file that matches", "correct the path or the glob")


def with_permission(error: RuntimeError, uri: str, access: Access, permission: str) -> Diagnosis:
    """Return what a fault of the storage says, with whom it denied what.

    Raises:
        RuntimeError: the error itself, where it is none of ours.
    """
    told = of_error(error)
    if told is None:
        raise error
    if told.code != "E-IO-AUTH" or not uri.startswith("gs://"):
        return told
    try:
        principal = identity_for_storage(access).principal
    except RuntimeError:  # there are no credentials at all, which the store has said already
        return told
    where = f"gs://{bucket_of(uri)}"
    remedy = f"grant it roles/storage.objectViewer on {where}, or --anonymous if it is public"
    return replace(told, what=f"{principal} has no {permission} ({told.what})", remedy=remedy)


def _read_head(storage: Storage, entry: Entry) -> bytes:
    return storage.read(entry.name, entry, (0, min(entry.size_bytes, _HEAD_BYTES)))


def _begins_json(head: bytes) -> bool:
    return head.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"[")


def _json_fault(data: bytes) -> str:
    try:
        msgspec.json.decode(data.removeprefix(_BYTE_ORDER_MARK), type=msgspec.Raw)
    except msgspec.DecodeError as error:
        return str(error)
    return ""
