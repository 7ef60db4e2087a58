"""Objects and their generations, by google-cloud-storage and obstore."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import obstore
import pytest
import requests
from google.api_core import exceptions as api
from google.cloud import storage
from obstore.exceptions import GenericError
from obstore.store import GCSStore

from tests.gcs_stand_in import GcsStandIn
from tests.gcs_stand_in.clients import CHUNK, DATA, ask, read, store, upload_in_chunks

NAMES = [
    "plain.jpg",
    "two words.jpg",
    "a[1]*.jpg",
    "what?#1;&=.jpg",
    "100%25+.jpg",  # neither unquoted twice nor a space for the plus
    "caf\u00e9\u4e2d\U0001f600.jpg",
    "quote'\"<>\\.jpg",
    "deep/er/still.jpg",
    "deep%2Fer",
]
NAMES_NOT_OF_OBSTORE = ["a//b", "/a", "a/", "tab\there", "a/../b"]


class TestRoundTrips:
    @pytest.mark.parametrize("name", NAMES + NAMES_NOT_OF_OBSTORE)
    def test_google_names(self, gcs: GcsStandIn, bucket: storage.Bucket, name: str) -> None:
        bucket.blob(name).upload_from_string(b"literal")

        assert gcs.objects("b") == {name: b"literal"}
        assert bucket.blob(name).download_as_bytes() == b"literal"
        assert bucket.get_blob(name).name == name
        assert [blob.name for blob in bucket.list_blobs()] == [name]
        bucket.blob(name).delete()
        assert gcs.objects("b") == {}
        assert {request.name for request in gcs.requests} == {name, ""}

    @pytest.mark.parametrize("name", NAMES)
    def test_obstore_names(self, gcs: GcsStandIn, name: str) -> None:
        gcs.put("b", name, b"literal")

        assert read(store(gcs), name) == b"literal"
        assert obstore.head(store(gcs), name)["path"] == name

    def test_obstore_drops_a_slash_at_either_end(self, gcs: GcsStandIn) -> None:
        gcs.put("b", "/a/", b"asked for")
        gcs.put("b", "a", b"another")

        assert read(store(gcs), "/a/") == b"another"

    @pytest.mark.parametrize("name", ["", ".", "..", "line\nend", "x" * 1025])
    def test_refuses_names_that_cannot_be(self, gcs: GcsStandIn, name: str) -> None:
        path = f"/upload/storage/v1/b/b/o?uploadType=media&name={requests.utils.quote(name)}"
        assert ask(gcs, "POST", path)[0] == 400

    @pytest.mark.parametrize("size", [0, 1, CHUNK, 3_000_000])
    def test_sizes(self, gcs: GcsStandIn, bucket: storage.Bucket, size: int) -> None:
        data = (DATA * 3)[:size]
        bucket.blob("a").upload_from_string(data)

        assert bucket.blob("a").download_as_bytes() == data
        assert read(store(gcs), "a") == data

    def test_metadata(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        blob = bucket.blob("a", kms_key_name="projects/p/locations/l/keyRings/r/cryptoKeys/k")
        blob.upload_from_string(b"123456789", content_type="image/jpeg")

        found = bucket.get_blob("a")
        assert (found.size, found.content_type, found.crc32c) == (9, "image/jpeg", "4waSgw==")
        assert found.md5_hash == "JfnnlDI7RTiF9RgfG2JNCw=="
        assert (found.storage_class, found.metageneration) == ("STANDARD", 1)
        assert found.kms_key_name == "projects/p/locations/l/keyRings/r/cryptoKeys/k"
        assert found.updated == found.time_created
        seen = obstore.get(store(gcs), "a")
        assert (seen.meta["version"], seen.meta["size"]) == (str(found.generation), 9)
        assert seen.meta["e_tag"] == '"25f9e794323b453885f5181f1b624d0b"'
        assert seen.meta["last_modified"] == found.updated.replace(microsecond=0)
        assert seen.attributes["Content-Type"] == "image/jpeg"

    def test_the_key_of_a_bucket_is_that_of_its_objects(self, gcs: GcsStandIn) -> None:
        gcs.make_bucket("locked", encryption={"defaultKmsKeyName": "k"})
        blob = gcs.client().bucket("locked").blob("a")
        blob.upload_from_string(b"1")
        assert blob.kms_key_name == "k"

    def test_bucket_metadata(self, gcs: GcsStandIn) -> None:
        gcs.make_bucket("far", location="EUROPE-WEST4")
        assert gcs.client().get_bucket("far").location == "EUROPE-WEST4"
        assert gcs.client().bucket("nowhere").exists() is False

    def test_other_ways_to_connect(self, gcs: GcsStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
        gcs.put("b", "a", b"1")
        key = {"gcs_base_url": gcs.url, "disable_oauth": True, "client_email": ""}
        key |= {"private_key": "", "private_key_id": ""}
        config: Any = {"service_account_key": json.dumps(key)}
        by_key = GCSStore("b", config=config, client_options={"allow_http": True})
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)

        assert read(by_key, "a") == b"1"
        assert storage.Client().bucket("b").blob("a").download_as_bytes() == b"1"

    @pytest.mark.parametrize(
        ("header", "start", "end"),
        [("bytes=2-5", 2, 6), ("bytes=7-", 7, 10), ("bytes=-3", 7, 10), ("bytes=8-99", 8, 10)],
    )
    @pytest.mark.parametrize("path", ["/b/a", "/storage/v1/b/b/o/a?alt=media"])
    def test_ranges(self, gcs: GcsStandIn, path: str, header: str, start: int, end: int) -> None:
        gcs.put("b", "a", b"0123456789")
        status, headers, body = ask(gcs, "GET", path, headers={"Range": header})
        assert (status, body) == (206, b"0123456789"[start:end])
        assert headers["Content-Range"] == f"bytes {start}-{end - 1}/10"

    def test_a_range_past_the_end(self, gcs: GcsStandIn) -> None:
        gcs.put("b", "a", b"0123456789")
        status, headers, _ = ask(gcs, "GET", "/b/a", headers={"Range": "bytes=10-"})
        assert (status, headers["Content-Range"]) == (416, "bytes */10")

    def test_gzip_is_unpacked_for_whoever_does_not_ask_for_it(
        self, gcs: GcsStandIn, bucket: storage.Bucket
    ) -> None:
        packed = gzip.compress(DATA, mtime=0)
        gcs.put("b", "a.gz", packed, contentEncoding="gzip")

        status, headers, body = ask(gcs, "GET", "/b/a.gz", headers={"Range": "bytes=0-9"})
        assert (status, body) == (200, DATA)
        assert {"Content-Length", "ETag", "Content-Range"}.isdisjoint(headers)
        with pytest.raises(GenericError, match="ETag Header missing"):
            read(store(gcs), "a.gz")
        asking = store(gcs, default_headers={"accept-encoding": "gzip"})
        assert read(asking, "a.gz") == packed
        assert bucket.blob("a.gz").download_as_bytes(raw_download=True) == packed
        assert bucket.blob("a.gz").download_as_bytes() == DATA


class TestGenerations:
    def test_a_write_makes_a_new_one_and_the_old_is_gone(
        self, gcs: GcsStandIn, bucket: storage.Bucket
    ) -> None:
        old = gcs.put("b", "a", b"old")
        new = gcs.put("b", "a", b"new")

        assert new > old
        assert bucket.blob("a", generation=new).download_as_bytes() == b"new"
        assert read(store(gcs), "a", version=str(new)) == b"new"
        with pytest.raises(api.NotFound, match="No such object: b/a"):
            bucket.blob("a", generation=old).download_as_bytes()
        with pytest.raises(FileNotFoundError, match="NoSuchKey"):
            read(store(gcs), "a", version=str(old))
        assert bucket.get_blob("a", generation=old) is None
        with pytest.raises(api.NotFound):
            bucket.blob("a", generation=old).delete()
        bucket.blob("a", generation=new).delete()
        assert gcs.objects("b") == {}

    @pytest.mark.parametrize("way", ["multipart", "resumable", "delete", "stat", "read"])
    def test_preconditions(self, gcs: GcsStandIn, bucket: storage.Bucket, way: str) -> None:
        generation = gcs.put("b", "a", b"old")
        do: dict[str, Callable[..., Any]] = {
            "multipart": lambda **match: bucket.blob("a").upload_from_string(b"new", **match),
            "resumable": lambda **match: upload_in_chunks(bucket, "a", b"new", **match),
            "delete": lambda **match: bucket.blob("a").delete(**match),
            "stat": lambda **match: bucket.blob("a").reload(**match),
            "read": lambda **match: bucket.blob("a").download_as_bytes(**match),
        }
        for wrong in (0, generation - 1, generation + 1):
            with pytest.raises(api.PreconditionFailed, match="pre-conditions you specified"):
                do[way](if_generation_match=wrong)
        assert gcs.objects("b") == {"a": b"old"}
        do[way](if_generation_match=generation)

    def test_a_simple_upload_keeps_its_precondition(self, gcs: GcsStandIn) -> None:
        path = "/upload/storage/v1/b/b/o?uploadType=media&name=a&ifGenerationMatch=0"
        assert [ask(gcs, "POST", path, b"1")[0] for _ in range(2)] == [200, 412]

    def test_a_precondition_is_checked_again_at_the_end(
        self, gcs: GcsStandIn, bucket: storage.Bucket
    ) -> None:
        url = bucket.blob("a").create_resumable_upload_session(if_generation_match=0)
        gcs.put("b", "a", b"of another")

        assert requests.put(url, DATA, timeout=5).status_code == 412
        assert gcs.objects("b") == {"a": b"of another"}

    def test_what_is_not_there_is_404(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        with pytest.raises(api.NotFound, match="No such object: b/a"):
            bucket.blob("a").delete()
        with pytest.raises(api.NotFound, match="The specified bucket does not exist"):
            list(gcs.client().list_blobs("nowhere"))
        with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
            read(store(gcs, "nowhere"), "a")
        status, _, body = ask(gcs, "GET", "/storage/v1/b/b/o/a")
        reason = {"message": "No such object: b/a", "domain": "global", "reason": "notFound"}
        message = {"code": 404, "message": "No such object: b/a", "errors": [reason]}
        assert (status, json.loads(body)) == (404, {"error": message})
