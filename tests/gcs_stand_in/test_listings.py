"""Listings, page by page, by both clients."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.drawn_examples import draw
from tests.gcs_stand_in import GcsStandIn, Kind
from tests.gcs_stand_in.bucket import ListQuery
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
