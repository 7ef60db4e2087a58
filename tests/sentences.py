"""Print the median sentence length, in words, of README, ARCHITECTURE and the pages in docs/.

`python tests/sentences.py` fails if the median of a file is above the limit. Code, tables and
headings are left out; a list item ends a sentence, and so does a blank line.
"""

import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_WORDS = 16
FILES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def sentences(text: str) -> list[str]:
    """Return the sentences of a Markdown text.

    >>> sentences("# A title\\n\\nOne `a.b`. Two words:\\nmore\\n- an item\\n\\n    code\\n")
    ['One `a.b`.', 'Two words: more', 'an item']
    """
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    kept = []
    for line in text.splitlines():
        is_prose = line.strip() and not line.startswith(("#", "|", "<", "    ", "!["))
        kept.append(line if is_prose else "")
    items = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", "\n" + "\n".join(kept))
    items = [re.sub(r"^(?:[-*]|\d+\.) ", "", item.strip()) for item in items]
    items = [re.sub(r"\]\([^)]*\)", "]", " ".join(item.split())) for item in items]
    parts = [part for item in items for part in re.split(r"(?<=[.!?])[*)]*\s+(?=\S)", item)]
    return [part for part in parts if part]


def main() -> int:
    """Print a line for each file; return 1 if one is above the limit."""
    too_long = False
    for path in FILES:
        found = sentences(path.read_text())
        median = statistics.median(len(text.split()) for text in found)
        too_long |= median > LIMIT_WORDS
        print(f"{median:5.1f} words, {len(found):4} sentences  {path.relative_to(ROOT)}")
    return int(too_long)


if __name__ == "__main__":
    sys.exit(main())
