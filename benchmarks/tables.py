"""Write a JSON Lines table for measurements: `python -m benchmarks.tables --help`."""

import argparse
import json
import random


def main() -> None:
    """Write rows of a number, a float, a short text and a long one until the size is reached."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("path")
    parser.add_argument("--bytes", type=int, default=1_000_000_000, help="size of the table")
    parser.add_argument("--row_bytes", type=int, default=10_000, help="size of a row")
    flags = parser.parse_args()
    draw = random.Random(0)
    words = [draw.randbytes(4).hex() for _ in range(5000)]
    written = 0
    with open(flags.path, "w") as table:
        while written < flags.bytes:
            text = " ".join(draw.choices(words, k=max(flags.row_bytes // 9 - 10, 1)))
            row = {"id": written, "score": draw.random(), "name": draw.choice(words), "text": text}
            written += table.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
