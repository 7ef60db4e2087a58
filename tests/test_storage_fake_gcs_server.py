"""The storage contract and a whole run on fake-gcs-server, an emulator that we did not write.

`.ci/run` installs it and names it in FAKE_GCS_SERVER.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Bucket, Client

from tests.coco_command import digests, run_coco
from tests.servers import serving
from tests.storage_contract import Outside, StorageContract
from transforms.storage import Access, Storage, open_storage

SERVER = os.environ.get("FAKE_GCS_SERVER", "")
LARGE = bytes(range(256)) * 40_000  # over the 8 MB from which an upload is resumable

pytestmark = pytest.mark.skipif(
    not SERVER, reason="FAKE_GCS_SERVER names no fake-gcs-server; .ci/run installs one"
)


class EmulatedFolder:
    """What a root's objects look like from outside."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def put(self, files: dict[str, bytes], mtime_s: int | None = None) -> None:
        for name, data in files.items():
            self._bucket.blob(f"root/{name}").upload_from_string(data)

    def get(self, name: str) -> bytes:
        return self._bucket.blob(f"root/{name}").download_as_bytes()

    def names(self) -> list[str]:
        return sorted(blob.name.removeprefix("root/") for blob in self._bucket.list_blobs())

    def sizes(self) -> list[int]:
        return [blob.size for blob in self._bucket.list_blobs()]

    def touch(self, name: str) -> None:
        self.put({name: self.get(name)})

    def remove(self, name: str) -> None:
        self._bucket.blob(f"root/{name}").delete()


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    def command(port: int) -> list[str]:
        # Without its own address it takes no reads of the XML API.
        at = ("-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}")
        return [SERVER, "-scheme", "http", *at, "-backend", "memory"]

    with serving(command) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def bucket(emulator: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
    client = Client("test", AnonymousCredentials(), client_options={"api_endpoint": emulator})
    return client.create_bucket(f"b-{uuid.uuid4().hex}")


@pytest.fixture
def storage(bucket: Bucket, tmp_path: Path) -> Storage:
    return open_storage(f"gs://{bucket.name}/root", Access(spool_dir=str(tmp_path)))


class TestContract(StorageContract):
    """Google Cloud Storage keeps the contract; another generation is another object."""

    grew = shrank = touched = gone = "generation [0-9]+ is gone; run again"

    @pytest.fixture
    def outside(self, bucket: Bucket) -> Outside:
        return EmulatedFolder(bucket)

    def test_creates_large_objects_once(self, storage: Storage, outside: Outside) -> None:
        assert storage.create("large", LARGE) is True
        assert storage.create("large", LARGE[1:]) is False
        assert outside.get("large") == LARGE


def test_a_whole_run(
    bucket: Bucket, make_coco: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    images, annotations = make_coco(20)
    for path in images.iterdir():
        bucket.blob(f"photos/{path.name}").upload_from_filename(path)
    bucket.blob("instances.json").upload_from_filename(annotations)
    at = f"gs://{bucket.name}"
    given = ("--images", f"{at}/photos", "--annotations", f"{at}/instances.json")
    local = ("--images", images, "--annotations", annotations, "--output", tmp_path / "local")

    run = run_coco(*given, "--output", f"{at}/out", "--num_shards", 3)

    assert run.code == 0, run.err
    again = run_coco(*given, "--output", f"{at}/out", "--num_shards", 3)
    assert again.out == f"already complete: {at}/out/manifest.json\n"
    assert run_coco(*local, "--num_shards", 3).code == 0
    for blob in bucket.list_blobs(prefix="out/", delimiter="/"):
        (tmp_path / "down").mkdir(exist_ok=True)
        blob.download_to_filename(tmp_path / "down" / blob.name.removeprefix("out/"))
    for name, sha256 in digests(tmp_path / "local").items():
        if name.endswith(".tfrec"):
            assert digests(tmp_path / "down")[name] == sha256
