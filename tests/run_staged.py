"""Run a job as it was staged for Dataflow, in this process: `python run_staged.py PIPELINE_PB`.

The script imports only Beam, so that it runs where only the staged package is installed.
"""

import sys
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner


def main() -> None:
    """Run the job whose proto the argument names."""
    pipeline = beam_runner_api_pb2.Pipeline.FromString(Path(sys.argv[1]).read_bytes())
    here = beam_runner_api_pb2.Environment(urn="beam:env:embedded_python:v1")
    for name, environment in pipeline.components.environments.items():
        if environment.urn == common_urns.environments.DOCKER.urn:
            here.capabilities[:] = environment.capabilities
            pipeline.components.environments[name].CopyFrom(here)
    FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([]))


if __name__ == "__main__":
    main()
