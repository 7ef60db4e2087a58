"""Builders of a process's shards: its own threads, and builder processes."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from schemas.manifest import JobPlan
from schemas.shards import ShardInfo, ShardPlan
from transforms.build_shard import gate_for, write_shard
from transforms.gate import GateLimits, usable_cores
from transforms.processes.builder_process import BuilderProcess
from transforms.shard_job import ShardJob
from transforms.storage import is_local

_LOG = logging.getLogger(__name__)


@dataclass
class _Builder:
    """A builder, and the shards that it has not finished."""

    submit: Callable[[ShardPlan, ShardJob, JobPlan], Future[ShardInfo]]
    building: list[Future[ShardInfo]] = field(default_factory=list)

    def num_building(self) -> int:
        self.building = [shard for shard in self.building if not shard.done()]
        return len(self.building)


class ShardBuilders:
    """All who build shards for a process, within its limits.

    Attributes:
        at_once: shards that are built or made durable at once.
        readers: images that this process itself reads at once.
    """

    def __init__(self, limits: GateLimits, job: ShardJob) -> None:
        """Start no threads yet; they come with the first work.

        Args:
            limits: of all who build.
            job: what all shards have in common.
        """
        started = _BESIDE.get(job.output, ())
        beside = [process for process in started if process.is_ready()]
        if len(beside) < len(started):
            text = "builds shards in fewer processes: of %d beside this one %d are ready"
            _LOG.info(text, len(started), len(beside))
        gate = gate_for(replace(limits, processes=1 + len(beside)), job)

        def build_here(shard: ShardPlan, job: ShardJob, plan: JobPlan) -> Future[ShardInfo]:
            return gate.builders.submit(write_shard, shard, job, plan, gate)

        self.readers = gate.readers
        self.at_once = limits.shards_at_once(uploads_aside=not is_local(job.output))
        self._builders = [_Builder(build_here), *(_Builder(process.submit) for process in beside)]
        self._choosing = threading.Lock()

    def submit(self, shard: ShardPlan, job: ShardJob, plan: JobPlan) -> Future[ShardInfo]:
        """Give a shard to the least busy builder; on a tie to the first."""
        with self._choosing:
            builder = min(self._builders, key=_Builder.num_building)
            built = builder.submit(shard, job, plan)
            builder.building.append(built)
        return built


_BESIDE: dict[str, list[BuilderProcess]] = {}
"""Builder processes by the URI of the output: each knows one run."""


@contextlib.contextmanager
def builders_beside(limits: GateLimits, output: str, loggers: Sequence[str]) -> Iterator[None]:
    """Start a builder process per core, with this one at most `shards_in_flight`.

    Args:
        limits: of the run, which all share.
        output: URI of the data set that they build for.
        loggers: names of those whose lines are to be heard here.
    """
    if output in _BESIDE:  # another run of this process has them
        yield
        return
    beside = _BESIDE[output] = []
    try:
        _start(beside, limits, loggers)
        yield
    finally:
        del _BESIDE[output]
        for process in beside:
            process.end()


def _start(beside: list[BuilderProcess], limits: GateLimits, loggers: Sequence[str]) -> None:
    processes = processes_at_most(limits)
    try:
        for place in range(1, processes):
            shared = replace(limits, processes=processes, place=place)
            beside.append(BuilderProcess(shared, loggers))
    except (OSError, RuntimeError, MemoryError) as error:  # then fewer do
        _LOG.info("builds shards in fewer processes: %s", error)


def processes_at_most(limits: GateLimits) -> int:
    """Return how many processes may build shards, so that each has a part of every limit.

    >>> processes_at_most(GateLimits(shards_in_flight=4, workers=3, readers=8))
    3
    >>> processes_at_most(GateLimits(shards_in_flight=4, workers=3, readers=1))
    1
    """
    workers = limits.workers or usable_cores()
    return min(limits.shards_in_flight, workers, limits.readers or workers)
