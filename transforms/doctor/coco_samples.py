"""COCO's annotation files as the run would take them: read whole, some samples kept."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from schemas.faults import Rejected
from schemas.layouts import Layout, labels_by_category
from schemas.samples import Sample
from transforms.coco_samples import CocoRules, CocoSource, read_coco
from transforms.doctor.choose_samples import Chosen
from transforms.doctor.diagnosis import Diagnosis, fine
from transforms.doctor.sampled_images import Sampled
from transforms.quantities import counted, megabytes
from transforms.sources import SplitSource, excluded_keys, merge_labels, read_identified
from transforms.splits import Splitting
from transforms.storage import Access, find_uri, read_uri

MAX_PARSED_BYTES = 600_000_000
"""Of a split's files; larger ones are looked at where they begin."""


@dataclass(frozen=True)
class CocoRun:
    """What a run reads of annotation files.

    Attributes:
        annotations: URIs per split.
        rules: how strictly they are taken.
        exclude: URI of rejects that are left out; empty for none.
        panoptic_splits: those with a root of panoptic PNGs.
        splitting: which split an image belongs to.
        access: how stores are reached.
    """

    annotations: Mapping[str, Sequence[str]]
    rules: CocoRules
    exclude: str
    panoptic_splits: frozenset[str]
    splitting: Splitting
    access: Access


class ReadAnnotations:
    """The samples of a run that are kept, and what its files tell of all.

    Attributes:
        chosen: samples, by digest.
        sources: what each split holds.
    """

    def __init__(self) -> None:
        """Start with none."""
        self.chosen: Chosen[Sample] = Chosen()
        self.sources: list[SplitSource] = []

    @property
    def sampled(self) -> Sampled:
        """The samples, of how many."""
        return Sampled(self.chosen.items, self.chosen.seen)

    def resolved(self, layout: Layout) -> Layout:
        """Return the layout for what the files hold."""
        return layout.resolved(sorted({name for source in self.sources for name in source.found}))

    @property
    def labels(self) -> Mapping:
        """The labels by category, with the numbers that the files give them."""
        return labels_by_category(merge_labels(self.sources))


def too_large(run: CocoRun) -> bool:
    """Return whether the files of a split are too large to be read for a look."""
    sizes = [
        sum(find_uri(uri, run.access)[1].size_bytes for uri in uris)
        for uris in run.annotations.values()
    ]
    return max(sizes, default=0) > MAX_PARSED_BYTES


def read_annotations(run: CocoRun, into: ReadAnnotations) -> Iterator[Diagnosis]:
    """Yield what each split's files hold.

    Raises:
        RuntimeError: the fault with which the run would end.
    """
    keys = excluded_keys(read_uri(run.exclude, run.access), run.exclude) if run.exclude else {}
    for split, uris in sorted(run.annotations.items()):
        read = [read_identified(uri, run.access) for uri in uris]
        files = [CocoSource(data, uri, of) for (data, of), uri in zip(read, uris, strict=True)]
        dropped = 0
        items = read_coco(
            files,
            split,
            run.rules,
            keys,
            panoptic=split in run.panoptic_splits,
            splitting=run.splitting,
        )
        for item in items:
            if isinstance(item, Sample):
                into.chosen.add(f"{item.split}/{item.key}", item)
            elif isinstance(item, Rejected):
                dropped += 1
            else:
                into.sources.append(item)
        size = megabytes(sum(len(data) for data, _ in read))
        told = f"{counted(len(files), 'annotation file')} of {size} can be read whole"
        told += f", {counted(dropped, 'annotation')} dropped" if dropped else ""
        yield fine(f"split {split}", told)
