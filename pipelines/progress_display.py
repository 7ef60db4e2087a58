"""Draw the progress of an in-process run on a terminal."""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, Sequence

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from transforms.progress import Progress
from transforms.quantities import megabytes

_EVERY_S = 0.2


@contextlib.contextmanager
def showing_progress(
    progress: Progress, loggers: Sequence[logging.Logger], *, known: bool = True
) -> Iterator[None]:
    """Draw a bar from when the plan is known, above it the loggers' lines.

    None off a terminal, nor where workers elsewhere leave progress unknown here.
    """
    if not known or not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    with (
        logging_redirect_tqdm(list(loggers)),
        tqdm(total=0, unit=" images", desc="reading annotations", dynamic_ncols=True) as bar,
    ):
        drawing = threading.Thread(target=_draw, args=(bar, progress, ended), daemon=True)
        drawing.start()
        try:
            yield
        finally:
            ended.set()
            drawing.join()


def stop_drawing() -> None:
    """Keep the bar from being drawn again, over or below what is printed next, for good."""
    tqdm.get_lock().acquire(timeout=_EVERY_S)  # not longer: the terminal may be halted


def _draw(bar: tqdm, progress: Progress, ended: threading.Event) -> None:
    while not ended.wait(_EVERY_S):
        _refresh(bar, progress)
    _refresh(bar, progress)


def _refresh(bar: tqdm, progress: Progress) -> None:
    if progress.planned:
        bar.total = progress.planned
        bar.set_description("converting", refresh=False)
        written = f"{progress.shards_done}/{progress.shards_planned} shards"
        bar.set_postfix_str(
            f"{written}, {megabytes(progress.bytes)}, {progress.rejected} rejected", refresh=False
        )
    bar.update(progress.done - bar.n)
    bar.refresh()
