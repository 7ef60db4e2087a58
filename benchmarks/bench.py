"""Measure beam-tfrec and its peers on the same photos: whole processes, in interleaved rounds.

    python3.11 benchmarks/bench.py                     every section: an hour or two
    python3.11 benchmarks/bench.py --quick             300 photos, 2 rounds
    python3.11 benchmarks/bench.py --section main      one section, or several
    python3.11 benchmarks/bench.py --render            the README's tables, unmeasured

Prints Markdown; progress goes to standard error. Figures are kept in results.json (--results);
sections that are not measured keep their old figures there. On first use it sets up the peers'
environments (from their lock files, some GB) and draws the photos. Standard library only, Linux
only.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from contenders import CONTENDERS, HERE, set_up
from figures import Section, fill_in, load, machine, save
from planning import run_planning
from reading import run_reading
from rounds import say
from writing import Options, run_double, run_few, run_main, run_marginal, run_trial

RESULTS = HERE / "results.json"
README = HERE / "README.md"

SECTIONS: dict[str, Callable[[Options], Section]] = {
    "main": run_main,
    "few": run_few,
    "double": run_double,
    "marginal": run_marginal,
    "planning": run_planning,
    "reading": run_reading,
}


def measure(sections: list[str], options: Options, results: Path) -> None:
    """Measure sections one after the other; each is printed and kept as soon as it is done."""
    contended = [section for section in sections if section != "planning"]
    set_up(options.names if contended else [])
    options.data_dir.mkdir(parents=True, exist_ok=True)
    if contended:
        say("a trial of each, unmeasured")
        run_trial(options)
    for name in sections:
        described = machine()
        try:
            section = SECTIONS[name](options)
        except Exception as error:
            section = Section(f"Could not be measured: {error!r}.")
        section = replace(section, conditions=f"{section.conditions} {described}.")
        save(results, {name: section})
        print(f"## {name}\n\n{section.markdown()}", flush=True)


def render(results: Path) -> None:
    """Write the README's tables from a results file."""
    README.write_text(fill_in(README.read_text("utf-8"), load(results)), "utf-8")


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in CONTENDERS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(CONTENDERS)}")
    return names


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line; `options` are those of the sections."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--section", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="300 photos, 2 rounds, small sizes")
    parser.add_argument("--images", type=int, help="photos (default 5000)")
    parser.add_argument("--rounds", type=int, help="rounds (default 5, 3 or 1, by section)")
    parser.add_argument("--only", type=_names, help=f"contenders, of {','.join(CONTENDERS)}")
    parser.add_argument("--skip", type=_names, default=[], help="contenders to leave out")
    parser.add_argument("--limit", type=float, default=900, help="seconds a run (default 900)")
    parser.add_argument("--data-dir", type=Path, default=HERE / "data", help="for photos")
    parser.add_argument("--out-dir", type=Path, help="for outputs (default: next to the photos)")
    parser.add_argument("--results", type=Path, help="a JSON file (default: results.json)")
    parser.add_argument("--render", action="store_true", help="tables of the README")
    args = parser.parse_args(argv)
    args.results = args.results or (HERE / "data/quick.json" if args.quick else RESULTS)
    args.options = Options(
        data_dir=args.data_dir.resolve(),
        images=args.images or (300 if args.quick else 5000),
        names=[name for name in args.only or CONTENDERS if name not in args.skip],
        rounds=args.rounds or (2 if args.quick else None),
        limit_s=args.limit,
        outputs=args.out_dir and args.out_dir.resolve(),
        quick=args.quick,
    )
    if not args.options.names or args.options.images < 1:
        parser.error("nothing to measure: no contender or image is left")
    return args


def main(argv: list[str] | None = None) -> int:
    """Measure, print and keep; a missed target or a failed contender is not an error."""
    args = parse(argv)
    if args.render:
        render(args.results)
    else:
        measure(args.section, args.options, args.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
