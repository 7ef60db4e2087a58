"""What a run is going to do, as far as annotations and listings tell: what `--plan` prices."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reads:
    """Files that are read once each.

    Attributes:
        files: how many requests that takes.
        bytes: of them.
    """

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Workload:
    """A run's work.

    Attributes:
        samples: planned.
        listed_names: names that listings give, a thousand a request.
        reads: of source files, by root's URI and storage class of its store, such as `NEARLINE`;
            the class is empty where the store tells none.
        written_files: created in the output, side files included.
        written_bytes: of them.
        shuffled_bytes: through all group-bys.
        cpu_s: seconds of one core, all steps.
        output: URI of the data set.
        region: of the job; empty in this process.
        workers: of the job at most; 0 where the engine decides.
    """

    samples: int
    listed_names: int
    written_files: int
    written_bytes: int
    shuffled_bytes: int
    cpu_s: float
    output: str
    reads: Mapping[tuple[str, str], Reads] = field(default_factory=dict)
    region: str = ""
    workers: int = 0
