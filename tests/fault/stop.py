#!/usr/bin/env python3
"""A training that is asked to stop saves, ends with code 75 within 30 s, and loses no step.

    tests/fault/stop.py --binary build/bin/hrm_train [--long] [--work DIR] [--minutes M] [--seed 1]

random      SIGTERM, SIGINT, SIGUSR1 and SIGHUP at moments drawn over the whole run, to one process, to one of two ranks and to
            both, again and again until the run is done
save        the signal comes while a checkpoint is being written
evaluation  the signal comes in the middle of an evaluation
second      a second SIGTERM or SIGINT does not wait for the checkpoint that is being written
stuck       a step, an evaluation's batch or a save that never ends is ended by the watchdog (train.stuck_after_s) with code 7, one
            sentence and where the program hangs; the next start goes on

The step it says it stopped at is the newest checkpoint, and the next start goes on there. The end is that of an
undisturbed run, bit for bit. A signal before the program has looked at its run folder may end it at once.
"""
import random
import signal
import time

from fault import TRM, Campaign, Run, check, checkpoints, last_step, same_end, tidy

SIGNALS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP]
# As nohup leaves it: the programs would inherit that it is ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
LIMIT = 30


def main():
    campaign = Campaign(__doc__)
    slowest = campaign.state.setdefault("slowest", [0.0])

    def settings(ranks):
        more = ["train.checkpoint_every=4", "train.eval_every=12", "eval.batch_size=1", f"train.steps={200 if campaign.long else 60}"]
        return more + ([*TRM, "parallel.zero=1"] if ranks > 1 else [])

    def straight(ranks):
        return campaign.straight(f"{ranks}", settings(ranks), ranks)

    def stopped(run, number, to=None):
        """Sends the signal: 75 in time, with the step saved."""
        early = "run folder" not in run.said(0)
        began = time.monotonic()
        run.send(number, to)
        if early:
            run.end_soon()
        codes = run.wait(LIMIT + 60)
        seconds = time.monotonic() - began
        if codes[0] == 0 or early:
            check(not {1, -6, -11} & set(codes), f"{run.folder}: {number.name}: ended with {codes}\n{run.said()}")
            return False
        check(set(codes) == {75}, f"{run.folder}: {number.name}: ended with {codes}\n{run.said()}")
        check(seconds <= LIMIT, f"{run.folder}: {number.name}: it took {seconds:.1f} s to end")
        slowest[0] = max(slowest[0], seconds)
        newest = checkpoints(run.folder)[-1].name
        check(f"stopped at step {int(newest[5:])} of" in run.said(0), f"{run.folder}: stopped with {newest}\n{run.said()}")
        check(int(newest[5:]) >= last_step(run.folder), f"{run.folder}: steps behind {newest} were logged")
        return True

    def to_the_end(folder, ranks):
        newest = checkpoints(folder)
        run = Run(campaign, folder, settings(ranks), ranks)
        run.ended()
        check(not newest or run.resumed_at() in (0, int(newest[-1].name[5:])), f"{folder}: went on at {run.resumed_at()}")
        same_end(straight(ranks), folder)
        tidy(folder)

    def at_random(number, ranks):
        rng = random.Random(f"{campaign.args.seed} {ranks} {number}")
        folder, stops = campaign.folder(f"random_{ranks}_{number}"), 0
        for _ in range(rng.randint(1, 4)):
            run = Run(campaign, folder, settings(ranks), ranks)
            campaign.moment(run, straight(ranks), rng.random(), skip_start=number % 2 == 1)  # at any moment, or in the steps
            stops += stopped(run, rng.choice(SIGNALS), rng.choice([None, *range(ranks)]) if ranks > 1 else None)
        to_the_end(folder, ranks)
        return stops

    def during(what, ranks, number):
        # Held at the second checkpoint, or between the first two batches of an evaluation.
        order, step = {"save": ("checkpoint.write:2:sleep=1", 8), "evaluation": ("evaluation.batch:1:sleep=1", 12)}[what]
        folder = campaign.folder(f"{what}_{ranks}_{number.name}")
        run = Run(campaign, folder, settings(ranks), ranks, fail=order).wait_step(step)
        time.sleep(0.3)
        check(stopped(run, number), f"{folder}: was not stopped\n{run.said()}")
        if what == "evaluation":
            check("evaluation:" not in run.said(0), f"{folder}: the evaluation was not left\n{run.said()}")
        to_the_end(folder, ranks)

    def second(ranks, number):
        folder = campaign.folder(f"second_{ranks}_{number.name}")
        run = Run(campaign, folder, settings(ranks), ranks, fail="checkpoint.write:2:sleep=60").wait_step(8)
        time.sleep(0.3)
        run.send(number)
        time.sleep(1)
        check(run.alive(), f"{folder}: did not wait for the checkpoint\n{run.said()}")
        began = time.monotonic()
        run.send(number)
        codes = run.wait(10)
        check(set(codes) == {128 + number} and time.monotonic() - began < 2, f"{folder}: {codes} after {time.monotonic() - began:.1f} s")
        to_the_end(folder, ranks)

    waiting = {}

    def begin_stuck(order, ranks):
        folder = campaign.folder(f"stuck_{ranks}_{order.replace('.', '_').replace(':', '_')}")
        more = [*settings(ranks), "train.stuck_after_s=5"]
        if order.startswith("checkpoint"):
            more.append("train.async_checkpoints=false")
        return Run(campaign, folder, more, ranks, fail={ranks - 1 if order.startswith("step") else 0: f"{order}:sleep=600"})

    def stuck(order, ranks):
        # All of them wait at the same time: the limit is one that a busy machine does not reach by itself.
        for other in endless if not waiting else []:
            waiting[other] = begin_stuck(*other)
        run = waiting[order, ranks]
        folder, began = run.folder, time.monotonic()
        codes = run.wait(60)
        seconds = time.monotonic() - began
        check(set(codes) == {7}, f"{folder}: {codes} after {seconds:.1f} s\n{run.said()}")
        who = "the training is stuck" if ranks == 1 else "rank 1 is stuck"
        check(f"{who} at step" in run.said() and "training thread" in run.said(), f"{folder}: did not say where\n{run.said()}")
        to_the_end(folder, ranks)

    endless = [("step.begin:30", 1), ("evaluation.batch:2", 1), ("checkpoint.write:3", 1), ("step.begin:30", 2)]
    cases = [(f"stuck, {order}, {ranks} ranks", lambda o=order, r=ranks: stuck(o, r)) for order, ranks in endless]
    for ranks in (1, 2):
        signals = SIGNALS if campaign.long else [SIGNALS[ranks]]
        for number in signals:
            for what in ("save", "evaluation"):
                cases.append((f"{what}, {ranks} ranks, {number.name}", lambda w=what, r=ranks, n=number: during(w, r, n)))
        for number in (signal.SIGTERM, signal.SIGINT) if campaign.long else (signal.SIGTERM,):
            cases.append((f"second, {ranks} ranks, {number.name}", lambda r=ranks, n=number: second(r, n)))
        for number in range((40, 20)[ranks - 1] if campaign.long else 2):
            cases.append((f"random, {ranks} ranks, {number}", lambda n=number, r=ranks: at_random(n, r)))
    campaign.run(cases, lambda stops, number: f"SIGTERM, SIGUSR1, SIGINT, SIGHUP at random moments, in a save, in an evaluation, twice; "
                 f"steps, evaluations and saves that never end; 1 and 2 ranks | {stops} stops | code 75 after {slowest[0]:.1f} s at most, the step saved, ends "
                 "bit-identical; a second signal, and the watchdog, end at once")


if __name__ == "__main__":
    main()
