"""How it is wired: options, graphs and commands; no per-element logic."""

import logging

from pipelines.start import begin_module

_BEAM_NOISE = ("apitools not found", "This output type hint will be ignored")


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_BEAM_NOISE)


# Beam says on the root logger, at every start, that an optional package of Google's is absent and
# that it cannot check a NamedTuple of PCollections: neither is of use to anybody.
logging.getLogger().addFilter(_is_news)

begin_module()
