#!/usr/bin/env python3
"""What must be refused is refused: with its reason, the documented exit code, and the run as it was.

    tests/fault/refuse.py --binary build/bin/hrm_train [--long] [--work DIR]

A second run in the same folder (also from another one of two ranks), data that changed under a run, another architecture,
settings that would make another training of it, a run folder of another user or that everyone may write in, damaged
checkpoints without a good one left. And what must not be refused: settings that may change, the same data elsewhere,
--accept-data-change.
"""
import os
import shutil
import stat
import subprocess

from fault import TRM, Campaign, Run, check, checkpoints, contents, last_step

BASE = ["train.checkpoint_every=4", "train.eval_every=8"]
STEPS = ["train.steps=16"]


def main():
    campaign = Campaign(__doc__)

    def begun(name):
        """A run that was killed behind its checkpoint of step 8, with data of its own."""
        made = campaign.work / "begun"
        if not (made / "run").exists():
            run = Run(campaign, made, [*BASE, *STEPS, "train.async_checkpoints=false"], fail="step.begin:11:kill")
            check(run.wait() == [-9] and checkpoints(made)[-1].name == "step-000000008", f"{made}: {run.said()}")
        folder = campaign.folder(name)
        shutil.copytree(made / "run", folder / "run")
        shutil.copy(campaign.csv, folder / "puzzles.csv")
        return folder

    def resident(folder):
        """All that a refused start must leave as it is: its own log and the lock's note are not meant."""
        return {name: data for name, data in contents(folder / "run").items() if not name.startswith(("log/", ".lock", "tensorboard/"))}

    def refused(folder, code, *words, more=(), ranks=1, arguments=()):
        before = resident(folder)
        run = Run(campaign, folder, [*BASE, *STEPS, *more], ranks, arguments=arguments)
        run.ended(code)
        text = "\n".join(run.errors())
        check(len(run.said(0).split("error: ")) == 2, f"{folder}: not one sentence\n{run.said()}")
        for word in words:
            check(word in text, f"{folder}: '{word}' is not in: {text}")
        after = resident(folder)
        check(before == after, f"{folder}: changed: {[n for n in before | after if before.get(n) != after.get(n)]}")

    def goes_on(folder, *words, more=(), arguments=(), step=8):
        run = Run(campaign, folder, [*BASE, *STEPS, *more], arguments=arguments)
        run.ended()
        check(run.resumed_at() == step and last_step(folder) == 16, f"{folder}: went on at {run.resumed_at()}\n{run.said()}")
        for word in words:
            check(word in run.said(), f"{folder}: '{word}' is not in\n{run.said()}")

    def two_runs():
        folder = campaign.folder("two_runs")
        more = [*BASE, "train.steps=12"]
        first = Run(campaign, folder, [*more, "train.async_checkpoints=false"], fail="step.begin:7:sleep=600").wait_step(6)
        before = resident(folder)
        for ranks in (1, 2):
            second = Run(campaign, folder, more, ranks)
            second.ended(3)
            check("another process trains in" in second.said() and str(first.processes[0].pid) in second.said(),
                  f"{folder}: does not name the other\n{second.said()}")
            check(before == resident(folder), f"{folder}: changed")
        first.kill()  # its lock goes with it
        Run(campaign, folder, more).ended()
        check(last_step(folder) == 12, f"{folder}: ended at {last_step(folder)}")
        return 3

    def edit(how):
        def change(path):
            lines = path.read_text().splitlines(keepends=True)
            if how == "a row edited":  # one given more
                source, question, answer, rating = lines[5].split(",")
                at = question.index(".")
                lines[5] = ",".join([source, question[:at] + answer[at] + question[at + 1:], answer, rating])
            elif how == "a row appended":
                lines.append(lines[3])
            elif how == "a row removed":
                lines.pop()
            else:
                lines[1], lines[2] = lines[2], lines[1]
            path.write_text("".join(lines))
        return change

    def data(how):
        folder = begun(f"data {how}".replace(" ", "_"))
        own = [f"data.train={folder}/puzzles.csv"]
        edit(how)(folder / "puzzles.csv")
        refused(folder, 4, "the data or their order changed", "--accept-data-change", more=own)
        goes_on(folder, "--accept-data-change", more=own, arguments=["--accept-data-change"])
        return 2

    def setting(key, value, code, *words):
        folder = begun(f"{key}={value}")
        refused(folder, code, key, *words, more=[f"{key}={value}"])

    def may_change():
        folder = begun("may_change")
        goes_on(folder, "changed since the checkpoint", "optim.lr", more=["optim.lr=5e-4", "train.log_every=2", "train.keep_checkpoints=1",
                                                                            "eval.max_samples=2", f"data.train={folder}/puzzles.csv"])

    def foreign():
        nobody = 65534
        if os.geteuid() != 0:
            return 0  # root alone can become another user
        try:
            subprocess.run([campaign.binary, "--version"], user=nobody, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return 0  # the program lies where others cannot read it
        folder = begun("foreign")
        campaign.work.chmod(0o755)
        for path in (folder, *folder.rglob("*")):  # what nobody may do here: all but owning it
            os.chown(path, 0, nobody)
            path.chmod(0o770 if path.is_dir() else 0o660)
        before = resident(folder)
        run = Run(campaign, folder, [*BASE, *STEPS], user=nobody)
        run.ended(3)
        check("belongs to another user" in run.said(), f"{folder}: {run.said()}")
        check(before == resident(folder), f"{folder}: changed")

    def world_writable():
        folder = begun("world_writable")
        (folder / "run").chmod(0o777)
        refused(folder, 3, "everyone may write", "chmod o-w")

    def link():
        folder = begun("link")
        (folder / "run" / ".lock").unlink()
        (folder / "elsewhere").write_text("precious\n")
        (folder / "run" / ".lock").symlink_to(folder / "elsewhere")
        refused(folder, 3, "cannot write in the run folder")
        check((folder / "elsewhere").read_text() == "precious\n", f"{folder}: the file behind a link was written")

    def private():
        folder = begun("private")
        for path in (folder / "run").rglob("*"):
            check(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, f"{path}: others may {oct(path.stat().st_mode)}")
        return 1

    def damaged():
        """One bad checkpoint: the one before it. No good one: never a new beginning, not at the next start either."""
        folder = begun("damaged")
        model = checkpoints(folder)[-1] / "model.pt"
        model.write_bytes(model.read_bytes()[:-1])
        goes_on(folder, "it is called bad-step-000000008 now", step=4)
        folder = begun("all_damaged")
        for step in checkpoints(folder):
            (step / "manifest.json").write_text("{}")
        for words in (["none of the 2 checkpoints"], ["bad-step-000000008"]):
            run = Run(campaign, folder, [*BASE, *STEPS])
            run.ended(5)
            check(all(word in run.said() for word in words), f"{folder}: {run.said()}")
            check(len(checkpoints(folder)) == 0 and len(list((folder / "run/checkpoints").glob("bad-*"))) == 2, f"{folder}: not put aside")
        return 3

    def never():
        refused(begun("never"), 2, "already holds checkpoints", arguments=["--resume", "never"])

    cases = [("two runs on one folder", two_runs), ("settings that may change", may_change)]
    for how in ("a row edited", "a row appended", "a row removed", "rows reordered"):
        cases.append((how, lambda h=how: data(h)))
    other = [("model.hidden_size", 32, 5, "architecture"), ("model.L_cycles", 3, 5, "architecture"),
             ("optim.name", "adamw", 2), ("run.seed", 1, 2), ("train.global_batch_size", 8, 2)]
    if campaign.long:
        other += [("model.L_layers", 2, 5, "architecture"), ("model.halt_max_steps", 5, 5, "architecture"),
                  ("objective.loss", "softmax", 2), ("data.augmentation", "none", 2),
                  ("data.reference_semantics", "false", 2), ("data.subsample", 16, 2)]
    for key, value, code, *words in other:
        cases.append((f"{key}={value}", lambda k=key, v=value, c=code, w=words: setting(k, v, c, *w)))
    cases += [("another architecture", lambda: refused(begun("trm"), 5, "model.arch", more=TRM)), ("foreign", foreign),
              ("world-writable", world_writable), ("a link for the lock", link), ("nobody else may read", private),
              ("damaged", damaged), ("--resume never", never)]
    campaign.run(cases, lambda starts, number: f"two runs on one folder, changed data, architecture and settings, foreign and "
                 f"world-writable folders, damaged checkpoints | {starts} starts | refused with reason and exit code, the run as "
                 "it was; what may change goes on")


if __name__ == "__main__":
    main()
