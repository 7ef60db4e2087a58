"""Samples: digest and wire form."""

import msgspec
import pytest

from schemas.samples import (
    Blob,
    Sample,
    add_content_digests,
    pack,
)

BLOB = Blob("train", "dir/a.jpg", size_bytes=1234, pin="1700000000", crc32c=0xDEADBEEF)
SAMPLE = Sample("train", "42", 7, (BLOB,), pack([640, 480, []]), (11, 12))


def changed(**fields: object) -> Sample:
    return msgspec.structs.replace(SAMPLE, **fields)


def with_blob(**fields: object) -> Sample:
    return changed(blobs=(msgspec.structs.replace(BLOB, **fields),))


# What was changed, and whether the digest changes without and with positions.
DIGESTS = {
    "nothing": (changed(), False, False),
    "split": (changed(split="val"), True, True),
    "key": (changed(key="43"), True, True),
    "position": (changed(position=8), False, True),  # decides bytes only with --order input
    "no blob": (changed(blobs=()), True, True),
    "two blobs": (changed(blobs=(BLOB, BLOB)), True, True),
    "fields": (changed(fields=pack([640, 481, []])), True, True),
    "annotation ids": (changed(annotation_ids=(11, 13)), True, True),
    "order of annotation ids": (changed(annotation_ids=(12, 11)), True, True),
    "annotation id as text": (changed(annotation_ids=(11, "12")), True, True),
    "blob root": (with_blob(root="val"), True, True),
    "blob name": (with_blob(name="dir/b.jpg"), True, True),
    "blob size": (with_blob(size_bytes=1235), True, True),
    "blob crc": (with_blob(crc32c=None), True, True),
    "pin": (with_blob(pin="1800000000"), False, False),  # a touched source is the same data
}


@pytest.mark.parametrize(("sample", "differs", "differs_in_order"), DIGESTS.values(), ids=DIGESTS)
def test_the_digest_covers_exactly_what_decides_bytes(
    sample: Sample, differs: bool, differs_in_order: bool
) -> None:
    def same(with_position: bool) -> bool:
        first, second = (
            add_content_digests([one], with_position=with_position) for one in (sample, SAMPLE)
        )
        return first == second

    assert (not same(False), not same(True)) == (differs, differs_in_order)


def test_digests_are_these_for_ever() -> None:
    assert [f"{add_content_digests([SAMPLE], with_position=p):064x}" for p in (False, True)] == [
        "6472286869f7bd16477306faba5b02e566e43cd7be72c8f0865a3e6b9037408f",
        "85a459ff7e580766468fdd6211abfad3dcd731cf1b87f6adaddb95127d8f2e52",
    ]
