"""Run `pipelines.coco` in this process or another, and read what it made with code of our own."""

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
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import msgspec
import pyarrow.parquet as pq

from pipelines import coco
from pipelines.launch import guarded
from tests.small_images import chunk, ihdr, png

PROJECT = Path(__file__).resolve().parent.parent
CODE = re.compile(r"\bE-[A-Z]+(?:-[A-Z0-9]+)*\b")
OUR_LOGGERS = ("pipelines", "transforms")
MakeCoco = Callable[..., tuple[Path, Path]]
"""The fixture `make_coco`."""
Sources = tuple[Path, Path]
"""Image folder and annotation file."""
COUNTED_NAME = re.compile(r"([a-z][a-z0-9_]*)-([0-9]{5})-of-([0-9]{5})-([0-9]+)\.tfrec")


class Run(NamedTuple):
    """How a command ended: exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def fault(self) -> str:
        """The one line that says what went wrong: with one code, last, and no traceback."""
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
    """Run the command in this process; what it sets for a process of its own is put back."""
    out, err = io.StringIO(), io.StringIO()
    with _settings_kept(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = guarded(coco.run, [str(argument) for argument in arguments])
    return Run(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _settings_kept() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    loggers = [logging.getLogger(name) for name in OUR_LOGGERS]
    logging_was = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    collecting = gc.get_threshold()
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for logger, (old, level, propagate) in zip(loggers, logging_was, strict=True):
            logger.handlers, logger.propagate = old, propagate
            logger.setLevel(level)
        gc.set_threshold(*collecting)  # what it froze stays so: else each run walks it again


def start_coco(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start the command as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines.coco", *map(str, arguments)],
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
    """Run the command as a process of its own."""
    return finish(start_coco(*arguments, **environment))


def read_records(path: Path) -> list[bytes]:
    """Return a TFRecord file's records, every length and checksum looked at."""
    data, at, records = path.read_bytes(), 0, []
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        assert length_crc == _masked(data[at : at + 8]), f"{path}: checksum of a length at {at}"
        end = at + 12 + length
        assert end + 4 <= len(data), f"{path}: cut off at {at}"
        record = data[at + 12 : end]
        (data_crc,) = struct.unpack_from("<I", data, end)
        assert data_crc == _masked(record), f"{path}: checksum of a record at {at}"
        records.append(record)
        at = end + 4
    return records


def _masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def shard_paths(out: Path, split: str = "") -> list[Path]:
    """Return the shard files that a glob finds, in the order of their names."""
    return sorted(path for path in out.glob("*.tfrec") if path.name.startswith(split))


def counts(out: Path, split: str = "") -> list[int]:
    """Return the records of every shard file, in the order of their names."""
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
    """Return the SHA-256 of every file below `out`, or of those that a pattern matches."""
    paths = {path for pattern in patterns or ("**/*",) for path in out.glob(pattern)}
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(paths)
        if path.is_file()
    }


DATA = ("*.tfrec", "manifest.json", "rejected.jsonl", "_plan.json", "_receipts/*", "index/*.idx")
"""What must be equal in every run from equal sources: all but what tells of their mtimes."""


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
    """Check that every shard file a glob finds is whole and agrees with its receipt.

    Returns:
        How many there are.
    """
    receipts = [json.loads(path.read_bytes()) for path in out.glob("_receipts/*.json")]
    by_file = {receipt["file"]: receipt for receipt in receipts}
    paths = shard_paths(out)
    for path in paths:
        receipt = by_file[path.name]
        data = path.read_bytes()
        assert len(read_records(path)) == receipt["records"], path
        assert hashlib.sha256(data).hexdigest() == receipt["sha256"], path
        assert (len(data), f"{google_crc32c.value(data):08x}") == (
            receipt["bytes"],
            receipt["crc32c"],
        ), path
        assert receipt["planned"] == receipt["records"] + _rejected_samples(receipt), path
    return len(paths)


def check_committed(out: Path) -> dict[str, Any]:
    """Check a committed data set against every promise that its own files make.

    Files and manifest agree, all sums hold, indexes point at the records, nothing is left over.
    """
    manifest = manifest_of(out)
    assert check_visible(out) == len(manifest["shards"])
    assert [shard["file"] for shard in manifest["shards"]] == sorted(
        (path.name for path in out.glob("*.tfrec")), key=_by_split_and_index
    )
    for shard in manifest["shards"]:
        data = (out / shard["file"]).read_bytes()
        assert shard["sha256"] == hashlib.sha256(data).hexdigest()
        assert shard["bytes"] == len(data)
        assert shard["records"] == len(read_records(out / shard["file"]))
    for receipt_path in out.glob("_receipts/*.json"):
        _check_index(out, json.loads(receipt_path.read_bytes()), receipt_path.stem)
    for name, split in manifest["splits"].items():
        _check_sums(name, split, manifest, rejected_of(out))
    assert not (out / "_spool").exists()
    return manifest


def command(sources: Sources, out: Path, *flags: object) -> list[str]:
    """Return the arguments that convert these sources."""
    images, annotations = sources
    return [
        *("--images", str(images), "--annotations", str(annotations), "--output", str(out)),
        *map(str, flags),
    ]


def committed(sources: Sources, out: Path, *flags: object) -> dict[str, Any]:
    """Run the command, which must succeed, and return the checked manifest."""
    run = run_coco(*command(sources, out, *flags))
    assert run.code == 0, run.err
    return check_committed(out)


def _by_split_and_index(name: str) -> tuple[str, int]:
    match = COUNTED_NAME.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, 0)


def _check_index(out: Path, receipt: Mapping[str, Any], stem: str) -> None:
    """Read every record by its offset alone, as a random-access reader does."""
    data = (out / receipt["file"]).read_bytes()
    rows = pq.read_table(out / "index" / f"{stem}.parquet").to_pylist()
    records = read_records(out / receipt["file"])
    assert [data[row["offset"] + 12 : row["offset"] + row["size"] - 4] for row in rows] == records
    lines = (out / "index" / f"{stem}.idx").read_text().splitlines()
    assert lines == [f"{row['offset']} {row['size']}" for row in rows]


def _check_sums(name: str, split: dict, manifest: dict, rejected: Sequence[dict]) -> None:
    shards = [shard for shard in manifest["shards"] if shard["split"] == name]
    samples = [line for line in rejected if line["split"] == name and _is_sample(line["code"])]
    dropped = [line for line in rejected if line["split"] == name and not _is_sample(line["code"])]
    fate = split["annotations"]
    assert split["listed"] == (
        split["excluded"] + split["rejected_before_planning"] + split["planned"]
    )
    assert split["planned"] == split["records"] + split["rejected_in_shards"]
    assert split["planned"] == sum(shard["planned"] for shard in shards)
    assert split["records"] == sum(shard["records"] for shard in shards)
    assert len(samples) == split["rejected_before_planning"] + split["rejected_in_shards"]
    assert sum(split["rejected"].values()) == len(samples)
    assert sum(fate["dropped"].values()) == len(dropped)
    assert fate["lost"] == sum(len(line["annotation_ids"]) for line in samples)
    assert fate["listed"] == fate["written"] + len(dropped) + fate["lost"] + fate["excluded"]


def _rejected_samples(receipt: Mapping[str, Any]) -> int:
    return sum(_is_sample(line["code"]) for line in receipt["rejected"])


def _is_sample(code: str) -> bool:
    return code.startswith(("E-IMG-", "E-EX-"))


@functools.cache
def literal_png(width: int, height: int, gray: int) -> bytes:
    """Return a gray PNG in stored blocks: its bytes depend on no compressor's version."""
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
