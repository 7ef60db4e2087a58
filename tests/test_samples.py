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


# The wire form decides nothing but size; the packed fields are part of the plan's digest.
PACKED = [
    ([640, 480, []], "93cd0280cd01e090"),
    ((640, 480, ()), "93cd0280cd01e090"),  # tuples pack as lists
    ([1.0, -1, True, None, "é"], "95cb3ff0000000000000ffc3c0a2c3a9"),
    (BLOB, "98a5747261696ea96469722f612e6a7067cd04d2aa31373030303030303030cedeadbeef00ffa0"),
]


@pytest.mark.parametrize(("value", "packed"), PACKED)
def test_equal_values_pack_to_these_bytes(value: object, packed: str) -> None:
    assert pack(value).hex() == packed


@pytest.mark.parametrize(
    "sample",
    [SAMPLE, Sample("a", "", 0, (), b""), changed(annotation_ids=(-(2**63), 2**63 - 1, "x"))],
)
def test_a_sample_survives_its_wire_form(sample: Sample) -> None:
    assert msgspec.msgpack.decode(pack(sample), type=Sample) == sample
