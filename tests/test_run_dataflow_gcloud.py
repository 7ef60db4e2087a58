"""`run_dataflow.sh` with a real gcloud that asks a server of ours: the script reads its words."""

import http.server
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dataflow_launcher import IMAGE, Launcher

GCLOUD = shutil.which("gcloud")
PLACE = {"customPlacementConfig": {"dataLocations": ["US-EAST1", "US-CENTRAL1"]}}
FOUND: dict[str, dict[str, object]] = {
    "stage": {"location": "US-CENTRAL1", "locationType": "region"},
    "out": {"location": "US", "locationType": "dual-region", **PLACE},
    "in": {"location": "US", "locationType": "multi-region"},
    "east": {"location": "US-EAST1", "locationType": "region"},
    "s": {"privateIpGoogleAccess": False},  # a subnetwork
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
        ((), "east", 2, "gs://east lies in US-EAST1, the job in us-central1, and traffic between"),
        (PRIVATE, "out", 2, "regions/us-central1/subnetworks/s has no Private Google Access"),
    ],
)
def test_what_gcloud_says_is_understood(
    environment: dict[str, str],
    tmp_path: Path,
    options: tuple[str, ...],
    bucket: str,
    code: int,
    said: str,
) -> None:
    launcher = Launcher(tmp_path)
    launcher.programs.remove("gcloud")
    (tmp_path / "bin/gcloud").write_text(LOGGED_IN)
    (tmp_path / "bin/gcloud").chmod(0o755)
    flags = (
        "--images",
        "gs://out/i",
        "--annotations",
        "gs://out/a",
        "--output",
        f"gs://{bucket}/x",
    )
    run = launcher.submit(*options, flags=flags, **environment)
    assert (run.returncode, said in run.stderr) == (code, True), run.stderr
