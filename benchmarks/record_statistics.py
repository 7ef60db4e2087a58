"""What a record's statistics cost, beside its encoding: detection records with 7 objects.

    .venv/bin/python -m benchmarks.record_statistics

Both are timed in turn, so that what else runs on the machine slows them alike.
"""

import random
import statistics
import time
from collections.abc import Callable

from schemas.example import FeatureValues, encode_example_parts
from schemas.feature_roles import roles_of_spec
from schemas.features import Kind
from schemas.layouts.detection import DetectionLayout
from schemas.statistics_collector import StatisticsCollector, StoredPicture

RECORDS, OBJECTS, CLASSES, CLASSES_A_RECORD, ROUNDS = 5000, 7, 80, 4, 15


def make_record(chance: random.Random, number: int) -> FeatureValues:
    """Return the values of a record as COCO's are, its classes in a long tail."""
    corners = [[chance.random() / 2 for _ in range(OBJECTS)] for _ in range(4)]
    tail = [1 / rank for rank in range(1, CLASSES + 1)]
    present = chance.choices(range(1, CLASSES + 1), tail, k=CLASSES_A_RECORD)
    box = "image/object/bbox/"
    return {
        "image/height": (Kind.INT64, [480]),
        "image/width": (Kind.INT64, [640]),
        "image/filename": (Kind.BYTES, [b"%012d.jpg" % number]),
        "image/source_id": (Kind.BYTES, [b"%d" % number]),
        "image/key/sha256": (Kind.BYTES, [b"%064x" % number]),
        "image/encoded": (Kind.BYTES, [b"\xff" * 5000]),
        "image/format": (Kind.BYTES, [b"jpeg"]),
        f"{box}xmin": (Kind.FLOAT, corners[0]),
        f"{box}ymin": (Kind.FLOAT, corners[1]),
        f"{box}xmax": (Kind.FLOAT, [0.5 + edge for edge in corners[2]]),
        f"{box}ymax": (Kind.FLOAT, [0.5 + edge for edge in corners[3]]),
        "image/object/class/text": (Kind.BYTES, [b"person"] * OBJECTS),
        "image/object/class/label": (Kind.INT64, chance.choices(present, k=OBJECTS)),
        "image/object/is_crowd": (Kind.INT64, [0] * OBJECTS),
        "image/object/area": (Kind.FLOAT, [1234.5] * OBJECTS),
    }


def main() -> None:
    """Print microseconds a record, the least of all rounds, and the median ratio of a round."""
    chance = random.Random(0)
    records = [make_record(chance, number) for number in range(RECORDS)]
    roles = roles_of_spec(DetectionLayout(features=("boxes",)).spec)
    pictures = [
        [
            StoredPicture(
                "jpeg", chance.choice((640, 500, 427)), 480, chance.randrange(50_000, 300_000)
            )
        ]
        for _ in records
    ]

    def encode() -> None:
        for values in records:
            encode_example_parts(values)

    def collect() -> None:
        collector = StatisticsCollector("train", roles)
        for number, values in enumerate(records):
            place = (number * 160_000, 160_000, str(number))
            collector.add(values, pictures[number], (), place)
        collector.statistics()

    rounds = [(timed(collect), timed(encode)) for _ in range(ROUNDS)]
    collecting, encoding = (min(times) / RECORDS * 1e6 for times in zip(*rounds, strict=True))
    ratio = statistics.median(one / other for one, other in rounds)
    print(f"statistics {collecting:.1f} us, encoding {encoding:.1f} us, ratio {ratio:.2f}")


def timed(do: Callable[[], None]) -> float:
    """Return the seconds that it takes."""
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
