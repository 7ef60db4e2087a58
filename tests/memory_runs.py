"""Whole runs on stores in memory and on the stand-in, with the same steps as the command.

The small data set has a rejected image and a dropped annotation. The output already holds files of
the user's.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from beam_tfrec.schemas.faults import RejectBudget
from beam_tfrec.schemas.manifest import Manifest
from beam_tfrec.transforms.storage import gcs  # noqa: F401  (imported before children are forked)
from tests.conftest import coco_dict, jpeg_bytes
from tests.invariants import check_output
from tests.memory_store import MemoryStore, Process
from tests.small_runs import SmallRun, build_run, plan_run

NUM_IMAGES, NUM_SHARDS = 10, 4
FOREIGN = {"notes.txt": b"of the user", "old/train-00000-of-00001-1.tfrec": b"of the user, too"}
"""Files of the user's in the output, which no run may change."""


@dataclasses.dataclass(frozen=True)
class Sources:
    """A store before any run.

    Attributes:
        store: sources and the user's files; copy it before a run.
        undisturbed: output of an undisturbed run.
        steps: number of steps of that run.
    """

    store: MemoryStore
    undisturbed: Mapping[str, bytes]
    steps: int

    def check(self, store: MemoryStore) -> bool:
        """Check the output; return whether the data set is committed."""
        return check_output(store.files("out/"), self.undisturbed, FOREIGN)


def make_sources(num_images: int = NUM_IMAGES, **planned: Any) -> Sources:
    """Return a store with sources, and the output of an undisturbed run."""
    store = MemoryStore()
    spec = coco_dict(num_images)
    spec["annotations"][5]["bbox"] = [64, 0, 5, 5]  # outside
    for place, image in enumerate(spec["images"]):
        data = jpeg_bytes(color=place)
        store.put(f"photos/{image['file_name']}", data[:-10] if place == 3 else data)
    store.put("instances.json", json.dumps(spec).encode())
    for name, data in FOREIGN.items():
        store.put(f"out/{name}", data)
    converted = store.copy()
    process = converted.start()
    run_on(process, **planned)
    made = {name: data for name, data in converted.files("out/").items() if name not in FOREIGN}
    return Sources(store, made, len(process.steps))


def plan_on(process: Process, num_shards: int = NUM_SHARDS, **planned: Any) -> SmallRun:
    """Read the sources and plan, in a simulated process."""
    sources = (f"{process.uri}/photos", f"{process.uri}/instances.json", f"{process.uri}/out")
    return plan_run(*sources, num_shards, budget=RejectBudget(1), **planned)


def run_on(process: Process, **planned: Any) -> Manifest:
    """Plan, build and commit, in a simulated process."""
    return build_run(plan_on(process, **planned))


def build_in_bucket(url: str, output: str) -> Manifest:
    """Plan, build and commit on the stand-in at this URL, with the real clients."""
    os.environ["STORAGE_EMULATOR_HOST"] = url
    sources = ("gs://in/photos", "gs://in/instances.json", output)
    return build_run(plan_run(*sources, NUM_SHARDS, budget=RejectBudget(1)))
