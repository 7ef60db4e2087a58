"""Changes to image files: cut off, grown, or never to be read."""

from pathlib import Path
from typing import Any

import pytest

from beam_tfrec.transforms.storage import local


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def forbid_image_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    read_once = local._read_once

    def read_no_image(path: str, *more: Any) -> Any:
        assert not path.endswith(".jpg"), f"{path} was read"
        return read_once(path, *more)

    monkeypatch.setattr(local, "_read_once", read_no_image)
