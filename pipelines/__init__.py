"""Commands, their options and their graphs; no per-element logic.

Importing this package prepares the process: threads, log lines of Beam, closed streams.
"""

import logging
import os

_BEAM_NOISE = ("apitools not found", "This output type hint will be ignored")

# NumPy's linear algebra, which we do not use, would start threads that spin at full speed.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Beam logs on the root logger, at every start, that an optional package of Google's is absent and
# that it cannot check a NamedTuple of PCollections.
logging.getLogger().addFilter(lambda record: not str(record.msg).startswith(_BEAM_NOISE))
for _descriptor in range(3):  # else a shard's file may get the number of a closed stream
    try:
        os.fstat(_descriptor)
    except OSError:
        os.open(os.devnull, os.O_RDWR)
