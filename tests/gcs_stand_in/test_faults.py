"""Refusals and injected faults, as both clients see them."""

import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import requests
from google.api_core import exceptions as api
from google.auth.exceptions import InvalidOperation
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError
from obstore.store import GCSStore

from tests.gcs_stand_in import (
    ALL_PERMISSIONS,
    OBSTORE_CLIENT_OPTIONS,
    Fault,
    GcsStandIn,
    Kind,
    What,
)
from tests.gcs_stand_in.clients import (
    CHUNK,
    DATA,
    SOON,
    TIMEOUT_S,
    ask,
    connect,
    crc32c_of,
    read,
    store,
    until,
    upload_in_chunks,
)
from tests.gcs_stand_in.faults import Quota


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
