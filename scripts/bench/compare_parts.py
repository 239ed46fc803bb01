#!/usr/bin/env python3
"""Times decoding of a model in parts on two GPUs beside one GPU, in turns.

    .venv/bin/python scripts/bench/compare_parts.py --out parts.json
    .venv/bin/python scripts/bench/compare_parts.py --sides one,memory --ours hf.quantize=int8
    .venv/bin/python scripts/bench/compare_parts.py --tiny --device cpu --rounds 1

The model has the shape of Qwen3-8B with random weights in bf16. A turn is `bench generate`: 12 rows, prompts of 64
tokens, 100 new tokens, temperature 0.9 and top-p 0.9. Sides: one (one GPU); memory (parallel.tensor=2, where the GPUs
add sums through memory that they share); nccl (the same with parallel.peer_memory=false). The log of the side `memory`
says whether the GPUs share memory; where they do not, both are the same.

--tiny has a model of a few thousand weights, to try the script: its times say nothing.
"""
import json
import pathlib
import statistics
import tempfile

from compare_causal import LARGE, TINY
from comparison import ROOT, command, gib, known, machine, run_bench, say, write_json

SIDES = {"one": (1, []), "memory": (2, ["parallel.tensor=2"]),
         "nccl": (2, ["parallel.tensor=2", "parallel.peer_memory=false"])}
SETTINGS = ["task=polychromic", "hf.weights=random", "polychromic.objective=none", "lora.r=0"]


def run_side(args, name, folder):
    ranks, words = SIDES[name]
    device = [f"runtime.device={args.device}"]
    result = run_bench([args.binary, "bench", "generate", "--rows", str(args.rows), "--prompt", "64", "--new", "100",
                        "--temperature", "0.9", "--top-p", "0.9", *SETTINGS, f"hf.model={folder / 'model'}", *device,
                        *words, *args.ours], folder, args.limit, ranks)
    if "error" in result:
        return result
    run = result["runs"][0]
    memory = result.get("memory_of_ranks", [result])
    return dict(step_ms=run["step_ms"], tokens_per_s=run["tokens_per_s"],
                peak_bytes=max(rank["memory_peak_bytes"] for rank in memory))


def table(turns):
    steps, memory = {}, {}
    for side in SIDES:
        own = [turn for turn in turns if turn["side"] == side and "step_ms" in turn]
        if own:
            steps[side] = statistics.median(turn["step_ms"] for turn in own)
            memory[side] = max(turn["peak_bytes"] for turn in own)
    lines = ["| side | GPUs | ms a step | of one GPU | peak GiB of a GPU |", "|---|---:|---:|---:|---:|"]
    for side, ms in steps.items():
        ratio = f"{steps['one'] / ms:.2f}" if "one" in steps else ""
        lines.append(f"| {side} | {SIDES[side][0]} | {ms:.3f} | {ratio} | {gib(memory[side])} |")
    return "\n".join(lines)


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--sides", default=",".join(SIDES), metavar="NAME,...", help="(default: %(default)s)")
    parser.add_argument("--rows", type=command.count(), default=12, help="rows in a batch (default: %(default)s)")
    parser.add_argument("--rounds", type=command.count(), default=3, help="turns of each side (default: %(default)s)")
    parser.add_argument("--limit", type=command.count(), default=300, help="seconds of a turn (default: %(default)s)")
    parser.add_argument("--ours", nargs="*", default=[], metavar="KEY=VALUE", help="settings of all sides")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="(default: %(default)s)")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all turns")
    args = parser.parse_args()
    command.writable(args.out)
    chosen = known(args.sides.split(","), SIDES, "side")
    args.binary = command.program(args.binary)
    about, turns = machine(args.device, args.binary, max(SIDES[name][0] for name in chosen)), []
    with tempfile.TemporaryDirectory(prefix="compare_parts_") as scratch:
        folder = pathlib.Path(scratch)
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(TINY if args.tiny else LARGE), encoding="utf-8")
        for number in range(args.rounds):
            for name in chosen:
                result = run_side(args, name, folder)
                turns.append(about | dict(side=name, round=number, rows=args.rows) | result)
                step = f"{result['step_ms']:.3f} ms a step" if "step_ms" in result else ""
                say(f"{name}: {result.get('error') or step}")
                write_json(args.out, turns)
    print(table(turns))
    return 0


if __name__ == "__main__":
    command.run(main)
