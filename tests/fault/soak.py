#!/usr/bin/env python3
"""A training that saves all the time, for long, is killed now and then, and must not grow.

    tests/fault/soak.py --binary build/bin/hrm_train [--long] [--work DIR] [--minutes M]

It trains for --minutes (1; --long: 40) and saves about twice in a second. Most of the time it is one of a few
processes that live long, in between others are killed after some seconds. Resident memory is read twice in a second
from the fourth part of a long life on: its slope is that of the least squares over all long lives, each with its own
beginning. It must stay under 1 MB/h (--long; a minute can only show that it is under 5 MB in it). Open files must
not become more, and the logs by no more than one line, or record, of what is logged.
"""
import os
import random
import signal
import time

from fault import Campaign, Run, anonymous_bytes, check, checkpoints, last_step, metrics, tidy

EVERY = 10
MORE = ["train.steps=100000000", f"train.checkpoint_every={EVERY}", f"train.log_every={EVERY}", "train.eval_every=500"]


def main():
    campaign = Campaign(__doc__)
    minutes = campaign.args.minutes or (40 if campaign.long else 1)
    campaign.args.minutes = 0  # not a limit of cases here
    lives = 4 if minutes >= 30 else 1
    short = 10 if minutes >= 30 else 3  # killed processes before each long life
    long_s = 60 * minutes / lives - 6 * short
    facts = campaign.state.setdefault("facts", {"xx": 0.0, "xy": 0.0, "hours": 0.0, "kills": 0, "files": [], "growth": 0})
    folder = campaign.work / "soak"

    def brief(number):
        seconds = random.Random(f"{campaign.args.seed} {number}").uniform(2, 8)
        before = last_step(folder)
        run = Run(campaign, folder, MORE)
        time.sleep(seconds)
        check(run.alive(), f"{folder}: ended by itself\n{run.said()}")
        run.kill()
        check(before - (run.resumed_at() or before) <= 2 * EVERY, f"{folder}: {before} was logged, went on at {run.resumed_at()}")
        facts["kills"] += 1
        return 0

    def life(number):
        run = Run(campaign, folder, MORE)
        pid, began, samples, files = run.processes[0].pid, time.monotonic(), [], []
        run.wait_for("resumed")
        first = last_step(folder)
        while (now := time.monotonic() - began) < long_s:
            time.sleep(0.5)
            check(run.alive(), f"{folder}: ended by itself\n{run.said()}")
            if now > long_s / 4:
                samples.append((now / 3600, anonymous_bytes(pid) / 1e6))
                files.append(len(os.listdir(f"/proc/{pid}/fd")))
        run.send(signal.SIGTERM)
        run.ended(75)
        n = len(samples)
        mean_t, mean_r = sum(t for t, _ in samples) / n, sum(r for _, r in samples) / n
        facts["xx"] += sum((t - mean_t) ** 2 for t, _ in samples)
        facts["xy"] += sum((t - mean_t) * (r - mean_r) for t, r in samples)
        facts["hours"] += samples[-1][0] - samples[0][0]
        quarter = max(n // 4, 1)
        facts["growth"] = max(facts["growth"], max(r for _, r in samples[-quarter:]) - max(r for _, r in samples[:quarter]))
        # While a checkpoint is written some more are open.
        facts["files"] += [min(files[:quarter]), min(files[-quarter:]), max(files)]
        check(min(files[-quarter:]) <= min(files[:quarter]) and max(files) - min(files) <= 4,
              f"{folder}: open files were {min(files[:quarter])} and are {min(files[-quarter:])}, at most {max(files)}")
        saves = (last_step(folder) - first) // EVERY
        with open(folder / "samples.csv", "a") as out:
            out.writelines(f"{number},{3600 * t:.1f},{r:.3f}\n" for t, r in samples)
        return saves

    def bounds():
        lines = metrics(folder)
        run = folder / "run"
        sizes = {name: sum(p.stat().st_size for p in (run / name).rglob("*")) for name in ("log", "tensorboard")}
        starts = facts["kills"] + lives
        # Lines that a killed process had logged are in the log a second time.
        check(sizes["log"] < 250 * len(lines) + 6000 * starts, f"the log has {sizes['log']} bytes after {starts} starts")
        size = (run / "metrics.jsonl").stat().st_size
        check(size < 1200 * len(lines), f"metrics.jsonl has {size} bytes in {len(lines)} lines")
        check(sizes["tensorboard"] < 2000 * (last_step(folder) / EVERY) + 1000 * starts, f"TensorBoard has {sizes['tensorboard']} bytes")
        steps = [line["step"] for line in lines if "eval/count" not in line]
        check(steps == list(range(EVERY, steps[-1] + 1, EVERY))
              or steps == [*range(EVERY, steps[-1], EVERY), steps[-1]], f"{folder}: steps are missing in the log, or twice")
        check(len(checkpoints(folder)) <= 2, f"{folder}: {checkpoints(folder)}")
        tidy(folder)
        slope = facts["xy"] / facts["xx"]
        facts["slope"] = slope
        if campaign.long:
            check(slope < 1, f"resident memory grows by {slope:.2f} MB/h")
        else:
            check(facts["growth"] < 5, f"resident memory grew by {facts['growth']:.1f} MB")
        return 0

    cases = []
    for number in range(lives):
        cases += [(f"killed {number}.{i}", lambda n=f"{number}.{i}": brief(n)) for i in range(short)]
        cases.append((f"life {number}", lambda n=number: life(n)))
    cases.append(("bounds", bounds))
    campaign.run(cases, lambda saves, _: f"training with a save every {EVERY} steps, and kills between | {saves} saves and "
                 f"{facts['kills']} kills in {minutes:g} minutes | resident memory {facts.get('slope', float('nan')):+.2f} MB/h "
                 f"over {60 * facts['hours']:.1f} minutes, open files {sorted(set(facts['files']))}, logs within their bounds")


if __name__ == "__main__":
    main()
