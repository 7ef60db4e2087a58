"""The doctor on a run's engine: its flags, the Dataflow service, and what its workers get."""

import re
from collections.abc import Iterator

from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    WorkerOptions,
)

from pipelines.engines import check_engine, is_dataflow, job_of, runner_of
from pipelines.launch import RunConfig, check_spool
from transforms.doctor.diagnosis import Diagnosis, fine, warning, wrong
from transforms.doctor.google_identity import NOBODY, Identity, find_identity
from transforms.doctor.google_requests import DENIED, Reply, ask
from transforms.doctor.worker_package import check_worker_package

_ACCOUNT = re.compile(r"[a-z0-9][a-z0-9.-]*@[a-z0-9.-]+\.gserviceaccount\.com")
_SUBNETWORK = re.compile(r"(.*/)?regions/(?P<region>[a-z0-9-]+)/subnetworks/[a-z0-9-]+")
_DEFAULT_ACCOUNT = "Compute Engine's default account"


def staging_of(options: PipelineOptions) -> list[str]:
    """Return where a job of Dataflow puts code and temporary files."""
    cloud = options.view_as(GoogleCloudOptions)
    given = [cloud.staging_location, cloud.temp_location] if is_dataflow(options) else []
    return [*dict.fromkeys(filter(None, given))]


def asks_google(options: PipelineOptions) -> bool:
    """Return whether a run needs Google's credentials, wherever its files are."""
    return is_dataflow(options) and not options.view_as(GoogleCloudOptions).no_auth


def check_flags(run: RunConfig, options: PipelineOptions) -> Iterator[Diagnosis]:
    """Yield what the pipeline itself refuses of its engine's flags, or that it refuses nothing."""
    check_engine(options, run.uris(), waits=run.waits)
    check_spool(run.config, options)
    where = "this process" if runner_of(options) == "FnApiRunner" else runner_of(options)
    yield fine("engine", f"{where}{f' in {region}' if (region := job_of(options).region) else ''}")


def check_service(options: PipelineOptions) -> Iterator[Diagnosis]:
    """Yield whether Dataflow's API answers for the project."""
    cloud = options.view_as(GoogleCloudOptions)
    identity = _identity(options)
    path = f"/v1b3/projects/{cloud.project}/locations/{cloud.region}/jobs"
    where = f"project {cloud.project}"
    reply = ask(f"{cloud.dataflow_endpoint}{path}", identity, where, params={"pageSize": "1"})
    yield judge_service(where, reply, identity.principal, cloud.project or "")


def judge_service(where: str, reply: Reply, principal: str, project: str) -> Diagnosis:
    """Return what an answer to the question for jobs tells.

    >>> judge_service("project p", Reply(404), "me", "p").line
    'wrong    E-ARG project p: Dataflow knows no such project or region (status 404); correct it'
    """
    if reply.is_fine:
        return fine(where, f"the Dataflow API answers {principal}")
    if "SERVICE_DISABLED" in reply.reasons:
        remedy = f"run gcloud services enable dataflow.googleapis.com --project {project}"
        return wrong("E-JOB", where, "the Dataflow API is not enabled", remedy)
    if reply.status in DENIED:
        what = f"{principal} has no dataflow.jobs.list ({reply.message})"
        return wrong("E-IO-AUTH", where, what, "grant it roles/dataflow.developer on the project")
    what = f"Dataflow knows no such project or region ({reply.message})"
    return wrong("E-ARG", where, what, "correct it")


def check_account(options: PipelineOptions) -> Iterator[Diagnosis]:
    """Yield whose permissions a job's workers have, which are not the submitter's."""
    account = options.view_as(GoogleCloudOptions).service_account_email or ""
    if account and not _ACCOUNT.fullmatch(account):
        what = f"{account} is no address of a service account"
        remedy = "give NAME@PROJECT.iam.gserviceaccount.com"
        yield wrong("E-ARG", "service_account_email", what, remedy)
        return
    if _identity(options).principal == account:
        yield fine("workers", f"run as {account}, who was asked about here")
        return
    what = f"run as {account or _DEFAULT_ACCOUNT}, whose permissions are not looked at here"
    remedy = "see docs/dataflow.md for its roles, or run the doctor as that account"
    yield warning("workers", what, remedy)


def check_network(options: PipelineOptions) -> Iterator[Diagnosis]:
    """Yield whether the flags of the network go together."""
    workers, region = options.view_as(WorkerOptions), job_of(options).region
    if subnetwork := workers.subnetwork:
        named = _SUBNETWORK.fullmatch(subnetwork)
        if named is None:
            remedy = f"give regions/{region}/subnetworks/NAME, or its URL"
            yield wrong("E-ARG", "subnetwork", f"{subnetwork} is none", remedy)
        elif named["region"] != region:
            what = f"{subnetwork} is not of {region}"
            yield wrong("E-ARG", "subnetwork", what, "give one that is, or another --region")
    if workers.use_public_ips is False and not workers.sdk_container_image:
        what = "workers without public IPs cannot reach PyPI for what setup.py asks for"
        yield wrong("E-ARG", "no_use_public_ips", what, "add --sdk_container_image")


def check_code(options: PipelineOptions) -> Iterator[Diagnosis]:
    """Yield how workers get this package, and whether it can be built."""
    image = options.view_as(WorkerOptions).sdk_container_image
    setup_file = options.view_as(SetupOptions).setup_file
    if setup_file:
        yield from check_worker_package(setup_file)
    if image and image.rpartition("/")[2].rpartition(":")[2] in (
        "latest",
        image.rpartition("/")[2],
    ):
        what = f"{image} has no tag that stays: workers of one job may get different code"
        yield warning("sdk_container_image", what, "give a tag of its own, or a digest")
    elif image:
        yield fine("sdk_container_image", f"{image} (not pulled: what it holds is not looked at)")


def _identity(options: PipelineOptions) -> Identity:
    return find_identity() if asks_google(options) else NOBODY
