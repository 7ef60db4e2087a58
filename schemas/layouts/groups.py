"""Groups of features, as `--features` names them, and the layouts that are made of them."""

import dataclasses
import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from schemas.features import Feature, FeatureSpec
from schemas.layouts import Unfit
from schemas.layouts.pictures import Picture, PictureLayout, Values

_OBJECT_PREFIX = "image/object/"
_OWN_FILES = ("boxes", "captions", "panoptic")  # other things are found in files next to these


@dataclass(frozen=True)
class FeatureGroup:
    """Features that are written together, or not at all.

    Attributes:
        name: as `--features` has it.
        features: their declarations.
        values: gives the values of each by key, or why the picture gets no Example.
        found_as: what annotation files must hold for it, such as `boxes` for masks.
        by_default: written without being asked for, wherever the files hold it.
        sequence: see `FeatureSpec.sequences`; empty for none.
    """

    name: str
    features: tuple[Feature, ...]
    values: Callable[[Picture], Values | Unfit]
    found_as: str
    by_default: bool = True
    sequence: str = ""

    @property
    def per_object(self) -> bool:
        """Whether it adds to the objects of `boxes`."""
        keys = (feature.key for feature in self.features)
        return self.name != "boxes" and any(key.startswith(_OBJECT_PREFIX) for key in keys)


def check_asked(layout: str, groups: Sequence[FeatureGroup], asked: Sequence[str]) -> None:
    """Refuse names of features that a layout does not have, and masks and the like without boxes.

    Raises:
        ValueError: with the names that there are.
    """
    names = [group.name for group in groups]
    unknown = [name for name in asked if name not in names]
    if unknown:
        raise ValueError(
            f"features of layout {layout} must be of {', '.join(names)}, got {','.join(asked)!r}:"
            f" {instead_of(unknown, names)}"
        )
    for group in groups:
        if group.name in asked and group.per_object and "boxes" not in asked:
            raise ValueError(
                f"features {group.name} are of objects, which need boxes, got {','.join(asked)!r}:"
                " add boxes"
            )


def instead_of(unknown: Sequence[str], names: Sequence[str]) -> str:
    """Return what to do about names that are unknown.

    >>> instead_of(["box"], ["boxes", "masks"]), instead_of(["depth"], ["boxes", "masks"])
    ("did you mean 'boxes'?", "leave out 'depth'")
    """
    close = difflib.get_close_matches(unknown[0], names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"leave out {', '.join(map(repr, unknown))}"


def choose_groups(
    groups: Sequence[FeatureGroup], asked: Sequence[str] | None, found: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of the groups to write, in their order.

    Args:
        groups: that there are.
        asked: names that the user asked for; None for the default.
        found: what the annotation files hold.

    Raises:
        ValueError: when no file holds what a name asks for, or a file holds what none asks for.
    """
    if asked is None:
        chosen = [group for group in groups if group.by_default and group.found_as in found]
    else:
        chosen = [group for group in groups if group.name in asked]
    for group in chosen:
        if group.found_as not in found:
            raise ValueError(
                f"features name {group.name}, but no annotation file holds {group.found_as}, only"
                f" {', '.join(found) or 'images'}: give such a file, or leave {group.name} out"
            )
    read = {group.found_as for group in chosen}
    for content in _OWN_FILES:
        if content in found and content not in read:
            what, remedy = "the layout has no features for", "give another layout"
            if content in (group.name for group in groups):
                what, remedy = f"features {','.join(asked or ())} leave out", f"add {content}"
            raise ValueError(
                f"an annotation file holds {content}, which {what}: {remedy}, or leave it out"
            )
    return tuple(group.name for group in chosen)


@dataclass(frozen=True)
class GroupedLayout(PictureLayout):
    """The base of layouts that are made of groups; a subclass says which there are.

    Attributes:
        features: names of the groups to write; None for those that the annotation files hold, of
            which only boxes are known until the layout is resolved.
        image_group: what is written of every image.
        groups: what `features` can name.
    """

    features: tuple[str, ...] | None = None
    image_group: ClassVar[FeatureGroup]
    groups: ClassVar[tuple[FeatureGroup, ...]]

    def __post_init__(self) -> None:
        """Refuse features that the layout does not have."""
        if self.features is not None:
            check_asked(self.name, self.groups, self.features)

    @cached_property
    def spec(self) -> FeatureSpec:
        """The features of every Example."""
        features = tuple(feature for group in self.chosen for feature in group.features)
        sequences = tuple(group.sequence for group in self.chosen if group.sequence)
        return FeatureSpec(self.name, features, sequences)

    @cached_property
    def chosen(self) -> list[FeatureGroup]:
        """The groups that are written."""
        return [self.image_group, *(group for group in self.groups if group.name in self.names)]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups that are written."""
        return ("boxes",) if self.features is None else self.features

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes."""
        asked = "by default" if self.features is None else " ".join(sorted(set(self.features)))
        return {**super().options(), "features": asked}

    def resolved(self, found: Sequence[str]) -> Self:
        """Return the layout for what the annotation files hold."""
        return dataclasses.replace(self, features=choose_groups(self.groups, self.features, found))

    def values(self, picture: Picture) -> Values | Unfit:
        """Return the features of an image and its annotations."""
        values: dict[str, Sequence] = {}
        for group in self.chosen:
            found = group.values(picture)
            if isinstance(found, Unfit):
                return found
            values.update(found)
        return values
