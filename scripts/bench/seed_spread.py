#!/usr/bin/env python3
"""Why runs of one puzzle recipe differ: changes one source of chance at a time and compares accuracy.

    scripts/bench/seed_spread.py --config configs/puzzle/trm_mlp_sudoku17.json --out runs/spread --steps 5000 \\
        --eval-every 500 train.global_batch_size=128 optim.lr=3e-4 optim.puzzle_emb_lr=3e-4 optim.warmup_steps=500

All runs but those of `weights` begin with the same initial weights, and all but those of `data` have run.seed=0:

    weights    other initial weights (those of seeds 1, 2, ...)
    data       another run.seed: order of the samples, their symmetric copies, exploration
    rounding   the batch in 2, 4, 8, ... micro-batches, whose gradients are added up in another order

Prints puzzles solved at each evaluation, the spread of each kind beside the run that nothing was changed in, and the
step at which a run has solved --level of the test puzzles, between two evaluations on a straight line. Curves of one
shape that only begin to rise sooner or later differ little in that step and much in accuracy. Writes spread.json and
spread.svg to --out. What is finished is not done again: run it once more to go on. Needs a build of hrm_train.
"""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

KINDS = ["weights", "data", "rounding"]
STOPPED = 75  # exit code of hrm_train: saved, start again


def train(args, name, settings):
    """One run, to its end; its folder."""
    folder = args.out / name
    words = [args.binary, "train", "--config", args.config, f"run.dir={args.out}", f"run.name={name}", *args.overrides,
             *settings]
    with open(args.out / f"{name}.log", "a", encoding="utf-8") as log:
        code = subprocess.run([str(word) for word in words], stdout=log, stderr=log).returncode
    if code == STOPPED:
        raise command.Failure(STOPPED, f"{name} was stopped and has saved; run the same command again")
    if code != 0:
        last = (args.out / f"{name}.log").read_text(encoding="utf-8").strip().splitlines()[-1:] or ["it said nothing"]
        raise command.Failure(command.DATA, f"{name} ended with code {code}: {last[0]}")
    return folder


def initial_weights(args, seed):
    """A checkpoint of the weights that this seed draws: a step of rate 0 leaves them as they are."""
    name = f"initial_seed{seed}"
    if not (args.out / name / "checkpoints").is_dir():
        train(args, name, [f"run.seed={seed}", "train.steps=1", "optim.lr=0", "optim.warmup_steps=0", "train.eval_every=0"])
    return args.out / name


def finished(folder, steps):
    """Puzzles solved by step, if the run has come to its end."""
    file = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    solved = {line["step"]: line["eval/exact_accuracy"] for line in lines if "eval/exact_accuracy" in line}
    return solved if steps in solved else None


def measured(args, name, seed, weights, micro_batches=1):
    folder = args.out / name
    solved = finished(folder, args.steps)
    if solved is None:
        print(f"training {name}", file=sys.stderr, flush=True)
        settings = [f"run.seed={seed}", f"train.steps={args.steps}", f"train.eval_every={args.eval_every}"]
        if micro_batches > 1:
            settings.append(f"train.micro_batch_size={args.batch // micro_batches}")
        # A run that has begun goes on from its own checkpoint.
        begun = any((folder / "checkpoints").glob("step-*"))
        train(args, name, settings if begun else [*settings, "--init", initial_weights(args, weights)])
        solved = finished(folder, args.steps)
        if solved is None:
            raise command.Failure(command.DATA, f"{folder}/metrics.jsonl has no evaluation of step {args.steps}; does the "
                                                "recipe have test data?")
    return solved


def reached(solved, level):
    """The step at which so large a share is solved first, on a straight line between evaluations; None: never."""
    before = (0, 0.0)
    for step, share in sorted(solved.items()):
        if share >= level:
            return before[0] + (step - before[0]) * (level - before[1]) / (share - before[1]) if share > before[1] else step
        before = (step, share)
    return None


def spread(values):
    return max(values) - min(values)


def summary(runs, level):
    """Of each kind: spread of accuracy at the last step, the largest at any, and of the step that reaches `level`."""
    result = {}
    for kind in KINDS:
        curves = [curve for name, curve in runs.items() if name == "base" or name.startswith(kind)]
        if len(curves) < 2:
            continue
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        by_step = {step: spread([curve[step] for curve in curves]) for step in steps}
        crossings = [reached(curve, level) for curve in curves]
        result[kind] = dict(runs=len(curves), last=by_step[steps[-1]], most=max(by_step.values()),
                            most_at=max(by_step, key=by_step.get),
                            steps=spread(crossings) if None not in crossings else None)
    return result


def show(runs, kinds, level):
    steps = sorted(set.intersection(*(set(curve) for curve in runs.values())))
    print("| run | " + " | ".join(f"{step:,}" for step in steps) + " | step of " + f"{100 * level:g} % |")
    print("|---|" + "---:|" * (len(steps) + 1))
    for name, curve in runs.items():
        step = reached(curve, level)
        print(f"| {name} | " + " | ".join(f"{100 * curve[s]:.1f}" for s in steps) +
              f" | {'-' if step is None else format(round(step), ',')} |")
    print(f"\n| changed | runs | spread at the end | largest spread | at step | spread of the step of {100 * level:g} % |\n"
          "|---|---:|---:|---:|---:|---:|")
    for kind, found in kinds.items():
        print(f"| {kind} | {found['runs']} | {100 * found['last']:.1f} | {100 * found['most']:.1f} | {found['most_at']:,} | "
              f"{'-' if found['steps'] is None else format(round(found['steps']), ',')} |")


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--config", type=pathlib.Path, required=True, help="the recipe")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="where everything is kept")
    parser.add_argument("--steps", type=command.count(), required=True, help="of a run")
    parser.add_argument("--eval-every", type=command.count(), required=True, help="steps between two evaluations")
    parser.add_argument("--runs", type=command.count(), default=3, help="of each kind (default: %(default)s)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="(default: %(default)s)")
    parser.add_argument("--level", type=command.number(float, 0, above=True), default=0.5,
                        help="share of the puzzles whose step is compared (default: %(default)s)")
    parser.add_argument("--binary", default=str(command.ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("overrides", nargs="*", help="of all runs, e.g. optim.lr=3e-4")
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    for kind in kinds:
        if kind not in KINDS:
            parser.error(f"--kinds: '{kind}' is none of {', '.join(KINDS)}")
    if not args.config.is_file():
        raise command.Failure(command.DATA, f"{args.config} does not exist; give the configuration file of a recipe")
    args.binary = command.program(args.binary)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    words = [args.binary, "config", "--json", "--config", str(args.config), *args.overrides]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise command.Failure(done.returncode, (done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    args.batch = json.loads(done.stdout)["train"]["global_batch_size"]
    if "rounding" in kinds and args.batch % 2 ** args.runs != 0:
        parser.error(f"a batch of {args.batch} has no {2 ** args.runs} equal micro-batches; choose another batch, fewer --runs, "
                     "or --kinds weights,data")

    runs = {"base": measured(args, "base", 0, 0)}
    for kind in kinds:
        for k in range(1, args.runs + 1):
            name = f"{kind}_{2 ** k if kind == 'rounding' else k}"
            seed, weights = k if kind == "data" else 0, k if kind == "weights" else 0
            runs[name] = measured(args, name, seed, weights, 2 ** k if kind == "rounding" else 1)
    found = summary(runs, args.level)
    (args.out / "spread.json").write_text(json.dumps(dict(runs=runs, level=args.level, kinds=found), indent=1) + "\n",
                                          encoding="utf-8")
    show(runs, found, args.level)
    # One colour for each kind.
    files = [f"{name.replace('_', ', ')}={args.out / name}" for name in runs]
    return subprocess.run([str(command.ROOT / "scripts/plot_run"), *files, "--plot", "exact_accuracy", "--title",
                           "Runs that differ in one source of chance", "--out", str(args.out / "spread.svg")],
                          stdout=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    command.run(main)
