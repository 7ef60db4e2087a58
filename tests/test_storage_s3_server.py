"""The storage contract and a whole run on moto, an emulator of S3 that we did not write.

`.ci/run` installs it and names it in MOTO_SERVER.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import obstore
import pytest
from obstore.store import S3Store

from tests.coco_command import digests, run_coco
from tests.obstore_folder import ObstoreFolder
from tests.servers import serving
from tests.storage_contract import Outside, StorageContract
from transforms.storage import Access, Storage, object_store, open_storage

SERVER = os.environ.get("MOTO_SERVER", "")

pytestmark = pytest.mark.skipif(
    not SERVER, reason="MOTO_SERVER names no moto_server; .ci/run installs one"
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(lambda port: [SERVER, "-H", "127.0.0.1", "-p", str(port)]) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    name = f"b-{uuid.uuid4().hex}"
    given = {"ENDPOINT_URL": server, "ALLOW_HTTP": "true", "REGION": "us-east-1"}
    keys = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
    for variable, value in {**given, **keys}.items():
        monkeypatch.setenv(f"AWS_{variable}", value)
    host = {"Host": f"{name}.s3.amazonaws.com"}
    with urlopen(Request(f"{server}/", method="PUT", headers=host)):
        pass
    object_store._client.cache_clear()
    return S3Store(name, client_options={"allow_http": True})


@pytest.fixture
def outside(bucket: S3Store) -> Outside:
    return ObstoreFolder(bucket)


@pytest.fixture
def storage(bucket: S3Store, tmp_path: Path) -> Storage:
    return open_storage(f"s3://{bucket.config['bucket']}/root", Access(spool_dir=str(tmp_path)))


class TestContract(StorageContract):
    """S3 keeps the storage contract."""

    grew = shrank = touched = gone = "modified since it was listed, or gone"

    @pytest.fixture
    def outside(self, bucket: S3Store) -> Outside:
        return ObstoreFolder(bucket)


def test_a_run_on_s3_makes_the_shards_of_a_local_one(
    bucket: S3Store, make_coco: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    images, annotations = make_coco(30)
    for path in images.iterdir():
        obstore.put(bucket, f"photos/{path.name}", path.read_bytes())
    obstore.put(bucket, "instances.json", annotations.read_bytes())
    root = f"s3://{bucket.config['bucket']}"
    local, out = tmp_path / "local", tmp_path / "out"
    sources = ("--images", f"{root}/photos", "--annotations", f"{root}/instances.json")
    given = ("--images", images, "--annotations", annotations)
    assert run_coco(*given, "--output", local, "--num_shards", "3").code == 0

    run = run_coco(*sources, "--output", f"{root}/out", "--num_shards", "3")

    assert run.code == 0, run.err
    for page in obstore.list(bucket, "out"):
        for found in page:
            path = out / found["path"].removeprefix("out/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(obstore.get(bucket, found["path"]).bytes()))
    assert digests(out, "*.tfrec") == digests(local, "*.tfrec")
    again = run_coco(*sources, "--output", f"{root}/out", "--num_shards", "3")
    assert (again.code, again.out) == (0, f"already complete: {root}/out/manifest.json\n")
