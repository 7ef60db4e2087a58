"""The stand-in of Cloud Storage, by Google's own client: what tests rely on.

`tests/test_storage.py` also runs on fake-gcs-server, which we did not write.
"""

from collections.abc import Callable, Iterator

import pytest
import requests
from google.api_core import exceptions
from google.auth.exceptions import InvalidOperation
from google.cloud.storage import Bucket
from google.cloud.storage.exceptions import DataCorruption

from tests.gcs_stand_in import Fault, GcsStandIn, Kind, What

DATA = bytes(range(256)) * 1000


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStandIn]:
    # Else the client asks for the bucket from a thread of its own, which spoils counts.
    monkeypatch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    with GcsStandIn() as running:
        running.make_bucket("b")
        yield running


@pytest.fixture
def bucket(gcs: GcsStandIn) -> Bucket:
    return gcs.client().bucket("b")


def read(bucket: Bucket) -> bytes:
    return bucket.blob("a").download_as_bytes(retry=None, timeout=0.5)


def test_objects_have_generations_and_checksums(bucket: Bucket) -> None:
    blob = bucket.blob("folder/a b#1")
    blob.upload_from_string(DATA, checksum="crc32c")
    first = bucket.get_blob(blob.name)
    blob.upload_from_string(DATA[1:])

    second = bucket.get_blob(blob.name)
    assert (first.size, second.size) == (len(DATA), len(DATA) - 1)
    assert second.generation > first.generation
    assert blob.download_as_bytes(start=1, end=3, raw_download=True) == DATA[2:5]
    with pytest.raises(exceptions.NotFound):
        bucket.blob(blob.name, generation=first.generation).download_as_bytes()


def test_an_upload_may_ask_that_nothing_is_there(bucket: Bucket) -> None:
    bucket.blob("a").upload_from_string(DATA, if_generation_match=0)

    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("a").upload_from_string(b"other", if_generation_match=0)
    assert read(bucket) == DATA


def test_listings_have_pages_prefixes_and_bounds(gcs: GcsStandIn, bucket: Bucket) -> None:
    for number in range(2500):
        gcs.put("b", f"n/{number:05}", b"")
    gcs.put("b", "z", b"")

    assert len(list(bucket.list_blobs())) == 2501
    assert gcs.count(Kind.LIST) == 3
    found = bucket.list_blobs(start_offset="n/00010", end_offset="n/00012")
    assert [blob.name for blob in found] == ["n/00010", "n/00011"]
    top = bucket.list_blobs(delimiter="/")
    assert ([blob.name for blob in top], top.prefixes) == (["z"], {"n/"})


FAULTS: dict[str, tuple[Fault, type[Exception]]] = {
    "status": (Fault(What.STATUS, Kind.READ, status=503), exceptions.ServiceUnavailable),
    "reset": (Fault(What.RESET, Kind.READ), requests.ConnectionError),
    "stall": (Fault(What.STALL, Kind.READ), requests.Timeout),
    "stalled body": (Fault(What.STALLED_BODY, Kind.READ), requests.ConnectionError),
    "short body": (Fault(What.SHORT_BODY, Kind.READ), requests.exceptions.ChunkedEncodingError),
    "truncated body": (Fault(What.TRUNCATED_BODY, Kind.READ), ConnectionError),
    "flipped bit": (Fault(What.FLIPPED_BIT, Kind.READ), DataCorruption),
}


@pytest.mark.parametrize(("fault", "error"), FAULTS.values(), ids=FAULTS)
def test_a_fault_strikes_once(
    fault: Fault, error: type[Exception], gcs: GcsStandIn, bucket: Bucket
) -> None:
    gcs.put("b", "a", DATA)
    gcs.inject(fault)

    assert gcs.faults_left() == [fault]
    with pytest.raises(error):
        read(bucket)
    assert gcs.faults_left() == []
    gcs.release()
    assert read(bucket) == DATA


REFUSALS: dict[str, tuple[Callable[[GcsStandIn], None], type[Exception]]] = {
    "permission": (lambda gcs: gcs.allow("storage.objects.list"), exceptions.Forbidden),
    "token": (GcsStandIn.require_token, InvalidOperation),
    "quota": (lambda gcs: gcs.limit(0), exceptions.TooManyRequests),
}


@pytest.mark.parametrize(("restrict", "error"), REFUSALS.values(), ids=REFUSALS)
def test_a_restricted_store_refuses(
    restrict: Callable[[GcsStandIn], None],
    error: type[Exception],
    gcs: GcsStandIn,
    bucket: Bucket,
) -> None:
    gcs.put("b", "a", DATA)
    restrict(gcs)

    with pytest.raises(error):
        read(bucket)
