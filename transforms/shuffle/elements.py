"""Coders for msgspec structs, and batches for group-bys.

Importing this module registers the coder for every msgspec struct. Samples pass a group-by in
batches: an in-process runner needs about 20 us per element, several times our work on a sample.
"""

import functools
import itertools
import weakref
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import apache_beam as beam
import msgspec
from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.coders.coders import FastCoder
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.window import GlobalWindows

from beam_tfrec.transforms.shuffle.run_spool import RunSpool, close_spool

K = TypeVar("K", bound=Hashable)


_NUMBERS = itertools.count()
SPOOLS = weakref.WeakKeyDictionary[beam.Pipeline, RunSpool]()
"""Spools of the pipelines in this process; see `spool_for`."""


_HELD_PER_GROUP = 32  # more values do not fit into the processor's caches
_MAX_HELD = 65_536  # about 100 MB of samples; reached only on a cluster
_MAX_PAYLOAD_BYTES = 64 * 2**20
_GROUPS_IN_PROCESS = 128
_GROUPS_ON_A_CLUSTER = 16_384  # of a billion samples, a group in memory has 61,000

Partition = tuple[str, int]
"""A partition of a join: a scope such as a root or a split, and a number in it."""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Base class of batches, which are compressed on a cluster.

    Compression halves the size, since neighbouring names and pins are similar. It takes 7 us per
    sample and group-by, and clusters bill shuffled bytes.
    """


class StructCoder(FastCoder):
    """Compact and deterministic coder of a msgspec struct, as MessagePack."""

    def __init__(self, struct: type) -> None:
        """Make the coder of a struct's type."""
        self._struct = struct

    def _create_impl(self) -> coder_impl.CoderImpl:
        encode = msgspec.msgpack.Encoder(order="deterministic").encode
        return coder_impl.CallbackCoderImpl(encode, msgspec.msgpack.Decoder(self._struct).decode)

    def is_deterministic(self) -> bool:
        """Return True: equal structs have equal bytes."""
        return True

    def to_type_hint(self) -> type:
        """Return the struct's type."""
        return self._struct

    @classmethod
    def from_type_hint(cls, typehint: Any, registry: Any) -> Any:
        """Return the coder of a struct; that of a `Batch` compresses.

        Raises:
            TypeError: for other types; Beam then looks for another coder.
        """
        if not issubclass(typehint, msgspec.Struct):
            raise TypeError(f"{typehint} is not a msgspec struct: Beam has its coder")
        return (_BatchCoder if issubclass(typehint, Batch) else cls)(typehint)


class _BatchCoder(StructCoder):
    """Coder of a batch between workers; batches in an in-process run's spool use `StructCoder`."""

    def _create_impl(self) -> coder_impl.CoderImpl:
        plain = super()._create_impl()
        return coder_impl.CallbackCoderImpl(
            lambda batch: zlib.compress(plain.encode(batch), level=1),
            lambda encoded: plain.decode(zlib.decompress(encoded)),
            plain.estimate_size,  # Beam estimates sizes of some batches: without compressing
        )


coders.registry.register_fallback_coder(StructCoder)


def is_in_process(pipeline: beam.Pipeline) -> bool:
    """Return whether a pipeline runs in this process, with Beam's FnApiRunner."""
    return isinstance(pipeline.runner, FnApiRunner)


def spread(elements: beam.PCollection) -> beam.PCollection:
    """Return elements, divided anew among the workers of a cluster; unchanged in process."""
    if is_in_process(elements.pipeline):
        return elements
    return elements | "Spread" >> beam.Reshuffle()


def num_groups(pipeline: beam.Pipeline) -> int:
    """Return the number of groups for a group-by; results do not depend on it.

    A cluster's worker holds one group in memory, so groups should be small. In process, memory is
    shared, and every group costs about 50 us.
    """
    return _GROUPS_IN_PROCESS if is_in_process(pipeline) else _GROUPS_ON_A_CLUSTER


@dataclass(eq=False)
class MakeBatches(beam.PTransform):
    """Values -> (key, batch).

    A batch holds values of one bundle. Batches differ in size, and results must not depend on
    them. The number of values in memory is bounded, and so are their payload bytes.

    Attributes:
        to_batches: function that divides values into batches, one per key.
        output: type of key and batch.
    """

    to_batches: Callable[[list], Iterable[tuple[Hashable, Any]]]
    output: Any

    def expand(self, values: beam.PCollection) -> beam.PCollection:
        """Collect values, and make batches from many at once."""
        make = beam.ParDo(_MakeBatches(self.to_batches, num_groups(values.pipeline)))
        return values | "Make" >> make.with_output_types(self.output)


class _MakeBatches(beam.DoFn):
    """Makes batches of a bundle's values. With `beam.BatchElements` a run takes 1.2 x the CPU."""

    def __init__(self, to_batches: Callable[[list], Iterable], groups: int) -> None:
        self._to_batches = to_batches
        self._max_held = min(_HELD_PER_GROUP * groups, _MAX_HELD)

    def start_bundle(self) -> None:
        self._held: list = []
        self._payload_bytes = 0

    def process(self, value: Any) -> Iterable:
        self._held.append(value)
        self._payload_bytes += len(getattr(value, "payload", b""))
        is_full = len(self._held) >= self._max_held or self._payload_bytes >= _MAX_PAYLOAD_BYTES
        return self._release() if is_full else ()

    def finish_bundle(self) -> Iterator:
        yield from map(GlobalWindows.windowed_value_at_end_of_window, self._release())

    def _release(self) -> Iterator:
        held, self._held, self._payload_bytes = self._held, [], 0
        yield from self._to_batches(held)


@dataclass(eq=False)
class BatchByName(beam.PTransform):
    """Values -> (partition, batch of its values), for a join on names.

    Attributes:
        name_of: function that returns a value's scope and name; only equal scopes are joined.
        batch: type of batches.
        to_batch: function that makes a batch of values; None for the type itself.
    """

    name_of: Callable[[Any], tuple[str, str]]
    batch: type
    to_batch: Callable[[list], Any] | None = None

    def expand(self, values: beam.PCollection) -> beam.PCollection:
        """Divide values into partitions by their names."""
        count, to_batch = num_groups(values.pipeline), self.to_batch or self.batch
        to_batches = functools.partial(
            _by_partition, name_of=self.name_of, to_batch=to_batch, count=count
        )
        output = tuple.__class_getitem__((Partition, self.batch))
        return values | MakeBatches(to_batches, output)


def partition_of(scope: str, name: str, count: int) -> Partition:
    """Return the partition of a name, one of `count` in its scope."""
    return scope, zlib.crc32(name.encode()) % count


def _by_partition(
    values: list,
    name_of: Callable[[Any], tuple[str, str]],
    to_batch: Callable[[list], Any],
    count: int,
) -> Iterator[tuple[Partition, Any]]:
    parts: dict[Partition, list] = {}
    for value in values:
        parts.setdefault(partition_of(*name_of(value), count), []).append(value)
    return ((part, to_batch(inside)) for part, inside in parts.items())


@dataclass(eq=False)
class GroupBatches(beam.PTransform):
    """Several collections of (key, batch) -> (key, all batches of the key), in any order.

    In process, batches are in the pipeline's spool during the group-by, since FnApiRunner holds
    several copies of its input in memory.

    Attributes:
        batch: type of the batches, a struct.
    """

    batch: type

    def expand(self, sides: Any) -> beam.PCollection:  # Beam warns of a declared tuple
        """Group by key."""
        spool = SPOOLS.get(sides[0].pipeline)
        if spool is None:
            return sides | "Together" >> beam.Flatten() | "Travel" >> beam.GroupByKey()
        coder = StructCoder(self.batch)
        put = [
            side | f"Put{number}" >> beam.Map(_put, coder, spool)
            for number, side in enumerate(sides)
        ]
        waiting = put | "Together" >> beam.Flatten() | "Wait" >> beam.GroupByKey()
        return waiting | "Get" >> beam.Map(_get, coder, spool)


@dataclass(frozen=True)
class _SpooledBatches:
    """Batches in a spool; iteration reads one at a time.

    Attributes:
        places: positions of the batches in the spool, as `RunSpool.put` returned them.
        coder: coder of the batches.
        spool: file that holds the batches.
    """

    places: tuple[bytes, ...]
    coder: StructCoder
    spool: RunSpool

    def __iter__(self) -> Iterator[Any]:
        return (self.coder.decode(self.spool.get(place)) for place in self.places)


def _put(keyed: tuple[K, Any], coder: StructCoder, spool: RunSpool) -> tuple[K, bytes]:
    key, batch = keyed
    return key, spool.put(coder.encode(batch))


def _get(grouped: tuple[K, Iterable[bytes]], coder: StructCoder, spool: RunSpool) -> tuple[K, Any]:
    key, places = grouped  # returned as Any, since Beam may encode the value to estimate its size
    return key, _SpooledBatches(tuple(places), coder, spool)


def spool_for(pipeline: beam.Pipeline, folder: str = "") -> RunSpool | None:
    """Return a new spool for a pipeline and its group-bys; None if steps run in other processes."""
    if not is_in_process(pipeline) or not shares_memory(pipeline.options):
        return None
    spool = SPOOLS[pipeline] = RunSpool(next(_NUMBERS), folder)
    weakref.finalize(pipeline, close_spool, spool.number)
    return spool


def shares_memory(options: PipelineOptions) -> bool:
    """Return whether all steps of an in-process run are in this process."""
    return bool(options.view_as(DirectOptions).direct_running_mode != "multi_processing")


def delete_spool(pipeline: beam.Pipeline) -> None:
    """Delete a pipeline's spool now, since it may be garbage-collected much later."""
    if spool := SPOOLS.pop(pipeline, None):
        close_spool(spool.number)
