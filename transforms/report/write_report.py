"""Write `report.html` after the manifest.

The manifest is the commit point. A report that cannot be made is a warning with the command that
makes it later; it never fails a run. An existing file of this name is left as it is.
"""

import logging
from dataclasses import dataclass, replace
from importlib.metadata import version

import apache_beam as beam

from schemas.faults import find_fault, printable
from schemas.manifest import REPORT_NAME, Manifest
from transforms.images.check_images import SAFE_PILLOW_MAJOR
from transforms.report.contents import MAX_PICTURES
from transforms.report.page import is_own_report, report_file
from transforms.storage import Access, join_uri, open_storage

_LOG = logging.getLogger(__name__)


def write_report(root: str, access: Access) -> bool:
    """Make the report of a complete data set, where there is no file of that name.

    Returns whether there is a report now: a file of the user's is none.

    Args:
        root: path or URI of the data set.
        access: how its store is reached.
    """
    where = printable(join_uri(root, REPORT_NAME))
    try:
        output = open_storage(root, access)
        if output.stat(REPORT_NAME) is not None:
            _LOG.info("%s is there already, and is left as it is", where)
            return is_own_report(output, REPORT_NAME)
        most, notes = pictures_of_a_run(version("pillow"))
        from transforms.report.gather import make_report  # pyarrow takes 0.2 s

        report = make_report(root, access, most=most)
        page = report_file(replace(report, notes=[*report.notes, *notes]))
        output.create(REPORT_NAME, page)  # else a twin has made it meanwhile
        return True
    except Exception as error:  # of memory too: the data set is complete, and is not to fail by it
        _LOG.warning(
            "no report: %s; the data set is complete; to make it: beam-tfrec report %s",
            _told(error),
            printable(root),
        )
        _LOG.debug("no report", exc_info=True)
    return False


def pictures_of_a_run(pillow: str) -> tuple[int, tuple[str, ...]]:
    """Return how many records the report of a run shows, and notes for it.

    A run does not hand photos to a decoder with a known hole unless the user asks for it.

    >>> pictures_of_a_run("13.0.0")
    (72, ())
    >>> pictures_of_a_run("12.1.0")[0]
    0
    """
    if int(pillow.partition(".")[0]) >= SAFE_PILLOW_MAJOR:
        return MAX_PICTURES, ()
    what = f"no pictures: Pillow {pillow} has a critical JPEG overflow (CVE-2026-112403)"
    remedy = f"install pillow>={SAFE_PILLOW_MAJOR}, then make it anew"
    return 0, (f"{what}; {remedy} with beam-tfrec report",)


def has_report(root: str, access: Access) -> bool:
    """Return whether a data set has a report of ours; a file of the user's in its place is none."""
    return is_own_report(open_storage(root, access), REPORT_NAME)


def _told(error: Exception) -> str:
    """Return what went wrong, on a line; of a fault its line without the code: it ends no run."""
    fault = find_fault(str(error))
    text = str(error) if fault is None else fault[1].partition(" ")[2]
    named = text if fault is not None else f"{type(error).__name__}: {text}".removesuffix(": ")
    return printable(" ".join(named.split()))


@dataclass(eq=False)
class WriteReport(beam.PTransform):
    """The manifest, once it is written -> the same, once there is a report or a warning.

    One element in, one out. Executed twice it finds what it made. It rejects nothing, has no
    counters, and never fails.

    Attributes:
        output: URI of the data set.
        access: how its store is reached.
    """

    output: str
    access: Access

    def expand(self, manifests: beam.PCollection[Manifest]) -> beam.PCollection[Manifest]:
        """Write the report."""
        return manifests | "MakeReport" >> beam.Map(_reported, self.output, self.access)


def _reported(manifest: Manifest, output: str, access: Access) -> Manifest:
    write_report(output, access)
    return manifest
