"""Write shards: give each shard to a builder, and yield its `ShardInfo`."""

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

import apache_beam as beam
from apache_beam.io.components.adaptive_throttler import ThrottlingSignaler
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.shared import Shared

from beam_tfrec.schemas.faults import Scope
from beam_tfrec.schemas.manifest import JobPlan
from beam_tfrec.schemas.shards import ShardInfo, ShardPlan
from beam_tfrec.transforms.build_records import ShardJob
from beam_tfrec.transforms.builders import ShardBuilders
from beam_tfrec.transforms.gate import GateLimits
from beam_tfrec.transforms.progress import COUNTERS
from beam_tfrec.transforms.sources.read_blobs import UNPACKED
from beam_tfrec.transforms.storage.retries import THROTTLED

_SIGNAL_S = 10.0  # interval of reports of throttling to the runner


@dataclass(eq=False)
class WriteShards(beam.PTransform):
    """Shard plans -> one `ShardInfo` per shard, in any order.

    The worker process and its builder processes (`builders.py`) build at most
    `limits.shards_in_flight` shards at once, and upload as many at the same time. Images are read
    ahead, up to `limits.bytes_in_flight`. A shard that an earlier attempt finished is kept. Rejects
    are part of the infos, so that a retry cannot duplicate or lose them.

    The counters `records`, `rejected`, `bytes` and `shards_done` in the namespace `beam_tfrec` are
    for display. `cumulativeThrottlingSeconds` keeps Dataflow from adding workers while a store
    throttles requests.

    Attributes:
        job: configuration of all shards.
        plan: published plan, one element; no shard is started before it.
        limits: limits of each worker process together with its builder processes.
    """

    job: ShardJob
    plan: beam.PCollection[JobPlan]
    limits: GateLimits = field(default_factory=GateLimits)

    def expand(self, shards: beam.PCollection[ShardPlan]) -> beam.PCollection[ShardInfo]:
        """Write every shard."""
        write = _WriteShards(self.job, self.limits, Shared())
        return shards | "Write" >> beam.ParDo(write, beam.pvalue.AsSingleton(self.plan))


class _WriteShards(beam.DoFn):
    """Gives shards to builders, and yields their infos at the end of the bundle at the latest.

    So the shards of a bundle are built and uploaded in parallel, even with one runner thread.
    """

    def __init__(self, job: ShardJob, limits: GateLimits, shared: Shared) -> None:
        self._job = job
        self._limits = limits
        self._shared = shared

    def setup(self) -> None:
        self._builders = self._shared.acquire(lambda: ShardBuilders(self._limits, self._job))
        # For .npz archives; with these, the command starts no builder processes.
        UNPACKED.enter(self._job.access.spool_dir)
        self._signaler = ThrottlingSignaler(COUNTERS)
        THROTTLED.take(1)  # discard the throttling of earlier steps

    def teardown(self) -> None:
        UNPACKED.leave()

    def start_bundle(self) -> None:
        self._running: set[Future[ShardInfo]] = set()

    def process(self, shard: ShardPlan, plan: JobPlan) -> Iterator[ShardInfo]:
        if len(self._running) >= self._builders.at_once:
            yield from self._take_finished()
        self._running.add(self._builders.submit(shard, plan))

    def finish_bundle(self) -> Iterator:
        while self._running:
            infos = self._take_finished()
            yield from map(GlobalWindows.windowed_value_at_end_of_window, infos)

    def _take_finished(self) -> list[ShardInfo]:
        """Wait for a finished shard; meanwhile report time lost by throttling to the runner.

        On a fault, first cancel or await the bundle's other shards. Otherwise they would run during
        the retry of the bundle, and log after the fault.
        """
        finished: set[Future[ShardInfo]] = set()
        while not finished:
            finished, self._running = wait(self._running, _SIGNAL_S, FIRST_COMPLETED)
            if throttled_s := THROTTLED.take(self._builders.readers):
                self._signaler.signal_throttled(throttled_s)
        try:
            return [_counted(future.result()) for future in finished]
        except BaseException:
            for other in self._running:
                other.cancel()
            wait(self._running)
            raise


def _counted(info: ShardInfo) -> ShardInfo:
    """Add a shard's info to the counters, and return it."""
    rejected = sum(reject.scope is Scope.SAMPLE for reject in info.rejected)
    counts = {"records": info.records, "rejected": rejected, "bytes": info.bytes, "shards_done": 1}
    for name, count in counts.items():
        Metrics.counter(COUNTERS, name).inc(count)
    return info
