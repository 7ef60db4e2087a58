"""What an output holds already: nothing, this data set, its beginnings, or something else."""

from collections.abc import Mapping

from schemas.manifest import FORMAT_VERSION, MANIFEST_NAME, PLAN_NAME, JobPlan, from_json
from schemas.shards import ShardNames
from transforms.doctor.diagnosis import Diagnosis, fine, of_error, warning
from transforms.output_files import foreign, refuse_foreign
from transforms.publish_plan import first_difference, other_plan
from transforms.storage import Access, open_storage


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
        if output.stat(PLAN_NAME) is None:
            refuse_foreign(output, names)
            return fine(uri, "holds no data set yet")
        try:
            plan = from_json(output.read(PLAN_NAME), JobPlan)
        except ValueError:
            raise foreign(output, f"{PLAN_NAME} is no plan of beam-tfrec") from None
        if plan.format_version != FORMAT_VERSION or dict(plan.options) != dict(options):
            wanted = {"format_version": FORMAT_VERSION, "options": dict(options)}
            raise other_plan(output, first_difference(plan, wanted))
    except RuntimeError as error:
        told = of_error(error)
        if told is None or not overwrite or told.code != "E-OUT-PLAN":
            raise
        return warning(uri, told.what, "nothing, if --overwrite is to delete that data set")
    if overwrite:
        remedy = "leave --overwrite out, to keep it"
        return warning(uri, "holds a data set of the same options, to be deleted", remedy)
    if output.stat(MANIFEST_NAME) is not None:
        return fine(uri, "holds a data set of the same options, which is complete")
    return fine(uri, "holds the beginnings of a data set of the same options, to be resumed")
