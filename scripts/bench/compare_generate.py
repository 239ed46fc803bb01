#!/usr/bin/env python3
"""Times text generation of hrm_train beside the same decoder in PyTorch with a compiled step, taking turns.

    scripts/bench/compare_generate.py [--rounds 3] [--rows 1,8,64] [--out results.json]

A decoder of 12 layers, width 768, 12 heads, vocabulary 32,000, random weights, bf16; greedy decoding of 256 tokens
behind prompts of 128. The PyTorch side (generate_reference.py) takes the best of --modes for each number of rows. Needs
a GPU, and a python3 with torch for the other side.
"""
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
MODEL = dict(layers=12, width=768, heads=12, vocabulary=32000)


def run(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()[-1]
        raise command.Failure(command.MACHINE, f"{words[0]} ended with {done.returncode}: {last}")
    return done.stdout


def peer(args):
    words = [args.python, HERE / "generate_reference.py", "--rows", args.rows, "--modes", args.modes, "--prompt",
             args.prompt, "--new", args.new]
    for name, value in MODEL.items():
        words += [f"--{name}", value]
    records = [json.loads(line) for line in run(words).splitlines() if line.startswith("{")]
    if not records:
        raise command.Failure(command.MACHINE, "the PyTorch side has measured nothing; run generate_reference.py alone")
    return [dict(record, side=record["mode"]) for record in records]


def ours(args):
    file = pathlib.Path(args.out or "generate.json").with_suffix(".turn.json")
    run([args.binary, "bench", "generate", "--rows", args.rows, "--prompt", args.prompt, "--new", args.new, "--vocab-size",
         MODEL["vocabulary"], "--json", file, "lm.arch=decoder", f"lm.layers={MODEL['layers']}",
         f"lm.hidden_size={MODEL['width']}", f"lm.num_heads={MODEL['heads']}", "task=language"])
    result = json.loads(file.read_text())
    file.unlink()
    return [dict(record, side="ours") for record in result["runs"]]


def table(turns, new):
    lines = ["| rows | PyTorch, tokens/s | its mode | ours, tokens/s | ratio | first token, ms: PyTorch, ours |",
             "|---:|---:|---|---:|---:|---:|"]
    for rows in sorted({turn["rows"] for turn in turns}):
        def median(side, key):
            return statistics.median(v for t in turns if t["rows"] == rows and t["side"] == side for v in t[key])

        sides = {t["side"] for t in turns if t["rows"] == rows}
        if "ours" not in sides or len(sides) == 1:
            continue
        best = min(sides - {"ours"}, key=lambda side: median(side, "seconds"))
        theirs, mine = median(best, "seconds"), median("ours", "seconds")
        lines.append(f"| {rows} | {rows * new / theirs:,.0f} | {best} | {rows * new / mine:,.0f} | "
                     f"**{theirs / mine:.2f}** | {median(best, 'first_token_s') * 1e3:.2f}, "
                     f"{median('ours', 'first_token_s') * 1e3:.2f} |")
    return "\n".join(lines)


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--rounds", type=command.count(), default=3, help="turns of each side (default: %(default)s)")
    parser.add_argument("--rows", default="1,8,64", help="rows of a batch, several with commas (default: %(default)s)")
    parser.add_argument("--modes", default="default,graph,reduce-overhead", help="of PyTorch, see generate_reference.py (default: %(default)s)")
    parser.add_argument("--prompt", type=command.count(), default=128)
    parser.add_argument("--new", type=command.count(), default=256)
    parser.add_argument("--python", default=sys.executable, help="with torch (default: this one)")
    parser.add_argument("--binary", default=str(HERE.parents[1] / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all turns")
    args = parser.parse_args()
    args.binary = command.program(args.binary)
    command.writable(args.out)
    turns = []
    for number in range(args.rounds):
        for side in (peer, ours):
            for record in side(args):
                turns.append(dict(record, round=number + 1))
                print(f"round {number + 1}: {record['side']}, {record['rows']} rows: "
                      f"{statistics.median(record['seconds']) * 1e3:.1f} ms", file=sys.stderr, flush=True)
    if args.out:
        args.out.write_text(json.dumps(turns, indent=1) + "\n")
    print(table(turns, args.new))
    return 0


if __name__ == "__main__":
    command.run(main)
