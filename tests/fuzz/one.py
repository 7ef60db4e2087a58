"""Fuzz one target with atheris: `python -m tests.fuzz.one TARGET [libFuzzer's arguments]`.

Only our own packages are instrumented: new edges in Beam or Pillow are not progress.
"""

import resource
import sys

INPUT_MIB = 256
"""Memory that an input may take above that of the process; libFuzzer checks once a second."""
INPUT_SECONDS = 5


def main(name: str, arguments: list[str]) -> None:
    """Run libFuzzer on a target until its arguments or a finding stop it."""
    import atheris

    with atheris.instrument_imports(include=["beam_tfrec"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    for seed in target.inputs():  # does all late imports before memory is measured
        target.run(seed)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    limits = [f"-rss_limit_mb={peak_mib + INPUT_MIB}", f"-timeout={INPUT_SECONDS}"]
    program = f"{sys.executable} -m {__spec__.name} {name}"  # a merge starts it again from a shell
    flags = [program, *limits, f"-max_len={target.max_bytes}", *arguments]
    atheris.Setup(flags, target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
