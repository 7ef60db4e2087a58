"""Make the kernel refuse system calls of this process and its children, with seccomp.

This simulates filesystems that not every machine can mount. FAT and SMB have no hard links. FUSE
often has neither links nor exclusive renames. None of them has anonymous files. The command gets
the same error numbers as on those filesystems, whichever library makes the call.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence

from tests import children

_OPENAT, _LINKAT, _RENAMEAT2 = {
    "x86_64": (257, 265, 316),
    "aarch64": (56, 37, 276),
}.get(platform.machine(), (-1, -1, -1))
_ANONYMOUS = os.O_TMPFILE & ~os.O_DIRECTORY
# From linux/filter.h and linux/seccomp.h.
_LOAD, _SKIP_UNLESS, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_CALL_AT, _THIRD_ARGUMENT_AT = 0, 32
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2

_Instruction = tuple[int, int, int]
"""Code, number of instructions to skip if a comparison fails, and its constant."""

NO_ANONYMOUS_FILES: list[_Instruction] = [
    (_LOAD, 0, _CALL_AT),
    (_SKIP_UNLESS, 4, _OPENAT),
    (_LOAD, 0, _THIRD_ARGUMENT_AT),
    (_AND, 0, _ANONYMOUS),
    (_SKIP_UNLESS, 1, _ANONYMOUS),
    (_RETURN, 0, _ERRNO | errno.EOPNOTSUPP),
]


def _refusing(call: int, error: int) -> list[_Instruction]:
    return [(_LOAD, 0, _CALL_AT), (_SKIP_UNLESS, 1, call), (_RETURN, 0, _ERRNO | error)]


NO_LINKS = _refusing(_LINKAT, errno.EPERM)
NO_EXCLUSIVE_RENAMES = _refusing(_RENAMEAT2, errno.EINVAL)


def refuse(*filters: Sequence[_Instruction]) -> None:
    """Refuse these calls until the process ends; call it in a child process.

    Raises:
        OSError: the machine does not allow it.
    """
    if _OPENAT < 0:
        raise OSError(errno.ENOSYS, f"no numbers of system calls for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    for instructions in filters:
        program = [*instructions, (_RETURN, 0, _ALLOW)]
        code = b"".join(struct.pack("=HBBI", op, 0, skip, k) for op, skip, k in program)
        buffer = ctypes.create_string_buffer(code)
        header = struct.pack("@HP", len(program), ctypes.addressof(buffer))
        if libc.prctl(_SET_SECCOMP, _FILTER, header, 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp")


def can_refuse() -> bool:
    """Return whether this machine lets a process refuse system calls to itself."""
    return children.outcome_of(refuse, NO_LINKS) is None
