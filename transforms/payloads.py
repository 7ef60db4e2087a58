"""Payloads: large fields of samples, which go to their shard directly and meet the samples there.

Joining and ranking shuffle a sample several times, and polygons are ten times as large as all else
of it. So a sample leaves its payload behind and carries its digest; once shards are cut, the first
sample of each tells which shard a payload belongs to, and it is shuffled once.
"""

import bisect
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import apache_beam as beam
import msgspec

from schemas.faults import fault_line
from schemas.samples import Sample, digest_payload
from transforms.storage.run_spool import RunSpool

PAYLOADS_HELD_BYTES = 8_000_000
"""How much of payloads is held back, so that those of one shard travel together."""


class Payload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sample's payload, with what its place in the order follows from.

    Attributes:
        split: of the sample.
        key: of the sample.
        position: of the sample.
        compressed: the payload, by zlib: polygons shrink to two fifths, in 60 us an image, and a
            runner in this process holds several copies of everything.
    """

    split: str
    key: str
    position: int
    compressed: bytes


class Boundary(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """Where a shard begins in its split's order.

    Attributes:
        split: its split.
        index: of the shard.
        order_key: of its first sample, 16 bytes that sort as the number does.
        key: of that sample.
    """

    split: str
    index: int
    order_key: bytes
    key: str


class Boundaries(msgspec.Struct, frozen=True):
    """Per split where its shards begin, in their order, as (order key, key)."""

    splits: dict[str, list[tuple[bytes, str]]]

    def find(self, split: str, order_key: bytes, key: str) -> int | None:
        """Return the index of the shard whose stretch of the order holds a place, if there is one.

        >>> Boundaries({"val": [(b"b", "7"), (b"e", "1")]}).find("val", b"d", "3")
        0
        """
        index = bisect.bisect_right(self.splits.get(split, []), (order_key, key)) - 1
        return None if index < 0 else index


def detach_payload(sample: Sample) -> tuple[Sample, Payload | None]:
    """Return a sample without its payload, and the payload if it has one."""
    if not sample.payload:
        return sample, None
    light = msgspec.structs.replace(
        sample, payload=b"", payload_digest=digest_payload(sample.payload)
    )
    compressed = zlib.compress(sample.payload, level=1)
    return light, Payload(sample.split, sample.key, sample.position, compressed)


def attach_payloads(
    samples: Sequence[Sample], payloads: Mapping[str, bytes], where: str
) -> list[Sample]:
    """Return samples with their compressed payloads, by key; those of others are left out.

    Payloads that lie in a spool stay there.

    Raises:
        RuntimeError: `E-SRC-CHANGED` when a payload is not the one that was detached.
    """
    attached: list[Sample] = []
    for sample in samples:
        if sample.payload_place or not (sample.payload_digest or sample.key in payloads):
            attached.append(sample)
            continue
        compressed = payloads.get(sample.key)
        payload = b"" if compressed is None else zlib.decompress(compressed)
        if digest_payload(payload) != sample.payload_digest:
            what = f"the payload of key {sample.key!r} is not what was planned"
            remedy = "run again when the sources are at rest"
            raise RuntimeError(fault_line("E-SRC-CHANGED", where, what, remedy))
        if payload:
            sample = msgspec.structs.replace(sample, payload=payload, payload_digest=b"")
        attached.append(sample)
    return attached


def make_boundaries(boundaries: Sequence[Boundary]) -> Boundaries:
    """Return where all shards begin; boundaries come in any order, one a shard."""
    splits: dict[str, list[tuple[bytes, str]]] = {}
    for boundary in sorted(boundaries):
        splits.setdefault(boundary.split, []).append((boundary.order_key, boundary.key))
    return Boundaries(splits)


class DetachedSamples(NamedTuple):
    """What `DetachPayloads` returns.

    Attributes:
        samples: every sample, with the digest of its payload.
        payloads: of those that have one; None where they lie in a spool.
    """

    samples: beam.PCollection[Sample]
    payloads: beam.PCollection[Payload] | None


_PayloadOutput = beam.pvalue.TaggedOutput[Literal["payloads"], Payload]


@dataclass(eq=False)
class DetachPayloads(beam.PTransform):
    """Samples -> samples without payloads, and the payloads, each once in any order.

    `PlanShards` brings them together, `WriteShards` where they lie in a spool. A sample's content
    digest is the same before and after.

    Attributes:
        spool: where payloads go, of a run in this process; None to let them travel.
    """

    spool: RunSpool | None = None

    def expand(self, samples: beam.PCollection[Sample]) -> DetachedSamples:
        """Divide every sample."""
        if self.spool is not None:
            light = samples | "Spool" >> beam.Map(self.spool.take).with_output_types(Sample)
            return DetachedSamples(light, None)
        parts = samples | "Detach" >> beam.ParDo(_Detach()).with_outputs("payloads", main="light")
        return DetachedSamples(parts.light, parts.payloads)


class _Detach(beam.DoFn):
    def process(self, sample: Sample) -> Iterator[Sample | _PayloadOutput]:
        light, payload = detach_payload(sample)
        yield light
        if payload is not None:
            yield _PayloadOutput("payloads", payload)
