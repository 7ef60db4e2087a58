"""Read a data set with the loaders of PyTorch and of Grain, and print digests of the records.

Runs in its own environment (`requirements.lock`), without Beam and TensorFlow:

    python -m tests.torch_reader.read OUT SPLIT WAY...

prints a JSON object with a list for each way, a digest for each record (see
`tests.torch_reader.digests`). All ways are tried in one process, as in a notebook: what one leaves
open must not harm the workers of the next.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grain
import tfrecord
import torch
from absl import flags
from tfrecord import example_pb2
from tfrecord.reader import extract_feature_dict
from torch.utils.data import DataLoader

import beam_tfrec
from tests.torch_reader.digests import digest

Way = Callable[[str, str], Iterable[str]]
_BATCH = 4


def digests(records: Sequence[dict[str, Any]]) -> list[str]:
    """Collate a batch; a function of the module, since spawned workers import it."""
    return [digest(record) for record in records]


def data_loader(out: str, split: str, **options: Any) -> Iterator[str]:
    """An epoch of PyTorch's loader, after this process has read a record."""
    records = beam_tfrec.open(out, split)
    assert records[0]
    for batch in DataLoader(records, batch_size=_BATCH, collate_fn=digests, **options):
        yield from batch


def data_loader_shuffled(out: str, split: str) -> Iterator[str]:
    """Two epochs of a loader with persistent workers, each in its own order."""
    records = beam_tfrec.open(out, split)
    seeded = torch.Generator().manual_seed(7)
    workers = {"num_workers": 2, "persistent_workers": True}
    loader = DataLoader(
        records, batch_size=_BATCH, shuffle=True, generator=seeded, collate_fn=digests, **workers
    )
    for _ in range(2):
        for batch in loader:
            yield from batch


def grain_batches(out: str, split: str) -> grain.IterDataset[list[str]]:
    """Grain's pipeline of batches in a seeded order."""
    source = grain.MapDataset.source(beam_tfrec.open(out, split))
    return source.shuffle(seed=7).batch(_BATCH, batch_fn=digests).to_iter_dataset()


def grain_shuffled(out: str, split: str) -> Iterator[str]:
    """An epoch of Grain."""
    for batch in grain_batches(out, split):
        yield from batch


def grain_resumed(out: str, split: str) -> Iterator[str]:
    """An epoch of two workers, continued after two batches by new ones from a saved state."""
    two_workers = grain.MultiprocessingOptions(num_workers=2)
    dataset = grain_batches(out, split).mp_prefetch(two_workers)
    first = iter(dataset)
    for _ in range(2):
        yield from next(first)
    state = first.get_state()
    next(first)  # read before the crash, but after the checkpoint
    again = iter(dataset)
    again.set_state(state)
    for batch in again:
        yield from batch


def tfrecord_package(out: str, split: str) -> Iterator[str]:
    """The `tfrecord` package, with our index files: two shares of each shard."""
    for shard in _shards(out, split):
        for share in ((0, 2), (1, 2)):
            loader = tfrecord.tfrecord_loader(str(shard), str(_index(shard)), None, share)
            yield from map(digest, loader)


def tfrecord_package_multi(out: str, split: str) -> Iterator[str]:
    """The `tfrecord` package, with all shards of a split; it draws their order."""
    manifest = json.loads((Path(out) / "manifest.json").read_bytes())
    shards = [shard for shard in manifest["shards"] if shard["split"] == split]
    stems = dict.fromkeys((shard["index_stem"] for shard in shards), 1.0)
    ending = shards[0]["file"].removeprefix(shards[0]["index_stem"])
    patterns = f"{out}/{{}}{ending}", f"{out}/index/{{}}.idx"
    yield from map(digest, tfrecord.torch.MultiTFRecordDataset(*patterns, stems, infinite=False))


def array_record(out: str, split: str) -> Iterator[str]:
    """Grain's source of ArrayRecord files; the `tfrecord` package parses their records."""
    manifest = json.loads(Path(out, "manifest.json").read_text())
    files = [f"{out}/{s['file']}" for s in manifest["shards"] if s["split"] == split]
    types = {"byte": "bytes_list", "float": "float_list", "int": "int64_list"}
    for data in grain.sources.ArrayRecordDataSource(files):
        example = example_pb2.Example.FromString(data)
        yield digest(extract_feature_dict(example.features, None, types))


def tfrecord2idx(out: str, split: str) -> Iterator[str]:
    """Names of the shards with an index file that equals that of the package's own tool."""
    tool = [sys.executable, "-m", "tfrecord.tools.tfrecord2idx"]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.idx"
        for shard in _shards(out, split):
            subprocess.run([*tool, str(shard), str(made)], check=True)
            if made.read_bytes() == _index(shard).read_bytes():
                yield shard.name


WAYS: dict[str, Way] = {
    "DataLoader, 2 forked workers": partial(
        data_loader, num_workers=2, multiprocessing_context="fork"
    ),
    "DataLoader, 2 spawned workers": partial(
        data_loader, num_workers=2, multiprocessing_context="spawn"
    ),
    "DataLoader, shuffled": data_loader_shuffled,
    "Grain, shuffled": grain_shuffled,
    "Grain, 2 workers, resumed": grain_resumed,
    "tfrecord, by index": tfrecord_package,
    "tfrecord, all shards": tfrecord_package_multi,
    "tfrecord2idx": tfrecord2idx,
    "ArrayRecordDataSource": array_record,
}


def _shards(out: str, split: str) -> list[Path]:
    shards = sorted(Path(out).glob(f"{split}-*.tfrec"))
    assert shards, f"no shards of {split} in {out}"
    return shards


def _index(shard: Path) -> Path:
    """Return the shard's index file, which is named like the shard."""
    return shard.parent / "index" / f"{shard.stem}.idx"


if __name__ == "__main__":
    flags.FLAGS(sys.argv[:1])  # Grain asks a flag before it starts workers, where JAX is
    out, split, *ways = sys.argv[1:]
    print(json.dumps({way: list(WAYS[way](out, split)) for way in ways}))
