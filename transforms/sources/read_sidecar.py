"""Samples of images that have a JSON file of annotations each."""

from collections.abc import Iterator
from dataclasses import dataclass

from schemas.annotations.side_files import value_at
from schemas.faults import Rejected
from schemas.fields import BadAnnotation
from schemas.samples import Blob, Sample
from schemas.splits import Splitting
from transforms.blobs import MAX_IMAGE_BYTES, pin_sample
from transforms.sources.listed_files import ListedFile, why_skipped
from transforms.sources.side_contents import SideContents, SideFault, SideSample
from transforms.sources.side_files import SideText, named_image
from transforms.sources.split_sources import Item, SourceNote

STAGE = "read_sidecar"


@dataclass(frozen=True)
class SideReader:
    """Reads an image with its annotation file as a sample.

    Attributes:
        splitting: which split a sample belongs to.
        contents: makes of an annotation file what a sample carries of it.
        allow_unannotated: an image without a file is a sample without annotations.
        join_by: the field by which files name their images; empty where their own names do.
    """

    splitting: Splitting
    contents: SideContents
    allow_unannotated: bool = False
    join_by: str = ""

    def __call__(self, side: SideText) -> Iterator[Item]:
        """Yield the samples of the files of a name, and why there are none of others."""
        files = side.files
        for other in files.others:
            name = other.entry.name
            split = self.splitting.split_of_other(files.source, name)
            yield SourceNote(split, skipped=why_skipped(name))
        if len(files.first) == len(files.second) == 1:
            yield from self._annotated(files.source, files.first[0], files.second[0], side.texts[0])
            return
        twice = f"{len(files.first)} images and {len(files.second)} annotation files have its name"
        for image in files.first:
            if files.second:
                yield self._rejected(files.source, image, "E-SRC-TWICE", twice)
            else:
                yield from self._unannotated(files.source, image)
        code, detail = ("E-SRC-TWICE", twice) if files.first else ("E-IMG-MISSING", "no such image")
        for file, text in zip(files.second, side.texts, strict=True):
            yield self._imageless(files.source, file, text, code, detail)

    def _annotated(
        self, source: str, image: ListedFile, file: ListedFile, text: bytes
    ) -> Iterator[Item]:
        """Yield the sample of an image with its annotations, and those that are dropped."""
        opened = self._open(file, text)
        if isinstance(opened, SideFault):
            code, detail = opened
            yield self._rejected(source, image, code, f"{file.entry.name}: {detail}")
            return
        key = image.entry.name
        fields = {name: value_at(text, name) for name in self.splitting.fields.values()}
        split = self.splitting.split_for(source, key, fields, key)
        yield _pinned(split, image, opened)
        for bad in opened.bad:
            yield _dropped(bad, split, key)
        yield opened.note(split)

    def _unannotated(self, source: str, image: ListedFile) -> Iterator[Item]:
        if not self.allow_unannotated:
            detail = "no annotation file has its name" if not self.join_by else "no file names it"
            yield self._rejected(source, image, "E-ANN-MISSING", detail)
            return
        split = self.splitting.split_of_other(source, image.entry.name)
        nothing = self.contents.nothing()
        yield _pinned(split, image, nothing)
        yield nothing.note(split)

    def _imageless(
        self, source: str, file: ListedFile, text: bytes, code: str, detail: str
    ) -> Rejected:
        """Return the reject of an annotation file, with the annotations that are lost with it."""
        opened = self._open(file, text)
        if isinstance(opened, SideFault):
            return self._rejected(source, file, *opened)
        ids = *opened.annotation_ids, *(bad.annotation_id for bad in opened.bad)
        if self.join_by:
            named = named_image(file.entry.name, value_at(text, self.join_by))
            detail = f"{named!r}, by its {self.join_by}: {detail}"
        return self._rejected(source, file, code, detail, ids)

    def _open(self, file: ListedFile, text: bytes) -> SideSample | SideFault:
        """Return what an annotation file says, or why it says nothing."""
        if file.entry.kind != "file":
            return SideFault("E-ANN-FILE", f"a {file.entry.kind}")
        if file.entry.size_bytes > MAX_IMAGE_BYTES:
            what = f"{file.entry.size_bytes} bytes, the limit is {MAX_IMAGE_BYTES}"
            return SideFault("E-ANN-FILE", what)
        opened = self.contents.open(text)
        is_named = not self.join_by or value_at(text, self.join_by)
        if isinstance(opened, SideFault) or is_named:
            return opened
        return SideFault("E-ANN-FILE", f"no {self.join_by} that names an image")

    def _rejected(
        self,
        source: str,
        file: ListedFile,
        code: str,
        detail: str,
        annotation_ids: tuple[int | str, ...] = (),
    ) -> Rejected:
        name = file.entry.name
        return Rejected(
            code=code,
            stage=STAGE,
            split=self.splitting.split_of_other(source, name),
            key=name,
            annotation_ids=annotation_ids,
            file_name=name,
            detail=detail,
        )


def _dropped(bad: BadAnnotation, split: str, key: str) -> Rejected:
    return Rejected(
        code=bad.code,
        stage=STAGE,
        split=split,
        key=key,
        annotation_ids=(bad.annotation_id,),
        file_name=key,
        detail=bad.detail,
    )


def _pinned(split: str, image: ListedFile, opened: SideSample) -> Sample | Rejected:
    """Return the sample of an image as listed."""
    name = image.entry.name
    sample = Sample(
        split=split,
        key=name,
        position=image.position,
        blobs=(Blob(image.root, name),),
        fields=opened.fields,
        annotation_ids=opened.annotation_ids,
        payload=opened.payload,
    )
    return pin_sample(sample, image.entry)
