"""The job on an engine elsewhere that this process waits for."""

from dataclasses import dataclass


@dataclass
class JobElsewhere:
    """The job that this process waits for, or none; an interruption does not end it.

    Attributes:
        page: where it is seen.
        cancel: the command that ends it.
        temporary: folder of the runner's temporary files, deleted when this process ends.
    """

    page: str = ""
    cancel: str = ""
    temporary: str = ""


JOB_ELSEWHERE = JobElsewhere()
