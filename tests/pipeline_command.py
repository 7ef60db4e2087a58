"""Run any pipeline in this process."""

from tests.coco_command import committed_by as committed_by
from tests.coco_command import run_pipeline as run_pipeline
