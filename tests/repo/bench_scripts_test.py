"""The tables of scripts/bench: which mode is compared, and with what."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts/bench"))
import compare_official  # noqa: E402
import time_to_accuracy  # noqa: E402

HERE = dict(work="hrm384", batch=384, gpu="NVIDIA H200", torch="2.11", ours="hrm_train 0.1.0", peak_bytes=2**30)


def official(mode, ms, sync=False, sitting="1"):
    return dict(HERE, side="official", variant=mode, sync=sync, ms_per_step=ms, sitting=sitting)


def ours(ms, variant="bf16", sitting="1"):
    return dict(HERE, side="ours", variant=variant, ms_per_step=ms, sitting=sitting)


class Tables(unittest.TestCase):
    def test_the_fastest_mode_counts_by_the_median_of_its_turns(self):
        records = [official("default", ms) for ms in (41, 40, 90)]
        records += [official("max-autotune", ms, sync=True) for ms in (39, 45, 44)]
        records += [ours(ms) for ms in (20, 21, 20.5)]
        ratio, mode, sync, theirs, mine = compare_official.compared(records, "bf16")
        self.assertEqual((mode, sync, theirs["median"], mine["median"]), ("default", False, 41, 20.5))
        self.assertAlmostEqual(ratio, 2.0)

    def test_a_ratio_never_mixes_sittings(self):
        records = [official("default", 40), ours(20), official("max-autotune", 30, sitting="2"), ours(25, sitting="2")]
        ratio, mode, _, _, mine = compare_official.compared(records, "bf16")
        self.assertEqual((mode, mine["median"]), ("max-autotune", 25))
        self.assertAlmostEqual(ratio, 1.2)
        self.assertIsNone(compare_official.compared([official("default", 40), ours(20, sitting="2")], "bf16"))

    def test_another_size_is_named(self):
        small = [dict(official("default", 40), batch=2), dict(ours(20), batch=2)]
        self.assertIn("HRM 27M, batch 384 - here batch 2 |", compare_official.tables(small))
        record = dict(HERE, work="eval384", variant="default", side="official", sync=True, seconds=2.0, puzzles=4)
        text = compare_official.tables([record, dict(record, side="ours", variant="bf16")])
        self.assertIn("here 4 puzzles (seconds) | default | 2 (2-2) | - | 2 |", text)
        self.assertNotIn("here", compare_official.tables([official("default", 40), ours(20)]))

    def test_failures_stand_in_the_table(self):
        failed = dict(HERE, side="ours", variant="fp8 recursions", error="no | fp8", sitting="1")
        broken = dict(HERE, side="official", variant="max-autotune", error="out of memory", sitting="1")
        text = compare_official.tables([official("default", 40), ours(20), failed, broken])
        self.assertIn("**2.00**", text)
        self.assertIn("fails: `no \\| fp8`", text)
        self.assertIn("max-autotune | fails: `out of memory`", text)


class Report(unittest.TestCase):
    def report(self, **steps):
        with tempfile.TemporaryDirectory() as folder:
            for name, step in steps.items():
                record = time_to_accuracy.record_of(name, 0, step, step / 10, 0.9, 0.8, "GPU")
                pathlib.Path(folder, f"{name}_seed0.jsonl").write_text(json.dumps(record) + "\n")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                code = time_to_accuracy.report(types.SimpleNamespace(dir=pathlib.Path(folder), picture=None))
        return code, out.getvalue()

    def test_runs_that_have_come_equally_far_are_compared(self):
        code, text = self.report(official=200, ours=200)
        self.assertEqual(code, 0)
        self.assertIn("| ours | 20 | 80.0 % | 1.00 | +0.0 |", text)

    def test_others_are_not(self):
        self.assertIn("| ours | 10 | 80.0 % | - | - |", self.report(official=200, ours=100)[1])


class WrongInput(unittest.TestCase):
    """One sentence and an exit code, before anything is measured."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        (self.dir / "HRM/models").mkdir(parents=True)

    def refused(self, script, code, part, *arguments):
        done = subprocess.run([sys.executable, "-B", ROOT / "scripts/bench" / script, *map(str, arguments)],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (code, 1), done.stderr)
        self.assertTrue(done.stderr.startswith("error: ") and part in done.stderr, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_compare_official(self):
        script, hrm = "compare_official.py", ("--hrm", self.dir / "HRM", "--work", "hrm64")
        self.refused(script, 2, "hrm384 needs --hrm")
        self.refused(script, 4, "holds no folder 'models'", "--hrm", self.dir, "--work", "hrm64")
        self.refused(script, 2, "no work 'hrm65'", "--work", "hrm65")
        self.refused(script, 2, "no mode 'best'", *hrm, "--modes", "best")
        self.refused(script, 2, "no mode 'best'", "--hrm", self.dir / "HRM", "--work", "hrm64:best")
        self.refused(script, 2, "no variant 'fp9'", *hrm, "--variants", "fp9")
        self.refused(script, 2, "'0' is no whole number of at least 1", *hrm, "--rounds", "0")
        self.refused(script, 3, "'/no/hrm_train' is no program", *hrm, "--binary", "/no/hrm_train")
        self.refused(script, 3, "cannot write", *hrm, "--out", self.dir / "no/x.json")
        self.refused(script, 2, "--report needs --out", "--report")
        file = self.dir / "r.json"
        for text, part in (("", "not what this script"), ('[{"work": 1}]', "not what"), ("[]", "no results")):
            file.write_text(text)
            self.refused(script, 4, part, "--report", "--out", file)

    def test_compare_cpu(self):
        self.refused("compare_cpu.py", 2, "trm_att needs --trm", "--hrm", self.dir / "HRM")
        self.refused("compare_cpu.py", 2, "--threads", "--threads", "0")
        self.refused("compare_cpu.py", 2, "unrecognized", "--therads", "2")

    def test_time_to_accuracy(self):
        script, ours = "time_to_accuracy.py", ("--dir", self.dir / "tta", "--sides", "ours")
        self.refused(script, 2, "--dir")
        self.refused(script, 2, "needs --hrm", "--dir", self.dir)
        self.refused(script, 2, "whole numbers", *ours, "--seeds", "a")
        self.refused(script, 2, "no time for training", *ours, "--minutes", "0.1")
        self.refused(script, 2, "--picture needs --report", *ours, "--picture", "x.svg")
        self.refused(script, 2, "a name of its own", "--dir", self.dir, "--sides", "ours,ours")
        self.refused(script, 3, "is no program", *ours, "--binary", "/no/hrm_train")
        self.refused(script, 4, "no.csv does not exist", *ours, "--train", "no.csv")
        self.refused(script, 4, "holds no results", "--dir", self.dir, "--report")
        (self.dir / "ours_seed0.jsonl").write_text('{"step": 1}\n{\n')
        self.refused(script, 4, "line 2", "--dir", self.dir, "--report")


if __name__ == "__main__":
    unittest.main()
