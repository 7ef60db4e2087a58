"""A whole run as plain functions, without Beam. Tests can stop, kill and repeat its steps."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.manifest import PLAN_NAME, JobPlan, Manifest, to_json
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.shards import ShardInfo, ShardPlan
from beam_tfrec.transforms import plan_shards
from beam_tfrec.transforms.build_records import ShardJob
from beam_tfrec.transforms.build_shard import write_shard
from beam_tfrec.transforms.commit import commit
from beam_tfrec.transforms.data_set_job import DataSetJob
from beam_tfrec.transforms.gate import GateLimits, WorkerGate
from beam_tfrec.transforms.publish_plan import make_job_plan, publish_plan
from beam_tfrec.transforms.shard_table import Sharding, ShardKey, ShardTable, make_shard_table
from beam_tfrec.transforms.sources.listing import RootTally, listing_digest, pin_sample
from beam_tfrec.transforms.sources.read_coco import CocoRules
from beam_tfrec.transforms.sources.read_samples import SplitTally, uri_identity
from beam_tfrec.transforms.storage import open_storage, read_uri, split_uri
from tests.children import die_at, without_anonymous_files
from tests.coco_texts import read_counted
from tests.conftest import write_set
from tests.invariants import files_of

LIMITS = GateLimits(shards_in_flight=2, bytes_in_flight=1 << 20, readers=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallJob(DataSetJob):
    """A job with the sources and options of a test."""

    plan_options: Mapping[str, str]
    roots: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    @property
    def listed_roots(self) -> Mapping[str, str]:
        return self.roots

    @property
    def source_files(self) -> Mapping[str, Sequence[str]]:
        return self.files

    def options(self) -> dict[str, str]:
        return dict(self.plan_options)


@dataclasses.dataclass(frozen=True)
class SmallRun:
    """Everything that is known when the first shard begins."""

    shards: list[ShardPlan]
    table: ShardTable
    files: list[SplitTally]
    rejected: list[Rejected]
    tallies: list[tuple[str, RootTally]]
    job: ShardJob
    commit_job: SmallJob

    @property
    def plan(self) -> JobPlan:
        return make_job_plan(self.table, self.files, self.rejected, self.commit_job)


def plan_run(
    images: Path | str | Mapping[str, Path],
    annotations: Path | str | Mapping[str, Path],
    output: Path | str,
    num_shards: int = 2,
    layout: Layout | None = None,
    seed: int = 0,
    **job: object,
) -> SmallRun:
    """Read, pin, rank and group samples; without mappings, the only split is `train`."""
    folders = images if isinstance(images, Mapping) else {"train": images}
    roots = {split: str(folder) for split, folder in folders.items()}
    uris = annotations if isinstance(annotations, Mapping) else {"train": annotations}
    layout = layout or DetectionLayout()
    sharding = Sharding(num_shards={"": num_shards}, seed=seed)
    samples: list[Sample] = []
    files: list[SplitTally] = []
    rejected: list[Rejected] = []
    listed = {root: list(open_storage(uri).list()) for root, uri in roots.items()}
    entries = {(root, entry.name): entry for root in listed for entry in listed[root]}
    for split, uri in uris.items():
        source = split_uri(str(uri))[1], read_uri(str(uri))
        *items, file = read_counted([source], split, CocoRules())
        files.append(msgspec.structs.replace(file, identity=uri_identity([str(uri)], "")))
        for item in items:
            if isinstance(item, Sample):
                item = pin_sample(item, entries.get((split, item.blobs[0].name)))
            kind = samples if isinstance(item, Sample) else rejected
            kind.append(item)
    batches = dict(plan_shards.make_range_batches(samples, sharding, layout.record_bytes, 4096))
    table = make_shard_table([(b, batch.tally) for b, batch in batches.items()], sharding)
    placed: dict[ShardKey, list[plan_shards.ShardSlice]] = {}
    for key_range, batch in batches.items():
        for shard, part in plan_shards.rank_range((key_range, [batch]), table):
            placed.setdefault(shard, []).append(part)
    tallies = [
        (root, RootTally(listing=f"{listing_digest(found):x}")) for root, found in listed.items()
    ]
    return SmallRun(
        shards=[
            plan_shards.make_shard_plan((shard, placed[shard]), table) for shard in sorted(placed)
        ],
        table=table,
        files=files,
        rejected=rejected,
        tallies=tallies,
        job=ShardJob(roots, str(output), layout),
        commit_job=SmallJob(
            output=str(output),
            layout=layout,
            roots=roots,
            files={split: [str(uri)] for split, uri in uris.items()},
            plan_options={**sharding.options(), **layout.options()},
            **job,
        ),
    )


class SmallSet(NamedTuple):
    """A COCO set of small JPEGs, and the output of its runs."""

    images: Path
    annotations: Path
    out: Path
    num_shards: int

    def plan(self, **options: Any) -> SmallRun:
        return plan_run(self.images, self.annotations, self.out, self.num_shards, **options)

    def image(self, number: int) -> Path:
        return self.images / f"a{number:03}.jpg"

    def made(self) -> dict[str, bytes]:
        """Return the output's files, without `_plan.json`."""
        return {name: data for name, data in files_of(self.out).items() if name != PLAN_NAME}

    def put(self, names: Iterable[str], data: bytes = b"of the user") -> None:
        """Put files into the output."""
        for name in names:
            (self.out / name).parent.mkdir(parents=True, exist_ok=True)
            (self.out / name).write_bytes(data)


def make_small(folder: Path, num_images: int, num_shards: int) -> SmallSet:
    """Write images `a000.jpg` … with two objects each, and make an empty output."""
    (folder / "out").mkdir()
    return SmallSet(*write_set(folder / "data", num_images), folder / "out", num_shards)


def build_shards(run: SmallRun) -> list[ShardInfo]:
    """Claim the output and write every shard in turn."""
    open_storage(run.job.output).create(PLAN_NAME, to_json(run.plan))
    return write_all(run)


def write_all(run: SmallRun) -> list[ShardInfo]:
    """Write every shard into an output that is already claimed."""
    gate = WorkerGate(LIMITS)
    try:
        return [write_shard(shard, run.job, run.plan, gate) for shard in run.shards]
    finally:
        gate.shard_threads.shutdown()


def commit_run(run: SmallRun, infos: Sequence[ShardInfo]) -> Manifest:
    return commit(run.plan, infos, run.files, run.rejected, run.tallies, run.commit_job)


def build_run(run: SmallRun) -> Manifest:
    """Probe, publish, build and commit."""
    output = open_storage(run.job.output)
    output.probe()
    publish_plan(run.plan, output, run.job.names, replaces=run.commit_job.replaces)
    return commit_run(run, write_all(run))


def build_and_die(images: Path, annotations: Path, output: Path, nth: int, how: str) -> None:
    """Run in a child process, and end it at its nth disk call.

    `how` is `torn` to do half of a write first, or `named` to do without anonymous files.
    """
    run = plan_run(images, annotations, output)
    if how == "named":
        os.open = without_anonymous_files(os.open)
    die_at(nth, torn=how == "torn")
    build_run(run)


def touch(path: Path, mtime_ns: int = 1_600_000_000_123_456_789) -> None:
    """Give a file another modification time."""
    os.utime(path, ns=(mtime_ns, mtime_ns))
