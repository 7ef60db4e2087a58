"""Near copies of images: hashes, clusters, the command, and `--drop_similar`."""

import base64
import io
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from beam_tfrec.pipelines import cli, coco, folder, similar
from beam_tfrec.pipelines.similar import draw_clusters, render_similar
from beam_tfrec.schemas.samples import Blob, pack
from beam_tfrec.transforms.similar import (
    HashedImage,
    find_links,
    hash_image,
    make_clusters,
    make_table,
    read_copies,
)
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, open_storage
from tests.coco_command import Run, committed_by, finish, rejected_of, run_pipeline, start_command
from tests.conftest import TEST_DATA, thorough
from tests.report_contents import BIDI, XSS
from tests.test_engine_pipelines import PRISM
from tests.test_report_page import Elements
from tests.turned_images import encoded, oriented, saved

PHOTOS = [*sorted(TEST_DATA.glob("coco_*/images/*.jpg")), *sorted(TEST_DATA.glob("classes/*/*"))]


# By imagehash 4.3.2: phash and dhash of the picture (JPEGs by Pillow's draft of (128, 128) px, on
# white, as gray), then of its mirror image.
@pytest.mark.parametrize(
    ("name", "hashes"),
    [
        (
            "coco_val/images/000000126107.jpg",  # decoded to a half
            "e5a032b26dcd2e56 0c8e27a2041c1003 b0f567e638985b03 8e8e1bbadfc7f73f",
        ),
        ("odd/hopper.png", "8c977c0983ce9e8d 71b676d1d6333194 d9c0295cd69bcbd0 71929170943373d6"),
        ("odd/flower.webp", "c8f2a6c18cfb02dd 64ac9533b2db0b66 9985b394d9ae5788 59ca5633b2242f99"),
        (
            "odd/pil_sample_cmyk.jpg",
            "c4f07b7ae0e47858 2419948494298400 81a12e2ea1b1afaf 9320d6ded6218800",
        ),
    ],
)
def test_hashes_are_those_of_imagehash(name: str, hashes: str) -> None:
    assert hash_image(encoded((TEST_DATA / name).read_bytes())).hex(" ", 8) == hashes


@pytest.mark.parametrize("color", [0, 90, 255])
def test_a_plain_picture_has_the_same_hash_in_every_colour(color: int) -> None:
    hashes = hash_image(encoded(saved(Image.new("L", (50, 30), color), "PNG"))).hex(" ", 8)
    expected = "8000000000000000" if color else "0000000000000000"
    assert hashes.split() == [expected, "0" * 16] * 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_hashed_as_exif_turns_it(orientation: int) -> None:
    stored = saved(Image.open(TEST_DATA / "odd/hopper.png"), "PNG")
    turned = oriented(stored, orientation)
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(turned)))
    assert hash_image(encoded(turned)) == hash_image(encoded(saved(shown, "PNG")))


def hashes_of(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in numbers)


def random_hashes(seed: int, *, number: int, flips: int) -> list[bytes]:
    """Return hashes: random ones, neighbours with some flipped bits, and mirror images of these."""
    generator = random.Random(seed)
    found = []
    for _ in range(number):
        numbers = [generator.getrandbits(64) for _ in range(4)]
        for _ in range(3):
            found.append(hashes_of(*numbers))
            bits = generator.sample(range(64), generator.randint(0, flips))
            numbers = [value ^ sum(1 << bit for bit in bits) for value in numbers]
            if generator.random() < 0.3:
                numbers = numbers[2:] + numbers[:2]
    return found


@pytest.mark.parametrize("distance", [0, 1, 6, 10])
def test_clusters_are_those_of_all_pairs(distance: int) -> None:
    hashes = random_hashes(distance, number=60, flips=distance + 2)
    numbers = np.unique(np.frombuffer(b"".join(hashes), ">u8").reshape(-1, 4), axis=0)
    names, changed = [*range(len(numbers))], True
    while changed:  # the smallest name that near ones have, until nothing changes
        changed = False
        for one, two in itertools.product(range(len(numbers)), repeat=2):
            apart = np.bitwise_count(numbers[one, :2] ^ numbers[two, :2]).max()
            mirrored = np.bitwise_count(numbers[one, :2] ^ numbers[two, 2:]).max()
            if min(apart, mirrored) <= distance and names[one] != names[two]:
                names[one] = names[two] = min(names[one], names[two])
                changed = True
    links = find_links(numbers.astype(np.uint64), distance)
    assert make_clusters(len(numbers), links, 1000)[0].tolist() == names
    assert make_clusters(len(numbers), links[::-1], 1000)[0].tolist() == names
    assert distance < 6 or len({*names}) < len(numbers) * 0.6  # there are copies


@pytest.mark.parametrize(
    ("links", "most", "clusters"),
    [
        ([], 9, [0, 1, 2, 3]),
        ([(1, 0, 0, 1), (4, 0, 1, 2), (1, 0, 2, 3)], 4, [0, 0, 0, 0]),
        ([(1, 0, 0, 1), (4, 0, 1, 2), (1, 0, 2, 3)], 3, [0, 0, 2, 2]),  # cut at the 4
        ([(3, 0, 0, 1), (3, 0, 1, 2), (2, 0, 2, 3)], 3, [0, 1, 2, 2]),  # both at once
        ([(0, 0, 0, 1), (0, 0, 1, 2)], 2, [0, 0, 0, 3]),  # nothing is closer
        ([(5, 0, 0, 1), (6, 1, 2, 3)], 2, [0, 0, 2, 2]),
    ],
)
def test_a_chain_is_cut_where_its_links_are_longest(
    links: Sequence[tuple[int, ...]], most: int, clusters: Sequence[int]
) -> None:
    for order in (links, links[::-1]):
        pairs = np.array(order, np.int32).reshape(-1, 4)
        assert make_clusters(4, pairs, most)[0].tolist() == clusters


def test_the_largest_image_is_kept_and_mirror_images_are_told() -> None:
    one, other, near = hashes_of(0, 0, 7, 7), hashes_of(7, 7, 0, 0), hashes_of(1, 0, 7, 7)
    alone = hashes_of(9**20, 0, 0, 9**20)
    given = [(one, 10), (other, 20), (near, 5), (alone, 1), (one, 10)]
    images = [HashedImage("a", str(n), each, (side, 3)) for n, (each, side) in enumerate(given)]
    columns = ["key", "width", "cluster", "size", "mirrored", "keep"]
    for order in (images, images[::-1]):
        found = make_table(order, 1, 9).select(columns).to_pylist()
        assert [tuple(row.values()) for row in found] == [
            ("0", 10, "a/1", 4, True, False),
            ("1", 20, "a/1", 4, False, True),
            ("2", 5, "a/1", 4, True, False),
            ("3", 1, "a/3", 1, False, True),
            ("4", 10, "a/1", 4, True, False),
        ]


def write_copies(path: Path, *names: tuple[str, str]) -> None:
    """Write a table in which images of these splits and keys are one cluster."""
    images = [HashedImage(*name, hashes_of(1, 2, 3, 4), (2, 2)) for name in names]
    pq.write_table(make_table(images, 0, 2), path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two splits: photos, and near copies of four of them; one file is damaged, one is no image."""
    root = tmp_path_factory.mktemp("photos")
    pictures = [Image.open(path).convert("RGB") for path in PHOTOS[:8]]
    small = pictures[0].resize((pictures[0].width // 2, pictures[0].height // 2))
    files = {f"train/a/{n}.jpg": path.read_bytes() for n, path in enumerate(PHOTOS[:8])}
    files |= {
        "val/a/small.jpg": saved(small, "JPEG"),
        "val/a/poor.jpg": saved(pictures[1], "JPEG", quality=40),
        "val/a/mirrored.jpg": saved(ImageOps.mirror(pictures[2]), "JPEG"),
        "train/a/turned.jpg": oriented(saved(pictures[3].rotate(90, expand=True), "JPEG"), 6),
        "val/a/cut.jpg": files["train/a/4.jpg"][:5_000],
        "val/a/text.jpg": b"no image",
        "val/a/other.jpg": PHOTOS[9].read_bytes(),
    }
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def given_of(photos: Path) -> list[object]:
    return ["--images", f"train={photos}/train", f"val={photos}/val"]


def search(photos: Path, output: Path, *flags: object) -> Run:
    return run_pipeline(similar.run, "folder", *given_of(photos), "--output", output, *flags)


def test_the_command_finds_copies_across_splits(photos: Path, tmp_path: Path) -> None:
    run = search(photos, tmp_path / "s.parquet")
    assert run.code == 0, run.err
    assert run.out.splitlines() == [
        f"{tmp_path}/s.parquet: 13 images, 4 clusters of near copies with 8 images, 3 across"
        " splits",
        "  across splits: train/a/0.jpg, val/a/small.jpg",
        "  across splits: train/a/1.jpg, val/a/poor.jpg",
        "  across splits: train/a/2.jpg, val/a/mirrored.jpg",
        "  mirrored: 1 image",
        "  distance: 6 bits",
        "  max_cluster: 1000 hashes",
        "  not compared: 1 E-IMG-TRUNCATED, 1 E-IMG-TYPE",
        f"  pictures: {tmp_path}/s.html",
    ]
    assert "E-IMG-TRUNCATED a/cut.jpg" in run.err
    rows = pq.read_table(tmp_path / "s.parquet").to_pylist()
    assert rows == sorted(rows, key=lambda row: (row["split"], row["key"]))
    copies = [row for row in rows if row["size"] > 1]
    kept = {row["cluster"]: row["key"] for row in copies if row["keep"]}
    found = {(kept[row["cluster"]], row["key"]): row["mirrored"] for row in copies}
    mirrored = {frozenset(pair): is_mirrored for pair, is_mirrored in found.items()}
    for one, other in (("0", "small"), ("1", "poor"), ("2", "mirrored"), ("3", "turned")):
        assert mirrored[frozenset((f"a/{one}.jpg", f"a/{other}.jpg"))] == (one == "2")
    assert kept["train/a/0.jpg"] == "a/0.jpg"  # the larger one

    page = Elements((tmp_path / "s.html").read_bytes())
    assert (page.count("section"), page.count("img"), page.count("script")) == (4, 8, 0)
    assert page.text.index("a/0.jpg") < page.text.index("a/turned.jpg")  # in one split: last
    assert search(photos, tmp_path / "s.parquet").ended == (5, "E-OUT-CONFLICT")
    (tmp_path / "s.parquet").unlink()  # as if killed before its last file
    assert search(photos, tmp_path / "s.parquet").code == 0


def test_the_page_escapes_what_it_shows(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(oriented(PHOTOS[0].read_bytes(), 6))
    (tmp_path / "b.jpg").write_bytes(b"no image")
    root = open_storage(str(tmp_path))
    images = []
    for key, name in ((XSS, "a.jpg"), (BIDI, "b.jpg")):
        (found,) = [entry for entry in root.list() if entry.name == name]
        blob = pack(Blob("train", name, found.size_bytes, found.pin))
        images.append(HashedImage("train", key, hashes_of(1, 2, 3, 4), (640, 480), blob))
    clusters = draw_clusters(make_table(images, 0, 2), images, {"train": root})
    data = render_similar(XSS, iter([BIDI]), clusters)
    page = Elements(data)
    assert BIDI not in data.decode() and page.count("script") == 0
    (picture,) = [attributes for tag, attributes in page.found if tag == "img"]
    shown = Image.open(io.BytesIO(base64.b64decode(str(picture["src"]).partition(",")[2])))
    assert shown.height > shown.width  # upright
    assert "no picture" in page.text and XSS in page.text
    (policy,) = [a["content"] for t, a in page.found if t == "meta" and "http-equiv" in a]
    assert str(policy).startswith("default-src 'none'; img-src data:; style-src 'sha256-")


MODES = {
    "threads": thorough("--direct_running_mode multi_threading --direct_num_workers 2"),
    "processes": thorough("--direct_running_mode multi_processing --direct_num_workers 2"),
    "Prism": pytest.param(f"--runner PrismRunner --prism_location {PRISM}", marks=pytest.mark.slow),
}


@pytest.mark.parametrize("flags", MODES.values(), ids=MODES)
def test_the_file_does_not_depend_on_workers(photos: Path, tmp_path: Path, flags: str) -> None:
    if "Prism" in flags and not PRISM.exists():
        pytest.skip("no .tools/prism; `make engines` builds it, with Go")
    one, two = tmp_path / "1.parquet", tmp_path / "2.parquet"
    assert search(photos, one).code == 0
    words = ("similar", "folder", *given_of(photos), "--output", two, *flags.split())
    run = finish(start_command(*words), timeout_s=120)
    assert run.code == 0, run.err
    assert one.read_bytes() == two.read_bytes()


GIVEN = "similar folder --images in --output a.parquet"
COCO = "coco --images i --annotations a --layout keras --output"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("similar arrays --output a.parquet", "argument SOURCE: invalid choice: 'arrays'"),
        ("similar folder --images in --output a.csv", "output must end in .parquet, got 'a.csv'"),
        (f"{GIVEN} --distance 11", "distance must be 0 to 10, got 11"),
        (f"{GIVEN} --max_cluster 1", "max_cluster must be 2 or more"),
        (f"{GIVEN} --num_shards=4", "come without --num_shards"),
        (f"{GIVEN} --distanse 4", "unknown argument '--distanse'"),
        (f"similar {COCO} a.parquet", "similar compares whole images, got layout keras"),
        ("similar table --table a.csv --output a.parquet", "similar needs images"),
        (f"{COCO} o --drop_similar s.parquet", "needs whole images, got keras"),
    ],
)
def test_what_does_not_fit_is_refused(words: str, line: str) -> None:
    run = run_pipeline(cli.run_command, *words.split())
    assert run.code == 2 and line in run.fault


@pytest.mark.thorough
def test_grouped_splits_share_no_near_copies(photos: Path, tmp_path: Path) -> None:
    drawn = ("folder", "--images", photos, "--split_by", "hash", "--splits", "train=1,val=1")
    table, again = tmp_path / "s.parquet", tmp_path / "again.parquet"
    by_key = run_pipeline(similar.run, *drawn, "--output", table)
    by_cluster = run_pipeline(similar.run, *drawn, "--group_by", table, "--output", again)
    found = "4 clusters of near copies with 8 images, "
    assert found in by_key.out and f"{found}0 across splits" not in by_key.out
    assert f"{found}0 across splits" in by_cluster.out


def test_near_copies_are_dropped(photos: Path, tmp_path: Path) -> None:
    """No budget counts them, neither by the flag nor by `--plan`."""
    table, out = tmp_path / "s.parquet", tmp_path / "out"
    assert search(photos, table).code == 0
    rows = pq.read_table(table).to_pylist()
    dropped = {(row["split"], row["key"]): row["cluster"] for row in rows if not row["keep"]}
    flags = [*given_of(photos), "--drop_similar", table, "--max_rejected", 2]
    manifest = committed_by(folder.run, out, *flags)
    similar_ones = [line for line in rejected_of(out) if line["code"] == "E-IMG-SIMILAR"]
    assert len(dropped) == len(similar_ones) == 4
    assert {(line["split"], line["key"]): line["detail"] for line in similar_ones} == {
        name: f"near copy of {kept}" for name, kept in dropped.items()
    }
    assert sum(split["records"] for split in manifest["splits"].values()) == 13 - 4
    plan = run_pipeline(folder.run, *flags, "--output", tmp_path / "other", "--plan")
    assert plan.code == 0 and " E-IMG-SIMILAR; the first: " in plan.out
    kept = next(row for row in rows if row["keep"] and row["size"] > 1)
    (photos / kept["split"] / kept["key"]).unlink()
    lost = run_pipeline(folder.run, *flags, "--output", tmp_path / "lost")
    assert lost.code == 2
    assert f"keeps 1 image that this run does not have, such as {kept['key']!r};" in lost.err
    other = run_pipeline(folder.run, *given_of(photos), "--output", out)
    assert other.ended == (5, "E-OUT-PLAN") and "options drop_similar was" in other.fault


@pytest.mark.thorough
def test_a_dropped_photo_does_not_count_as_unused(tmp_path: Path) -> None:
    table, root = tmp_path / "s.parquet", TEST_DATA / "coco_val"
    keys = [str(int(path.stem)) for path in sorted(root.glob("images/*.jpg"))]
    write_copies(table, *(("train", key) for key in keys[:2]))
    flags = ("--images", root / "images", "--annotations", root / "annotations/instances.json")
    given = (*flags, "--drop_similar", table, "--output", tmp_path / "out", "--plan")
    plan = run_pipeline(coco.run, *given)
    assert "1 E-IMG-SIMILAR" in plan.out and "no record will hold" not in plan.out
    wrong = run_pipeline(coco.run, "--images", root / "annotations", *given[2:])
    assert wrong.fault.startswith("E-SET-MISSING ")  # not that the table is of other images


@pytest.mark.thorough
def test_a_run_that_divides_its_source_knows_copies_by_key(tmp_path: Path) -> None:
    table = tmp_path / "s.parquet"
    write_copies(table, ("train", "a"), ("train", "b"))
    (copy,) = read_copies(str(table), [], DEFAULT_ACCESS).kept_of.items()
    (same,) = read_copies(str(table), ["train", "val"], DEFAULT_ACCESS).kept_of.items()
    key, kept = ("b", "train/a") if copy[1] == "train/a" else ("a", "train/b")
    assert (copy, same) == ((("", key), kept), (("train", key), kept))
    other, twice, no_table = (tmp_path / name for name in ("other", "twice", "no_table"))
    write_copies(other, ("train", "a"))
    write_copies(twice, ("train", "a"), ("val", "a"))
    no_table.write_bytes(b"no table")
    for path, splits, what in (
        (other, ["test", "val"], "has no split test or val; "),
        (twice, [], "has a key in two splits, and "),
        (no_table, [], ".*; give a file that beam-tfrec similar made"),
    ):
        with pytest.raises(RuntimeError, match=f"^E-ARG {path}: {what}"):
            read_copies(str(path), splits, DEFAULT_ACCESS)
