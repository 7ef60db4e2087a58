"""The server itself: many clients, odd requests, its end."""

import http.client
import threading
import time

import obstore
import pytest
import requests
from google.cloud import storage
from obstore.exceptions import GenericError

from tests.gcs_stand_in import Fault, GcsStandIn, Kind, Request, What
from tests.gcs_stand_in.clients import DATA, ask, connect, read, store, until


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
