"""The doctor's checks of a run: which there are, in the order in which they are told."""

import functools
import shutil
import tempfile
from collections.abc import Iterator

from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.coco import CocoConfig
from pipelines.data_set import DataSetConfig
from pipelines.doctor_engine import (
    asks_google,
    check_account,
    check_code,
    check_flags,
    check_network,
    check_service,
    staging_of,
)
from pipelines.doctor_sources import check_sources
from pipelines.engines import is_dataflow, job_of, runner_of
from pipelines.launch import RunConfig, with_earlier_sets
from schemas.places import bucket_of
from transforms.doctor.buckets import check_bucket
from transforms.doctor.coco_samples import ReadAnnotations, read_annotations, too_large
from transforms.doctor.diagnosis import Diagnosis, Mark, fine, warning
from transforms.doctor.existing import look_at_existing
from transforms.doctor.google_identity import check_identity
from transforms.doctor.machine import Needs, judge_room, nearest_folder
from transforms.doctor.outputs import check_output
from transforms.doctor.run_checks import Check, run_checks
from transforms.doctor.sampled_images import (
    Sampled,
    Treatment,
    choose_images,
    estimated_bytes,
    judge_images,
    look_at_images,
)
from transforms.images.check_images import Check as ImageCheck
from transforms.images.turn_images import Orientation
from transforms.output_files import top_level
from transforms.storage import is_local, open_storage, uploads_in_pieces

_IMAGES_S = 240.0
_BUILD_S = 120.0
_ANY_SPOOL_BYTES = 10**8  # what is staged, and Beam's own files
_REFERENCE_BYTES = 3000  # of a sample, while it is sorted


def needs_of(run: RunConfig, options: PipelineOptions) -> Needs:
    """Return what a run takes of the machine that it is started on."""
    config = run.config
    spools = 0
    if not (is_dataflow(options) or is_local(config.output)):
        shards = config.limits.shards_at_once(uploads_aside=uploads_in_pieces(config.output))
        spools = shards * config.sharding.shard_bytes
    return Needs(
        spool_dir=config.access.spool_dir,
        spool_bytes=spools + _ANY_SPOOL_BYTES,
        memory_bytes=0 if is_dataflow(options) else config.limits.bytes_in_flight,
        workers=config.limits.workers,
    )


def decodes(config: DataSetConfig) -> bool:
    """Return whether a run hands images to a native decoder."""
    turns = config.orientation is Orientation.UPRIGHT
    return config.check is ImageCheck.DECODE or config.conversion.changes or turns


def checks_of(run: RunConfig, options: PipelineOptions) -> list[Check]:
    """Return the checks of a run."""
    config = run.config
    access, region, staging = config.access, job_of(options).region, staging_of(options)
    on_gcs = [uri for uri in (*run.uris(), *staging) if uri.startswith("gs://")]
    asks = asks_google(options)
    checks = [Check("flags", lambda: check_flags(run, options))]
    if on_gcs or asks:
        who = functools.partial(check_identity, access, asks_services=asks)
        checks.append(Check("Google credentials", who))
    for bucket in dict.fromkeys(map(bucket_of, on_gcs)):
        look = functools.partial(check_bucket, bucket, access, region)
        checks.append(Check(f"gs://{bucket}", look))
    checks += check_sources(run)
    probe = functools.partial(check_output, config.output, access, overwrite=run.overwrite)
    checks.append(Check(config.output, probe))
    checks.append(Check(config.output, lambda: _existing(run)))
    for uri in staging:
        checks.append(Check(uri, functools.partial(check_output, uri, access)))
    if is_dataflow(options):
        checks.append(Check("Dataflow", lambda: check_service(options)))
        checks.append(Check("workers", lambda: check_account(options)))
        checks.append(Check("network", lambda: check_network(options)))
        checks.append(Check("package for workers", lambda: check_code(options), _BUILD_S))
    if config.layout.reads_images:
        checks.append(Check("images", lambda: _images(run, options), _IMAGES_S))
    return checks


def _existing(run: RunConfig) -> Iterator[Diagnosis]:
    config = with_earlier_sets(run).located()
    if run.since and run.since.names:
        yield fine("--since", f"{len(config.earlier.sets)} earlier data sets")
    yield look_at_existing(
        config.output, config.access, config.options(), config.names, overwrite=run.overwrite
    )


def _images(run: RunConfig, options: PipelineOptions) -> Iterator[Diagnosis]:
    """Yield what comes of some images, and whether there is room for what comes of all."""
    if blocked := [d for d in run_checks(check_sources(run)) if d.mark is Mark.WRONG]:
        what = f"not sampled, since {blocked[0].where} is as told above"  # soon, if nothing answers
        yield warning("images", what, "mend that first")
        return
    config = run.config.located()
    treatment = Treatment(config.check, config.orientation, config.conversion)
    sampled = Sampled([], 0)
    if isinstance(config, CocoConfig) and not too_large(config.annotations, config.access):
        found = ReadAnnotations()
        yield from read_annotations(config.annotations, config.reading(), found)
        sampled = found.sampled
        layout = found.resolved(config.layout)
        treatment = Treatment(
            config.check, config.orientation, config.conversion, layout, found.labels
        )
    elif config.roots:
        sampled = choose_images(config.roots, config.output, config.names, config.access)
    if not sampled.samples:
        return
    looked = look_at_images(sampled.samples, config.roots, config.access, treatment)
    yield from judge_images(sampled, looked, config.budget)
    yield from _room(config, estimated_bytes(sampled, looked), sampled, options)


def _room(
    config: DataSetConfig, wanted_bytes: int, sampled: Sampled, options: PipelineOptions
) -> Iterator[Diagnosis]:
    """Yield whether the disks hold the data set, and references while they are sorted."""
    at_least = "" if sampled.is_all else " at least"
    if is_local(config.output):
        path = config.output.removeprefix("file://")
        there = sum(top_level(open_storage(path)).values())
        free_bytes = shutil.disk_usage(nearest_folder(path)).free
        of_what = f"what is to be written{at_least}"
        yield judge_room(path, free_bytes, max(wanted_bytes - there, 0), of_what)
    if runner_of(options) == "FnApiRunner":
        folder = config.access.spool_dir or tempfile.gettempdir()
        needed_bytes = _REFERENCE_BYTES * sampled.listed
        free_bytes = shutil.disk_usage(folder).free
        yield judge_room(folder, free_bytes, needed_bytes, "references of samples")
