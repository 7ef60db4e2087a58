"""A stand-in of the Dataflow service: it takes jobs over HTTP and runs what was staged for them.

It serves what Beam asks of the REST API (https://cloud.google.com/dataflow/docs/reference/rest):
create a job, get one, list its messages and metrics. A job runs in a process of its own, from the
files in its staging bucket alone, and its error text becomes the job's error message.
"""

import json
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Execute = Callable[[Mapping[str, Any]], subprocess.CompletedProcess[str]]
"""Runs a job from its description and returns how its process ended."""

_TIME = "2026-01-01T00:00:00Z"


@dataclass
class Job:
    """A job, as the service knows it.

    Attributes:
        request: the description that was sent.
        state: such as `JOB_STATE_RUNNING`.
        errors: texts of its error messages.
    """

    request: dict[str, Any]
    state: str = "JOB_STATE_RUNNING"
    errors: list[str] = field(default_factory=list)


class DataflowStandIn:
    """The service, from enter to exit.

    Attributes:
        jobs: by id, in the order in which they came.
    """

    def __init__(self, execute: Execute) -> None:
        """Take what runs a job."""
        self.jobs: dict[str, Job] = {}
        self._execute = execute
        self._running: list[threading.Thread] = []
        stand_in = self

        class Handler(_Handler):
            service = stand_in

        self._server = ThreadingHTTPServer(("localhost", 0), Handler)

    @property
    def url(self) -> str:
        """What `--dataflow_endpoint` gets."""
        return f"http://localhost:{self._server.server_port}"

    def __enter__(self) -> Self:
        """Serve."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End, once every job has."""
        for thread in self._running:
            thread.join()
        self._server.shutdown()
        self._server.server_close()

    def create(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take a job, and have it run."""
        job_id = f"2026-01-01_00_00_00-{len(self.jobs)}"
        self.jobs[job_id] = Job(request)
        running = threading.Thread(target=self._run, args=(self.jobs[job_id],))
        self._running.append(running)
        running.start()
        return self.get(job_id)

    def get(self, job_id: str) -> dict[str, Any]:
        """Return a job's state."""
        job = self.jobs[job_id]
        names = {"id": job_id, "name": job.request["name"], "projectId": "my-project"}
        return {**names, "createTime": _TIME, "currentState": job.state}

    def messages(self, job_id: str) -> dict[str, Any]:
        """Return a job's messages."""
        texts = self.jobs[job_id].errors
        level = "JOB_MESSAGE_ERROR"
        messages = [
            {"id": str(number), "time": _TIME, "messageText": text, "messageImportance": level}
            for number, text in enumerate(texts)
        ]
        return {"jobMessages": messages}

    def _run(self, job: Job) -> None:
        ended = self._execute(job.request)
        if ended.returncode:
            job.errors += [ended.stderr, "Workflow failed."]
        job.state = "JOB_STATE_FAILED" if ended.returncode else "JOB_STATE_DONE"


class _Handler(BaseHTTPRequestHandler):
    service: DataflowStandIn

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        job_id, _, what = self.path.split("?")[0].partition("/jobs/")[2].partition("/")
        answers = {"": self.service.get, "messages": self.service.messages}
        self._send(answers[what](job_id) if job_id and what in answers else {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._send(self.service.create(json.loads(body)))

    def _send(self, reply: Mapping[str, Any]) -> None:
        body = json.dumps(reply).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
