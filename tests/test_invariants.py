"""The oracle finds what it is there to find: each promise broken once, in a data set of its own."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.invariants import check_output, data_files
from tests.memory_runs import FOREIGN, Sources, make_sources, run_on

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def sources(memory_served: None) -> Sources:
    return make_sources()


def spoil(name: str, edit: Callable[[bytes], bytes]) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files[name] = edit(files[name])

    return change


def drop(name: str) -> Callable[[Files], None]:
    return lambda files: files.pop(name) and None


def edit_json(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps({**json.loads(data), **changes}).encode()


SHARD, STEM = "train-00001-of-00004-3.tfrec", "train-00001-of-00004"
BROKEN: dict[str, tuple[Callable[[Files], None], str]] = {
    "a shard is cut": (spoil(SHARD, lambda data: data[:-1]), "cut off|4: train"),
    "a shard has a flipped bit": (
        spoil(SHARD, lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]),
        "checksum of a record",
    ),
    "a shard ends at a record": (spoil(SHARD, lambda data: b""), "4: train"),
    "a shard has no receipt": (drop(f"_receipts/{STEM}.json"), "has no receipt"),
    "a receipt counts otherwise": (
        spoil(f"_receipts/{STEM}.json", edit_json(planned=4)),
        "1: train-00001",
    ),
    "a receipt has other bytes": (spoil(f"_receipts/{STEM}.json", lambda d: d + b" "), "2: _rec"),
    "a stray file": (lambda files: files.update(stray=b""), "4: stray is left over"),
    "a spool is left": (lambda files: files.update({"_spool-1": b""}), "left over"),
    "a user's file is gone": (drop(next(iter(FOREIGN))), "4: notes.txt of the user"),
    "a user's file is another": (spoil(next(iter(FOREIGN)), lambda d: d + b"!"), "4: notes.txt"),
    "a shard is gone": (drop(SHARD), "4: shards, receipts"),
    "a receipt is gone, and its shard": (
        lambda files: [files.pop(name) for name in (SHARD, f"_receipts/{STEM}.json")] and None,
        "4: shards, receipts",
    ),
    "a side file is gone": (drop("features.json"), "not all that it commits"),
    "an index points elsewhere": (
        spoil(f"index/{STEM}-3.idx", lambda data: b"9" + data),
        f"2: index/{STEM}-3.idx",
    ),
}


@pytest.mark.parametrize(("breaks", "told"), BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_found(
    breaks: Callable[[Files], None], told: str, sources: Sources
) -> None:
    files = {**sources.undisturbed, **FOREIGN}
    breaks(files)

    with pytest.raises(AssertionError, match=told):
        check_output(files, sources.undisturbed, FOREIGN)


def test_what_is_right_passes(sources: Sources) -> None:
    store = sources.store.copy()
    assert check_output(store.files("out/"), sources.undisturbed, FOREIGN) is False
    run_on(store.start())
    assert check_output(store.files("out/"), sources.undisturbed, FOREIGN) is True
    assert len(data_files(store.files("out/"))) == 4
