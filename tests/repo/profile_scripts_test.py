"""trace_table, hotspots, overlap, gpu_projection and capture_nsight.py on small stored inputs, and with stand-ins for nsys, ncu and
hrm_train."""

import gzip
import json
import os
import pathlib
import re
import sqlite3
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS / "lib"))
import kernel_counters  # noqa: E402
import kernel_profile  # noqa: E402
import projection  # noqa: E402

MM = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
SILU = "void at::native::vectorized_elementwise_kernel<4, at::native::silu_functor>(int)"

# Two steps on a GPU: a product of 300 us, 100 us of nothing, an elementwise kernel of 100 us.
TRACE = {"traceEvents": [
    {"ph": "M", "name": "process_name"},
    *[event for step in (0, 1000) for event in (
        {"ph": "X", "cat": "user_annotation", "name": "train.step", "ts": step, "dur": 900, "tid": 1},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": step, "dur": 20, "tid": 1},
        {"ph": "X", "cat": "kernel", "name": MM, "ts": step + 100, "dur": 300, "tid": 7},
        {"ph": "X", "cat": "kernel", "name": SILU, "ts": step + 500, "dur": 100, "tid": 7},
    )],
]}

# As `ncu --csv --page raw` prints: messages, names, units, one line per launch.
NCU = f'''==PROF== Connected to process 1
"ID","Kernel Name","Block Size","dram__bytes.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","sm__ops_path_tensor_src_bf16_dst_fp32.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed"
"","","","Mbyte","%","us","","%"
"0","{MM}","(384, 1, 1)","100","20.0","200.0","120,000,000,000","80.5"
"1","{MM}","(384, 1, 1)","100","20.0","200.0","120,000,000,000","80.5"
"2","{SILU}","(128, 1, 1)","400","91.0","100.0","0","12.0"
'''


def make_nsys_export(file):
    with sqlite3.connect(file) as db:
        db.execute("create table StringIds (id integer, value text)")
        db.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, demangledName integer)")
        db.execute("create table CUPTI_ACTIVITY_KIND_MEMCPY (start integer, end integer, bytes integer)")
        db.execute("create table NVTX_EVENTS (start integer, end integer, text text, textId integer)")
        db.executemany("insert into StringIds values (?, ?)", [(1, MM), (2, SILU), (3, "train.step")])
        for step in (0, 1_000_000):
            db.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, 1)", (step + 100_000, step + 400_000))
            db.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, 2)", (step + 500_000, step + 600_000))
            db.execute("insert into CUPTI_ACTIVITY_KIND_MEMCPY values (?, ?, 8000)", (step + 600_000, step + 610_000))
            db.execute("insert into NVTX_EVENTS values (?, ?, null, 3)", (step, step + 900_000))
        db.execute("insert into NVTX_EVENTS values (0, 9, 'data.next_batch', null)")


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hrm_profile_")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def write(self, name, text):
        (self.dir / name).write_text(text if isinstance(text, str) else json.dumps(text))
        return self.dir / name

    def run_script(self, name, *arguments, path=""):
        environment = {**os.environ, "PATH": f"{path}:/usr/bin:/bin" if path else os.environ["PATH"]}
        return subprocess.run([sys.executable, SCRIPTS / name, *arguments], capture_output=True, text=True, timeout=60,
                              env=environment)

    def assert_one_error(self, result, code, *parts):
        self.assertEqual(result.returncode, code, result.stderr)
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        for part in parts:
            self.assertIn(part, errors[0])


class KernelGroups(unittest.TestCase):
    def test_the_tables_of_the_program_are_read_completely(self):
        groups = kernel_profile.kernel_groups()
        own = [re.search(r"KernelGroups k\w*Groups\{(.*?)\};", file.read_text(), re.DOTALL)
               for file in (ROOT / "src/ops").rglob("*_bench.cpp")]
        entries = sum(table[1].count('{"') for table in own if table)
        self.assertGreater(entries, 0)
        self.assertEqual(len(groups), entries + (ROOT / "src/runtime/kernel_groups.cpp").read_text().count('{"'))
        self.assertEqual(kernel_profile.group_of("hrm::linear_rms_norm_fp8", groups), "matrix products with RMSNorm")
        self.assertEqual(kernel_profile.group_of(MM, groups), "matrix products")
        self.assertEqual(kernel_profile.group_of(SILU, groups), "elementwise")
        self.assertEqual(kernel_profile.group_of("nothing known", groups), "other")


class Reading(Case):
    def check_two_steps(self, profile):
        self.assertTrue(profile.gpu)
        self.assertEqual(profile.steps, 2)
        rows = {row.name: row for row in kernel_profile.sums_by(profile.events, lambda e: e.name)}
        self.assertAlmostEqual(rows[MM].us, 600)
        self.assertEqual(rows[SILU].calls, 2)

    def test_chrome_trace(self):
        profile = kernel_profile.read_profile(self.write("trace.json", TRACE))
        self.check_two_steps(profile)
        span, busy, gaps = kernel_profile.busy_and_gaps(profile.events)
        self.assertAlmostEqual(span, 1500)
        self.assertAlmostEqual(busy, 800)
        self.assertEqual([round(gap) for gap, _, _ in gaps], [500, 100, 100])
        self.assertEqual((gaps[0][1].name, gaps[0][2].name), (SILU, MM))

    def test_chrome_trace_of_a_cpu(self):
        events = [{"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "tid": 1}
                  for name, ts, dur in (("outer", 0, 100), ("inner", 10, 30), ("inner", 50, 30), ("next", 100, 5))]
        profile = kernel_profile.read_profile(self.write("trace.json", {"traceEvents": events}))
        self.assertFalse(profile.gpu)
        rows = {row.name: row.us for row in kernel_profile.sums_by(profile.events, lambda e: e.name)}
        self.assertEqual(rows, {"outer": 40, "inner": 60, "next": 5})

    def test_a_kernel_that_was_started_early(self):
        events = [{"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "tid": 1}
                  for name, ts, dur in (("first", 0, 100), ("waits", 80, 70), ("inside", 20, 30), ("next", 200, 5))]
        profile = kernel_profile.read_profile(self.write("trace.json", {"traceEvents": events}))
        rows = {row.name: row.us for row in kernel_profile.sums_by(profile.events, lambda e: e.name)}
        self.assertEqual(rows, {"first": 100, "inside": 0, "waits": 50, "next": 5})
        span, busy, gaps = kernel_profile.busy_and_gaps(profile.events)
        self.assertEqual((span, busy, [gap for gap, _, _ in gaps]), (205, 155, [50]))

    def test_nsys_export(self):
        make_nsys_export(self.dir / "systems.sqlite")
        profile = kernel_profile.read_profile(self.dir / "systems.sqlite")
        self.check_two_steps(profile)
        self.assertEqual(sum(e.bytes for e in profile.events), 16000)

    def test_ncu_page(self):
        profile = kernel_profile.read_profile(self.write("compute.csv", NCU))
        self.assertEqual(len(profile.events), 3)
        counters = profile.counters[MM]
        self.assertAlmostEqual(counters["gpu__time_duration.sum"], 200e-6)
        self.assertAlmostEqual(counters["dram__bytes.sum"], 1e8)
        self.assertAlmostEqual(counters["sm__ops_path_tensor_src_bf16_dst_fp32.sum"], 1.2e11)

    # A share is one of a launch's time, so a long launch counts more; bytes do not.
    def test_shares_of_launches_of_different_length(self):
        longer = NCU + f'"3","{MM}","(384, 1, 1)","400","60.0","600.0","0","40.0"\n'
        counters = kernel_profile.read_profile(self.write("compute.csv", longer)).counters[MM]
        self.assertAlmostEqual(counters["dram__throughput.avg.pct_of_peak_sustained_elapsed"], (2 * 20 * 200 + 60 * 600) / 1000)
        self.assertAlmostEqual(counters["dram__bytes.sum"], 2e8)

    def test_what_is_no_profile(self):
        for name, text, part in (("a.json", "{]", "no Chrome trace"), ("b.sqlite", "x" * 4096, "no export of nsys"),
                                 ("c.csv", "1,2", "no raw page of ncu"), ("d.txt", "", "give a trace (")):
            self.assert_one_error(self.run_script("hotspots", str(self.write(name, text))), 4, part)
            self.assert_one_error(self.run_script("trace_table", str(self.dir / name)), 4, part)
        self.assert_one_error(self.run_script("hotspots", str(self.dir / "missing.json")), 4, "does not exist")


class Tables(Case):
    def test_trace_table(self):
        file = str(self.write("trace.json", TRACE))
        result = self.run_script("trace_table", file)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("GPU by kind: 0.400 ms per step", result.stdout)
        self.assertRegex(result.stdout, r"0\.300 +75\.0% +1\.0  matrix products")
        self.assertRegex(self.run_script("trace_table", file, "--steps", "4").stdout, r"0\.150 +75\.0% +0\.5  matrix pr")

    def test_hotspots_of_a_timeline(self):
        make_nsys_export(self.dir / "systems.sqlite")
        for file in (self.write("trace.json", TRACE), self.dir / "systems.sqlite"):
            result = self.run_script("hotspots", str(file))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("- steps recorded: 2", result.stdout)
            self.assertRegex(result.stdout, r"\| 0\.300 \| 7\d\.\d % \| 1\.0 \| 300\.0 \| matrix products \|")
            self.assertIn(f"| 300.0 | {MM} |", result.stdout)
            self.assertIn("## Longest gaps", result.stdout)
            self.check_tables(result.stdout)
        self.assertIn("## Copies", result.stdout)

    def test_hotspots_of_counters(self):
        out = self.dir / "hotspots.md"
        result = self.run_script("hotspots", str(self.write("compute.csv", NCU)), "--out", str(out))
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
        text = out.read_text()
        # 100 MB and 1.2e11 operations in 200 us.
        self.assertIn(f"| 200.0 | 500 | 20 % | 600.0 | 80 % | computing | {MM} |", text)
        self.assertRegex(text, r"\| 100\.0 \| 4000 \| 91 % \| 0\.0 \| 12 % \| memory \| vectorized_el")
        self.check_tables(text)

    def check_tables(self, text):
        """Every line of a table has as many columns as its head."""
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            self.assertEqual(len({line.count("|") for line in block.splitlines()}), 1, block)


# More counters, in base units as capture_nsight.py asks for them: a product, a copy, a kernel of a few warps.
FULL_COLUMNS = [
    "gpu__time_duration.sum", "dram__bytes.sum", "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed", "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active", "smsp__warps_eligible.avg.per_cycle_active",
    "smsp__inst_executed.sum", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__ops_path_tensor_src_bf16_dst_fp32.sum", "sm__ops_path_tensor_src_bf16_dst_fp32.sum.peak_sustained",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "dram__bytes.sum.peak_sustained",
    "dram__cycles_elapsed.avg.per_second", "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained",
    "sm__cycles_elapsed.avg.per_second", "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio", "launch__waves_per_multiprocessor"]
PEAKS = {10: "1081344", 12: "1536", 13: "3.2e9", 14: "16896", 15: "1.7e9"}
FULL_ROWS = {
    MM: ["200000", "1e8", "20", "66.5", "40", "25", "0.4", "2e6", "65.3", "1.2e11", "", "0", "", "", "", "", "1.5", "0.2", "1.5"],
    SILU: ["100000", "4e8", "91", "12", "50", "85", "1.2", "9e5", "0", "0", "", "5e7", "", "", "", "", "20.5", "0", "2"],
    "few<a|b>": ["10000", "4e5", "5", "8", "9", "12", "0.1", "9e3", "0", "0", "", "3e5", "", "", "", "", "3.5", "6", "0.2"]}
FULL_NCU = "\n".join(
    [",".join(f'"{word}"' for word in ["ID", "Kernel Name", *FULL_COLUMNS]),
     ",".join(['"",""', *('"ns"' if i == 0 else '"hz"' if i in (13, 15) else '""' for i in range(len(FULL_COLUMNS)))])] +
    [",".join(f'"{word}"' for word in [str(i), name, *(PEAKS.get(j, word) for j, word in enumerate(row))])
     for i, (name, row) in enumerate(FULL_ROWS.items())]) + "\n"


class Counters(Case):
    def test_what_the_warps_do(self):
        file = str(self.write("compute.csv", FULL_NCU))
        self.assertNotIn("launch__waves", self.run_script("hotspots", file).stdout)
        done = self.run_script("hotspots", file, "--metrics", "launch__waves_per_multiprocessor,not_there")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"\| 25 % \| 0\.40 \| 65 % \| 40 % \| 20 % \| 2\.00 \| "
                                      r"loads from memory 1\.5, other warps at a barrier 0\.2 \| nvjet")
        self.assertIn(f"- {MM}: Tensor cores work 65 % of the time", done.stdout)
        self.assertIn("It moves 91 % of what DRAM can", done.stdout)
        self.assertIn("- few<a¦b>: Neither memory (5 %) nor SMs (8 %) are busy at 12 % occupancy with 0.1 eligible warps: most "
                      "warps wait for other warps at a barrier; smaller blocks", done.stdout)
        self.assertIn("| launch__waves_per_multiprocessor | kernel |", done.stdout)
        Tables.check_tables(self, done.stdout)

    def test_what_dram_moves_passes_through_l2(self):
        busy = list(FULL_ROWS[SILU])
        for l2, sentence in (("93", "It moves 91 % of what DRAM can"), ("97", "L2 is 97 % busy")):
            busy[4] = l2
            line = ",".join(f'"{word}"' for word in ["0", "copy", *busy])
            file = str(self.write("compute.csv", "\n".join([*FULL_NCU.splitlines()[:2], line]) + "\n"))
            self.assertIn(sentence, self.run_script("hotspots", file).stdout)

    def test_a_capture_that_broke_off(self):
        lines = FULL_NCU.splitlines()
        broken = ",".join(f'"{word}"' for word in ["3", "last<a>", *("nan" for _ in FULL_COLUMNS)])
        done = self.run_script("hotspots", str(self.write("compute.csv", "\n".join([*lines, broken]) + "\n")))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("The capture broke off. Launches without a time, which are left out: 1.", done.stdout)
        self.assertNotIn("nan", done.stdout)
        self.assertNotIn("last<a>", done.stdout)
        self.assert_one_error(self.run_script("hotspots", str(self.write("b.csv", "\n".join([*lines[:2], broken]) + "\n"))),
                              4, "no kernel whose counters are complete")

    def test_a_real_page(self):
        """A step of HRM at batch 384 on an H200, whose page has hundreds of columns."""
        with gzip.open(ROOT / "tests/fixtures/nsight/hrm384_h200.csv.gz", "rt") as page:
            file = str(self.write("compute.csv", page.read()))
        out = self.dir / "roofline.svg"
        done = self.run_script("hotspots", file, "--roofline", str(out))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"\| 151\.3 \| 711 \| 15 % \| 654\.5 \| 73 % \| tensor cores \| sm90::tile_kernel<")
        self.assertRegex(done.stdout, r"- sm90::linear_rms_norm_kernel<.*: Neither memory \(39 %\) nor SMs \(58 %\)")
        self.assertIn("hrm::phase_end<phases::data>(long *, int): It takes 2.2 us, hardly more than a launch", done.stdout)
        self.assertNotIn("device__attribute", done.stdout)
        self.assertIn("tensor cores 9", out.read_text())
        Tables.check_tables(self, done.stdout)

    def test_one_kernel(self):
        file = str(self.write("compute.csv", FULL_NCU))
        done = self.run_script("hotspots", file, "--kernel", "^few")
        self.assertNotIn("nvjet", done.stdout)
        self.assertIn("few<a¦b>", done.stdout)
        self.assert_one_error(self.run_script("hotspots", file, "--kernel", "none"), 4, "no kernel's name fits 'none'")
        self.assert_one_error(self.run_script("hotspots", file, "--kernel", "("), 2, "is no regular expression")

    def test_roofline(self):
        out = self.dir / "roofline.svg"
        done = self.run_script("hotspots", str(self.write("compute.csv", FULL_NCU)), "--roofline", str(out))
        self.assertEqual(done.returncode, 0, done.stderr)
        picture = xml.etree.ElementTree.fromstring(out.read_text())
        words = [e.text for e in picture.iter("{http://www.w3.org/2000/svg}text")]
        # 600 TFLOP/s at 65.3 %; 2 x 16,896 operations a cycle in fp32, 1,536 bytes; at 1.7 and 3.2 GHz.
        for limit in ("tensor cores 919 TFLOP/s", "fp32 57 TFLOP/s", "memory 4915 GB/s"):
            self.assertIn(limit, words)
        self.assertIn(f"1  600.00 TFLOP/s, 1200 FLOP/byte, 200 us: {MM}", words)
        circles = [e for e in picture.iter("{http://www.w3.org/2000/svg}circle") if e.find("*") is not None]
        place = {e[0].text: (float(e.get("cx")), float(e.get("cy"))) for e in circles}
        # On the axes: the product is right of and above the elementwise kernel, which is above the small one.
        self.assertGreater(place[MM][0], place["few<a|b>"][0])
        self.assertGreater(place["few<a|b>"][0], place[SILU][0])
        self.assertLess(place[MM][1], place[SILU][1])
        self.assertLess(place[SILU][1], place["few<a|b>"][1])
        self.assert_one_error(self.run_script("hotspots", str(self.write("t.json", TRACE)), "--roofline", str(out)), 4,
                              "no file holds operations and bytes")

    def test_limits_without_their_counters(self):
        """An older page: the memory's limit from what a kernel reached and the share that this is."""
        profile = kernel_profile.read_profile(self.write("compute.csv", NCU))
        memory, tensor, fp32 = kernel_counters.limits(profile)
        self.assertAlmostEqual(memory / 1e9, 4000 / 0.91, delta=1)
        self.assertEqual((tensor, fp32), (None, None))

    def test_metrics_that_this_gpu_lacks(self):
        listed = "Device NVIDIA H200\n-----\ndram__bytes      Bytes of DRAM\ngpu__time_duration   time\n"
        self.assertEqual(kernel_counters.on_this_gpu(kernel_counters.wanted(), listed),
                         ["gpu__time_duration.sum", "dram__bytes.sum", "dram__bytes.sum.peak_sustained"])
        self.assertEqual(kernel_counters.on_this_gpu(["a__b.sum"], ""), ["a__b.sum"])


class Overlap(Case):
    """Two steps of 1,000 us, computing on stream 7, NCCL on stream 20."""

    def kernel(self, name, stream, begin, duration, launch):
        return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": begin, "dur": duration,
                "args": {"correlation": launch}}

    def trace(self, *kernels):
        host = [{"ph": "X", "cat": "user_annotation", "name": "train.step", "ts": ts, "dur": 90, "tid": 1}
                for ts in (0, 100)]
        host += [{"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": ts, "dur": 5, "tid": 1,
                  "args": {"correlation": launch}} for launch, ts in ((1, 10), (2, 110), (3, 195))]
        return self.write("trace.json", {"traceEvents": host + list(kernels)})

    def table(self, *kernels):
        """{first column: the others} and all that was printed."""
        done = self.run_script("overlap", str(self.trace(*kernels)))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = [line.split() for line in done.stdout.splitlines()]
        return {row[0]: row[1:] for row in rows if row and re.fullmatch(r"\d+|mean", row[0])}, done.stdout

    def test_what_is_hidden(self):
        reduce, gather = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "ncclDevKernel_AllGather_RING_LL(x)"
        rows, text = self.table(
            # Step 1: two products at the same time from 1000 to 1800; NCCL 1500 to 2000: 300 hidden, 200 exposed.
            self.kernel(MM, 7, 1000, 800, 1), self.kernel(SILU, 8, 1400, 300, 1), self.kernel(reduce, 20, 1500, 500, 1),
            # Step 2, started before step 1 has ended on the GPU: two kernels of NCCL at the same time, 100 hidden of 300.
            self.kernel(MM, 7, 2000, 300, 2), self.kernel(reduce, 20, 2200, 200, 2), self.kernel(gather, 21, 2300, 200, 2))
        self.assertEqual(rows["1"], ["1.000", "0.800", "0.500", "0.500", "0.300", "60.0%", "0.200", "1.0"])
        self.assertEqual(rows["2"], ["0.500", "0.300", "0.300", "0.400", "0.100", "33.3%", "0.200", "2.0"])
        self.assertEqual(rows["mean"], ["0.750", "0.550", "0.400", "0.450", "0.200", "50.0%", "0.200", "1.5"])
        self.assertNotIn("left out", text)
        self.assertNotIn("same stream", text)

    def test_what_is_not(self):
        reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
        rows, text = self.table(
            # Started early behind NCCL on its own stream; and a kernel that no step has started.
            self.kernel(reduce, 7, 1000, 400, 1), self.kernel(MM, 7, 1300, 300, 1), self.kernel(MM, 8, 1000, 400, 3))
        self.assertEqual(rows["1"], ["0.600", "0.300", "0.400", "0.400", "0.000", "0.0%", "0.400", "1.0"])
        self.assertNotIn("2", rows)
        self.assertIn("0.100 ms of what is exposed", text)
        self.assertIn("kernels left out, because no train.step range has started them: 1", text)

    def test_wrong_input(self):
        file = self.trace(self.kernel(MM, 7, 0, 10, 1))
        self.assert_one_error(self.run_script("overlap", str(file)), 4, "no communication")
        self.assert_one_error(self.run_script("overlap", str(self.write("a.json", TRACE))), 4, "holds no kernels that a")
        self.assert_one_error(self.run_script("overlap", str(self.write("a.json", "["))), 4, "no Chrome trace")
        self.assert_one_error(self.run_script("overlap", str(self.write("a.json", {"traceEvents": [3]}))), 4, "damaged")
        broken = self.kernel(MM, 7, "x", 10, 1)
        self.assert_one_error(self.run_script("overlap", str(self.trace(broken))), 4, "damaged")
        self.assert_one_error(self.run_script("overlap", str(self.dir)), 4, "is a folder")
        self.assert_one_error(self.run_script("overlap", str(self.dir / "no.json")), 4, "does not exist")
        self.assert_one_error(self.run_script("overlap"), 2, "see 'overlap --help'")


def mark(phase):
    """The name of the kernel at a phase's end; of the one that begins, for ''."""
    return f"void hrm::cuda::phase_end<hrm::cuda::phases::{phase}>(long*, int)" if phase else "hrm::cuda::phase_begin(long*)"


class Projection(Case):
    """A replayed step (graph launch 1) with marks, and an eager evaluation without them, by the ranges that started it."""

    KERNELS = [  # name, stream, start, duration, correlation
        (mark("report"), 7, 90, 2, 9), ("copy", 7, 95, 5, 2), (mark("data"), 7, 100, 2, 1), (MM, 7, 102, 300, 1),
        # Started early: it waits for the product until 402.
        (SILU, 7, 350, 100, 1), (mark("forward"), 7, 450, 2, 1), (MM, 7, 460, 200, 1),
        ("ncclDevKernel_AllReduce(x)", 20, 500, 100, 1), (mark("backward"), 7, 660, 2, 1),
        (SILU, 7, 662, 50, 1), (mark("optimizer_step"), 7, 720, 2, 1), ("argmax", 7, 900, 40, 3)]
    RANGES = [("train.step", 0, 60, 1), ("data.next_batch", 5, 20, 1), ("train.graph_replay", 30, 20, 1),
              ("eval.batch", 70, 30, 1), ("other thread", 0, 1000, 2)]
    LAUNCHES = [(1, 35), (2, 10), (3, 80), (9, -20)]
    #          stream  busy  kernels
    EXPECTED = {"data": (10, 7, 2), "forward": (350, 350, 3), "backward": (210, 202, 2), "optimizer.step": (60, 52, 2),
                "eval.batch": (0, 40, 1), "train.graph_replay": (0, 100, 1), "(no range)": (0, 2, 1)}

    def trace(self):
        def event(category, name, tid, ts, dur, correlation=None):
            return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur,
                    "args": {} if correlation is None else {"correlation": correlation}}
        return self.write("trace.json", {"traceEvents":
            [event("kernel", *kernel) for kernel in self.KERNELS] +
            [event("user_annotation", name, thread, start, dur) for name, start, dur, thread in self.RANGES] +
            [event("cuda_runtime", "cudaLaunchKernel", 1, at, 1, c) for c, at in self.LAUNCHES]})

    def export(self):
        names = sorted({kernel[0] for kernel in self.KERNELS} | {"train.step"})
        file = self.dir / "systems.sqlite"
        with sqlite3.connect(file) as db:
            db.execute("create table StringIds (id integer, value text)")
            db.executemany("insert into StringIds values (?, ?)", enumerate(names))
            db.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, demangledName integer, "
                       "streamId integer, correlationId integer)")
            db.execute("create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer, end integer, correlationId integer)")
            db.execute("create table NVTX_EVENTS (start integer, end integer, text text, textId integer, globalTid integer)")
            for name, stream, start, dur, correlation in self.KERNELS:
                db.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?, ?)",
                           (start * 1000, (start + dur) * 1000, names.index(name), stream, correlation))
            for correlation, at in self.LAUNCHES:
                db.execute("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?)",
                           (at * 1000, at * 1000 + 500, correlation))
            for name, start, dur, thread in self.RANGES:
                text = (None, names.index(name)) if name == "train.step" else (name, None)
                db.execute("insert into NVTX_EVENTS values (?, ?, ?, ?, ?)",
                           (start * 1000, (start + dur) * 1000, *text, thread))
        return file

    def test_rows(self):
        for file in (self.trace(), self.export()):
            rows, steps = projection.read(file)
            self.assertEqual(steps, 1)
            found = {row.name: (round(row.us), round(row.busy_us), row.kernels) for row in rows}
            self.assertEqual(found, self.EXPECTED, file)
            # From the first mark to the last.
            self.assertAlmostEqual(sum(row.us for row in rows), 722 - 92)

    def test_table(self):
        result = self.run_script("gpu_projection", str(self.trace()))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertRegex(result.stdout, r"0\.350 +0\.350 .* forward\n")
        self.assertRegex(result.stdout, r" - +0\.040 .* eval\.batch\n")
        self.assertRegex(result.stdout, r"0\.630 +0\.753 +12\.0  all, ms per step of 1")
        half = self.run_script("gpu_projection", str(self.trace()), "--steps", "2").stdout
        self.assertRegex(half, r"0\.175 +0\.175 .* forward\n")

    def test_names_are_those_of_the_program(self):
        names = projection.phase_names()
        self.assertEqual(names["optimizer_step"], "optimizer.step")
        text = projection.HEADER.read_text()
        self.assertEqual(len(names), text.count("  X("))

    def test_wrong_input(self):
        for name, text, part in (("a.json", "[", "no Chrome trace"), ("b.json", {"traceEvents": []}, "no work on a GPU"),
                                 ("c.sqlite", "x" * 4096, "no export of nsys"), ("d.txt", "", "give a trace.json")):
            self.assert_one_error(self.run_script("gpu_projection", str(self.write(name, text))), 4, part)
        damaged = {"ph": "X", "dur": "1", "cat": "kernel", "name": "k", "ts": 0}
        file = self.write("e.json", {"traceEvents": [damaged]})
        self.assert_one_error(self.run_script("gpu_projection", str(file)), 4, "damaged")
        self.assert_one_error(self.run_script("gpu_projection", str(self.dir / "no.sqlite")), 4, "does not exist")
        self.assert_one_error(self.run_script("gpu_projection"), 2, "see 'gpu_projection --help'")


class WrongInput(Case):
    def test_what_is_no_profile(self):
        no_number = {"ph": "X", "dur": "1", "cat": "kernel", "name": "k", "ts": 0}
        for name, text, part in (("a.json", "", "no Chrome trace"), ("c.json", {"traceEvents": [3]}, "damaged"),
                                 ("b.json", {"traceEvents": []}, "holds no recorded work"),
                                 ("d.json", {"traceEvents": [no_number]}, "damaged"),
                                 ("e.csv", "", "no raw page of ncu"), ("f.txt", "", "give a trace (")):
            file = self.write(name, text)
            for script in ("trace_table", "hotspots"):
                self.assert_one_error(self.run_script(script, str(file)), 4, str(file), part)
        (self.dir / "g.csv").write_bytes(b'"\xff\n')
        self.assert_one_error(self.run_script("hotspots", str(self.dir / "g.csv")), 4, "damaged")
        self.assert_one_error(self.run_script("trace_table", str(self.dir)), 4, "is a folder")
        self.assert_one_error(self.run_script("trace_table", str(self.dir / "no.json")), 4, "does not exist")

    def test_wrong_arguments(self):
        for arguments in ((), ("a.json", "--steps", "0"), ("a.json", "--top", "x"), ("a.json", "--stepz", "1")):
            for script in ("trace_table", "hotspots"):
                result = self.run_script(script, *arguments)
                self.assert_one_error(result, 2, f"see '{script} --help'")
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        event = {"ph": "X", "dur": 1, "cat": "cpu_op", "name": "k", "ts": 0, "tid": 1}
        trace = self.write("t.json", {"traceEvents": [event]})
        result = self.run_script("hotspots", str(trace), "--out", str(self.dir / "no/x"))
        self.assert_one_error(result, 3, "cannot write")
        result = self.run_script("capture_nsight.py", "--mode", "systems", "--nsys-args", '"')
        self.assert_one_error(result, 2, "quotation")


class Capture(Case):
    def setUp(self):
        super().setUp()
        self.bin = self.dir / "bin"
        self.bin.mkdir()
        self.stand_in("hrm_train", '[ "$1" = config ] && { echo "{}"; exit 0; }; echo "program $*"')
        self.stand_in("nvidia-smi", "echo 'NVIDIA H200, 580.95.05, 143771 MiB'")
        make_nsys_export(self.dir / "export.sqlite")
        self.write("page.csv", NCU)

    def stand_in(self, name, body):
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    def with_nsys(self, code=0, stats=0):
        # Finds --output, writes the report there, and runs nothing.
        self.stand_in("nsys", f'''
[ "$1" = --version ] && {{ echo "NVIDIA Nsight Systems version 2025.3"; exit 0; }}
echo "$@" >> {self.dir}/nsys.txt
mode=$1
while [ $# -gt 0 ]; do
  [ "$1" = --output ] && out=$2
  shift
done
if [ $mode = stats ]; then echo "Time (%),Total Proj Time (ns)"; exit {stats}; fi
if [ $mode = export ]; then cp {self.dir}/export.sqlite "$out"; else echo report > "$out.nsys-rep"; exit {code}; fi''')

    def with_ncu(self):
        self.stand_in("ncu", f'''
[ "$1" = --version ] && {{ echo "Version 2025.3.1"; exit 0; }}
[ "$1" = --import ] && {{ cat {self.dir}/page.csv; exit 0; }}
[ "$1" = --query-metrics ] && {{ printf 'gpu__time_duration time\ndram__bytes bytes\n'; exit 0; }}
echo "$@" >> {self.dir}/ncu.txt
while [ $# -gt 0 ]; do
  [ "$1" = --export ] && echo report > "$2.ncu-rep"
  shift
done''')

    def capture(self, *arguments, command=("train", "--config", "a.json", "run.name=x")):
        return self.run_script("capture_nsight.py", *arguments, "--output", str(self.dir / "out"), "--",
                               str(self.bin / "hrm_train"), *command, path=str(self.bin))

    def test_both(self):
        self.with_nsys()
        self.with_ncu()
        result = self.capture("--mode", "both", "--steps", "2", "--nsys-args=--stats=false --gpu-metrics-devices=all")
        self.assertEqual(result.returncode, 0, result.stderr)
        out = self.dir / "out"
        names = {file.name for file in out.iterdir()}
        self.assertLessEqual({"systems.nsys-rep", "systems.sqlite", "systems.log", "compute.ncu-rep", "compute.csv",
                              "config.json", "environment.json", "hotspots.md", "nvtx_gpu_proj_sum.csv"}, names)
        self.assertIn("Proj Time", (out / "nvtx_gpu_proj_sum.csv").read_text())
        text = (out / "hotspots.md").read_text()
        self.assertIn("- GPU: NVIDIA H200, 580.95.05, 143771 MiB", text)
        self.assertIn("## Longest gaps", text)
        self.assertIn("## Against the limits of the GPU", text)
        self.assertIn("![roofline](roofline.svg)", text)
        self.assertIn("TFLOP/s", (out / "roofline.svg").read_text())
        facts = json.loads((out / "environment.json").read_text())
        self.assertEqual(facts["gpu"], "NVIDIA H200, 580.95.05, 143771 MiB")
        self.assertEqual(set(facts["tools"]), {"nsys", "ncu"})
        self.assertIn("train --config a.json run.name=x", facts["command"])

        nsys = (self.dir / "nsys.txt").read_text()
        self.assertRegex(nsys, r"stats --report nvtx_gpu_proj_sum --format csv .*systems\.nsys-rep")
        for part in ("--capture-range=cudaProfilerApi", "--cuda-graph-trace=node", "--gpu-metrics-devices=all",
                     "profiling.nsight_window=true", "profiling.nvtx.enabled=true", "profiling.trace_steps=2",
                     f"run.dir={out.resolve()}/runs"):
            self.assertIn(part, nsys)
        ncu = (self.dir / "ncu.txt").read_text()
        self.assertIn("--profile-from-start off", ncu)
        self.assertIn("profiling.trace_steps=1", ncu)

    def test_chosen_kernels_and_metrics(self):
        self.with_ncu()
        result = self.capture("--mode", "compute", "--kernel", "rms_norm<.*>", "--metrics", "a__b.sum,c__d")
        self.assertEqual(result.returncode, 0, result.stderr)
        ncu = (self.dir / "ncu.txt").read_text()
        self.assertIn("--kernel-name-base demangled --kernel-name regex:rms_norm<.*>", ncu)
        self.assertIn("--metrics gpu__time_duration.sum,dram__bytes.sum,dram__bytes.sum.peak_sustained,a__b.sum,c__d", ncu)
        self.assertNotIn("--filter-mode", ncu)

    def test_counters_of_a_timeline(self):
        self.with_nsys()
        for option in (["--each-once"], ["--kernel", "norm"], ["--metrics", "a__b.sum"]):
            self.assert_one_error(self.capture("--mode", "systems", *option), 2, option[0], "--mode compute")

    def test_each_kernel_once(self):
        self.with_ncu()
        result = self.capture("--mode", "compute", "--each-once")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("--filter-mode per-launch-config --launch-count 1", (self.dir / "ncu.txt").read_text())
        self.assertIn("- launches: the first of each kernel", (self.dir / "out" / "hotspots.md").read_text())

    def test_counters_that_are_not_permitted(self):
        self.with_ncu()
        self.stand_in("ncu", 'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"; exit 1')
        self.assert_one_error(self.capture("--mode", "compute"), 3, "may not read the GPU's counters")

    def test_a_kernel_that_ncu_cannot_run(self):
        self.with_ncu()
        self.stand_in("ncu", 'echo "==ERROR== LaunchFailed"; exit 9')
        self.assert_one_error(self.capture("--mode", "compute"), 3, "could not run a kernel", "runtime.cuda_graphs=false",
                              "--kernel")
        eager = self.capture("--mode", "compute", command=("bench", "step", "--config", "a.json", "runtime.cuda_graphs=false"))
        self.assert_one_error(eager, 3, "could not run a kernel by itself: leave it out")

    def test_bench_step(self):
        self.with_nsys()
        result = self.capture("--mode", "systems", command=("bench", "step", "--config", "a.json"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("--profile-steps 3", (self.dir / "nsys.txt").read_text())
        self.assertNotIn("run.dir", (self.dir / "nsys.txt").read_text())

    # A run of `train` ends with 75 after its window.
    def test_a_stopped_run_is_fine(self):
        self.with_nsys(code=75)
        self.assertEqual(self.capture("--mode", "systems").returncode, 0)

    def test_tools_that_are_missing(self):
        self.with_ncu()
        self.assert_one_error(self.capture("--mode", "systems"), 3, "Nsight Systems is not installed", "'nsys'",
                              "profiling.trace=true")
        self.assert_one_error(self.capture("--mode", "both"), 3, "Nsight Systems is not installed")
        (self.bin / "ncu").unlink()
        self.assert_one_error(self.capture("--mode", "compute"), 3, "Nsight Compute is not installed", "'ncu'")
        self.assertFalse((self.dir / "out").exists())

    def test_wrong_commands(self):
        self.with_nsys()
        self.assert_one_error(self.capture("--mode", "systems", command=("eval",)), 2, "is not 'hrm_train train ...'")
        self.assert_one_error(self.run_script("capture_nsight.py", "--mode", "systems", path=str(self.bin)), 2,
                              "behind --")
        result = self.run_script("capture_nsight.py", "--mode", "systems", "--", "no/such/program", "train",
                                 path=str(self.bin))
        self.assert_one_error(result, 3, "'no/such/program' is no program")
        self.assert_one_error(self.capture("--mode", "systems", "--steps", "0"), 2, "at least 1")

    def test_a_failing_profiler(self):
        self.with_nsys(code=1)
        self.assert_one_error(self.capture("--mode", "systems"), 3, "nsys ended with exit code 1", "systems.log")
        self.with_nsys(stats=1)
        self.assert_one_error(self.capture("--mode", "systems"), 3, "nsys stats ended with exit code 1",
                              "nvtx_gpu_proj_sum.log")
        self.stand_in("nsys", "exit 0")
        self.assert_one_error(self.capture("--mode", "systems"), 3, "no step was recorded")

    def test_a_wrong_configuration(self):
        self.with_nsys()
        self.stand_in("hrm_train", 'echo "error: model.arch is wrong" >&2; exit 2')
        self.assert_one_error(self.capture("--mode", "systems"), 2, "model.arch is wrong")


if __name__ == "__main__":
    unittest.main()
