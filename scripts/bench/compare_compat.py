#!/usr/bin/env python3
"""Times the window of the original contrastive trainer: as it is, rewritten in PyTorch for speed, and in hrm_train
(contrastive.mode=compat), taking turns.

    scripts/bench/compare_compat.py --original main=../main/Liorhybrid guide=../guide/Liorhybrid --out results.json

Each shape is rows x tokens x slots, at width 512; 64 free and 64 nudged steps. The checkouts are those of
compat_original.py; without --original they are left out. The PyTorch side (compat_reference.py) runs in --modes, with
states in --states; the table shows its best and, apart, its best without `batched`. hrm_train runs captured and eager, on
a text folder made by `hrm_train data text`. Needs a GPU, and a python3 with torch.
"""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def run(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()[-1]
        raise command.Failure(command.MACHINE, f"{words[0]} ended with {done.returncode}: {last}")
    return done.stdout


def last_json(text):
    return json.loads(text.splitlines()[-1])


def ours(args, rows, tokens, slots, captured):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "step.json"
        run([args.binary, "bench", "step", "--config", ROOT / "configs/contrastive/compat_cpu.json", "--json", file,
             f"data.train={args.text}", f"train.global_batch_size={rows}", f"contrastive.context={tokens}",
             "contrastive.state_dim=512", f"contrastive.sdm_capacity={slots}", f"runtime.cuda_graphs={str(captured).lower()}"])
        return json.loads(file.read_text(encoding="utf-8"))


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--original", nargs="*", default=[], metavar="NAME=CHECKOUT")
    parser.add_argument("--shapes", default="8x128x2048,16x512x2048,32x512x2048,64x512x4096", help="(default: %(default)s)")
    parser.add_argument("--modes", default="eager,compiled,batched", help="of PyTorch (default: %(default)s)")
    parser.add_argument("--states", default="float32,float16", help="of PyTorch (default: %(default)s)")
    parser.add_argument("--rounds", type=command.count(), default=3, help="turns of each side (default: %(default)s)")
    parser.add_argument("--text", default="runs/data/code_bytes", help="packed text (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable, help="with torch (default: this one)")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all turns")
    args = parser.parse_args()
    args.binary = command.program(args.binary)
    command.writable(args.out)
    checkouts = dict(word.split("=", 1) for word in args.original)
    turns = {}
    for number in range(args.rounds):
        for name in args.shapes.split(","):
            rows, tokens, slots = name.split("x")
            shape = [rows, tokens, "--slots", slots]
            sides = {who: lambda c=folder: last_json(run([args.python, HERE / "compat_original.py", c, *shape]))
                     for who, folder in checkouts.items()}
            for mode in args.modes.split(","):
                for states in args.states.split(","):
                    sides[f"PyTorch {mode} {states}"] = lambda m=mode, s=states: last_json(
                        run([args.python, HERE / "compat_reference.py", *shape, "--mode", m, "--states", s]))
            for side, captured in (("hrm_train eager", False), ("hrm_train captured", True)):
                sides[side] = lambda c=captured: ours(args, rows, tokens, slots, c)
            for side, measure in sides.items():
                try:
                    found = measure()
                except command.Failure as failure:
                    print(f"{name}: {side}: {failure}", file=sys.stderr, flush=True)
                    continue
                turns.setdefault(name, {}).setdefault(side, []).append(found)
                print(f"round {number + 1}: {name}: {side}: {milliseconds(found):.2f} ms", file=sys.stderr, flush=True)
    if args.out:
        args.out.write_text(json.dumps(turns, indent=1) + "\n", encoding="utf-8")
    print("| shape | side | ms | least and most | times hrm_train captured |\n|---|---|---:|---:|---:|")
    for name, sides in turns.items():
        if "hrm_train captured" not in sides:
            raise command.Failure(command.MACHINE, f"{name}: hrm_train gave no time to compare with")
        base = statistics.median(milliseconds(turn) for turn in sides["hrm_train captured"])
        for side, found in sides.items():
            values = [milliseconds(turn) for turn in found]
            middle = statistics.median(values)
            print(f"| {name} | {side} | {middle:.2f} | {min(values):.2f}, {max(values):.2f} | {middle / base:.2f} |")


def milliseconds(turn):
    return turn["median_ms"] if "median_ms" in turn else turn["step_ms"]["median"]


if __name__ == "__main__":
    command.run(main)
