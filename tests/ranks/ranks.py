#!/usr/bin/env python3
"""Several ranks are one training, started as users start them.

    tests/ranks/ranks.py --binary build/bin/hrm_train equal [--launcher loop|torchrun|mpirun] [--work DIR]
    tests/ranks/ranks.py --binary build/bin/hrm_train resume
    tests/ranks/ranks.py --binary build/bin/hrm_train stop
    tests/ranks/ranks.py --binary build/bin/hrm_train lost [--signal KILL|STOP] [--seed 1]
    tests/ranks/ranks.py --binary build/bin/hrm_train wrong

equal    1, 2 and 4 ranks: the same losses within 1e-6 of them; two runs with 2 ranks: the same bits
resume   saved by 4 ranks, gone on with by 1, 2 and 4: as the run without a stop
stop     SIGTERM to one rank: all end with code 75 after the same step, with one checkpoint, and go on from there
lost     a rank killed or stopped in start, steps, evaluation and saving: the others leave in time and name it; started
         again, the end has the bits of an undisturbed run
doctor   doctor --ranks with 3
wrong    a rank that does not come, has another configuration, a batch that cannot be split, wrong variables

Exit code 77: this launcher is not installed. Only Python's standard library is used.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

SMALL = [
    f"data.train={ROOT}/data/sudoku/train_17clue_1k.csv", f"data.test={ROOT}/data/sudoku/test_17clue_2k.csv",
    "data.augmentation=sudoku", "model.hidden_size=64", "model.num_heads=2", "model.H_layers=1", "model.L_layers=1",
    "model.H_cycles=1", "model.L_cycles=2", "model.halt_max_steps=4", "optim.lr=1e-3", "optim.puzzle_emb_lr=1e-3",
    "optim.warmup_steps=5", "optim.min_ratio=1", "optim.ema=0.99", "train.global_batch_size=16",
    "train.micro_batch_size=2", "train.steps=24", "train.log_every=1", "train.checkpoint_every=8",
    "train.keep_checkpoints=9", "train.eval_every=12", "eval.max_samples=30", "runtime.device=cpu", "runtime.threads=1",
    "parallel.timeout_s=20", "parallel.meet_timeout_s=60",
]


def fail(text):
    sys.exit(f"FAILED: {text}")


def check(condition, text):
    if not condition:
        fail(text)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ranks:
    """So many ranks of one run, as processes."""

    def __init__(self, test, name, ranks, more=(), launcher="loop", each=None, missing=(), line=None):
        self.folder, self.ranks = test.work / name, ranks
        self.folder.mkdir(parents=True, exist_ok=True)
        line = [test.binary, *line] if line else [test.binary, "train", f"run.dir={self.folder}", "run.name=run", *SMALL, *more]
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        environment.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
        self.outputs, self.processes = [], []
        if launcher == "torchrun":
            line = [test.torchrun, "--no-python", f"--nproc-per-node={ranks}", "--master-addr=127.0.0.1",
                    f"--master-port={free_port()}", *line]
        elif launcher == "mpirun":
            line = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *line]
        if launcher != "loop":
            self._start(line, environment, "all")
            return
        port = str(free_port())
        for rank in range(ranks):
            if rank in missing:
                continue
            of_rank = dict(environment, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank),
                           LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            if ranks == 1:
                of_rank = environment
            self._start(line + (each(rank) if each else []), of_rank, str(rank))

    def _start(self, line, environment, name):
        self.outputs.append(self.folder / f"output_{name}.txt")
        with open(self.outputs[-1], "w") as out:
            self.processes.append(subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out))

    def wait(self, seconds=300):
        """The exit codes; -9 for a process killed by SIGKILL. Those that hang are killed, and the test fails."""
        end = time.monotonic() + seconds
        for process in self.processes:
            try:
                process.wait(max(end - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                self.kill()
                fail(f"{self.folder}: a rank has not ended after {seconds} s\n{self.said()}")
        return [process.returncode for process in self.processes]

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    def done(self, seconds=300):
        codes = self.wait(seconds)
        check(not any(codes), f"{self.folder}: ended with {codes}\n{self.said()}")
        return self

    def said(self, index=None):
        chosen = self.outputs if index is None else [self.outputs[index]]
        return "\n".join(path.read_text() for path in chosen)


def metrics(folder):
    """The log without the fields that measure time, by step and kind."""
    out = {}
    for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
        values = {k: v for k, v in json.loads(line).items() if not k.startswith("perf/")}
        key = (values.pop("step"), sorted(values)[0].split("/")[0])
        check(key not in out, f"{folder}: the log has {key} twice")
        out[key] = values
    return out


def checkpoints(folder):
    root = folder / "run" / "checkpoints"
    return sorted(p for p in root.iterdir() if p.name.startswith("step-")) if root.is_dir() else []


def final_bytes(folder):
    return {p.name: p.read_bytes() for p in checkpoints(folder)[-1].iterdir() if p.name in ("model.pt", "state.safetensors")}


def largest_difference(one, other):
    check(one.keys() == other.keys(), f"logs of other steps: {sorted(one.keys() ^ other.keys())}")
    worst = 0
    for key, values in one.items():
        for name, value in values.items():
            second = other[key][name]
            check((value is None) == (second is None), f"{key} {name}: {value} and {second}")
            if value is not None:
                worst = max(worst, abs(value - second) / max(abs(value), 1))
    return worst


def same_bits(one, other, what):
    check(metrics(one) == metrics(other), f"{what}: the logged values differ by {largest_difference(metrics(one), metrics(other))}")
    first, second = final_bytes(one), final_bytes(other)
    check(first.keys() == second.keys() and len(first) == 2, f"{what}: {sorted(first)} and {sorted(second)}")
    for name in first:
        check(first[name] == second[name], f"{what}: {name} differs")


class Test:
    def __init__(self, args):
        self.args, self.binary = args, str(pathlib.Path(args.binary).resolve())
        self.work = pathlib.Path(args.work or f"/tmp/hrm_ranks_{os.getpid()}").resolve()
        self.torchrun = shutil.which("torchrun", path=f"{ROOT}/.venv/bin:{os.environ.get('PATH', '')}")
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)

    def equal(self):
        launcher = self.args.launcher
        if (launcher == "torchrun" and not self.has_torchrun()) or (launcher == "mpirun" and not shutil.which("mpirun")):
            print(f"{launcher} is not installed")
            sys.exit(77)
        alone = Ranks(self, "alone", 1).done()
        check("ranks  " not in alone.said(), "one process speaks of ranks")
        for ranks in (2, 4):
            several = Ranks(self, f"{launcher}{ranks}", ranks, launcher=launcher).done()
            by = {"loop": "a plain environment"}.get(launcher, launcher)
            check(f"of {ranks} by {by}" in several.said(), f"rank 0 does not say how it was started:\n{several.said()}")
            check(several.said().count("finished 24 steps") == 1, f"not one rank speaks:\n{several.said()}")
            worst = largest_difference(metrics(alone.folder), metrics(several.folder))
            check(worst <= 1e-6, f"{ranks} ranks: a logged value differs by {worst:.2g}")
            print(f"{ranks} ranks by {launcher}: logged values differ by {worst:.2g} at most", flush=True)
        again = Ranks(self, "again", 2, launcher=launcher).done()
        same_bits(self.work / f"{launcher}2", again.folder, "two runs with 2 ranks")
        print("two runs with 2 ranks: the same bits")

    def has_torchrun(self):
        return self.torchrun and subprocess.run([self.torchrun, "--help"], capture_output=True).returncode == 0

    def resume(self):
        straight = Ranks(self, "straight", 4).done()
        for ranks in (1, 2, 4):
            name = f"by{ranks}"
            Ranks(self, name, 4, ["train.steps=8"]).done()
            # The evaluation at the end of the short run is none of the long one.
            Ranks(self, name, ranks).done()
            one, other = metrics(straight.folder), metrics(self.work / name)
            check(other.pop((8, "eval"), None) is not None, "the short run was not evaluated")
            worst = largest_difference(one, other)
            check(worst <= (0 if ranks == 4 else 1e-6), f"4 ranks, then {ranks}: a logged value differs by {worst:.2g}")
            print(f"saved by 4 ranks, gone on with by {ranks}: logged values differ by {worst:.2g} at most", flush=True)

    def stop(self):
        straight = Ranks(self, "straight", 3, ["train.global_batch_size=18"]).done()
        run = Ranks(self, "stopped", 3, ["train.global_batch_size=18"])
        self.when(run, "step 5/24")
        run.processes[2].terminate()
        codes = run.wait(60)
        check(codes == [75, 75, 75], f"ended with {codes}\n{run.said()}")
        check("another rank was asked to" in run.said(0), f"rank 0 does not say why:\n{run.said(0)}")
        Ranks(self, "stopped", 3, ["train.global_batch_size=18"]).done()
        same_bits(straight.folder, run.folder, "stopped and gone on with")
        print(f"SIGTERM to rank 2: all stopped, {checkpoints(run.folder)[0].name} among the checkpoints; the end has the same bits")

    def when(self, run, text, seconds=60):
        end = time.monotonic() + seconds
        while text not in run.said(0):
            if time.monotonic() > end or run.processes[0].poll() is not None:
                run.kill()
                fail(f"'{text}' never came:\n{run.said()}")
            time.sleep(0.01)

    def lost(self):
        rng = random.Random(self.args.seed)
        name, more = self.args.signal, ["parallel.timeout_s=6", "train.checkpoint_every=4"]
        number = getattr(signal, f"SIG{name}")
        # A killed rank's connections are closed by the kernel; a stopped one is noticed by the time limit.
        limit = 5 if name == "KILL" else 6 + 5
        straight = Ranks(self, "straight", 3, [*more, "train.global_batch_size=18"]).done()
        for moment in ("ranks  ", "step 3/24", "step 9/24", "step 12/24", "evaluation", "step 20/24"):
            victim = rng.randrange(3)
            case = f"SIG{name} to rank {victim} after '{moment.strip()}'"
            folder = f"lost_{moment.strip().replace(' ', '_').replace('/', '_')}"
            run = Ranks(self, folder, 3, [*more, "train.global_batch_size=18"])
            self.when(run, moment)
            time.sleep(rng.uniform(0, 0.05))
            run.processes[victim].send_signal(number)
            began = time.monotonic()
            others = [p for rank, p in enumerate(run.processes) if rank != victim]
            while any(p.poll() is None for p in others):
                if time.monotonic() - began > limit:
                    run.kill()
                    fail(f"{case}: after {limit} s not all others are gone\n{run.said()}")
                time.sleep(0.01)
            took = time.monotonic() - began
            codes = [p.returncode for p in others]
            run.kill()
            check(codes == [7, 7], f"{case}: the others ended with {codes}\n{run.said()}")
            texts = [run.said(rank) for rank in range(3) if rank != victim]
            named = re.compile(rf"ranks? {victim}(, which keeps the store,)? (is|are) gone")
            check(all(named.search(text) for text in texts), f"{case}: not all name it\n{run.said()}")
            Ranks(self, folder, 3, [*more, "train.global_batch_size=18"]).done()
            same_bits(straight.folder, run.folder, case)
            print(f"{case}: the others left after {took:.2f} s; started again, the end has the same bits", flush=True)

    def doctor(self):
        run = Ranks(self, "doctor", 3, line=["doctor", "--ranks"]).done(60)
        check("3 ranks over gloo" in run.said(0) and run.said(0).count("right") == 3, f"it says\n{run.said(0)}")
        check(not run.said(1) + run.said(2), f"others than rank 0 speak:\n{run.said()}")
        run = Ranks(self, "json", 2, line=["doctor", "--ranks", "--json"]).done(60)
        report = json.loads(run.said(0))
        check([rank["rank"] for rank in report["ranks"]] == [0, 1], f"it says\n{run.said(0)}")
        check(all(row["right"] and row["seconds"] > 0 for row in report["all_reduce"]), f"it says\n{run.said(0)}")
        run = Ranks(self, "missing", 3, line=["doctor", "--ranks", "--meet-timeout", "2"], missing=(2,))
        check(run.wait(60) == [7, 7] and ": 2" in run.said(0), f"it says\n{run.said()}")
        check(Ranks(self, "alone", 1, line=["doctor", "--ranks"]).wait(60) == [2], "one process is no error")
        print("doctor --ranks: 3 ranks right, the missing one named")

    def wrong(self):
        def ends(what, code, text, ranks=2, **options):
            began = time.monotonic()
            run = Ranks(self, what.replace(" ", "_"), ranks, ["parallel.meet_timeout_s=3"], **options)
            codes = run.wait(60)
            check(code in codes and 0 not in codes, f"{what}: ended with {codes}\n{run.said()}")
            check(text in run.said(), f"{what}: nobody says '{text}':\n{run.said()}")
            print(f"{what}: codes {codes} after {time.monotonic() - began:.1f} s", flush=True)

        ends("a rank that does not come", 7, "these of 3 ranks have not come to 127.0.0.1", ranks=3, missing=(1,))
        ends("another configuration", 2, "rank 1 has another configuration than rank 0",
             each=lambda rank: ["optim.lr=2e-3"] if rank == 1 else [])
        ends("a batch that cannot be split", 2, "cannot be split over 2 ranks",
             each=lambda rank: ["train.global_batch_size=15", "train.micro_batch_size=0"])
        ends("a micro batch that does not divide", 2, "does not divide the 8 samples that each of 2 ranks has",
             each=lambda rank: ["train.micro_batch_size=16"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--work", default="", help="folder for the runs (default: a temporary one, removed afterwards)")
    parser.add_argument("--launcher", choices=["loop", "torchrun", "mpirun"], default="loop")
    parser.add_argument("--signal", choices=["KILL", "STOP"], default="KILL")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("test", choices=["equal", "resume", "stop", "lost", "doctor", "wrong"])
    args = parser.parse_args()
    test = Test(args)
    getattr(test, args.test)()
    if not args.work:
        shutil.rmtree(test.work)


if __name__ == "__main__":
    main()
