"""Watch one libFuzzer process: what it reached, since when nothing new, and when to stop it."""

import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_STATUS = re.compile(r"#(\d+)\t\w+\s+cov: (\d+) ft: (\d+) .*rss: (\d+)Mb")
_EXECUTIONS = re.compile(r"stat::number_of_executed_units: (\d+)")
_ARTIFACT = re.compile(r"Test unit written to (\S+)")


@dataclass
class Progress:
    """What a process has told so far.

    Attributes:
        executions: inputs that were run.
        edges: of instrumented code.
        features: edges with how often they were taken.
        peak_mib: resident set of the process.
        seconds: it has run.
        last_edge: seconds at which the last new edge was taken.
        last_feature: seconds at which the last new feature was seen.
        artifact: the input that broke the property, None without one.
    """

    executions: int = 0
    edges: int = 0
    features: int = 0
    peak_mib: int = 0
    seconds: float = 0.0
    last_edge: float = 0.0
    last_feature: float = 0.0
    artifact: Path | None = None

    def read(self, line: str, seconds: float) -> None:
        """Take in a line of libFuzzer's log.

        >>> progress = Progress()
        >>> progress.read("#75\\tNEW    cov: 8 ft: 16 corp: 3/9b lim: 4 exec/s: 0 rss: 45Mb", 1.5)
        >>> progress.edges, progress.features, progress.last_edge
        (8, 16, 1.5)
        """
        self.seconds = seconds
        if status := _STATUS.match(line):
            executions, edges, features, mib = map(int, status.groups())
            self.last_edge = seconds if edges > self.edges else self.last_edge
            self.last_feature = seconds if features > self.features else self.last_feature
            self.executions, self.edges = executions, max(edges, self.edges)
            self.features, self.peak_mib = max(features, self.features), max(mib, self.peak_mib)
        elif final := _EXECUTIONS.match(line):
            self.executions = int(final[1])
        elif artifact := _ARTIFACT.search(line):
            self.artifact = Path(artifact[1])

    def last_new(self) -> tuple[float, float]:
        """Return the seconds at which the last new edge and the last new feature were seen."""
        return self.last_edge, self.last_feature


def watch(command: Sequence[str], log: Path, seconds: float, quiet: float) -> Progress:
    """Run a fuzzer for so long, or until it has found no new edge for `quiet` seconds.

    Both count from the fuzzer's first line of figures: imports and seeds take seconds.

    Raises:
        RuntimeError: when it cannot run.
    """
    progress, started = Progress(), time.monotonic()
    with (
        log.open("w") as out,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process,
    ):
        stopped = False
        for line in _lines(process):
            if not progress.executions:
                started = time.monotonic()
            now = time.monotonic() - started
            progress.read(line, now)
            out.write(line)
            is_due = now > seconds or now - progress.last_edge > quiet
            if is_due and progress.executions and not stopped:
                stopped = True
                process.send_signal(signal.SIGUSR1)  # libFuzzer prints its figures and ends
    if not stopped and progress.artifact is None:
        raise RuntimeError(f"the fuzzer ended with {process.returncode}: see {log}")
    return progress


def _lines(process: subprocess.Popen) -> Iterator[str]:
    """Yield what a process prints, and an empty line each second in which it prints nothing."""
    assert process.stdout is not None
    pending = b""
    while True:
        if not select.select([process.stdout], [], [], 1.0)[0]:
            yield ""
            continue
        read = process.stdout.read1()  # type: ignore[attr-defined]
        if not read:
            break
        *lines, pending = (pending + read).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace") + "\n"
    yield pending.decode("utf-8", "replace")
