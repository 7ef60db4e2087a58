"""Buckets of Cloud Storage: whether they are there, where they lie, and what we may do in them.

That objects can be created is proved by an upload that is begun and never given a byte: the store
asks for the permission when it is begun, shows nothing of it, and forgets it when it is cancelled,
or by itself. So nothing is ever left, and nobody needs the permission to delete.
"""

import datetime
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from schemas.places import bucket_of, holds_region, is_multi_region
from transforms.doctor.diagnosis import Diagnosis, fine, warning, wrong
from transforms.doctor.google_identity import Identity, identity_for_storage
from transforms.doctor.google_requests import DENIED, Reply, ask, clock_skew_s, storage_url
from transforms.storage import Access

PROBE_NAME = "_doctor_probe"
"""Of what is begun, or made and deleted, to prove that something can be made."""

_MOST_SKEW_S = 60
_FIELDS = "location,locationType,customPlacementConfig,storageClass"


def check_bucket(bucket: str, access: Access, region: str) -> Iterator[Diagnosis]:
    """Yield whether a bucket is there, and whether it lies where a job's workers are.

    Args:
        bucket: its name.
        access: how it is reached.
        region: of the job; empty for one that has none.
    """
    where, identity = f"gs://{bucket}", identity_for_storage(access)
    reply = ask(_bucket_url(bucket), identity, where, params={"fields": _FIELDS, **_paying(access)})
    yield from judge_bucket(where, reply, identity.principal, region)
    skew_s = clock_skew_s(reply, datetime.datetime.now(datetime.UTC))
    if skew_s is not None and abs(skew_s) > _MOST_SKEW_S:
        what = f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the store's"
        yield warning("clock", what, "set it, or credentials that hold times are refused")


def judge_bucket(where: str, reply: Reply, principal: str, region: str) -> Iterator[Diagnosis]:
    """Yield what a bucket's metadata tell, or what keeps them from being told.

    >>> [d.mark.value for d in judge_bucket("gs://b", Reply(200, {"location": "EU"}), "me", "")]
    ['ok']
    """
    if reply.status == HTTPStatus.NOT_FOUND:
        yield wrong("E-ARG", where, "no such bucket", "create it, or correct its name")
    elif reply.status in DENIED:
        what = f"where it lies is not known: {principal} has no storage.buckets.get"
        yield warning(where, what, "grant it, or see to it that the job's region is the bucket's")
    elif not reply.is_fine:
        remedy = (
            "give --billing_project" if "requester pays" in reply.message else "see what it says"
        )
        yield wrong("E-ARG", where, reply.message, remedy)
    else:
        yield judge_place(where, reply.content, region)


def judge_place(where: str, bucket: Mapping[str, Any], region: str) -> Diagnosis:
    """Return whether a bucket lies where a job's workers are.

    >>> judge_place("gs://b", {"location": "US-EAST1"}, "us-west1").line
    'warning  gs://b: lies in US-EAST1, the job in us-west1, and traffic between them costs money; \
run the job where the bucket is, or copy the data'
    """
    place = str(bucket.get("location", "a place that it does not tell"))
    chosen: Sequence[str] = bucket.get("customPlacementConfig", {}).get("dataLocations", [])
    told = f"lies in {place}" + (f" ({', '.join(chosen)})" if chosen else "")
    if not region:
        return fine(where, told)
    if not holds_region(place, chosen, region):
        what = f"{told}, the job in {region}, and traffic between them costs money"
        return warning(where, what, "run the job where the bucket is, or copy the data")
    if is_multi_region(place) and not chosen:
        what = f"{told}, a multi-region: reads from it cost money even in {region}"
        return warning(where, what, "move the data to a bucket of the region, if you read it often")
    return fine(where, f"{told}, as the job")


def check_creating(uri: str, access: Access) -> Iterator[Diagnosis]:
    """Yield whether objects can be created below a URI; nothing is left of the attempt."""
    identity = identity_for_storage(access)
    name = f"{uri.rstrip('/')}/{PROBE_NAME}-{uuid.uuid4().hex}".removeprefix(
        f"gs://{bucket_of(uri)}/"
    )
    kms = {"kmsKeyName": access.kms_key} if access.kms_key else {}
    reply = ask(
        storage_url(f"/upload/storage/v1/b/{urllib.parse.quote(bucket_of(uri))}/o"),
        identity,
        uri,
        method="POST",
        params={"uploadType": "resumable", "name": name, **_only_new(), **kms, **_paying(access)},
        body={},
    )
    yield _judge_creating(uri, reply, identity)
    if reply.is_fine and (session := reply.headers.get("Location", "")):
        ask(session, identity, uri, method="DELETE")


def _judge_creating(uri: str, reply: Reply, identity: Identity) -> Diagnosis:
    if reply.is_fine:
        return fine(uri, "objects can be created (an upload was begun, and cancelled)")
    if reply.status in DENIED:
        what = f"{identity.principal} has no storage.objects.create ({reply.message})"
        remedy = f"grant it roles/storage.objectCreator on gs://{bucket_of(uri)}"
        return wrong("E-IO-AUTH", uri, what, remedy)
    return wrong("E-ARG", uri, reply.message, "give a bucket that exists, and a key that it takes")


def check_deleting(uri: str, access: Access) -> Iterator[Diagnosis]:
    """Yield whether a bucket's policies let objects be deleted; nothing is."""
    identity = identity_for_storage(access)
    asked = {"permissions": ["storage.objects.delete"], **_paying(access)}
    url = f"{_bucket_url(bucket_of(uri))}/iam/testPermissions"
    reply = ask(url, identity, uri, params=asked)
    if not reply.content.get("permissions"):
        what = f"{identity.principal} has no storage.objects.delete, which --overwrite needs"
        remedy = (
            f"grant it roles/storage.objectAdmin on gs://{bucket_of(uri)}, or give another --output"
        )
        yield wrong("E-IO-AUTH", uri, what, remedy)
    else:
        yield fine(uri, "objects can be deleted (--overwrite)")


def _bucket_url(bucket: str) -> str:
    return storage_url(f"/storage/v1/b/{urllib.parse.quote(bucket)}")


def _only_new() -> dict[str, str]:
    return {"ifGenerationMatch": "0"}


def _paying(access: Access) -> dict[str, str]:
    return {"userProject": access.billing_project} if access.billing_project else {}
