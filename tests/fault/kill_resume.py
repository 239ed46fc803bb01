#!/usr/bin/env python3
"""Kills trainings with SIGKILL at random moments and proves that the resumed runs lose nothing.

    tests/fault/kill_resume.py --binary build/bin/hrm_train [--kills 30] [--seed 1] [--long] [--work DIR] [--minutes M]
                                [--config FILE] [key=value ...]

Each variant is trained without a disturbance, then again and killed: the moments are drawn uniformly over the
undisturbed run (start and saving included), and the run is started again each time. At the end checkpoint and
logged values must be those of the undisturbed run, bit for bit. No start may go back further than one interval
before the newest checkpoint that was due: that one may have been on its way to the disk. A run that finishes before its
kill begins anew, so that exactly --kills kills are made (--long: 300), spread over the variants. With --config that
configuration is the only variant, on a GPU with runtime.device=cuda.
"""
import random
import signal

from fault import TRM, Campaign, Run, check, last_step, same_end, tidy

VARIANTS = {
    "hrm, average of the weights": ([], 1),
    "hrm, no average, adamw": (["optim.ema=0", "optim.name=adamw"], 1),
    "trm, accumulation": ([*TRM, "train.micro_batch_size=2"], 1),
    "trm, 2 ranks": (TRM, 2),
    "hrm, 2 ranks, accumulation, zero 1": (["train.micro_batch_size=1", "parallel.zero=1"], 2),
    "hrm, 2 ranks, zero 2": (["parallel.zero=2"], 2),
}
EVERY = 3


def main():
    campaign = Campaign(__doc__, kills=0, config="")
    config, variants = campaign.args.config, VARIANTS
    if config:
        campaign.settings, variants = ["--config", config], {config: ([], 1)}
    wanted = campaign.args.kills or (300 if campaign.long else 30)
    steps = 120 if campaign.long else 30
    counts = campaign.state.setdefault("kills", {})
    worst = campaign.state.setdefault("worst", [0])

    def case(number, name, share):
        more, ranks = variants[name]
        if not config:
            more = [f"train.steps={steps}", f"train.checkpoint_every={EVERY}", "train.eval_every=10",
                    "parallel.heartbeat_s=0.5", *more]
        straight = campaign.straight(f"{number}", more, ranks)
        kills = counts.get(name, 0)
        rng = random.Random(f"{campaign.args.seed} {name} {kills}")
        while True:
            folder = campaign.work / f"killed_{number}"
            reached = last_step(folder)
            run = Run(campaign, folder, more, ranks)
            if kills < share:
                campaign.moment(run, straight, rng.random())
            if kills < share and run.alive():
                # All ranks at once, or one: then the others leave by themselves, but for those that still wait at the
                # start for it to come, which the launcher ends.
                run.send(signal.SIGKILL, rng.choice([None, *range(ranks)]) if ranks > 1 else None)
                run.end_soon()
            codes = run.wait()
            if (at := run.resumed_at()) or "training     " in run.said(0):
                worst[0] = max(worst[0], reached - at)
                check(config or reached - at <= 2 * EVERY, f"{folder}: step {reached} was logged, the next start went on at {at}")
            if -9 in codes:
                kills += 1
                counts[name] = kills
                campaign.save()
                continue
            check(codes == [0] * ranks, f"{folder}: ended with {codes}\n{run.said()}")
            same_end(straight, folder)
            tidy(folder)
            campaign.folder(folder.name)
            if kills >= share:
                return kills

    names = list(variants)
    shares = [wanted // len(names) + (i < wanted % len(names)) for i in range(len(names))]
    campaign.run([(name, lambda i=i, name=name: case(i, name, shares[i])) for i, name in enumerate(names)],
                 lambda kills, number: f"SIGKILL at random moments, {number} variants of training, 1 and 2 ranks | "
                 f"{kills} kills | final weights, state and logged values bit-identical; at most {worst[0]} steps done "
                 f"again{'' if config else f' with a checkpoint every {EVERY}'}")


if __name__ == "__main__":
    main()
