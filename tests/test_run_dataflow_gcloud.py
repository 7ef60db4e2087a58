"""`run_dataflow.sh` with a real gcloud that asks a server of ours: the script reads its words."""

import http.server
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dataflow_launcher import IMAGE, Launcher, refused

GCLOUD = shutil.which("gcloud")
BUCKETS: dict[str, dict[str, object]] = {
    "stage": {"location": "US-CENTRAL1", "locationType": "region"},
    "out": {
        "location": "US",
        "locationType": "dual-region",
        "customPlacementConfig": {"dataLocations": ["US-EAST1", "US-CENTRAL1"]},
    },
    "in": {"location": "US", "locationType": "multi-region"},
    "east": {"location": "US-EAST1", "locationType": "region"},
}
LOGGED_IN = f"""#!/usr/bin/env bash
[[ $* != *print-access-token* ]] || {{ echo token; exit 0; }}
exec {GCLOUD} "$@"
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(GCLOUD is None, reason="gcloud is not installed"),
]


class Google(http.server.BaseHTTPRequestHandler):
    """Tells of buckets, and of a subnetwork without Private Google Access."""

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].rstrip("/").rpartition("/")[2]
        found = {"kind": "storage#bucket", "id": name, "name": name, **BUCKETS.get(name, {})}
        if "/subnetworks/" in self.path:
            self.reply(200, {"name": name, "privateIpGoogleAccess": False})
        elif name in BUCKETS:
            self.reply(200, found)
        else:
            self.reply(404, {"error": {"code": 404, "message": "not here"}})

    def reply(self, code: int, answer: dict[str, object]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(code)
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


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    launcher = Launcher(tmp_path)
    launcher.programs.remove("gcloud")
    (tmp_path / "bin/gcloud").write_text(LOGGED_IN)
    (tmp_path / "bin/gcloud").chmod(0o755)
    return launcher


def test_buckets_are_found_where_they_lie(launcher: Launcher, environment: dict[str, str]) -> None:
    run = launcher.submit(**environment)
    assert run.returncode == 0
    assert run.stderr == (
        "note: gs://in is in the multi-region US:"
        " Google charges for reads from it even by workers in us-central1\n"
    )


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("gs://nowhere/x", "gs://nowhere does not exist; create it, or correct its name"),
        (
            "gs://east/x",
            "gs://east lies in US-EAST1, the job in us-central1, and traffic between them costs"
            " money; choose a region of the bucket, or add --allow_cross_region",
        ),
    ],
)
def test_wrong_buckets_are_refused(
    launcher: Launcher, environment: dict[str, str], output: str, line: str
) -> None:
    flags = ("--images", "gs://out/i", "--annotations", "gs://out/a", "--output", output)
    refused(launcher.submit(flags=flags, **environment), 2, f"E-ARG run_dataflow: {line}")


def test_subnetwork_is_looked_up(launcher: Launcher, environment: dict[str, str]) -> None:
    options = ("--no_public_ips", "--sdk_container_image", IMAGE, "--subnetwork", "s")
    run = launcher.submit(*options, **environment)
    assert run.returncode == 2
    assert "regions/us-central1/subnetworks/s has no Private Google Access" in run.stderr
