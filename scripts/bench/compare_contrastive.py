#!/usr/bin/env python3
"""Times a step of the contrastive trainer, the same equations in PyTorch, and backprop, in turns.

    scripts/bench/compare_contrastive.py --out results.json

Each shape is rows x slots, with 16 coordinates, width 64 and 259 classes: configs/contrastive/headers.json. hrm_train's
step holds data, optimizer, projections and metrics; the PyTorch side (contrastive_reference.py) holds phases and gradients
alone. Rows of the table: both rules, hrm_train captured and eager, PyTorch eager, in a CUDA graph, and compiled in one.
Needs a GPU, packed text (scripts/code_data), and a python3 with torch.
"""
import json
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402
from compare_compat import HERE, ROOT, last_json, milliseconds, run  # noqa: E402


def ours(args, rows, slots, rule, captured):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "step.json"
        run([args.binary, "bench", "step", "--config", ROOT / "configs/contrastive/headers.json", "--json", file,
             f"data.train={args.text}", f"train.global_batch_size={rows}", f"contrastive.learned_slots={slots}",
             f"contrastive.rule={rule}", f"runtime.cuda_graphs={str(captured).lower()}"])
        return json.loads(file.read_text(encoding="utf-8"))


def mebibytes(turn):
    return turn["peak_mib"] if "peak_mib" in turn else turn["memory"]["allocated_peak_bytes"] / 2 ** 20


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--shapes", default="1024x2048,64x2048,128x256", help="(default: %(default)s)")
    parser.add_argument("--rules", default="symmetric,backprop", help="(default: %(default)s)")
    parser.add_argument("--modes", default="eager,graph,compiled", help="of PyTorch (default: %(default)s)")
    parser.add_argument("--rounds", type=command.count(), default=3, help="turns of each side (default: %(default)s)")
    parser.add_argument("--text", default="runs/data/code_bytes", help="packed text (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable, help="with torch (default: this one)")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all turns")
    args = parser.parse_args()
    args.binary = command.program(args.binary)
    command.writable(args.out)
    turns = {}
    for number in range(args.rounds):
        for name in args.shapes.split(","):
            rows, slots = name.split("x")
            for rule in args.rules.split(","):
                sides = {f"PyTorch {mode}": lambda m=mode, r=rule: last_json(
                    run([args.python, HERE / "contrastive_reference.py", rows, slots, "--rule", r, "--mode", m]))
                    for mode in args.modes.split(",")}
                for side, captured in (("hrm_train eager", False), ("hrm_train captured", True)):
                    sides[side] = lambda c=captured, r=rule: ours(args, rows, slots, r, c)
                for side, measure in sides.items():
                    try:
                        found = measure()
                    except command.Failure as failure:
                        print(f"{name}: {rule}: {side}: {failure}", file=sys.stderr, flush=True)
                        continue
                    turns.setdefault(name, {}).setdefault(f"{rule}, {side}", []).append(found)
                    print(f"round {number + 1}: {name}: {rule}, {side}: {milliseconds(found):.2f} ms", file=sys.stderr, flush=True)
    if args.out:
        args.out.write_text(json.dumps(turns, indent=1) + "\n", encoding="utf-8")
    print("| shape | side | ms | least and most | times ours | MiB |\n|---|---|---:|---:|---:|---:|")
    for name, sides in turns.items():
        if "symmetric, hrm_train captured" not in sides:
            raise command.Failure(command.MACHINE, f"{name}: hrm_train gave no time to compare with")
        base = statistics.median(milliseconds(turn) for turn in sides["symmetric, hrm_train captured"])
        for side, found in sides.items():
            values = [milliseconds(turn) for turn in found]
            middle = statistics.median(values)
            print(f"| {name} | {side} | {middle:.2f} | {min(values):.2f}, {max(values):.2f} | {middle / base:.2f} | "
                  f"{statistics.median(mebibytes(turn) for turn in found):.0f} |")


if __name__ == "__main__":
    command.run(main)
