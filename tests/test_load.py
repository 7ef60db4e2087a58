"""`beam_tfrec.load`: tensors, order, shares of hosts, and refused arguments."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import beam_tfrec
from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec, Kind
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.tfrecord import frame_record
from tests.conftest import jpeg_bytes
from tests.small_data_sets import write_values
from tests.test_docs import block_of
from tests.turned_images import saved

NUMBERS = FeatureSpec("numbers", (Feature("n", Kind.INT64, False, "number of the record"),))
OBJECTS = FeatureSpec(
    "objects",
    (
        Feature("image", Kind.BYTES, False, "an image file", Content.IMAGE),
        Feature("objects/bbox", Kind.FLOAT, True, "boxes", Content.BOX_YXYX),
        Feature("objects/label", Kind.INT64, True, "ids", Content.CLASS_LABEL),
        Feature("caption", Kind.BYTES, True, "captions", Content.TEXT),
    ),
)


def numbered(*counts: int) -> list[list[dict[str, list[int]]]]:
    """Return shards with these numbers of records, numbered consecutively."""
    numbers = iter(range(sum(counts)))
    return [[{"n": [next(numbers)]} for _ in range(count)] for count in counts]


def numbers_of(dataset: tf.data.Dataset) -> list[int]:
    return [int(record["n"]) for record in dataset]


def write_numbers(folder: Path, *counts: int) -> str:
    return str(write_values(folder, NUMBERS, {"train": numbered(*counts)}))


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Sixteen shards; some lost records to rejects."""
    counts = [8, 8, 3, 8, 8, 8, 0, 8, 8, 8, 8, 7, 8, 8, 8, 5]
    return write_numbers(tmp_path_factory.mktemp("uneven"), *counts)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four photos of two sizes, of 0 to 3 objects."""
    records = [
        {
            "image": [jpeg_bytes(20 + 4 * (place % 2), 16, color=place)],
            "objects/bbox": [place / 4] * 4 * place,
            "objects/label": list(range(place)),
            "caption": [b"a", b"b"][: place % 2 + 1],
        }
        for place in range(4)
    ]
    folder = tmp_path_factory.mktemp("photos")
    return str(write_values(folder, OBJECTS, {"train": [records]}))


# --- tensors ---


TYPES = {"caption": tf.string, "objects/bbox": tf.float32, "objects/label": tf.int64}
# Options, shapes of image, boxes, labels and captions; `...` for a ragged tensor.
SHAPES: list[tuple[dict[str, Any], str, str, str, str]] = [
    ({}, "? ? 3", "? 4", "?", "?"),
    ({"batch_size": 2}, "? ? ? 3 ...", "? ? 4 ...", "? ? ...", "? ? ..."),
    (
        {"batch_size": 2, "decode_images": False, "drop_remainder": True},
        *("2", "2 ? 4 ...", "2 ? ...", "2 ? ..."),
    ),
    ({"max_objects": 2, "image_size": (7, 9)}, "7 9 3", "2 4", "2", "?"),
    (
        {"max_objects": 2, "image_size": (7, 9), "batch_size": 2, "drop_remainder": True},
        *("2 7 9 3", "2 2 4", "2 2", "2 ? ..."),
    ),
]


@pytest.mark.parametrize(("options", "image", "bbox", "label", "caption"), SHAPES)
def test_shapes_and_types(
    photos: str, options: dict[str, Any], image: str, bbox: str, label: str, caption: str
) -> None:
    dataset = beam_tfrec.load(photos, "train", **options)
    found = {}
    for key, spec in dataset.element_spec.items():
        shape = " ".join("?" if side is None else str(side) for side in spec.shape)
        found[key] = f"{shape} ..." if isinstance(spec, tf.RaggedTensorSpec) else shape
    shapes = {"image": image, "objects/bbox": bbox, "objects/label": label, "caption": caption}
    assert found == shapes
    of_image = tf.uint8 if options.get("decode_images", True) else tf.string
    types = {key: spec.dtype for key, spec in dataset.element_spec.items()}
    assert types == {**TYPES, "image": of_image}
    assert len(list(dataset)) == len(dataset) == (4 if "batch_size" not in options else 2)


def test_lists_are_padded_and_cut(photos: str) -> None:
    (batch,) = beam_tfrec.load(photos, "train", batch_size=4, max_objects=2, decode_images=False)
    assert batch["objects/label"].numpy().tolist() == [[-1, -1], [0, -1], [0, 1], [0, 1]]
    boxes = [[-1, -1], [0.25, -1], [0.5, 0.5], [0.75, 0.75]]
    assert batch["objects/bbox"].numpy().tolist() == [[[x] * 4 for x in row] for row in boxes]
    assert batch["caption"].to_list() == [[b"a"], [b"a", b"b"]] * 2


def test_images_are_pixels_or_bytes(photos: str) -> None:
    """In a batch, images of several sizes are ragged, or resized to one size."""
    encoded = [r["image"].numpy() for r in beam_tfrec.load(photos, "train", decode_images=False)]
    (batch,) = beam_tfrec.load(photos, "train", batch_size=4)
    (resized,) = beam_tfrec.load(photos, "train", batch_size=4, image_size=(8, 10))
    for row, small, data in zip(batch["image"], resized["image"].numpy(), encoded, strict=True):
        pixels = tf.io.decode_jpeg(data)
        assert np.array_equal(row.to_tensor(), pixels)
        wanted = tf.image.resize(tf.cast(pixels, tf.float32), (8, 10), antialias=True)
        assert np.abs(small - wanted).max() <= 0.51


def test_every_kind_of_image_becomes_rgb(tmp_path: Path) -> None:
    gray, blue = Image.new("L", (4, 3), 90), Image.new("RGBA", (4, 3), (20, 10, 200, 128))
    sixteen_bits = Image.fromarray(np.full((3, 4), 0x9C40, np.uint16))
    pixels = [
        (saved(gray, "PNG"), [90] * 3),
        (saved(blue, "PNG"), [20, 10, 200]),  # not blended
        (saved(sixteen_bits, "PNG"), [0x9C] * 3),  # the upper eight bits
        (saved(gray, "GIF", save_all=True, append_images=[Image.new("L", (4, 3), 7)]), [90] * 3),
    ]
    spec = FeatureSpec("one", OBJECTS.features[:1])
    write_values(tmp_path, spec, {"train": [[{"image": [data]} for data, _ in pixels]]})
    records = beam_tfrec.load(str(tmp_path), "train")
    for record, (_, pixel) in zip(records, pixels, strict=True):
        assert (record["image"].shape, record["image"].dtype) == ((3, 4, 3), tf.uint8)
        assert record["image"].numpy().reshape(-1, 3).tolist() == [pixel] * 12


DETECTION = DetectionLayout(features=("boxes", "masks", "polygons", "keypoints", "captions")).spec
PEOPLE = (Label(1, "cat"), Label(2, "person", keypoints=("nose", "left eye", "right eye")))


def person(spec: FeatureSpec, objects: int) -> dict[str, list]:
    """Return values of an image with this many objects, each with three keypoints."""
    texts = {Kind.BYTES: b"x", Kind.FLOAT: 0.5, Kind.INT64: 1}
    counts = {"image/caption": 2, "image/object/polygon": 6 * objects}
    values: dict[str, list] = {}
    for feature in spec.features:
        count = counts.get(feature.key, objects if feature.repeated else 1)
        if re.search("keypoint/(x|y|visibility|text)$", feature.key):
            count = 3 * objects
        values[feature.key] = [texts[feature.kind]] * count
    return values


@pytest.mark.parametrize("batch_size", [None, 2])
def test_lists_of_objects_in_the_detection_layout(tmp_path: Path, batch_size: int | None) -> None:
    """Keypoints are grouped by object; polygons and captions stay flat lists."""
    records = [person(DETECTION, objects) for objects in (1, 5)]
    write_values(tmp_path, DETECTION, {"train": [records]}, PEOPLE)
    dataset = beam_tfrec.load(
        str(tmp_path), "train", max_objects=4, batch_size=batch_size, decode_images=False
    )
    lists: dict[str, list[int | None]] = {f.key: [4] for f in DETECTION.features if f.repeated}
    lists |= {f"image/object/keypoint/{k}": [4, 3] for k in ("x", "y", "visibility", "text")}
    free = ("image/object/polygon", "image/object/polygon_length", "image/caption")
    lists |= {key: [None] for key in free}
    for key, spec in dataset.element_spec.items():
        assert list(spec.shape)[batch_size is not None :] == lists.get(key, []), key
    first = next(iter(dataset))
    first = {key: value if batch_size is None else value[0] for key, value in first.items()}
    assert first["image/object/keypoint/x"].numpy().tolist() == [[0.5] * 3] + [[-1.0] * 3] * 3
    assert first["image/object/keypoint/text"].numpy().tolist() == [[b"x"] * 3] + [[b""] * 3] * 3
    assert first["image/object/mask"].numpy().tolist() == [b"x", b"", b"", b""]


def test_data_sets_must_agree_on_the_number_of_keypoints(tmp_path: Path) -> None:
    for name, labels in (("a", PEOPLE), ("b", PEOPLE[:1])):
        write_values(tmp_path / name, DETECTION, {"train": [[person(DETECTION, 1)]]}, labels)
    roots = [str(tmp_path / name) for name in "ab"]
    message = "max_objects needs one number of keypoints, got 0 and 3: load each data set alone"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        beam_tfrec.load(roots, "train", max_objects=4)
    assert len(beam_tfrec.load(roots, "train", decode_images=False)) == 2


# --- order ---


def test_the_order(tmp_path: Path) -> None:
    """Always the same; with `shuffle`, new in each epoch, or fixed by a seed."""
    out = write_numbers(tmp_path, *[50] * 20)
    dataset = beam_tfrec.load(out, "train")
    first = numbers_of(dataset)
    assert sorted(first) == list(range(1000))
    assert first == numbers_of(dataset) == numbers_of(beam_tfrec.load(out, "train"))
    assert first[:17] == [*range(0, 16 * 50, 50), 1]  # sixteen files are read at once
    for shuffle in (True, 100):
        dataset = beam_tfrec.load(out, "train", shuffle=shuffle)
        epochs = [numbers_of(dataset), numbers_of(dataset), first]
        assert all(sorted(epoch) == sorted(first) for epoch in epochs)
        assert len(set(map(tuple, epochs))) == 3
    seeded = [numbers_of(beam_tfrec.load(out, "train", shuffle=True, seed=3)) for _ in range(2)]
    assert seeded[0] == seeded[1] != sorted(seeded[0])


# --- mixtures ---


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """A data set of the numbers 0 to 4, and one of 5 to 104."""
    small, large = numbered(5), numbered(5, 50, 50)[1:]
    folders = [tmp_path_factory.mktemp(name) for name in ("small", "large")]
    for folder, shards in zip(folders, (small, large), strict=True):
        write_values(folder, NUMBERS, {"train": shards})
    return dict(zip(map(str, folders), (3, 1), strict=True))


def test_a_mixture_draws_by_weight_without_end(weights: dict[str, float]) -> None:
    def drawn(**options: Any) -> list[int]:
        batches = beam_tfrec.load(weights, "train", batch_size=100, **options).take(10)
        return [number for batch in batches for number in batch["n"].numpy().tolist()]

    for options in ({}, {"shuffle": True, "seed": 3}):
        numbers = drawn(**options)
        assert numbers == drawn(**options)
        assert {*numbers} == {*range(105)}
        assert sum(number < 5 for number in numbers) == pytest.approx(750, abs=50)
    shares = [{*drawn(host=host, hosts=2)} for host in range(2)]
    assert shares[0] | shares[1] == {*range(105)} and not shares[0] & shares[1]
    dataset = beam_tfrec.load(weights, "train", batch_size=8, hosts=2)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    assert dataset.element_spec["n"].shape == (8,)


def test_mixtures_that_are_refused(weights: dict[str, float]) -> None:
    small, _ = weights
    for wrong in (0.0, "1"):
        refused = f"^weights must be numbers above 0, got {wrong!r}: correct it, or leave"
        with pytest.raises(ValueError, match=refused):
            beam_tfrec.load(dict.fromkeys(weights, wrong), "train")
    none = f"^each data set must have records of split 'train' for host 5 of 6, got none of {small}"
    with pytest.raises(ValueError, match=none):
        beam_tfrec.load(weights, "train", host=5, hosts=6)
    with pytest.raises(ValueError, match=r"^data_sets must be paths, got weights for \["):
        beam_tfrec.open(weights, "train")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^stopping_strategy must be given with weights: "):
        beam_tfrec.steps_per_epoch(weights, "train", 8)
    for given, strategy in ((weights, "oversample"), (small, "first_exhausted")):
        what = f"^stopping_strategy must be first_exhausted or .*, got {strategy!r}: correct it"
        with pytest.raises(ValueError, match=what):
            beam_tfrec.load(given, "train", stopping_strategy=strategy)
    with pytest.raises(ValueError, match=r"^drop_remainder must leave a batch, got 7 records for "):
        options: dict[str, Any] = {"batch_size": 8, "drop_remainder": True}
        beam_tfrec.load(weights, "train", **options, stopping_strategy="first_exhausted")


@pytest.mark.parametrize(
    ("strategy", "hosts", "records"),
    [
        ("first_exhausted", 1, (5, 2)),  # 3 to 1: 5 small ones, 1.67 large ones
        ("all_exhausted", 1, (300, 100)),
        ("first_exhausted", 2, (2, 1)),
        ("all_exhausted", 2, (150, 50)),
    ],
)
def test_a_mixture_that_ends(
    weights: dict[str, float], strategy: str, hosts: int, records: tuple[int, int]
) -> None:
    """Hosts read the same number of records of each data set; no record comes early twice."""
    options: dict[str, Any] = {"hosts": hosts, "stopping_strategy": strategy}
    for host in range(hosts):
        dataset = beam_tfrec.load(weights, "train", host=host, batch_size=3, **options)
        steps = beam_tfrec.steps_per_epoch(weights, "train", 3 * hosts, host=host, **options)
        assert len(list(dataset)) == len(dataset) == steps
        single = beam_tfrec.load(weights, "train", host=host, **options)
        numbers = [int(record["n"]) for record in single]
        small = [number for number in numbers if number < 5]
        assert (len(small), len(numbers) - len(small)) == records
        seen = 2 if hosts == 2 else 5
        assert len({*small}) == min(len(small), seen)
        assert len({*numbers} - {*small}) == min(records[1], 100 // hosts)


# --- hosts ---


@pytest.mark.parametrize("hosts", [2, 7])
def test_hosts_share_a_split(uneven: str, hosts: int) -> None:
    """Together they read all of it, or each reads `steps` whole batches."""
    steps = beam_tfrec.steps_per_epoch(uneven, "train", 3 * hosts, hosts, drop_remainder=True)
    assert steps == 111 // hosts // 3
    shares: list[list[int]] = []
    for host in range(hosts):
        share = {"host": host, "hosts": hosts}
        shares.append(numbers_of(beam_tfrec.load(uneven, "train", **share, drop_remainder=False)))
        dataset = beam_tfrec.load(uneven, "train", batch_size=3, **share, drop_remainder=True)
        assert [len(batch["n"]) for batch in dataset] == [3] * steps
    assert sorted(number for share in shares for number in share) == list(range(111))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    context = tf.distribute.InputContext(hosts, input_pipeline_id=1)
    by_context = beam_tfrec.load(uneven, "train", input_context=context, drop_remainder=False)
    assert numbers_of(by_context) == shares[1]


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({"batch_size": 50}, [50, 50, 11]),
        ({"batch_size": 50, "drop_remainder": True}, [50, 50]),
        ({"batch_size": 20, "hosts": 2}, [20, 20]),
        ({"batch_size": 20, "hosts": 2, "drop_remainder": False}, [20, 20, 15]),
        ({"batch_size": 20, "hosts": 2, "host": 1, "drop_remainder": False}, [20, 20, 16]),
        ({"batch_size": 11, "hosts": 2, "host": 0, "drop_remainder": False}, [11] * 5),
        ({"batch_size": 11, "hosts": 2, "host": 1, "drop_remainder": False}, [11] * 5 + [1]),
        ({"batch_size": 1, "hosts": 112, "host": 111, "drop_remainder": False}, []),
    ],
)
def test_the_remainder(uneven: str, options: dict[str, Any], lengths: list[int]) -> None:
    """`steps_per_epoch` equals the dataset's length; also for one split of several data sets."""
    dataset = beam_tfrec.load(uneven, "train", **options)
    assert [len(batch["n"]) for batch in dataset] == lengths
    hosts, share = options.get("hosts", 1), {**options}
    global_batch = share.pop("batch_size") * hosts
    assert len(dataset) == len(lengths)
    assert beam_tfrec.steps_per_epoch(uneven, "train", global_batch, **share) == len(lengths)
    twice = [uneven, uneven]
    steps = beam_tfrec.steps_per_epoch(twice, "train", global_batch, **share)
    assert steps == len(beam_tfrec.load(twice, "train", **options))


def test_keras_trains_the_same_steps_in_each_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the README's code, for objects: 120 records are 7 batches of 16, and one of 8."""
    spec = FeatureSpec("objects", OBJECTS.features[2:3])
    shard = [{"objects/label": [1, 2]}] * 60
    write_values(tmp_path / "out", spec, {"train": [shard, shard]})
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    code = block_of("README.md", "steps = beam_tfrec.steps_per_epoch").replace("=64", "=16")
    exec(code.replace("batch_size=16", "batch_size=16, max_objects=100"), names)
    pairs = names["dataset"].map(lambda batch: (batch["objects/label"], batch["objects/label"]))
    model = tf.keras.Sequential([tf.keras.layers.Dense(100)])
    model.compile(loss="mse")
    trained = []
    count = tf.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: trained.append(int(model.optimizer.iterations))
    )
    for steps in (names["steps"], None):
        model.fit(pairs, epochs=2, steps_per_epoch=steps, verbose=0, callbacks=[count])
    assert trained == [8, 16, 24, 32]


# --- errors ---


def test_images_that_tensorflow_cannot_decode_are_found(uneven: str, tmp_path: Path) -> None:
    """The header check passes them. TensorFlow's error names the function that finds them."""
    good = jpeg_bytes(64, 64)
    bad = good[:-40] + b"\xff\xc4" * 19 + good[-2:]
    shards = [[{"image": [data]} for data in images] for images in ([good, bad], [good], [bad])]
    root = str(write_values(tmp_path, FeatureSpec("one", OBJECTS.features[:1]), {"train": shards}))
    found = list(beam_tfrec.find_damaged_images(root, "train"))
    assert [line.partition(" at byte")[0] for line in found] == [
        f"E-VER-IMAGE {root}/train-00000-of-00003-2.tfrec record 1 (key '0 1')",
        f"E-VER-IMAGE {root}/train-00002-of-00003-1.tfrec record 0 (key '2 0')",
    ]
    assert found[0].endswith("TensorFlow cannot decode image; write it again with --check decode")
    named = "{{node E-VER-IMAGE.see.beam_tfrec.find_damaged_images/"
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(named)):
        list(beam_tfrec.load(root, "train", batch_size=2, image_size=(8, 8)).map(dict))
    with pytest.raises(ValueError, match=r"^split must have images, layout 'numbers' has none"):
        next(beam_tfrec.find_damaged_images(uneven, "train"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2.5}, "batch_size must be a whole number, got 2.5: give one"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0: give a larger"),
        ({"shuffle": -1}, "shuffle must be at least 0, got -1: give a larger"),
        ({"image_size": 224}, "image_size must be (height, width), got 224: give both"),
        ({"image_size": (0, 5)}, "image_size must be (height, width), got (0, 5)"),
        ({"image_size": (5, 5)}, "image_size needs images, layout 'numbers' has none"),
        (
            {"image_size": (5, 5), "decode_images": False},
            "image_size needs decode_images, got (5, 5): leave it out",
        ),
        ({"seed": 3}, "seed must come with shuffle, got only seed=3: add shuffle"),
        ({"max_objects": 0}, "max_objects must be at least 1, got 0: give a larger"),
        ({"max_objects": 3}, "max_objects needs objects, layout 'numbers' has none"),
        ({"host": 2, "hosts": 2}, "host must be at least 0 and below hosts, got host=2, hosts=2"),
        (
            {"hosts": 2, "input_context": tf.distribute.InputContext(2, 1)},
            "input_context must come without host and hosts, got 0, 2",
        ),
        ({"hosts": 4, "batch_size": 30}, "drop_remainder must leave a batch, got 111 records for "),
    ],
)
def test_arguments_that_are_refused(uneven: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        beam_tfrec.load(uneven, "train", **options)


def test_fewer_records_than_in_the_manifest_are_an_error(tmp_path: Path) -> None:
    """The file has the right length, but a single record as long as two."""
    out = write_numbers(tmp_path, 2)
    (shard,) = tmp_path.glob("*.tfrec")
    one = encode_example({"n": (Kind.INT64, [1])})
    spare = shard.stat().st_size - len(b"".join(frame_record([one])))
    unknown = b"\x4a" + bytes([spare - 2]) + bytes(spare - 2)  # readers skip an unknown field
    shard.write_bytes(b"".join(frame_record([one + unknown])))
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 2 elements"):
        list(beam_tfrec.load(out, "train"))
    assert len(list(beam_tfrec.load(out, "train", known_cardinality=False))) == 1
    shard.unlink()
    with pytest.raises(RuntimeError, match=f"^E-VER-MISSING {re.escape(str(shard))}: "):
        beam_tfrec.load(out, "train")
