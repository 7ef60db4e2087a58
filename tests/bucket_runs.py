"""A whole run from bucket to bucket with the real clients, for child processes to call."""

import os

from beam_tfrec.schemas.faults import RejectBudget
from beam_tfrec.schemas.manifest import Manifest
from beam_tfrec.transforms.storage import gcs  # noqa: F401  (imported before children are forked)
from tests.small_runs import build_run, plan_run

NUM_SHARDS = 4
SOURCES = ("gs://in/photos", "gs://in/instances.json")


def build_in_bucket(url: str, output: str) -> Manifest:
    """Plan, build and commit on the stand-in at this URL."""
    os.environ["STORAGE_EMULATOR_HOST"] = url
    return build_run(plan_run(*SOURCES, output, NUM_SHARDS, budget=RejectBudget(1)))
