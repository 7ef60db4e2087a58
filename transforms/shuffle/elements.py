"""How elements travel between Beam's steps: coders for our structs, and batches for group-bys.

Importing this module gives every msgspec struct a coder. Samples cross a group-by in batches,
because a runner pays for each element, in process some 20 us: several times the work on a sample.
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
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.window import GlobalWindows

from beam_tfrec.transforms.shuffle.run_spool import RunSpool, close_spool

K = TypeVar("K", bound=Hashable)


_NUMBERS = itertools.count()
_CLOSERS: weakref.WeakKeyDictionary[beam.Pipeline, list[weakref.finalize]] = (
    weakref.WeakKeyDictionary()
)

_HELD_PER_GROUP = 32  # more values at once leave the processor's caches
_MAX_HELD = 65_536  # some 100 MB of samples, on a cluster alone
_MAX_PAYLOAD_BYTES = 64 * 2**20
_GROUPS_IN_PROCESS = 128
_PARTITIONS = 16_384  # of a join, on a cluster

Partition = tuple[str, int]
"""A part of a join: a scope of names, and a number in it."""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Base of batches of samples, which travel compressed.

    Names and pins of neighbours are much alike, so that half the size is left. It takes 7 us a
    sample and group-by, and a cluster bills what it shuffles by the byte.
    """


class StructCoder(coders.Coder):
    """The compact, deterministic coder of a msgspec struct: MessagePack."""

    def __init__(self, struct: type) -> None:
        """Take the struct's type."""
        self._struct = struct
        self._encode = msgspec.msgpack.Encoder(order="deterministic").encode
        self._decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(struct).decode

    def _create_impl(self) -> coder_impl.CoderImpl:
        # The codec's own functions: one Python frame less an element than encode and decode below.
        return coder_impl.CallbackCoderImpl(self._encode, self._decode)

    def encode(self, value: Any) -> bytes:
        """Return the value's bytes."""
        return self._encode(value)

    def decode(self, encoded: bytes) -> Any:
        """Return the value, validated against its type."""
        return self._decode(encoded)

    def is_deterministic(self) -> bool:
        """Return True: equal structs have equal bytes."""
        return True

    def to_type_hint(self) -> type:
        """Return the struct's type."""
        return self._struct

    @classmethod
    def from_type_hint(cls, typehint: Any, registry: Any) -> Any:
        """Return the coder of a struct, which compresses batches.

        Raises:
            TypeError: for another type, which Beam finds a coder for.
        """
        if not issubclass(typehint, msgspec.Struct):
            raise TypeError(f"{typehint} is no msgspec struct: Beam knows its coder")
        return (_BatchCoder if issubclass(typehint, Batch) else cls)(typehint)

    def __reduce__(self) -> tuple:
        """Pickle by the type: encoders and decoders do not pickle."""
        return type(self), (self._struct,)

    def __eq__(self, other: object) -> bool:
        """Return whether both encode the same struct in the same way."""
        return type(other) is type(self) and self._struct is other.to_type_hint()

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash(self._struct)


class _BatchCoder(StructCoder):
    """The coder of a batch that travels; in the spool of a run in process nothing is compressed."""

    def _create_impl(self) -> coder_impl.CoderImpl:
        return coder_impl.CallbackCoderImpl(self.encode, self.decode)

    def encode(self, value: Any) -> bytes:
        """Return the value's bytes, compressed."""
        return zlib.compress(super().encode(value), level=1)

    def decode(self, encoded: bytes) -> Any:
        """Return the value, validated against its type."""
        return super().decode(zlib.decompress(encoded))


coders.registry.register_fallback_coder(StructCoder)


def is_in_process(root: beam.Pipeline | beam.pvalue.PBegin) -> bool:
    """Return whether a pipeline runs in this process, one element after the other."""
    pipeline = root.pipeline if isinstance(root, beam.pvalue.PBegin) else root
    return isinstance(pipeline.runner, FnApiRunner)


def num_groups(pipeline: beam.Pipeline, on_a_cluster: int) -> int:
    """Return how many groups a step divides samples into; only speed depends on it.

    A cluster's workers hold one group at a time in memory, so there should be many. In process all
    memory is shared, and every group costs some 50 us.
    """
    return _GROUPS_IN_PROCESS if is_in_process(pipeline) else on_a_cluster


@dataclass(eq=False)
class MakeBatches(beam.PTransform):
    """Values -> (key, batch). A batch holds values of one bundle, and its size is arbitrary.

    A bounded number of values is held, and of bytes of payloads. Results must not depend on how
    values fall into batches.

    Attributes:
        to_batches: makes a batch a key.
        output: type of key and batch.
        groups: number of keys.
    """

    to_batches: Callable[[list], Iterable[tuple[Hashable, Any]]]
    output: Any
    groups: int

    def expand(self, values: beam.PCollection) -> beam.PCollection:
        """Hold values, and make batches once they are many."""
        make = beam.ParDo(_MakeBatches(self.to_batches, self.groups))
        return values | "Make" >> make.with_output_types(self.output)


class _MakeBatches(beam.DoFn):
    """Makes batches of a bundle's values. `beam.BatchElements` takes 1.2 times the CPU in all."""

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
    """Values -> (partition, batch of its values), to be joined with others by their names.

    Attributes:
        name_of: gives a value's name, and its scope: names of other scopes do not meet.
        to_batch: makes a batch of values.
        output: type of partition and batch.
    """

    name_of: Callable[[Any], tuple[str, str]]
    to_batch: Callable[[list], Any]
    output: Any

    def expand(self, values: beam.PCollection) -> beam.PCollection:
        """Divide names into partitions."""
        count = num_partitions(values.pipeline)
        to_batches = functools.partial(
            _by_partition, name_of=self.name_of, to_batch=self.to_batch, count=count
        )
        return values | MakeBatches(to_batches, self.output, count)


def num_partitions(pipeline: beam.Pipeline) -> int:
    """Return how many partitions a join has; a worker holds one in memory."""
    return num_groups(pipeline, _PARTITIONS)


def partition_of(scope: str, name: str, count: int) -> Partition:
    """Return the partition, one of `count` in its scope, that a name falls into."""
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
    """Several of (key, batch) -> (key, batches of that key), in any order.

    In process, batches wait on disk until they are read: FnApiRunner holds several copies of all
    that crosses a group-by.

    Attributes:
        batch: type of the batches, a struct.
        spool: file where batches wait, of a run in this process; None to let them travel.
    """

    batch: type
    spool: RunSpool | None = None

    def expand(self, sides: Any) -> beam.PCollection:  # Beam warns of a declared tuple
        """Group by key."""
        if self.spool is None:
            return sides | "Together" >> beam.Flatten() | "Travel" >> beam.GroupByKey()
        coder = StructCoder(self.batch)
        put = [
            side | f"Put{place}" >> beam.Map(_put, coder, self.spool)
            for place, side in enumerate(sides)
        ]
        waiting = put | "Together" >> beam.Flatten() | "Wait" >> beam.GroupByKey()
        return waiting | "Get" >> beam.Map(_get, coder, self.spool)


@dataclass(frozen=True)
class _SpooledBatches:
    """Batches in a spool, each read on demand.

    Attributes:
        places: where the batches lie.
        coder: the batches' coder.
        spool: file that holds them.
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
    key, places = grouped  # the value is declared as anything: Beam may encode it to know its size
    return key, _SpooledBatches(tuple(places), coder, spool)


def spool_for(pipeline: beam.Pipeline, folder: str = "") -> RunSpool | None:
    """Return a spool that lives as long as a pipeline; None where its steps share no memory."""
    if not is_in_process(pipeline) or not shares_memory(pipeline.options):
        return None
    spool = RunSpool(next(_NUMBERS), folder)
    closer = weakref.finalize(pipeline, close_spool, spool.number)
    _CLOSERS.setdefault(pipeline, []).append(closer)
    return spool


def shares_memory(options: PipelineOptions) -> bool:
    """Return whether an in-process run starts no other processes."""
    return bool(options.view_as(DirectOptions).direct_running_mode != "multi_processing")


def close_spools(pipeline: beam.Pipeline) -> None:
    """Delete a pipeline's spools now: garbage collection of the pipeline may come much later."""
    for closer in _CLOSERS.pop(pipeline, []):
        closer()
