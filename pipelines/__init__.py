"""How it is wired: options, graphs and commands; no per-element logic."""

import logging
import signal
import sys

if sys.argv[:1] == ["-m"]:  # `python -m pipelines.…`: Ctrl-C while Beam is imported just ends it
    signal.signal(signal.SIGINT, signal.SIG_DFL)

_BEAM_NOISE = ("apitools not found", "This output type hint will be ignored")


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_BEAM_NOISE)


# Beam says on the root logger, at every start, that an optional package of Google's is absent and
# that it cannot check a NamedTuple of PCollections: neither is of use to anybody.
logging.getLogger().addFilter(_is_news)
