"""Fuzz one target with atheris: `python -m tests.fuzz.one TARGET [libFuzzer's arguments]`.

Only our own packages are instrumented: an edge of Beam or Pillow is nobody's progress here.
"""

import resource
import sys
from collections.abc import Callable
from pathlib import Path

INSTRUMENTED = ["schemas", "transforms", "pipelines"]
INPUT_MIB = 256
"""What no input may take above the memory that the process holds anyway."""

INPUT_SECONDS = 5


def main(name: str, arguments: list[str]) -> None:
    """Run libFuzzer on a target until its arguments or a finding stop it."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    for seed in target.inputs():  # loads what is loaded late, before memory is measured
        target.run(seed)
    limit_mib = peak_mib() + INPUT_MIB
    flags = [
        f"-rss_limit_mb={limit_mib}",
        f"-timeout={INPUT_SECONDS}",
        f"-max_len={target.max_bytes}",
    ]
    program = f"{sys.executable} -m {__spec__.name} {name}"  # a merge starts it again, by a shell
    atheris.Setup([program, *flags, *arguments], bounded(target.run, limit_mib))
    atheris.Fuzz()


def bounded(run: Callable[[bytes], None], limit_mib: int) -> Callable[[bytes], None]:
    """Return a run that fails when the process's peak has gone over a limit.

    libFuzzer looks at the memory once a second, and an input takes a millisecond.
    """

    def run_bounded(data: bytes) -> None:
        run(data)
        # The quick figure may be inherited from a larger parent, but is never too low.
        quick_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if quick_kib > limit_mib * 1024 and peak_mib() > limit_mib:
            raise MemoryError(f"peak of {peak_mib()} MiB, the limit is {limit_mib}")

    return run_bounded


def peak_mib() -> int:
    """Return the largest resident set that this process has had."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
