"""What an output holds already: nothing, this data set, its beginnings, or something else."""

from collections.abc import Mapping
from typing import Any

from schemas.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    PLAN_NAME,
    JobPlan,
    from_json,
    read_manifest,
)
from schemas.shards import ShardNames
from transforms.doctor.diagnosis import Diagnosis, fine, of_error, warning
from transforms.output_files import foreign, refuse_foreign
from transforms.publish_plan import first_difference, other_plan
from transforms.storage import Access, Storage, join_uri, open_storage


def look_at_existing(
    uri: str,
    access: Access,
    options: Mapping[str, str],
    names: ShardNames,
    *,
    overwrite: bool,
) -> Diagnosis:
    """Return what an output holds, as a run with these options would meet it; only read.

    Images and annotations are not compared with the plan there: only a run reads all of them.

    Raises:
        RuntimeError: `E-OUT-…`, where a run would end with it.
    """
    output = open_storage(uri, access)
    try:
        is_complete = output.stat(MANIFEST_NAME) is not None
        if not is_complete and output.stat(PLAN_NAME) is None:
            refuse_foreign(output, names)
            return fine(uri, "holds no data set yet")
        plan = _plan_in(output, is_complete=is_complete)
        wanted: dict[str, Any] = {"options": dict(options)}
        if not is_complete:  # which one of an earlier version may be
            wanted["format_version"] = FORMAT_VERSION
        if any(getattr(plan, part) != value for part, value in wanted.items()):
            raise other_plan(output, first_difference(plan, wanted))
    except RuntimeError as error:
        told = of_error(error)
        if told is None or not overwrite or told.code != "E-OUT-PLAN":
            raise
        return warning(uri, f"is to be deleted: {told.what}", "leave --overwrite out, to keep it")
    if overwrite:
        remedy = "leave --overwrite out, to keep it"
        return warning(uri, "holds a data set of the same options, to be deleted", remedy)
    if is_complete:
        return fine(uri, "holds a data set of the same options, which is complete")
    return fine(uri, "holds the beginnings of a data set of the same options, to be resumed")


def _plan_in(output: Storage, *, is_complete: bool) -> JobPlan:
    if is_complete:
        manifest = read_manifest(output.read(MANIFEST_NAME), join_uri(output.root, MANIFEST_NAME))
        return manifest.plan
    try:
        return from_json(output.read(PLAN_NAME), JobPlan)
    except ValueError:
        raise foreign(output, f"{PLAN_NAME} is no plan of beam-tfrec") from None
