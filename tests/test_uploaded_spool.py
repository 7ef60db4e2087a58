import os
import resource
import tempfile
from pathlib import Path
from typing import IO

import pytest

from tests.children import limited, outcome_of
from transforms.storage.uploaded_spool import UploadedSpool


class Uploads:
    """What was uploaded, and the file that it came from."""

    def __init__(self, *, taken: bool = False) -> None:
        self.taken = taken
        self.name = ""
        self.data = b""
        self.file: IO[bytes] | None = None

    def __call__(self, name: str, file: IO[bytes]) -> bool:
        file.seek(0)
        self.name, self.data, self.file = name, file.read(), file
        return not self.taken


@pytest.mark.parametrize("taken", [False, True])
def test_what_is_written_is_uploaded_and_the_store_s_answer_handed_on(
    tmp_path: Path, taken: bool
) -> None:
    uploads = Uploads(taken=taken)
    spool = UploadedSpool(uploads, str(tmp_path))
    spool.write([b"12", b""])
    spool.write([b"345"])

    assert spool.publish("train-00000-of-00001.tfrec") is not taken
    assert (uploads.name, uploads.data) == ("train-00000-of-00001.tfrec", b"12345")


def test_a_spool_lies_in_the_folder_that_was_asked_for_and_has_no_name(tmp_path: Path) -> None:
    uploads = Uploads()
    spool = UploadedSpool(uploads, str(tmp_path))
    spool.publish("a")

    assert uploads.file is not None
    link = Path(f"/proc/self/fd/{uploads.file.fileno()}")
    assert Path(os.readlink(link)).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=rf"^E-IO-READONLY {tmp_path}/gone: No such file"):
        UploadedSpool(Uploads(), str(tmp_path / "gone"))


def test_without_a_folder_the_system_s_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))

    with pytest.raises(RuntimeError, match=rf"^E-IO-READONLY {tmp_path}/gone: No such file"):
        UploadedSpool(Uploads(), "")


def test_a_closed_spool_holds_no_file_open(tmp_path: Path) -> None:
    uploads = Uploads()
    spool = UploadedSpool(uploads, str(tmp_path))
    spool.publish("a")
    spool.close()

    assert uploads.file is not None
    assert uploads.file.closed


def write_a_little_too_much(folder: str) -> list[str]:
    """Run in a child: write less than a buffer holds but more than the disk takes, then close."""
    spool = UploadedSpool(Uploads(), folder)
    told = []
    with limited(resource.RLIMIT_FSIZE, 1000):
        try:
            spool.write([bytes(1001)])
        except RuntimeError as error:
            told.append(str(error))
        spool.close()  # what the disk did not take is in the buffer still
    return told


def test_a_full_disk_is_told_by_the_write_and_not_again(tmp_path: Path) -> None:
    (told,) = outcome_of(write_a_little_too_much, str(tmp_path))

    assert told.startswith(f"E-IO-NOSPACE {tmp_path}: File too large; ")
