#!/usr/bin/env python3
"""Several ranks are one training, started as users start them.

    tests/ranks/ranks.py --binary build/bin/hrm_train equal [--launcher loop|torchrun|mpirun] [--work DIR]
    tests/ranks/ranks.py --binary build/bin/hrm_train resume
    tests/ranks/ranks.py --binary build/bin/hrm_train zero
    tests/ranks/ranks.py --binary build/bin/hrm_train turns
    tests/ranks/ranks.py --binary build/bin/hrm_train mesh
    tests/ranks/ranks.py --binary build/bin/hrm_train parts
    tests/ranks/ranks.py --binary build/bin/hrm_train diverge
    tests/ranks/ranks.py --binary build/bin/hrm_train stop
    tests/ranks/ranks.py --binary build/bin/hrm_train lost [--signal KILL|STOP] [--seed 1]
    tests/ranks/ranks.py --binary build/bin/hrm_train axes
    tests/ranks/ranks.py --binary build/bin/hrm_train restart
    tests/ranks/ranks.py --binary build/bin/hrm_train slow
    tests/ranks/ranks.py --binary build/bin/hrm_train nodes
    tests/ranks/ranks.py --binary build/bin/hrm_train bench
    tests/ranks/ranks.py --binary build/bin/hrm_train wrong

equal    1, 2 and 4 ranks: the same losses within 1e-6 of them; two runs with 2 ranks: the same bits
resume   saved by 4 ranks, gone on with by 1, 2 and 4: as the run without a stop
zero     parallel.zero=1 and 2 with 2 and 4 ranks: the losses of one process within 1e-6; saved by 4 with zero 2, gone on
         with by 2 with zero 1 and by one process; made three parts of by reshard, gone on with: the same bits
turns    a decoder with parallel.zero=3, whose weights take turns: the losses of one process within 1e-6; saved by 2 ranks,
         gone on with by one process, and the other way; a killed rank is named
mesh     a decoder on four ranks: parts of layers beside shards, and groups of shards, with parallel.zero=1 to 3: the losses
         of one process within 1e-6; saved by one mesh, gone on with by others; numbers of ranks that do not divide are refused
parts    generate, eval and bench generate by 2 and 4 ranks with one part of a decoder each: what one process writes, and rank 0
         alone speaks; a killed rank is named, an error of one rank ends all with its code, and what cannot be cut is refused
diverge  a gradient that is not finite: all end with code 6, after rank 0 has written the dump
stop     SIGTERM to one rank: all end with code 75 after the same step, with one checkpoint, and go on from there
lost     a rank killed or stopped in start, steps, evaluation and saving: the others leave in time and name it; started
         again, the end has the bits of an undisturbed run
axes     in meshes of four ranks one is killed in an exchange of each axis, or stands still there: the others leave in time,
         name it and its place, and say on which axis they wait; a slow rank is named by its place
restart  torchrun --max-restarts: a rank is killed in steps, evaluation and saving; the training goes on without a hand, and
         the end has the bits of an undisturbed run
slow     a rank that is stopped for three quarters of the time is named, and the training goes on
nodes    four ranks on two nodes (network namespaces of their own, joined by a cable), by a loop and by torchrun: as one
         process; when the cable is cut both sides leave in time and name the other; then the end has the same bits
doctor   doctor --ranks with 3
bench    bench comm with 2 and 3, and what plan makes of its result; bench step of a rank alone, beside one of two
ports    a silent port, a web server and a port that closes in the place of rank 0's store: train, doctor --ranks and
         bench comm end within the time limit and 2 s
two_jobs two jobs of two ranks on one port, started at the same time, --times T (default: 3): one trains and saves when it
         is asked to, the ranks of the other end with one sentence each
wrong    a rank that does not come, has another configuration, a batch that cannot be split, wrong variables

--device cuda --most 2 does the same on two GPUs, in float32 arithmetic, where sums of other parts of a batch round
otherwise: the values are compared within 1e-4.
Exit code 77: this launcher is not installed, or no network namespace can be made here. Only Python's standard library is used.
"""
import argparse
import fcntl
import hashlib
import http.server
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
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from free_port import free_port  # noqa: E402

SMALL = [
    "data.augmentation=sudoku", "model.hidden_size=64", "model.num_heads=2", "model.H_layers=1", "model.L_layers=1",
    "model.H_cycles=1", "model.L_cycles=2", "model.halt_max_steps=4", "optim.lr=1e-3", "optim.puzzle_emb_lr=1e-3",
    "optim.warmup_steps=5", "optim.min_ratio=1", "optim.ema=0.99", "train.global_batch_size=16",
    "train.micro_batch_size=2", "train.steps=24", "train.log_every=1", "train.checkpoint_every=8",
    "train.keep_checkpoints=9", "train.eval_every=12", "eval.max_samples=30", "runtime.threads=1",
    "parallel.timeout_s=20", "parallel.meet_timeout_s=60",
]


def small(folder, train_rows=400):
    """SMALL with data of so many rows, kept in `folder`: each rank reads it at each start and solves each puzzle again."""
    settings = []
    for setting, name, count in (("train", "train_17clue_1k.csv", train_rows), ("test", "test_17clue_2k.csv", 100)):
        file = folder / f"{count}_{name}"
        if not file.exists():
            rows = (ROOT / "data/sudoku" / name).read_text().splitlines(keepends=True)
            fresh = file.with_suffix(f".{os.getpid()}")
            fresh.write_text("".join(rows[:count + 1]))
            fresh.replace(file)
        settings.append(f"data.{setting}={file}")
    return settings + SMALL


def fail(text):
    sys.exit(f"FAILED: {text}")


def check(condition, text):
    if not condition:
        fail(text)


class Ranks:
    """So many ranks of one run, as processes."""

    started = []

    def __init__(self, test, name, ranks, more=(), launcher="loop", each=None, missing=(), line=None, restarts=0,
                 nodes=None, port=None, failing={}, stdin=None):
        self.folder, self.ranks = test.work / name, ranks
        self.folder.mkdir(parents=True, exist_ok=True)
        if line is None:
            line = ["train", f"run.dir={self.folder}", "run.name=run", *test.small, *test.device, *more]
        line = [test.binary, *line]
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        environment.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
        if test.args.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        Ranks.started.append(self)
        self.stdin = stdin  # a file, of rank 0
        self.outputs, self.processes = [], []
        if nodes and launcher == "torchrun":
            port = free_port()
            for number, name in enumerate(nodes.names):
                self._start(nodes.on(name, [
                    test.torchrun, "--no-python", f"--nnodes={len(nodes.names)}", f"--node-rank={number}",
                    f"--nproc-per-node={ranks // len(nodes.names)}", f"--master-addr={nodes.address}",
                    f"--master-port={port}", *line]), environment, str(number))
            return
        if launcher == "torchrun":
            line = [test.torchrun, "--no-python", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", "--master-addr=127.0.0.1",
                    f"--master-port={free_port()}", *line]
        elif launcher == "mpirun":
            line = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *line]
        if launcher != "loop":
            self._start(line, environment, "all")
            return
        port = str(port or free_port())
        here = ranks // len(nodes.names) if nodes else ranks
        for rank in range(ranks):
            if rank in missing:
                continue
            of_rank = dict(environment, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank % here),
                           LOCAL_WORLD_SIZE=str(here), MASTER_ADDR=nodes.address if nodes else "127.0.0.1", MASTER_PORT=port)
            if ranks == 1:
                of_rank = environment
            if rank in failing:
                of_rank = dict(of_rank, HRM_FAIL=failing[rank])
            words = line + (each(rank) if each else [])
            self._start(nodes.on(nodes.names[rank // here], words) if nodes else words, of_rank, str(rank))

    def _start(self, line, environment, name):
        self.outputs.append(self.folder / f"output_{name}.txt")
        with open(self.outputs[-1], "w") as out, open(self.stdin if self.stdin and name == "0" else os.devnull) as given:
            self.processes.append(subprocess.Popen(line, env=environment, stdin=given, stdout=out, stderr=out))

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
        """With all that they have started."""
        for process in self.processes:
            if process.poll() is None:
                for pid in (*descendants(process.pid), process.pid):
                    for number in (signal.SIGKILL, signal.SIGCONT):
                        try:
                            os.kill(pid, number)
                        except ProcessLookupError:
                            pass
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
    return {p.name: p.read_bytes() for p in checkpoints(folder)[-1].iterdir() if p.name.startswith(("model", "state"))}


class Nodes:
    """Two nodes on this machine: network namespaces with a cable between them."""

    def __init__(self):
        self.names, self.address = [f"hrm{os.getpid()}{x}" for x in "ab"], "10.213.77.1"
        self.cables = [f"h{os.getpid()}{x}" for x in "ab"]

    def __enter__(self):
        if not shutil.which("ip"):
            print("ip is not installed")
            sys.exit(77)

        def ip(*words):
            if subprocess.run(["ip", *words], capture_output=True).returncode != 0:
                raise OSError(f"ip {' '.join(words)}")

        try:
            for name in self.names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            ip("link", "add", self.cables[0], "netns", self.names[0], "type", "veth", "peer", "name", self.cables[1],
               "netns", self.names[1])
            for number, (name, cable) in enumerate(zip(self.names, self.cables)):
                ip("-n", name, "address", "add", f"10.213.77.{number + 1}/24", "dev", cable)
                ip("-n", name, "link", "set", cable, "up")
        except (OSError, FileNotFoundError) as error:
            self.__exit__()
            print(f"no network namespaces here: {error}")
            sys.exit(77)
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def on(self, name, line):
        return ["ip", "netns", "exec", name, *line]

    def cut(self, cut=True):
        subprocess.run(["ip", "-n", self.names[1], "link", "set", self.cables[1], "down" if cut else "up"], check=True)


def descendants(pid):
    try:
        return [each for child in children(pid) for each in (*descendants(child), child)]
    except OSError:
        return []


def children(pid):
    return [int(word) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
            for word in (task / "children").read_text().split()]


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
    check(first.keys() == second.keys() and len(first) >= 2, f"{what}: {sorted(first)} and {sorted(second)}")
    for name in first:
        check(first[name] == second[name], f"{what}: {name} differs")


class Test:
    def __init__(self, args):
        self.args, self.binary = args, str(pathlib.Path(args.binary).resolve())
        self.work = pathlib.Path(args.work or f"/tmp/hrm_ranks_{os.getpid()}").resolve()
        self.torchrun = shutil.which("torchrun", path=f"{ROOT}/.venv/bin:{os.environ.get('PATH', '')}")
        self.device, self.tolerance = [f"runtime.device={args.device}"], 1e-6
        if args.device == "cuda":
            self.device += ["precision.compute=fp32"]
            self.tolerance = 1e-4
            # Steps of some tens of milliseconds, so that a signal comes before the training has ended.
            self.device += ["model.hidden_size=512", "model.num_heads=8", "model.H_layers=4", "model.L_layers=4"]
        # Three ranks where it does not matter how many: an odd number, and one in the middle.
        self.most, self.some = args.most, min(args.most, 3)
        self.batch = [f"train.global_batch_size={6 * self.some}"]
        if args.device == "cuda":
            self.batch = [f"train.global_batch_size={128 * self.some}", "train.micro_batch_size=64"]
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        # Beside the tests that share a reference.
        self.small = small(self.work.parent if self.args.work else self.work, 1000 if args.device == "cuda" else 400)

    def reference(self, ranks, more=()):
        """The folder of an undisturbed run of this program. With --work the tests beside that folder share it, and the
        first that needs it makes it."""
        program = os.stat(self.binary)
        stamp = f"{program.st_mtime_ns:x}_{program.st_size:x}"
        settings = json.dumps([ranks, *self.small, *self.device, *more])
        root = (self.work.parent if self.args.work else self.work) / "references"
        root.mkdir(exist_ok=True)
        with open(root / "lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for old in root.iterdir():
                if old.is_dir() and not old.name.startswith(stamp):
                    shutil.rmtree(old)
            folder = root / f"{stamp}_{hashlib.sha256(settings.encode()).hexdigest()[:16]}"
            if not (folder / "done").exists():
                shutil.rmtree(folder, ignore_errors=True)
                run = Ranks(self, folder, ranks, more).done()
                if ranks == 1:
                    check("ranks  " not in run.said(), "one process speaks of ranks")
                (folder / "done").touch()
        return folder

    def equal(self):
        launcher = self.args.launcher
        if (launcher == "torchrun" and not self.has_torchrun()) or (launcher == "mpirun" and not shutil.which("mpirun")):
            print(f"{launcher} is not installed")
            sys.exit(77)
        alone = self.reference(1)
        for ranks in (n for n in (2, 4, 8) if n <= self.most):
            several = Ranks(self, f"{launcher}{ranks}", ranks, launcher=launcher).done()
            by = {"loop": "a plain environment"}.get(launcher, launcher)
            check(f"of {ranks} by {by}" in several.said(), f"rank 0 does not say how it was started:\n{several.said()}")
            check(several.said().count("finished 24 steps") == 1, f"not one rank speaks:\n{several.said()}")
            check("not captured" not in several.said(), f"steps are not captured:\n{several.said()}")
            worst = largest_difference(metrics(alone), metrics(several.folder))
            check(worst <= self.tolerance, f"{ranks} ranks: a logged value differs by {worst:.2g}")
            print(f"{ranks} ranks by {launcher}: logged values differ by {worst:.2g} at most", flush=True)
        again = Ranks(self, "again", 2, launcher=launcher).done()
        same_bits(self.work / f"{launcher}2", again.folder, "two runs with 2 ranks")
        print("two runs with 2 ranks: the same bits")

    def has_torchrun(self):
        return self.torchrun and subprocess.run([self.torchrun, "--help"], capture_output=True).returncode == 0

    def resume(self):
        straight = self.reference(self.most)
        saved = Ranks(self, "saved", self.most, ["train.steps=8"]).done()
        for ranks in (n for n in (1, 2, 4, 8) if n <= self.most):
            name = f"by{ranks}"
            shutil.copytree(saved.folder / "run", self.work / name / "run")
            # The evaluation at the end of the short run is none of the long one.
            Ranks(self, name, ranks).done()
            one, other = metrics(straight), metrics(self.work / name)
            check(other.pop((8, "eval"), None) is not None, "the short run was not evaluated")
            worst = largest_difference(one, other)
            check(worst <= (0 if ranks == self.most else self.tolerance), f"{self.most} ranks, then {ranks}: a logged value differs by {worst:.2g}")
            print(f"saved by {self.most} ranks, gone on with by {ranks}: logged values differ by {worst:.2g} at most", flush=True)

    def zero(self):
        # Blocks enough for buffers that take turns.
        more = ["model.hidden_size=128", "model.H_layers=3", "model.L_layers=3", "parallel.bucket_mb=1", "train.steps=12"]
        most = self.most
        alone = self.reference(1, more)
        for ranks, zero in dict.fromkeys(((2, 1), (2, 2), (most, 2))):
            several = Ranks(self, f"zero{zero}_{ranks}", ranks, [*more, f"parallel.zero={zero}"]).done()
            check("not captured" not in several.said(), f"steps are not captured:\n{several.said()}")
            worst = largest_difference(metrics(alone), metrics(several.folder))
            check(worst <= self.tolerance, f"zero {zero}, {ranks} ranks: a logged value differs by {worst:.2g}")
            print(f"zero {zero}, {ranks} ranks: logged values differ by {worst:.2g} at most", flush=True)
        again = Ranks(self, "again", most, [*more, "parallel.zero=2"]).done()
        same_bits(self.work / f"zero2_{most}", again.folder, f"two runs with {most} ranks and zero 2")
        print(f"two runs with {most} ranks and zero 2: the same bits", flush=True)
        saved = Ranks(self, "saved", most, [*more, "parallel.zero=2", "train.steps=8"]).done()
        for ranks, zero in ((1, 0), (2, 1)):
            name = f"by{ranks}"
            shutil.copytree(saved.folder / "run", self.work / name / "run")
            Ranks(self, name, ranks, [*more, f"parallel.zero={zero}"]).done()
            one, other = metrics(alone), metrics(self.work / name)
            other.pop((8, "eval"))
            worst = largest_difference(one, other)
            what = f"{most} ranks with zero 2, then {ranks} with {zero}"
            check(worst <= self.tolerance, f"{what}: a logged value differs by {worst:.2g}")
            print(f"{what}: logged values differ by {worst:.2g} at most", flush=True)
        # The number of parts changes nothing.
        folder = self.work / "resharded"
        shutil.copytree(saved.folder / "run", folder / "run")
        step = checkpoints(folder)[-1]
        step.rename(folder / "parts")
        command = [self.binary, "reshard", "--checkpoint", str(folder / "parts"), "--ranks", "3", "--out", str(step)]
        subprocess.run(command, check=True, capture_output=True)
        check((step / "state-00003-of-00003.safetensors").exists(), f"reshard wrote {sorted(step.iterdir())}")
        Ranks(self, "resharded", 2, [*more, "parallel.zero=1"]).done()
        same_bits(self.work / "by2", folder, "the same, from three parts")
        print("the same, from three parts: the same bits", flush=True)

    def decoder(self):
        """Settings of a language model, whose data are made at the first call."""
        data = self.work / "sums"
        if not data.exists():
            subprocess.run([self.binary, "data", "arithmetic", "--samples", "400", "--out", str(data)], check=True, capture_output=True)
        return ["task=language", "lm.arch=decoder", "lm.hidden_size=128", "lm.num_heads=4", "lm.layers=6", f"data.train={data}",
                "data.encoder_len=20", "data.decoder_len=6", "optim.name=adamw", "optim.eps=0.1", "optim.lr=0.02", "optim.warmup_steps=2", "train.global_batch_size=12",
                "train.log_every=1", "train.eval_every=6", "eval.max_samples=15", "train.checkpoint_every=6", "train.keep_checkpoints=9",
                "parallel.bucket_mb=1", "runtime.threads=1", "parallel.timeout_s=6", *self.device]

    def mesh(self):
        words = [*self.decoder(), "lm.layers=3", "lm.hidden_size=64"]

        def run(name, ranks, *more):
            folder = self.work / name
            return Ranks(self, name, ranks, line=["train", f"run.dir={folder}", "run.name=run", *words, "train.steps=12", *more])

        alone = run("alone", 1).done()
        parts, groups = ["parallel.tensor=2"], ["parallel.replicas=2"]
        meshes = {"parts_zero3": [*parts, "parallel.zero=3"], "groups_zero2": [*groups, "parallel.zero=2"]}
        for name, more in meshes.items():
            several = run(name, 4, *more).done()
            worst = largest_difference(metrics(alone.folder), metrics(several.folder))
            check(worst <= self.tolerance, f"{name}: a logged value differs by {worst:.2g}")
            check(several.said().count("finished 12 steps") == 1, f"not one rank speaks:\n{several.said()}")
            print(f"{name}: logged values differ by {worst:.2g} at most", flush=True)
        for first, ranks, then in (("parts_zero3", 4, [*groups, "parallel.zero=3"]), ("parts_zero3", 1, ["parallel.zero=3"]),
                                   ("groups_zero2", 4, [*parts, "parallel.zero=1"])):
            name = f"{first}_then_{ranks}"
            shutil.copytree(self.work / first / "run", self.work / name / "run")
            shutil.rmtree(checkpoints(self.work / name)[-1])  # of the end; that of step 6 is left
            if ranks == 1:  # from other parts
                step = checkpoints(self.work / name)[-1]
                step.rename(self.work / name / "parts")
                subprocess.run([self.binary, "reshard", "--checkpoint", str(self.work / name / "parts"), "--ranks", "3", "--out", str(step)],
                               check=True, capture_output=True)
            resumed = run(name, ranks, *then).done()
            # A run of several ranks may be resumed by one.
            check((ranks == 1) == ("parallel.zero = 3 has nothing to split" in resumed.said()), f"{name}:\n{resumed.said()}")
            worst = largest_difference(metrics(alone.folder), metrics(self.work / name))
            check(worst <= self.tolerance, f"{first}, then {ranks} ranks: a logged value differs by {worst:.2g}")
            print(f"{first}, then {ranks} ranks with {then}: logged values differ by {worst:.2g} at most", flush=True)
        for ranks, more, text in ((4, ["parallel.replicas=3", "parallel.zero=1"], "4 data ranks (4 ranks, parallel.tensor = 1) cannot be divided into parallel.replicas = 3 groups; choose a divisor of 4"),
                                  (2, ["parallel.replicas=2", "parallel.zero=2"], "parallel.replicas = 2 leaves each of the 2 data ranks alone"),
                                  (2, ["parallel.replicas=2"], "set parallel.zero to 1, 2 or 3")):
            refused = run(f"refused_{len(text)}", ranks, *more)
            codes = refused.wait(60)
            check(set(codes) == {2} and text in refused.said(), f"{more}: ended with {codes}\n{refused.said()}")
        print("what does not divide is refused")

    def parts(self):
        words = [*self.decoder(), "lm.layers=2", "lm.hidden_size=64"]
        run = self.work / "trained" / "run"
        Ranks(self, "trained", 1, line=["train", f"run.dir={run.parent}", "run.name=run", *words, "train.steps=12"]).done()
        prompts = self.work / "prompts.txt"
        prompts.write_text("".join(f"{a} + {7 * a % 13} =\n" for a in range(9)))
        device = ["--device", self.args.device]
        asks = {"greedy": ["generate", str(run), "--input", str(prompts), *device],
                "sampled": ["generate", str(run), "--input", "-", "--temperature", "0.9", "--top-p", "0.95", "--samples", "3",
                            "--stop", "1", "--max-new-tokens", "12", "--batch-size", "5", *device]}

        def answers(name, ranks, launcher="loop"):
            line = [*asks[name], "--format", "jsonl"]
            done = Ranks(self, f"{name}{ranks}{launcher}", ranks, line=line, stdin=prompts, launcher=launcher).done(120)
            for rank in range(1, ranks if launcher == "loop" else 1):
                check(not done.said(rank), f"{name}: rank {rank} speaks:\n{done.said(rank)}")
            return [json.loads(text) for text in done.said(0).splitlines() if text.startswith("{")]

        counts = [n for n in (2, 4) if n <= self.most]
        for name, rows in (("greedy", 9), ("sampled", 27)):
            one = answers(name, 1)
            check(len(one) == rows, f"{name}: {len(one)} answers")
            for ranks in counts:
                several = answers(name, ranks)
                check(several == one, f"{name}: {ranks} ranks write\n{several}\nand one writes\n{one}")
                print(f"generate, {name}: {ranks} ranks write what one process writes", flush=True)
        if self.has_torchrun():
            check(answers("greedy", 2, "torchrun") == answers("greedy", 1), "by torchrun other answers are written")

        def evaluated(ranks, *more):
            file = self.work / f"eval{ranks}.json"
            Ranks(self, f"eval{ranks}", ranks, line=["eval", "--checkpoint", str(run), "--json", str(file), *self.device, *more]).done(120)
            return {k: v for k, v in json.loads(file.read_text()).items() if k != "seconds"}

        one = evaluated(1)
        for ranks in counts:
            several = evaluated(ranks, f"parallel.tensor={ranks}", "parallel.timeout_s=20")
            check(several.keys() == one.keys(), f"eval: {several}")
            worst = max((abs(several[k] - one[k]) / max(abs(one[k]), 1e-9) for k in one if isinstance(one[k], float)), default=0)
            check(worst <= 1e-5 and several["loss"] != 0, f"eval: {ranks} ranks differ by {worst:.2g}")
            print(f"eval: {ranks} ranks differ by {worst:.2g} at most", flush=True)

        file = self.work / "bench.json"
        line = ["bench", "generate", "lm.arch=decoder", "lm.layers=2", "lm.hidden_size=64", "lm.num_heads=4", "parallel.tensor=2",
                "--vocab-size", "101", "--rows", "1,3", "--prompt", "8", "--new", "5", "--passes", "1", "--json", str(file), *self.device]
        timed = Ranks(self, "bench", 2, line=line).done(120)
        check("3 rows" in timed.said(0) and "memory     rank 1:" in timed.said(0) and not timed.said(1), f"it says\n{timed.said()}")
        result = json.loads(file.read_text())
        check((result["ranks"], len(result["memory_of_ranks"]), len(result["runs"])) == (2, 2, 2), f"it holds {result}")
        print("bench generate: two ranks measured", flush=True)

        def ends(what, codes, text, line, ranks=2, **options):
            ended = Ranks(self, what.replace(" ", "_"), ranks, line=line, **options)
            got = ended.wait(60)
            check(got == codes and text in ended.said(), f"{what}: ended with {got}\n{ended.said()}")
            print(f"{what}: codes {got}", flush=True)

        others = self.work / "others.txt"
        others.write_text(prompts.read_text() + "8 + 8 =\n")
        many = [*asks["greedy"], "--max-new-tokens", "24", "--samples", "40"]
        ends("a killed rank", [7, -9], "rank 1 (tensor 1 of 2) is gone", many, failing={1: "collective.tensor:200:kill"})
        damaged = self.work / "damaged"
        shutil.copytree(run, damaged)
        for step in (damaged / "checkpoints").iterdir():
            model = step / "model.pt"
            model.write_bytes(model.read_bytes()[:-100])
        ends("a damaged checkpoint", [5, 5], "rank 0", ["generate", str(damaged), "--prompt", "1", *device])
        ends("other prompts", [4, 4], "rank 1 reads other prompts than rank 0", ["generate", str(run), *device],
             each=lambda rank: ["--input", str(prompts if rank == 0 else others)])
        ends("other options", [2, 2], "rank 1 has another configuration than rank 0", asks["greedy"],
             each=lambda rank: ["--seed", str(rank)])
        ends("too many parts", [2] * 3, "does not divide lm.num_heads = 4", ["eval", "--checkpoint", str(run), *self.device], ranks=3)
        ends("another number of parts", [2, 2], "parallel.tensor = 4 and the number of ranks is 2",
             ["eval", "--checkpoint", str(run), "parallel.tensor=4", *self.device])
        ends("parts of one process", [2], "start 2 ranks, e.g. by torchrun --no-python --nproc-per-node=2",
             ["eval", "--checkpoint", str(run), "parallel.tensor=2", *self.device], ranks=1)
        puzzle = ROOT / "checkpoints" / "sudoku6"
        ends("a puzzle", [2, 2], "the model of task puzzle stays whole; start it as one process", ["eval", "--checkpoint", str(puzzle), *self.device])

    def turns(self):
        words = self.decoder()

        def run(name, ranks, *more):
            folder = self.work / name
            return Ranks(self, name, ranks, line=["train", f"run.dir={folder}", "run.name=run", *words, "train.steps=12", *more])

        alone = run("alone", 1).done()
        turns = ["parallel.zero=3"]
        several = run("several", 2, *turns).done()
        worst = largest_difference(metrics(alone.folder), metrics(several.folder))
        check(worst <= self.tolerance, f"2 ranks with zero 3: a logged value differs by {worst:.2g}")
        print(f"2 ranks with zero 3: logged values differ by {worst:.2g} at most", flush=True)
        again = run("again", 2, *turns).done()
        same_bits(several.folder, again.folder, "two runs with 2 ranks and zero 3")
        for name, first, then in (("down", (2, *turns), (1,)), ("up", (1,), (2, *turns))):
            run(name, *first, "train.steps=6").done()
            run(name, *then).done()
            worst = largest_difference(metrics(alone.folder), metrics(self.work / name))
            check(worst <= self.tolerance, f"{first} ranks, then {then}: a logged value differs by {worst:.2g}")
            print(f"{first[0]} ranks, then {then[0]}: logged values differ by {worst:.2g} at most", flush=True)
        lost = run("lost", 2, *turns, "train.steps=4000", "train.eval_every=0")
        self.when(lost, "step 9/")
        lost.processes[1].kill()
        check(lost.wait(20)[0] == 7 and "rank 1 is gone" in lost.said(0), f"rank 0 does not name the killed rank:\n{lost.said()}")
        print("a killed rank is named")

    def diverge(self):
        run = Ranks(self, "diverge", self.some, ["optim.name=adamw", "optim.lr=1000", "optim.weight_decay=1000", "train.max_nonfinite_steps=3", "parallel.timeout_s=20", *self.batch])
        codes = run.wait(120)
        check(codes == [6] * self.some, f"ended with {codes}\n{run.said()}")
        check("the weights before it and the state are in '" in run.said(0), f"rank 0 does not say where:\n{run.said(0)}")
        dumps = list((run.folder / "run" / "diverged" / "checkpoints").glob("step-*")) or list(
            (run.folder / "run" / "diverged").glob("*"))
        check(dumps, "there is no dump")
        print(f"a gradient that is not finite: all ended with 6, the dump is {dumps[0].name}")

    def stop(self):
        straight = self.reference(self.some, self.batch)
        run = Ranks(self, "stopped", self.some, self.batch)
        self.when(run, "step 5/24")
        run.processes[-1].terminate()
        codes = run.wait(60)
        check(codes == [75] * self.some, f"ended with {codes}\n{run.said()}")
        check("another rank was asked to" in run.said(0), f"rank 0 does not say why:\n{run.said(0)}")
        Ranks(self, "stopped", self.some, self.batch).done()
        same_bits(straight, run.folder, "stopped and gone on with")
        print(f"SIGTERM to the last rank: all stopped, {checkpoints(run.folder)[0].name} among the checkpoints; the end has the same bits")

    def when(self, run, text, seconds=60):
        end = time.monotonic() + seconds
        while text not in run.said(0):
            if time.monotonic() > end or run.processes[0].poll() is not None:
                run.kill()
                fail(f"'{text}' never came:\n{run.said()}")
            time.sleep(0.01)

    def lost(self):
        rng = random.Random(self.args.seed)
        name = self.args.signal
        number = getattr(signal, f"SIG{name}")
        # A killed rank's connections are closed by the kernel; a stopped one is noticed by the time limit.
        more, limit = ["parallel.timeout_s=6", "train.checkpoint_every=4"], 5 if name == "KILL" else 6 + 5
        straight = self.reference(self.some, self.batch)
        for moment in ("ranks  ", "step 3/24", "step 9/24", "step 12/24", "evaluation", "step 20/24"):
            victim = rng.randrange(self.some)
            case = f"SIG{name} to rank {victim} after '{moment.strip()}'"
            folder = f"lost_{moment.strip().replace(' ', '_').replace('/', '_')}"
            run = Ranks(self, folder, self.some, [*more, *self.batch])
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
            check(codes == [7] * (self.some - 1), f"{case}: the others ended with {codes}\n{run.said()}")
            texts = [run.said(rank) for rank in range(self.some) if rank != victim]
            named = re.compile(rf"ranks? {victim}(, which keeps the store,)? (is|are) gone")
            check(all(named.search(text) for text in texts), f"{case}: not all name it\n{run.said()}")
            Ranks(self, folder, self.some, [*more, *self.batch]).done()
            same_bits(straight, run.folder, case)
            print(f"{case}: the others left after {took:.2f} s; started again, the end has the same bits", flush=True)

    def axes(self):
        words = [*self.decoder(), "lm.layers=2", "lm.hidden_size=32", "lm.num_heads=2", "train.steps=4000", "train.eval_every=0",
                 "train.checkpoint_every=0", "parallel.heartbeat_s=0.2"]
        parts, groups = ["parallel.tensor=2", "parallel.zero=1"], ["parallel.replicas=2", "parallel.zero=2"]

        def start(name, mesh, failing):
            line = ["train", f"run.dir={self.work / name}", "run.name=run", *words, *mesh]
            return Ranks(self, name, 4, line=line, failing=failing)

        # The victim, its place, and one that shares the axis with it.
        cases = {"tensor": (parts, 3, "data 1 of 2, tensor 1 of 2", 2, "tensor axis, rank 0 of 2 (global rank 2)"),
                 "data": (parts, 1, "data 0 of 2, tensor 1 of 2", 3, "data axis, rank 1 of 2 (global rank 3)"),
                 "shard": (groups, 2, "replica 1 of 2, shard 0 of 2", 3, "shard axis, rank 1 of 2 (global rank 3)"),
                 "replica": (groups, 2, "replica 1 of 2, shard 0 of 2", 0, "replica axis, rank 0 of 2 (global rank 0)")}
        for axis, (mesh, victim, place, waiting, where) in cases.items():
            run = start(axis, mesh, {victim: f"collective.{axis}:100:kill"})
            while run.processes[victim].poll() is None:
                time.sleep(0.01)
            began = time.monotonic()
            codes = run.wait(60)
            took = time.monotonic() - began
            check(codes == [-9 if rank == victim else 7 for rank in range(4)], f"{axis}: ended with {codes}\n{run.said()}")
            check(took < 5, f"{axis}: the others took {took:.1f} s to leave\n{run.said()}")
            for rank in range(4):
                named = rank == victim or f"rank {victim} ({place}) is gone" in run.said(rank)
                check(named, f"{axis}: rank {rank} does not name rank {victim}\n{run.said(rank)}")
            log = (run.folder / "run" / "log" / f"rank_{waiting}.log").read_text()
            check(where in log, f"{axis}: rank {waiting} does not say '{where}'\n{log}")
            print(f"SIGKILL in an exchange of the {axis} axis: named after {took:.2f} s; rank {waiting} waits: {where}", flush=True)
        # One that stands still is no dead one: the time limit ends it.
        words += ["train.stuck_after_s=2"]
        run = start("still", parts, {3: "collective.tensor:300:sleep=60"})
        self.when(run, "step 1/")
        codes = run.wait(30)
        check(codes == [7] * 4, f"stuck: ended with {codes}\n{run.said()}")
        text = "rank 3 (data 1 of 2, tensor 1 of 2) is stuck at step"
        check(all(text in run.said(rank) for rank in range(4)), f"stuck: rank 3 is not named\n{run.said()}")
        log = (run.folder / "run" / "log" / "rank_2.log").read_text()
        check("rank 2 waits in an all-" in log and cases["tensor"][-1] in log, f"stuck: rank 2 does not say where it waits\n{log}")
        print("a rank that stands still in an exchange of the tensor axis is named", flush=True)
        # In every step it comes late.
        words[-1:] = ["train.steps=60"]
        run = start("slow", parts, {1: "step.begin:1+:sleep=0.03"}).done(60)
        slow = re.search(r"slow, and all others wait: rank 1 \(.*", run.said(0))
        check(slow and "ms; data 0 of 2, tensor 1 of 2)" in slow.group() and "they wait most on the tensor axis" in slow.group(),
              f"the slow rank is not named by its place:\n{run.said(0)}")
        line = [values for values in map(json.loads, (run.folder / "run" / "metrics.jsonl").open()) if "perf/comm_wait_ms" in values][-1]
        waits = [line[f"perf/comm_wait_ms_{axis}"] for axis in ("tensor", "data")]
        check(min(waits) > 0 and sum(waits) <= line["perf/comm_wait_ms"] * 1.01, f"waits: {line}")
        print(slow.group())

    def restart(self):
        if not self.has_torchrun():
            print("torchrun is not installed")
            sys.exit(77)
        more = ["parallel.timeout_s=6", "train.checkpoint_every=4", *self.batch]
        straight = self.reference(self.some, self.batch)
        rng = random.Random(self.args.seed)
        moments = ["ranks  ", "step 6/24", "step 12/24", "step 15/24"]
        run = Ranks(self, "restarted", self.some, more, launcher="torchrun", restarts=len(moments))
        for moment in moments:
            self.when(run, moment, 120)
            # The log of the attempts is one file: each moment is one that no attempt before has come to.
            victim = rng.choice(children(run.processes[0].pid))
            os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()
            before = run.said(0).count("resumed      ") + run.said(0).count("training     ")
            while run.said(0).count("resumed      ") + run.said(0).count("training     ") == before:
                check(run.processes[0].poll() is None and time.monotonic() - killed < 60, f"no new attempt:\n{run.said()}")
                time.sleep(0.02)
            print(f"killed after '{moment.strip()}': training again after {time.monotonic() - killed:.1f} s", flush=True)
        run.done(120)
        same_bits(straight, run.folder, "killed and restarted by torchrun")
        print(f"{len(moments)} ranks killed, restarted by torchrun: the end has the same bits")

    def slow(self):
        if self.args.device == "cuda":
            print("a GPU has work for longer than its process is stopped here")
            sys.exit(77)
        run = Ranks(self, "slow", self.some, ["train.steps=160", "train.eval_every=0", "train.checkpoint_every=0", *self.batch])
        self.when(run, "step 2/160")
        while run.processes[1].poll() is None:
            for number, seconds in ((signal.SIGSTOP, 0.03), (signal.SIGCONT, 0.01)):
                run.processes[1].send_signal(number)
                time.sleep(seconds)
        run.done(60)
        check("slow, and all others wait: rank 1 (" in run.said(0), f"rank 1 is not named:\n{run.said(0)}")
        waits = [values["perf/comm_wait_ms"] for values in map(json.loads, (run.folder / "run" / "metrics.jsonl").open())
                 if "perf/comm_wait_ms" in values]
        check(len(waits) == 160 and waits[100] > 0, f"waits: {waits[:5]}")
        print(re.search("slow, and all others.*", run.said(0)).group())

    def nodes(self):
        more = ["parallel.timeout_s=6", "train.checkpoint_every=4"]
        alone = self.reference(1)
        with Nodes() as nodes:
            launchers = ["loop", "torchrun"] if self.has_torchrun() else ["loop"]
            for launcher in launchers:
                several = Ranks(self, launcher, 4, more, launcher=launcher, nodes=nodes).done()
                check("on node 0 of 2" in several.said(), f"rank 0 knows no nodes:\n{several.said()}")
                worst = largest_difference(metrics(alone), metrics(several.folder))
                check(worst <= self.tolerance, f"two nodes by {launcher}: a logged value differs by {worst:.2g}")
                print(f"two nodes by {launcher}: logged values differ by {worst:.2g} at most", flush=True)
            run = Ranks(self, "cut", 4, more, nodes=nodes)
            self.when(run, "step 9/24")
            nodes.cut()
            began = time.monotonic()
            codes = run.wait(6 + 5)
            took = time.monotonic() - began
            check(codes == [7] * 4, f"the cable is cut: ended with {codes}\n{run.said()}")
            check("ranks 2, 3 are gone" in run.said(0) and all("rank 0" in run.said(r) for r in (2, 3)),
                  f"the cable is cut: the other side is not named\n{run.said()}")
            nodes.cut(False)
            Ranks(self, "cut", 4, more, nodes=nodes).done()
            same_bits(self.work / "loop", run.folder, "the cable was cut")
            print(f"the cable was cut: all left after {took:.1f} s; started again, the end has the same bits")

    def doctor(self):
        run = Ranks(self, "doctor", 3, line=["doctor", "--ranks"]).done(60)
        check("3 ranks over gloo" in run.said(0) and run.said(0).count("right") == 4, f"it says\n{run.said(0)}")
        check(not run.said(1) + run.said(2), f"others than rank 0 speak:\n{run.said()}")
        run = Ranks(self, "json", 2, line=["doctor", "--ranks", "--json"]).done(60)
        report = json.loads(run.said(0))
        check([rank["rank"] for rank in report["ranks"]] == [0, 1], f"it says\n{run.said(0)}")
        check(all(row["right"] and row["seconds"] > 0 for row in report["all_reduce"]), f"it says\n{run.said(0)}")
        run = Ranks(self, "mesh", 4, line=["doctor", "--ranks", "--tensor", "2", "--json"]).done(60)
        mesh = json.loads(run.said(0))["mesh"]
        check(mesh == [{"axis": "tensor", "groups": [[0, 1], [2, 3]], "right": True},
                       {"axis": "shard", "groups": [[0, 2], [1, 3]], "right": True}], f"it says\n{run.said(0)}")
        run = Ranks(self, "uneven", 3, line=["doctor", "--ranks", "--tensor", "2"])
        check(run.wait(60) == [2, 2, 2] and "a multiple of 2 ranks" in run.said(0), f"it says\n{run.said()}")
        run = Ranks(self, "missing", 3, line=["doctor", "--ranks", "--meet-timeout", "2"], missing=(2,))
        check(run.wait(60) == [7, 7] and ": 2" in run.said(0), f"it says\n{run.said()}")
        check(Ranks(self, "alone", 1, line=["doctor", "--ranks"]).wait(60) == [2], "one process is no error")
        print("doctor --ranks: 3 ranks right, the missing one named")

    def bench_one_rank(self):
        """bench step --ranks: a rank alone works and allocates as beside the others."""
        step = ["bench", "step", "--steps", "1", "--warmup", "1", "--settle", "0", "--profile-steps", "1"]
        words = [*self.decoder(), "parallel.zero=3", "runtime.threads=1"]

        def measured(name, ranks, *options):
            file = self.work / f"{name}.json"
            run = Ranks(self, name, ranks, line=[*step, *options, "--json", str(file), *words]).done(120)
            return json.loads(file.read_text()), run.said(0)

        real, text = measured("step", 2)
        check("2 times " in text and "lone_rank" not in real, f"two ranks measured:\n{text}")
        whole, _ = measured("step_whole", 1)
        for rank in (0, 1):
            lone, text = measured(f"step_rank{rank}", 1, "--ranks", "2", "--rank", str(rank))
            check(f"rank {rank} of 2 alone" in text, f"it says\n{text}")
            check((lone["ranks"], lone["lone_rank"]) == (2, rank), f"it holds {lone}")
            check(lone["gradient_buckets"] == real["gradient_buckets"], f"{lone}\n{real}")
            # Beside another rank, Gloo's copies of what it sends may fall into the peak.
            peak, beside, alone = (result["counts"]["peak_bytes"] for result in (lone, real, whole))
            check(0.9 < peak / beside < 1.001 and peak < 0.7 * alone,
                  f"peak of rank {rank}: {peak} bytes alone, {beside} beside another rank, {alone} of one process")
        print("bench step --ranks: a rank alone allocates what it does beside another one", flush=True)
        for options, part in ((["--rank", "1"], "--ranks"), (["--ranks", "2", "--rank", "2"], "ranks count from 0"),
                              (["--ranks", "1"], "--ranks")):
            run = Ranks(self, "refused", 1, line=[*step, *options, *words])
            check(run.wait(20) == [2] and part in run.said(0), f"{options}: it says\n{run.said(0)}")
        run = Ranks(self, "both", 2, line=[*step, "--ranks", "2", *words])
        check(run.wait(20) == [2, 2] and "leave out the launcher or --ranks" in run.said(0), f"it says\n{run.said()}")

    def bench(self):
        for ranks in (2, 3):
            file = self.work / f"comm{ranks}.json"
            line = ["bench", "comm", "--device", "cpu", "--max-mb", "1", "--ops", "all", "--json", str(file)]
            line += ["--urgent", "--beside"] if ranks == 2 else []
            run = Ranks(self, f"bench{ranks}", ranks, line=line).done(120)
            check("bus GB/s" in run.said(0) and "8 B" in run.said(0) and "1.0 MiB" in run.said(0), f"it says\n{run.said(0)}")
            check(not any(run.said(rank) for rank in range(1, ranks)), f"others than rank 0 speak:\n{run.said()}")
            result = json.loads(file.read_text())
            check((result["ranks"], result["nodes"], result["transport"]) == (ranks, 1, "gloo"), f"it holds {result}")
            rows = result["all_reduce"]
            check([row["bytes"] for row in rows] == [8 * 2**i for i in range(18)], f"other sizes: {rows}")
            for row in rows:
                gbs = row["bytes"] / row["time_us"] * 1e-3
                check(abs(row["algorithm_gbs"] - gbs) < 1e-6 * gbs, f"{row}: {gbs}")
                check(abs(row["bus_gbs"] - gbs * 2 * (ranks - 1) / ranks) < 1e-6 * gbs, f"{row}")
            factors = {"reduce_scatter": (ranks - 1) / ranks, "all_gather": (ranks - 1) / ranks,
                       "all_to_all": (ranks - 1) / ranks, "send_receive": 1}
            for kind, factor in factors.items():
                step = 1 if kind == "send_receive" else ranks  # as many numbers for each rank
                check([row["bytes"] for row in result[kind]] == [4 * step * -(-2 ** (i + 1) // step) for i in range(18)],
                      f"other sizes of {kind}: {result[kind]}")
                check(all(abs(row["bus_gbs"] - row["bytes"] / row["time_us"] * 1e-3 * factor) < 1e-6 * row["bus_gbs"]
                          for row in result[kind]), f"{kind}: {result[kind]}")
            check(result["urgent"] == (ranks == 2) == ("beside" in result), f"it holds {result}")
            for row in result.get("beside", []):
                gain = row["products_us"] + row["gather_us"] - row["both_us"]
                check(abs(row["hidden"] - gain / min(row["products_us"], row["gather_us"])) < 1e-6, f"{row}")
        self.bench_one_rank()
        # Of CPUs it is refused; the same numbers of GPUs are planned with.
        plan = [self.binary, "plan", "--gpu", "H200", "--seq-len", "81", "--vocab-size", "11", "--ranks", "2,8",
                "--bandwidths", str(file), "train.global_batch_size=384"]
        refused = subprocess.run(plan, capture_output=True, text=True)
        check(refused.returncode == 2 and "measured between CPUs (gloo)" in refused.stderr, f"plan says {refused}")
        # On a busy machine the times of these few bytes may say nothing of bandwidth.
        for row in rows:
            row["time_us"] = 20 + 1e-3 * row["bytes"]
        file.write_text(json.dumps(dict(result, transport="nccl", device="NVIDIA H200")))
        planned = subprocess.run([*plan, "--json", str(self.work / "plan.json")], capture_output=True, text=True)
        check(planned.returncode == 0 and "measured, 3 ranks on 1 node" in planned.stdout, f"plan says {planned}")
        points = json.loads((self.work / "plan.json").read_text())["link"]["measured"]
        check(len(points) == len(rows) + 1, f"plan reads {points}")
        check(Ranks(self, "alone", 1, line=["bench", "comm"]).wait(60) == [2], "one process is no error")
        print("bench comm: 2 and 3 ranks measured, and planned with")

    def ports(self):
        """Each command meets each port, all at the same time."""
        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass

        limit = 2
        commands = {
            "train": ["train", f"run.dir={self.work}/none", *self.small, f"parallel.meet_timeout_s={limit}"],
            "doctor": ["doctor", "--ranks", "--meet-timeout", str(limit)],
            "bench comm": ["bench", "comm", "--device", "cpu", "--meet-timeout", str(limit)],
        }
        silent, closing = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
        web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)

        def close_all():
            while True:
                closing.accept()[0].close()

        for work in (close_all, web.serve_forever):
            threading.Thread(target=work, daemon=True).start()
        # A web server answers once a line has ended, which a random byte of the greeting may do.
        kinds = {"a silent port": (silent.getsockname()[1], ["nothing is answered there"]),
                 "a web server": (web.server_address[1], ["nothing is answered there", "no store answers so"]),
                 "a port that closes": (closing.getsockname()[1], ["each connection is closed there"])}
        began = time.monotonic()
        check(Ranks(self, "alone", 1, line=["doctor", "--ranks"]).wait(60) == [2], "one process is no error")
        start = time.monotonic() - began  # of the program, on this machine
        runs = {(name, kind): Ranks(self, f"{kind} {name}".replace(" ", "_"), 2, line=line, missing=(0,), port=port)
                for kind, (port, _) in kinds.items() for name, line in commands.items()}
        began = time.monotonic()
        for (name, kind), run in runs.items():
            codes, seconds = run.wait(60), time.monotonic() - began
            said = any(words in run.said() for words in kinds[kind][1])
            check(codes == [7] and said and run.said().count("error:") == 1,
                  f"{name} against {kind}: {codes}\n{run.said()}")
            check(seconds <= limit + 2 + len(runs) * start,
                  f"{name} against {kind} took {seconds:.1f} s, with a limit of {limit} s and {start:.1f} s for a start")
            print(f"{name} against {kind}: ended after at most {seconds:.1f} s", flush=True)

    def two_jobs(self):
        for turn in range(1, self.args.times + 1):
            port = free_port()
            # One of them a little later than the other, or not: who comes first is not known.
            later = random.Random(self.args.seed * 1000 + turn).choice((0, 0.05, 0.3, 1))
            jobs = []
            for name in ("one", "other"):
                jobs.append(Ranks(self, f"{name}{turn}", 2, ["train.steps=1000000", "train.eval_every=0"], port=port))
                time.sleep(later)
            end = time.monotonic() + 60
            while all(any(p.poll() is None for p in job.processes) for job in jobs) and time.monotonic() < end:
                time.sleep(0.02)
            jobs.sort(key=lambda job: any(p.poll() is None for p in job.processes))
            loser, winner = jobs
            codes = loser.wait(10)
            sentences = [loser.said(rank).count("error:") for rank in range(2)]
            check(codes == [7, 7] and sentences == [1, 1], f"turn {turn}: ended with {codes}\n{loser.said()}")
            check("rank 0 cannot listen" in loser.said(0), f"turn {turn}: rank 0 says\n{loser.said(0)}")
            check("met the store of another job" in loser.said(1), f"turn {turn}: rank 1 says\n{loser.said(1)}")
            while not (winner.folder / "run" / "metrics.jsonl").exists() and time.monotonic() < end:
                time.sleep(0.02)
            check(all(p.poll() is None for p in winner.processes), f"turn {turn}: the first job ended, too\n{winner.said()}")
            winner.processes[1].terminate()
            check(winner.wait(60) == [75, 75] and checkpoints(winner.folder), f"turn {turn}: {winner.said()}")
            print(f"turn {turn}: {winner.folder.name} trained, {loser.folder.name} left", flush=True)
        print(f"{self.args.times} of {self.args.times} times one job trained, and the other left it alone")

    def wrong(self):
        def ends(what, code, text, ranks=2, early=False, **options):
            began = time.monotonic()
            # Waited for to the end where one does not come; else long enough for a busy machine.
            meet = 3 if options.get("missing") else 60
            run = Ranks(self, what.replace(" ", "_"), ranks, [f"parallel.meet_timeout_s={meet}"], **options)
            codes = run.wait(60)
            # Who has not met the others yet can be told nothing: the store is gone.
            check(code in codes and set(codes) <= {code, 7 if early else code}, f"{what}: ended with {codes}\n{run.said()}")
            check(text in run.said(), f"{what}: nobody says '{text}':\n{run.said()}")
            print(f"{what}: codes {codes} after {time.monotonic() - began:.1f} s", flush=True)

        ends("a rank that does not come", 7, "these of 3 ranks have not come to 127.0.0.1", ranks=3, missing=(1,))
        ends("another configuration", 2, "rank 1 has another configuration than rank 0",
             each=lambda rank: ["optim.lr=2e-3"] if rank == 1 else [])
        ends("a batch that cannot be split", 2, "cannot be split over 2 ranks",
             each=lambda rank: ["train.global_batch_size=15", "train.micro_batch_size=0"])
        ends("a micro batch that does not divide", 2, "does not divide the 8 samples that each of 2 ranks has",
             each=lambda rank: ["train.micro_batch_size=16"])
        ends("an interface that is not there", 3, "name another network interface: parallel.interface=",
             early=True, each=lambda rank: ["parallel.interface=nosuch0"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--work", default="", help="folder for the runs (default: a temporary one, removed afterwards)")
    parser.add_argument("--launcher", choices=["loop", "torchrun", "mpirun"], default="loop")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--most", type=int, choices=[2, 4, 8], default=4, help="ranks (default: %(default)s)")
    parser.add_argument("--signal", choices=["KILL", "STOP"], default="KILL")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("test", choices=["equal", "resume", "zero", "turns", "mesh", "parts", "diverge", "stop", "lost", "axes", "restart", "slow", "nodes", "doctor", "bench", "ports", "two_jobs", "wrong"])
    args = parser.parse_args()
    test = Test(args)
    try:
        getattr(test, args.test)()
    finally:
        for run in Ranks.started:
            run.kill()
    if not args.work:
        shutil.rmtree(test.work)


if __name__ == "__main__":
    main()
