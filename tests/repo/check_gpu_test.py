"""scripts/check_gpu with stand-ins for nvidia-smi, compute-sanitizer and the test programs."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_gpu"

# Speaks as GoogleTest does. What a test does is the part of its name after the last '_'.
PROGRAM = r'''#!/usr/bin/env python3
import os, sys, time
TESTS = {tests!r}
tool = os.environ.get("FAKE_TOOL", "")
if sys.argv[1:] == ["--gtest_list_tests"]:
    suite = ""
    for name in TESTS:
        if name.split(".")[0] != suite:
            suite = name.split(".")[0]
            print(suite + ".")
        print("  " + name.split(".")[1] + "  # GetParam() = 3")
    sys.exit(0)
wanted = [a for a in sys.argv if a.startswith("--gtest_filter=")][0].split("=", 1)[1].split(":")
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(" ".join([os.environ["CUDA_VISIBLE_DEVICES"], tool, *wanted]) + "\n")
say = lambda *a: print(*a, flush=True)
bad = 0
for name in TESTS:
    if name not in wanted:
        continue
    what = name.rsplit("_", 1)[-1]
    say("[ RUN      ]", name)
    if what == "hang":
        time.sleep(600)
    if what == "crash":
        os._exit(134)
    if what == "caught" and tool == "racecheck":
        say("========= Internal Sanitizer Error: The Sanitizer failed to handle a hardware exception.")
        say("[  FAILED  ]", name + " (5 ms)")
        continue
    if what == "library" and tool == "racecheck":
        say("========= Internal Sanitizer Error: The Sanitizer failed to handle a hardware exception.")
        say("========= Target application returned an error")
        os._exit(1)
    if what == "race" and tool == "racecheck":
        say("========= Error: Race reported between Read access at a")
        say("=========     and Write access at b [64 hazards]")
    say({{"fail": "[  FAILED  ]", "skip": "[  SKIPPED ]"}}.get(what, "[       OK ]"),
        name + (", where GetParam() = 3 (5 ms)" if what == "fail" else " (5 ms)"))
    if what == "late" and tool == "memcheck":
        say("========= Invalid __global__ read of size 4 bytes")
    bad |= what == "fail"
if tool and "nosummary" not in name:
    say("========= ERROR SUMMARY: 0 errors")
sys.exit(bad)
'''

SANITIZER = '''#!/bin/sh
while [ "$1" != --tool ]; do shift; done
FAKE_TOOL=$2; export FAKE_TOOL; shift 2; exec "$@"
'''


class CheckGpu(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hrm_check_gpu_")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("bin/nvidia-smi", "#!/bin/sh\necho 'GPU 0: one'; echo 'GPU 1: another'\n")
        self.write("bin/compute-sanitizer", SANITIZER)

    def write(self, name, text):
        file = self.root / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def program(self, name, *tests):
        self.write(f"tests/{name}", PROGRAM.format(tests=tests))

    def check(self, *arguments):
        env = dict(os.environ, PATH=f"{self.root}/bin:{os.environ['PATH']}", FAKE_LOG=f"{self.root}/started")
        return subprocess.run([SCRIPT, "--tests", self.root / "tests", "--out", self.root / "out", *arguments],
                              env=env, capture_output=True, text=True, timeout=60)

    def started(self):
        file = self.root / "started"
        return file.read_text().splitlines() if file.exists() else []

    def test_all_pass(self):
        self.program("test_a_gpu", "A.one", "A.two", "B.three_skip")
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| tests | `test_a_gpu` | 2 | 1 | 0 |  |  | 0 |", done.stdout)
        self.assertEqual(self.started(), ["0  A.one A.two B.three_skip"])
        self.assertEqual((self.root / "out/report.md").read_text(), done.stdout)

    def test_a_failing_hanging_or_crashing_test_is_named_and_the_others_run(self):
        self.program("test_a_gpu", "A.x_fail", "A.y_hang", "A.one", "A.z_crash", "A.two")
        done = self.check("--limit", "1")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("| tests | `test_a_gpu` | 2 | 0 | 3 |", done.stdout)
        self.assertIn("- tests `A.x_fail`: failed", done.stdout)
        self.assertIn("- tests `A.y_hang`: no end within 1.0 s", done.stdout)
        self.assertIn("- tests `A.z_crash`: ended the program (134)", done.stdout)

    def test_a_program_that_does_not_start_is_no_success(self):
        self.program("test_a_gpu", "A.one")
        self.write("tests/test_a_gpu", (self.root / "tests/test_a_gpu").read_text().replace(
            "wanted = ", "sys.exit('no library')\nwanted = "))
        done = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertIn("- tests `A.one`: not run, the program ended (1): no library", done.stdout)

    def test_what_is_done_is_not_done_again(self):
        self.program("test_a_gpu", "A.one", "A.two")
        self.check("--filter", "one")
        self.assertEqual(self.check().returncode, 0)
        self.assertEqual(self.started(), ["0  A.one", "0  A.two"])
        # built again
        self.write("tests/test_a_gpu", (self.root / "tests/test_a_gpu").read_text() + "\n")
        self.check()
        self.assertEqual(self.started()[2:], ["0  A.one A.two"])

    def test_it_stops_when_time_is_up_and_goes_on_later(self):
        self.program("test_a_gpu", "A.one", "A.y_hang", "A.two")
        done = self.check("--minutes", "0.02")
        self.assertEqual(done.returncode, 75, done.stderr)
        self.assertIn("| tests | `test_a_gpu` | 1 | 0 | 0 |  |  | 2 |", done.stdout)
        self.check("--limit", "1")
        self.assertEqual(self.started(), ["0  A.one A.y_hang A.two", "0  A.y_hang A.two", "0  A.two"])

    def test_sanitizer_reports_count_against_their_test(self):
        self.program("test_ops_gpu", "A.one", "A.x_race", "Lengths/B.y_late", "Lengths/B.two")
        self.program("test_nn_gpu", "C.one")
        done = self.check("--tools", "memcheck,racecheck")
        self.assertEqual(done.returncode, 1)
        self.assertIn("| memcheck | `test_ops_gpu` | 4 | 0 | 0 | 1 |", done.stdout)
        self.assertIn("| racecheck | `test_ops_gpu` | 4 | 0 | 0 | 1 |", done.stdout)
        self.assertIn("- racecheck `A.x_race`: passed, 1 reports", done.stdout)
        self.assertIn("- memcheck `Lengths/B.y_late`: passed, 1 reports", done.stdout)
        # a process for each suite, none for other programs
        self.assertEqual(self.started(), [f"0 {tool} {tests}" for tool in ("memcheck", "racecheck")
                                          for tests in ("A.one A.x_race", "Lengths/B.y_late Lengths/B.two")])

    def test_what_the_sanitizer_could_not_run_is_neither_passed_nor_failed(self):
        self.program("test_ops_gpu", "A.one", "A.x_library", "A.two", "A.z_caught", "A.y_race")
        done = self.check("--tools", "racecheck")
        self.assertEqual(done.returncode, 1)
        self.assertIn("| racecheck | `test_ops_gpu` | 3 | 0 | 0 | 1 | 2 | 0 |", done.stdout)
        self.assertIn("- racecheck `A.x_library`: not checked, compute-sanitizer gave up", done.stdout)
        self.assertIn("- racecheck `A.y_race`: passed, 1 reports", done.stdout)
        self.assertEqual([line.split()[2:] for line in self.started()],
                         [["A.one", "A.x_library", "A.two", "A.z_caught", "A.y_race"],
                          ["A.two", "A.z_caught", "A.y_race"], ["A.y_race"]])
        self.program("test_ops_gpu", "A.one", "A.x_library", "A.two")
        self.assertEqual(self.check("--tools", "racecheck").returncode, 0)

    def test_large_tests_are_sanitized_on_demand_alone(self):
        self.program("test_ops_gpu", "A.one", "A.oneLarge", "B.twoLarge")
        self.assertEqual(self.check("--tools", "tests,memcheck").returncode, 0)
        self.assertEqual(self.started(), ["0  A.one A.oneLarge B.twoLarge", "0 memcheck A.one"])
        self.assertEqual(self.check("--tools", "memcheck", "--filter", "A.*Large").returncode, 0)
        self.assertEqual(self.started()[2:], ["0 memcheck A.oneLarge"])

    def test_a_sanitizer_without_a_summary_proves_nothing(self):
        self.program("test_ops_gpu", "A.one", "A.nosummary")
        done = self.check("--tools", "memcheck")
        self.assertEqual(done.returncode, 1)
        self.assertIn("- memcheck `A.one`: no summary of compute-sanitizer", done.stdout)

    def test_several_gpus_share_the_work(self):
        self.program("test_a_gpu", "A.one_hang")
        self.program("test_b_gpu", "B.one")
        self.program("test_c_gpu", "C.one")
        self.check("--gpus", "0,1", "--limit", "2")
        self.assertEqual(sorted(self.started())[0][2:], " A.one_hang")
        self.assertEqual({line[0] for line in self.started()}, {"0", "1"})

    def test_wrong_use_is_one_sentence(self):
        self.program("test_a_gpu", "A.one")
        for code, part, arguments in (
            (2, "none of tests", ["--tools", "initcheck"]), (2, "'0' is not a number above 0", ["--minutes", "0"]),
            (2, "no test's name fits", ["--filter", "Z"]), (2, "not a regular expression", ["--filter", "("]),
            (2, "has 2, counted from 0", ["--gpus", "2"]), (2, "different numbers", ["--gpus", "0,0"]),
            (2, "no test_*_gpu in", ["--tests", self.root / "bin"]),
        ):
            done = self.check(*arguments)
            self.assertEqual(done.returncode, code, arguments)
            self.assertIn(part, done.stderr.splitlines()[-1])
            self.assertNotIn("Traceback", done.stderr)

    def test_without_a_gpu_it_says_so(self):
        self.write("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        done = self.check()
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertIn("no GPU", done.stderr)


if __name__ == "__main__":
    unittest.main()
