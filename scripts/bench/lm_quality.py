#!/usr/bin/env python3
"""Trains the code recipes of configs/language with several seeds on the same data and puts their validation losses side by side.

    scripts/code_data                                       # makes runs/data/code
    scripts/bench/lm_quality.py --seeds 2 --jobs 2 --out quality.json
    scripts/bench/lm_quality.py --which moe,moe_bias,moe_z --seeds 1 --steps 2000      # how the experts are loaded

The last evaluation of each run counts, over the whole validation split; beside it the best of all. A prompt of the plain
decoder stands in the same row and is not learned from, so that all see the same tokens in front of what they are asked
for. Needs no Python
package. Runs go into --work and are kept; one that is there already is not trained again.
"""
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
import command  # noqa: E402

# name: recipe, what is set beside it
RUNS = {
    "decoder": ("code_decoder", ["data.encoder_len=256"]),
    "hrm": ("code_hrm", []),
    "moe": ("code_moe", []),
    "mamba": ("code_mamba", []),
    "moe_bias": ("code_moe", ["moe.load_weight=0", "moe.z_weight=0", "moe.bias_rate=0.001"]),
    "moe_z": ("code_moe", ["moe.z_weight=0"]),
    "moe_sigmoid": ("code_moe", ["moe.score=sigmoid", "moe.load_weight=0", "moe.z_weight=0", "moe.bias_rate=0.001"]),
}


def train(args, name, seed):
    recipe, settings = RUNS[name]
    run = f"{name}_{args.steps or 'recipe'}_{seed}"
    words = [args.binary, "train", "--config", ROOT / "configs/language" / f"{recipe}.json", f"run.dir={args.work}",
             f"run.name={run}", f"run.seed={seed}", f"data.train={args.data}", "eval.max_samples=0", "train.keep_best=false",
             "train.checkpoint_every=0", *settings, *args.set]
    if args.steps:
        words.append(f"train.steps={args.steps}")
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        last = (done.stderr.strip() or "no words").splitlines()[-1]
        raise command.Failure(command.MACHINE, f"{run} ended with {done.returncode}: {last}")
    lines = [json.loads(line) for line in (args.work / run / "metrics.jsonl").read_text().splitlines()]
    return dict(read(lines), run=run, name=name, seed=seed, parameters=parameters(args.work / run))


def parameters(run):
    """As the log tells them."""
    words = (run / "log/rank_0.log").read_text().split(" parameters,")[0].split()
    return int(words[-1])


def read(lines):
    evals = [line for line in lines if "eval/loss" in line]
    steps = [line for line in lines if "perf/step_ms" in line]
    out = {key: evals[-1][f"eval/{key}"] for key in ("loss", "bits_per_byte", "accuracy", "tokens")}
    out["step"] = evals[-1]["step"]
    best = min(evals, key=lambda line: line["eval/loss"])
    out |= {"best_loss": best["eval/loss"], "best_step": best["step"],
            "step_ms": statistics.median(line["perf/step_ms"] for line in steps[1:] or steps)}
    health = {}
    for value, worst in (("load_entropy", min), ("load_max", max), ("dropped", max)):
        of_lines = [worst(found) for line in steps
                    if (found := [line[key] for key in line if key.startswith("train/moe/") and key.endswith(value)])]
        if of_lines:  # of the worst mixture: over the last quarter of the run, and the worst line after the first ones
            health[value] = statistics.mean(of_lines[-max(1, len(of_lines) // 4):])
            health[f"{value}_worst"] = worst(of_lines[len(of_lines) // 10:])
    return dict(out, **health)


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--which", default="decoder,hrm,moe", help=f"of {', '.join(RUNS)} (default: %(default)s)")
    parser.add_argument("--seeds", type=command.count(), default=2, help="(default: %(default)s)")
    parser.add_argument("--steps", type=command.count(0), default=0, help="0 = as the recipes say (default)")
    parser.add_argument("--jobs", type=command.count(), default=1, help="runs at a time (default: %(default)s)")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "runs/data/code")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "runs/quality")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON")
    args = parser.parse_args()
    args.binary = command.program(args.binary)
    if args.out:
        command.writable(args.out)
    names = args.which.split(",")
    for name in names:
        if name not in RUNS:
            raise command.Failure(command.USAGE, f"--which: no run '{name}'; there are {', '.join(RUNS)}")
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda job: train(args, *job), [(n, s) for s in range(args.seeds) for n in names]))
    print(f"{'run':22}{'parameters':>12}{'loss':>9}{'bits/byte':>11}{'tokens right':>14}{'best loss (step)':>19}{'ms/step':>9}"
          f"{'entropy':>9}{'worst':>8}{'max load':>10}{'dropped':>9}")
    for r in sorted(results, key=lambda r: (names.index(r["name"]), r["seed"])):
        best = f"{r['best_loss']:.4f} ({r['best_step']})"
        print(f"{r['run']:22}{r['parameters']:>12,}{r['loss']:>9.4f}{r['bits_per_byte']:>11.4f}{100 * r['accuracy']:>13.1f}%{best:>19}"
              f"{r['step_ms']:>9.1f}", end="")
        if "load_entropy" in r:
            print(f"{r['load_entropy']:>9.3f}{r['load_entropy_worst']:>8.3f}{r['load_max']:>10.2f}{100 * r['dropped']:>8.1f}%", end="")
        print()
    if args.out:
        args.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    command.run(main)
