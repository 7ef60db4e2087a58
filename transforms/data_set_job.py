"""The part of a run's configuration that `transforms` need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from beam_tfrec.schemas.faults import RejectBudget
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.shards import ShardNames
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms.earlier import NO_EARLIER_SETS, EarlierSets
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access


@dataclass(frozen=True, kw_only=True)
class DataSetJob:
    """The part of a run's configuration that `transforms` need.

    `beam_tfrec.pipelines.data_set.DataSetConfig` extends this class; steps receive that object.
    Builders receive `ShardJob`, a smaller part.

    Attributes:
        output: URI of the data set.
        layout: layout of the Examples; may be a class of the user's own.
        splitting: rule that gives each sample its split.
        names: naming scheme of shard files.
        array_record_options: options of ArrayRecord's writer; empty to write TFRecord files.
        budget: limit of rejected samples.
        drop_budget: limit of dropped annotations in each split; None for 1 %, rounded up, and
            never all of them.
        allow_empty: whether a split may have no samples.
        command: command of the run, for messages; empty in a program.
        access: credentials and limits for stores.
        earlier: data sets to add to, as found by `find_earlier_sets`; their samples are skipped.
        label_file: URI of a file with the class names in order; empty to number sorted names.
        replaces: whether `--overwrite` has just deleted a data set of ours in the output.
        exclude: URI of a `rejected.jsonl`; its samples are skipped. Empty for none.
        trust_manifest: whether to skip checking the sources if the output is complete and has
            the same options.
    """

    source_flag: ClassVar[str] = "--images"
    """Flag of the sources; without `--`, the field with their splits."""

    classes_are_folders: ClassVar[bool] = False
    """Whether each class is a folder of images."""

    output: str
    layout: Layout
    splitting: Splitting = field(default_factory=Splitting)
    names: ShardNames = field(default_factory=ShardNames)
    array_record_options: str = ""
    budget: RejectBudget = field(default_factory=RejectBudget)
    drop_budget: RejectBudget | None = None
    allow_empty: bool = False
    command: str = ""
    access: Access = DEFAULT_ACCESS
    earlier: EarlierSets = NO_EARLIER_SETS
    label_file: str = ""
    replaces: bool = False
    exclude: str = ""
    trust_manifest: bool = False

    @property
    def listed_roots(self) -> Mapping[str, str]:
        """URIs of the listed folders, by root name; a rerun compares their listings."""
        raise NotImplementedError

    @property
    def globs(self) -> dict[str, str]:
        """Globs that choose names in listed folders, by root name; a rerun compares them."""
        return {}

    @property
    def source_files(self) -> Mapping[str, Sequence[str]]:
        """URIs of source files outside listed folders, by split; a rerun compares their content."""
        raise NotImplementedError

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        raise NotImplementedError
