"""Uploads in one piece and in chunks, by Google's client."""

import base64
import io

import pytest
from google.api_core import exceptions as api
from google.cloud import storage

from tests.gcs_stand_in import GcsStandIn, Kind
from tests.gcs_stand_in.clients import (
    CHUNK,
    DATA,
    put_range,
    upload_in_chunks,
)


class TestUploads:
    def test_in_chunks(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        upload_in_chunks(bucket, "a")

        assert gcs.objects("b") == {"a": DATA}
        assert gcs.count(Kind.RESUMABLE_START) == 1
        assert gcs.count(Kind.RESUMABLE_PUT, 308) == 4
        assert gcs.count(Kind.RESUMABLE_PUT, 200) == 1

    def test_a_session_says_what_it_has_until_it_is_whole(
        self, gcs: GcsStandIn, bucket: storage.Bucket
    ) -> None:
        url = bucket.blob("a").create_resumable_upload_session()

        assert put_range(url, b"", "*/*") == (308, None)
        assert put_range(url, DATA[: CHUNK + 7], f"0-{CHUNK + 6}/*") == (308, f"0-{CHUNK - 1}")
        assert put_range(url, b"", "*/*") == (308, f"0-{CHUNK - 1}")
        assert put_range(url, b"", f"*/{len(DATA)}") == (308, f"0-{CHUNK - 1}")
        after_a_gap = DATA[2 * CHUNK :]
        asked = f"{2 * CHUNK}-{len(DATA) - 1}/{len(DATA)}"
        assert put_range(url, after_a_gap, asked) == (308, f"0-{CHUNK - 1}")
        assert gcs.objects("b") == {}
        assert put_range(url, DATA, f"0-{len(DATA) - 1}/{len(DATA)}") == (200, None)
        assert gcs.objects("b") == {"a": DATA}
        generation = bucket.get_blob("a").generation
        assert put_range(url, b"", "*/*") == (200, None)
        assert put_range(url, DATA, f"0-{len(DATA) - 1}/{len(DATA)}") == (200, None)
        assert bucket.get_blob("a").generation == generation
        assert gcs.count(Kind.RESUMABLE_STATUS) == 4

    @pytest.mark.parametrize("what", ["crc32c", "md5_hash"])
    def test_wrong_checksums_in_metadata(
        self, gcs: GcsStandIn, bucket: storage.Bucket, what: str
    ) -> None:
        for chunk_size in (None, CHUNK):
            blob = bucket.blob("a", chunk_size=chunk_size)
            setattr(blob, what, base64.b64encode(bytes(4 if what == "crc32c" else 16)).decode())
            size = len(DATA) if chunk_size is None else None
            with pytest.raises(api.BadRequest, match="doesn't match calculated"):
                blob.upload_from_file(io.BytesIO(DATA), size=size, checksum=None)
        assert gcs.objects("b") == {}
