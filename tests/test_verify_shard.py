"""A flipped bit of every byte and every cut of a shard is found, named by record, key and byte."""

import dataclasses

import msgspec
import pytest

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

    def record_of(self, at: int) -> tuple[int, IndexRow]:
        """Return number and row of the record with this byte in its frame."""
        return next((n, r) for n, r in enumerate(self.rows) if at < r.offset + r.size)


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
        number, row = shard.record_of(at)
        in_header = at - row.offset < 12
        assert code == ("E-VER-FRAME" if in_header else "E-VER-CRC"), at
        file = shard.manifest.shards[0].file
        place = f"{file} record {number} (key {row.key!r}) at byte {row.offset}"
        assert line.startswith(f"{code} {place}: ")
        assert report.records == 2, at  # the others are read


def test_every_cut_is_found_and_named(shard: Shard) -> None:
    file = shard.manifest.shards[0].file
    for size in range(len(shard.data)):
        report = shard.verify(shard.data[:size])
        number, row = shard.record_of(size)
        ((code, (line,)),) = report.kept.items()
        place = f"{file} record {number} (key {row.key!r}) at byte {row.offset}"
        assert code == "E-VER-FRAME" and line.startswith(f"{code} {place}: "), size
        assert report.records == number


def test_removed_and_added_records_are_found(shard: Shard) -> None:
    first, second, third = shard.rows
    assert first.size != second.size
    file, data, end = shard.manifest.shards[0].file, shard.data, len(shard.data)
    places = [
        f"{file} record {n} (key {row.key!r}) at byte {row.offset}"
        for n, row in enumerate(shard.rows)
    ]
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
    place, crc32c = f"record 0 (key {shard.rows[0].key!r}) at byte 0", shard.rows[0].crc32c
    assert f"{place}: the index says CRC-32C {crc32c:08x}, the record has " in line
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
    where = f"record 0 (key {shard.rows[0].key!r}) at byte 0: feature"
    unknown = "'image/object/class/label' has the label 2, which is not in the label map"
    said = (unknown, f"{manifest.features[0].key!r} is not in the manifest")
    for line, what in zip(found, said, strict=False):
        assert f"{where} {what}; " in line


def test_images_are_compared_with_their_sources(shard: Shard) -> None:
    other = msgspec.structs.replace(shard.rows[0].sources[0], sha256="0" * 64)
    rows = [msgspec.structs.replace(shard.rows[0], sources=[other]), *shard.rows[1:]]
    (line,) = shard.verify(shard.data, rows).lines()
    digest = shard.rows[0].sources[0].sha256
    what = f"'image/encoded' has the SHA-256 {digest}, and no source in the index has it"
    assert what in line
    assert not shard.verify(shard.data, rows, deep=False).counts
