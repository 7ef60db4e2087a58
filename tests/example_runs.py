"""Examples of a program, and pipelines that write and read them, also in other processes."""

from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from beam_tfrec.pipelines.examples import ReadExamples, WriteExamples
from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import Kind
from tests.children import die_at

Pairs = Sequence[tuple[str, Any]]


def pair(number: int) -> tuple[str, bytes]:
    """Return a key and an Example that holds the key, too."""
    key = f"k{number:03}"
    values = {
        "key": (Kind.BYTES, [key.encode()]),
        "image/class/label": (Kind.INT64, [number % 2]),
        "more": (Kind.BYTES, [b"x" * (number * 37 % 101)]),
    }
    return key, encode_example(values | ({"odd": (Kind.FLOAT, [0.5])} if number % 2 else {}))


PAIRS = [pair(number) for number in range(40)]


def write(output: object, pairs: Pairs = PAIRS, *flags: str, **given: Any) -> None:
    """Write pairs as a data set of three shards, in this process unless flags name a runner."""
    runner = None if "--runner" in flags else "FnApiRunner"
    with beam.Pipeline(runner, PipelineOptions([*flags])) as root:
        _ = root | beam.Create(pairs) | WriteExamples(str(output), num_shards=3, **given)


def write_until(nth: int, output: str) -> None:
    """Begin to write `PAIRS`, and end this process at a call that `die_at` counts."""
    die_at(nth)
    write(output)


def check_read(output: object, split: str, pairs: Pairs) -> None:
    """Read a split, and check that these pairs are all in it."""
    with beam.Pipeline("FnApiRunner") as root:
        assert_that(root | ReadExamples(str(output), split), equal_to(pairs))
