"""Show the progress of an in-process run: a bar on a terminal, a line now and then elsewhere."""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from schemas.shown_values import counted, megabytes
from transforms.progress import Progress

_LOG = logging.getLogger(__name__)
_DRAWN_EVERY_S = 0.2
_MEASURED_EVERY_S = 1.0
_TOLD_EVERY_S = 30.0


class _Seen(NamedTuple):
    """What was done at a moment."""

    at_s: float
    done: int
    bytes: int


class Speed:
    """How fast samples and bytes come, over the last seconds: what began long ago says little."""

    def __init__(self, over_s: float) -> None:
        """Look back so many seconds, or to the first measurement."""
        self._over_s = over_s
        self._seen: list[_Seen] = []

    def measure(self, progress: Progress, now_s: float) -> tuple[float, float]:
        """Return samples and bytes a second; 0 of each the first time."""
        now = _Seen(now_s, progress.done, progress.bytes)
        old = [seen for seen in self._seen if seen.at_s <= now.at_s - self._over_s]
        self._seen = [*old[-1:], *self._seen[len(old) :], now]
        first = self._seen[0]
        seconds = now.at_s - first.at_s
        if not seconds:
            return 0.0, 0.0
        return (now.done - first.done) / seconds, (now.bytes - first.bytes) / seconds


def progress_line(progress: Progress, noun: str, samples_per_s: float, bytes_per_s: float) -> str:
    """Return how far a run is, as a line of a log.

    >>> progress = Progress()
    >>> progress.plan(samples=1000, shards=16)
    >>> progress.add_samples(done=250, rejected=1, written_bytes=40_000_000)
    >>> progress_line(progress, "image", 125.0, 20e6)
    '250 of 1000 images (25 %), 0 of 16 shards, 1 rejected; 125 images/s, 20 MB/s, 00:06 left'
    """
    share = 100 * progress.done // max(progress.planned, 1)
    left = ""
    if samples_per_s:
        seconds = (progress.planned - progress.done) / samples_per_s
        left = f", {tqdm.format_interval(seconds)} left"
    return (
        f"{progress.done} of {counted(progress.planned, noun)} ({share} %),"
        f" {progress.shards_done} of {counted(progress.shards_planned, 'shard')},"
        f" {progress.rejected} rejected;"
        f" {samples_per_s:.0f} {noun}s/s, {megabytes(int(bytes_per_s))}/s{left}"
    )


class Told:
    """Logs a line every 30 s from when the plan is known; to be called every second or so."""

    def __init__(self, progress: Progress, noun: str) -> None:
        """Take the progress to show, and the noun for a sample."""
        self._progress = progress
        self._noun = noun
        self._speed = Speed(_TOLD_EVERY_S)
        self._next_s: float | None = None

    def __call__(self, now_s: float | None = None) -> None:
        """Look at the progress, and tell of it when it is time."""
        if not self._progress.planned:
            return
        now_s = time.monotonic() if now_s is None else now_s
        speed = self._speed.measure(self._progress, now_s)
        if self._next_s is None:
            self._next_s = now_s + _TOLD_EVERY_S
        if now_s >= self._next_s:
            self._next_s = now_s + _TOLD_EVERY_S
            _LOG.info("%s", progress_line(self._progress, self._noun, *speed))


@contextlib.contextmanager
def showing_progress(
    progress: Progress, loggers: Sequence[logging.Logger], noun: str, *, known: bool = True
) -> Iterator[None]:
    """Show how far a run is: a bar on a terminal, above it the loggers' lines; else every 30 s.

    Args:
        progress: of the run.
        loggers: whose lines would break a bar.
        noun: what a sample is, such as `image`.
        known: False where workers elsewhere leave progress unknown here: nothing is shown.
    """
    if not known:
        yield
        return
    if not sys.stderr.isatty():
        with _repeating(Told(progress, noun), _MEASURED_EVERY_S):
            yield
        return
    with (
        logging_redirect_tqdm(list(loggers)),
        tqdm(total=0, unit=f" {noun}s", desc="reading annotations", dynamic_ncols=True) as bar,
    ):
        draw = _drawer(bar, progress)
        try:
            with _repeating(draw, _DRAWN_EVERY_S):
                yield
        finally:
            draw()


def stop_drawing() -> None:
    """Keep the bar from being drawn again, over or below what is printed next, for good."""
    tqdm.get_lock().acquire(timeout=_DRAWN_EVERY_S)  # not longer: the terminal may be halted


@contextlib.contextmanager
def _repeating(call: Callable[[], None], every_s: float) -> Iterator[None]:
    """Have a thread call something now and then."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            call()

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _drawer(bar: tqdm, progress: Progress) -> Callable[[], None]:
    speed = Speed(over_s=5.0)

    def draw() -> None:
        if progress.planned:
            _, bytes_per_s = speed.measure(progress, time.monotonic())
            bar.total = progress.planned
            bar.set_description("converting", refresh=False)
            bar.set_postfix_str(
                f"{progress.shards_done}/{progress.shards_planned} shards,"
                f" {megabytes(int(bytes_per_s))}/s,"
                f" {progress.rejected} rejected",
                refresh=False,
            )
        bar.update(progress.done - bar.n)
        bar.refresh()

    return draw
