"""Changes to image files between two runs: damaged, replaced, changed or unreadable."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from beam_tfrec.transforms.storage import local
from tests.small_images import chunk, ihdr, png

NO_PIXELS = png(ihdr(64, 48), chunk(b"IDAT", b"no zlib stream"))


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    path.unlink()
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path has 108 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def make_dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def make_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


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
