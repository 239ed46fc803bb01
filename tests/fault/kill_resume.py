#!/usr/bin/env python3
"""Kills a training with SIGKILL at random moments and proves that the resumed run loses nothing.

    tests/fault/kill_resume.py --binary build/bin/hrm_train --kills 20 [--seed 1] [--work DIR] [--config FILE] [key=value ...]

First the run is done without interruption. Then it is done again and killed: every kill moment is drawn uniformly over
the wall time of the uninterrupted run (start-up and saving included), and the run is started again each time. At the
end the final checkpoint must equal the uninterrupted one bit for bit, and so must the logged losses. When the
run finishes before its kill, it begins anew in a fresh folder, so that exactly --kills kills are made. Only Python's standard library is used.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

SMALL = [
    f"data.train={ROOT}/data/sudoku/train_17clue_1k.csv", f"data.test={ROOT}/data/sudoku/test_17clue_2k.csv",
    "data.augmentation=sudoku", "model.hidden_size=64", "model.num_heads=2", "model.H_layers=1", "model.L_layers=1",
    "model.H_cycles=1", "model.L_cycles=2", "model.halt_max_steps=4", "optim.lr=1e-3", "optim.puzzle_emb_lr=1e-3",
    "optim.warmup_steps=5", "optim.ema=0.99", "train.global_batch_size=16", "train.micro_batch_size=8", "train.steps=60",
    "train.log_every=5", "train.checkpoint_every=3", "train.keep_checkpoints=2", "train.eval_every=20",
    "eval.max_samples=16", "runtime.device=cpu", "runtime.threads=2",
]


def command(args, folder):
    line = [args.binary, "train", f"run.dir={folder}", "run.name=run"]
    line += ["--config", args.config] if args.config else SMALL
    return line + args.overrides


def start(args, folder, log):
    return subprocess.Popen(command(args, folder), stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def checkpoints(folder):
    root = folder / "run" / "checkpoints"
    if not root.is_dir():
        return []
    return sorted(p for p in root.iterdir() if p.name.startswith("step-"))


def losses(folder):
    """The log without the fields that measure time."""
    out = []
    for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
        out.append({k: v for k, v in json.loads(line).items() if not k.startswith("perf/")})
    return out


def final_bytes(folder):
    newest = checkpoints(folder)[-1]
    return newest.name, {p.name: p.read_bytes() for p in newest.iterdir() if p.name in ("model.pt", "state.safetensors")}


def run_to_end(args, folder, log):
    began = time.monotonic()
    code = start(args, folder, log).wait()
    if code != 0:
        sys.exit(f"the uninterrupted run ended with code {code}; see {log.name}")
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", default="", help="folder for the runs (default: a temporary one, removed afterwards)")
    parser.add_argument("--config", default="", help="configuration instead of the built-in small one")
    parser.add_argument("overrides", nargs="*", help="key=value, after the configuration")
    args = parser.parse_args()
    work = pathlib.Path(args.work or f"/tmp/hrm_kill_{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    log = open(work / "log.txt", "w")
    rng = random.Random(args.seed)

    wall = run_to_end(args, work / "straight", log)
    print(f"seed {args.seed}; the uninterrupted run took {wall:.1f} s", flush=True)
    expected_name, expected = final_bytes(work / "straight")
    expected_losses = losses(work / "straight")

    kills, rounds = 0, 0
    while kills < args.kills:
        rounds += 1
        folder = work / f"killed{rounds}"
        while True:
            process = start(args, folder, log)
            moment = rng.uniform(0, wall)
            try:
                code = process.wait(timeout=moment if kills < args.kills else None)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
                saved = checkpoints(folder)
                print(f"kill {kills} after {moment:.2f} s, newest checkpoint {saved[-1].name if saved else 'none'}", flush=True)
                continue
            if code != 0:
                sys.exit(f"FAILED: the resumed run ended with code {code}; see {work / 'log.txt'}")
            break
        name, got = final_bytes(folder)
        if name != expected_name or got.keys() != expected.keys():
            sys.exit(f"FAILED: ended at {name} with {sorted(got)}, expected {expected_name} with {sorted(expected)}")
        for file, content in expected.items():
            if got[file] != content:
                sys.exit(f"FAILED: {file} of {name} differs after {kills} kills")
        if losses(folder) != expected_losses:
            sys.exit(f"FAILED: the logged losses differ after {kills} kills")
        left = [p.name for p in (folder / "run" / "checkpoints").iterdir() if not p.name.startswith("step-")]
        if left:
            sys.exit(f"FAILED: temporary files were left behind: {left}")
    print(f"{kills} kills in {rounds} runs: final weights, state and logged losses are bit-identical")
    if not args.work:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
