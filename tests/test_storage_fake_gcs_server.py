"""A whole run on fake-gcs-server, an emulator that we did not write.

`.ci/run` installs it and names it in FAKE_GCS_SERVER; `tests/test_storage.py` then runs on it, too.
"""

from pathlib import Path

import pytest

from tests.coco_command import MakeCoco, committed, run_coco, shard_paths
from tests.stores import EMULATOR, fake_gcs_bucket

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not EMULATOR, reason="FAKE_GCS_SERVER names no fake-gcs-server; .ci/run installs one"
    ),
]


def test_a_whole_run(make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, annotations = sources = make_coco(20)
    committed(sources, tmp_path / "local", "--num_shards", 3)
    with fake_gcs_bucket() as (address, bucket):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        for path in images.iterdir():
            bucket.blob(f"photos/{path.name}").upload_from_filename(path)
        bucket.blob("instances.json").upload_from_filename(annotations)
        at = f"gs://{bucket.name}"
        given = ("--images", f"{at}/photos", "--annotations", f"{at}/instances.json")
        run = run_coco(*given, "--output", f"{at}/out", "--num_shards", 3)
        assert run.code == 0, run.err
        again = run_coco(*given, "--output", f"{at}/out", "--num_shards", 3)
        assert again.out == f"already complete: {at}/out/manifest.json\n"
        for path in shard_paths(tmp_path / "local"):
            assert bucket.blob(f"out/{path.name}").download_as_bytes() == path.read_bytes()
