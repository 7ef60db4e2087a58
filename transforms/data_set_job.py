"""The part of a run's configuration that `transforms` need."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from beam_tfrec.schemas.faults import RejectBudget
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.shards import ShardNames
from beam_tfrec.transforms.earlier import NO_EARLIER_SETS, EarlierSets
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access


@dataclass(frozen=True, kw_only=True)
class DataSetJob:
    """The part of a run's configuration that `transforms` need.

    `beam_tfrec.pipelines.data_set.DataSetConfig` extends it, and travels in its place.

    Attributes:
        output: URI of the data set.
        layout: what an Example holds; one of the user's own is welcome.
        names: how shard files are called.
        budget: how many samples may be rejected.
        drop_budget: how many annotations of each split may be dropped; None for 1 %, rounded up,
            and never all.
        allow_empty: accept a split without samples.
        command: the command of the run, for messages; empty in a program.
        access: how stores are reached.
        earlier: data sets whose samples are left out; see `find_earlier_sets`.
        label_file: URI of the classes in their order; empty to number their names as they sort.
        replaces: `--overwrite` has just deleted a data set of ours in the output.
        exclude: URI of a `rejected.jsonl` whose samples are left out; empty for none.
        trust_manifest: take a complete output of the same options for up to date.
    """

    output: str
    layout: Layout
    names: ShardNames = field(default_factory=ShardNames)
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
        """URI per root name of what the sources' listings show, by which they are recognised."""
        raise NotImplementedError

    @property
    def source_files(self) -> Mapping[str, Sequence[str]]:
        """URIs of files that the sources are recognised by, per split of the data set."""
        raise NotImplementedError

    @property
    def optional_splits(self) -> Collection[str]:
        """The splits that the data set lacks where they have no samples."""
        return ()

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes or membership, for the plan."""
        raise NotImplementedError
