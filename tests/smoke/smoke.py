#!/usr/bin/env python3
"""Trains one configuration of configs/, shrunken, through its whole life: train, SIGKILL, resume, evaluate, export, solve
or generate. Then its first steps once more with two ranks.

    tests/smoke/smoke.py --binary build/bin/hrm_train --config configs/puzzle/hrm_sudoku17.json --work DIR
    tests/smoke/smoke.py --list          the configurations and whether each has an entry in shrink.json

The loss on a fixed batch (the first test puzzles, the first rows for validation) must fall by at least 5 % over the shrunken training. What is shrunk
stands in tests/smoke/shrink.json; a configuration without an entry there fails. Only Python's standard library is used.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import entries

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/fault"))
import ready  # noqa: E402
sys.path.insert(0, str(ROOT / "tests/support"))
from free_port import free_port  # noqa: E402


def shrink_table():
    return json.loads((pathlib.Path(__file__).parent / "shrink.json").read_text())


def configs():
    return sorted(str(p.relative_to(ROOT)) for p in (ROOT / "configs").rglob("*.json"))


class Smoke:
    def __init__(self, binary, config, work):
        self.binary, self.config, self.work = binary, config, pathlib.Path(work)
        self.waiting = None  # the program with its libraries loaded, for many starts
        self.entry = shrink_table()[config]
        self.task = pathlib.Path(config).parent.name  # puzzle, language, polychromic or contrastive
        self.run = self.work / "run"

    def wait_ready(self):
        library = ready.build(self.work)
        if library:
            self.waiting = ready.Ready(self.binary, dict(os.environ, LD_PRELOAD=str(library)), None)

    def start(self, line, stdin, stdout, stderr, **environment):
        """A process of the program in the folder of work."""
        environment = dict(os.environ, **environment)
        if self.waiting is None:
            return subprocess.Popen(line, cwd=self.work, stdin=stdin, stdout=stdout, stderr=stderr, env=environment)
        here = os.getcwd()
        os.chdir(self.work)
        try:
            return self.waiting.start(line, environment, stdin, stdout, stderr)
        finally:
            os.chdir(here)

    def call(self, *args, stdin=""):
        with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as said:
            given.write(stdin)
            given.seek(0)
            code = self.start([self.binary, *args], given, out, said).wait()
            out.seek(0)
            said.seek(0)
            if code != 0:
                sys.exit(f"FAILED ({self.config}): hrm_train {' '.join(args)}\nended with code {code}\n{said.read()}")
            return out.read()

    def train_args(self, steps):
        overrides = shrink_table()["all"] + shrink_table()[self.task] + self.entry["overrides"]
        overrides = [o.replace("{root}", str(ROOT)).replace("{work}", str(self.work)) for o in overrides]
        return ["train", "--config", str(ROOT / self.config), f"run.dir={self.work}", "run.name=run", *overrides,
                f"train.steps={steps}"]

    def two_ranks(self):
        """Two ranks must lose what one process lost in steps 6 to 10; returns the difference."""
        self.on_two_ranks(1)
        self.on_two_ranks(self.entry.get("steps", 20))

        def losses(run):
            lines = [json.loads(line) for line in (self.work / run / "metrics.jsonl").read_text().splitlines()]
            return next(line["train/loss"] for line in lines if line["step"] == 10 and "train/loss" in line)
        one, two = losses("run"), losses("two")
        # Where gradients are next to nothing, AdamATan2 makes whole steps of their rounding; and where answers are sampled, it
        # can choose another token.
        if not abs(one - two) < self.entry.get("ranks_rtol", 1e-4) * one:
            sys.exit(f"FAILED ({self.config}): one process lost {one}, two ranks {two}")
        return abs(one - two) / one

    def on_two_ranks(self, steps):
        port = free_port()
        args = [*self.train_args(steps), "run.name=two", "train.checkpoint_every=0", "parallel.timeout_s=60"]
        logs = [open(self.work / f"rank_{rank}.txt", "w+") for rank in (0, 1)]
        with open(os.devnull) as nothing:
            ranks = [self.start([self.binary, *args], nothing, log, log, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank),
                                LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
                     for rank, log in enumerate(logs)]
        codes = [rank.wait(200) for rank in ranks]
        if codes != [0, 0]:
            said = [pathlib.Path(log.name).read_text() for log in logs]
            sys.exit(f"FAILED ({self.config}): two ranks ended with {codes}\n{said[0]}\n{said[1]}")

    def fixed_loss(self):
        return json.loads(self.call("eval", "--checkpoint", str(self.run)))["lm_loss" if self.task == "puzzle" else "loss"]

    def halt_early(self):
        early = json.loads(self.call("eval", "--checkpoint", str(self.run), "--early-halt"))
        if not (early["early_halt"] and 1 <= early["steps"] <= early["segments"]):
            sys.exit(f"FAILED ({self.config}): eval --early-halt took {early['steps']} of {early['segments']} segments")

    def exports(self):
        """Kinds of files, and how their names end."""
        last = ("hf", "hf/model.safetensors") if self.task == "polychromic" else ("torchscript", "ts.pt")
        return [("safetensors", "safetensors"), ("pt", "pt"), last]

    def export(self):
        for kind, suffix in self.exports():
            out = self.work / f"model.{suffix}"
            folder = out.parent if kind == "hf" else out
            self.call("export", "--to", kind, "--checkpoint", str(self.run), "--out", str(folder))
            if not out.stat().st_size > 1000:
                sys.exit(f"FAILED ({self.config}): export --to {kind} wrote {out.stat().st_size} bytes")

    def solve(self):
        questions = self.entry["solve"].replace("{work}", str(self.work)).replace("{root}", str(ROOT))
        plain = []
        rollouts = ["--rollouts", "3", "--noisy-state", "z_H", "--selector"]  # the plain Transformer has no z_L
        selector = self.entry.get("selector", "valid")  # where the rules are known
        for flags in ([], ["--early-halt"], [*rollouts, selector], [*rollouts, "first"]):
            answers = self.call("solve", "--checkpoint", str(self.run), "--format", "jsonl", *flags,
                                stdin=pathlib.Path(questions).read_text()).splitlines()
            first = json.loads(answers[0]) if answers else {}
            if not answers or len(first["answer"]) != len(first["question"]) or first["segments"] < 1:
                sys.exit(f"FAILED ({self.config}): solve {' '.join(flags)} gave {answers[:1]}")
            plain = plain or answers
            if "--rollouts" in flags and not 1 <= first["agreement"] <= first["rollouts"] == 3:
                sys.exit(f"FAILED ({self.config}): solve {' '.join(flags)} gave {answers[:1]}")
        # Without noise: the answers of a run without rollouts.
        if [json.loads(a)["answer"] for a in answers] != [json.loads(a)["answer"] for a in plain]:
            sys.exit(f"FAILED ({self.config}): the first rollouts answer otherwise than runs without rollouts")
        return plain

    def vote(self):
        """ARC: two answers for each test input, and pass@K."""
        submission = self.work / "submission.json"
        found = json.loads(self.call("eval", "--checkpoint", str(self.run), "--submission", str(submission)))
        answers = json.loads(submission.read_text())
        if found["tasks"] != len(answers) or not found["pass@1"] <= found["pass@2"] <= 1:
            sys.exit(f"FAILED ({self.config}): eval gave {found}")
        if any({"attempt_1", "attempt_2"} != set(a) for attempts in answers.values() for a in attempts):
            sys.exit(f"FAILED ({self.config}): the submission is {answers}")
        return [answers]

    def generate(self):
        lines = self.call("generate", str(self.run), "--input", "-", "--max-new-tokens", "5", "--format", "jsonl",
                          "--temperature", "0", stdin="".join(p + "\n" for p in self.entry["prompts"])).splitlines()
        answers = [json.loads(line) for line in lines]
        if [a["prompt"] for a in answers] != self.entry["prompts"]:
            sys.exit(f"FAILED ({self.config}): generate gave {lines}")
        return answers

    def refuse(self, also):
        """A geometric memory answers nothing and is not exported: one sentence, exit code 2."""
        for line in (["generate", str(self.run), "--prompt", "a"], ["solve", "--checkpoint", str(self.run)],
                     ["export", "--to", "safetensors", "--checkpoint", str(self.run), "--out", str(self.work / "m")], *also):
            with tempfile.TemporaryFile("w+") as said, open(os.devnull, "r+") as nothing:
                code = self.start([self.binary, *line], nothing, nothing, said).wait()
                said.seek(0)
                sentences = said.read()
            if code != 2 or "contrastive" not in sentences:
                sys.exit(f"FAILED ({self.config}): hrm_train {' '.join(line)} ended with code {code}: {sentences}")

    def prepare(self):
        for prepare in self.entry.get("prepare", []):
            self.call(*[a.replace("{root}", str(ROOT)).replace("{work}", str(self.work)) for a in prepare])

    def entries(self):
        """Of the newest checkpoint."""
        return entries.entries_of(max((self.run / "checkpoints").glob("step-*")))

    def compare_entries(self):
        """A checkpoint holds what those of earlier releases held, under the same names."""
        file = entries.FOLDER / f"{pathlib.Path(self.config).stem}.txt"
        want, got = set(file.read_text().splitlines()), set(self.entries())
        if want != got:
            lost, new = sorted(want - got), sorted(got - want)
            sys.exit(f"FAILED ({self.config}): the checkpoint's entries are others than in {file}: {len(lost)} lost {lost[:3]}, "
                     f"{len(new)} new {new[:3]}")

    def main(self):
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.wait_ready()
        self.prepare()
        steps = self.entry.get("steps", 20)

        self.call(*self.train_args(1))
        self.compare_entries()
        learns = self.entry.get("learns", True)  # otherwise there is no loss, and an evaluation is refused
        before = self.fixed_loss() if learns else 0

        # Killed when it has saved past the first step and stands still, then resumed to the end.
        with open(os.devnull, "r+") as nothing:
            process = self.start([self.binary, *self.train_args(steps)], nothing, nothing, nothing,
                                 HRM_FAIL="step.begin:4:sleep=600")
        deadline = time.monotonic() + 120
        while process.poll() is None and len(list((self.run / "checkpoints").glob("step-*"))) < 2:
            if time.monotonic() > deadline:
                sys.exit(f"FAILED ({self.config}): no checkpoint within 120 s")
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            sys.exit(f"FAILED ({self.config}): the training that was to be killed had already ended with code "
                     f"{process.returncode}; give it more steps in shrink.json")
        reached = max(int(p.name.removeprefix("step-")) for p in (self.run / "checkpoints").glob("step-*"))
        if reached >= steps:
            sys.exit(f"FAILED ({self.config}): the training was killed after its last step {steps}, so that nothing is "
                     "left to resume; give it more steps in shrink.json")
        self.call(*self.train_args(steps))
        after = self.fixed_loss() if learns else 0
        if learns and not after < 0.95 * before:
            sys.exit(f"FAILED ({self.config}): the loss on the fixed batch went from {before:.4f} to {after:.4f}, "
                     "less than 5 % down")

        if self.task == "puzzle":
            self.halt_early()
        answers = []
        if self.task == "contrastive":
            self.refuse(also=[] if learns else [["eval", "--checkpoint", str(self.run)]])
        else:
            self.export()
            answers = self.vote() if "arc" in self.config else self.solve() if self.task == "puzzle" else self.generate()
        difference = self.two_ranks()
        result = f"loss on the fixed batch {before:.4f} -> {after:.4f}" if learns else "no loss"
        print(f"{self.config}: {result} in {steps} steps; "
              f"killed, resumed, {'evaluated, ' if learns else ''}{'refused' if self.task == 'contrastive' else 'exported'}, {len(answers)} answers; two ranks' losses differ by {difference:.1g}")
        shutil.rmtree(self.work)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary")
    parser.add_argument("--config")
    parser.add_argument("--work")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        table = set(shrink_table()) - {"all", "puzzle", "language", "polychromic", "contrastive"}
        missing = [c for c in configs() if c not in table]
        stale = sorted(table - set(configs()))
        for c in configs():
            print(c)
        if missing or stale:
            sys.exit(f"FAILED: without a smoke test: {missing}; smoke tests of no configuration: {stale}")
        return
    Smoke(str(pathlib.Path(args.binary).resolve()), args.config, args.work).main()


if __name__ == "__main__":
    main()
