"""What all shards of a run have in common, and whether this process can build them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.faults import fault_line
from schemas.layouts import Layout
from schemas.manifest import JobPlan
from schemas.shards import ShardNames
from transforms.images.check_images import Check
from transforms.images.convert_images import NO_CONVERSION, Conversion, Orientation
from transforms.storage import (
    DEFAULT_ACCESS,
    Access,
)
from transforms.storage.run_spool import RunSpool


@dataclass(frozen=True)
class ShardJob:
    """What all shards of a run have in common.

    Builder processes get this and not the configuration. A configuration imports Beam: a builder
    then takes 140 MB and 0.8 s of CPU to start, instead of 67 MB and 0.25 s.

    Attributes:
        roots: URI per root name of the samples' blobs.
        output: URI of the data set.
        layout: what an Example holds.
        names: how shard files are called.
        check: how far an image is looked into.
        access: how stores are reached.
        orientation: what is done about EXIF orientations.
        conversion: what else is done to pixels.
        spool: where samples' payloads lie; None where these are in the samples.
    """

    roots: Mapping[str, str]
    output: str
    layout: Layout
    names: ShardNames = field(default_factory=ShardNames)
    check: Check = Check.HEADER
    access: Access = DEFAULT_ACCESS
    orientation: Orientation = Orientation.KEEP
    conversion: Conversion = NO_CONVERSION
    spool: RunSpool | None = None


def check_codecs(job: ShardJob, plan: JobPlan) -> None:
    """Refuse a worker whose codecs are not those of the plan: equal shards would differ in bytes.

    Where codecs decide bytes the options name their versions, those of the process that asks.

    Raises:
        RuntimeError: `E-ARG`, naming both versions.
    """
    decided_here = {
        **job.layout.options(),
        **job.orientation.options(),
        **job.conversion.for_pixels(job.layout.pixels_dtype).options(),
    }
    for name, here in decided_here.items():
        planned = plan.options.get(name, here)
        if planned != here:
            what = f"{name} is {planned!r} in the plan, {here!r} on this worker"
            remedy = "give workers the packages of the machine that plans, best in an image"
            raise RuntimeError(fault_line("E-ARG", job.output, what, remedy))
