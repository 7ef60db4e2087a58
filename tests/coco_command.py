"""Run `beam-tfrec coco` in this process or a new one, and read its output with independent code."""

import contextlib
import functools
import gc
import hashlib
import io
import json
import logging
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from beam_tfrec.pipelines import coco
from beam_tfrec.pipelines.cli import guarded
from beam_tfrec.transforms.storage import local
from tests import invariants
from tests.small_images import chunk, ihdr, png

PROJECT = Path(__file__).resolve().parent.parent
CODE = re.compile(r"\bE-[A-Z]+(?:-[A-Z0-9]+)*\b")
MakeCoco = Callable[..., tuple[Path, Path]]
"""The fixture `make_coco`."""
Sources = tuple[Path, Path]
"""Image folder and annotation file."""


class Run(NamedTuple):
    """How a command ended: exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def fault(self) -> str:
        """The error: one line with one code, the last one, without a traceback."""
        assert "Traceback" not in self.err, self.err
        lines = [line for line in self.err.splitlines() if CODE.search(line)]
        assert len(lines) == 1, self.err
        assert self.err.splitlines()[-1] == lines[0], self.err
        codes = set(CODE.findall(lines[0]))
        assert len(codes) == 1, lines[0]
        return lines[0]

    @property
    def ended(self) -> tuple[int, str]:
        """Exit code and the fault's code."""
        return self.code, CODE.findall(self.fault)[0]


def run_coco(*arguments: object) -> Run:
    """Run the command in this process."""
    return run_pipeline(coco.run, *arguments)


def run_pipeline(run: Callable[[Sequence[str]], None], *arguments: object) -> Run:
    """Run a pipeline's command in this process, and restore process-wide settings after it."""
    out, err = io.StringIO(), io.StringIO()
    with settings_kept(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = guarded(run, [str(argument) for argument in arguments])
    return Run(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    loggers = [logging.getLogger(name) for name in ("", "beam_tfrec")]
    logging_was = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    collecting, thread_ended = gc.get_threshold(), threading.excepthook
    try:
        yield
    finally:
        threading.excepthook = thread_ended
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for logger, (old, level, propagate) in zip(loggers, logging_was, strict=True):
            logger.handlers, logger.propagate = old, propagate
            logger.setLevel(level)
        gc.set_threshold(*collecting)  # objects stay frozen: unfrozen, each run would scan them


def start_coco(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start the command in a new process."""
    return start_command("coco", *arguments, **environment)


def start_command(name: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start a command of this name in a new process."""
    return subprocess.Popen(
        [sys.executable, "-m", f"beam_tfrec.pipelines.{name}", *map(str, arguments)],
        cwd=PROJECT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 60) -> Run:
    """Wait for a process and return how it ended."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Run(process.returncode, out, err)


def spawn_coco(*arguments: object, **environment: str) -> Run:
    """Run the command in a new process."""
    return finish(start_coco(*arguments, **environment))


def read_records(path: Path) -> list[bytes]:
    """Return a TFRecord file's records, after checking every length and checksum."""
    return invariants.read_records(path.read_bytes(), path)


def shard_paths(out: Path, split: str = "") -> list[Path]:
    """Return the shard files that a glob finds, in the order of their names."""
    return sorted(path for path in out.glob("*.tfrec") if path.name.startswith(split))


def counts(out: Path, split: str = "") -> list[int]:
    """Return the number of records of each shard file, sorted by name."""
    return [len(read_records(path)) for path in shard_paths(out, split)]


def examples(out: Path, split: str = "") -> list[Any]:
    """Return every Example, parsed by TensorFlow, in the order of files and records."""
    import tensorflow as tf

    parse = tf.train.Example.FromString
    return [parse(record) for path in shard_paths(out, split) for record in read_records(path)]


def value(example: Any, key: str) -> list:
    """Return a feature's values."""
    feature = example.features.feature[key]
    return list(getattr(feature, feature.WhichOneof("kind") or "bytes_list").value)


def source_ids(out: Path, split: str = "") -> list[int]:
    """Return the image ids in the order of files and records."""
    return [int(value(example, "image/source_id")[0]) for example in examples(out, split)]


def digests(out: Path, *patterns: str) -> dict[str, str]:
    """Return the SHA-256 of every file below `out`, or of those that a pattern matches.

    The report is left out: its title is the folder's name.
    """
    paths = {path for pattern in patterns or ("**/*",) for path in out.glob(pattern)}
    paths.discard(out / "report.html")
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(paths)
        if path.is_file()
    }


REPORTED = ("--report",)
"""Flags with which a run on another engine writes the same files as a run in process."""

DATA = ("*.tfrec", "manifest.json", "rejected.jsonl", "_plan.json", "_receipts/*", "index/*.idx")
"""Files that are equal for equal sources; the others depend on modification times."""


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return mtime and bytes of every file below a folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def manifest_of(out: Path) -> dict[str, Any]:
    """Return the manifest as plain values."""
    return json.loads((out / "manifest.json").read_bytes())


def rejected_of(out: Path) -> list[dict[str, Any]]:
    """Return the lines of `rejected.jsonl`."""
    return [json.loads(line) for line in (out / "rejected.jsonl").read_bytes().splitlines()]


def check_visible(out: Path) -> int:
    """Check that every shard file that a glob finds is complete and agrees with its receipt.

    Returns:
        The number of shard files.
    """
    return invariants.check_visible(invariants.files_of(out))


def check_committed(out: Path) -> dict[str, Any]:
    """Check a committed data set against every promise that its own files make."""
    assert not (out / "_spool").exists()
    return invariants.check_committed(invariants.files_of(out))


def command(sources: Sources, out: Path, *flags: object) -> list[str]:
    """Return the arguments that convert these sources."""
    images, annotations = sources
    return [
        *("--images", str(images), "--annotations", str(annotations), "--output", str(out)),
        *map(str, flags),
    ]


def committed(sources: Sources, out: Path, *flags: object) -> dict[str, Any]:
    """Run the command, which must succeed, and return the checked manifest."""
    images, annotations = sources
    return committed_by(coco.run, out, "--images", images, "--annotations", annotations, *flags)


def committed_by(
    run: Callable[[Sequence[str]], None], out: Path, *arguments: object
) -> dict[str, Any]:
    """Run a command, which must succeed, and return the checked manifest."""
    ended = run_pipeline(run, *arguments, "--output", out)
    assert ended.code == 0, ended.err
    return check_committed(out)


@functools.cache
def literal_png(width: int, height: int, gray: int) -> bytes:
    """Return a gray PNG without compression: its bytes do not depend on zlib's version."""
    rows = (b"\0" + bytes([gray]) * width) * height
    assert len(rows) < 2**16
    size = struct.pack("<HH", len(rows), len(rows) ^ 0xFFFF)
    stored = b"\x78\x01\x01" + size + rows + struct.pack(">I", zlib.adler32(rows))
    return png(ihdr(width, height), chunk(b"IDAT", stored))


def write_coco(folder: Path, spec: Mapping[str, Any], name: str = "instances.json") -> Path:
    """Write an annotation file and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(msgspec.json.encode(spec))
    return path


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
