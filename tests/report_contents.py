"""Reports made up for tests: one as rich as they come, and one of a hostile stranger."""

import io
import math
import random
from collections import Counter
from dataclasses import replace

from PIL import Image, ImageDraw

from schemas.faults import Rejected
from schemas.statistics import Statistics
from transforms.report.colors import class_color
from transforms.report.contents import Outline, Report, ShardFacts, ShownPicture, SplitReport

XSS = "</script><img src=x onerror=alert(1)>"
BIDI = "photo_\u202egpj.exe\x07\x1b[31m\u200b.jpg"
KNOWN_BOX = (0.25, 0.125, 0.5, 0.375)
"""Of the first picture of `one_box_report`, on edges of its pixels."""

NAMES = (
    *(
        "person",
        "bicycle",
        "car",
        "motorcycle",
        "airplane",
        "bus",
        "train",
        "truck",
        "boat",
        "bench",
    ),
    *(
        "bird",
        "cat",
        "dog",
        "horse",
        "sheep",
        "cow",
        "elephant",
        "bear",
        "zebra",
        "giraffe",
        "backpack",
    ),
    *("umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "kite", "bottle", "cup", "fork"),
)


def drawn_jpeg(
    size_px: tuple[int, int], rng: random.Random, outlines: tuple[Outline, ...]
) -> bytes:
    """Return a landscape with what the outlines are around, masks tinted."""
    width, height = size_px
    image = Image.new("RGB", size_px)
    draw = ImageDraw.Draw(image)
    hue = rng.randrange(360)
    for y in range(height):
        draw.line([(0, y), (width, y)], fill=f"hsl({hue}, 35%, {78 - 40 * y // height}%)")
    horizon = height * rng.uniform(0.45, 0.7)
    for x in range(width):
        top = horizon + 9 * math.sin(x / 23 + hue) + 5 * math.sin(x / 7)
        draw.line([(x, top), (x, height)], fill=f"hsl({(hue + 80) % 360}, 30%, 34%)")
    for outline in outlines:
        if outline.box is None:
            continue
        x, y, w, h = outline.box
        edges = (x * width, y * height, (x + w) * width - 1, (y + h) * height - 1)
        fill = (
            class_color(outline.label)
            if outline.has_mask
            else f"hsl({rng.randrange(360)}, 30%, 60%)"
        )
        draw.ellipse(edges, fill=fill)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    return out.getvalue()


def person_points(box: tuple[float, float, float, float]) -> tuple[tuple[float, float], ...]:
    x, y, w, h = box
    places = [
        (0.5, 0.1),
        (0.45, 0.08),
        (0.55, 0.08),
        (0.3, 0.3),
        (0.7, 0.3),
        (0.2, 0.5),
        (0.8, 0.5),
    ]
    places += [(0.35, 0.6), (0.65, 0.6), (0.35, 0.8), (0.65, 0.8), (0.3, 0.97), (0.7, 0.97)]
    return tuple((x + w * px, y + h * py) for px, py in places)


def picture(number: int, split: str, label: int | None, labels: int = len(NAMES)) -> ShownPicture:
    """Return a picture of some objects, the first of the class that is asked for."""
    rng = random.Random(number)
    size = rng.choice([(320, 240), (240, 320), (320, 214), (320, 180), (256, 256)])
    outlines = []
    for place in range(rng.choice([1, 2, 3, 4, 7, 12])):
        found = label if label is not None and place == 0 else 1 + int(labels * rng.random() ** 3)
        w, h = rng.uniform(0.08, 0.5), rng.uniform(0.1, 0.6)
        box = (rng.uniform(0, 1 - w), rng.uniform(0, 1 - h), w, h)
        points = person_points(box) if found == 1 else ()
        name = NAMES[found - 1] if found <= len(NAMES) else f"thing {found:04}"
        outlines.append(Outline(found, name, box, points, has_mask=place % 3 == 0))
    classes = tuple(sorted({o.label for o in outlines if o.label is not None}))
    return ShownPicture(
        split,
        f"{number * 7919 % 1000003:012}",
        f"{split}-{number % 16:05}-of-00016-512.tfrec",
        number % 512,
        "",
        drawn_jpeg(size, rng, tuple(outlines)),
        size,
        (size[0] * 2, size[1] * 2),
        classes,
        () if label is None else (label,),
        label is None,
        tuple(outlines),
        ("a caption that says what is there, in a sentence",) if number % 3 else (),
    )


def made_statistics(records: int, classes: int, seed: int) -> Statistics:
    """Return statistics with a long tail, whose sums agree."""
    rng = random.Random(seed)

    def bins(middle: float, width: float) -> dict[int, int]:
        return dict(
            sorted(Counter(round(rng.gauss(middle, width)) for _ in range(records)).items())
        )

    ranks = [max(1, round(records * 0.6 / rank**1.15)) for rank in range(1, classes + 1)]
    found = {label + 1: count for label, count in enumerate(ranks) if (label * 7 + seed) % 31}
    objects = Counter(min(16, int(rng.expovariate(0.17))) for _ in range(records))
    return Statistics(
        records=records,
        formats={"jpeg": records - records // 40, "png": records // 40},
        widths_px=bins(18.4, 0.8),
        heights_px=bins(17.7, 0.9),
        aspects=bins(1.2, 1.6),
        image_bytes=bins(34.2, 1.6),
        objects=dict(sorted(objects.items())) | {32: records // 90},
        box_sides={
            bin: max(1, int(records * 4 * math.exp(-((bin + 5) ** 2) / 9))) for bin in range(-16, 1)
        },
        class_records=found,
        class_objects={label: 2 * count for label, count in found.items()},
        runs=records,
        expected_runs=float(records),
    )


def made_shards(split: str, count: int, records: int, seed: int = 0) -> list[ShardFacts]:
    rng = random.Random(seed)
    return [
        ShardFacts(
            f"{split}-{number:05}-of-{count:05}-{records}.tfrec",
            records,
            round(records * 162_000 * rng.gauss(1, 0.012)),
            round(640 * rng.gauss(1, 0.015)),
            640.0,
        )
        for number in range(count)
    ]


def rich_report(pictures: int = 96, classes: int = 1203, shards: int = 4096) -> Report:
    """Return a report of two splits with all that a page can show."""
    splits = ("train", "val")
    half = pictures // 2
    shown = [picture(n, splits[n % 2], None) for n in range(half)]
    shown += [picture(n, splits[n % 2], 1 + n % 30) for n in range(half, pictures)]
    return Report(
        "birds-and-bicycles-2026",
        "detection",
        [
            made_split("train", 20_000, classes, shards, 3),
            made_split("val", 2_000, classes, 16, 5),
        ],
        {n + 1: NAMES[n] if n < len(NAMES) else f"thing {n + 1:04}" for n in range(classes)},
        shown,
        [
            Rejected(
                code=code,
                stage=stage,
                split="train",
                key=f"{number:012}",
                annotation_ids=(number, 7),
                file_name=f"photos/{number:012}.jpg",
                detail=detail,
                shard=shard,
            )
            for number in range(11)
            for code, stage, detail, shard in (
                (
                    "E-IMG-TRUNCATED",
                    "write_shards",
                    "no end marker in 50112 of 95584 bytes",
                    "train-00003-of-00016",
                ),
                ("E-BOX-EMPTY", "read_coco", "bbox [12.0, 4.5, 0.0, 31.0]", ""),
            )
        ],
        [
            ("layout", "detection"),
            ("seed", "0"),
            ("check", "header"),
            ("num_shards", "train=4096 val=16"),
            ("order", "shuffled"),
        ],
        [
            ("image/encoded", "bytes", "one", "the image file, as it was"),
            ("image/height", "int64", "one", "of the stored pixels"),
            ("image/object/bbox/xmin", "float", "any number", "left edge, as a part of the width"),
            ("image/object/class/label", "int64", "any number", "id in the label map"),
        ],
        ["photos/train: 20,014 files", "instances_train.json: 20,014 images, 151,223 annotations"],
        [("beam-tfrec", "0.1.0"), ("apache-beam", "2.77.0"), ("pillow", "13.0.0")],
        ["The first 96 of 22,000 records by digest are shown."],
    )


def made_split(name: str, records: int, classes: int, shards: int, seed: int) -> SplitReport:
    statistics = made_statistics(records, classes, seed)
    return SplitReport(
        name,
        statistics,
        made_shards(name, shards, max(1, records // shards), seed),
        [
            ("listed", records + 14),
            ("excluded", 3),
            ("rejected before planning", 6),
            ("planned", records + 5),
            ("rejected in shards", 5),
            ("written", records),
        ],
        [
            ("listed", records * 7 + 120),
            ("dropped", 33),
            ("lost with images", 87),
            ("written", records * 7),
        ],
        [("E-IMG-TRUNCATED", 9), ("E-IMG-MISSING", 2)],
        [("E-BOX-EMPTY", 33)],
        [("boxes_clipped", 412), ("polygons_dropped", 8)],
        [
            ("progressive", 210),
            ("exif_gps", 12),
            ("exif_serial", 3),
            ("gray", 51),
            ("icc_profile", 4012),
        ],
        [
            ("Attribution-NonCommercial License", records // 3),
            ("No known copyright restrictions", records - records // 3),
        ],
    )


def one_box_report() -> Report:
    """Return a report of a picture of 320 x 240 px that is black, but white in `KNOWN_BOX`."""
    image = Image.new("RGB", (320, 240))
    x, y, w, h = KNOWN_BOX
    image.paste(
        (255, 255, 255), (int(x * 320), int(y * 240), int((x + w) * 320), int((y + h) * 240))
    )
    out = io.BytesIO()
    image.save(out, "JPEG", quality=95)
    shown = ShownPicture(
        "train",
        "1",
        "train-00000-of-00001-1.tfrec",
        0,
        "",
        out.getvalue(),
        (320, 240),
        (320, 240),
        (1,),
        (),
        True,
        (Outline(1, "", KNOWN_BOX, ((x, y), (x + w, y + h))),),
    )
    split = SplitReport(
        "train", Statistics(records=1), [ShardFacts("train-00000-of-00001-1.tfrec", 1, 5000)]
    )
    return Report("one", "detection", [split], {}, [shown])


def hostile_report() -> Report:
    """Return a report whose every text is a stranger's worst."""
    split = made_split(XSS, 40, 2, 2, 1)
    texts = [(XSS, 3), (BIDI, 2), ("x" * 5000, 1)]
    split = replace(
        split,
        sums=texts,
        annotations=texts,
        rejected=texts,
        dropped=texts,
        repairs=texts,
        traits=texts,
        licenses=texts,
        shards=[ShardFacts(XSS, 20, 9, 3, 2.5), ShardFacts(BIDI, 20, 9, 3, 2.5)],
    )
    split = replace(split, statistics=replace_formats(split.statistics))
    shown = replace(
        picture(5, XSS, None),
        key=BIDI,
        file=XSS,
        name=XSS,
        captions=(XSS, BIDI, "y" * 5000),
        outlines=(
            Outline(1, XSS, (0.1, 0.1, 0.5, 0.5)),
            Outline(2, BIDI, (float("nan"), 0.1, 0.5, 0.5)),
            Outline(None, '"><svg onload=alert(1)>', None, ((0.5, float("inf")), (0.5, 0.5))),
            Outline(2, "back", (0.5, 0.5, -0.2, 0.1)),
        ),
        labels=(1, 2),
        for_classes=(1, 2),
        for_split=False,
    )
    odd = [
        replace(shown, jpeg=drawn_jpeg(size, random.Random(1), ()), size_px=size, for_split=True)
        for size in ((320, 16), (10, 320), (4, 4), (1, 1))
    ]
    rejected = Rejected(
        code=XSS,
        stage=XSS,
        split=XSS,
        key=BIDI,
        annotation_ids=(XSS, 1),
        file_name=BIDI,
        detail=XSS,
        shard=XSS,
    )
    return Report(
        XSS,
        XSS,
        [split, replace(split, name=BIDI)],
        {1: XSS, 2: BIDI},
        [shown, replace(shown, split=BIDI), *odd],
        [rejected],
        [(XSS, BIDI)],
        [(XSS, BIDI, XSS, "{{ 7 * 7 }}")],
        [XSS, "\ud800 lone"],
        [(XSS, XSS)],
        [XSS, BIDI, "javascript:alert(1)"],
    )


def replace_formats(statistics: Statistics) -> Statistics:
    """Return statistics with formats that nobody has, and bins beyond all bounds."""
    values = {name: getattr(statistics, name) for name in statistics.__struct_fields__}
    odd = {"formats": {XSS: 40}, "widths_px": {-(10**9): 1, 10**9: 39}}
    return Statistics(**(values | odd))
