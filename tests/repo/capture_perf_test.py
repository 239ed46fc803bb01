"""capture_perf on stored text of perf script and perf stat, and with a stand-in for perf."""

import os
import pathlib
import subprocess
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from profile_scripts_test import SCRIPTS, Case  # noqa: E402

sys.path.insert(0, str(SCRIPTS / "lib"))
import perf_profile  # noqa: E402

# As `perf script` prints: innermost frames first. 6 ms in a product, 3 in a data thread, 1 in page faults.
SCRIPT = """\
hrm_train 300 65.074205:    6000000 cpu-clock:ppp:
\t    7f01 [unknown] (/tmp/perf-300.map)
\t    7f02 at::native::mm<float, 4>(at::Tensor const&)+0x12 (/lib/libtorch_cpu.so)
\t    55aa hrm::train::Trainer::run()+0x1ff (/build/bin/hrm_train)

data thread 301/302 [001] 65.1: 3000000 cpu-clock:ppp:
\t    55ab hrm::data::(anonymous namespace)::write_row(int)+0x7 (/build/bin/hrm_train)
\t       0 [unknown] ([unknown])
\t       0 [unknown] ([unknown])

hrm_train 300 65.2:    1000000 cpu-clock:ppp:
\tffffffff81 clear_page_erms+0x6 ([kernel.kallsyms])
\t    55aa hrm::train::Trainer::run()+0x2aa (/build/bin/hrm_train)
"""
STAT = """\
# started on Sat Nov 28 06:11:53 2026

4000.00;msec;task-clock;4000000000;100.00;2.0;CPUs utilized
2000000000;ns;duration_time;2000000000;100.00;;
800;;context-switches;4000000000;100.00;;
120000;;page-faults;4000000000;100.00;;
10000000;;cycles;4000000000;100.00;;
5000000;;instructions;4000000000;100.00;0.50;insn per cycle
1000;;branches;4000000000;100.00;;
50;;branch-misses;4000000000;100.00;5.00;of all branches
200;;cache-references;4000000000;100.00;;
10;;cache-misses;4000000000;100.00;5.00;of all cache refs
"""
VIRTUAL = "".join(f"{'<not supported>' if 'cycles' in line else line.split(';')[0]};{line.split(';', 1)[1]}\n"
                  for line in STAT.splitlines() if "task-clock" in line or "cycles" in line)


class Reading(unittest.TestCase):
    def test_stacks(self):
        stacks, event = perf_profile.read_script(SCRIPT, "s")
        self.assertEqual(event, "cpu-clock")
        self.assertEqual(dict(stacks), {
            ("hrm_train", "hrm::train::Trainer::run", "at::native::mm", "[gemm made at run time]"): 6000000,
            ("data thread", "[unknown]", "hrm::data::anonymous::write_row"): 3000000,
            ("hrm_train", "hrm::train::Trainer::run", "clear_page_erms"): 1000000})
        self.assertIn("hrm_train;hrm::train::Trainer::run;clear_page_erms 1000000\n", perf_profile.folded(stacks))

    def test_names(self):
        for name, short in (("void f<a<b>, c>::g(int, h<i>)", "void f::g"), ("operator<(a, b)", "operator<"),
                            ("x::operator<<<char>(s)", "x::operator<<"), ("a;b", "a:b"), ("", "[unknown]")):
            self.assertEqual(perf_profile.short_symbol(name), short)

    def test_counters(self):
        lines = {what: (value, meaning) for what, value, meaning in
                 perf_profile.stat_lines(perf_profile.read_stat(STAT, "s"))}
        self.assertEqual(lines["instructions per cycle"][0], "0.50")
        self.assertIn("cores wait", lines["instructions per cycle"][1])
        self.assertEqual(lines["cache misses"], ("5.0 %", "most data are in the caches"))
        self.assertEqual(lines["branch misses"][0], "5.0 %")
        self.assertEqual(lines["cores in use"][0], "2.0")
        self.assertEqual(lines["page faults per second"][0], "30000")
        self.assertIn("MALLOC_", lines["page faults per second"][1])
        self.assertEqual(lines["context switches per second"], ("200", "usual"))


class Script(Case):
    def test_pages(self):
        out = self.dir / "out"
        done = self.run_script("capture_perf", "--read", str(self.write("s.txt", SCRIPT)), "--stat",
                               str(self.write("stat.csv", STAT)), "--output", str(out))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        page = (out / "host.md").read_text()
        self.assertRegex(page, r"\| 60\.0 % \| runtime\.threads[^|]*\| matrix products \|")
        self.assertRegex(page, r"\| 30\.0 % \| [^|]*data\.prefetch_batches \| preparation of data \|")
        self.assertRegex(page, r"\| 10\.0 % \| unset MALLOC_[^|]*\| page faults \|")
        self.assertIn("| 60.0 % | 60.0 % | [gemm made at run time] |", page)
        self.assertIn("| 0.50 | below 1, cores wait", page)
        picture = xml.etree.ElementTree.parse(out / "flame.svg").getroot()
        svg = "{http://www.w3.org/2000/svg}"
        boxes = {group.find(svg + "title").text: group.find(svg + "rect") for group in picture.iter(svg + "g")}
        width = {name: float(box.get("width")) for name, box in boxes.items()}
        y = {name: float(box.get("y")) for name, box in boxes.items()}
        self.assertAlmostEqual(width["all: 100.00 %"], 1180)
        self.assertAlmostEqual(width["hrm::train::Trainer::run: 70.00 %"], 826)
        self.assertLess(y["at::native::mm: 60.00 %"], y["hrm::train::Trainer::run: 70.00 %"])

    def test_no_hardware_events(self):
        done = self.run_script("capture_perf", "--read", str(self.write("s.txt", SCRIPT)), "--stat",
                               str(self.write("stat.csv", VIRTUAL)), "--output", str(self.dir / "out"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("no hardware events"), 1)
        self.assertIn("no hardware events", (self.dir / "out/host.md").read_text())

    def test_bad_text(self):
        for text, part in (("", "holds no samples"), ("nonsense\n", "is damaged"), ("\t 12 f (g)\n", "is damaged"),
                           ("t 1 2.0: 3 e:\n\tzz\n", "is damaged")):
            self.assert_one_error(self.run_script("capture_perf", "--read", str(self.write("bad.txt", text)), "--output",
                                                  str(self.dir / "o")), 4, part)
        good = str(self.write("s.txt", SCRIPT))
        for text in ("", "x;;cycles\n"):
            self.assert_one_error(self.run_script("capture_perf", "--read", good, "--stat", str(self.write("b.csv", text)),
                                                  "--output", str(self.dir / "o")), 4, "is damaged")
        self.assert_one_error(self.run_script("capture_perf", "--read", str(self.dir / "none")), 4, "does not exist")
        self.assert_one_error(self.run_script("capture_perf"), 2, "give either a program")
        self.assert_one_error(self.run_script("capture_perf", "--read", good, "--", "x"), 2, "give either a program")
        self.assert_one_error(self.run_script("capture_perf", "--stat", good, "--", "x"), 2, "goes with --read")


class Capture(Case):
    """Runs a stand-in for perf."""

    def setUp(self):
        super().setUp()
        self.bin = self.dir / "bin"
        self.bin.mkdir()
        self.write("script.txt", SCRIPT)
        self.write("stat.txt", STAT)

    def stand_in(self, name, body):
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    def capture(self, *arguments):
        return self.run_script("capture_perf", "--output", str(self.dir / "out"), *arguments, "--", "/bin/true", "word",
                               path=str(self.bin))

    def test_one_run(self):
        self.stand_in("perf", f'''echo "$@" >> {self.dir}/lines.txt
case "$*" in
  *"-e cycles true") echo "5;;cycles;1;100" >&2 ;;
  script*) cat {self.dir}/script.txt ;;
  stat*) cp {self.dir}/stat.txt "$5" ;;
esac''')
        done = self.capture("--call-graph", "dwarf", "--frequency", "50")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("matrix products", (self.dir / "out/host.md").read_text())
        lines = (self.dir / "lines.txt").read_text().splitlines()
        self.assertRegex(lines[1], r"^stat -x ; -o \S*stat\.csv -e cycles,instructions,.*task-clock.* -- perf record -q -F 50 "
                                   r"-e cycles --call-graph dwarf -o \S*perf\.data -- \S*true word$")

    def test_without_hardware_events(self):
        self.stand_in("perf", f'''case "$*" in
  *"-e cycles true") echo "<not supported>;;cycles;0;100" >&2 ;;
  script*) cat {self.dir}/script.txt ;;
  stat*) echo "$@" > {self.dir}/line.txt; echo "1.0;msec;task-clock;1;100" > "$5" ;;
esac''')
        done = self.capture()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no hardware events", done.stderr)
        line = (self.dir / "line.txt").read_text()
        self.assertIn("-e cpu-clock", line)
        self.assertNotIn("cycles", line)

    def test_refusals(self):
        # Nothing but what the script itself starts: no perf.
        self.stand_in("git", "exit 0")
        done = self.run_without_perf()
        self.assert_one_error(done, 3, "perf is not installed", "linux-perf")
        self.stand_in("perf", 'echo "Error: Access to performance monitoring is limited. perf_event_paranoid is 4"; exit 255')
        self.assert_one_error(self.capture(), 3, "may not record with perf", "perf_event_paranoid=1")
        self.stand_in("perf", 'case "$*" in *true) exit 0;; esac; echo "error: no config"; exit 2')
        self.assert_one_error(self.capture(), 3, "ended with exit code 2: error: no config")
        done = self.run_script("capture_perf", "--output", str(self.dir / "out"), "--", "no/such/program",
                               path=str(self.bin))
        self.assert_one_error(done, 3, "'no/such/program' is no program")

    def run_without_perf(self):
        return subprocess.run([sys.executable, SCRIPTS / "capture_perf", "--output", str(self.dir / "o"), "--", "/bin/true"],
                              capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": str(self.bin)})


if __name__ == "__main__":
    unittest.main()
