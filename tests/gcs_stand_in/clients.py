"""The clients that the stand-in stands in for, and requests that none of them makes."""

import base64
import http.client
import io
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import google_crc32c
import obstore
import requests
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY
from obstore.store import GCSStore

from tests.gcs_stand_in import OBSTORE_CLIENT_OPTIONS, GcsStandIn

CHUNK = 256 * 1024
DATA = bytes(range(256)) * 4096 + b"the end"  # four chunks and a bit
SOON = DEFAULT_RETRY.with_delay(initial=0.001, maximum=0.002).with_timeout(10)
TIMEOUT_S = 0.4


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
