"""Copy bytes that cannot be read as a range of a file, such as compressed ones.

`Stager` writes them to files below a folder of the run (`Staging`). That folder is deleted after
the commit. A killed run leaves it behind, and the next run with the same output deletes it.
"""

import contextlib
import logging
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import google_crc32c
import msgspec

from beam_tfrec.schemas.manifest import Manifest
from beam_tfrec.schemas.samples import STAGED_IMAGES, Blob, Sample
from beam_tfrec.transforms.storage import Access, NewFile, is_local, join_uri, open_storage

_RUN = re.compile("[0-9a-f]{32}")
_LOG = logging.getLogger(__name__)
_MAX_FILE_SAMPLES = 32_768  # they wait in memory, about 30 MB


@dataclass(frozen=True)
class Staging:
    """Place of a run's staged files.

    Attributes:
        folder: URI of the folder that all runs with one output share.
        run: name of the run's own folder in it, 32 hex digits.
        access: credentials and limits for stores.
        file_bytes: size of a file from which on the next one is begun.
    """

    folder: str
    run: str
    access: Access
    file_bytes: int = 256 << 20

    @property
    def uri(self) -> str:
        """URI of the run's own folder."""
        return join_uri(self.folder, self.run)

    def delete(self, manifest: Manifest) -> Manifest:
        """Delete the run's files, as its data set is committed; return the manifest."""
        self._delete([self.run])
        if is_local(self.folder):
            with contextlib.suppress(OSError):  # another run uses it
                os.rmdir(self.folder.removeprefix("file://"))
        return manifest

    def delete_others(self) -> None:
        """Delete the files of earlier runs, which have died; other folders are not ours."""
        names = (entry.name for entry in open_storage(self.folder, self.access).list())
        found = {name.partition("/")[0] for name in names} - {self.run}
        self._delete(filter(_RUN.fullmatch, found))

    def _delete(self, runs: Iterable[str]) -> None:
        """Delete folders of runs. A failure is no fault, since the data set does not need them."""
        storage = open_storage(self.folder, self.access)
        for run in runs:
            try:
                storage.delete_folder(f"{run}/")
            except RuntimeError as error:
                _LOG.warning("%s is left, delete it: %s", join_uri(self.folder, run), error)


class Stager:
    """Writes bytes to files of its own. A file's samples are yielded once it is whole."""

    def __init__(self, staging: Staging) -> None:
        """Prepare without writing."""
        self._file_bytes = staging.file_bytes
        self._storage = open_storage(staging.uri, staging.access)
        self._pending: NewFile | None = None
        self._waiting: list[tuple[Sample, Blob]] = []
        self._bytes = 0

    def add(self, sample: Sample, blob: Blob, parts: Sequence[bytes]) -> Iterator[Sample]:
        """Append the bytes of a sample; yield the samples of a file that is full.

        Args:
            sample: the sample.
            blob: its future only blob, without name, size, pin and place.
            parts: bytes of the blob.
        """
        if self._pending is None:
            self._storage.probe()
            self._pending = self._storage.new_file()
        self._pending.write(parts)
        size = sum(map(len, parts))
        placed = msgspec.structs.replace(blob, offset=self._bytes, length=size)
        self._waiting.append((sample, placed))
        self._bytes += size
        if self._bytes >= self._file_bytes or len(self._waiting) >= _MAX_FILE_SAMPLES:
            yield from self.flush()

    def flush(self) -> Iterator[Sample]:
        """Publish the file, if there is one, and yield its samples with their places."""
        if self._pending is None:
            return
        name = f"{uuid.uuid4().hex}.staged"  # an attempt never meets the files of another
        with contextlib.closing(self._pending) as pending:
            pending.publish(name)
        entry = self._storage.entry_of(name)
        waiting, self._waiting = self._waiting, []
        self._pending, self._bytes = None, 0
        for sample, blob in waiting:
            placed = msgspec.structs.replace(
                blob, name=name, size_bytes=entry.size_bytes, pin=entry.pin
            )
            yield msgspec.structs.replace(sample, blobs=(placed,))


def stage_image(sample: Sample, data: bytes, name: str, stager: Stager | None) -> Iterator[Sample]:
    """Stage the image of a sample, and yield samples that are ready.

    Args:
        sample: the sample; the image becomes its only blob.
        data: the image's bytes.
        name: the image's name in its source.
        stager: writer of the bytes; None to only describe the image, for a plan.
    """
    crc32c = google_crc32c.value(data)
    blob = Blob(STAGED_IMAGES, "", crc32c=crc32c, length=len(data), member=name)
    if stager:
        yield from stager.add(sample, blob, [data])
    else:
        yield msgspec.structs.replace(sample, blobs=(blob,))
