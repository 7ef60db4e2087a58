"""Writes docs/faults.md from the code's texts: `python -m tests.faults_doc > docs/faults.md`."""

from schemas.faults import FAULTS, FILTERS, REPAIRS, Fault, Scope
from transforms.images.findings import TRAITS

_HEAD = """\
# Codes and counts

Every code and every count of a run. The counts are in the summary and, per split, in
`manifest.json`. Each rejected sample and each dropped annotation is also a line of
`rejected.jsonl`, with its file, id and detail.

## Codes

| code | meaning | what happens |
|---|---|---|"""

_COUNTS = {
    "Mended": ("`repairs`: what was found, and what is written.", REPAIRS),
    "Unusual": ("`traits`: what images have. Their own bytes are written, unless asked.", TRAITS),
    "Skipped": ("`skipped`: why an image, an object or a file was left out.", FILTERS),
}


def as_markdown() -> str:
    """Return the document."""
    lines = [_HEAD]
    lines += [f"| `{c}` | {fault.meaning} | {_consequence(fault)} |" for c, fault in FAULTS.items()]
    for title, (text, meanings) in _COUNTS.items():
        lines += ["", f"## {title}", "", text, "", "| count | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {meaning} |" for name, meaning in meanings.items()]
    return "\n".join(lines) + "\n"


def _consequence(fault: Fault) -> str:
    if fault.scope is Scope.RUN:
        return f"exit code {fault.exit_code}"
    if fault.exit_code:
        return f"exit code {fault.exit_code}; with `--orphans drop` the annotation is dropped"
    if fault.scope is Scope.ANNOTATION:
        return "the annotation is dropped (`--max_dropped`)"
    return "the sample is rejected, with its annotations (`--max_rejected`)"


if __name__ == "__main__":
    print(as_markdown(), end="")
