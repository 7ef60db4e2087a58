"""A COCO data set in the stand-in, for runs from bucket to bucket."""

from pathlib import Path

from tests.gcs_stand_in import GcsStandIn

SOURCES = ("--images", "gs://in/photos", "--annotations", "gs://in/instances.json")


def put_sources(stand_in: GcsStandIn, sources: tuple[Path, Path]) -> None:
    """Put an image folder and its annotation file where `SOURCES` says, and make `gs://out`."""
    images, annotations = sources
    for path in images.iterdir():
        stand_in.put("in", f"photos/{path.name}", path.read_bytes())
    stand_in.put("in", "instances.json", annotations.read_bytes())
    stand_in.make_bucket("out")
