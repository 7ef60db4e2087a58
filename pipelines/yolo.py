"""YOLO's images and label files to sharded .tfrec: `beam-tfrec yolo --help`."""

import argparse
import functools
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from beam_tfrec.pipelines.cli import config_of, main
from beam_tfrec.pipelines.flags import SourceParser, parse_splits
from beam_tfrec.pipelines.run import Command
from beam_tfrec.pipelines.sidecar import SideConfig, detection_of
from beam_tfrec.schemas.annotations.yolo_file import label_path, parse_yolo, read_data_file
from beam_tfrec.schemas.columns import matches, may_hold, root_and_pattern
from beam_tfrec.schemas.faults import Reason, run_fault
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.transforms.sources.join_files import NameList
from beam_tfrec.transforms.sources.listing import ListedFile, is_folder
from beam_tfrec.transforms.sources.read_samples import ReadSamples
from beam_tfrec.transforms.sources.read_sidecar import SideNames, SideSample, read_objects
from beam_tfrec.transforms.storage import Access, is_local, open_storage, read_uri, split_uri

_FEATURES = ("boxes", "masks", "polygons", "keypoints")


class Images(NamedTuple):
    """The images of a split.

    Attributes:
        root: URI of the folder that is listed.
        globs: globs of names below it; empty for all names.
        lists: URIs of lists of more images.
    """

    root: str
    globs: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()


def images_of(sources: Sequence[str], access: Access) -> Images:
    """Return the images that folders, globs and lists name: URIs or absolute paths."""
    lists = tuple(source for source in sources if source.endswith(".txt"))
    others = [root_and_pattern(source) for source in sources if source not in lists]
    folders = {root for root, _ in others}
    for uri in lists:
        folders.update(map(posixpath.dirname, parse_list(read_uri(uri, access), uri)))
    if lists and others:
        raise ValueError(f"a split must be lists or folders, got {', '.join(sources)}: give one")
    if not folders:
        raise ValueError(f"a list must name images, got none in {', '.join(lists)}: fill it")
    schemes, separators, paths = zip(*(uri.rpartition("://") for uri in folders), strict=True)
    shared = posixpath.commonpath(paths) if len({*schemes}) == 1 else ""
    root = f"{schemes[0]}{separators[0]}{shared}"
    if shared in ("", "/"):
        what = f"images of a split must share a folder, got {', '.join(sorted(folders)[:3])}"
        raise ValueError(f"{what}: put them below one")
    names = [(f"{folder}/{glob or '**'}").removeprefix(f"{root}/") for folder, glob in others]
    return Images(root, () if names == ["**"] else tuple(names), lists)


def parse_list(data: bytes, uri: str) -> Iterator[str]:
    """Yield the absolute paths or URIs in a list of images."""
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"a list must be UTF-8, got {uri}: save it as UTF-8") from None
    for line in lines:
        if name := line.strip():
            yield join_below(posixpath.dirname(uri), name.replace("\\", "/"))


def join_below(folder: str, name: str) -> str:
    """Return a path or URI that may be relative to a folder, without `..`.

    >>> join_below("gs://b/d/x", "../images"), join_below("/d", "/e")
    ('gs://b/d/images', '/e')
    """
    scheme, separator, path = folder.rpartition("://")
    if name.startswith("/") or "://" in name:
        return name
    return f"{scheme}{separator}{posixpath.normpath(posixpath.join(path, name))}"


def _stem(image: str, labels: str) -> str:
    """Return the name of an image's label file below the labels' folder, without extension.

    Raises:
        RuntimeError: `E-ARG` when the label file lies elsewhere.
    """
    path = label_path(image)
    if not path.startswith(f"{labels}/"):
        what = f"its labels are not below {labels}, since its path has two folders called images"
        raise run_fault("E-ARG", image, what, "name the inner one in data.yaml")
    return posixpath.splitext(path.removeprefix(f"{labels}/"))[0]


def _stems(data: bytes, uri: str, labels: str) -> Iterator[str]:
    return (_stem(path, labels) for path in parse_list(data, uri))


@dataclass(frozen=True)
class YoloNames(SideNames):
    """Computes join names: those of label files below their folder, without extensions.

    Attributes:
        roots: URI of the files by root name.
        images: the images by split.
    """

    roots: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, Images] = field(default_factory=dict)

    def stem(self, file: ListedFile) -> str:
        """Return the name of a label file, or of the label file of an image."""
        if "/" in file.root:
            return super().stem(file)
        image = f"{self.roots[file.root]}/{file.entry.name}"
        labels, images = self.roots[f"{file.root}/annotations"], self.images[file.root]
        is_read = not images.lists and self._is_of_globs(file)
        if is_read or label_path(image).startswith(f"{labels}/"):
            return _stem(image, labels)
        return image  # left out, since a whole path equals no name of a list

    def is_listed(self, file: ListedFile, stem: str) -> bool:
        """Return whether a file is an image of its split, or may be its label file."""
        if "/" in file.root:  # labelImg writes the names of classes next to the labels
            is_meant = posixpath.basename(file.entry.name) != "classes.txt"
        else:
            is_meant = self._is_of_globs(file)
        return is_meant and super().is_listed(file, stem)

    def _is_of_globs(self, image: ListedFile) -> bool:
        globs = self.images[image.root].globs
        test = may_hold if is_folder(image.entry) else matches
        return not globs or any(test(image.entry.name, glob) for glob in globs)


@dataclass(frozen=True)
class YoloConfig(SideConfig):
    """A whole conversion of a data.yaml; `read_data` returns its fields.

    Attributes:
        data: URI of the data.yaml.
        sources: the images by split.
        labels: classes, by their numbers in label files.
        point_values: number of values of a keypoint; 0 without keypoints.
    """

    data: str
    sources: Mapping[str, Images]
    labels: Sequence[Label]
    point_values: int = 0

    @property
    def shared_files(self) -> Sequence[str]:
        """URIs of files that identify the sources, of any split."""
        return [self.data, *(uri for images in self.sources.values() for uri in images.lists)]

    @property
    def skip_imageless(self) -> Mapping[str, Sequence[str]]:
        """Globs of each split's own labels; other labels in its folder may be another split's.

        A split without globs or lists is not named: each of its labels must have an image.
        """
        return {
            split: [label_path(f"/{glob}")[1:] for glob in images.globs]
            for split, images in self.sources.items()
            if images.globs
        }

    @property
    def side_names(self) -> SideNames:
        """The rule that pairs images with label files."""
        lists = {}
        for split, images in self.sources.items():
            if images.lists:
                stems = functools.partial(_stems, labels=self.annotations[split])
                lists[split] = NameList(images.lists, stems, self.access)
        roots = self.listed_roots
        return YoloNames({}, suffix=".txt", lists=lists, roots=roots, images=self.sources)

    @property
    def read(self) -> Callable[[bytes | None], SideSample | Reason]:
        """The parser of a label file; an image without one is read as with an empty one."""
        parse = functools.partial(parse_yolo, labels=self.labels, point_values=self.point_values)
        segmentations = self.layout.reads_segmentations
        return functools.partial(_read_labels, parse=parse, segmentations=segmentations)

    def completed(self) -> Self:
        """Return a copy with what the sources show.

        Raises:
            RuntimeError: `E-ARG` when a folder that the data.yaml names is missing.
        """
        for split, images in self.sources.items():
            correct = f"correct {split} or path in it, or give --folder in place of path"
            make = f"make it, or leave {split} out with --splits"
            folders = [root_and_pattern(f"{images.root}/{glob}")[0] for glob in images.globs]
            of_images = [(folder, correct) for folder in (images.root, *folders)]
            for folder, remedy in (*of_images, (self.annotations[split], make)):
                if is_local(folder) and not (self.trust_manifest or os.path.isdir(folder)):
                    what = f"{split} leads to {folder}, not a folder"
                    raise run_fault("E-ARG", self.data, what, remedy)
        return super().completed()

    def samples_step(self, reader: Callable) -> ReadSamples:
        """Return the step that reads samples, with the classes of the data.yaml."""
        return replace(super().samples_step(reader), labels=self.labels)


def _read_labels(text: bytes | None, **options: Any) -> SideSample | Reason:
    return read_objects(text or b"", **options)


def read_data(uri: str, splits: Sequence[str], folder: str, access: Access) -> dict[str, Any]:
    """Return the fields of `YoloConfig` for a data.yaml.

    Args:
        uri: path or URI of the file.
        splits: splits to read; empty for all.
        folder: folder of the data set, instead of the file's own `path`; empty for that.
        access: credentials and limits for stores.

    Raises:
        ValueError: when the file is not a data.yaml, or lacks a split.
    """
    uri, folder = (
        os.path.abspath(path.removeprefix("file://")) if path and is_local(path) else path
        for path in (uri, folder)
    )
    try:
        data = read_data_file(read_uri(uri, access))
    except ValueError as error:
        raise ValueError(f"{uri}: {error}") from None
    folder = folder or join_below(split_uri(uri)[0], data.path or ".")
    if not data.splits:
        raise ValueError(f"data must name images, got {uri} without them: add train or val to it")
    if unknown := sorted({*splits} - data.splits.keys()):
        known = ", ".join(data.splits)
        raise ValueError(f"splits must be of data.yaml, got {unknown[0]!r}: give some of {known}")
    sources = {
        split: images_of([_found(folder, text, access) for text in texts], access)
        for split, texts in data.splits.items()
        if not splits or split in splits
    }
    images = {split: source.root for split, source in sources.items()}
    return {
        "images": images,
        "annotations": {split: label_path(root) for split, root in images.items()},
        "allow_unannotated": True,
        "data": uri,
        "sources": sources,
        "labels": data.labels,
        "point_values": data.point_values,
    }


def _found(folder: str, text: str, access: Access) -> str:
    """Return a source's path. As in Ultralytics, a `../` that leads nowhere is left out."""
    path = join_below(folder, text)
    if not text.startswith("../") or text.endswith(".txt"):
        return path
    listed = open_storage(root_and_pattern(path)[0], access).list()
    return path if any(True for _ in listed) else join_below(folder, text.removeprefix("../"))


def add_flags(parser: SourceParser) -> None:
    """Add the flags of the source."""
    group = parser.add_sources(file=("--data", "data.yaml of the data set"))
    folder = "folder of the data set (default: path in data.yaml, else the folder of data.yaml)"
    group.text("--folder", folder, "DIR")
    features = f"parts of objects to write: {', '.join(_FEATURES)} (default boxes, keypoints)"
    parser.group("records (docs/layouts.md)").text("--features", features, "NAME,NAME")
    classes = parser.group("classes", rare=True)
    classes.number("--first_label", "number of the first class (default 1)")
    parser.add_drop_flag()


def fields_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the configuration that are the source's own."""
    shares, splits = parse_splits(flags.splits) if flags.splits else ({}, ())
    if not shares and flags.split_by == "given":
        flags.splits = None  # they are keys of data.yaml, not values of a field
    fields = read_data(flags.data, splits, flags.folder or "", config_of(Access, flags))
    return fields | {"layout": detection_of(flags, _FEATURES)}


run = Command("yolo", YoloConfig, add_flags, fields_of, "--data coco8/data.yaml")

if __name__ == "__main__":
    main(run.name)
