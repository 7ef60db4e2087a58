"""Reads by obstore: in pieces of a large object, and what its errors say."""

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator
from typing import Any

import obstore
import pytest
from obstore import exceptions as obstore_errors
from obstore.store import MemoryStore

from transforms.storage import object_reads
from transforms.storage.object_reads import (
    TooManyFiles,
    get_whole,
    limits_told,
    said,
    status_of,
)
from transforms.storage.request_rate import RequestRate

GENERIC = obstore_errors.GenericError
DATA = b"0123456789"


@pytest.fixture
def store() -> Any:
    return MemoryStore()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of every request."""
    options: list[Any] = []
    real = obstore.get

    def get(*args: Any, **kwargs: Any) -> Any:
        options.append(kwargs["options"])
        return real(*args, **kwargs)

    monkeypatch.setattr(obstore, "get", get)
    return options


def read(store: Any, size_bytes: int, **pinned: Any) -> bytes:
    return get_whole(store, "a", size_bytes, pinned, RequestRate(bool))


@pytest.mark.parametrize(
    ("size", "ranges"),
    [
        (0, [None]),
        (1, [None]),
        (4, [None]),
        (5, [(0, 4), (4, 5)]),
        (8, [(0, 4), (4, 8)]),
        (10, [(0, 4), (4, 8), (8, 10)]),
    ],
)
def test_a_large_object_is_read_in_pieces(
    size: int, ranges: list, store: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_reads, "_PIECE_BYTES", 4)
    etag = obstore.put(store, "a", DATA[:size])["e_tag"]

    assert read(store, size, if_match=etag) == DATA[:size]
    assert [options.get("range") for options in asked] == ranges
    assert [options["if_match"] for options in asked] == [etag] * len(ranges)


def test_an_empty_object_that_is_gone_is_missed(store: Any) -> None:
    with pytest.raises(FileNotFoundError):
        read(store, 0)


def test_a_request_waits_for_its_turn(store: Any) -> None:
    waits: list[float] = []
    rate = RequestRate(bool, 5, clock=lambda: 0.0, sleep=waits.append)
    obstore.put(store, "a", DATA)

    for _ in range(3):
        get_whole(store, "a", len(DATA), {}, rate)

    assert waits == pytest.approx([0.2, 0.4])


def test_a_piece_is_of_64_mebibytes() -> None:
    assert object_reads._PIECE_BYTES == 67_108_864


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def is_generic(error: Exception) -> bool:
    return isinstance(error, GENERIC)


def test_too_many_open_files_are_no_trouble_of_the_network() -> None:
    error = GENERIC("error trying to connect: Too many open files (os error 24)")
    with pytest.raises(TooManyFiles) as told:
        limits_told(failing(error), is_generic)
    assert (told.value.errno, told.value.strerror) == (errno.EMFILE, "Too many open files")


@contextlib.contextmanager
def no_file_opening() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (GENERIC("dns error: Device or resource busy"), errno.EMFILE),
        (GENERIC("no CA certificates were loaded"), errno.EMFILE),
        (obstore_errors.NotFoundError("no such object"), None),
    ],
)
def test_trouble_while_no_file_can_be_opened_is_that(error: Exception, number: int | None) -> None:
    """A client that can open no file says that it finds no address, or no certificates."""
    with pytest.raises((TooManyFiles, type(error))) as told, no_file_opening():
        limits_told(failing(error), is_generic)
    assert getattr(told.value, "errno", None) == number


@pytest.mark.parametrize(
    ("number", "told"), [(errno.ENFILE, TooManyFiles), (errno.ENOENT, GENERIC)]
)
def test_a_system_without_files_to_open_is_told(
    number: int, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_none(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", open_none)
    with pytest.raises(told):
        limits_told(failing(GENERIC("dns error")), is_generic)


def test_other_errors_pass_through() -> None:
    error = GENERIC("connection reset")
    with pytest.raises(obstore_errors.GenericError) as told:
        limits_told(failing(error), is_generic)
    assert told.value is error
    assert limits_told(lambda: 7, is_generic) == 7


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (GENERIC("Server returned non-2xx status code: 503 Service Unavailable: <x>"), 503),
        (obstore_errors.PermissionDeniedError("non-2xx status code: 403"), 403),
        (GENERIC("connection reset"), None),
        (ValueError("non-2xx status code: 503"), None),
    ],
)
def test_a_status_is_found_in_the_words(error: Exception, status: int | None) -> None:
    assert status_of(error) == status


class Refusal(Exception):
    """An error of Google's client."""

    message = "the\n reason"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Refusal("403 GET http://host/path: the reason"), "the reason"),
        (GENERIC("Generic error\n\nDebug  source:\n x"), "Generic error Debug source: x"),
        (ValueError("x" * 301), "x" * 300),
    ],
)
def test_what_an_error_says_is_one_short_line(error: Exception, words: str) -> None:
    assert said(error) == words
