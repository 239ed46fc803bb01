#!/usr/bin/env python3
"""Times the recurrence of Mamba2 of hrm_train beside a chunked one in PyTorch, forward and backward, taking turns.

    scripts/bench/compare_ssd.py [--rounds 3] [--heads 24] [--groups 8] [--state 128] [--out results.json]

Rows of 1,024, 4,096 and 16,384 positions, and 16 of 1,024; heads of 64 channels, bf16. Both sides replay their step
from a CUDA graph. The PyTorch side (ssd_reference.py) takes the best of --modes and --chunks: all of them in the first
round, in the others the best of the first alone. Needs a GPU, and a python3 with torch for the other side.
"""
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
SHAPES = [(1, 1024), (1, 4096), (1, 16384), (16, 1024)]


def run(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()[-1]
        raise command.Failure(command.MACHINE, f"{words[0]} ended with {done.returncode}: {last}")
    return done.stdout


def theirs(args, shape, mode, chunk):
    """Milliseconds, or None where PyTorch fails."""
    try:
        words = [args.python, HERE / "ssd_reference.py", *shape, "--mode", mode, "--chunk", chunk]
        return json.loads(run(words).splitlines()[-1])["median_ms"]
    except command.Failure as failure:
        print(f"PyTorch, {mode}, chunks of {chunk}: {failure}", file=sys.stderr, flush=True)
        return None


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--rounds", type=command.count(), default=3, help="turns of each side (default: %(default)s)")
    parser.add_argument("--heads", type=command.count(), default=24, help="(default: %(default)s)")
    parser.add_argument("--groups", type=command.count(), default=8, help="(default: %(default)s)")
    parser.add_argument("--state", type=command.count(), default=128, help="(default: %(default)s)")
    parser.add_argument("--modes", default="default,max-autotune-no-cudagraphs", help="of PyTorch (default: %(default)s)")
    parser.add_argument("--chunks", default="64,128,256", help="of PyTorch (default: %(default)s)")
    parser.add_argument("--shapes", default=",".join(f"{rows}x{length}" for rows, length in SHAPES),
                        help="rows x positions (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable, help="with torch (default: this one)")
    parser.add_argument("--binary", default=str(HERE.parents[1] / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all turns")
    args = parser.parse_args()
    args.binary = command.program(args.binary)
    command.writable(args.out)
    turns, best = [], {}
    for number in range(args.rounds):
        for name in args.shapes.split(","):
            rows, length = name.split("x")
            shape = ["--rows", rows, "--length", length, "--heads", args.heads, "--groups", args.groups, "--state", args.state]
            ways = [best[name]] if name in best else [(mode, int(chunk)) for mode in args.modes.split(",") for chunk in args.chunks.split(",")]
            times = {way: theirs(args, shape, *way) for way in ways}
            times = {way: time for way, time in times.items() if time is not None}
            if not times:
                raise command.Failure(command.MACHINE, f"{name}: PyTorch ran in none of its ways")
            best[name] = min(times, key=times.get)
            file = pathlib.Path(args.out or "ssd.json").with_suffix(".turn.json")
            run([args.binary, "bench", "scan", *shape, "--json", file])
            ours = json.loads(file.read_text())
            file.unlink()
            turns.append(dict(shape=name, pytorch={f"{mode}, {chunk}": time for (mode, chunk), time in times.items()}, ours=ours))
            print(f"round {number + 1}: {name}: PyTorch {turns[-1]['pytorch']}, ours {ours['forward_backward_ms']:.4f} ms", file=sys.stderr, flush=True)
    if args.out:
        args.out.write_text(json.dumps(turns, indent=1) + "\n")
    print("| rows x positions | PyTorch, ms | its mode, chunk | ours, ms | forward | backward | ratio |\n|---|---:|---|---:|---:|---:|---:|")
    for name, way in best.items():
        mine = [turn for turn in turns if turn["shape"] == name]
        other = statistics.median(turn["pytorch"][f"{way[0]}, {way[1]}"] for turn in mine)
        ours, forward, backward = (statistics.median(turn["ours"][f"{key}_ms"] for turn in mine)
                                   for key in ("forward_backward", "forward", "backward"))
        print(f"| {name} | {other:.3f} | {way[0]}, {way[1]} | {ours:.3f} | {forward:.3f} | {backward:.3f} | **{other / ours:.2f}** |")
    return 0


if __name__ == "__main__":
    command.run(main)
