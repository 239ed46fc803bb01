"""trace_ranks: the table of all ranks, the merged trace, the checker of the format."""

import copy
import gzip
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import trace_samples  # noqa: E402
from profile_scripts_test import SCRIPTS, Case  # noqa: E402

sys.path.insert(0, str(SCRIPTS / "lib"))
import kernel_profile  # noqa: E402
import trace_check  # noqa: E402


class Ranks(Case):
    def setUp(self):
        super().setUp()
        for rank in (0, 1):
            trace_samples.write(self.dir / f"trace_rank_{rank}.json.gz",
                                trace_samples.trace_of(rank, late=100.0 * rank, base=10**18 + rank * 5000))

    def test_the_table(self):
        done = self.run_script("trace_ranks", str(self.dir))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = {tuple(row[:2]): row[2:] for row in map(str.split, done.stdout.splitlines())}
        # Rank 0: a product 100..700, NCCL 500..1000, elementwise 1200..1500. Rank 1 starts 100 later.
        self.assertEqual(rows["1", "0"], ["1.400", "0.900", "0.300", "0.200", "0.000"])
        self.assertEqual(rows["3", "1"], ["1.300", "0.900", "0.200", "0.200", "0.100", "*"])
        self.assertEqual(rows["mean", "1"], ["1.300", "0.900", "0.200", "0.200", "0.100"])
        self.assertIn("rank 1 is the straggler in 3 of 3 steps; the others wait up to 0.100 ms a step", done.stdout)

    def test_merged(self):
        out = self.dir / "all.json.gz"
        done = self.run_script("trace_ranks", str(self.dir / "trace_rank_1.json.gz"), str(self.dir / "trace_rank_0.json.gz"),
                               "--merge", str(out))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        trace = json.loads(gzip.decompress(out.read_bytes()))
        self.assertEqual(trace_check.problems(trace), [])
        self.assertEqual(trace["ranks"], 2)
        names = {e["args"]["name"]: e["pid"] for e in trace["traceEvents"] if e["name"] == "process_name"}
        self.assertEqual(set(names), {"rank 0: hrm_train", "rank 0: GPU 0", "rank 1: hrm_train", "rank 1: GPU 1"})
        self.assertEqual(len(set(names.values())), 4)
        first = {e["pid"]: e["ts"] for e in reversed(trace["traceEvents"]) if e["name"] == "ProfilerStep#9"}
        # 5,000 ns later by the two files' beginnings.
        self.assertEqual(first, {names["rank 0: hrm_train"]: 1000.0, names["rank 1: hrm_train"]: 1005.0})
        kernels = [e["args"]["correlation"] for e in trace["traceEvents"] if e.get("cat") == "kernel"]
        self.assertEqual(len(set(kernels)), 2 * 3 * trace_samples.STEPS)
        done = self.run_script("trace_ranks", str(out))
        self.assert_one_error(done, 4, "is a merged trace")

    def test_other_scripts_read_it(self):
        file = str(self.dir / "trace_rank_0.json.gz")
        done = self.run_script("trace_table", file)
        self.assertIn("GPU by kind", done.stdout, done.stderr)
        done = self.run_script("overlap", file)
        self.assertRegex(done.stdout, r"mean +1\.400 +0\.900 +0\.500 +0\.500 +0\.200 +40\.0% +0\.300")
        self.assertEqual(self.run_script("hotspots", file).returncode, 0)

    def test_a_cpu(self):
        events = []
        for step, late in ((0, 30), (1000, 50)):
            for cat, name, ts, dur in (("user_annotation", "train.step", step, 500), ("cpu_op", "aten::mm", step + 50, 100),
                                       ("user_annotation", "all_reduce", step + 200, late), ("cpu_op", "x", step + 210, 5)):
                events.append({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1})
        file = self.write("trace_rank_3.json", {"traceEvents": events})
        done = self.run_script("trace_ranks", str(file))
        rows = {tuple(row[:2]): row[2:] for row in map(str.split, done.stdout.splitlines())}
        self.assertEqual(rows["2", "3"], ["0.500", "0.100", "0.050", "0.350", "0.000"])
        self.assertNotIn("straggler", done.stdout)

    def test_wrong_input(self):
        file = self.dir / "trace_rank_0.json.gz"
        self.assert_one_error(self.run_script("trace_ranks", str(file), str(file)), 4, "are both of rank 0")
        empty = tempfile.mkdtemp(dir=self.dir)
        self.assert_one_error(self.run_script("trace_ranks", empty), 4, "holds no trace_rank_N.json.gz")
        self.assert_one_error(self.run_script("trace_ranks", str(file), "--merge", str(self.dir / "no/x.json")), 3,
                              "cannot write")
        self.assert_one_error(self.run_script("trace_ranks", str(file), "--merge", str(self.dir / "x.txt")), 2,
                              "must end in")
        for bytes_, part in ((gzip.compress(b"{}"), "no Chrome trace"), (gzip.compress(b"x" * 99)[:-9], "cannot be unpacked"),
                             (gzip.compress(b'{"traceEvents": [1]}'), "damaged"),
                             (gzip.compress(b'{"traceEvents": []}'), "holds no steps")):
            (self.dir / "bad.json.gz").write_bytes(bytes_)
            self.assert_one_error(self.run_script("trace_ranks", str(self.dir / "bad.json.gz")), 4, part)
        short = trace_samples.trace_of(1)
        short["traceEvents"] = [e for e in short["traceEvents"] if e.get("ts", 0) < 3000]
        trace_samples.write(self.dir / "short.json.gz", short)
        self.assert_one_error(self.run_script("trace_ranks", str(file), str(self.dir / "short.json.gz")), 4,
                              "not of one recording: steps are 3 of rank 0, 1 of rank 1")


class Checker(unittest.TestCase):
    def setUp(self):
        self.trace = trace_samples.trace_of(0)

    def changed(self, change):
        trace = copy.deepcopy(self.trace)
        change(trace)
        return trace_check.problems(trace)

    def first(self, trace, **wanted):
        return next(e for e in trace["traceEvents"] if all(e.get(k) == v for k, v in wanted.items()))

    def test_a_sound_trace(self):
        self.assertEqual(trace_check.problems(self.trace), [])

    def test_each_defect_is_found(self):
        def drop(**wanted):
            return lambda t: t["traceEvents"].remove(self.first(t, **wanted))

        def put(key, value, **wanted):
            return lambda t: self.first(t, **wanted).update({key: value})

        kernel = {"cat": "kernel"}
        for change, part in (
                (lambda t: t.pop("distributedInfo"), "the rank"),
                (drop(ph="f"), "has no end"), (drop(ph="s"), "has no start"),
                (put("id", 2, ph="s", id=1), "two starts"), (put("id", 2, ph="f", id=1), "two ends"),
                (put("bp", None, ph="f"), "event around it"), (put("tid", 99, ph="f"), "in no event"),
                (lambda t: self.first(t, **kernel)["args"].update(correlation=77), "different correlation"),
                (lambda t: self.first(t, **kernel)["args"].pop("stream"), "no stream"),
                (put("dur", -1.0, **kernel), "no duration"), (put("ts", "1", **kernel), "no time"),
                (put("ts", 9e9, **kernel), "earlier than the event before it"),
                (put("dur", 1200.0, **kernel), "overlaps"), (put("ph", "Z", **kernel), "no known phase"),
                (put("args", {"allocated": "many"}, ph="C"), "no numbers")):
            found = self.changed(change)
            self.assertTrue(any(part in problem for problem in found), (part, found))

    def test_the_script(self):
        with tempfile.TemporaryDirectory(prefix="hrm_trace_") as folder:
            file = trace_samples.write(pathlib.Path(folder) / "a.json.gz", self.trace)
            case = Case()
            done = case.run_script("trace_ranks", "--check", str(file))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("a.json.gz: sound", done.stdout)
            self.trace["traceEvents"].pop()
            self.trace["traceEvents"] = [e for e in self.trace["traceEvents"] if e["ph"] != "f"]
            trace_samples.write(file, self.trace)
            done = case.run_script("trace_ranks", "--check", str(file))
            self.assertEqual(done.returncode, 4)
            self.assertIn("1 of 1 traces break", done.stderr)


if __name__ == "__main__":
    unittest.main()
