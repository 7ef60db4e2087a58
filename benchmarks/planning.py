"""The section on planning: `samples.py` plans one, two, five and ten million generated samples."""

import json
import subprocess

from contenders import HERE, OUR_PYTHON, PROJECT
from figures import Section, Target
from rounds import say
from writing import Options

COLUMNS = ["", "us of CPU a sample", "bytes a sample", "s of CPU", "peak MB"]
LIMIT_S = 3600
MOST_US, MOST_BYTES = 8, 1300
LINEAR = 1.1
"""How much more time a sample may take if there are ten times as many."""


def run_planning(options: Options) -> Section:
    """Plan samples of known files, then some that must be joined with a listing."""
    unit = 20_000 if options.quick else 1_000_000
    section = Section("Generated samples of 200 B of fields, planned in process.", COLUMNS)
    costs_us = [_plan(section, number * unit, pinned=True) for number in (1, 2, 5, 10)]
    _plan(section, unit, pinned=False)
    what = "time a sample, of the most samples / of the fewest"
    section.targets.append(Target(what, costs_us[-1] / costs_us[0], LINEAR))
    return section


def _plan(section: Section, samples: int, *, pinned: bool) -> float:
    """Plan samples, add their row and targets, and return the microseconds of a sample."""
    say(f"planning {samples:,} samples")
    command = [str(OUR_PYTHON), str(HERE / "samples.py"), str(samples)]
    command += ["--pinned"] if pinned else []
    run = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
    cpu_s, size_bytes, peak_mb = json.loads(run.stdout.splitlines()[-1])
    us, each_bytes = cpu_s / samples * 1e6, size_bytes / samples
    name = f"{samples:,}"
    if pinned:
        section.targets.append(Target(f"{name}: us of CPU a sample", us, MOST_US))
        section.targets.append(Target(f"{name}: bytes a sample", each_bytes, MOST_BYTES))
    else:
        name += ", joined with a listing first"
    section.rows.append([name, f"{us:.1f}", f"{each_bytes:.0f}", f"{cpu_s:.1f}", f"{peak_mb:.0f}"])
    return us
