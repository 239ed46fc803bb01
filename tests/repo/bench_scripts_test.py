"""The tables of scripts/bench: which mode is compared, and with what."""

import contextlib
import io
import json
import pathlib
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


if __name__ == "__main__":
    unittest.main()
