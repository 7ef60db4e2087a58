"""A stand-in for the Dataflow service: it takes jobs over HTTP and runs their staged files.

It serves Beam's calls of the REST API (https://cloud.google.com/dataflow/docs/reference/rest):
create a job, get one, list its messages and metrics. A job's error text becomes its error message.
"""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Execute = Callable[[Mapping[str, Any]], subprocess.CompletedProcess[str]]
"""Runs a job from its description and returns how its process ended."""

_TIME = "2026-01-01T00:00:00Z"


@dataclass
class DataflowStandIn:
    """The service: its URL for `--dataflow_endpoint`, what runs a job, and its jobs by id."""

    execute: Execute
    url: str = ""
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def create(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take a job, and run it in a thread."""
        job_id = f"2026-01-01_00_00_00-{len(self.jobs)}"
        names = {"id": job_id, "name": request["name"], "projectId": "my-project"}
        job = {**names, "createTime": _TIME, "currentState": "JOB_STATE_RUNNING"}
        self.jobs[job_id] = job
        threading.Thread(target=self._run, args=(job, request)).start()
        return job

    def _run(self, job: dict[str, Any], request: dict[str, Any]) -> None:
        ended = self.execute(request)
        if ended.returncode:
            self.errors += [ended.stderr, "Workflow failed."]
        job["currentState"] = "JOB_STATE_FAILED" if ended.returncode else "JOB_STATE_DONE"

    def answer(self, path: str) -> dict[str, Any]:
        """Return a job or its messages; an empty reply to anything else."""
        job_id, _, what = path.split("?")[0].partition("/jobs/")[2].partition("/")
        if what == "messages":
            common = {"time": _TIME, "messageImportance": "JOB_MESSAGE_ERROR"}
            texts = enumerate(self.errors)
            return {
                "jobMessages": [{"id": f"{n}", "messageText": text, **common} for n, text in texts]
            }
        return self.jobs[job_id] if job_id and not what else {}


@contextmanager
def serving_dataflow(execute: Execute) -> Iterator[DataflowStandIn]:
    """Serve from enter to exit."""
    service = DataflowStandIn(execute)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            self._send(service.answer(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._send(service.create(json.loads(body)))

        def _send(self, reply: Mapping[str, Any]) -> None:
            body = json.dumps(reply).encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("localhost", 0), Handler) as server:
        service.url = f"http://localhost:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield service
        server.shutdown()
