"""Make the report of data sets and of any TFRecord files: `python -m pipelines.report --help`.

Neither Beam nor TensorFlow is imported.
"""

from collections.abc import Iterator, Sequence

from pipelines.cli import FlagParser, add_reading_flags, main, not_empty, reading_access, say
from schemas.faults import counted, fault_line
from schemas.manifest import REPORT_NAME
from transforms import verify
from transforms.report import Report
from transforms.report.gather import make_report
from transforms.report.gather_files import report_of_files
from transforms.report.page import is_own_report, render_page
from transforms.storage import Access, check_uri, join_uri, open_storage, split_uri


def parser() -> FlagParser:
    """Return the parser of the command line."""
    found = FlagParser(
        "report",
        "Make a page that shows what data sets or any TFRecord files hold: counts, rejects,"
        " histograms, and pictures with boxes, masks and keypoints. One file, without outside"
        " assets.",
    )
    found.add_argument(
        "paths",
        nargs="+",
        type=not_empty,
        metavar="PATH",
        help="a data set (a folder or URI with a manifest.json), a TFRecord file of any origin, or"
        " a folder of such files, which are read whole",
    )
    found.group("output").text(
        "--output",
        "file that becomes the page; a report of ours that is there is made anew, any other"
        f" file stays (default: {REPORT_NAME} in each data set; needed for other files)",
        "FILE",
    )
    add_reading_flags(found)
    return found


def run(argv: Sequence[str]) -> None:
    """Make the reports that are asked for, and say where they are."""
    flags = parser().parse_args(argv)
    for uri in (*flags.paths, *filter(None, [flags.output])):
        check_uri(uri)
    for uri, report in make_reports(flags.paths, flags.output or "", reading_access(flags)):
        records = sum(split.summary.records for split in report.splits)
        notes = f", {counted(len(report.notes), 'note')}" if report.notes else ""
        pictures = counted(len(report.pictures), "picture")
        say(f"report: {uri} ({counted(records, 'record')}, {pictures}{notes})")


def make_reports(paths: Sequence[str], output: str, access: Access) -> Iterator[tuple[str, Report]]:
    """Make the reports and yield each with its place.

    Args:
        paths: data sets, folders of TFRecord files, and such files.
        output: of the page; empty for `report.html` in each data set.
        access: how stores are reached.

    Raises:
        ValueError: where it is not said where a page is to go.
        RuntimeError: `E-ARG` where a path is nothing, `E-OUT-CONFLICT` where a page would take the
            place of another file, `E-IO-…` where a store fails.
    """
    found = verify.Report()
    data_sets, files = verify.find_paths(paths, access, found)
    _check_output(output, data_sets, files)
    places = [output or join_uri(root, REPORT_NAME) for root in data_sets]
    for place in places or [output]:
        refuse_taken(place, access)
    for root, place in zip(data_sets, places, strict=True):
        report = make_report(root, access)
        put_page(place, render_page(report), access)
        yield place, report
    if files:
        report = report_of_files(files, access, found.lines())
        put_page(output, render_page(report), access)
        yield output, report


def refuse_taken(uri: str, access: Access) -> bool:
    """Refuse a place where a file is that is no report as we wrote it; return whether one is there.

    Raises:
        RuntimeError: `E-OUT-CONFLICT`.
    """
    root, name = split_uri(uri)
    storage = open_storage(root, access)
    if storage.stat(name) is None:
        return False
    if not is_own_report(storage, name):
        what = "is there, and is no report as this program wrote it"
        remedy = "give another --output, or move it away"
        raise RuntimeError(fault_line("E-OUT-CONFLICT", uri, what, remedy))
    return True


def put_page(uri: str, page: bytes, access: Access) -> None:
    """Create a page, in the place of an earlier one of ours.

    Raises:
        RuntimeError: `E-OUT-CONFLICT` where there is another file.
    """
    root, name = split_uri(uri)
    storage = open_storage(root, access)
    if storage.stat("") is None:
        storage.probe()
    if refuse_taken(uri, access):
        storage.delete(name)
    if not storage.create(name, page):  # somebody has put one there meanwhile
        raise RuntimeError(
            fault_line("E-OUT-CONFLICT", uri, "was made meanwhile", "look at it, or run again")
        )


def _check_output(output: str, data_sets: Sequence[str], files: Sequence[str]) -> None:
    """Refuse to guess a place, and to put several pages into one."""
    if files and data_sets:
        raise ValueError(
            f"paths must be data sets or files, got {data_sets[0]} and {files[0]}: give them apart"
        )
    if files and not output:
        raise ValueError(
            f"output must be given for {files[0]}, no data set: add --output {REPORT_NAME}"
        )
    if output and len(data_sets) > 1:
        raise ValueError(f"output must be of one data set, got {len(data_sets)}: give one")


if __name__ == "__main__":
    main("report")
