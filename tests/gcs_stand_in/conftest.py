"""A stand-in with a bucket, and Google's client of it."""

from collections.abc import Iterator

import pytest
from google.cloud import storage

from tests.gcs_stand_in import GcsStandIn


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStandIn]:
    # The client asks for the bucket in a thread of its own, which spoils counts of requests.
    monkeypatch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    with GcsStandIn() as stand_in:
        stand_in.make_bucket("b")
        yield stand_in


@pytest.fixture
def bucket(gcs: GcsStandIn) -> storage.Bucket:
    return gcs.client().bucket("b")
