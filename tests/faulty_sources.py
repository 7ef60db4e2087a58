"""Changes to image files between two runs: damaged, replaced, changed or unreadable."""

import os
import socket
from collections.abc import Callable
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


def rewrite(path: Path) -> None:
    """Change bytes without changing the size."""
    data = path.read_bytes()
    path.write_bytes(data[:-2] + b"\0\0")


def failing_reads(monkeypatch: pytest.MonkeyPatch, fail: Callable[[str, int], None]) -> None:
    """Call `fail(name, attempt)` before each read of an image; it may raise."""
    read_once, attempts = local._read_once, {}

    def reading(path: str, *more: Any) -> Any:
        name = Path(path).name
        attempts[name] = attempts.get(name, 0) + 1
        if name.endswith(".jpg"):
            fail(name, attempts[name])
        return read_once(path, *more)

    monkeypatch.setattr(local, "_read_once", reading)


def forbid_image_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, attempt: int) -> None:
        raise AssertionError(f"{name} was read")

    failing_reads(monkeypatch, refuse)
