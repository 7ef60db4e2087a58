"""Read all samples of a data set in one process: READER FOLDER [--shuffled].

Prints the samples, the bytes of their images, and the seconds by the clock and of CPU; imports do
not count, and a first sample is read before. Images stay encoded; they are copied to `bytes`, so
that views of mapped files are read, too. Every other field is read as the reader gives it. Each
reader is used as documented, with its own shuffling: of all samples (ours, Grain, Hugging Face),
or of files and a buffer (the others).
"""

import argparse
import json
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

BUFFER = 1000
SEED = 0
BATCH = 256


def ours(folder: Path, shuffled: bool) -> Callable[[], Iterator[int]]:
    """Read with `beam_tfrec.open`, shuffled in batches of 256 as by a DataLoader."""
    import random

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import beam_tfrec

    def read() -> Iterator[int]:
        records = beam_tfrec.open(str(folder), "train")
        if not shuffled:
            yield from (len(bytes(record["image/encoded"])) for record in records)
            return
        order = random.Random(SEED).sample(range(len(records)), len(records))
        for start in range(0, len(order), BATCH):
            for record in records.__getitems__(order[start : start + BATCH]):
                yield len(bytes(record["image/encoded"]))

    return read


def ours_tf_data(folder: Path, shuffled: bool) -> Callable[[], Iterator[int]]:
    """Read with beam-tfrec's `beam_tfrec.load`, which makes a `tf.data` pipeline."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import tensorflow  # noqa: F401  (not to be timed)

    import beam_tfrec

    def read() -> Iterator[int]:
        shuffle = BUFFER if shuffled else False
        dataset = beam_tfrec.load(str(folder), "train", decode_images=False, shuffle=shuffle)
        for record in dataset:
            yield len(record["image/encoded"].numpy())

    return read


def tf_data(folder: Path, shuffled: bool) -> Callable[[], Iterator[int]]:
    """Read the same shards with `TFRecordDataset` and `parse_single_example`."""
    import tensorflow as tf

    strings = ("filename", "format", "key/sha256", "source_id", "encoded")
    edges = ("bbox/xmin", "bbox/xmax", "bbox/ymin", "bbox/ymax", "area")
    spec = {
        **{f"image/{key}": tf.io.FixedLenFeature([], tf.string) for key in strings},
        **{f"image/{key}": tf.io.FixedLenFeature([], tf.int64) for key in ("height", "width")},
        **{f"image/object/{key}": tf.io.VarLenFeature(tf.float32) for key in edges},
        **{
            f"image/object/{key}": tf.io.VarLenFeature(tf.int64)
            for key in ("class/label", "is_crowd")
        },
        "image/object/class/text": tf.io.VarLenFeature(tf.string),
    }

    def read() -> Iterator[int]:
        paths = tf.data.Dataset.from_tensor_slices(sorted(map(str, folder.glob("*.tfrec"))))
        if shuffled:
            records = paths.shuffle(1000, SEED).interleave(tf.data.TFRecordDataset, cycle_length=4)
            records = records.shuffle(BUFFER, SEED)
        else:
            records = tf.data.TFRecordDataset(paths)
        for record in records.map(lambda record: tf.io.parse_single_example(record, spec)):
            yield len(record["image/encoded"].numpy())

    return read


def litdata(folder: Path, shuffled: bool) -> Callable[[], Iterator[int]]:
    """Read with LitData's StreamingDataset."""
    from litdata import StreamingDataset

    def read() -> Iterator[int]:
        for sample in StreamingDataset(str(folder), shuffle=shuffled, seed=SEED):
            json.loads(bytes(sample["objects"]))
            yield len(bytes(sample["image"]))

    return read


def mosaicml(folder: Path, shuffled: bool) -> Callable[[], Iterator[int]]:
    """Read with MosaicML's StreamingDataset."""
    from streaming import StreamingDataset

    def read() -> Iterator[int]:
        dataset = StreamingDataset(
            local=str(folder), shuffle=shuffled, shuffle_seed=SEED, batch_size=1
        )
        for sample in dataset:
            json.loads(sample["objects"])
            yield len(bytes(sample["image"]))

    return read


def webdataset(folder: Path, shuffled: bool) -> Callable[[], Iterator[int]]:
    """Read with webdataset; the JSON is parsed, the photo is not decoded."""
    import webdataset as wds

    def read() -> Iterator[int]:
        urls = sorted(map(str, folder.glob("*.tar")))
        dataset = wds.WebDataset(urls, shardshuffle=len(urls) if shuffled else False)
        if shuffled:
            dataset = dataset.shuffle(BUFFER)
        for sample in dataset:
            json.loads(sample["json"])
            yield len(sample["jpg"])

    return read


def grain(folder: Path, shuffled: bool) -> Callable[[], Iterator[int]]:
    """Read ArrayRecord files with Grain, without its threads that read ahead."""
    from grain import MapDataset
    from grain.sources import ArrayRecordDataSource

    def read() -> Iterator[int]:
        source = ArrayRecordDataSource(sorted(map(str, folder.glob("*.array_record"))))
        dataset = MapDataset.source(source)
        if shuffled:
            dataset = dataset.shuffle(seed=SEED)
        dataset = dataset.map(pickle.loads)
        for place in range(len(dataset)):
            yield len(bytes(dataset[place]["image"]))

    return read


def grain_ahead(folder: Path, shuffled: bool) -> Callable[[], Iterator[int]]:
    """Read ArrayRecord files with Grain's defaults: sixteen threads read ahead."""
    from grain import MapDataset
    from grain.sources import ArrayRecordDataSource

    def read() -> Iterator[int]:
        source = ArrayRecordDataSource(sorted(map(str, folder.glob("*.array_record"))))
        dataset = MapDataset.source(source)
        if shuffled:
            dataset = dataset.shuffle(seed=SEED)
        for sample in dataset.map(pickle.loads).to_iter_dataset():
            yield len(bytes(sample["image"]))

    return read


def hugging_face(folder: Path, shuffled: bool) -> Callable[[], Iterator[int]]:
    """Read Arrow files with Hugging Face `datasets`."""
    from datasets import Image, load_from_disk

    def read() -> Iterator[int]:
        dataset = load_from_disk(folder).cast_column("image", Image(decode=False))
        for sample in dataset.shuffle(seed=SEED) if shuffled else dataset:
            yield len(sample["image"]["bytes"])

    return read


READERS = {
    "ours": ours,
    "ours_tf_data": ours_tf_data,
    "tf_data": tf_data,
    "litdata": litdata,
    "mosaicml": mosaicml,
    "webdataset": webdataset,
    "grain": grain,
    "grain_ahead": grain_ahead,
    "hugging_face": hugging_face,
}


def main() -> None:
    """Read once, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shuffled", action="store_true")
    args = parser.parse_args()
    read = READERS[args.reader](args.folder, args.shuffled)
    next(read())  # imports, traces and opens whatever the first sample needs
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    samples = image_bytes = 0
    for size in read():
        samples += 1
        image_bytes += size
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    print(f"\n{samples} {image_bytes} {wall_s:.6f} {cpu_s:.6f}", flush=True)


if __name__ == "__main__":
    main()
