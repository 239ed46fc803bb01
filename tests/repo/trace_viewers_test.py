"""Traces in the programs that people open them with: Holistic Trace Analysis (in .venv, with the Python tests' packages) and
Perfetto's trace_processor (in the PATH). What is not there is skipped.

    python3 tests/repo/trace_viewers_test.py build/bin/hrm_train
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(ROOT / "scripts/lib"))
sys.path.insert(0, str(ROOT / "tests/support"))
from free_port import free_port  # noqa: E402
import kernel_profile  # noqa: E402
import trace_check  # noqa: E402
import trace_samples  # noqa: E402

PYTHON = ROOT / ".venv/bin/python"
RECORDED = ROOT / "tests/fixtures/gpu_traces"
PROCESSOR = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
ANALYSIS = """
import json, sys
from hta.trace_analysis import TraceAnalysis
out = {}
for folder in sys.argv[1:]:
    analysis = TraceAnalysis(trace_dir=folder, include_last_profiler_step=True)
    found = out[folder] = {"ranks": {int(r): [int(i) for i in analysis.t.get_iterations(r)] for r in analysis.t.get_ranks()}}
    if "kernel" not in str(analysis.t.symbol_table.get_sym_table()):
        continue
    rows = lambda frame: json.loads(frame.to_json(orient="records"))
    found["breakdown"] = rows(analysis.get_temporal_breakdown(visualize=False))
    found["overlap"] = rows(analysis.get_comm_comp_overlap(visualize=False))
    found["idle"] = rows(analysis.get_idle_time_breakdown(ranks=list(found["ranks"]), visualize=False)[0])
print(json.dumps(out))
"""


def has_hta():
    return PYTHON.exists() and any(ROOT.glob(".venv/lib/python3*/site-packages/hta/trace_analysis.py"))


def record(program, folder):
    """Two ranks on the CPU."""
    port = free_port()
    head = (ROOT / "data/sudoku/train_17clue_1k.csv").read_text().splitlines(keepends=True)[:41]
    (folder / "data.csv").write_text("".join(head))
    small = ["H_layers=1", "L_layers=1", "H_cycles=1", "L_cycles=1", "halt_max_steps=2", "hidden_size=32", "num_heads=2"]
    command = [program, "train", *("model." + word for word in small), f"data.train={folder}/data.csv",
               f"data.test={folder}/data.csv", "train.global_batch_size=4", "train.steps=5", "optim.warmup_steps=0",
               "eval.max_samples=4", "runtime.device=cpu", "runtime.threads=1", f"run.dir={folder}", "run.name=run",
               "profiling.trace_steps=2", "profiling.trace_after=2"]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={
        **os.environ, "CUDA_VISIBLE_DEVICES": "", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}) for rank in (0, 1)]
    for rank in ranks:
        text, _ = rank.communicate(timeout=100)
        if rank.returncode:
            raise RuntimeError(text)
    return folder / "run/traces"


class Viewers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="hrm_viewers_")
        cls.addClassCleanup(folder.cleanup)
        cls.dir = pathlib.Path(folder.name)
        cls.run_dir = record(PROGRAM, cls.dir)
        cls.recorded = [cls.run_dir / f"trace_rank_{rank}.json.gz" for rank in (0, 1)]
        cls.sample = cls.dir / "sample"
        cls.sample.mkdir()
        for rank in (0, 1):
            trace_samples.write(cls.sample / f"trace_rank_{rank}.json.gz", trace_samples.trace_of(rank, late=100.0 * rank))

    def test_what_is_written_is_sound(self):
        for rank, file in enumerate(self.recorded):
            trace = kernel_profile.load_trace(file)
            self.assertEqual(trace_check.problems(trace), [])
            self.assertEqual(trace["distributedInfo"], {"backend": "gloo", "rank": rank, "world_size": 2})
            counters = {e["name"] for e in trace["traceEvents"] if e["ph"] == "C"}
            self.assertEqual(counters, {"memory of the process"})
        for file in sorted(RECORDED.glob("*/trace_rank_*.json.gz")):
            self.assertEqual(trace_check.problems(kernel_profile.load_trace(file)), [], file)

    def test_ranks_side_by_side(self):
        merged = self.dir / "merged.json.gz"
        done = subprocess.run([sys.executable, ROOT / "scripts/trace_ranks", self.run_dir.parent, "--merge", merged],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual([row[:2] for row in rows[1:5]], [["1", "0"], ["1", "1"], ["2", "0"], ["2", "1"]])
        for row in rows[1:5]:
            time, computing, exposed, idle = map(float, row[2:6])
            self.assertGreater(min(time, computing, exposed), 0)
            self.assertAlmostEqual(time, computing + exposed + idle, delta=0.003)
        self.assertEqual(trace_check.problems(kernel_profile.load_trace(merged)), [])

    @unittest.skipUnless(has_hta(), "HTA is not in .venv (HRM_PYTHON_TESTS=ON scripts/setup installs it)")
    def test_holistic_trace_analysis(self):
        folders = [self.run_dir, self.sample, *sorted(path for path in RECORDED.glob("*") if path.is_dir())]
        done = subprocess.run([PYTHON, "-c", ANALYSIS, *folders], capture_output=True, text=True, timeout=100, cwd=self.dir)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        # Steps 3 and 4 of the run, of both ranks.
        self.assertEqual(found[str(self.run_dir)]["ranks"], {"0": [3, 4], "1": [3, 4]})
        sample = found[str(self.sample)]
        self.assertEqual(set(sample["ranks"]), {"0", "1"})
        by_rank = {row["rank"]: row for row in sample["overlap"]}
        # As in trace_ranks_test.py: 200 of 500 us hidden, and 200 of 400.
        self.assertAlmostEqual(by_rank[0]["comp_comm_overlap_pctg"], 40.0)
        self.assertAlmostEqual(by_rank[1]["comp_comm_overlap_pctg"], 50.0)
        for folder in folders[1:]:
            gpu = found[str(folder)]
            for row in gpu["breakdown"]:
                self.assertGreater(row["compute_time_pctg"], 0, folder)
            self.assertTrue(gpu["idle"], folder)
            self.assertTrue({row["idle_category"] for row in gpu["idle"]} <= {"host_wait", "kernel_wait", "other"})

    @unittest.skipUnless(PROCESSOR, "Perfetto's trace_processor is not in the PATH")
    def test_perfetto(self):
        query = self.dir / "query.sql"
        query.write_text("select name, value from stats where severity in ('error', 'data_loss') and value > 0;")
        for file in (*self.recorded, self.sample / "trace_rank_0.json.gz"):
            done = subprocess.run([PROCESSOR, "-q", query, file], capture_output=True, text=True, timeout=100)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(done.stdout.split("\n", 1)[1].strip()), 0, done.stdout)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
