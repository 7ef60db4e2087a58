"""Shared by all tests: the runner, the real data, and builders of small inputs."""

import io
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.test_pipeline import TestPipeline
from hypothesis import settings
from PIL import Image

from beam_tfrec.transforms.storage.retries import rate_of
from tests.gcs_stand_in import GcsStandIn
from tests.memory_store import served


def draw(examples: int, **more: Any) -> settings:
    """Return hypothesis settings for this number of examples, without a deadline.

    BEAM_TFREC_EXAMPLES_PERCENT, which `make test` sets, reduces it, but not below 20.
    """
    part = examples * int(os.environ.get("BEAM_TFREC_EXAMPLES_PERCENT", "100")) // 100
    return settings(max_examples=max(min(examples, 20), part), deadline=None, **more)


if settings.get_current_profile_name() == "default":  # CI chooses its own
    # No deadlines: on a busy machine an example may take any time.
    settings.register_profile("patient", draw(100))
    settings.load_profile("patient")

# These run in other environments, with packages that are not installed here.
collect_ignore = [
    *("browser/look.py", "mlcroissant/load.py", "tfdv/validate.py"),
    "formats/write.py",
    "model_garden/configure.py",
    "torch_reader/read.py",
]

TEST_DATA = Path(__file__).resolve().parent / "data"
"""Licensed photos: see its ATTRIBUTION.md."""


@pytest.fixture(scope="session", autouse=True)
def one_core() -> Iterator[None]:
    """Build shards in this process only: a builder process costs each command 0.3 s of CPU.

    Tests of builder processes ask for them with `--workers 2`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("beam_tfrec.transforms.builders.usable_cores", lambda: 1)
        yield


@pytest.fixture
def test_pipeline() -> Callable[[], beam.Pipeline]:
    """Makes pipelines on the in-process runner; a plain TestPipeline would fetch a binary."""
    return lambda: TestPipeline(runner="FnApiRunner")


@pytest.fixture(scope="module")
def memory_served() -> Iterator[None]:
    """Let `open_storage` find the processes of `tests.memory_store`."""
    with served():
        yield


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStandIn]:
    """A Cloud Storage of this test, for its process and those that it starts."""
    with GcsStandIn() as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


@pytest.fixture(scope="session")
def oracle_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the oracle's data sets that are made by code."""
    from tests.oracle import make_sources  # late: it imports all pipelines

    folder = tmp_path_factory.mktemp("made")
    make_sources(folder)
    return folder


@pytest.fixture(autouse=True)
def quiet_beam() -> Iterator[None]:
    """Keep Beam from printing every expected error twice."""
    logger = logging.getLogger("apache_beam")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def rates_forgotten() -> None:
    """Forget request rates: throttling in one test must not slow down another."""
    rate_of.cache_clear()


def rounds(few: int, many: int) -> list[Any]:
    """Return seeds from 0: a few for the slow tests, the others for `make chaos`."""
    marks = [pytest.mark.slow] * few + [pytest.mark.chaos] * (many - few)
    return [pytest.param(seed, marks=mark) for seed, mark in enumerate(marks)]


def thorough(*values: Any) -> Any:
    """Return a row of a table that only `make test-all` runs."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def jpeg_bytes(width: int = 64, height: int = 48, color: int = 0, **save: Any) -> bytes:
    """Return a small JPEG, different for each colour."""
    out = io.BytesIO()
    fill = (color % 256, color * 7 % 256, color * 31 % 256)
    Image.new("RGB", (width, height), fill).save(out, "JPEG", **save)
    return out.getvalue()


def coco_dict(num_images: int, objects: int = 2, width: int = 64, height: int = 48) -> dict:
    """Return a COCO instances file of images `a000.jpg` … with boxes inside them."""
    annotations = [
        {
            "id": 100 * image + place + 1,
            "image_id": image + 1,
            "category_id": 1 + place % 2,
            "bbox": [1.5 + place, 2.0, 10.0, 12.25],
            "area": 122.5,
            "iscrowd": int(place == 1),
            "segmentation": [[1, 2, 3, 4, 5, 6]],
        }
        for image in range(num_images)
        for place in range(objects)
    ]
    images = [
        {"id": image + 1, "file_name": f"a{image:03}.jpg", "width": width, "height": height}
        for image in range(num_images)
    ]
    categories = [{"id": 1, "name": "person"}, {"id": 2, "name": "crowd of people"}]
    return {"images": images, "annotations": annotations, "categories": categories}


def write_set(
    folder: Path,
    num_images: int,
    names: tuple[str, str] = ("images", "instances.json"),
    edit: Callable[[dict], None] = lambda spec: None,
    **coco: int,
) -> tuple[Path, Path]:
    """Write a COCO set of small JPEGs; return its image folder and annotation file."""
    images, annotations = (folder / name for name in names)
    images.mkdir(parents=True)
    spec = coco_dict(num_images, **coco)
    for place, image in enumerate(spec["images"]):
        data = jpeg_bytes(image["width"], image["height"], color=place)
        (images / image["file_name"]).write_bytes(data)
    edit(spec)
    annotations.write_text(json.dumps(spec))
    return images, annotations


@pytest.fixture
def make_coco(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Makes a data set on disk: `make_coco(20)` returns (image folder, annotation file)."""

    def make(num_images: int, name: str = "train", **given: Any) -> tuple[Path, Path]:
        return write_set(tmp_path, num_images, (f"{name}-images", f"{name}.json"), **given)

    return make


@pytest.fixture
def thirty_images(make_coco: Callable[..., tuple[Path, Path]]) -> tuple[Path, Path]:
    """Thirty images, one of them cut off; for slow engines."""
    images, annotations = make_coco(30)
    cut = images / "a007.jpg"
    cut.write_bytes(cut.read_bytes()[:300])
    return images, annotations


@pytest.fixture(scope="module")
def tfds() -> Iterator[Any]:
    """TFDS without network: it would ask its bucket if a dataset_info.json were missing."""
    import tensorflow_datasets

    def refuse(*_: object) -> None:
        raise AssertionError("TFDS asked for its bucket")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorflow_datasets.core.DatasetInfo, "initialize_from_bucket", refuse)
        patch.setattr("socket.socket.connect", refuse)
        yield tensorflow_datasets
