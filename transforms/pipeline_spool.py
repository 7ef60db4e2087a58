"""The spool of a pipeline that runs in this process: how long it lasts, and when it is too much."""

import itertools
import logging
import weakref

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions

from schemas.shown_values import bytes_text
from transforms.sources.elements import is_in_process
from transforms.storage.run_spool import RunSpool, close_spool

_LOG = logging.getLogger(__name__)

MOST_SPOOLED = 10_000_000
"""Samples that planning in one process was measured with; see `benchmarks/README.md`."""
MOST_HELD = 1_000_000
"""The same where nothing waits on disk."""
_SPOOLED_MEMORY_BYTES = 100  # a sample, and the others
_SPOOLED_DISK_BYTES = 1_000
_HELD_MEMORY_BYTES = 2_000

_NUMBERS = itertools.count()
_CLOSERS: weakref.WeakKeyDictionary[beam.Pipeline, list[weakref.finalize]] = (
    weakref.WeakKeyDictionary()
)


def spool_for(pipeline: beam.Pipeline, folder: str = "") -> RunSpool | None:
    """Return a spool that lives as long as a pipeline; None where its steps share no memory."""
    if not is_in_process(pipeline) or not shares_memory(pipeline.options):
        return None
    spool = RunSpool(next(_NUMBERS), folder)
    closer = weakref.finalize(pipeline, close_spool, spool.number)
    _CLOSERS.setdefault(pipeline, []).append(closer)
    return spool


def warn_of_many(samples: int, *, spooled: bool) -> None:
    """Tell of more samples than one process was measured with, and what they take to be sorted.

    Args:
        samples: planned in this process.
        spooled: whether they wait on disk.
    """
    if samples <= (MOST_SPOOLED if spooled else MOST_HELD):
        return
    memory = bytes_text(samples * (_SPOOLED_MEMORY_BYTES if spooled else _HELD_MEMORY_BYTES))
    disk = bytes_text(samples * _SPOOLED_DISK_BYTES)
    _LOG.warning(
        "%d samples are many for one process: sorting them takes some %s of memory%s;"
        " a cluster (--runner) divides them among its workers",
        samples,
        memory,
        f", and {disk} or more in --spool_dir" if spooled else "",
    )


def shares_memory(options: PipelineOptions) -> bool:
    """Return whether what runs in process stays in this one, and starts no others."""
    return bool(options.view_as(DirectOptions).direct_running_mode != "multi_processing")


def close_spools(pipeline: beam.Pipeline) -> None:
    """Give back the disk's room now: a pipeline that has run may be found unused much later."""
    for closer in _CLOSERS.pop(pipeline, []):
        closer()
