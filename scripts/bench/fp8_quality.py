#!/usr/bin/env python3
"""Trains language models in bf16 and with fp8 blocks on the same data, and compares their validation losses.

    scripts/code_data                                                   # makes runs/data/code
    CUDA_VISIBLE_DEVICES=0,1 scripts/bench/fp8_quality.py --out fp8.md  # again, until it ends with code 0

Works: the recipes code_decoder and code_hrm for 1,000 steps, and wide, a decoder of 24 layers and D 1,024 for 3,000
steps. Arms: bf16, and values of precision.fp8_scaling. Each GPU that CUDA_VISIBLE_DEVICES names trains --jobs runs at a
time. Without the variable all runs share one device.

After --minutes, or SIGTERM, the runs save and stop, and the script ends with code 75. The next call resumes them. Runs
also save every --save-every steps, so that a killed machine loses no more than these. A checkpoint of wide takes 4 GB.
Finished runs stay in --work and are not trained again. Every call writes the table of what is finished: bits per byte of
each seed at the last evaluation, the mean difference from bf16 of the same seeds, the largest share of saturated tensors,
and the largest share of clamped values of any layer. Times of a step are comparable only with --jobs 1 and a GPU without
other work. Needs no Python package.

--tiny trains small models for a few steps, on any device: a trial of the script that shows nothing about accuracy.
"""
import collections
import json
import os
import pathlib
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
import command  # noqa: E402
import lm_quality  # noqa: E402

STOPPED = 75  # as of hrm_train, which has saved then
SAVING_S = 120
Work = collections.namedtuple("Work", "recipe steps most_seeds settings")
WORKS = {
    "decoder": Work("code_decoder", 1000, None, []),
    "hrm": Work("code_hrm", 1000, None, []),
    "wide": Work("code_decoder", 3000, 1, ["lm.hidden_size=1024", "lm.num_heads=16", "lm.layers=24", "optim.lr=5e-4",
                                           "train.eval_every=500"]),
}
TINY = ["lm.hidden_size=32", "lm.num_heads=2", "lm.layers=2", "data.decoder_len=32", "train.global_batch_size=4",
        "eval.max_samples=8", "train.log_every=1", "train.eval_every=0"]
TINY_HRM = ["lm.enc_layers=1", "lm.h_layers=1", "lm.l_layers=1", "data.encoder_len=32"]
BASE = "bf16"
Job = collections.namedtuple("Job", "work arm seed")


def jobs_of(args):
    """The seeds of a work one after the other, so that whole rows of the table are finished first."""
    return [Job(work, arm, seed) for work in args.works for seed in range(args.seeds)
            if seed < (WORKS[work].most_seeds or args.seeds) for arm in args.arms]


def name_of(args, job):
    return f"{job.work}_{job.arm}_{args.steps or WORKS[job.work].steps}_{job.seed}"


def settings_of(args, job):
    work = WORKS[job.work]
    settings = [f"run.dir={args.work}", f"run.name={name_of(args, job)}", f"run.seed={job.seed}",
                f"data.train={args.data}", f"train.steps={args.steps or work.steps}", "eval.max_samples=0",
                "train.keep_best=false", "train.keep_checkpoints=1", f"train.checkpoint_every={args.save_every}", *work.settings]
    if args.tiny:
        settings += TINY + (TINY_HRM if job.work == "hrm" else [])
    settings += args.set
    if job.arm != BASE:
        settings += ["precision.blocks=fp8", f"precision.fp8_scaling={job.arm}", *args.fp8_set]
    return settings


def result_of(args, job):
    """What the run has come to; None: it has not ended."""
    file = args.work / name_of(args, job) / "metrics.jsonl"
    if not file.exists():
        return None
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if not any(line["step"] == (args.steps or WORKS[job.work].steps) and "eval/loss" in line for line in lines):
        return None
    # train/fp8/<kind>/saturated: share of tensors. train/fp8/<layer>/<kind>/saturated: share of values.
    shares = collections.defaultdict(list)
    for line in lines:
        for key, value in line.items():
            if key.startswith("train/fp8/") and key.endswith("/saturated"):
                shares["saturated" if key.count("/") == 3 else "clamped"].append(value)
    return lm_quality.read(lines) | {name: max(shares[name], default=None) for name in ("saturated", "clamped")}


class Runs:
    """Jobs on devices, until all have ended, one has failed, or the time is over."""

    def __init__(self, args, jobs):
        self.args, self.deadline = args, time.monotonic() + 60 * args.minutes
        self.waiting, self.failure = queue.SimpleQueue(), None
        for job in jobs:
            self.waiting.put(job)

    def stop(self):
        self.deadline = 0

    def is_over(self):
        return self.failure is not None or time.monotonic() > self.deadline

    def train(self, job, gpu):
        environment = os.environ | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
        recipe = ROOT / "configs/language" / f"{WORKS[job.work].recipe}.json"
        words = [self.args.binary, "train", "--config", str(recipe), *settings_of(self.args, job)]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True, env=environment)
        said = collections.deque(maxlen=1)  # its last line
        reader = threading.Thread(target=lambda: said.extend(line.strip() for line in process.stderr if line.strip()))
        reader.start()
        while process.poll() is None and not self.is_over():
            time.sleep(0.1)
        stopping = process.poll() is None
        if stopping:
            process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(SAVING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        reader.join()
        process.stderr.close()
        if code not in (0, STOPPED) and not (stopping and code == -signal.SIGTERM):  # it had not begun yet
            self.failure = f"{name_of(self.args, job)} ended with {code}: {said[-1] if said else 'no words'}"

    def serve(self, gpu):
        while not self.is_over():
            try:
                job = self.waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self.train(job, gpu)
            except OSError as error:
                self.failure = f"{name_of(self.args, job)}: {error}"

    def run(self, gpus):
        threads = [threading.Thread(target=self.serve, args=(gpu,)) for gpu in gpus for _ in range(self.args.jobs)]
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failure:
            raise command.Failure(command.MACHINE, self.failure)


def table(args, results):
    """Of the finished jobs: {job: result}."""
    lines = ["| work | arm | bits per byte, by seed | from bf16 | loss from bf16 | saturated at most | clamped at most | "
             "ms per step |", "|---|---|---|---:|---:|---:|---:|---:|"]
    for work in args.works:
        for arm in args.arms:
            found = {job.seed: r for job, r in results.items() if (job.work, job.arm) == (work, arm)}
            if not found:
                continue
            base = {seed: results.get(Job(work, BASE, seed)) for seed in found}
            pairs = [(r, base[seed]) for seed, r in found.items() if base[seed]] if arm != BASE else []
            bits = ", ".join(f"{found[seed]['bits_per_byte']:.4f}" for seed in sorted(found))
            relative = [100 * (r["bits_per_byte"] / b["bits_per_byte"] - 1) for r, b in pairs]
            losses = [r["loss"] - b["loss"] for r, b in pairs]
            most = {name: [r[name] for r in found.values() if r[name] is not None] for name in ("saturated", "clamped")}
            ms = statistics.median(r["step_ms"] for r in found.values())
            lines.append(f"| {work}, {args.steps or WORKS[work].steps:,} steps | {arm} | {bits} | "
                         + (f"{statistics.mean(relative):+.2f} % | {statistics.mean(losses):+.4f} | " if pairs else "- | - | ")
                         + (f"{100 * max(most['saturated']):.1f} % | " if most["saturated"] else "- | ")
                         + (f"{100 * max(most['clamped']):.3f} % | " if most["clamped"] else "- | ") + f"{ms:.1f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--which", default=",".join(WORKS), help="works, comma-separated (default: %(default)s)")
    parser.add_argument("--arms", default="bf16,delayed,current", help="comma-separated (default: %(default)s)")
    parser.add_argument("--seeds", type=command.count(), default=2, help="of each arm; wide has one (default: %(default)s)")
    parser.add_argument("--steps", type=command.count(0), default=0, help="0 = as the works say (default)")
    parser.add_argument("--minutes", type=command.number(float, 0, above=True), default=7,
                        help="of training in this call; saving comes on top (default: %(default)s)")
    parser.add_argument("--save-every", type=command.count(0), default=500, metavar="STEPS",
                        help="a checkpoint on the way; 0 = only at the end (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="a trial of 6 steps, or of --steps")
    parser.add_argument("--jobs", type=command.count(), default=1, help="runs at a time on each GPU (default: %(default)s)")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "runs/data/code", help="(default: runs/data/code)")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "runs/fp8_quality",
                        help="folder of the runs (default: runs/fp8_quality)")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    parser.add_argument("--fp8-set", action="append", default=[], metavar="KEY=VALUE", help="for all arms but bf16")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="file of the table, too")
    args = parser.parse_args()
    args.works, args.arms = args.which.split(","), args.arms.split(",")
    for work in args.works:
        if work not in WORKS:
            raise command.Failure(command.USAGE, f"--which: no work '{work}'; there are {', '.join(WORKS)}")
    if args.tiny:
        args.steps = args.steps or 6
    args.binary = command.program(args.binary)
    command.writable(args.out)
    args.data, args.work = args.data.resolve(), args.work.resolve()
    if not args.data.is_dir():
        raise command.Failure(command.DATA, f"there is no folder {args.data}; scripts/code_data makes runs/data/code")
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = listed.split(",") if listed else [None]

    jobs = jobs_of(args)
    try:
        Runs(args, [job for job in jobs if result_of(args, job) is None]).run(gpus)
    finally:
        results = {job: result for job in jobs if (result := result_of(args, job))}
        if results:
            text = table(args, results)
            print(text, end="", flush=True)
            if args.out:
                args.out.write_text(text, encoding="utf-8")
    left = [name_of(args, job) for job in jobs if job not in results]
    if left:
        print(f"stopped with {len(left)} of {len(jobs)} runs to finish, {left[0]} next; start it again", file=sys.stderr)
        return STOPPED
    return 0


if __name__ == "__main__":
    command.run(main)
