"""Write reports of data sets and of any TFRecord files: `beam-tfrec report --help`.

This module imports neither Beam nor TensorFlow.
"""

from collections.abc import Sequence

from beam_tfrec.pipelines import cli
from beam_tfrec.schemas.faults import counted, run_fault
from beam_tfrec.schemas.manifest import REPORT_NAME
from beam_tfrec.transforms import verify
from beam_tfrec.transforms.output_files import is_own_document
from beam_tfrec.transforms.report import Report
from beam_tfrec.transforms.report.gather import make_report
from beam_tfrec.transforms.report.gather_files import report_of_files
from beam_tfrec.transforms.report.page import render_page
from beam_tfrec.transforms.storage import Access, Storage, join_uri, open_storage, split_uri


def parser() -> cli.FlagParser:
    """Return the parser of the command line."""
    found = cli.FlagParser("report", "It is one file without external assets.")
    found.path("paths", f"{cli.SETS_OR_FILES}; files are read as a whole", nargs="+")
    output = "file to write, or report to replace; needed for TFRecord and ArrayRecord files"
    unset = f"default: {REPORT_NAME} in each data set"
    found.group("output").text("--output", f"{output} ({unset})", "FILE")
    cli.add_reading_flags(found)
    return found


def run(argv: Sequence[str]) -> None:
    """Write the reports, and print where they are.

    Raises:
        ValueError: when `--output` is missing, or given for several pages.
        RuntimeError: `E-ARG` when a path does not exist, `E-VER-MISSING` when no data set is
            complete, `E-OUT-CONFLICT` when a page would replace another file, `E-IO-…` when a
            store fails.
    """
    flags = parser().parse_args(argv)
    output, found = flags.output, verify.Findings()
    uris = [*flags.paths, *filter(None, [output])]
    access = cli.reading_access(flags, uris)
    data_sets, files = verify.find_paths(flags.paths, access, found)
    pages = len(data_sets) + bool(files)
    if not pages:  # only data sets that are not complete
        raise RuntimeError(found.lines()[0])
    if files and not output:
        raise ValueError(f"output must be given for {files[0]}: add --output {REPORT_NAME}")
    if output and pages > 1:
        raise ValueError(f"output must be of one data set or of files, got {pages}: give one")
    places = [output or join_uri(root, REPORT_NAME) for root in data_sets]
    for place in places or [output]:
        _make_room(place, access)
    for root, place in zip(data_sets, places, strict=True):
        _put(place, make_report(root, access), access)
    if files:
        _put(output, report_of_files(files, access, found.lines()), access)


def _make_room(uri: str, access: Access, *, delete: bool = False) -> tuple[Storage, str]:
    """Refuse to replace a file that is not a report of ours; delete a report if asked.

    Raises:
        RuntimeError: `E-OUT-CONFLICT`.
    """
    root, name = split_uri(uri)
    storage = open_storage(root, access)
    if storage.stat(name) is not None:
        if not is_own_document(storage, name):
            what = "exists, and is not a report as this program wrote it"
            raise run_fault("E-OUT-CONFLICT", uri, what, "give another --output, or move it away")
        if delete:
            storage.delete(name)
    return storage, name


def _put(uri: str, report: Report, access: Access) -> None:
    """Write a page, instead of an earlier report, and print where it is."""
    page = render_page(report)
    storage, name = _make_room(uri, access, delete=True)
    if storage.stat("") is None:
        storage.probe()
    if not storage.create(name, page):  # another process was faster
        raise run_fault("E-OUT-CONFLICT", uri, "was made meanwhile", "run again")
    records = sum(split.summary.records for split in report.splits)
    notes = f", {counted(len(report.notes), 'note')}" if report.notes else ""
    pictures = counted(len(report.pictures), "picture")
    cli.say(f"report: {uri} ({counted(records, 'record')}, {pictures}{notes})")


if __name__ == "__main__":
    cli.main("report")
