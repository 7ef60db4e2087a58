"""Listings, page by page, by both clients."""

import json

import pytest
from google.cloud import storage
from hypothesis import given
from hypothesis import strategies as st

from tests.drawn_examples import draw
from tests.gcs_stand_in import GcsStandIn, Kind
from tests.gcs_stand_in.bucket import Bucket, ListQuery
from tests.gcs_stand_in.clients import ask, crc32c_of, read, store
from tests.gcs_stand_in.store import Store


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

    @draw(60)
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
