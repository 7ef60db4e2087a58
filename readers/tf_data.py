"""Read data sets by `tf.data`: parsed features, a known number of them, shared by hosts.

The graph is of TensorFlow's own operations alone, and the files are read by TensorFlow itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from readers.data_sets import DataSets, Root, find_data_sets
from readers.hosts import Part, deal
from readers.parsed_features import TensorForm, batch_parser, image_keys, parser
from readers.shard_files import list_shards
from transforms.storage import Access, is_local

SHUFFLED_RECORDS = 1024
"""Of the buffer where no size is given: the order was shuffled as a whole when it was written."""

_FILES_AT_ONCE = 16  # and not as many as there are cores: the order is the same on any machine
_REMOTE_BUFFER_BYTES = 8 << 20  # a request for each: TensorFlow's 256 kB are for disks


@dataclass(frozen=True)
class Reading:
    """Which records are read, in which order and portions.

    Attributes:
        batch_size: records of a batch; None for single records.
        shuffle: whether they come in another order each time; a number is the buffer's.
        seed: of these orders.
        host: of those that share a split, from 0.
        hosts: their number.
        drop_remainder: whether hosts get equally many records, and batches are whole.
        known_cardinality: whether the number of records is told, and checked.
    """

    batch_size: int | None = None
    shuffle: bool | int = False
    seed: int | None = None
    host: int = 0
    hosts: int = 1
    drop_remainder: bool = False
    known_cardinality: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be done, or would do nothing."""
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(
                f"batch_size must be at least 1, got {self.batch_size}: give such as 64"
            )
        if self.shuffle < 0:
            raise ValueError(
                f"shuffle must be True, False or a number of records, got {self.shuffle}: give such"
                f" as {SHUFFLED_RECORDS}"
            )
        if self.seed is not None and not self.shuffle:
            raise ValueError(f"seed must come with shuffle, got {self.seed} without: leave it out")

    @property
    def buffer_records(self) -> int:
        """Records that are shuffled at a time; 0 where they are not."""
        return SHUFFLED_RECORDS if self.shuffle is True else int(self.shuffle)


def load_data_sets(
    roots: Root | Sequence[Root], split: str, reading: Reading, form: TensorForm, access: Access
) -> tf.data.Dataset:
    """Return what `readers.load` does."""
    data_sets = find_data_sets(roots, access)
    shards = list_shards(data_sets, split)
    counts = [shard.file.entry.records for shard in shards]
    dropping = reading.drop_remainder
    parts = deal(counts, reading.host, reading.hosts, drop_remainder=dropping)
    records = sum(part.records for part in parts)
    if dropping:
        _refuse_nothing(records, sum(counts), reading)
    in_order = not reading.shuffle and data_sets.is_in_input_order(split)
    dataset = _read([(shards[part.shard].uri, part) for part in parts], reading, in_order)
    if reading.known_cardinality:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(records))
    if reading.buffer_records:
        # TensorFlow allocates the buffer's slots at once, 24 bytes each, before any record comes.
        buffered = max(1, min(reading.buffer_records, records))
        dataset = dataset.shuffle(buffered, reading.seed)
    dataset = _parse(dataset, data_sets, reading, form)
    return dataset.with_options(_options(reading)).prefetch(tf.data.AUTOTUNE)


def share_of(
    host: int, hosts: int, input_context: tf.distribute.InputContext | None
) -> tuple[int, int]:
    """Return (host, hosts), which a strategy's context may tell.

    Raises:
        ValueError: when both do.
    """
    if input_context is None:
        return host, hosts
    if (host, hosts) != (0, 1):
        raise ValueError(
            f"input_context must come without host and hosts, got {host} and {hosts}: leave them"
            " out, it tells them"
        )
    return input_context.input_pipeline_id, input_context.num_input_pipelines


def _refuse_nothing(records: int, total: int, reading: Reading) -> None:
    """Refuse a share without a batch: to repeat it would never end."""
    wanted = reading.batch_size or 1
    if records < wanted:
        raise ValueError(
            f"drop_remainder must leave a batch, got {total} records for {reading.hosts} hosts and"
            f" batches of {wanted}: give fewer hosts or a smaller batch_size, or set it False"
        )


def _read(parts: Sequence[tuple[str, Part]], reading: Reading, in_order: bool) -> tf.data.Dataset:
    """Return the serialized records of parts of files, of several files at a time."""
    uris = [uri for uri, _ in parts]
    buffer_bytes = None if all(map(is_local, uris)) else _REMOTE_BUFFER_BYTES

    def read_part(uri: tf.Tensor, first: tf.Tensor, records: tf.Tensor) -> tf.data.Dataset:
        file = tf.data.TFRecordDataset(uri, buffer_size=buffer_bytes)
        return file.skip(first).take(records)

    columns = (
        tf.constant(uris, tf.string, [len(uris)]),
        tf.constant([part.first for _, part in parts], tf.int64, [len(uris)]),
        tf.constant([part.records for _, part in parts], tf.int64, [len(uris)]),
    )
    pieces = tf.data.Dataset.from_tensor_slices(columns)
    if reading.shuffle:
        pieces = pieces.shuffle(max(1, len(parts)), reading.seed)
    files_at_once = 1 if in_order else _FILES_AT_ONCE
    return pieces.interleave(read_part, files_at_once, num_parallel_calls=tf.data.AUTOTUNE)


def _parse(
    dataset: tf.data.Dataset, data_sets: DataSets, reading: Reading, form: TensorForm
) -> tf.data.Dataset:
    """Return the tensors of records, or of batches of them."""
    spec, batch_size = data_sets.spec, reading.batch_size
    decodes = form.image_size is not None or (form.decode_images and image_keys(spec))
    if batch_size is not None and not (spec.is_sequence or decodes):
        batches = dataset.batch(batch_size, reading.drop_remainder)
        return batches.map(batch_parser(data_sets, form), tf.data.AUTOTUNE)
    dataset = dataset.map(parser(data_sets, form), tf.data.AUTOTUNE)
    return (
        dataset if batch_size is None else dataset.ragged_batch(batch_size, reading.drop_remainder)
    )


def _options(reading: Reading) -> tf.data.Options:
    options = tf.data.Options()
    if reading.shuffle and reading.seed is None:
        options.deterministic = False
    # Where a strategy gives a worker some of the files, they hold fewer records than are told.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options
