"""A flipped bit of every byte and every cut of a shard is found, named by record, key and byte."""

import dataclasses
from typing import Any

import msgspec
import pytest

from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.example_rules import ExampleRules
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec, Kind
from beam_tfrec.schemas.manifest import Manifest, from_json
from beam_tfrec.schemas.tfrecord import frame_record
from beam_tfrec.transforms.shard_index import IndexRow, index_from_parquet
from beam_tfrec.transforms.verify import Findings, ShardRules
from beam_tfrec.transforms.verify.data_set import verify_bytes
from tests.small_runs import build_run, plan_run, write_set


@dataclasses.dataclass(frozen=True)
class Shard:
    """A small shard with its index and manifest."""

    data: bytes
    rows: list[IndexRow]
    manifest: Manifest

    def verify(
        self, data: bytes, rows: list[IndexRow] | None = None, *, deep: bool = True
    ) -> Findings:
        rules = ShardRules("out", self.manifest, 0, deep)
        found = self.rows if rows is None else rows
        return verify_bytes(self.manifest.shards[0], found, rules, [data], len(data))

    def number_of(self, at: int) -> int:
        """Return the number of the record with this byte in its frame."""
        return next(n for n, row in enumerate(self.rows) if at < row.offset + row.size)

    def place(self, number: int) -> str:
        file, row = self.manifest.shards[0].file, self.rows[number]
        return f"{file} record {number} (key {row.key!r}) at byte {row.offset}"


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    folder = tmp_path_factory.mktemp("shard")
    images, annotations = write_set(folder, 3, width=8, height=8)
    out = folder / "out"
    build_run(plan_run(images, annotations, out, num_shards=1))
    manifest = from_json((out / "manifest.json").read_bytes(), Manifest)
    rows = index_from_parquet((out / "index/train-00000-of-00001-3.parquet").read_bytes())
    return Shard((out / manifest.shards[0].file).read_bytes(), rows, manifest)


def test_a_flipped_bit_of_every_byte_is_found_and_named(shard: Shard) -> None:
    for at in range(len(shard.data)):
        data = bytearray(shard.data)
        data[at] ^= 1 << at % 8
        report = shard.verify(bytes(data))
        ((code, (line,)),) = report.kept.items()
        number = shard.number_of(at)
        in_header = at - shard.rows[number].offset < 12
        assert code == ("E-VER-FRAME" if in_header else "E-VER-CRC"), at
        assert line.startswith(f"{code} {shard.place(number)}: ")
        assert report.records == 2, at  # the others are read


def test_every_cut_is_found_and_named(shard: Shard) -> None:
    for size in range(len(shard.data)):
        report, number = shard.verify(shard.data[:size]), shard.number_of(size)
        (line,) = report.lines()
        assert line.startswith(f"E-VER-FRAME {shard.place(number)}: "), size
        assert report.records == number


def test_removed_and_added_records_are_found(shard: Shard) -> None:
    first, second, third = shard.rows
    assert first.size != second.size
    file, data, end = shard.manifest.shards[0].file, shard.data, len(shard.data)
    places = [*map(shard.place, range(3))]
    none_begins = "no record begins where the index says"
    table = {
        data[second.offset :]: [
            f"E-VER-INDEX {places[0]}: the index says {first.size} bytes, its frame has"
            f" {second.size}",
            f"E-VER-FRAME {places[1]}: {none_begins}",
        ],
        data[: third.offset]: [f"E-VER-FRAME {places[2]}: {none_begins}"],
        data + data[third.offset :]: [
            f"E-VER-INDEX {file} record 3 at byte {end}: the index has no such record, its frame"
            f" has {third.size}",
            f"E-VER-FRAME {file}: 4 records, the manifest says 3",
        ],
        data + bytes(20): [
            f"E-VER-FRAME {file} record 3 at byte {end}: the length 0 has the checksum 00000000,"
            " not 07980329"
        ],
    }
    for changed, wanted in table.items():
        assert [line.partition(";")[0] for line in shard.verify(changed).lines()] == wanted


def test_a_rewritten_record_is_found(shard: Shard) -> None:
    first = shard.rows[0].size
    anew = bytearray(shard.data[12 : first - 4])
    anew[anew.rindex(b"jpeg")] ^= 1  # in image/format, where any value is valid
    data = b"".join(frame_record([bytes(anew)])) + shard.data[first:]
    (line,) = shard.verify(data).lines()
    crc32c = shard.rows[0].crc32c
    assert f"{shard.place(0)}: the index says CRC-32C {crc32c:08x}, the record has " in line
    older = [msgspec.structs.replace(row, crc32c=None) for row in shard.rows]
    said = ["the file's CRC-32C", "the file's SHA-256"]
    for deep, wanted in ((False, said[:1]), (True, said)):
        lines = shard.verify(data, older, deep=deep).lines()
        assert [line.partition(": ")[2].partition(" is ")[0] for line in lines] == wanted


def test_records_are_compared_with_features_and_labels_of_the_manifest(shard: Shard) -> None:
    manifest = shard.manifest
    plan = msgspec.structs.replace(manifest.plan, labels=manifest.plan.labels[:1])
    changed = msgspec.structs.replace(manifest, plan=plan, features=manifest.features[1:])
    other = dataclasses.replace(shard, manifest=changed)
    found = other.verify(shard.data).kept["E-VER-EXAMPLE"]
    unknown = "'image/object/class/label' has the label 2, which is not in the label map"
    said = (unknown, f"{manifest.features[0].key!r} is not in the manifest")
    for line, what in zip(found, said, strict=False):
        assert line.startswith(f"E-VER-EXAMPLE {shard.place(0)}: feature {what}; ")


def test_images_are_compared_with_their_sources(shard: Shard) -> None:
    other = msgspec.structs.replace(shard.rows[0].sources[0], sha256="0" * 64)
    rows = [msgspec.structs.replace(shard.rows[0], sources=[other]), *shard.rows[1:]]
    (line,) = shard.verify(shard.data, rows).lines()
    digest = shard.rows[0].sources[0].sha256
    what = f"'image/encoded' has the SHA-256 {digest}, and no source in the index has it"
    assert what in line
    assert not shard.verify(shard.data, rows, deep=False).counts


# --- rules from the manifest ---


FEATURES: dict[Feature, list[Any]] = {
    Feature("a/image", Kind.BYTES, False, "d", Content.IMAGE): [b"x" * 300],
    Feature("b/texts", Kind.BYTES, True, "d", Content.TEXT): [b"", b"y" * 200],
    Feature("d/floats", Kind.FLOAT, True, "d"): [0.5] * 40,
    Feature("e/int", Kind.INT64, False, "d"): [640],
    Feature("f/ints", Kind.INT64, True, "d"): [1, -2, 2**62],
    Feature("g/labels", Kind.INT64, True, "d", Content.CLASS_LABEL): [1, 90],
    Feature("h/optional", Kind.INT64, False, "d", optional=True): [0],
}
LABELS = frozenset({1, 90})
RULES = ExampleRules(FeatureSpec("table", tuple(FEATURES)), LABELS)
VALUES = {feature.key: (feature.kind, values) for feature, values in FEATURES.items()}
UNKNOWN = "'g/labels' has the label -1, which is not in the label map"
OTHER = "'g/labels' has the labels [1 90], the index says [90 1]"
BYTES, INT, NOT_INT = Kind.BYTES, Kind.INT64, "'f/ints' is of bytes, not of int64"
# Changed values, or None for a missing key; labels of the index; what is wrong.
CASES: dict[str, tuple[dict[str, Any], list[int] | None, list[str]]] = {
    "all is right": ({}, [1, 90], []),
    "a record that the index lacks": ({}, None, []),
    "empty lists": ({"b/texts": (BYTES, []), "f/ints": (INT, [])}, [1, 90], []),
    "an optional feature": ({"h/optional": None}, [1, 90], []),
    "a missing feature": ({"e/int": None}, None, ["'e/int' is missing"]),
    "one more key": ({"z": (INT, [1])}, None, ["'z' is not in the manifest"]),
    "a missing integer": ({"e/int": (INT, [])}, None, ["'e/int' has 0 values, not one"]),
    "another kind": ({"e/int": (Kind.FLOAT, [1])}, None, ["'e/int' is of float, not of int64"]),
    "an empty list of another kind": ({"f/ints": (BYTES, [])}, None, [NOT_INT]),
    "an unknown label": ({"g/labels": (INT, [90, -1])}, None, [UNKNOWN]),
    "other labels than the index": ({}, [90, 1], [OTHER]),
}


@pytest.mark.parametrize(("changes", "row_labels", "wrong"), CASES.values(), ids=CASES)
def test_wrong_features_are_reported(
    changes: dict[str, Any], row_labels: list[int] | None, wrong: list[str]
) -> None:
    values = {key: values for key, values in (VALUES | changes).items() if values is not None}
    found = RULES.find_wrong(encode_example(values), row_labels=row_labels)
    assert found == [f"feature {what}" for what in wrong]


def test_only_damaged_examples_are_reported() -> None:
    data = encode_example(VALUES)
    without = encode_example({key: of for key, of in VALUES.items() if key != "f/ints"})
    assert RULES.find_wrong(without + b"\x0a\x0c\x0a\x0a\x0a\x06f/ints\x12\x00") == []  # of no kind
    for changed in (data[:-1], data + b"\x00", b"\x0a\x05"):
        what = f"not an Example: protobuf cannot parse its {len(changed)} bytes"
        assert RULES.find_wrong(changed) == [what]


def test_steps_of_a_sequence_example_are_checked() -> None:
    features = (
        Feature("id", Kind.INT64, False, "d"),
        Feature("one", Kind.FLOAT, False, "d", per_step=True),
        Feature("some", Kind.INT64, True, "d", Content.CLASS_LABEL, per_step=True),
    )
    rules = ExampleRules(FeatureSpec("mine", features), LABELS)
    context = {"id": (Kind.INT64, [1])}
    right = {"one": (Kind.FLOAT, [[0.5], [1.0]]), "some": (Kind.INT64, [[], [1, 90]])}
    wrong = {"one": (Kind.FLOAT, [[0.5], [1.0, 2.0]]), "more": (Kind.INT64, [[7]])}
    assert rules.find_wrong(encode_example(context, right)) == []
    assert rules.find_wrong(encode_example(context, wrong)) == [
        "feature 'one' has 2 values, not one",
        "feature 'some' is missing",
        "feature 'more' is not in the manifest",
    ]
