"""The stand-in against the clients it stands in for: google-cloud-storage and obstore."""

import base64
import gzip
import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import google_crc32c
import obstore
import pytest
import requests
from google.api_core import exceptions as api
from google.auth.exceptions import InvalidOperation
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption
from google.cloud.storage.retry import DEFAULT_RETRY
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError
from obstore.store import GCSStore

from tests.gcs_stand_in import (
    ALL_PERMISSIONS,
    OBSTORE_CLIENT_OPTIONS,
    Fault,
    GcsStandIn,
    Kind,
    Request,
    What,
)
from tests.gcs_stand_in.bucket import Bucket, ListQuery
from tests.gcs_stand_in.faults import Quota
from tests.gcs_stand_in.store import Store

CHUNK = 256 * 1024
DATA = bytes(range(256)) * 4096 + b"the end"  # four chunks and a bit
SOON = DEFAULT_RETRY.with_delay(initial=0.001, maximum=0.002).with_timeout(10)
TIMEOUT_S = 0.4

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


class TestListings:
    NAMES = ("a", "a/1", "a/2", "a/b/3", "b", "c/4", "\u00e9", "\U0001f600")

    @pytest.mark.parametrize(
        ("query", "names", "prefixes"),
        [
            ({}, list(NAMES), []),
            ({"prefix": "a/"}, ["a/1", "a/2", "a/b/3"], []),
            ({"prefix": "x"}, [], []),
            ({"delimiter": "/"}, ["a", "b", "\u00e9", "\U0001f600"], ["a/", "c/"]),
            ({"prefix": "a/", "delimiter": "/"}, ["a/1", "a/2"], ["a/b/"]),
            ({"start_offset": "a/2", "end_offset": "b"}, ["a/2", "a/b/3"], []),  # b is outside
            ({"start_offset": "a/2", "delimiter": "/", "end_offset": "c"}, ["b"], ["a/"]),
        ],
    )
    @pytest.mark.parametrize("page_size", [None, 1, 2])
    def test_queries(
        self,
        gcs: GcsStandIn,
        query: dict[str, str],
        names: list[str],
        prefixes: list[str],
        page_size: int | None,
    ) -> None:
        for name in reversed(self.NAMES):
            gcs.put("b", name, b"")
        listing = gcs.client().list_blobs("b", page_size=page_size, **query)

        assert [blob.name for blob in listing] == names
        assert sorted(listing.prefixes) == prefixes
        if page_size:
            entries = len(names) + len(prefixes)
            assert gcs.count(Kind.LIST) == max(-(-entries // page_size), 1)

    @settings(max_examples=60, deadline=None)
    @given(
        names=st.sets(st.text("ab/\u00ff", min_size=1, max_size=4), max_size=12),
        prefix=st.text("ab/", max_size=2),
        delimiter=st.sampled_from(["", "/", "b/"]),
        offsets=st.tuples(st.text("ab/", max_size=2), st.text("ab/", max_size=2)),
        max_results=st.integers(1, 4),
    )
    def test_pages_together_are_the_listing(
        self,
        names: set[str],
        prefix: str,
        delimiter: str,
        offsets: tuple[str, str],
        max_results: int,
    ) -> None:
        store = Store()
        store.make_bucket("b", {})
        halves = sorted(names)[::2], sorted(names)[1::2]
        for name in halves[0]:
            store.insert("b", name, b"", {})
        store.insert_virtual("b", halves[1], 0)
        wanted = {
            (name[: cut + len(delimiter)], True) if cut >= 0 else (name, False)
            for name in names
            if name.startswith(prefix) and offsets[0] <= name and (name < (offsets[1] or "\uffff"))
            for cut in [name.find(delimiter, len(prefix)) if delimiter else -1]
        }

        got, token = [], ""
        while True:
            query = ListQuery(prefix, delimiter, *offsets, token, max_results)
            page = store.page("b", query)
            got += [(found.name, False) for found in page.objects]
            got += [(folder, True) for folder in page.prefixes]
            token = page.next_page_token
            if not token:
                break
            assert len(page.objects) + len(page.prefixes) == max_results

        assert sorted(got) == sorted(wanted)

    def test_a_page_is_a_thousand_at_most(self, gcs: GcsStandIn) -> None:
        gcs.put_virtual("b", [f"{number:04}" for number in range(2500)], 3)

        status, _, body = ask(gcs, "GET", "/storage/v1/b/b/o?maxResults=5000")
        assert (status, len(json.loads(body)["items"])) == (200, 1000)
        assert len(list(gcs.client().list_blobs("b"))) == 2500
        assert gcs.count(Kind.LIST) == 4

    def test_a_million_names(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        gcs.put_virtual("b", [f"{number:07}.jpg" for number in range(1_000_000)], 5)
        gcs.put("b", "0999990.jpgx", b"real")

        tail = list(bucket.list_blobs(start_offset="0999990"))
        assert [blob.name for blob in tail][:2] == ["0999990.jpg", "0999990.jpgx"]
        assert len(tail) == 11
        assert tail[0].crc32c == crc32c_of(bytes(5))
        assert tail[0].download_as_bytes() == bytes(5)
        assert read(store(gcs), "0500000.jpg") == bytes(5)
        tail[0].delete()
        assert next(iter(bucket.list_blobs(start_offset="0999990"))).name == "0999990.jpgx"
        bucket.blob("0999991.jpg").upload_from_string(b"now real")
        assert read(store(gcs), "0999991.jpg") == b"now real"
        assert len(list(bucket.list_blobs(start_offset="0999990"))) == 10

    @pytest.mark.parametrize(
        "query", ["pageToken=%21", "maxResults=x", "versions=true", "matchGlob=*"]
    )
    def test_refuses_what_it_does_not_serve(self, gcs: GcsStandIn, query: str) -> None:
        assert ask(gcs, "GET", f"/storage/v1/b/b/o?{query}")[0] == 400

    def test_a_deleted_name_stays_deleted(self) -> None:
        bucket = Bucket("b", {})
        bucket.remove("never there")
        assert (bucket.first_from(""), bucket.get("never there")) == (None, None)


class TestPermissions:
    @pytest.mark.parametrize(
        ("permission", "act"),
        [
            ("storage.objects.get", lambda bucket: bucket.blob("a").download_as_bytes()),
            ("storage.objects.get", lambda bucket: bucket.blob("a").reload()),
            ("storage.objects.list", lambda bucket: list(bucket.list_blobs())),
            ("storage.objects.list", lambda bucket: bucket.blob("missing").reload()),
            ("storage.objects.create", lambda bucket: bucket.blob("c").upload_from_string(b"")),
            ("storage.objects.delete", lambda bucket: bucket.blob("a").upload_from_string(b"")),
            ("storage.objects.delete", lambda bucket: bucket.blob("a").delete()),
            ("storage.buckets.get", lambda bucket: bucket.reload()),
        ],
    )
    def test_403_names_what_is_missing(
        self,
        gcs: GcsStandIn,
        bucket: storage.Bucket,
        permission: str,
        act: Callable[[storage.Bucket], Any],
    ) -> None:
        gcs.put("b", "a", b"kept")
        gcs.allow(*ALL_PERMISSIONS - {permission})

        with pytest.raises(api.Forbidden, match=f"Permission '{permission}' denied"):
            act(bucket)
        granted = bucket.test_iam_permissions(sorted(ALL_PERMISSIONS))
        assert set(granted) == ALL_PERMISSIONS - {permission}
        assert gcs.objects("b") == {"a": b"kept"}

    def test_create_only_needs_no_right_to_delete(
        self, gcs: GcsStandIn, bucket: storage.Bucket
    ) -> None:
        gcs.allow("storage.objects.create")
        bucket.blob("a").upload_from_string(b"1", if_generation_match=0)
        with pytest.raises(api.PreconditionFailed):
            bucket.blob("a").upload_from_string(b"2", if_generation_match=0)

    def test_403_in_obstore(self, gcs: GcsStandIn) -> None:
        gcs.allow("storage.objects.list")
        with pytest.raises(PermissionDeniedError, match=r"not have storage\.objects\.get access"):
            read(store(gcs), "a")

    def test_401_without_a_token(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        gcs.put("b", "a", b"1")
        gcs.require_token()

        with pytest.raises(InvalidOperation, match="Anonymous credentials cannot be refreshed"):
            bucket.blob("a").download_as_bytes()
        with pytest.raises(UnauthenticatedError, match="Anonymous caller does not have"):
            read(store(gcs), "a")
        assert gcs.count(Kind.READ, 401) == 2
        assert gcs.client("t").bucket("b").blob("a").download_as_bytes() == b"1"
        with_token = GCSStore(
            "b", config=gcs.obstore_config("t"), client_options=OBSTORE_CLIENT_OPTIONS
        )
        assert read(with_token, "a") == b"1"
        assert gcs.requests[-1].headers["authorization"] == "Bearer t"

    def test_a_bucket_whose_reader_pays(self, gcs: GcsStandIn) -> None:
        gcs.make_bucket("paid", billing={"requesterPays": True})
        gcs.put("paid", "a", b"1")

        with pytest.raises(api.BadRequest, match="requester pays"):
            gcs.client().bucket("paid").blob("a").download_as_bytes()
        with pytest.raises(GenericError, match="requester pays"):
            read(store(gcs, "paid"), "a")
        payer = gcs.client().bucket("paid", user_project="p")
        assert payer.blob("a").download_as_bytes() == b"1"
        payer_store = store(gcs, "paid", default_headers={"x-goog-user-project": "p"})
        assert read(payer_store, "a") == b"1"

    def test_refuses_unknown_permissions(self, gcs: GcsStandIn) -> None:
        with pytest.raises(ValueError, match=r"got \{'storage\.objects\.read'\}"):
            gcs.allow("storage.objects.read")


class TestFaults:
    @pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
    def test_a_status_is_retried_by_both_clients(
        self, gcs: GcsStandIn, bucket: storage.Bucket, status: int
    ) -> None:
        gcs.put("b", "a", DATA)
        gcs.inject(Fault(What.STATUS, Kind.READ, status=status, times=2))
        assert bucket.blob("a").download_as_bytes(retry=SOON) == DATA
        gcs.inject(Fault(What.STATUS, Kind.READ, status=status, times=2))
        assert read(store(gcs, max_retries=2), "a") == DATA

        assert gcs.count(Kind.READ, status) == 4
        assert gcs.faults_left() == []

    def test_a_status_without_retries(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        gcs.put("b", "a", DATA)
        gcs.inject(Fault(What.STATUS, Kind.READ, retry_after_s=7, times=None))

        with pytest.raises(api.ServiceUnavailable, match="injected: 503"):
            bucket.blob("a").download_as_bytes(retry=None)
        with pytest.raises(GenericError, match="503 Service Unavailable"):
            read(store(gcs), "a")
        assert ask(gcs, "GET", "/b/a")[1]["Retry-After"] == "7"
        assert gcs.count(Kind.READ) == 3

    @pytest.mark.parametrize("what", [What.RESET, What.LOST_REPLY, What.SHORT_BODY])
    def test_a_cut_connection(self, gcs: GcsStandIn, bucket: storage.Bucket, what: What) -> None:
        gcs.put("b", "a", DATA)
        gcs.inject(Fault(what, Kind.READ, times=2))
        with pytest.raises(requests.RequestException):
            bucket.blob("a").download_as_bytes(retry=None)
        with pytest.raises(GenericError):
            read(store(gcs), "a")
        gcs.inject(Fault(what, Kind.READ, times=2))
        assert bucket.blob("a").download_as_bytes(retry=SOON) == DATA
        assert read(store(gcs, max_retries=2), "a") == DATA

        assert gcs.faults_left() == []
        # What a broken body still lacks is asked for as a range; a reset leaves nothing to keep.
        assert gcs.count(Kind.READ, 206) == (2 if what is What.SHORT_BODY else 0)

    @pytest.mark.parametrize("what", [What.STALL, What.STALLED_BODY])
    def test_a_stall(self, gcs: GcsStandIn, bucket: storage.Bucket, what: What) -> None:
        gcs.put("b", "a", DATA)
        gcs.inject(Fault(what, Kind.READ, times=2))
        with pytest.raises(requests.RequestException, match="timed out"):
            bucket.blob("a").download_as_bytes(retry=None, timeout=TIMEOUT_S)
        with pytest.raises(GenericError, match="TimedOut"):
            read(store(gcs, timeout=timedelta(seconds=TIMEOUT_S)), "a")
        assert gcs.faults_left() == []

        gcs.inject(Fault(what, Kind.READ, seconds=0.2))
        started_s = time.monotonic()
        assert read(store(gcs), "a") == DATA
        assert 0.2 <= time.monotonic() - started_s < 2

    def test_a_stall_until_released(self, gcs: GcsStandIn) -> None:
        gcs.put("b", "a", DATA)
        gcs.inject(Fault(What.STALL, Kind.READ))
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(read, store(gcs), "a")
            until(lambda: gcs.count(Kind.READ) == 1)
            assert not reading.done()
            gcs.release()
            assert reading.result(timeout=5) == DATA

    @pytest.mark.parametrize("what", [What.TRUNCATED_BODY, What.FLIPPED_BIT])
    def test_a_wrong_body_is_seen_by_its_checksum(
        self, gcs: GcsStandIn, bucket: storage.Bucket, what: What
    ) -> None:
        gcs.put("b", "a", DATA)
        gcs.inject(Fault(what, Kind.READ, times=2))
        with pytest.raises((DataCorruption, ConnectionError)):
            bucket.blob("a").download_as_bytes(retry=None)
        got = read(store(gcs), "a")  # not seen by obstore

        assert got != DATA
        assert (len(got) == len(DATA)) == (what is What.FLIPPED_BIT)
        assert crc32c_of(got) != bucket.get_blob("a").crc32c == crc32c_of(DATA)
        assert gcs.faults_left() == []

    def test_a_resumed_download_is_checked_by_nobody(
        self, gcs: GcsStandIn, bucket: storage.Bucket
    ) -> None:
        gcs.put("b", "a", DATA)
        gcs.inject(Fault(What.SHORT_BODY, Kind.READ), Fault(What.FLIPPED_BIT, Kind.READ))

        got = bucket.blob("a").download_as_bytes(retry=SOON)  # does not raise
        assert (len(got), got == DATA) == (len(DATA), False)

    def test_lost_replies_of_creating_writes(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        gcs.inject(Fault(What.LOST_REPLY, Kind.UPLOAD))
        with pytest.raises(api.PreconditionFailed):  # by its own first attempt
            bucket.blob("a").upload_from_string(b"1", if_generation_match=0, retry=SOON)
        gcs.inject(Fault(What.LOST_REPLY, Kind.DELETE))
        with pytest.raises(api.NotFound):
            bucket.blob("a").delete(retry=SOON)
        gcs.inject(Fault(What.RESET, Kind.UPLOAD))
        bucket.blob("a").upload_from_string(b"2", if_generation_match=0, retry=SOON)

        assert gcs.objects("b") == {"a": b"2"}
        assert [gcs.count(Kind.UPLOAD), gcs.count(Kind.DELETE)] == [4, 2]

    @pytest.mark.parametrize(
        ("kind", "after"),
        [(Kind.RESUMABLE_START, 0), (Kind.RESUMABLE_PUT, 1), (Kind.RESUMABLE_PUT, 4)],
    )
    @pytest.mark.parametrize("what", [What.STATUS, What.RESET, What.LOST_REPLY, What.STALL])
    def test_a_session_survives(
        self, gcs: GcsStandIn, bucket: storage.Bucket, what: What, kind: Kind, after: int
    ) -> None:
        gcs.inject(Fault(what, kind, "a", after=after))
        blob = bucket.blob("a", chunk_size=CHUNK)
        blob.upload_from_file(
            io.BytesIO(DATA), if_generation_match=0, retry=SOON, timeout=TIMEOUT_S
        )

        assert gcs.faults_left() == []
        assert gcs.objects("b") == {"a": DATA}

    def test_a_session_is_gone(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        gcs.inject(Fault(What.GONE, after=2))
        with pytest.raises(api.GoogleAPICallError, match="410 PUT"):
            upload_in_chunks(bucket, "a")
        assert gcs.objects("b") == {}
        upload_in_chunks(bucket, "a")
        assert gcs.objects("b") == {"a": DATA}

    def test_a_listing_cut_short(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        gcs.put("b", "a", b"1")
        gcs.inject(Fault(What.SHORT_BODY, Kind.LIST, times=2))
        assert [blob.name for blob in bucket.list_blobs(retry=SOON)] == ["a"]
        gcs.inject(Fault(What.TRUNCATED_BODY, Kind.LIST))
        with pytest.raises(requests.exceptions.JSONDecodeError):
            list(bucket.list_blobs(retry=SOON))

    def test_a_reset_is_no_farewell(self, gcs: GcsStandIn) -> None:
        gcs.inject(Fault(What.RESET, Kind.READ))
        with connect(gcs) as connection, pytest.raises(ConnectionResetError):
            connection.sendall(b"GET /b/a HTTP/1.1\r\n\r\n")
            connection.recv(100)

    def test_which_request_a_fault_strikes(self, gcs: GcsStandIn) -> None:
        for name in ("a", "b", "c"):
            gcs.put("b", name, b"1")
        gcs.inject(
            Fault(What.STATUS, Kind.READ, "b", status=500),
            Fault(What.STATUS, Kind.READ, lambda name: name > "b", status=502, after=1, times=None),
            Fault(What.STATUS, Kind.STAT, status=404),
        )
        read_all = [ask(gcs, "GET", f"/b/{name}")[0] for name in "abc" * 3]
        assert read_all == [200, 500, 200, 200, 200, 502, 200, 200, 502]
        assert [fault.status for fault in gcs.faults_left()] == [404]
        gcs.heal()
        assert (gcs.faults_left(), ask(gcs, "GET", "/b/c")[0]) == ([], 200)

    def test_faults_that_cannot_be(self) -> None:
        with pytest.raises(ValueError, match="kind must be one of"):
            Fault(What.GONE, Kind.READ)
        with pytest.raises(ValueError, match="times must be at least 1 or None, got 0"):
            Fault(What.RESET, times=0)

    def test_a_quota(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        gcs.put("b", "a", b"1")
        gcs.limit(5)
        statuses = [ask(gcs, "GET", "/b/a")[0] for _ in range(20)]

        assert statuses[:5] == [200] * 5
        assert 429 in statuses
        assert bucket.blob("a").download_as_bytes(retry=SOON) == b"1"
        gcs.limit(None)
        assert [ask(gcs, "GET", "/b/a")[0] for _ in range(20)] == [200] * 20

    def test_a_quota_saves_up_for_one_second(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now_s = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: now_s)
        quota = Quota(2)
        now_s += 60

        assert [quota.take() for _ in range(3)] == [True, True, False]
        now_s += 0.5
        assert [quota.take() for _ in range(2)] == [True, False]

    def test_latency_with_64_at_once(self, gcs: GcsStandIn) -> None:
        gcs.put("b", "a", b"1")
        gcs.latency_s = 0.3
        shared = store(gcs)
        started_s = time.monotonic()
        with ThreadPoolExecutor(64) as pool:
            got = list(pool.map(lambda _: read(shared, "a"), range(64)))
        took_s = time.monotonic() - started_s

        assert got == [b"1"] * 64
        assert 0.3 <= took_s < 3  # one after the other it would be 19


class TestServer:
    def test_notes_each_request(self, gcs: GcsStandIn, bucket: storage.Bucket) -> None:
        bucket.blob("d/a").upload_from_string(b"1")
        list(bucket.list_blobs(prefix="d/"))
        gcs.inject(Fault(What.RESET, Kind.READ))
        with pytest.raises(GenericError):
            read(store(gcs), "d/a")
        obstore.head(store(gcs), "d/a")
        ask(gcs, "GET", "/elsewhere")
        ask(gcs, "GET", "/storage/v1/b/b/o/d/a")  # the slash of a name is to be encoded

        assert gcs.requests == [
            Request(Kind.UPLOAD, "b", "d/a", "POST", 200),
            Request(Kind.LIST, "b", "d/", "GET", 200),
            Request(Kind.READ, "b", "d/a", "GET", None),
            Request(Kind.STAT, "b", "d/a", "HEAD", 200),
            Request(Kind.OTHER, "", "", "GET", 404),
            Request(Kind.OTHER, "", "", "GET", 404),
        ]
        assert gcs.requests[1].query["prefix"] == "d/"
        gcs.forget_requests()
        assert gcs.requests == []

    def test_keeps_connections_alive(self, gcs: GcsStandIn) -> None:
        gcs.put("b", "a", b"1")
        connection = http.client.HTTPConnection(gcs.url.removeprefix("http://"))
        for method, path, body in [
            ("GET", "/b/a", b"1"),
            ("HEAD", "/b/a", b""),
            ("GET", "/b/missing", None),
            ("DELETE", "/storage/v1/b/b/o/a", b""),
            ("GET", "/storage/v1/b/b/o", b'{"kind": "storage#objects"}'),
        ]:
            connection.request(method, path)
            if method == "GET" and path == "/b/a":
                first = connection.sock
            got = connection.getresponse().read()
            assert body in (None, got)
            assert connection.sock is first
        connection.close()

    def test_no_body_where_none_may_be(self, gcs: GcsStandIn) -> None:
        gcs.put("b", "a", b"12345")
        with connect(gcs) as connection:
            connection.sendall(b"HEAD /b/a HTTP/1.1\r\nConnection: close\r\n\r\n")
            reply = connection.makefile("rb").read()
        assert b"\r\nContent-Length: 5\r\n" in reply
        assert reply.endswith(b"\r\n\r\n")
        status, headers, _ = ask(gcs, "DELETE", "/storage/v1/b/b/o/a")
        assert (status, headers["Content-Length"]) == (204, None)

    def test_direct_access(self, gcs: GcsStandIn) -> None:
        gcs.put("b", "a", b"1")
        assert gcs.get("b", "a") == b"1"
        gcs.remove("b", "a")
        with pytest.raises(KeyError, match="No such object: b/a"):
            gcs.get("b", "a")

    def test_closes_without_a_trace(self, capfd: pytest.CaptureFixture[str]) -> None:
        before = set(threading.enumerate())
        with GcsStandIn() as gcs:
            gcs.put("b", "a", DATA)
            gcs.inject(Fault(What.STALL, Kind.READ, "a"), Fault(What.RESET, Kind.READ, "a"))
            waiting = connect(gcs)
            waiting.sendall(b"GET /b/a HTTP/1.1\r\n\r\n")
            until(lambda: gcs.count(Kind.READ) == 1)
            with pytest.raises(GenericError):
                read(store(gcs), "a")
            started_s = time.monotonic()
        assert time.monotonic() - started_s < 1
        waiting.close()

        ours = [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]
        assert [thread.name for thread in ours if "tokio" not in thread.name] == []
        assert capfd.readouterr() == ("", "")
        with pytest.raises(requests.ConnectionError):
            requests.get(gcs.url, timeout=1)

    def test_its_own_mistakes_surface(self) -> None:
        with pytest.raises(RuntimeError, match="struck a reply without a body"):  # noqa: SIM117
            with GcsStandIn() as gcs:
                gcs.put("b", "a", b"")
                gcs.inject(Fault(What.FLIPPED_BIT, Kind.READ))
                assert ask(gcs, "GET", "/b/a")[0] == 400


def store(
    gcs: GcsStandIn, bucket: str = "b", max_retries: int = 0, **client_options: Any
) -> GCSStore:
    backoff = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2)}
    retry: Any = {"max_retries": max_retries, "backoff": backoff | {"base": 2}}
    options: Any = OBSTORE_CLIENT_OPTIONS | client_options
    config: Any = gcs.obstore_config()
    return GCSStore(bucket, config=config, client_options=options, retry_config=retry)


def read(source: GCSStore, name: str, **options: Any) -> bytes:
    asked: Any = options or None
    return bytes(obstore.get(source, name, options=asked).bytes())


def upload_in_chunks(bucket: storage.Bucket, name: str, data: bytes = DATA, **options: Any) -> None:
    blob = bucket.blob(name, chunk_size=CHUNK)
    blob.upload_from_file(io.BytesIO(data), **options)  # a known size would go in one request


def put_range(url: str, data: bytes, content_range: str) -> tuple[int, str | None]:
    headers = {"Content-Range": f"bytes {content_range}"}
    reply = requests.put(url, data, headers=headers, timeout=5)
    received = reply.headers.get("Range")
    return reply.status_code, received and received.removeprefix("bytes=")


def ask(
    gcs: GcsStandIn,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(gcs.url.removeprefix("http://"), timeout=5)
    connection.request(method, path, body, headers or {})
    reply = connection.getresponse()
    data = reply.read()
    connection.close()
    return reply.status, reply.headers, data


def connect(gcs: GcsStandIn) -> socket.socket:
    host, _, port = gcs.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=5)


def crc32c_of(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise TimeoutError("did not come true in 5 s")
