#!/usr/bin/env python3
"""What saving costs a training: steps with checkpoints beside steps without, taking turns.

    scripts/bench/save_cost.py --config configs/puzzle/hrm_sudoku17.json --every 500 --saves 3 --rounds 3

Each turn is a training of its own of `--every` * `--saves` + some steps that logs every step; the time between two lines of
its log is a step's. The first steps of a process do not count. Shown are medians over the turns: the share that saving adds
to the average step, the longest step beside the median one, and the memory that it adds on the host beside the size of a
checkpoint: the most that the machine had less of, before the last step, than before the process began. That counts pages
that are locked for a GPU, too, but not what the kernel keeps of files; nothing else should run on the machine meanwhile.
Only Python's standard library is used.
"""
import datetime
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIP = 20  # steps at the start of a process: choosing algorithms, capturing graphs
SIDES = {"without": ["train.checkpoint_every=0"], "in the background": [], "training waits": ["train.async_checkpoints=false"]}


def log_times(folder):
    """Seconds at which each step was logged, by its number."""
    times = {}
    for line in (folder / "run" / "log" / "rank_0.log").read_text().splitlines():
        found = re.match(r"(\S+) info step (\d+)/\d+ \|", line)
        if found:
            times[int(found[2])] = datetime.datetime.fromisoformat(found[1]).timestamp()
    return times


def available_bytes():
    found = re.search(r"^MemAvailable: +(\d+) kB", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024


class Sampler(threading.Thread):
    """What the machine has of memory, twenty times a second."""

    def __init__(self):
        super().__init__(daemon=True)
        self.samples, self.over = [(time.time(), available_bytes())], threading.Event()

    def run(self):
        while not self.over.wait(0.05):
            self.samples.append((time.time(), available_bytes()))

    def used(self, until):
        """The most that was used more than at the beginning, up to a time."""
        return self.samples[0][1] - min(free for at, free in self.samples if at <= until)


def turn(args, side, folder):
    every = [] if side == "without" else [f"train.checkpoint_every={args.every}"]
    steps = args.every * args.saves + args.every // 2
    words = [args.binary, "train", *(["--config", args.config] if args.config else []), f"run.dir={folder}", "run.name=run", f"train.steps={steps}",
             "train.log_every=1", "train.eval_every=0", "data.test=", "optim.warmup_steps=10", *every, *SIDES[side], *args.overrides]
    time.sleep(2)  # what the process before left behind is gone
    sampler = Sampler()
    sampler.start()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = process.stderr.read()
    process.wait()
    sampler.over.set()
    if process.returncode != 0:
        raise command.Failure(process.returncode if process.returncode > 0 else command.MACHINE, f"a training failed: {said.strip().splitlines()[-1]}")
    times = log_times(folder)
    # The last step waits for its checkpoint on both sides.
    until = times[steps - 1]
    steps = {step: times[step] - times[step - 1] for step in range(SKIP + 2, steps) if step in times and step - 1 in times}
    size = sum(file.stat().st_size for file in sorted((folder / "run" / "checkpoints").glob("step-*"))[-1].iterdir())
    return dict(side=side, mean=statistics.fmean(steps.values()), median=statistics.median(steps.values()),
                longest=max(steps.values()), memory=sampler.used(until), checkpoint=size)


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--config", default="", metavar="FILE")
    parser.add_argument("--every", type=command.count(40), default=500, help="steps between two checkpoints (default: %(default)s)")
    parser.add_argument("--saves", type=command.count(), default=3, help="checkpoints of a turn (default: %(default)s)")
    parser.add_argument("--rounds", type=command.count(), default=3, help="turns of each side (default: %(default)s)")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--folder", default=None, help="where the runs go, on the disk that is meant (default: a temporary one)")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all turns")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the configuration")
    args = parser.parse_args()
    args.binary = command.program(args.binary)
    command.writable(args.out)
    turns = []
    for number in range(args.rounds):
        for side in SIDES:
            folder = pathlib.Path(tempfile.mkdtemp(prefix="hrm_save_cost_", dir=args.folder))
            try:
                turns.append(turn(args, side, folder))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            print(f"round {number + 1}: {side}: {turns[-1]['mean'] * 1e3:.3f} ms a step, the longest {turns[-1]['longest'] * 1e3:.1f}", file=sys.stderr, flush=True)
    if args.out:
        args.out.write_text(json.dumps(turns, indent=1) + "\n")
    middle = {side: {key: statistics.median(t[key] for t in turns if t["side"] == side)
                     for key in ("mean", "median", "longest", "memory", "checkpoint")} for side in SIDES}
    base = middle["without"]
    print("| checkpoints | mean step, ms | added | longest step / median | host memory added, MiB | a checkpoint, MiB |\n|---|---:|---:|---:|---:|---:|")
    for side, m in middle.items():
        print(f"| {side} | {m['mean'] * 1e3:.3f} | {100 * (m['mean'] / base['mean'] - 1):+.2f} % | {m['longest'] / m['median']:.2f} | "
              f"{(m['memory'] - base['memory']) / 2**20:.0f} | {m['checkpoint'] / 2**20:.0f} |")
    return 0


if __name__ == "__main__":
    command.run(main)
