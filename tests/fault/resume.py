#!/usr/bin/env python3
"""A training that is resumed ends as one that was never interrupted.

    tests/fault/resume.py --binary build/bin/hrm_train [--long] [--work DIR] [--minutes M] [--seed 1]

twice             a resume of a resume: killed three times, each time a few steps behind a checkpoint
epoch             killed one step before, at and behind the end of an epoch, with a batch that divides it and one that
                  does not, with both ways to take rows
evaluation        killed in an evaluation, and between one and the checkpoint of its step
again             a finished run that is started again changes nothing, and goes on when it gets more steps
stored runs       from checkpoints of earlier releases, one for each kind of state: losses within 1e-4 of those of the run
                  itself

The others with and without the average of the weights, TRM and HRM, accumulation, 1 and 2 ranks in --long.
"""
import json
import shutil

from fault import ROOT, SAMPLES, TRM, Campaign, Run, check, checkpoints, contents, metrics, same_end, tidy

# previous_release was made by hand, the others by make_stored_runs.py; hrm_train 0.1.0 of different commits wrote them.
STORED = [ROOT / "tests/fault/previous_release", *sorted(path for path in (ROOT / "tests/fault/stored_runs").iterdir()
                                                         if path.is_dir())]

VARIANTS = {
    "hrm": ([], 1),
    "trm without average": ([*TRM, "optim.ema=0"], 1),
    "accumulation, adamw": (["train.micro_batch_size=2", "optim.name=adamw"], 1),
    "2 ranks, zero 2": (["parallel.zero=2"], 2),
}


def killed_at(campaign, name, more, ranks, orders, like=""):
    """A run that dies by each of `orders` in turn, then reaches its end; `like`: the name of its like without, which may
    save at other steps."""
    straight = campaign.straight(like or name, more, ranks)
    folder, resumed = campaign.folder(name), []
    for order in [*orders, ""]:
        run = Run(campaign, folder, more, ranks, fail=order)
        if order:
            check(-9 in run.wait(), f"{folder}: HRM_FAIL={order} did not kill it\n{run.said()}")
        else:
            run.ended()
        resumed.append(run.resumed_at())
    same_end(straight, folder)
    tidy(folder)
    return resumed


def main():
    campaign = Campaign(__doc__)
    names = list(VARIANTS) if campaign.long else ["hrm"]
    cases = []

    def add(kind, function):
        for number, name in enumerate(names):
            more, ranks = VARIANTS[name]
            # Saved at once, so that a kill leaves the checkpoint before it for sure.
            more = ["train.async_checkpoints=false", *more]
            cases.append((f"{kind}: {name}", lambda f=function, n=f"{kind}_{number}", m=more, r=ranks: f(n, m, r)))

    def twice(name, more, ranks):
        more = ["train.steps=24", "train.checkpoint_every=4", "train.eval_every=12", *more]
        resumed = killed_at(campaign, name, more, ranks, [f"step.begin:{n}:kill" for n in (7, 8, 9)])
        check(resumed == [0, 4, 8, 16], f"{name}: went on at {resumed}")
        return len(resumed) - 1

    def epoch(name, more, ranks):
        number = 0
        for rows in ("true", "false") if campaign.long else ("true",):
            for batch in (4, 6) if campaign.long else (6,):
                end = SAMPLES // batch
                for at in (end - 1, end, end + 1):
                    here = [f"train.steps={2 * end + 3}", f"train.checkpoint_every={at}", *more,
                            f"train.global_batch_size={batch}", f"data.reference_semantics={rows}"]
                    if "train.micro_batch_size=2" in more and batch == 6 and ranks == 1:
                        here += ["train.micro_batch_size=3"]
                    resumed = killed_at(campaign, f"{name}_{rows}_{batch}_{at}", here, ranks,
                                        [f"step.begin:{at + 1}:kill"], f"{name}_{rows}_{batch}")
                    check(resumed == [0, at], f"{name}: went on at {resumed}")
                    number += 1
        return number

    def evaluation(name, more, ranks):
        more = ["train.steps=12", "train.checkpoint_every=4", "train.eval_every=4", "eval.batch_size=2", *more]
        orders = ["evaluation.batch:1:kill", "checkpoint.write:1:kill", "checkpoint.commit:2:kill"]
        killed_at(campaign, name, more, ranks, orders)
        return len(orders)

    def again(name, more, ranks):
        short = ["train.checkpoint_every=4", "train.eval_every=6", *more]
        folder = campaign.folder(name)
        Run(campaign, folder, ["train.steps=12", *short], ranks).ended()
        before = contents(checkpoints(folder)[-1]), metrics(folder)
        run = Run(campaign, folder, ["train.steps=12", *short], ranks)
        run.ended()
        check("this run is finished" in run.said(0), f"{folder}: does not say that it is finished\n{run.said()}")
        check(before == (contents(checkpoints(folder)[-1]), metrics(folder)), f"{folder}: a finished run has changed")
        Run(campaign, folder, ["train.steps=18", *short], ranks).ended()
        # Step 12 is evaluated and logged in both, so that there is no difference.
        same_end(campaign.straight(name, ["train.steps=18", *short], ranks), folder)
        return 2

    def stored(old):
        folder = campaign.folder(f"stored_{old.name}")
        kept = next(old.glob("step-*"))
        step = int(kept.name.removeprefix("step-"))
        shutil.copytree(kept, folder / "run" / "checkpoints" / kept.name)
        # The program keeps the index of a file of lines beside it.
        data = folder / "stored"
        shutil.copytree(old, data, ignore=shutil.ignore_patterns("step-*"))
        config = json.loads((data / "config.json").read_text())
        del config["run"]
        task = config.pop("task", "puzzle")
        for section, key in ("data", "train"), ("data", "test"), ("hf", "model"):
            if key in config.get(section, {}):
                config[section][key] = str(data / config[section][key])
        settings = [f"task={task}"] + [f"{section}.{key}={value if isinstance(value, str) else json.dumps(value)}"
                                       for section, values in config.items() for key, value in values.items()]
        run = Run(campaign, folder, settings, 2 if "parallel" in config else 1, settings=())
        run.ended()
        check(run.resumed_at() == step, f"{folder}: did not go on at step {step}\n{run.said()}")
        then = [v for v in map(json.loads, (old / "metrics.jsonl").read_text().splitlines()) if v["step"] > step]
        now, worst = metrics(folder), campaign.state.get("difference", 0.0)
        check([v["step"] for v in now] == [v["step"] for v in then], f"{folder}: other steps are logged")
        for before, after in zip(then, now):
            check(before.keys() <= after.keys(), f"{folder}: step {before['step']} has no {sorted(before.keys() - after.keys())}")
            for key in (key for key in before if key.endswith("loss") or key == "train/lr"):
                difference = abs(before[key] - after[key]) / max(abs(before[key]), 1e-6)
                worst = max(worst, difference)
                check(difference <= 1e-4, f"{folder}: step {before['step']}: {key} was {before[key]}, is {after[key]}")
        campaign.state["difference"] = worst
        return 1

    add("twice", twice)
    add("epoch", epoch)
    add("evaluation", evaluation)
    add("again", again)
    for old in STORED:
        cases.append((f"stored run {old.name}", lambda old=old: stored(old)))
    campaign.run(cases, lambda resumes, number: f"resume of a resume, at an epoch's end, around evaluations, of a finished run, "
                 f"from {len(STORED)} stored runs | {resumes} resumes | ends bit-identical; from stored runs losses "
                 f"within {campaign.state.get('difference', float('nan')):.1g}")


if __name__ == "__main__":
    main()
