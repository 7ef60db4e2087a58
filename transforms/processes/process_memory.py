"""What a process is told once of its memory: which garbage to look for, which blocks to keep."""

import ctypes
import gc

_COLLECT_AFTER_OBJECTS = 500_000
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BLOCK_BYTES = 128 * 2**20
_KEPT_BYTES = 2**30


def spare_the_collector() -> None:
    """Keep Python's cycle collector from walking through Beam again and again.

    Samples make no cycles, but their number triggers collections of everything that was imported.
    """
    if not gc.get_freeze_count():  # a second time would keep an earlier run for good
        gc.freeze()
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, 20, 20)


def keep_freed_memory() -> None:
    """Have the C library keep large freed blocks for the next ones, where it is glibc.

    Beam copies samples some fifteen times, in buffers of megabytes; returning each to the kernel,
    which clears it for the next one, took a tenth of the time of planning.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
