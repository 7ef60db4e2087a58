"""`run_dataflow.sh` asks Google about credentials, buckets and subnetworks, and builds an image."""

import http.server
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_programs import IMAGE, Launcher, refused


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path)


GONE = "WARNING: x\nERROR: (gcloud.storage.buckets.describe) gs://in not found: 404.\n"
NOT_ALLOWED = "ERROR: no permission (or it may not exist)"


@pytest.mark.parametrize(
    ("asked", "said", "code", "line"),
    [
        (
            "print-access-token",
            "none\n",
            6,
            "E-IO-AUTH run_dataflow: there are no Application Default Credentials;"
            " run gcloud auth application-default login",
        ),
        (
            "buckets describe gs://in ",
            GONE,
            2,
            "E-ARG run_dataflow: gs://in does not exist; create it, or correct its name",
        ),
        (
            "buckets describe gs://out ",
            f"{NOT_ALLOWED}\n",
            6,
            f"E-IO-AUTH run_dataflow: gs://out cannot be looked up ({NOT_ALLOWED});"
            " run gcloud auth login, or ask for storage.buckets.get on it",
        ),
        (
            "subnets describe",
            "ERROR: not found\n",
            6,
            "E-IO-AUTH run_dataflow: regions/us-central1/subnetworks/s cannot be looked up"
            " (ERROR: not found); correct its name, or ask for compute.subnetworks.get",
        ),
    ],
)
def test_refusals_of_google_are_one_line(
    launcher: Launcher, asked: str, said: str, code: int, line: str
) -> None:
    launcher.programs.answer(asked, err=said, code=1)
    private = ("--no_public_ips", "--subnetwork", "s", "--build_container", IMAGE)
    refused(launcher.submit(*private), code, line)
    assert launcher.programs.calls("docker build") == []  # nothing is built in vain


@pytest.mark.parametrize(
    ("region", "place", "named"),
    [
        ("us-central1", "US-CENTRAL1\tregion\t", ""),
        ("us-central1", "NAM4\tdual-region\t", ""),
        ("europe-north1", "EUR4\tdual-region\t", ""),
        ("us-west1", "US\tdual-region\tUS-EAST1;US-WEST1", ""),
        # Accepted with a note on price.
        ("us-east5", "US\tmulti-region\t", "the multi-region US"),
        ("asia-east1", "ASIA\tmulti-region\t", "the multi-region ASIA"),
        # Refused.
        ("us-central1", "US-EAST1\tregion\t", "US-EAST1"),
        ("us-central1", "US\tdual-region\tUS-EAST1;US-WEST1", "US (US-EAST1;US-WEST1)"),
        ("europe-west6", "EU\tmulti-region\t", "EU"),
        ("northamerica-northeast1", "US\tmulti-region\t", "US"),
    ],
)
def test_jobs_must_run_where_their_buckets_are(
    launcher: Launcher, region: str, place: str, named: str
) -> None:
    launcher.bucket_lies_in(f"{region.upper()}\tregion\t")
    launcher.bucket_lies_in(place, "in ")
    run = launcher.submit("--region", region)
    if named and not named.startswith("the"):
        line = (
            f"E-ARG run_dataflow: gs://in is in {named}, the job in {region}: traffic between"
            " them costs money; choose a region of the bucket, or add --allow_cross_region"
        )
        refused(run, 2, line)
        run = launcher.submit("--region", region, "--allow_cross_region")
        assert (run.returncode, run.stderr) == (0, "")
    else:
        charged = f"Google charges for reads from it even by workers in {region}"
        note = f"note: gs://in is in {named}: {charged}\n" if named else ""
        assert (run.returncode, run.stderr) == (0, note)


def test_private_workers_need_private_google_access(launcher: Launcher) -> None:
    launcher.programs.answer("subnets describe", out="False\n")
    run = launcher.submit("--no_public_ips", "--sdk_container_image", IMAGE, "--subnetwork", "sub")
    line = (
        "regions/us-central1/subnetworks/sub has no Private Google Access: workers without public"
        " IPs could not reach storage; run gcloud compute networks subnets update sub"
        " --project=my-project --region=us-central1 --enable-private-ip-google-access"
    )
    refused(run, 2, f"E-ARG run_dataflow: {line}")


@pytest.mark.parametrize("docker", ["there", "missing", "not running"])
def test_image_is_built_by_docker_or_google_and_used(launcher: Launcher, docker: str) -> None:
    if docker == "missing":
        launcher.programs.remove("docker")
    launcher.programs.answer("docker info", code=int(docker == "not running"))
    assert launcher.submit("--build_container", IMAGE).returncode == 0
    home, google = str(launcher.home), ["gcloud", "builds", "submit", "--project=my-project"]
    by_docker = ["docker", "build", "--platform=linux/amd64", f"--tag={IMAGE}", home]
    pushed = [by_docker, ["docker", "push", IMAGE]]
    built = pushed if docker == "there" else [[*google, f"--tag={IMAGE}", home]]
    dry_run, *made, job = launcher.programs.calls(IMAGE)
    assert (made, dry_run) == (built, [*job, "--dry_run=True"])
    assert f"--sdk_container_image={IMAGE}" in job


@pytest.mark.parametrize(
    ("fails", "code", "line"),
    [
        ("docker build", 2, f"E-ARG run_dataflow: docker could not build {IMAGE}; see"),
        ("docker push", 6, f"E-IO-AUTH run_dataflow: docker could not push {IMAGE}; run gcloud"),
        ("--dry_run=True", 1, ""),  # such as a local path
    ],
)
def test_what_fails_before_the_job_ends_the_script(
    launcher: Launcher, fails: str, code: int, line: str
) -> None:
    launcher.programs.answer(fails, err="denied\n", code=1)
    run = launcher.submit("--build_container", IMAGE)
    assert run.returncode == code and run.stderr.startswith(f"denied\n{line}")
    (dry_run,) = launcher.programs.calls("-m beam_tfrec.pipelines")
    assert "--dry_run=True" in dry_run
    assert bool(launcher.programs.calls("docker build")) == (fails != "--dry_run=True")


# --- with a real gcloud and a server of ours: the script must understand gcloud's output

GCLOUD = shutil.which("gcloud")
PLACE = {"customPlacementConfig": {"dataLocations": ["US-EAST1", "US-CENTRAL1"]}}
FOUND: dict[str, dict[str, object]] = {
    "stage": {"location": "US-CENTRAL1", "locationType": "region"},
    "out": {"location": "US", "locationType": "dual-region", **PLACE},
    "in": {"location": "US", "locationType": "multi-region"},
    "east": {"location": "US-EAST1", "locationType": "region"},
    "s": {"kind": "compute#subnetwork", "id": "1", "privateIpGoogleAccess": False},
}
LOGGED_IN = f"""#!/usr/bin/env bash
[[ $* != *print-access-token* ]] || {{ echo token; exit 0; }}
exec {GCLOUD} "$@"
"""


class Google(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.partition("?")[0].rstrip("/").rpartition("/")[2]
        found = {"kind": "storage#bucket", "id": name, "name": name, **FOUND.get(name, {})}
        missing = {"error": {"code": 404, "message": "not here"}}
        body = json.dumps(found if name in FOUND else missing).encode()
        self.send_response(200 if name in FOUND else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Google) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        yield {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{address}/storage/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{address}/compute/v1/",
        }
        server.shutdown()


PRIVATE = ("--no_public_ips", "--sdk_container_image", IMAGE, "--subnetwork", "s")


@pytest.mark.slow
@pytest.mark.skipif(GCLOUD is None, reason="gcloud is not installed")
@pytest.mark.parametrize(
    ("options", "bucket", "code", "said"),
    [
        ((), "in", 0, "note: gs://in is in the multi-region US: Google charges for reads from it"),
        ((), "nowhere", 2, "gs://nowhere does not exist; create it, or correct its name\n"),
        ((), "east", 2, "gs://east is in US-EAST1, the job in us-central1: traffic between"),
        (PRIVATE, "out", 2, "regions/us-central1/subnetworks/s has no Private Google Access"),
    ],
)
def test_output_of_gcloud_is_understood(
    environment: dict[str, str],
    launcher: Launcher,
    options: tuple[str, ...],
    bucket: str,
    code: int,
    said: str,
) -> None:
    gcloud = launcher.programs.folder / "gcloud"
    gcloud.write_text(LOGGED_IN)
    gcloud.chmod(0o755)
    flags = ("--images=gs://out/i", "--annotations=gs://out/a", f"--output=gs://{bucket}/x")
    run = launcher.submit(*options, flags=flags, **environment)
    assert (run.returncode, said in run.stderr) == (code, True), run.stderr
