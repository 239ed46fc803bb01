#!/usr/bin/env python3
"""A training goes on while its disk fails, and ends as if nothing had been.

    tests/fault/fs_faults.py --binary build/bin/hrm_train [--long] [--work DIR] [--minutes M] [--seed 1]

full       a file system of a few MB is full while checkpoints are due (needs root, else left out)
read-only  the checkpoint folder is mounted read-only for a while (needs root, else left out)
limit      the process may write no file as large as a checkpoint (RLIMIT_FSIZE)
shim       write, fsync, close, open, rename, mkdir, fallocate fail at random or write less (fs_shim.c, LD_PRELOAD): at
           one rate while the training runs, at another from the start, where the program may end with code 3 and is
           started again
call       each of these calls fails alone, as long as it takes until a checkpoint was not saved

In full, read-only, limit and call the fault is there until a checkpoint could not be saved; a copy of the run folder of
that moment must go on to the same end, bit for bit, and so must the training itself once the fault is over. A fault that
lasts ends in code 3 and one sentence, with the checkpoints of before.
"""
import contextlib
import os
import resource
import shutil
import subprocess
import sys

from fault import LIBC, Campaign, Run, check, checkpoints, last_step, same_end, tidy

MORE = ["train.steps=60", "train.checkpoint_every=5", "train.eval_every=30", "train.log_every=5"]
NOT_SAVED = "was not saved"
CALLS = ["write", "fsync", "close", "open", "rename", "mkdir", "fallocate", "ftruncate"]


class Full:
    """A small file system that is filled; below it the run."""

    def __init__(self, folder):
        self.folder, self.ballast = folder, folder / "ballast"

    def __enter__(self):
        mount("tmpfs", self.folder, "tmpfs", "size=6m")
        return self

    def on(self, _=None):
        with contextlib.suppress(OSError), open(self.ballast, "ab", buffering=0) as file:
            for size in (65536, 1):  # to the last byte; again, when a checkpoint was deleted meanwhile
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size) == size:
                        pass

    def off(self, _=None):
        self.ballast.unlink()

    def __exit__(self, *_):
        unmount(self.folder)


class ReadOnly:
    def __init__(self, folder):
        self.folder = folder / "run" / "checkpoints"

    def __enter__(self):
        self.folder.mkdir(parents=True)
        mount(self.folder, self.folder, None, None, 4096)  # MS_BIND
        return self

    def on(self, _=None):
        with contextlib.suppress(OSError):  # busy while a file is being written
            mount(None, self.folder, None, None, 32 | 4096 | 1)  # MS_REMOUNT, MS_RDONLY

    def off(self, _=None):
        mount(None, self.folder, None, None, 32 | 4096)

    def __exit__(self, *_):
        unmount(self.folder)


class Limit:
    def __init__(self, folder):
        pass

    def __enter__(self):
        return self

    def on(self, run):
        resource.prlimit(run.processes[0].pid, resource.RLIMIT_FSIZE, (100000, resource.RLIM_INFINITY))

    def off(self, run):
        resource.prlimit(run.processes[0].pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def __exit__(self, *_):
        pass


def mount(source, target, kind, options, flags=0):
    text = [None if x is None else str(x).encode() for x in (source, target, kind, options)]
    if LIBC.mount(text[0], text[1], text[2], flags, text[3]) != 0:
        import ctypes
        raise OSError(ctypes.get_errno(), f"mount {target}")


def unmount(folder):
    LIBC.umount2(str(folder).encode(), 2)  # MNT_DETACH


def can_mount(campaign):
    try:
        with Full(campaign.folder("trial")):
            return True
    except OSError:
        return False


def main():
    campaign = Campaign(__doc__)
    shim = campaign.work / "fs_shim.so"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", shim, os.path.join(os.path.dirname(__file__), "fs_shim.c"), "-ldl"], check=True)
    except (OSError, subprocess.CalledProcessError):
        print("no C compiler for the shim")
        sys.exit(77)

    def straight():
        return campaign.straight("", MORE)

    def environment(folder, rate, seed=1, switch=None, calls=None):
        out = {"LD_PRELOAD": str(shim), "HRM_SHIM_ROOT": str(folder / "run"), "HRM_SHIM_RATE": str(rate),
               "HRM_SHIM_SEED": str(seed), "HRM_SHIM_LOG": str(folder / "faults.txt")}
        if switch:
            out["HRM_SHIM_WHILE"] = str(switch)
        return dict(out, HRM_SHIM_CALLS=calls) if calls else out

    def saves_fail(run, on):
        def failed():
            on(run)
            return NOT_SAVED in run.said()
        return failed

    def while_it_lasts(name, run, on, off):
        """The fault comes, a checkpoint is not saved; a copy of then, and the run itself when the fault is over."""
        folder = run.folder
        run.wait_until(lambda: checkpoints(folder), "a checkpoint")
        run.wait_until(saves_fail(run, on), "a checkpoint that is not saved")
        there = [step.name for step in checkpoints(folder)]
        check(len(there) > 0, f"{folder}: no checkpoint is left\n{run.said()}")
        copy = campaign.folder(f"{name}_copy")
        shutil.copytree(folder / "run", copy / "run", ignore=shutil.ignore_patterns(".tmp-*"))
        check(run.alive(), f"{folder}: ended\n{run.said()}")
        off(run)
        run.ended()
        again = Run(campaign, copy, MORE)
        again.ended()
        check(again.resumed_at() == int(max(there)[5:]), f"{copy}: went on at {again.resumed_at()}, of {there}\n{again.said()}")
        for end in (folder, copy):
            same_end(straight(), end)
            tidy(end)
        return run.said().count(NOT_SAVED)

    def passing(kind):
        name = f"passing_{kind.__name__.lower()}"
        folder = campaign.folder(name)
        with kind(folder) as fault:
            return while_it_lasts(name, Run(campaign, folder, MORE), fault.on, fault.off)

    def one_call(call, rate=1000):
        folder = campaign.folder(f"call_{call}")
        switch = folder / "failing"
        run = Run(campaign, folder, MORE, environment=environment(folder, rate, campaign.args.seed, switch, call))
        return while_it_lasts(f"call_{call}", run, lambda _: switch.touch(), lambda _: switch.unlink())

    def one_sentence(run, *words):
        run.ended(3, seconds=120)
        check(len(run.errors()) == 1 and "\n" not in run.said().split("error: ")[1].strip(), f"{run.folder}: {run.said()}")
        for word in words:
            check(word in run.errors()[0], f"{run.folder}: '{word}' is not in {run.errors()[0]}")

    def lasting(kind, more, *words):
        folder = campaign.folder(f"lasting_{kind.__name__.lower()}")
        with kind(folder) as fault:
            run = Run(campaign, folder, [*MORE, *more])
            run.wait_until(lambda: checkpoints(folder), "a checkpoint")
            run.wait_until(saves_fail(run, fault.on), "a checkpoint that is not saved")
            one_sentence(run, *words)
            left = checkpoints(folder)
            check(len(left) > 0, f"{folder}: no checkpoint is left")
            fault.off() if kind is not Limit else None
            again = Run(campaign, folder, MORE)
            again.ended()
            check(again.resumed_at() == int(left[-1].name[5:]), f"{folder}: went on at {again.resumed_at()}, not {left[-1].name}")
            same_end(straight(), folder)
            tidy(folder)

    def from_the_start(kind):
        folder = campaign.folder(f"start_{kind.__name__.lower()}")
        with kind(folder) as fault:
            (folder / "run").mkdir(exist_ok=True)
            fault.on()
            run = Run(campaign, campaign.folder(f"{folder.name}_output"), [*MORE, f"run.dir={folder}"])
            one_sentence(run, "choose another run.dir")
            fault.off()

    def counted(folder):
        file = folder / "faults.txt"
        number = len(file.read_text().splitlines()) if file.exists() else 0
        campaign.state["faults"] = campaign.state.get("faults", 0) + number
        return number

    def shim_while_training(seed, rate):
        """All that fails is repeated: the process is the same from the beginning to the end."""
        folder = campaign.folder(f"shim_{seed}")
        switch = folder / "failing"
        run = Run(campaign, folder, MORE, environment=environment(folder, rate, seed, switch)).wait_step(5)
        switch.touch()
        run.wait_until(lambda: last_step(folder) >= 50 or NOT_SAVED in run.said() and last_step(folder) >= 30, "step 50")
        switch.unlink()
        run.ended()
        same_end(straight(), folder)
        tidy(folder)
        return counted(folder)

    def shim_from_the_start(seed, rate):
        folder, starts = campaign.folder(f"shim_start_{seed}"), 0
        while True:
            starts += 1
            check(starts < 60, f"{folder}: {starts} starts were not enough")
            run = Run(campaign, folder, MORE, environment=environment(folder, rate, 1000 * seed + starts))
            code = run.ended(0, 3, seconds=180)
            if code == 0:
                break
            check(len(run.errors()) == 1, f"{folder}: not one sentence\n{run.said()}")
        same_end(straight(), folder)
        if Run(campaign, folder, MORE).ended() == 0:  # without the shim: what a failing unlink left is gone now
            tidy(folder)
        return counted(folder)

    mounts = can_mount(campaign)
    if not mounts:
        print("no file system can be mounted here: full and read-only are left out", flush=True)
    kinds = [Full, ReadOnly, Limit] if mounts else [Limit]
    cases = [(f"passing, {kind.__name__}", lambda k=kind: passing(k)) for kind in kinds]
    give_up = ["train.max_lost_checkpoints=2", "train.steps=2000"]
    words = {Full: "No space left", ReadOnly: "Read-only", Limit: "too large"}
    for kind in kinds[:] if campaign.long else kinds[:1]:
        cases.append((f"lasting, {kind.__name__}", lambda k=kind: lasting(k, give_up, "train.max_lost_checkpoints", words[k])))
    if mounts:
        cases += [(f"from the start, {kind.__name__}", lambda k=kind: from_the_start(k)) for kind in (Full, ReadOnly)]
        if campaign.long:  # a minute of trying at the end
            cases.append(("to the end, Full", lambda: lasting(Full, ["train.max_lost_checkpoints=0"], NOT_SAVED, "No space left")))
    cases += [(f"call {call}", lambda c=call: one_call(c)) for call in (CALLS if campaign.long else ["fsync", "rename"])]
    for seed in range(1, 61) if campaign.long else (1, 3):
        cases.append((f"shim while training, {seed}", lambda s=seed: shim_while_training(s, 60)))
        cases.append((f"shim from the start, {seed}", lambda s=seed: shim_from_the_start(s, 3)))
    campaign.run(cases, lambda saves, number: f"full disk, read-only, size limit; EIO, ENOSPC, EINTR, short writes at random | "
                 f"{campaign.state.get('faults', 0)} calls failed at random, {number} cases | training went on or ended with "
                 "code 3 and one sentence; no crash, no checkpoint lost, ends bit-identical")


if __name__ == "__main__":
    main()
