"""COCO's annotation files as the run would take them: read whole, some samples kept."""

from collections.abc import Iterator, Mapping, Sequence

from schemas.faults import Rejected
from schemas.layouts import Layout, labels_by_category
from schemas.samples import Sample
from transforms.doctor.choose_samples import Chosen
from transforms.doctor.diagnosis import Diagnosis, fine
from transforms.doctor.sampled_images import Sampled
from transforms.quantities import counted, megabytes
from transforms.sources.coco_reading import CocoReading
from transforms.sources.split_sources import SplitSource, merge_labels
from transforms.storage import Access, find_uri

MAX_PARSED_BYTES = 600_000_000
"""Of a split's files; larger ones are looked at where they begin."""


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


def too_large(annotations: Mapping[str, Sequence[str]], access: Access) -> bool:
    """Return whether the files of a split are too large to be read for a look."""
    sizes = [_size_bytes(uris, access) for uris in annotations.values()]
    return max(sizes, default=0) > MAX_PARSED_BYTES


def read_annotations(
    annotations: Mapping[str, Sequence[str]], reading: CocoReading, into: ReadAnnotations
) -> Iterator[Diagnosis]:
    """Yield what each split's files hold.

    Args:
        annotations: URIs of the files per split.
        reading: how a run reads them.
        into: takes what is found.

    Raises:
        RuntimeError: the fault with which the run would end.
    """
    for split, uris in sorted(annotations.items()):
        dropped = 0
        for item in reading.read(split, uris, {}):
            if isinstance(item, Sample):
                into.chosen.add(f"{item.split}/{item.key}", item)
            elif isinstance(item, Rejected):
                dropped += 1
            else:
                into.sources.append(item)
        size = megabytes(_size_bytes(uris, reading.access))
        told = f"{counted(len(uris), 'annotation file')} of {size} can be read whole"
        told += f", {counted(dropped, 'annotation')} dropped" if dropped else ""
        yield fine(f"split {split}", told)


def _size_bytes(uris: Sequence[str], access: Access) -> int:
    return sum(find_uri(uri, access)[1].size_bytes for uri in uris)
