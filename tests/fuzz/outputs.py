"""Files of an output that a rerun reads: garbage is refused, never a traceback."""

import contextlib
from collections.abc import Iterator

import msgspec

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.features import Feature, Kind
from beam_tfrec.schemas.manifest import (
    FORMAT_VERSION,
    JobPlan,
    Label,
    Manifest,
    PlannedSplit,
    ShardEntry,
    from_json,
    read_manifest,
    to_json,
)
from beam_tfrec.schemas.shards import ShardInfo
from beam_tfrec.transforms import shard_index
from beam_tfrec.transforms.publish_plan import first_difference
from beam_tfrec.transforms.sources.read_samples import excluded_keys
from tests.fuzz.target import Target, require_fault_line

_PLAN = JobPlan(
    format_version=FORMAT_VERSION,
    options={"seed": "0", "layout": "detection"},
    labels=[Label(1, "person"), Label(90, "Zahnb\u00fcrste")],
    splits={"train": PlannedSplit(samples=10, shards=2)},
    samples="00ff",
)
_REJECTED = Rejected(
    code="E-IMG-TYPE", stage="write_shards", split="train", key="30", annotation_ids=(1, "b")
)
_NESTED = b'{"a": ' + b"[" * 1500


def run_manifest(data: bytes) -> None:
    """Require that a manifest is refused, or equal after being written and read again."""
    try:
        manifest = read_manifest(data, "manifest.json")
    except RuntimeError as error:
        require_fault_line(error, "E-OUT-FOREIGN")
        return
    assert read_manifest(to_json(manifest), "manifest.json") == manifest


def run_plan_and_receipt(data: bytes) -> None:
    """Require that a plan or receipt is refused with a ValueError, or can be compared."""
    with contextlib.suppress(ValueError):
        plan = from_json(data, JobPlan)
        assert from_json(to_json(plan), JobPlan) == plan
        if plan != _PLAN:
            assert first_difference(plan, msgspec.to_builtins(_PLAN))
    with contextlib.suppress(ValueError):
        info = from_json(data, ShardInfo)
        assert from_json(to_json(info), ShardInfo) == info
        assert info.name.count("-of-") >= 1


def run_rejected(data: bytes) -> None:
    """Require that a file for `--exclude` is refused, or gives keys per split."""
    try:
        keys = excluded_keys(data, "rejected.jsonl")
    except RuntimeError as error:
        require_fault_line(error, "E-ARG")
        return
    assert all(names for names in keys.values())
    assert sum(map(len, keys.values())) <= len(data.splitlines())


def run_index(data: bytes) -> None:
    """Require that an index is refused with a ValueError, or its rows survive a rewrite."""
    for candidate in (data, _with_right_end(data)):
        try:
            rows = shard_index.index_from_parquet(candidate)
        except ValueError:
            continue
        assert shard_index.index_to_text(rows).count(b"\n") == len(rows)
        assert shard_index.same_but_pins(
            rows, shard_index.index_from_parquet(shard_index.index_to_parquet(rows))
        )


def _with_right_end(data: bytes) -> bytes:
    """Return bytes with Parquet's magic numbers, and a footer length that is within the file."""
    body = data.removeprefix(b"PAR1").removesuffix(b"PAR1")
    footer_bytes = int.from_bytes(body[-4:], "little") % (len(body) + 1)
    return b"PAR1" + body[:-4] + footer_bytes.to_bytes(4, "little") + b"PAR1"


def manifest_seeds() -> Iterator[bytes]:
    manifest = Manifest(
        layout="detection",
        plan=_PLAN,
        splits={},
        shards=[ShardEntry("train-00000-of-00001-10.tfrec", "train", 10, 10, 2000, "00", "ff")],
        features=[Feature("image/height", Kind.INT64, False, "height")],
    )
    yield to_json(manifest)
    yield b'{"format": "beam-tfrec", "format_version": 2}'
    yield b'{"format": "beam-tfrec", "format_version": 1, "a": ' + b"[" * 1500


def plan_and_receipt_seeds() -> Iterator[bytes]:
    yield to_json(_PLAN)
    info = ShardInfo(
        **dict.fromkeys(("plan", "file", "crc32c", "sha256"), "00"),
        **dict.fromkeys(("planned", "records", "bytes"), 1),
        **dict.fromkeys(("annotations_listed", "annotations_written"), 1),
        **{"split": "train", "index": -1, "num_shards": 10**40},
        **{"repairs": {}, "traits": {"cmyk": 1}, "rejected": [_REJECTED]},
    )
    yield to_json(info)
    yield _NESTED


def rejected_seeds() -> Iterator[bytes]:
    line = msgspec.json.encode(_REJECTED)
    yield from (line, line + b"\n" + line + b"\n", _NESTED)


def index_seeds() -> Iterator[bytes]:
    source = shard_index.Source("a.jpg", 100, "7", "ab" * 32)
    rows = [
        shard_index.IndexRow(str(n), 100 * n, 100, [source] * (n % 3), [n] * (n % 2))
        for n in range(5)
    ]
    yield from (shard_index.index_to_parquet(rows[:count]) for count in (0, 1, 5))


TARGETS = (
    Target("manifest", run_manifest, "json.dict", 2048, manifest_seeds),
    Target("plan_and_receipt", run_plan_and_receipt, "json.dict", 2048, plan_and_receipt_seeds),
    Target("rejected", run_rejected, "json.dict", 2048, rejected_seeds),
    Target("index", run_index, "", 6000, index_seeds),
)
