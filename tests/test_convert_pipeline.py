"""Conversion in whole runs: counted, indexed, rejected, and named in the plan."""

import hashlib
from pathlib import Path

import pytest
import tensorflow as tf
from PIL import Image, features

from beam_tfrec.schemas.geometry.boxes import Resize, ResizeMode
from beam_tfrec.transforms.images.conversion import Conversion, codec_versions
from beam_tfrec.transforms.shard_index import index_from_parquet
from tests.coco_command import MakeCoco, command, committed, examples, run_coco, value
from tests.conftest import jpeg_bytes
from tests.turned_images import as_stored, oriented


@pytest.mark.thorough
def test_converted_images_are_counted_and_indexed(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(4, objects=2), tmp_path / "out"
    (sources[0] / "a001.jpg").write_bytes(oriented(jpeg_bytes(64, 48), 6))
    (sources[0] / "a002.jpg").write_bytes(jpeg_bytes(32, 24))
    flags = ("--resize", "32x24", "--orientation", "upright", "--layout", "detection")
    split = committed(sources, out, *flags)["splits"]["train"]
    repairs = {"image_converted": 3, "image_unchanged": 1, "image_turned": 1}
    assert repairs.items() <= split["repairs"].items()
    by_name = {value(example, "image/filename")[0]: example for example in examples(out)}
    assert as_stored(value(by_name[b"a001.jpg"], "image/encoded")[0]).shape == (24, 18, 3)
    passed = value(by_name[b"a002.jpg"], "image/encoded")[0]
    assert passed == (sources[0] / "a002.jpg").read_bytes()
    (index,) = (out / "index").glob("*.parquet")
    for row in index_from_parquet(index.read_bytes()):
        (source,) = row.sources
        data = (sources[0] / source.name).read_bytes()
        assert source.sha256 == hashlib.sha256(data).hexdigest()
    for example in by_name.values():
        written = value(example, "image/encoded")[0]
        assert value(example, "image/key/sha256")[0].decode() == hashlib.sha256(written).hexdigest()
        size = tf.io.decode_image(written).shape[:2]
        assert size == (value(example, "image/height")[0], value(example, "image/width")[0])


@pytest.mark.thorough
def test_decoding_with_an_old_pillow_warns_once(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "site" / "pillow-12.1.0.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: pillow\nVersion: 12.1.0\n")
    monkeypatch.syspath_prepend(str(old.parent))  # searched first for versions
    run = run_coco(*command(make_coco(2), tmp_path / "out"), "--check", "decode")
    assert run.code == 0, run.err
    warning = (
        "images are decoded by Pillow 12.1.0, which has a critical JPEG overflow"
        " (CVE-2026-112403); install pillow>=13, as requirements.lock does"
    )
    assert run.err.splitlines().count(warning) == 1


def test_options_name_everything_that_decides_bytes() -> None:
    versions = codec_versions()
    names = ("libjpeg_turbo", "zlib_ng", "webp", "avif", "libtiff", "littlecms2")
    for version in (Image.__version__, *map(features.version, names)):
        assert f" {version}" in versions
    assert Conversion().options() == {"orientation": "keep"}
    assert Conversion(turns=True).options() == {"orientation": f"upright, by {versions}"}
    both = {"orientation": "keep", "conversion_codecs": versions}
    filled = {"color": "keep", "resize": "40x40 fill", "quality": "70, 95 by default"}
    assert Conversion(Resize(40, 40), ResizeMode.FILL, quality=70).options() == both | filled
    plain = {"color": "rgb", "resize": "4x2 stretch", "pixels": "float32"}
    assert Conversion(Resize(4, 2), pixels_dtype="float32").options() == both | plain
