"""How it is wired: options, graphs and commands; no per-element logic."""

import gc
import logging
import signal
import sys

if sys.argv[:1] == ["-m"]:  # `python -m pipelines.…`
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while Beam is imported just ends it
    gc.disable()  # which imports no garbage, but makes the collector look; `launch` goes on

_BEAM_NOISE = ("apitools not found", "This output type hint will be ignored")


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_BEAM_NOISE)


# Beam says on the root logger, at every start, that an optional package of Google's is absent and
# that it cannot check a NamedTuple of PCollections: neither is of use to anybody.
logging.getLogger().addFilter(_is_news)
