"""Find near copies among a source's images: `beam-tfrec similar --help`."""

import functools
import importlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import apache_beam as beam
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from apache_beam.pvalue import AsList

from beam_tfrec.pipelines import cli, engines
from beam_tfrec.pipelines.data_set import DataSetConfig, read_pinned_samples
from beam_tfrec.pipelines.run import (
    beam_options,
    refuse_bad_sources,
    showing_progress,
    warn_of_pillow,
)
from beam_tfrec.pipelines.staging import StagingConfig
from beam_tfrec.schemas.faults import Rejected, Scope, counted, reject_order, run_fault
from beam_tfrec.schemas.samples import Blob
from beam_tfrec.transforms import report, similar
from beam_tfrec.transforms.images.check_images import check_image
from beam_tfrec.transforms.images.convert_images import transposed
from beam_tfrec.transforms.images.findings import BadImage
from beam_tfrec.transforms.output_files import create_or_compare
from beam_tfrec.transforms.publish_plan import show_rejects
from beam_tfrec.transforms.report.page import TILE_PX, page_environment
from beam_tfrec.transforms.report.small_pictures import encode_jpeg, small_picture
from beam_tfrec.transforms.sources.read_blobs import read_blob
from beam_tfrec.transforms.storage import Storage, open_storage, read_uri, split_uri

MOST_CLUSTERS = 24
"""Largest number of clusters that the page shows."""

MOST_IMAGES = 8
"""Largest number of images that it shows of each."""

_MOST_BYTES = 20_000  # of a picture
_END = ".parquet"
_SHOWN = 5  # clusters in the summary, and images of each
_REFUSED = re.compile(
    "--(shard_size|num_shards|records_per_shard|hosts|shard_names|order|seed|max_rejected"
    "|max_dropped|allow_empty|resize|resize_mode|quality|color|orientation|plan|overwrite"
    "|buckets|min_bucket|record_format|array_record_options"
    "|trust_manifest|no_wait|report|no_report|since|date)(=.*)?"
)
"""Flags of sources that change no image to compare."""


@dataclass(frozen=True)
class SimilarConfig:
    """A search for near copies.

    Attributes:
        source: configuration of the source; its output is the Parquet file.
        distance: largest number of bits in which each hash of two near copies differs.
        max_cluster: largest number of different hashes in a cluster.
    """

    source: DataSetConfig
    distance: int = 6
    max_cluster: int = 1000

    def __post_init__(self) -> None:
        """Refuse options that do not fit together."""
        output, layout = self.source.output, self.source.layout
        if not 0 <= self.distance <= similar.MAX_DISTANCE:
            what = f"0 to {similar.MAX_DISTANCE}, got {self.distance}"
            raise ValueError(f"distance must be {what}: correct it")
        if self.max_cluster < 2:
            raise ValueError(f"max_cluster must be 2 or more, got {self.max_cluster}: correct it")
        if not output.endswith(_END):
            raise ValueError(f"output must end in {_END}, got {output!r}: give such as a{_END}")
        if layout.per_annotation:
            raise ValueError(f"similar compares whole images, got layout {layout.name}: omit it")


def parser() -> cli.FlagParser:
    """Return the parser of this command's own flags."""
    what = "Images may differ in size, or be mirrored. A table lists all with their clusters."
    more = "Flags of a source: beam-tfrec SOURCE --help. Those of shards are refused."
    found = cli.FlagParser("similar", f"{what} Exit code 0, with or without copies.", epilog=more)
    images = [name for name in cli.PIPELINES if name not in ("arrays", "records")]
    found.path("source", f"one of {', '.join(images)}, with its flags", "SOURCE", choices=images)
    group = found.group("near copies (docs/similar.md)")
    group.text("--output", "file to write; it must not exist", "FILE.parquet", required=True)
    distance = f"bits in which each of both hashes may differ, 0 to {similar.MAX_DISTANCE}"
    group.number("--distance", distance, SimilarConfig.distance)
    most = "different hashes in a cluster; a larger one is divided where images differ most"
    group.number("--max_cluster", most, SimilarConfig.max_cluster)
    return found


def configure(argv: Sequence[str]) -> tuple[SimilarConfig, list[str]]:
    """Return the configuration of a search, and the arguments for Beam.

    Raises:
        ValueError: with the value and the remedy.
    """
    flags, others = parser().parse_known_args(list(argv))
    if refused := [*filter(_REFUSED.fullmatch, others)]:
        raise ValueError(f"similar must come without {refused[0]}, which changes no image: omit it")
    command = importlib.import_module(f"beam_tfrec.pipelines.{flags.source}").run
    source, beam_args = command.configure([*others, "--output", flags.output])
    if isinstance(source, StagingConfig):  # which stages below its output otherwise
        source = replace(source, temp_location=split_uri(flags.output)[0])
    return SimilarConfig(source, flags.distance, flags.max_cluster), beam_args


def build(root: beam.Pipeline, config: SimilarConfig) -> beam.PCollection:
    """Build the graph: samples from the source, hashes from their photos, one table."""
    source = config.source
    read, _ = read_pinned_samples(root, source)
    hashed = read.samples | "HashImages" >> similar.HashImages(source.shard_job(), source.limits)
    configs = root | "Config" >> beam.Create([config], reshuffle=False)
    write = beam.Map(write_similar, AsList(hashed), AsList(read.rejected)).with_output_types(Any)
    written: beam.PCollection[Any] = configs | "WriteSimilar" >> write
    return source.after_commit(written)


def write_similar(
    config: SimilarConfig, hashed: Sequence[similar.HashedBatch], rejected: Sequence[Rejected]
) -> None:
    """Write the table of images.

    Raises:
        RuntimeError: `E-SET-EMPTY` when there are no images, `E-OUT-CONFLICT` when another file is
            there, or a storage fault.
    """
    output, access = config.source.output, config.source.access
    rejects = [reject for reject in rejected if reject.scope is Scope.SAMPLE]
    rejects += [reject for batch in hashed for reject in batch.rejected]
    show_rejects(sorted(rejects, key=reject_order), "it is not compared")
    images = [image for batch in hashed for image in batch.images]
    if not images:
        what = f"no images to compare, and {len(rejects)} rejects"
        raise run_fault("E-SET-EMPTY", output, what, "correct the sources")
    codes = sorted(Counter(reject.code for reject in rejects).items())
    table = similar.make_table(images, config.distance, config.max_cluster)
    notes = {"distance": f"{config.distance} bits", "max_cluster": f"{config.max_cluster} hashes"}
    notes["not compared"] = ", ".join(f"{count} {code}" for code, count in codes)
    table, data = table.replace_schema_metadata(notes), io.BytesIO()
    pq.write_table(table, data, compression="zstd")
    sources = {name: open_storage(uri, access) for name, uri in config.source.roots.items()}
    folder, name = split_uri(output)
    clusters = draw_clusters(table, images, sources)
    page = render_similar(name, summarize(table, name), clusters)
    create_or_compare(open_storage(folder, access), _page_name(name), page)
    create_or_compare(open_storage(folder, access), name, data.getvalue())


def _page_name(name: str) -> str:
    return f"{name.removesuffix(_END)}.html"


def execute(config: SimilarConfig, beam_args: Sequence[str]) -> None:
    """Find near copies, write the file and print the summary.

    Args:
        config: configuration of the search.
        beam_args: Beam's part of the command line.

    Raises:
        RuntimeError: the fault that ended the run, with its `E-…` line in the text.
    """
    options = beam_options(config.source, beam_args)
    if engines.is_dry_run(options) or engines.makes_template(options):
        raise ValueError("similar must come without dry_run and template_location: omit them")
    source = config.source.completed()
    if not (source.roots and source.layout.reads_images):
        raise ValueError("similar needs images, got a source without: name their column or folder")
    root, name = split_uri(source.output)
    output = open_storage(root, source.access)
    output.probe()
    if output.stat(name) is not None:
        remedy = "give another --output, or delete it"
        raise run_fault("E-OUT-CONFLICT", source.output, "is there", remedy)
    refuse_bad_sources(source)
    warn_of_pillow()
    graph = functools.partial(build, config=replace(config, source=source))
    with showing_progress(source, options):
        engines.run_graph(graph, options)
    data = read_uri(source.output, source.access)
    for line in summarize(pq.read_table(pa.BufferReader(data)), source.output):
        cli.say(line)
    cli.say(f"  pictures: {_page_name(source.output)}")


def summarize(table: pa.Table, output: str) -> Iterator[str]:
    """Yield the summary of a table of images.

    Args:
        table: content of the Parquet file.
        output: URI of the file.
    """
    copies = table.filter(pc.greater(table["size"], 1))
    clusters = copies.group_by("cluster").aggregate([("split", "count_distinct")])
    crossing = clusters.filter(pc.greater(clusters["split_count_distinct"], 1))["cluster"]
    found = f"{counted(clusters.num_rows, 'cluster')} of near copies"
    found += f" with {counted(copies.num_rows, 'image')}, {len(crossing)} across splits"
    yield f"{output}: {counted(table.num_rows, 'image')}, {found}"
    for cluster in crossing[:_SHOWN].to_pylist():
        members = copies.filter(pc.equal(copies["cluster"], cluster)).slice(0, _SHOWN)
        names = zip(members["split"].to_pylist(), members["key"].to_pylist(), strict=True)
        yield f"  across splits: {', '.join(map('/'.join, names))}"
    yield f"  mirrored: {counted(copies['mirrored'].to_numpy().sum(), 'image')}"
    for name, text in table.schema.metadata.items():
        yield f"  {name.decode()}: {text.decode() or 'none'}"


def draw_clusters(
    table: pa.Table, images: Iterable[similar.HashedImage], roots: Mapping[str, Storage]
) -> list[dict[str, Any]]:
    """Return the clusters to show, each with its size, splits and first images; the kept one first.

    Args:
        table: table of near copies.
        images: the same images with the places of their files, which are read again.
        roots: roots of these files, by name.
    """
    copies = table.filter(pc.greater(table["size"], 1))
    sums = [("split", "distinct"), ("split", "count_distinct"), ("size", "max")]
    clusters = copies.group_by("cluster").aggregate(sums)
    order = [("split_count_distinct", "descending"), ("size_max", "descending")]
    shown = clusters.sort_by([*order, ("cluster", "ascending")])[:MOST_CLUSTERS].to_pylist()
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for cluster in shown:
        members = copies.filter(pc.equal(copies["cluster"], cluster["cluster"]))
        cluster["images"] = members.sort_by([("keep", "descending")])[:MOST_IMAGES].to_pylist()
        rows |= {(row["split"], row["key"]): row for row in cluster["images"]}
    for image in images:
        if row := rows.get((image.split, image.key)):
            blob = msgspec.msgpack.decode(image.blob, type=Blob)
            row["jpeg"] = draw_photo(read_blob(roots[blob.root], blob), blob.orientation)
    return shown


def draw_photo(data: bytes, orientation: int) -> bytes:
    """Return a small JPEG of a photo, upright; empty if it is too large or damaged.

    Args:
        data: the whole file.
        orientation: its EXIF orientation; 0 if its file says it.
    """
    try:
        turn = orientation or check_image(data, takes_foreign=True).orientation
        picture = transposed(small_picture(data).image, turn)
    except BadImage:
        return b""
    picture.thumbnail(TILE_PX)
    return encode_jpeg(picture, _MOST_BYTES)[0]


def render_similar(title: str, lines: Iterator[str], clusters: list[dict[str, Any]]) -> bytes:
    """Return the page.

    Args:
        title: name of the table.
        lines: the summary.
        clusters: as `draw_clusters` returns them.
    """
    style = resources.files(report).joinpath("assets/page.css").read_text("utf-8")
    template = page_environment().get_template("similar.html.j2")
    return template.render(title=title, lines=lines, clusters=clusters, style=style).encode()


def run(argv: Sequence[str]) -> None:
    """Run the command; return once the file is written."""
    execute(*configure(argv))


if __name__ == "__main__":
    cli.main("similar")
