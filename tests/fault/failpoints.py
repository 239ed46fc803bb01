#!/usr/bin/env python3
"""A training is killed at each of its failpoints, and the next start loses nothing.

    tests/fault/failpoints.py --binary build/bin/hrm_train [--long] [--work DIR] [--minutes M]

The names are those of `doctor --failpoints --json`. --long: for each name the process is killed when it gets there for the
first time, the second, ... until it ends undisturbed. That process starts from a checkpoint of step 4, trains to step 8,
evaluates and saves there. Else: each name once, and all file operations of that process (each 97th write), one start
going on where the one before it was killed. Every time the next start must go on from the newest checkpoint that has its
name, leave nothing temporary behind, and end as the undisturbed run, bit for bit. Every name must be hit.
"""
import itertools
import json
import shutil
import subprocess

from fault import TRM, Campaign, Run, check, checkpoints, same_end, tidy

MORE = ["train.steps=8", "train.checkpoint_every=4", "train.eval_every=4", "train.keep_checkpoints=1", "eval.batch_size=2"]
TWO = [*MORE, *TRM, "parallel.zero=1", "parallel.heartbeat_s=0.5", "parallel.timeout_s=10"]


def main():
    campaign = Campaign(__doc__)
    listed = json.loads(subprocess.run([campaign.binary, "doctor", "--failpoints", "--json"], check=True, capture_output=True).stdout)
    # Those of an axis are places of collective.start, which only a mesh has: tests/ranks/ranks.py axes kills there.
    names = [entry["name"] for entry in listed if entry["name"] not in {f"collective.{axis}" for axis in ("tensor", "shard", "replica", "data")}]
    check(len(names) > 10, f"doctor lists {names}")

    def begun(name, ranks=1, bad=False):
        """A run that was killed behind its checkpoint of step 4; `bad`: with a newer one that is not usable."""
        made = campaign.work / f"begun_{ranks}"
        if not (made / "begun").exists():
            campaign.folder(made.name)
            run = Run(campaign, made, [*(TWO if ranks > 1 else MORE), "train.async_checkpoints=false"], ranks, fail="step.begin:6:kill")
            check(set(run.wait()) == {-9} and [p.name for p in checkpoints(made)] == ["step-000000004"], f"{made}: {run.said()}")
            (made / "begun").touch()
        folder = campaign.folder(name.replace(".", "_"))
        shutil.copytree(made / "run", folder / "run")
        if bad:
            shutil.copytree(checkpoints(folder)[0], folder / "run/checkpoints/step-000000005")
        return folder

    def start(folder, fail="", ranks=1, bad=False, to_end=True):
        """Goes on from the newest good checkpoint."""
        newest = [p for p in checkpoints(folder) if not bad or p.name != "step-000000005"][-1]
        run = Run(campaign, folder, TWO if ranks > 1 else MORE, ranks, fail)
        codes = run.wait()
        # Killed in the last exchange of all, one leaves the other finished: then all is saved.
        straight = campaign.straight(f"{ranks}", TWO if ranks > 1 else MORE, ranks)
        whole = 0 in codes and -9 in codes and checkpoints(folder)[-1].name == checkpoints(straight)[-1].name
        if to_end or (0 in codes and not whole):
            check(codes == [0] * ranks, f"{folder}: ended with {codes}\n{run.said()}")
            check(run.resumed_at() == int(newest.name[5:]), f"{folder}: went on at {run.resumed_at()}, not {newest.name}\n{run.said()}")
            same_end(straight, folder)
            tidy(folder)
            if bad:
                check((folder / "run/checkpoints/bad-step-000000005").is_dir(), f"{folder}: the bad one was not put aside")
        return codes

    def kill_and_resume(name, hit, ranks=1, rank=0, bad=False):
        """False: it was not killed any more."""
        folder = begun(f"{name}_{hit}_{ranks}{rank}", ranks, bad)
        codes = start(folder, {rank: f"{name}:{hit}:kill"}, ranks, bad, to_end=False)
        if codes == [0] * ranks:
            shutil.rmtree(folder)
            return False
        check(codes[rank] == -9, f"{folder}: ended with {codes}")
        start(folder, ranks=ranks, bad=bad)
        shutil.rmtree(folder)
        return True

    def once(name, **more):
        check(kill_and_resume(name, 1, **more), f"{name} was not reached")

    def every_hit(name, **more):
        hits = 0
        while kill_and_resume(name, hits + 1, **more):
            hits += 1
        check(hits > 0, f"{name} was not reached")
        return hits

    def chain(title, orders):
        """Each start is killed by the next of the orders, in one folder as long as its last checkpoint is not there; until
        one is not killed, or all are done."""
        kills, folder = 0, begun(f"chain_{title}")
        for order in orders:
            if checkpoints(folder)[-1].name == "step-000000008":
                start(folder)
                folder = begun(f"chain_{title}")
            codes = start(folder, f"{order}:kill", to_end=False)
            if codes == [0]:
                return kills
            check(codes == [-9], f"{folder}: ended with {codes}")
            kills += 1
        start(folder)
        return kills

    def hits(name, stride):
        kills = chain(name, (f"{name}:{hit}" for hit in itertools.count(1, stride)))
        check(kills > 0, f"{name} was not reached")
        return kills

    def once_each(chosen):
        kills = chain("once", [f"{name}:1" for name in chosen])
        check(kills == len(chosen), f"{chosen[kills]} was not reached" if kills < len(chosen) else "")
        return kills

    cases, others = [], []
    for name in names:
        if name == "collective.start":
            for rank in (0, 1):
                one = (lambda r=rank: every_hit("collective.start", ranks=2, rank=r)) if campaign.long else (
                    lambda r=rank: once("collective.start", ranks=2, rank=r))
                cases.append((f"{name} of rank {rank}", one))
        elif campaign.long:
            cases.append((name, lambda n=name: every_hit(n, bad=n == "checkpoint.quarantine")))
        elif name == "checkpoint.quarantine":
            cases.append((name, lambda: once("checkpoint.quarantine", bad=True)))
        elif name.startswith(("file.", "directory.")):
            # Torch writes an archive in hundreds of pieces: each 97th of them here.
            cases.append((name, lambda n=name: hits(n, 97 if n == "file.write" else 1)))
        else:
            others.append(name)
    if others:
        cases.append(("each of the others once", lambda: once_each(others)))
    campaign.run(cases, lambda kills, number: f"killed at each of {len(names)} failpoints of start, training, evaluation, save and "
                 f"end{', every time it is reached' if campaign.long else ''} | {kills} kills | all went on from the newest "
                 "checkpoint; nothing temporary left; ends bit-identical")


if __name__ == "__main__":
    main()
