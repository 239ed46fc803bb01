#!/usr/bin/env python3
"""Times a mixture-of-experts layer of hrm_train beside the same in PyTorch, forward and backward, taking turns.

    scripts/bench/compare_moe.py [--rounds 3] [--modes default,reduce-overhead] [--out results.json]
    scripts/bench/compare_moe.py --activation swiglu

Shapes, all with 16,384 tokens and bf16. GELU: a few wide, many, and very many narrow experts. SwiGLU: the layers of
Qwen3-30B-A3B, Mixtral-8x7B and OLMoE-1B-7B. The PyTorch side (moe_reference.py) takes the best of --modes. hrm_train
writes the weights' gradients in float32, PyTorch in bf16. Needs a GPU, and a python3 with torch for the other side.
"""
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
SHAPES = {  # dim, width, experts, top-k
    "gelu": [(1024, 4096, 8, 2), (512, 2048, 32, 2), (1024, 1024, 64, 8)],
    "swiglu": [(2048, 768, 128, 8), (4096, 14336, 8, 2), (2048, 1024, 64, 8)],
}


def run(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()[-1]
        raise command.Failure(command.MACHINE, f"{words[0]} ended with {done.returncode}: {last}")
    return done.stdout


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--rounds", type=command.count(), default=3, help="turns of each side (default: %(default)s)")
    parser.add_argument("--activation", default="gelu", choices=sorted(SHAPES), help="of the experts (default: %(default)s)")
    parser.add_argument("--modes", default="eager,default,max-autotune-no-cudagraphs", help="of PyTorch (default: %(default)s)")
    parser.add_argument("--tokens", type=command.count(), default=16384)
    parser.add_argument("--python", default=sys.executable, help="with torch (default: this one)")
    parser.add_argument("--binary", default=str(HERE.parents[1] / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all turns")
    args = parser.parse_args()
    args.binary = command.program(args.binary)
    command.writable(args.out)
    modes, turns = args.modes.split(","), []
    for number in range(args.rounds):
        for dim, width, experts, top_k in SHAPES[args.activation]:
            shape = ["--tokens", args.tokens, "--dim", dim, "--width", width, "--experts", experts, "--top-k", top_k,
                     "--activation", args.activation]
            name = f"D{dim} F{width} E{experts} K{top_k}"
            sides = {}
            for mode in modes:
                try:
                    sides[mode] = json.loads(run([args.python, HERE / "moe_reference.py", *shape, "--mode", mode]).splitlines()[-1])["median_ms"]
                except command.Failure as failure:
                    print(f"{name}: PyTorch, {mode}: {failure}", file=sys.stderr, flush=True)
            file = pathlib.Path(args.out or "moe.json").with_suffix(".turn.json")
            run([args.binary, "bench", "moe", *shape, "--json", file])
            ours = json.loads(file.read_text())
            file.unlink()
            turns.append(dict(shape=name, pytorch=sides, ours=ours))
            print(f"round {number + 1}: {name}: PyTorch {sides}, ours {ours['forward_backward_ms']:.3f} ms", file=sys.stderr, flush=True)
    if args.out:
        args.out.write_text(json.dumps(turns, indent=1) + "\n")
    print("| layer, 16,384 tokens | PyTorch, ms | its mode | ours, ms | ratio | TFLOP/s of ours |\n|---|---:|---|---:|---:|---:|")
    for name in dict.fromkeys(t["shape"] for t in turns):
        mine = [t for t in turns if t["shape"] == name]
        times = {mode: statistics.median(t["pytorch"][mode] for t in mine if mode in t["pytorch"])
                 for mode in modes if any(mode in t["pytorch"] for t in mine)}
        if not times:
            continue
        best = min(times, key=times.get)
        ours = statistics.median(t["ours"]["forward_backward_ms"] for t in mine)
        rate = statistics.median(t["ours"]["flops_per_s"] for t in mine) * 1e-12
        print(f"| {name} | {times[best]:.3f} | {best} | {ours:.3f} | **{times[best] / ours:.2f}** | {rate:.0f} |")
    return 0


if __name__ == "__main__":
    command.run(main)
