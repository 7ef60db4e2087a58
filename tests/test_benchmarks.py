import doctest
import json
import struct
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))  # scripts, not a package

import contenders  # noqa: E402
import generate  # noqa: E402
import measure  # noqa: E402
import records  # noqa: E402

IMAGES = 130


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    out = tmp_path_factory.mktemp("drawn")
    assert generate.generate(generate.Recipe(IMAGES), out)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def photo_sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in (folder / "images").iterdir()]


@pytest.mark.parametrize("module", [generate, records])
def test_docstrings(module):
    assert doctest.testmod(module).failed == 0


class TestGenerate:
    def test_equal_parameters_draw_equal_bytes(self, tmp_path):
        generate.generate(generate.Recipe(40), tmp_path / "one", processes=1)
        generate.generate(generate.Recipe(40), tmp_path / "two", processes=2)
        assert contents(tmp_path / "one") == contents(tmp_path / "two")

    def test_another_seed_draws_other_photos(self):
        assert generate.photo(0, generate.Recipe(1)) != generate.photo(0, generate.Recipe(1, 1, 1))

    def test_every_photo_differs(self, drawn):
        photos = [path.read_bytes() for path in (drawn / "images").iterdir()]
        assert len(photos) == IMAGES == len(set(photos))

    def test_a_second_call_draws_nothing(self, tmp_path):
        recipe = generate.Recipe(3)
        assert generate.generate(recipe, tmp_path, processes=1)
        before = contents(tmp_path)
        assert not generate.generate(recipe, tmp_path, processes=1)
        assert contents(tmp_path) == before

    def test_an_interrupted_run_is_continued(self, tmp_path):
        recipe = generate.Recipe(3)
        generate.generate(recipe, tmp_path, processes=1)
        whole = contents(tmp_path)
        (tmp_path / "generation.json").rename(tmp_path / "generation.begun.json")
        (tmp_path / "images/000000000013.jpg").rename(tmp_path / "images/000000000013.part")
        assert generate.generate(recipe, tmp_path, processes=1)
        assert contents(tmp_path) == whole

    def test_copies_have_the_pixels_of_a_photo_and_bytes_of_their_own(self, tmp_path):
        generate.generate(generate.Recipe(7, distinct=3), tmp_path, processes=1)
        photos = [path.read_bytes() for path in sorted((tmp_path / "images").iterdir())]
        assert len(set(photos)) == 7
        pixels = [Image.open(BytesIO(photo)).tobytes() for photo in photos]
        assert pixels[1] == pixels[4]
        assert pixels[0] == pixels[3] == pixels[6]
        assert len(set(pixels)) == 3
        assert photos[:3] == [generate.photo(index, generate.Recipe(3)) for index in range(3)]
        images = json.loads((tmp_path / "instances.json").read_bytes())["images"]
        for entry in images:
            photo = Image.open(tmp_path / "images" / entry["file_name"])
            assert photo.size == (entry["width"], entry["height"])

    def test_other_data_is_not_drawn_over(self, tmp_path):
        generate.generate(generate.Recipe(1), tmp_path, processes=1)
        with pytest.raises(ValueError, match=r"holds other data \(generation.json\): delete it"):
            generate.generate(generate.Recipe(1, seed=1), tmp_path, processes=1)

    def test_photos_have_the_stated_mean_size(self, drawn):
        assert sum(photo_sizes(drawn)) / IMAGES == pytest.approx(793e6 / 5000, rel=0.15)

    def test_scale_doubles_the_bytes(self):
        recipes = generate.Recipe(1), generate.Recipe(1, scale=2)
        usual, doubled = (
            sum(len(generate.photo(i, recipe)) for i in range(20)) for recipe in recipes
        )
        assert doubled / usual == pytest.approx(2, rel=0.1)

    def test_photos_are_jpegs_of_the_stated_size(self, drawn):
        coco = json.loads((drawn / "instances.json").read_bytes())
        for entry in coco["images"]:
            with Image.open(drawn / "images" / entry["file_name"]) as photo:
                photo.load()
                assert (photo.format, photo.mode) == ("JPEG", "RGB")
                assert photo.size == (entry["width"], entry["height"])
                assert max(photo.size) == 640
                assert min(photo.size) >= 480

    def test_annotations_are_valid_coco(self, drawn):
        coco = json.loads((drawn / "instances.json").read_bytes())
        assert list(coco) == ["info", "licenses", "images", "annotations", "categories"]
        categories = [category["id"] for category in coco["categories"]]
        assert (len(categories), min(categories), max(categories)) == (80, 1, 90)
        images = {image["id"]: image for image in coco["images"]}
        annotations = coco["annotations"]
        assert len(images) == IMAGES
        assert len({annotation["id"] for annotation in annotations}) == len(annotations)
        assert len(annotations) / IMAGES == pytest.approx(7, rel=0.25)
        assert IMAGES - len({annotation["image_id"] for annotation in annotations}) == 1
        for annotation in annotations:
            image = images[annotation["image_id"]]
            x, y, width, height = annotation["bbox"]
            assert annotation["category_id"] in categories
            assert min(x, y) >= 0 < min(width, height)
            assert x + width <= image["width"]
            assert y + height <= image["height"]
            assert 0 < annotation["area"] <= 2 * width * height
            if annotation["iscrowd"]:
                runs = annotation["segmentation"]["counts"]
                assert sum(runs) == image["width"] * image["height"]
                assert sum(runs[1::2]) == annotation["area"]
            else:
                xs = [x for polygon in annotation["segmentation"] for x in polygon[::2]]
                assert min(xs) == x
                assert max(xs) == pytest.approx(x + width)

    @pytest.mark.parametrize(
        ("flags", "photos"),
        [
            (["--annotations-only"], 0),
            (["--annotations-only", "--sparse-images"], 50),  # holes: a size, but no blocks
        ],
    )
    def test_annotations_only(self, tmp_path, flags, photos):
        command = ["--out", str(tmp_path), "--images", "50", "--processes", "1", *flags]
        assert generate.main(command) == 0
        sizes = photo_sizes(tmp_path)
        assert len(sizes) == photos
        assert all(80_000 <= size < 240_000 for size in sizes)
        assert sum(path.stat().st_blocks for path in (tmp_path / "images").iterdir()) == 0
        assert len(json.loads((tmp_path / "instances.json").read_bytes())["images"]) == 50

    @pytest.mark.parametrize(
        ("recipe", "message"),
        [
            ({"images": 0}, "images must be at least 1, got 0"),
            ({"images": 1, "scale": 0}, "scale must be above 0, got 0"),
            ({"images": 1, "distinct": -1}, "distinct must be 0 or above, got -1"),
        ],
    )
    def test_recipes_that_cannot_be_drawn(self, recipe, message):
        with pytest.raises(ValueError, match=message):
            generate.Recipe(**recipe)


class TestMeasure:
    def run(self, code: str, limit_s: float = 60) -> measure.Run:
        return measure.run_measured([sys.executable, "-c", code], BENCHMARKS, limit_s)

    def test_a_run_is_timed_and_its_last_line_kept(self):
        run = self.run("import time; time.sleep(0.3); print('one'); print('two\\n'); exit(3)")
        assert 0.3 <= run.wall_s < 5
        assert (run.exit_code, run.last_line) == (3, "two")

    def test_memory_of_children_counts(self):
        child = "import time; b = b'1' * 100_000_000; time.sleep(1)"
        run = self.run(
            f"import subprocess, sys; c = [sys.executable, '-c', {child!r}];"
            "[p.wait() for p in [subprocess.Popen(c), subprocess.Popen(c)]]"
        )
        assert 200 < run.peak_mb < 280

    def test_cpu_of_children_counts(self):
        child = "import time\nwhile time.process_time() < 0.5: pass"
        run = self.run(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])")
        assert 0.5 <= run.cpu_s < 2

    def test_a_run_past_its_limit_is_killed_with_its_children(self):
        child = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
        run = self.run(
            f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])", 1
        )
        assert run.exit_code is None
        assert run.wall_s < 10
        status = Path(f"/proc/{run.last_line}/status")
        deadline_s = time.monotonic() + 10  # a kill takes a moment on a busy machine
        while status.exists() and "State:\tZ" not in status.read_text():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def test_bytecode_may_be_written(self, monkeypatch):
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        assert self.run("import sys; print(sys.dont_write_bytecode)").last_line == "False"


class TestRecords:
    @pytest.fixture(scope="class")
    def shards(self, drawn, tmp_path_factory):
        out = tmp_path_factory.mktemp("shards")
        command = [sys.executable, BENCHMARKS / "peers/floor.py", drawn / "images"]
        command += [drawn / "instances.json", out, "--processes", "2"]
        subprocess.run(command, check=True)
        return out

    def test_counts_agree_with_tensorflow(self, drawn, shards):
        import tensorflow as tf

        paths = sorted(map(str, shards.iterdir()))
        found = [list(tf.data.TFRecordDataset(path).as_numpy_iterator()) for path in paths]
        assert records.shard_sizes(shards) == [len(of_file) for of_file in found]
        assert records.count_tfrecords(shards) == IMAGES
        features = tf.train.Example.FromString(found[0][0]).features.feature
        name = features["image/filename"].bytes_list.value[0].decode()
        encoded = features["image/encoded"].bytes_list.value[0]
        assert encoded == (drawn / "images" / name).read_bytes()
        assert len(features["image/object/bbox/xmin"].float_list.value) == len(
            features["image/object/class/text"].bytes_list.value
        )

    def test_only_a_whole_even_set_with_a_manifest_passes(self, shards, tmp_path):
        out = tmp_path / "out"
        out.mkdir()
        for path in shards.iterdir():
            (out / path.name).write_bytes(path.read_bytes())
        ours, data = contenders.CONTENDERS["ours"], contenders.Data(tmp_path, IMAGES)
        assert ours.fault(data, out) == "no manifest.json"
        (out / "manifest.json").touch()
        assert ours.fault(data, out) is None
        assert ours.fault(contenders.Data(tmp_path, 131), out) == "wrote 130 of 131 records"
        last = out / "train-00015-of-00016.tfrec"
        first = out / "train-00000-of-00016.tfrec"
        first.write_bytes(first.read_bytes() + last.read_bytes())
        last.unlink()
        assert ours.fault(data, out).startswith("wanted 16 even shards, got [17, 9, 8")

    def test_damage_is_found(self, shards, tmp_path):
        whole = next(shards.iterdir()).read_bytes()
        path = tmp_path / "x.tfrec"
        path.write_bytes(whole[:-1])
        with pytest.raises(ValueError, match=r"x.tfrec: ends within record [89]"):
            records.records_in(path)
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        with pytest.raises(ValueError, match=r"x.tfrec: no record at byte 0"):
            records.records_in(path)

    def test_chunks_are_counted_by_their_offsets(self, tmp_path):
        samples = [b"one", b"", b"three"]
        ends = [0, 3, 3, 8]
        head = struct.pack("<5I", 3, *(20 + end for end in ends))
        for name in ("chunk-0-0.bin", "00001/shard.00000.mds"):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(head + b"".join(samples))
        assert records.count_offsets(tmp_path) == 6
        path.write_bytes(head + b"".join(samples)[:-1])
        with pytest.raises(ValueError, match=r"mds: 3 samples do not end where the file does"):
            records.count_offsets(tmp_path)
