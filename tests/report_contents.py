"""Reports made up for tests: a rich one, one with a known box, and a hostile one."""

import io
import random
from collections import Counter
from dataclasses import replace

import msgspec
from PIL import Image, ImageDraw

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.manifest import Annotations, LicenseCount, SplitSummary
from beam_tfrec.transforms.report import (
    Outline,
    PickedRecord,
    Report,
    ShownPicture,
    SplitReport,
    class_color,
)

XSS = "</script><img src=x onerror=alert(1)>"
BIDI = "photo_\u202egpj.exe\x07\x1b[31m\u200b.jpg"
KNOWN_BOX = (0.25, 0.125, 0.5, 0.375)
"""Box in the picture of `one_box_report`, along edges of pixels."""

NO_COUNTS = SplitSummary(0, 0, 0, 0, 0, 1, 1, 5000, Annotations(0, 0, {}, 0, 0), 0, {}, {}, {})
"""Summary of a split of one record."""

NAMES = {1: "person", 2: "bicycle", 3: "car", 4: "motorcycle", 5: "airplane"}


def picture(number: int, split: str) -> ShownPicture:
    """Return a picture with two boxes, keypoints and a mask."""
    rng = random.Random(number)
    width, height = rng.choice([(320, 240), (240, 320), (320, 180)])
    image = Image.new("RGB", (width, height), f"hsl({number * 31 % 360}, 40%, 60%)")
    mask = Image.new("RGBA", (width, height))
    outlines = []
    for label in (1 + number % 5, 1 + number % 3):
        x, y = rng.uniform(0, 0.6), rng.uniform(0.1, 0.6)
        points = ((x + 0.1, y + 0.1), (x + 0.2, y + 0.2)) if label == 1 else ()
        outlines.append(Outline(label, NAMES[label], (x, y, 0.3, 0.3), points))
        edges = (x * width, y * height, (x + 0.3) * width, (y + 0.3) * height)
        ImageDraw.Draw(mask).ellipse(edges, fill=f"{class_color(label)}80")
    file = f"{split}-00000-of-00001-96.tfrec"
    return ShownPicture(
        PickedRecord(split, file, number, 0, 100, f"{number:012}"),
        name="",
        jpeg=encoded(image, "JPEG"),
        size_px=(width, height),
        stored_size_px=(2 * width, 2 * height),
        mask=encoded(mask, "PNG"),
        labels=tuple(sorted({outline.label for outline in outlines if outline.label})),
        outlines=tuple(outlines),
        captions=("a caption in a sentence",) if number % 3 else (),
    )


def encoded(image: Image.Image, kind: str) -> bytes:
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


def made_split(name: str, records: int) -> SplitReport:
    summary = msgspec.structs.replace(
        NO_COUNTS,
        listed=records + 5,
        planned=records + 5,
        rejected_in_shards=5,
        records=records,
        shards=16,
        bytes=records * 162_000,
        annotations=Annotations(7 * records + 33, 7 * records, {"E-BOX-EMPTY": 33}, 0, 0),
        rejected={"E-IMG-TRUNCATED": 5},
        repairs={"boxes_clipped": 412},
        traits={"exif_gps": 12, "gray": 51},
        licenses=[LicenseCount(1, records, "Attribution License")],
    )
    return SplitReport(
        name,
        summary,
        histograms={
            "image_width": Counter({640: records - 100, 480: 100}),
            "image_height": Counter({480: records - 100, 640: 100}),
            "record_bytes": Counter({150_000 + 500 * n: records // 100 for n in range(100)}),
            "objects": Counter(dict.fromkeys(range(40), records // 40)),
        },
        class_records=Counter({label: records // label for label in NAMES}),
        class_objects=Counter({label: 2 * records // label for label in NAMES}),
    )


def rich_report(pictures: int = 96, classes: int = 1203) -> Report:
    """Return a report of two splits with everything that a page can show."""
    rejected = Rejected(
        code="E-IMG-TRUNCATED",
        stage="write_shards",
        split="train",
        key="7",
        annotation_ids=(7, 8),
        file_name="photos/7.jpg",
        detail="no end marker in 50112 of 95584 bytes",
    )
    return Report(
        title="birds-and-bicycles",
        layout="detection",
        splits=[made_split("train", 20_000), made_split("val", 2_000)],
        class_names=NAMES | {n: f"thing {n:04}" for n in range(6, classes + 1)},
        pictures=[picture(n, ("train", "val")[n % 2]) for n in range(pictures)],
        rejects=[rejected],
        options=[("layout", "detection"), ("seed", "0")],
        features=[("image/encoded", "bytes", "1", "the image file")],
        sources=["photos/train: 20,014 files"],
        versions=[("beam-tfrec", "0.1.0"), ("pillow", "13.0.0")],
        notes=["a note"],
    )


def one_box_report() -> Report:
    """Return a report of one black picture of 320 x 240 px, white in `KNOWN_BOX`."""
    image = Image.new("RGB", (320, 240))
    x, y, w, h = KNOWN_BOX
    edges = (int(x * 320), int(y * 240), int((x + w) * 320), int((y + h) * 240))
    image.paste((255, 255, 255), edges)
    shown = replace(
        picture(0, "train"),
        jpeg=encoded(image, "JPEG"),
        mask=b"",
        labels=(1,),
        outlines=(Outline(1, "", KNOWN_BOX, ((x, y), (x + w, y + h))),),
        size_px=(320, 240),
    )
    return Report("one", "detection", [SplitReport("train", NO_COUNTS)], {}, [shown])


def hostile_report() -> Report:
    """Return a report with hostile text in every field."""
    texts = {XSS: 3, BIDI: 2, "x" * 5000: 1}
    split = made_split(XSS, 400)
    summary = msgspec.structs.replace(
        split.summary,
        **dict.fromkeys(["rejected", "repairs", "traits", "skipped"], texts),
        annotations=Annotations(9, 9, texts, 0, 0, skipped=texts),
        licenses=[LicenseCount(place, 1, text) for place, text in enumerate(texts)],
    )
    split = replace(split, summary=summary)
    outlines = (
        Outline(1, XSS, (0.1, 0.1, 0.5, 0.5)),
        Outline(2, BIDI, (0.9, 0.1, 0.1, 0.5)),
        Outline(None, '"><svg onload=alert(1)>', None, ((0.5, 0.9), (0.5, 0.5))),
    )
    shown = replace(
        picture(5, XSS),
        record=PickedRecord(XSS, XSS, 5, 0, 100, BIDI),
        name=XSS,
        captions=(XSS, BIDI, "y" * 5000),
        outlines=outlines,
        labels=(1, 2),
    )
    odd = [replace(shown, size_px=size) for size in ((320, 16), (10, 320), (4, 4), (1, 1))]
    texts_of = dict.fromkeys(["code", "stage", "split", "detail"], XSS)
    rejected = Rejected(**texts_of, key=BIDI, annotation_ids=(XSS, 1), file_name=BIDI)
    return Report(
        title=XSS,
        layout=XSS,
        splits=[split, replace(split, name=BIDI)],
        class_names={1: XSS, 2: BIDI},
        pictures=[shown, replace(shown, record=shown.record._replace(split=BIDI)), *odd],
        rejects=[rejected],
        options=[(XSS, BIDI)],
        features=[(XSS, BIDI, XSS, "{{ 7 * 7 }}")],
        sources=[XSS, "\ud800 lone"],
        versions=[(XSS, XSS)],
        notes=[XSS, BIDI, "javascript:alert(1)"],
    )
