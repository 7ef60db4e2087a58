"""The job on an engine elsewhere that this process waits for."""

from dataclasses import dataclass


@dataclass
class JobElsewhere:
    """The job that this process waits for, or none; an interruption does not end it.

    Attributes:
        page: where it is seen.
        cancel: the command that ends it.
    """

    page: str = ""
    cancel: str = ""


JOB_ELSEWHERE = JobElsewhere()
