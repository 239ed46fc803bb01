"""scripts/bench/gate with stand-ins for the programs, and scripts/export_metrics with stand-ins for the packages."""

import csv
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPE = "configs/puzzle/hrm_sudoku17.json"

PROGRAM = """#!/usr/bin/env python3
import json, pathlib, sys
NAME, TIMES = {name!r}, {times!r}
log = pathlib.Path({log!r})
with log.open("a") as out:
    out.write(json.dumps([NAME, sys.argv[1:]]) + "\\n")
if "--json" in sys.argv:
    turn = sum(json.loads(line)[0] == NAME for line in log.read_text().splitlines()) - 1
    ms = TIMES[turn % len(TIMES)]
    if ms is None:
        print("error: no GPU", file=sys.stderr)
        sys.exit(3)
    result = dict(step_ms=dict(median=ms), device="a GPU", memory=dict(allocated_peak_bytes=100, host_resident_peak_bytes=7))
    pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(result))
"""


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hrm_gate_test_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_script(self, name, *words, **env):
        return subprocess.run([sys.executable, ROOT / name, *map(str, words)], stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=100, env={**os.environ, **env})

    def assert_error(self, done, code, *parts):
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("error: "), 1, done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)


class Gate(Case):
    def program(self, name, times):
        file = self.folder / name
        file.write_text(PROGRAM.format(name=name, times=times, log=str(self.folder / "log")))
        file.chmod(0o755)
        return file

    def gate(self, old, new, *words):
        self.programs = [self.program("old", old), self.program("new", new)]
        return self.run_script("scripts/bench/gate", "--old", self.programs[0], "--new", self.programs[1], RECIPE, *words)

    def test_programs_take_turns_and_the_median_of_ratios_counts(self):
        out = self.folder / "result.json"
        done = self.gate([10, 20, 40], [10.1, 20.2, 60], "--json", out)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        result = json.loads(out.read_text())["results"][0]
        self.assertAlmostEqual(result["ratio"], 1.01)
        self.assertAlmostEqual(result["least"], 1.01)
        self.assertAlmostEqual(result["largest"], 1.5)
        calls = [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]
        self.assertEqual([name for name, _ in calls], ["old", "new", "new", "old", "old", "new"])
        for _, words in calls:
            self.assertEqual(words[:4], ["bench", "step", "--config", str(ROOT / RECIPE)])
            self.assertFalse([word for word in words if word.startswith("model.")], "recipes keep their size")

    def test_a_slower_step_fails(self):
        done = self.gate([10], [10.5])
        self.assertEqual(done.returncode, 1)
        self.assertIn("SLOWER", done.stdout)
        self.assertEqual(self.gate([10], [10.5], "--threshold", "0.1").returncode, 0)
        self.assertEqual(self.gate([10], [8]).returncode, 0)

    def test_copies_of_one_program_must_be_equal(self):
        same = self.program("same", [10, 10.2])
        done = self.run_script("scripts/bench/gate", "--old", same, "--new", same, RECIPE, "--turns", "1")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("both are the same program", done.stdout)
        self.assertIn("too noisy", done.stdout)
        same = self.program("same", [10, 10.05])
        (self.folder / "log").unlink()
        done = self.run_script("scripts/bench/gate", "--old", same, "--new", same, RECIPE, "--turns", "1")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_small_recipes_and_settings(self):
        self.gate([10], [10], "--small", "--turns", "1", "--set", "runtime.threads=1")
        words = json.loads((self.folder / "log").read_text().splitlines()[0])[1]
        self.assertIn("model.hidden_size=64", words)
        self.assertIn("runtime.threads=1", words)

    def test_bad_input_is_one_sentence(self):
        self.assert_error(self.gate([None], [10]), 3, RECIPE, "ended with code 3", "no GPU")
        self.assert_error(self.run_script("scripts/bench/gate", "--old", "/no/such", "--new", "/no/such"), 3, "/no/such")
        self.assert_error(self.gate([10], [10], "configs/other.json"), 2, "configs/other.json")
        self.assert_error(self.gate([10], [10], "--set", "threads"), 2, "--set takes KEY=VALUE")
        self.assert_error(self.gate([10], [10], "--threshold", "-1"), 2, "--threshold")


LINES = [{"step": 10, "train/loss": 2.5, "perf/step_ms": 3.0}, {"step": 20, "train/loss": None, "perf/step_ms": 2.0},
         {"step": 20, "eval/accuracy": 0.5}]

# Keeps what it is told in CALLS.
STAND_IN = """
import json, os
def tell(*what):
    with open(os.environ["CALLS"], "a") as out:
        out.write(json.dumps(what) + "\\n")
class Run:
    def log(self, values, step=None): tell("log", step, values)
    def finish(self): tell("finish")
def init(**arguments):
    tell("init", arguments)
    return Run()
"""


class Export(Case):
    def setUp(self):
        super().setUp()
        self.run_folder = self.folder / "first"
        self.run_folder.mkdir()
        self.metrics = self.run_folder / "metrics.jsonl"
        self.metrics.write_text("".join(json.dumps(line) + "\n" for line in LINES) + '{"step": 30, "tra')
        (self.run_folder / "config.json").write_text('{"optim": {"lr": 0.1}}')

    def export(self, *words, **env):
        return self.run_script("scripts/export_metrics", self.run_folder, "--to", *words, **env)

    def test_csv_has_a_row_a_step(self):
        done = self.export("csv")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        self.assertEqual(rows, [
            {"step": "10", "train/loss": "2.5", "perf/step_ms": "3.0", "eval/accuracy": ""},
            {"step": "20", "train/loss": "", "perf/step_ms": "2.0", "eval/accuracy": "0.5"}])
        out = self.folder / "out.csv"
        self.assertEqual(self.export("csv", "--out", out).returncode, 0)
        self.assertEqual(out.read_text(), done.stdout)

    def test_packages_are_called_as_they_want(self):
        packages = self.folder / "packages"
        packages.mkdir()
        for name in ("wandb", "trackio"):
            (packages / f"{name}.py").write_text(STAND_IN)
            calls = self.folder / f"{name}_calls"
            done = self.export(name, "--project", "mine", PYTHONPATH=str(packages), CALLS=str(calls), WANDB_MODE="offline")
            self.assertEqual(done.returncode, 0, done.stderr)
            told = [json.loads(line) for line in calls.read_text().splitlines()]
            want = {"project": "mine", "name": "first", "config": {"optim": {"lr": 0.1}}}
            if name == "wandb":
                want.update(dir=str(self.run_folder), mode="offline")
            self.assertEqual(told[0], ["init", want])
            self.assertEqual(told[1], ["log", 10, {"train/loss": 2.5, "perf/step_ms": 3.0}])
            self.assertEqual(told[2], ["log", 20, {"perf/step_ms": 2.0, "eval/accuracy": 0.5}])
            self.assertEqual(told[3:], [["finish"]])

    def test_bad_input_is_one_sentence(self):
        packages = self.folder / "empty"
        packages.mkdir()
        for name in ("wandb", "trackio"):
            (packages / f"{name}.py").write_text("raise ImportError\n")
            self.assert_error(self.export(name, PYTHONPATH=str(packages)), 3, f"no {name}", f"pip install {name}")
        self.assert_error(self.export("excel"), 2, "excel")
        self.assert_error(self.export("csv", "--name", "a"), 2, "--name has no effect")
        self.assert_error(self.export("trackio", "--out", "a"), 2, "--out has no effect")
        self.assert_error(self.export("csv", "--out", "/no/such/folder/a"), 3, "/no/such/folder")
        self.assert_error(self.run_script("scripts/export_metrics", "/no/such", "--to", "csv"), 4, "/no/such")
        for damaged in ('{"step": "a"}\n', "[1]\n", "nonsense\n", '{"loss": 1}\n', '{"step": true}\n'):
            self.metrics.write_text(damaged)
            self.assert_error(self.export("csv"), 4, "line 1 of", "is no line of metrics")
        self.metrics.write_text("")
        self.assert_error(self.export("csv"), 4, "holds no metrics yet")


if __name__ == "__main__":
    unittest.main()
