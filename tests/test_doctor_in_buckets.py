"""`beam-tfrec doctor` on stand-ins of Google's services: each planted fault is named."""

import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.coco_command import PROJECT, MakeCoco, run_coco
from tests.dataflow_stand_in import DataflowStandIn
from tests.doctor_command import Seen, run_doctor
from tests.gcs_stand_in import ALL_PERMISSIONS, Fault, GcsStandIn, Kind, What
from tests.gcs_stand_in.sources import SOURCES, put_sources
from transforms.doctor.buckets import check_bucket
from transforms.doctor.run_checks import Check, run_checks
from transforms.doctor.sources import check_root
from transforms.storage import Access

OUTPUT = ("--output", "gs://out/coco")
IMAGE = "example.com/beam-tfrec:1"
WITHOUT_CODE = (
    *("--runner", "DataflowRunner", "--project", "my-project", "--region", "us-central1"),
    *("--temp_location", "gs://staging/temp", "--staging_location", "gs://staging/jobs"),
    "--no_auth",
)
JOB = (*WITHOUT_CODE, "--sdk_container_image", IMAGE)


@pytest.fixture
def gcs(make_coco: MakeCoco, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStandIn]:
    with GcsStandIn() as running:
        for name in ("in", "out", "staging"):
            running.make_bucket(name, "US-CENTRAL1")
        put_sources(running, make_coco(6))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


@pytest.fixture
def dataflow() -> Iterator[DataflowStandIn]:
    def refuse(job: object) -> None:
        raise AssertionError(f"a job was submitted: {job}")

    with DataflowStandIn(refuse) as service:  # type: ignore[arg-type]
        yield service
        assert service.jobs == {}


def look(*flags: str) -> Seen:
    return run_doctor("coco", *SOURCES, *OUTPUT, *flags)


def look_at_job(dataflow: DataflowStandIn, *flags: str, job: tuple[str, ...] = JOB) -> Seen:
    return look(*job, "--dataflow_endpoint", dataflow.url, *flags)


def denying(gcs: GcsStandIn, *permissions: str) -> None:
    gcs.allow(*(ALL_PERMISSIONS - {f"storage.{name}" for name in permissions}))


def objects(gcs: GcsStandIn) -> dict[str, dict[str, bytes]]:
    return {name: gcs.objects(name) for name in ("in", "out", "staging")}


def test_a_healthy_job_leaves_nothing(gcs: GcsStandIn, dataflow: DataflowStandIn) -> None:
    before = objects(gcs)
    seen = look_at_job(dataflow)
    assert (seen.code, seen.wrong) == (0, [])
    assert [line.partition(": ")[0] for line in seen.warnings] == ["gs://", "workers"]
    for line in (
        "engine: DataflowRunner in us-central1",
        "gs://in: lies in US-CENTRAL1, as the job",
        "gs://in/photos: can be listed and read: 6 files",
        "gs://out/coco: objects can be created (an upload was begun, and cancelled)",
        "gs://out/coco: holds no data set yet",
        "gs://staging/jobs: objects can be created (an upload was begun, and cancelled)",
        "project my-project: the Dataflow API answers nobody (no credentials are sent)",
        f"sdk_container_image: {IMAGE} (not pulled: what it holds is not looked at)",
        "images: 6 sampled of 6 images, read and checked: all would be written",
    ):
        assert line in seen.marked("ok"), seen.lines
    assert objects(gcs) == before
    assert gcs.count(Kind.RESUMABLE_START) == gcs.count(Kind.RESUMABLE_CANCEL, 499) == 3
    assert gcs.count(Kind.UPLOAD) == gcs.count(Kind.DELETE) == 0


def test_the_run_that_the_doctor_finds_well_is_well(gcs: GcsStandIn) -> None:
    assert look().code == 0
    assert run_coco(*SOURCES, *OUTPUT).code == 0
    seen = look()
    assert seen.code == 0
    assert "gs://out/coco: holds a data set of the same options, which is complete" in seen.marked(
        "ok"
    )


@pytest.mark.parametrize(
    ("permission", "where"),
    [
        ("objects.list", "gs://in/photos"),
        ("objects.get", "gs://in/photos"),
        ("objects.get", "gs://in/instances.json"),
        ("objects.create", "gs://out/coco"),
    ],
)
def test_403_names_principal_and_permission(permission: str, where: str, gcs: GcsStandIn) -> None:
    denying(gcs, permission)
    seen = look()
    assert seen.code == 6
    who = f": nobody (no credentials are sent) has no storage.{permission} ("
    told = [w for w in seen.wrong if w.startswith(f"E-IO-AUTH {where}") and who in w]
    assert told, seen.wrong
    assert all("; grant it roles/storage." in line for line in told)


def test_checks_go_on_behind_a_403(gcs: GcsStandIn) -> None:
    broken = Fault(What.STATUS, Kind.RESUMABLE_START, status=403, times=None)
    gcs.inject(broken)
    gcs.put("in", "photos/a003.jpg", b"\xff\xd8\xff")
    seen = look()
    assert [line.split()[0] for line in seen.wrong] == ["E-IO-AUTH", "E-BUDGET"]
    assert seen.code == 6


def test_where_a_bucket_lies_may_be_hidden(gcs: GcsStandIn) -> None:
    denying(gcs, "buckets.get")
    seen = look()
    assert seen.code == 0
    hidden = "where it lies is not known: nobody (no credentials are sent) has no storage.buckets"
    assert len([line for line in seen.warnings if hidden in line]) == 2


def test_a_bucket_that_is_not_there(gcs: GcsStandIn) -> None:
    seen = run_doctor("coco", *SOURCES, "--output", "gs://nowhere/coco")
    assert seen.code == 2
    assert seen.wrong[0] == ("E-ARG gs://nowhere: no such bucket; create it, or correct its name")


def test_another_region_costs_money(gcs: GcsStandIn, dataflow: DataflowStandIn) -> None:
    gcs.make_bucket("elsewhere", "EUROPE-WEST4")
    gcs.make_bucket("everywhere", "US")
    seen = look_at_job(
        dataflow, "--output", "gs://elsewhere/coco", "--temp_location", "gs://everywhere/t"
    )
    assert seen.code == 0
    told = " ".join(seen.warnings)
    assert "gs://elsewhere: lies in EUROPE-WEST4, the job in us-central1, and traffic betw" in told
    assert "gs://everywhere: lies in US, a multi-region: reads from it cost money even in" in told


def test_requester_pays(gcs: GcsStandIn, make_coco: MakeCoco) -> None:
    gcs.make_bucket("paid", billing={"requesterPays": True})
    given = ("--output", "gs://paid/coco")
    seen = run_doctor("coco", *SOURCES, *given)
    assert any(line.endswith("; give --billing_project") for line in seen.wrong)
    assert run_doctor("coco", *SOURCES, *given, "--billing_project", "mine").wrong == []


def test_staging_that_may_not_be_written(gcs: GcsStandIn, dataflow: DataflowStandIn) -> None:
    start = Kind.RESUMABLE_START
    gcs.inject(Fault(What.STATUS, start, lambda name: "jobs/" in name, times=None, status=403))
    seen = look_at_job(dataflow)
    assert seen.code == 6
    (line,) = seen.wrong
    assert line.startswith("E-IO-AUTH gs://staging/jobs: nobody") and "objects.create" in line


def test_overwriting_needs_to_delete(gcs: GcsStandIn) -> None:
    denying(gcs, "objects.delete")
    assert look().code == 0
    seen = look("--overwrite")
    assert seen.code == 6
    assert "has no storage.objects.delete, which --overwrite needs" in seen.wrong[0]


def test_a_claimed_output(gcs: GcsStandIn) -> None:
    assert run_coco(*SOURCES, *OUTPUT).code == 0
    before = objects(gcs)
    seen = look("--seed", "1")
    assert seen.code == 5
    assert "E-OUT-PLAN gs://out/coco: options seed was '0', is '1' now" in seen.wrong[0]
    assert objects(gcs) == before


def test_an_api_that_is_not_enabled(gcs: GcsStandIn, dataflow: DataflowStandIn) -> None:
    dataflow.disabled = True
    seen = look_at_job(dataflow)
    assert seen.code == 6
    assert seen.wrong == [
        "E-JOB project my-project: the Dataflow API is not enabled;"
        " run gcloud services enable dataflow.googleapis.com --project my-project"
    ]
    dataflow.disabled, dataflow.refusal = False, HTTPStatus.FORBIDDEN
    (line,) = look_at_job(dataflow).wrong
    assert "has no dataflow.jobs.list (not allowed here); grant it roles/dataflow" in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (WITHOUT_CODE, "E-ARG command line: Dataflow's workers must get this package, got no way"),
        ((*WITHOUT_CODE, "--setup_file", "./no/setup.py"), "E-ARG ./no/setup.py: is no setup.py"),
        ((*JOB, "--service_account_email", "me"), "E-ARG service_account_email: me is no address"),
        ((*JOB, "--subnetwork", "default"), "E-ARG subnetwork: default is none; give regions/us-"),
        (
            (*JOB, "--subnetwork", "regions/europe-west4/subnetworks/a"),
            "E-ARG subnetwork: regions/europe-west4/subnetworks/a is not of us-central1",
        ),
        (
            (*WITHOUT_CODE, "--setup_file", str(PROJECT / "setup.py"), "--no_use_public_ips"),
            "E-ARG no_use_public_ips: workers without public IPs cannot reach PyPI",
        ),
        ((*JOB, "--exclude", "/data"), "E-ARG command line: Dataflow's workers see no local paths"),
    ],
)
def test_flags_of_the_engine(
    flags: tuple[str, ...], said: str, gcs: GcsStandIn, dataflow: DataflowStandIn
) -> None:
    seen = look_at_job(dataflow, job=flags)
    assert seen.code == 2
    assert [line for line in seen.wrong if line.startswith(said)], seen.wrong


def test_an_image_without_a_tag_that_stays(gcs: GcsStandIn, dataflow: DataflowStandIn) -> None:
    for image in ("example.com:5000/mine", "example.com/mine:latest"):
        seen = look_at_job(dataflow, job=(*WITHOUT_CODE, "--sdk_container_image", image))
        assert [line for line in seen.warnings if f"{image} has no tag that stays" in line]


def test_an_interrupted_network_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers; the storage itself would try for a quarter of an hour."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    checks = [
        Check("gs://in", lambda: check_bucket("in", Access(), "")),
        Check("gs://in/photos", lambda: check_root("gs://in/photos", Access()), 1.0),
    ]
    lines = [diagnosis.line for diagnosis in run_checks(checks)]
    assert lines[0].startswith("wrong    E-IO-RETRIES gs://in: still failing after ")
    assert lines[1].startswith("wrong    E-IO-RETRIES gs://in/photos: no answer within 1 s; ")


# --- credentials


def test_no_credentials(no_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    seen = look()
    assert seen.code == 6
    assert seen.wrong[0].startswith("E-IO-AUTH Google credentials: Your default credentials were")
    assert "; run gcloud auth application-default login" in seen.wrong[0]
    assert not any("Google credentials" in line for line in look("--anonymous", "--help").lines)


@pytest.fixture
def token_server() -> Iterator[ThreadingHTTPServer]:
    """A service that refuses credentials, or takes them once its `answer` is changed."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, content = self.server.answer  # type: ignore[attr-defined]
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = "Token has been expired or revoked."
        server.answer = 400, {"error": "invalid_grant", "error_description": said}  # type: ignore[attr-defined]
        yield server
        server.shutdown()


@pytest.fixture
def account(
    token_server: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The address of a service account, whose key is what this machine has."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    email = "night@my-project.iam.gserviceaccount.com"
    info = {
        "type": "service_account",
        "client_email": email,
        "private_key": key.decode(),
        "token_uri": f"http://127.0.0.1:{token_server.server_port}/token",
    }
    path = tmp_path / "key.json"
    path.write_text(json.dumps(info))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    return email


def test_expired_credentials(account: str, gcs: GcsStandIn, dataflow: DataflowStandIn) -> None:
    job = tuple(word for word in JOB if word != "--no_auth")
    seen = look_at_job(dataflow, job=job)
    assert seen.code == 6
    assert any(
        line.startswith("E-IO-AUTH Google credentials: ") and "expired or revoked" in line
        for line in seen.wrong
    ), seen.wrong


def test_who_asks(
    account: str, token_server: ThreadingHTTPServer, gcs: GcsStandIn, dataflow: DataflowStandIn
) -> None:
    token = {"access_token": "t", "expires_in": 3600, "token_type": "Bearer"}
    token_server.answer = 200, token  # type: ignore[attr-defined]
    job = (*(word for word in JOB if word != "--no_auth"), "--service_account_email", account)
    seen = look_at_job(dataflow, job=job)
    assert (seen.code, seen.wrong) == (0, [])
    assert f"Google credentials: {account}" in seen.marked("ok")
    assert f"workers: run as {account}, who was asked about here" in seen.marked("ok")
    assert f"project my-project: the Dataflow API answers {account}" in seen.marked("ok")
