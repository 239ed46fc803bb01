#!/usr/bin/env python3
"""Writes 5x5 nonograms with exactly one solution each, as JSON lines for `hrm_train data grid`.

    examples/nonograms.py --count 64000 --seed 0 > nonograms.jsonl

A puzzle is a grid of 6x6 cells. Its first row and first column hold the clues, one cell for each line: "1-2" means one
filled cell, a gap, and two filled cells. The other 25 cells are "?" in the question, and "#" or "." in the answer.
"""
import argparse
import itertools
import json
import random

SIZE = 5


def clue(line):
    runs = [len(list(cells)) for filled, cells in itertools.groupby(line) if filled]
    return "-".join(map(str, runs)) or "0"


LINES = list(itertools.product((0, 1), repeat=SIZE))
LINES_OF = {text: [line for line in LINES if clue(line) == text] for text in map(clue, LINES)}
# The clues that a line with these first cells can still get.
STARTS = {text: {line[:n] for line in LINES_OF[text] for n in range(SIZE + 1)} for text in LINES_OF}


def solutions(rows, columns, above=()):
    """The number of pictures with these clues, or 2 if there are more."""
    if len(above) == SIZE:
        return 1
    count = 0
    for line in LINES_OF[rows[len(above)]]:
        picture = above + (line,)
        if all(start in STARTS[text] for start, text in zip(zip(*picture), columns)):
            count += solutions(rows, columns, picture)
        if count > 1:
            break
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=64000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, seen = random.Random(args.seed), set()
    while len(seen) < args.count:
        picture = tuple(tuple(rng.randrange(2) for _ in range(SIZE)) for _ in range(SIZE))
        rows, columns = list(map(clue, picture)), list(map(clue, zip(*picture)))
        if picture in seen or solutions(rows, columns) != 1:
            continue
        seen.add(picture)
        question = [["/", *columns]] + [[text] + ["?"] * SIZE for text in rows]
        answer = [["/", *columns]] + [[text, *(".#"[cell] for cell in line)] for text, line in zip(rows, picture)]
        print(json.dumps({"question": question, "answer": answer}))


if __name__ == "__main__":
    main()
