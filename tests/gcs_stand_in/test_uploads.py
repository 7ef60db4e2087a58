"""Uploads in one piece and in chunks, by Google's client."""

import base64
import io
import json
import socket

import pytest
import requests
from google.api_core import exceptions as api
from google.cloud import storage

from tests.gcs_stand_in import GcsStandIn, Kind
from tests.gcs_stand_in.clients import (
    CHUNK,
    DATA,
    ask,
    connect,
    crc32c_of,
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

    def test_of_no_bytes_in_a_session(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        upload_in_chunks(bucket, "a", b"")
        assert gcs.objects("b") == {"a": b""}

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

    def test_a_session_that_is_cancelled_or_never_was(self, bucket: storage.Bucket) -> None:
        url = bucket.blob("a").create_resumable_upload_session()

        assert requests.delete(url, timeout=5).status_code == 499
        assert put_range(url, b"", "*/*") == (410, None)
        assert put_range(url + "0", b"", "*/*") == (404, None)

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

    def test_wrong_checksums_in_a_header(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        path = "/upload/storage/v1/b/b/o?uploadType=media&name=a"
        assert ask(gcs, "POST", path, b"1", {"x-goog-hash": "crc32c=AAAAAA=="})[0] == 400
        url = bucket.blob("a").create_resumable_upload_session()
        wrong = {"x-goog-hash": "md5=AAAAAAAAAAAAAAAAAAAAAA=="}
        assert requests.put(url, DATA, headers=wrong, timeout=5).status_code == 400
        right = {"x-goog-hash": f"crc32c={crc32c_of(DATA)}"}
        assert requests.put(url, DATA, headers=right, timeout=5).status_code == 200

    def test_a_chunk_of_another_length_than_it_says(self, bucket: storage.Bucket) -> None:
        url = bucket.blob("a").create_resumable_upload_session()
        assert put_range(url, b"123", "0-3/4") == (400, None)
        assert put_range(url, b"123", "0 to 2") == (400, None)

    def test_null_is_absent(self, gcs: GcsStandIn) -> None:
        path = "/upload/storage/v1/b/b/o?uploadType=resumable"
        resource = json.dumps({"name": "a", "contentType": None}).encode()
        url = ask(gcs, "POST", path, resource)[1]["Location"]
        assert put_range(url, b"1", "0-0/1") == (200, None)
        assert ask(gcs, "GET", "/b/a")[1]["Content-Type"] == "application/octet-stream"

    def test_bytes_that_look_like_a_boundary(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        data = b"\r\n--==\r\n\r\n--\r\n" + bytes(range(256)) + b"\r\n--"
        bucket.blob("a").upload_from_string(data)
        assert gcs.objects("b") == {"a": data}

    def test_a_request_cut_off_has_no_effect(self, gcs: GcsStandIn) -> None:
        head = "POST /upload/storage/v1/b/b/o?uploadType=media&name=a HTTP/1.1\r\n"
        with connect(gcs) as connection:
            connection.sendall(f"{head}Content-Length: 10\r\n\r\n12345".encode())
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == b""
        assert gcs.objects("b") == {}
        assert gcs.requests == []

    @pytest.mark.parametrize(
        "parts",
        [
            [],
            ["", "{}", "1"],  # no end
            ["", "{no JSON", "1", "--"],
            ["", '["a"]', "1", "--"],
            ["", "{}", "--"],  # no bytes
        ],
    )
    def test_refuses_malformed_bodies(self, gcs: GcsStandIn, parts: list[str]) -> None:
        body = "\r\n--x".join(part if part == "--" else f"\r\n\r\n{part}" for part in parts)
        path = "/upload/storage/v1/b/b/o?uploadType=multipart&name=a"
        headers = {"Content-Type": 'multipart/related; boundary="x"'}

        assert ask(gcs, "POST", path, body.encode(), headers)[0] == 400
        assert gcs.objects("b") == {}
