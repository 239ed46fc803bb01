#!/usr/bin/env python3
"""Trains hrm_train and the official HRM or TRM code from the same puzzles and compares accuracy over training time.

    .venv/bin/python scripts/bench/time_to_accuracy.py --checkout HRM --dir runs/tta --sides official,ours --seeds 0,1
    .venv/bin/python scripts/bench/time_to_accuracy.py --model trm_mlp --checkout TinyRecursiveModels --dir runs/trm
    .venv/bin/python scripts/bench/time_to_accuracy.py --model trm_att --grid maze --checkout TinyRecursiveModels \
        --dir runs/maze --batch 128 --eval-batch 250
    scripts/bench/time_to_accuracy.py --dir runs/tta --report --picture curve.svg

--grid maze reads dataset directories, as `hrm_train data maze` writes them; Sudoku is read from CSV files.
--model hrm: 27 million parameters, learning rate 7e-5. trm_att and trm_mlp: 7 and 5 million, learning rate 1e-4, averaged
weights (0.999). Weight decay 1.0, warm-up 2,000 steps (--lr and --warmup change them on both sides), --batch, --steps
steps; both are evaluated on all test puzzles every --eval-every steps, by 16 segments. Only training counts as time:
evaluation, saving and starting do not. The official code's compilation does not count either (its first steps after a
start are taken to last as long as the others); our graph recording does.

A run is one side with one seed. Each GPU (CUDA_VISIBLE_DEVICES, else all) trains one run at a time, in the order of
--sides, so name the slowest side first. After --minutes everything is saved and the program ends (the official code up
to a minute later); the same command goes on. Prints a JSON line for each evaluation, and adds it to DIR/NAME_seedS.jsonl.
Variants of ours: --sides "ours,fp8=precision.recursions=fp8,no_q=model.no_ACT_continue=true" gives each a name and
overrides (several joined by +). The official side needs what official_step.py needs.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CONFIGS = {"sudoku": {model: f"configs/puzzle/{model}_sudoku17.json" for model in ("hrm", "trm_att", "trm_mlp")},
           "maze": {model: f"configs/puzzle/{model}_maze30.json" for model in ("hrm", "trm_att")}}
DATA = {"sudoku": ("data/sudoku/train_17clue_1k.csv", "data/sudoku/test_17clue_2k.csv"),
        "maze": ("data/maze30", "data/maze30")}
STOPPED = 75  # exit code: saved, start again
MODES = ["eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
UNTIMED = 6  # steps after a start of the official code in which it compiles


def add_line(path, record):
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps(record), flush=True)


def read_lines(path):
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else [], 1):
        try:
            records.append(json.loads(line))
            records[-1]["step"]
        except (ValueError, KeyError, TypeError):
            raise command.Failure(command.DATA, f"{path}, line {number}: not a JSON object with a step; delete the line "
                                                "to go on") from None
    return records


def record_of(name, seed, step, seconds, accuracy, exact, device):
    return {"name": name, "seed": seed, "step": step, "time/train_s": round(seconds, 2),
            "eval/accuracy": accuracy, "eval/exact_accuracy": exact, "device": device}


# ---- the official side: a process of its own for each run ----

def train_official(args):
    """One segment of one run of the official code, in this process; returns the exit code."""
    import torch

    import official_step
    name, seed = "official", args.worker
    lines, state_file = args.dir / f"{name}_seed{seed}.jsonl", args.dir / f"{name}_seed{seed}.pt"
    cuda = args.device == "cuda"
    overrides = official_step.parsed(args.official_set)
    official = official_step.Official(args.model, str(args.checkout), args.batch, args.mode, args.grid, args.device,
                                      "bfloat16" if cuda else "float32", seed, args.lr, overrides=overrides,
                                      warmup_steps=args.warmup)
    if args.grid == "maze":
        train, test = (official_step.read_built(ROOT / p, args.device, split)
                       for p, split in ((args.train, "train"), (args.test, "test")))
    else:
        train, test = (official_step.read_sudoku(ROOT / p, args.device) for p in (args.train, args.test))
    test = [x[:args.puzzles] for x in test] if args.puzzles else test
    generator = torch.Generator(device=args.device)
    generator.manual_seed(seed)

    def uniform(*shape):
        return torch.rand(*shape, device=args.device, generator=generator)

    def next_batch():
        index = torch.randint(0, len(train[0]), (args.batch,), device=args.device, generator=generator)
        if args.grid == "maze":  # as the official builder leaves them: a folder may hold copies
            return official_step.as_batch(*(x[index] for x in train))
        return official_step.augmented(*train, index, uniform)

    def wait():
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    seconds = 0.0
    if state_file.exists():
        state = torch.load(state_file, map_location=args.device, weights_only=False)
        official.load_state(state)
        seconds = state["seconds"]
        generator.set_state(state["generator"].cpu())
        torch.set_rng_state(state["random"].cpu())
        if cuda:
            torch.cuda.set_rng_state(state["random_cuda"].cpu())

    def save():
        state = official.state() | dict(seconds=seconds, generator=generator.get_state(), random=torch.get_rng_state())
        if cuda:
            state["random_cuda"] = torch.cuda.get_rng_state()
        torch.save(state, state_file.with_suffix(".tmp"))
        os.replace(state_file.with_suffix(".tmp"), state_file)

    untimed = 0  # steps that compiled, to be counted at the mean of the later ones
    while official.step_count < args.steps:
        if time.time() > args.deadline:
            save()
            return STOPPED
        if untimed < UNTIMED:
            official.train_step(next_batch(), False)
            wait()
            untimed += 1
        else:
            begin, first = wait(), official.step_count
            until = min(args.steps, (first // args.eval_every + 1) * args.eval_every, first + args.chunk)
            while official.step_count < until:
                official.train_step(next_batch(), False)
            spent = wait() - begin
            counted = until - first
            if untimed != float("inf"):
                counted += untimed
                untimed = float("inf")
            seconds += spent / (until - first) * counted
        if official.step_count % args.eval_every == 0 or official.step_count == args.steps:
            result = official.evaluate(*test)
            device = torch.cuda.get_device_name() if cuda else "CPU"
            add_line(lines, record_of(name, seed, official.step_count, seconds, result["cells"], result["exact"], device))
            save()
    return 0


# ---- our side ----

def harvest(args, name, seed):
    """Evaluations that our run has logged and that are not in our file yet."""
    run = args.dir / f"{name}_seed{seed}"
    lines = args.dir / f"{name}_seed{seed}.jsonl"
    known = {record["step"] for record in read_lines(lines)}
    environment = run / "environment.json"
    device = json.loads(environment.read_text(encoding="utf-8")).get("device", "") if environment.exists() else ""
    seconds, previous = 0.0, 0
    evaluations = {}
    for record in read_lines(run / "metrics.jsonl"):
        if "perf/step_ms" in record:
            seconds += record["perf/step_ms"] / 1e3 * (record["step"] - previous)
            previous = record["step"]
        if "eval/exact_accuracy" in record:
            evaluations[record["step"]] = record
        if record["step"] in evaluations and previous == record["step"] and record["step"] not in known:
            found = evaluations[record["step"]]
            known.add(record["step"])
            add_line(lines, record_of(name, seed, record["step"], seconds, round(found["eval/accuracy"], 4),
                                      round(found["eval/exact_accuracy"], 4), device))


def train_ours(args, name, overrides, seed, environment):
    log_every = next(n for n in (50, 25, 20, 10, 5, 2, 1) if args.eval_every % n == 0)
    words = [str(args.binary), "train", "--config", CONFIGS[args.grid][args.model], f"run.dir={args.dir}", f"run.name={name}_seed{seed}",
             f"run.seed={seed}", f"data.train={args.train}", f"data.test={args.test}", f"train.steps={args.steps}",
               f"train.global_batch_size={args.batch}", f"train.micro_batch_size={args.batch}",
               f"optim.warmup_steps={min(args.warmup, args.steps)}",
               *([f"optim.lr={args.lr}", f"optim.puzzle_emb_lr={args.lr}"] if args.lr else []),
               f"train.log_every={log_every}", f"train.eval_every={args.eval_every}", "train.keep_checkpoints=1",
               "train.checkpoint_every=0", f"train.max_seconds={max(1.0, args.deadline - time.time() - args.startup)}",
               f"eval.max_samples={args.puzzles}", f"eval.batch_size={args.eval_batch}", *overrides, *args.ours_set]
    with open(args.dir / f"{name}_seed{seed}.log", "a", encoding="utf-8") as log:
        code = subprocess.run(words, cwd=ROOT, env=environment, stdout=log, stderr=log).returncode
    harvest(args, name, seed)
    return code


# ---- all runs ----

def visible_gpus(args):
    if args.device == "cpu":
        return [""]
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        return os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True).stdout.splitlines()
    except OSError:
        listed = []
    gpus = [line for line in listed if line.startswith("GPU ")]
    if not gpus:
        raise command.Failure(command.MACHINE, "nvidia-smi finds no GPU here; the comparison needs one")
    return [str(i) for i in range(len(gpus))]


def run_all(args):
    jobs = []
    for side in args.sides:
        for seed in args.seeds:
            done = [r["step"] for r in read_lines(args.dir / f"{side}_seed{seed}.jsonl")]
            if args.steps not in done:
                jobs.append((side, seed))
    gpus = queue.SimpleQueue()
    for gpu in visible_gpus(args)[:max(1, len(jobs))]:
        gpus.put(gpu)

    def work(job):
        side, seed = job
        gpu = gpus.get()
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES=gpu)
        try:
            if time.time() > args.deadline - args.startup:
                return side, seed, STOPPED
            if side != "official":
                return side, seed, train_ours(args, side, args.sides[side], seed, environment)
            words = [sys.executable, __file__, *sys.argv[1:], "--worker", str(seed), "--deadline", str(args.deadline)]
            with open(args.dir / f"official_seed{seed}.log", "a", encoding="utf-8") as log:
                return side, seed, subprocess.run(words, env=environment, stderr=log).returncode
        finally:
            gpus.put(gpu)

    failed = False
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, gpus.qsize())) as pool:
        for side, seed, code in pool.map(work, jobs):
            words = {0: "finished", STOPPED: "stopped after saving, to go on"}.get(code, f"failed with code {code}")
            print(f"{side}, seed {seed}: {words}; see {args.dir}/{side}_seed{seed}.log", file=sys.stderr)
            failed |= code not in (0, STOPPED)
    return 1 if failed else 0


def report(args):
    runs = {}
    for path in sorted(args.dir.glob("*_seed*.jsonl")):
        for record in read_lines(path):
            runs.setdefault(record["name"], {}).setdefault(record["seed"], []).append(record)
    if not runs:
        raise command.Failure(command.DATA, f"{args.dir} holds no results; give the --dir of a training by this script")
    print("| run | seed | step | training time, s | cells right | solved completely |\n|---|---:|---:|---:|---:|---:|")
    ends = {}
    for name, seeds in runs.items():
        for seed, records in sorted(seeds.items()):
            last = max(records, key=lambda r: r["step"])
            ends.setdefault(name, []).append(last)
            print(f"| {name} | {seed} | {last['step']:,} | {last['time/train_s']:.0f} | "
                  f"{100 * last['eval/accuracy']:.1f} % | {100 * last['eval/exact_accuracy']:.1f} % |")
    print("\n| mean of the seeds | training time, s | solved completely | official time / this | points to official |\n"
          "|---|---:|---:|---:|---:|")
    mean = {name: [statistics.mean(r[key] for r in records) for key in ("time/train_s", "eval/exact_accuracy")]
            for name, records in ends.items()}
    for name, (seconds, exact) in mean.items():
        against = ["-", "-"]
        # Only of runs that have come equally far.
        if name != "official" and {r["step"] for r in ends[name]} == {r["step"] for r in ends.get("official", [])}:
            against = [f"{mean['official'][0] / seconds:.2f}", f"{100 * (exact - mean['official'][1]):+.1f}"]
        print(f"| {name} | {seconds:.0f} | {100 * exact:.1f} % | {against[0]} | {against[1]} |")
    if args.picture:
        files = [f"{name}, seed {seed}={args.dir / f'{name}_seed{seed}.jsonl'}"
                 for name, seeds in runs.items() for seed in sorted(seeds)]
        return subprocess.run([str(ROOT / "scripts" / "plot_run"), *files, "--plot", "eval/exact_accuracy,eval/accuracy",
                        "--x", "time/train_s", "--out", str(args.picture), "--title",
                        "Puzzles solved and cells right over training time"], stdout=subprocess.DEVNULL).returncode
    return 0


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--dir", type=pathlib.Path, required=True, help="folder of the runs and their results")
    parser.add_argument("--model", default="hrm", choices=sorted(CONFIGS["sudoku"]),
                        help="of both sides (default: %(default)s)")
    parser.add_argument("--grid", default="sudoku", choices=sorted(CONFIGS), help="puzzles (default: %(default)s)")
    parser.add_argument("--checkout", type=pathlib.Path, metavar="PATH", help="of the official code of the model")
    parser.add_argument("--sides", default="official,ours",
                        help="official, and names of ours (default: %(default)s)")
    parser.add_argument("--seeds", default="0,1", help="comma-separated (default: %(default)s)")
    parser.add_argument("--steps", type=command.count(), default=10284, help="of a run (default: %(default)s)")
    parser.add_argument("--lr", type=command.number(float, 0, above=True), help="learning rate of both sides, also of the "
                        "puzzle embedding (default: the official one)")
    parser.add_argument("--warmup", type=command.count(), default=2000, help="steps of both sides (default: %(default)s)")
    parser.add_argument("--eval-every", type=command.count(), default=1000,
                        help="steps between two evaluations (default: %(default)s)")
    parser.add_argument("--minutes", type=command.number(float, 0, above=True), default=8,
                        help="then save and end (default: %(default)s)")
    parser.add_argument("--mode", default="default", choices=MODES,
                        help="how the official code is compiled (default: %(default)s)")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    for split, which in (("train", 0), ("test", 1)):
        parser.add_argument(f"--{split}", metavar="PATH", help=f"{split}ing puzzles: a CSV file of Sudoku, or a directory of "
                            f"mazes (default: {DATA['sudoku'][which]} or {DATA['maze'][which]})")
    parser.add_argument("--batch", type=command.count(), default=384, help="of both sides (default: %(default)s)")
    parser.add_argument("--eval-batch", type=command.count(), default=1000,
                        help="batch of our evaluations (default: %(default)s)")
    parser.add_argument("--puzzles", type=command.count(0), default=0, help="evaluate on so many (default: all)")
    parser.add_argument("--chunk", type=command.count(), default=200,
                        help="steps of the official code between looks at the clock (default: %(default)s)")
    parser.add_argument("--startup", type=command.number(float, 0), default=15,
                        help="seconds kept for starting and saving ours (default: %(default)s)")
    parser.add_argument("--ours-set", action="append", default=[], metavar="KEY=VALUE", help="override of ours")
    parser.add_argument("--official-set", action="append", default=[], metavar="KEY=VALUE", help="override of theirs")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: for tests of this script")
    parser.add_argument("--report", action="store_true", help="train nothing; print tables of what is there")
    parser.add_argument("--picture", type=pathlib.Path, metavar="SVG", help="draw the curves (needs --report)")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.dir = args.dir.resolve()
    args.train, args.test = (given or DATA[args.grid][i] for i, given in enumerate((args.train, args.test)))
    if args.model not in CONFIGS[args.grid]:
        parser.error(f"--model {args.model} has no recipe for --grid {args.grid}; give " +
                     " or ".join(CONFIGS[args.grid]))
    if args.picture and not args.report:
        parser.error("--picture needs --report")
    if args.report:
        return report(args)
    if 60 * args.minutes <= args.startup:
        parser.error(f"--minutes {args.minutes:g} leaves no time for training beside --startup {args.startup:g} seconds")
    sides = {}
    for item in args.sides.split(","):
        name, _, overrides = item.partition("=")
        if not name or "/" in name or name in sides:
            parser.error(f"--sides '{args.sides}': each needs a name of its own")
        sides[name] = overrides.split("+") if overrides else []
    args.sides = sides
    try:
        args.seeds = [int(seed) for seed in args.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds '{args.seeds}': give whole numbers, e.g. 0,1")
    if "official" in sides and args.worker is None:
        if not args.checkout:
            parser.error("the official side needs --checkout, a checkout of the official code")
        command.checkout(args.checkout, "HRM" if args.model == "hrm" else "TRM")
        command.need_torch()
    args.checkout = args.checkout.resolve() if args.checkout else None
    if args.worker is not None:
        return train_official(args)
    for path in (args.train, args.test):
        if args.grid == "sudoku" and not (ROOT / path).is_file():
            raise command.Failure(command.DATA, f"{path} does not exist; give a CSV file of puzzles")
        if args.grid == "maze" and not (ROOT / path / "identifiers.json").is_file():
            raise command.Failure(command.DATA, f"{path} is no dataset directory; make one with hrm_train data maze")
    args.binary = command.program(args.binary)
    visible_gpus(args)
    args.dir.mkdir(parents=True, exist_ok=True)
    args.deadline = time.time() + 60 * args.minutes
    return run_all(args)


if __name__ == "__main__":
    command.run(main)
