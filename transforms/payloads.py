"""Payloads: large fields of samples, such as polygons, which travel apart and once.

Joining and ranking shuffle a sample several times, and polygons are ten times as large as the rest
of it. So a sample leaves its payload behind and keeps the digest. Once the shards are planned, the
first sample of each says which shard a payload belongs to.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import apache_beam as beam
import msgspec

from schemas.samples import Sample, digest_payload
from transforms.storage import source_changed
from transforms.storage.run_spool import RunSpool


class Payload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sample's payload, with the fields that decide the sample's place in the order.

    Attributes:
        split: split of the sample.
        key: key of the sample.
        position: position of the sample.
        compressed: the payload, by zlib; polygons shrink to two fifths, in 60 us an image.
    """

    split: str
    key: str
    position: int
    compressed: bytes


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
    """Return samples with their payloads, which come compressed, by key.

    Payloads of other samples are dropped, and those in a spool stay there.

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
            raise source_changed(where, what)
        if payload:
            sample = msgspec.structs.replace(sample, payload=payload, payload_digest=b"")
        attached.append(sample)
    return attached


class DetachedSamples(NamedTuple):
    """What `DetachPayloads` returns.

    Attributes:
        samples: every sample, with the digest of its payload.
        payloads: their payloads; None where these lie in a spool.
    """

    samples: beam.PCollection[Sample]
    payloads: beam.PCollection[Payload] | None


_PayloadOutput = beam.pvalue.TaggedOutput[Literal["payloads"], Payload]


@dataclass(eq=False)
class DetachPayloads(beam.PTransform):
    """Samples -> samples without payloads, and the payloads, each once in any order.

    `PlanShards` brings them together, or `WriteShards` from a spool. A sample's content digest is
    the same before and after.

    Attributes:
        spool: file for payloads, of a run in this process; None to let them travel.
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
