"""What the campaigns of this folder share: starting trainings, comparing their ends, a state that survives the campaign.

Each campaign is a script of cases. `--long` does all of them, else a choice that takes about a minute. With --work the
cases that are done are kept in <work>/state.json: a campaign that was killed goes on with the next one. At the end it
prints a row of a Markdown table: what, how many, result, seconds. Exit code 77: it cannot be done on this machine. Only
Python's standard library is used.
"""
import argparse
import ctypes
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import ready

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from free_port import free_port  # noqa: E402
LIBC = ctypes.CDLL(None, use_errno=True)
SAMPLES = 32  # of the training set: 8 steps of 4 are an epoch

TINY = [
    "data.augmentation=sudoku", "model.hidden_size=16", "model.num_heads=1", "model.H_layers=1", "model.L_layers=1",
    "model.H_cycles=1", "model.L_cycles=2", "model.halt_max_steps=4", "optim.lr=1e-3", "optim.puzzle_emb_lr=1e-3",
    "optim.warmup_steps=5", "optim.min_ratio=1", "optim.ema=0.99", "train.global_batch_size=4", "train.log_every=1",
    "train.keep_checkpoints=2", "eval.max_samples=4", "runtime.device=cpu", "runtime.threads=1", "parallel.timeout_s=60",
    "parallel.meet_timeout_s=60",
]
TRM = ["model.arch=trm", "model.H_layers=0", "model.no_ACT_continue=true"]


class Failure(Exception):
    pass


def check(condition, text):
    if not condition:
        raise Failure(text)


def set_up_process():
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a training does not outlive a campaign that is killed
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Run:
    """One start of a training with all its ranks, in `folder`/run. `fail`: HRM_FAIL, of all ranks or by rank. `settings`
    precede `more`; those of the campaign where none are given."""

    started = []

    def __init__(self, campaign, folder, more=(), ranks=1, fail="", environment=None, arguments=(), user=None,
                 settings=None):
        self.folder, self.processes, self.outputs = pathlib.Path(folder), [], []
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = campaign.settings if settings is None else settings
        base = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "HRM_FAIL")}
        base.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
        if "runtime.device=cuda" not in campaign.args.overrides:
            base["CUDA_VISIBLE_DEVICES"] = ""
        base.update(environment or {})
        line = [campaign.binary, "train", *arguments, f"run.dir={self.folder}", "run.name=run", *settings, *more,
                *campaign.args.overrides]
        port = str(free_port())
        Run.started = [run for run in Run.started if run.alive()] + [self]
        for rank in range(ranks):
            own = dict(base)
            if ranks > 1:
                own.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            orders = fail.get(rank, "") if isinstance(fail, dict) else fail
            if orders:
                own["HRM_FAIL"] = orders
            # Elsewhere: the run's folder may be on a disk that is full.
            output = campaign.work / "output" / f"{self.folder.name}_{rank}.txt"
            output.parent.mkdir(exist_ok=True)
            self.outputs.append((output, output.stat().st_size if output.exists() else 0))
            with open(output, "a") as out:
                self.processes.append(campaign.start(line, own, out, user))

    def alive(self):
        return any(process.poll() is None for process in self.processes)

    def send(self, number, rank=None):
        for process in self.processes if rank is None else [self.processes[rank]]:
            if process.poll() is None:
                process.send_signal(number)

    def kill(self):
        self.send(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def end_soon(self, seconds=4):
        """Those that have not left by then are killed, and at once those that wait at the start for one that is gone."""
        end, hurried = time.monotonic() + seconds, False
        while self.alive() and time.monotonic() < end:
            gone = any(process.poll() is not None for process in self.processes)
            if gone and not hurried and "ranks  " not in self.said(0):
                end, hurried = min(end, time.monotonic() + 0.2), True
            time.sleep(0.01)
        self.kill()

    def wait(self, seconds=120):
        """The exit codes; -9 of a process that was killed."""
        end = time.monotonic() + seconds
        for process in self.processes:
            try:
                process.wait(max(end - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                self.kill()
                raise Failure(f"{self.folder}: not ended after {seconds} s\n{self.said()}") from None
        return [process.returncode for process in self.processes]

    def ended(self, *allowed, seconds=120):
        """Waits for an end with one of these codes, the same on all ranks; done is 0."""
        codes = self.wait(seconds)
        check(len(set(codes)) == 1 and codes[0] in (allowed or (0,)),
              f"{self.folder}: ended with {codes}, expected {allowed or 0}\n{self.said()}")
        return codes[0]

    def said(self, rank=None):
        """The output of this start."""
        chosen = self.outputs if rank is None else [self.outputs[rank]]
        return "\n".join(path.read_bytes()[start:].decode(errors="replace") for path, start in chosen)

    def errors(self):
        return [line for line in self.said().splitlines() if line.startswith("error: ")]

    def wait_until(self, condition, what, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            alive = self.alive()  # what it did last counts
            if condition():
                break
            check(alive and time.monotonic() < end, f"{self.folder}: waiting for {what}\n{self.said()}")
            time.sleep(0.01)
        return self

    def wait_for(self, text, seconds=60):
        return self.wait_until(lambda: text in self.said(), f"'{text}'", seconds)

    def wait_step(self, step, seconds=60):
        return self.wait_until(lambda: last_step(self.folder) >= step, f"step {step}", seconds)

    def begun(self):
        """Whether it is said where this start goes on."""
        return "training     " in self.said(0) or self.resumed_at() > 0

    def resumed_at(self):
        """The step at which this start went on; 0: it began anew."""
        found = re.search(r"^resumed .* at step (\d+) of ", self.said(0), re.MULTILINE)
        return int(found[1]) if found else 0


def anonymous_bytes(pid):
    """Of the process's memory, what it allocated itself. The kernel may drop pages of files at any time and read them again."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        sizes = [line.split()[1] for line in file if line.startswith("RssAnon:")]
    return int("".join(sizes)) * 1024  # ValueError: the process has just ended


def metrics(folder):
    """The lines of the log without the fields that measure time."""
    out = []
    for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
        out.append({k: v for k, v in json.loads(line).items() if not k.startswith("perf/")})
    return out


def last_step(folder):
    """Of the last whole line of the log; 0: there is none."""
    try:
        lines = (folder / "run" / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
        return json.loads(lines[-1])["step"] if lines else 0
    except (FileNotFoundError, ValueError):
        return 0


def checkpoints(folder):
    root = folder / "run" / "checkpoints"
    return sorted(p for p in root.iterdir() if p.name.startswith("step-")) if root.is_dir() else []


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def final_bytes(folder):
    newest = checkpoints(folder)[-1]
    names = sorted(p.name for p in newest.iterdir() if p.name.startswith(("model", "state")))
    return {f"{newest.name}/{name}": (newest / name).read_bytes() for name in names}


def same_end(one, other):
    """Both runs ended with the same weights, state and logged values, bit for bit."""
    first, second = metrics(one), metrics(other)
    check(len(first) > 0, f"{one}: nothing was logged")
    for a, b in zip(first, second):
        check(a == b, f"{other} logged\n  {b}\nwhere {one} logged\n  {a}")
    check(len(first) == len(second), f"{one} logged {len(first)} lines and {other} {len(second)}")
    first, second = final_bytes(one), final_bytes(other)
    check(first.keys() == second.keys(), f"{one} ended with {sorted(first)}, {other} with {sorted(second)}")
    for name in first:
        check(first[name] == second[name], f"{name} of {other} differs from that of {one}")


def tidy(folder):
    """Nothing temporary is left of those that were killed."""
    left = [str(p.relative_to(folder)) for p in (folder / "run").rglob("*") if ".tmp" in p.name]
    check(not left, f"{folder}: temporary files were left behind: {left}")


class Campaign:
    def __init__(self, document, **more):
        """`more`: defaults of further options of the command line."""
        parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--binary", required=True)
        parser.add_argument("--work", default="", help="folder for runs and state (default: a temporary one, removed)")
        parser.add_argument("--long", action="store_true", help="all cases; else those for every day")
        parser.add_argument("--minutes", type=float, default=0, help="begin no case after so long; 0: do all")
        parser.add_argument("--seed", type=int, default=1)
        for name, value in more.items():
            parser.add_argument(f"--{name}", type=type(value), default=value)
        parser.add_argument("overrides", nargs="*", help="key=value, after all other settings of each run")
        self.args = parser.parse_args()
        self.long, self.name = self.args.long, pathlib.Path(sys.argv[0]).stem
        self.binary = str(pathlib.Path(self.args.binary).resolve())
        if not os.access(self.binary, os.X_OK) or os.path.isdir(self.binary):
            print(f"error: '{self.args.binary}' is no program: build it first (scripts/build)", file=sys.stderr)
            sys.exit(3)
        self.temporary = not self.args.work
        self.work = pathlib.Path(self.args.work or tempfile.mkdtemp(prefix=f"hrm_{self.name}_")).resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.file = self.work / "state.json"
        if not self.long:  # always from the beginning
            for entry in self.work.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self.state = json.loads(self.file.read_text()) if self.file.exists() else {"done": {}, "seconds": 0.0}
        self.begun = self.saved = time.monotonic()
        rows = (ROOT / "data/sudoku/train_17clue_1k.csv").read_text().splitlines(keepends=True)
        self.csv = self.work / "puzzles.csv"
        self.csv.write_text("".join(rows[:SAMPLES + 1]))
        self.settings = [f"data.train={self.csv}", f"data.test={self.csv}", *TINY]  # of each run, before its own
        # A process that has begun with CUDA cannot be copied.
        self.library = None if "runtime.device=cuda" in self.args.overrides else ready.build(self.work)
        self.waiting = {}  # by what is read while libraries are loaded

    def start(self, line, environment, output, user=None):
        """A process of the program, as the user of this number where one is given."""
        if self.library and user is None:
            preloaded = environment.get("LD_PRELOAD", "")
            key = preloaded, *sorted(word for word in environment.items() if word[0].startswith("MALLOC_"))
            if key not in self.waiting:
                loaded = {k: v for k, v in environment.items() if not k.startswith("HRM_")}
                loaded["LD_PRELOAD"] = f"{self.library}:{preloaded}" if preloaded else str(self.library)
                self.waiting[key] = ready.Ready(self.binary, loaded, set_up_process)
            return self.waiting[key].start(line, environment, output)
        return subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                preexec_fn=set_up_process, user=user, group=user,
                                extra_groups=None if user is None else [])

    def save(self):
        now = time.monotonic()
        self.state["seconds"] += now - self.saved
        self.saved = now
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(self.state, indent=1))
        fresh.replace(self.file)

    def folder(self, name):
        """An empty one."""
        path = self.work / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def straight(self, name, more=(), ranks=1):
        """The folder of a run without a disturbance, made once."""
        folder, mark = self.work / f"straight_{name}", self.work / f"straight_{name}" / "done"
        if not mark.exists():
            shutil.rmtree(folder, ignore_errors=True)
            began = time.monotonic()
            run, steps, times = Run(self, folder, more, ranks), 0, []
            while run.alive():
                if (now := last_step(folder)) > steps:
                    steps, times = now, [*times[:1], time.monotonic() - began]
                time.sleep(0.005)
            run.ended()
            whole = time.monotonic() - began
            first, last = times[0] if times else whole, times[-1] if times else whole
            phases = {"start": first, "steps": last - first, "end": whole - last}
            mark.write_text(json.dumps(phases))
        return folder

    def moment(self, run, straight, share, skip_start=False):
        """Waits for a moment of `run`: this share of the time that `straight` took, without its start where that is
        skipped. The start is measured by the clock and the rest by steps, so that the moment is the same on a busy machine.
        Returns at the end of a run that has fewer steps left."""
        phases, final = json.loads((straight / "done").read_text()), last_step(straight)
        start = 0 if skip_start else phases["start"]
        left = share * (start + phases["steps"] + phases["end"])
        if left < start:
            end = time.monotonic() + left
            while run.alive() and time.monotonic() < end:
                time.sleep(0.002)
            return
        left -= start
        run.wait_until(lambda: not run.alive() or run.begun(), "its first step")
        at, a_step = run.resumed_at(), max(phases["steps"], 1e-3) / max(final, 1)
        if left < (final - at) * a_step:
            step, left = divmod(left, a_step)
            step += at
        else:
            step, left = final, left - (final - at) * a_step
            if left >= phases["end"]:
                run.wait_until(lambda: not run.alive(), "its end", 120)
        run.wait_until(lambda: not run.alive() or last_step(run.folder) >= step, f"step {step}", 120)
        end = time.monotonic() + left
        while run.alive() and time.monotonic() < end:
            time.sleep(0.002)

    def out_of_time(self):
        return self.args.minutes > 0 and time.monotonic() - self.begun > 60 * self.args.minutes

    def run(self, cases, row):
        """Does the cases, (name, function), that are not done. A function returns a number, of what it has counted.
        `row` turns the sum of the numbers and the number of cases into "what | how many | result"."""
        try:
            for name, case in cases:
                if name in self.state["done"]:
                    continue
                if self.out_of_time():
                    print("out of time: the row is of what was done", flush=True)
                    break
                began = time.monotonic()
                number = case()
                self.state["done"][name] = number if number is not None else 1
                self.save()
                print(f"{name}: {self.state['done'][name]} ({time.monotonic() - began:.1f} s)", flush=True)
        except Failure as failure:
            sys.exit(f"FAILED: {failure}\n(in {traceback.extract_tb(failure.__traceback__)[1]}; files: {self.work})")
        finally:
            for run in Run.started:
                run.kill()
            for waiting in self.waiting.values():
                waiting.end()
        done = self.state["done"]
        text = f"| {row(sum(done.values()), len(done))} | {self.state['seconds']:.0f} |"
        (self.work / "row.md").write_text(text + "\n")
        print(text)
        if self.temporary:
            shutil.rmtree(self.work)
