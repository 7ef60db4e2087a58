import os
from pathlib import Path

import pytest

from transforms.storage import Storage, open_storage, open_stored


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "a").write_bytes(b"0123456789")
    return open_storage(str(tmp_path))


@pytest.mark.parametrize("buffer_bytes", [1, 3, 100])
def test_reads_and_seeks_as_a_file(storage: Storage, tmp_path: Path, buffer_bytes: int) -> None:
    entry = storage.stat("a")
    assert entry is not None
    with open_stored(storage, entry, buffer_bytes) as mine, open(tmp_path / "a", "rb") as theirs:
        for file in (mine, theirs):
            assert file.read(3) == b"012"
            assert file.seek(2, os.SEEK_CUR) == 5
            assert file.read(2) == b"56"
            assert file.seek(-1, os.SEEK_END) == 9
            assert file.read() == b"9"
            assert file.read(5) == b""
            assert file.seek(50) == 50
            assert file.read() == b""
            with pytest.raises(OSError):
                file.seek(-11, os.SEEK_END)


def test_a_read_is_one_span(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = storage.stat("a")
    assert entry is not None
    asked: list[object] = []
    real = type(storage).read

    def read(self: Storage, name: str, expected: object, span: object) -> bytes:
        asked.append(span)
        return real(self, name, expected, span)  # type: ignore[arg-type]

    monkeypatch.setattr(type(storage), "read", read)
    with open_stored(storage, entry, 1) as file:
        file.seek(2)
        assert file.read(6) == b"234567"
    with open_stored(storage, entry, 1) as file:
        assert file.read() == b"0123456789"
    assert asked == [(2, 8), (0, 10)]


def test_refuses_to_read_much_at_once(storage: Storage) -> None:
    entry = storage.stat("a")
    assert entry is not None
    with (
        open_stored(storage, entry, 1, max_at_once_bytes=5) as file,
        pytest.raises(ValueError, match="10 bytes at once"),
    ):
        file.read()


def test_a_file_that_changed_is_told(storage: Storage, tmp_path: Path) -> None:
    entry = storage.stat("a")
    assert entry is not None
    (tmp_path / "a").write_bytes(b"other")
    with open_stored(storage, entry, 1) as file, pytest.raises(RuntimeError, match="E-SRC-CHANGED"):
        file.read(2)
