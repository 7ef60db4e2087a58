"""Every kind of store for tests: a `Storage`, and its files as another program sees them.

`FAKE_GCS_SERVER` is the path of a fake-gcs-server, which `.ci/run` installs. Without it, that store
is left out.
"""

import contextlib
import errno
import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.localfilesystem import LocalFileSystem
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Bucket, Client

from beam_tfrec.transforms.storage import Access, Storage, open_storage
from tests.children import without_anonymous_files
from tests.gcs_stand_in import GcsStandIn
from tests.invariants import files_of
from tests.servers import started

EMULATOR = os.environ.get("FAKE_GCS_SERVER", "")
LOCAL = ("local", "local, named spools", "local, renames")
STORES = (*LOCAL, "beam", "gcs", *(["fake-gcs-server"] if EMULATOR else []))
LARGE = bytes(range(256)) * 40_000  # above 8 MB, an upload uses a session


class Files(NamedTuple):
    """The files below a root, as another program sees them.

    Attributes:
        put: writes or replaces a file, with a new modification time.
        all: returns the bytes of all files by name, sorted, without spools.
        remove: deletes a file.
    """

    put: Callable[[str, bytes], object]
    all: Callable[[], dict[str, bytes]]
    remove: Callable[[str], object]


class Store(NamedTuple):
    """A storage, its files as another program sees them, and its stand-in, if it has one."""

    storage: Storage
    files: Files
    stand_in: GcsStandIn | None = None


@contextlib.contextmanager
def opened(kind: str, folder: Path) -> Iterator[Store]:
    """Open a new, empty store of a kind.

    Args:
        kind: one of `STORES`.
        folder: for files on disk, below `root`, and for spools.
    """
    root = folder / "root"
    root.mkdir()
    (folder / "spools").mkdir()
    access = Access(spool_dir=str(folder / "spools"))
    with pytest.MonkeyPatch.context() as patch:
        if kind in LOCAL:
            if kind != "local":  # without `O_TMPFILE`, as NFS
                patch.setattr(os, "open", without_anonymous_files(os.open))
            if kind == "local, renames":  # without hard links, as exFAT
                patch.setattr(os, "link", failing(errno.EPERM))
            yield Store(open_storage(str(root)), disk_files(root))
        elif kind == "beam":
            yield Store(open_storage(f"testfs://{root}", access), disk_files(root))
        elif kind == "gcs":
            with GcsStandIn() as stand_in:
                stand_in.make_bucket("b")
                patch.setenv("STORAGE_EMULATOR_HOST", stand_in.url)
                yield Store(open_storage("gs://b/root", access), stand_in_files(stand_in), stand_in)
        else:
            with fake_gcs_bucket() as (address, bucket):
                patch.setenv("STORAGE_EMULATOR_HOST", address)
                root_uri = f"gs://{bucket.name}/root"
                yield Store(open_storage(root_uri, access), bucket_files(bucket))


def failing(code: int) -> Callable[..., Any]:
    """Return a system call that always fails."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@contextlib.contextmanager
def fake_gcs_bucket() -> Iterator[tuple[str, Bucket]]:
    """Run a fake-gcs-server with a new bucket."""

    def command(port: int) -> list[str]:
        # It serves reads of the XML API only under its public address.
        at = ("-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}")
        return [EMULATOR, "-scheme", "http", *at, "-backend", "memory"]

    with started(command) as (port, _):
        address = f"http://127.0.0.1:{port}"
        client = Client("test", AnonymousCredentials(), client_options={"api_endpoint": address})
        yield address, client.create_bucket(f"b-{uuid.uuid4().hex}")


def disk_files(folder: Path) -> Files:
    """Return the files of a folder, each write a second later than the one before."""
    times_s = itertools.count(1_600_000_000)

    def put(name: str, data: bytes) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        os.utime(folder / name, (0, next(times_s)))

    def read_all() -> dict[str, bytes]:
        found = files_of(folder)
        return {name: data for name, data in found.items() if not name.startswith("_spool-")}

    return Files(put, read_all, lambda name: (folder / name).unlink())


def stand_in_files(stand_in: GcsStandIn) -> Files:
    """Return the objects below `gs://b/root`."""
    return Files(
        lambda name, data: stand_in.put("b", f"root/{name}", data),
        lambda: {n.removeprefix("root/"): data for n, data in stand_in.objects("b").items()},
        lambda name: stand_in.remove("b", f"root/{name}"),
    )


def bucket_files(bucket: Bucket) -> Files:
    """Return the objects of a bucket below `root`, by Google's client."""
    return Files(
        lambda name, data: bucket.blob(f"root/{name}").upload_from_string(data),
        lambda: {b.name.removeprefix("root/"): b.download_as_bytes() for b in bucket.list_blobs()},
        lambda name: bucket.blob(f"root/{name}").delete(),
    )


FAULTS: dict[str, list[Exception]] = {}
"""Errors that the next calls of `testfs://` raise, by the operation's name."""


def _on_disk(path: Any) -> Any:
    """Return a path, or each of a list, without the scheme."""
    return path.removeprefix("testfs://") if isinstance(path, str) else [*map(_on_disk, path)]


def _fail_if_asked(operation: str) -> None:
    if FAULTS.get(operation):
        raise FAULTS[operation].pop(0)


def _faulty(operation: str) -> Callable[..., Any]:
    """Return an operation of Beam's local filesystem that fails on request."""

    def call(self: LocalFileSystem, *paths: Any, **options: Any) -> Any:
        _fail_if_asked(operation)
        result = getattr(super(DiskFileSystem, self), operation)(*map(_on_disk, paths), **options)
        _fail_if_asked(f"{operation}'s reply")
        return result

    return call


class DiskFileSystem(LocalFileSystem):
    """A Beam filesystem for `testfs://`: folders on this disk, with errors on request."""

    mkdirs, create, open = _faulty("mkdirs"), _faulty("create"), _faulty("open")
    rename, delete, exists = _faulty("rename"), _faulty("delete"), _faulty("exists")

    @classmethod
    def scheme(cls) -> str:
        return "testfs"

    def split(self, path: str) -> tuple[str, str]:
        head, _, tail = path.rpartition("/")
        return head, tail

    def metadata(self, path: str) -> FileMetadata:
        found = super().metadata(_on_disk(path))
        return FileMetadata(path, found.size_in_bytes, found.last_updated_in_seconds)

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        _fail_if_asked("list")
        for found in super()._list(_on_disk(dir_or_prefix)):
            uri = f"testfs://{found.path}"
            yield FileMetadata(uri, found.size_in_bytes, found.last_updated_in_seconds)
