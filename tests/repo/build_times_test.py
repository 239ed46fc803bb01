"""scripts/build_times on build folders made up for it: sums, lists, measured builds, and one sentence for bad input."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A source, a test, a CUDA file, links, a command with two outputs, and a path with an escaped space.
NINJA = f"""rule CXX_COMPILER__hrmlib_ops_objects_Release
build src/CMakeFiles/hrmlib_ops_objects.dir/ops/a.cpp.o: CXX_COMPILER__hrmlib_ops_objects_Release {ROOT}/src/ops/a.cpp || x
  FLAGS = -O2
build src/CMakeFiles/hrmlib_ops_objects.dir/ops/cuda/a.cu.o: CUDA_COMPILER__hrmlib_ops_objects_Release /b$ c/a.cu
  DEFINES = -DA
  FLAGS = --generate-code=arch=compute_80,code=[compute_80,sm_80] --generate-code=arch=compute_90a,code=[sm_90a]
build src/CMakeFiles/hrmlib_ops_objects.dir/ops/cuda/h.cu.o: CUDA_COMPILER__hrmlib_ops_objects_Release /b/h.cu
  FLAGS = --generate-code=arch=compute_90a,code=[sm_90a]
build src/CMakeFiles/hrmlib_nn.dir/nn/b.cpp.o: CXX_COMPILER__hrmlib_nn_Release {ROOT}/src/nn/b.cpp
build src/libhrmlib_nn.a: CXX_STATIC_LIBRARY_LINKER__hrmlib_nn_Release src/CMakeFiles/hrmlib_nn.dir/nn/b.cpp.o
build tests/CMakeFiles/test_ops_gpu.dir/ops/a_gpu_test.cpp.o: CXX_COMPILER__test_ops_gpu_Release {ROOT}/tests/ops/a_gpu_test.cpp
build tests/test_ops_gpu: CXX_EXECUTABLE_LINKER__test_ops_gpu_Release tests/CMakeFiles/test_ops_gpu.dir/ops/a_gpu_test.cpp.o
build CMakeFiles/hrm_version generated/hrm/version.h | ${{cmake_ninja_workdir}}CMakeFiles/hrm_version: CUSTOM_COMMAND
"""
OUTPUTS = ["src/CMakeFiles/hrmlib_ops_objects.dir/ops/a.cpp.o", "src/CMakeFiles/hrmlib_ops_objects.dir/ops/cuda/a.cu.o",
           "src/CMakeFiles/hrmlib_ops_objects.dir/ops/cuda/h.cu.o", "src/CMakeFiles/hrmlib_nn.dir/nn/b.cpp.o",
           "src/libhrmlib_nn.a", "tests/CMakeFiles/test_ops_gpu.dir/ops/a_gpu_test.cpp.o", "tests/test_ops_gpu",
           "CMakeFiles/hrm_version", "generated/hrm/version.h"]


def log_line(begin, end, output):
    return f"{begin}\t{end}\t0\t{output}\tabc\n"


class BuildTimes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hrm_build_times_test_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.build = self.folder / "build"
        self.write("build/build.ninja", NINJA)
        seconds = [3, 20, 7, 5, 1, 4, 2, 6, 6]
        self.log = "# ninja log v5\n" + log_line(0, 99000, OUTPUTS[0]) + log_line(0, 99000, "gone.o") + "".join(
            log_line(100, 100 + 1000 * s, output) for s, output in zip(seconds, OUTPUTS))
        self.write("build/.ninja_log", self.log)

    def write(self, name, text):
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def stand_in(self, name, text):
        self.write(f"bin/{name}", f"#!/bin/sh\n{text}\n").chmod(0o755)

    def times(self, *arguments, **env):
        env = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", **env}
        return subprocess.run([sys.executable, ROOT / "scripts/build_times", "--build", self.build, *arguments], env=env,
                              capture_output=True, text=True, timeout=60)

    def said(self, *arguments, **env):
        result = self.times(*arguments, **env)
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        return [re.sub(" +", " ", line).strip() for line in result.stdout.splitlines()]

    def assert_one_error(self, result, code, part):
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn(part, result.stderr)

    def test_modules_kinds_and_slowest_files(self):
        said = self.said()
        self.assertIn("wall seconds by module C++ sources C++ tests CUDA link other all", said)
        # The last entry counts, once for a command with several outputs.
        self.assertIn("ops 3.0 4.0 27.0 2.0 - 36.0", said)
        self.assertIn("nn 5.0 - - 1.0 - 6.0", said)
        self.assertIn("no module - - - - 6.0 6.0", said)
        self.assertIn("sum 8.0 4.0 27.0 3.0 6.0 48.0", said)
        self.assertIn("CUDA files for the architectures 80, 90a: 20.0 s, files: 1", said)
        self.assertIn("CUDA files for the architectures 90a: 7.0 s, files: 1", said)
        first = said.index("slowest files") + 1
        self.assertEqual(said[first:first + 5], ["20.00 s /b c/a.cu", "7.00 s /b/h.cu", "5.00 s src/nn/b.cpp",
                                                 "4.00 s tests/ops/a_gpu_test.cpp", "3.00 s src/ops/a.cpp"])
        self.assertEqual(self.said("--top", "1")[first + 1], "")

    def test_slowest_tests(self):
        self.assertIn("no test has been run", self.said()[-1])
        self.write("build/Testing/Temporary/LastTest.log", """Start testing: now
1/2 Test: ops
Output:
[ RUN      ] A.Quick
[       OK ] A.Quick (1 ms)
[       OK ] B/C.Slow/0 (2500 ms)
[  FAILED  ] D.Wrong, where GetParam() = 1 (300 ms)
[  SKIPPED ] D.Skipped (900 ms)
[       OK ] 7 tests (9000 ms total)
<end of output>
Test time =   3.25 sec
2/2 Test: repo_layers
Output:
<end of output>
Test time =   4.00 sec
""")
        said = self.said()
        first = said.index("slowest of 2 ctest entries, 7.2 s in all") + 1
        self.assertEqual(said[first:first + 2], ["4.00 s repo_layers", "3.25 s ops"])
        first = said.index("slowest of 3 gtest cases, 2.8 s in all") + 1
        self.assertEqual(said[first:], ["2.50 s ops: B/C.Slow/0", "0.30 s ops: D.Wrong", "0.00 s ops: A.Quick"])

    def test_bad_folders_and_logs(self):
        self.write("build/.ninja_log", self.log + "1\t2\t0\thalf a li")  # ninja was killed
        self.assertIn("ops 3.0 4.0 27.0 2.0 - 36.0", self.said())
        self.write("build/.ninja_log", self.log + "1\tx\t0\ta.o\tabc\n")
        self.assert_one_error(self.times(), 4, f".ninja_log' is damaged in line {len(self.log.splitlines()) + 1};")
        self.write("build/.ninja_log", "# ninja log v4\n")
        self.assert_one_error(self.times(), 4, "is no log of ninja 1.5")
        (self.build / ".ninja_log").unlink()
        self.assert_one_error(self.times(), 3, "nothing has been built")
        (self.build / "build.ninja").unlink()
        self.assert_one_error(self.times(), 3, "is no build folder of ninja")
        self.assert_one_error(self.times("--run"), 3, "is no build folder of ninja")
        self.assert_one_error(self.times("--build", self.folder / "none"), 3, "there is no build folder")
        self.assert_one_error(self.times("ops"), 2, "need --run")
        self.assert_one_error(self.times("--run", "--cuda-architectures"), 2, "exclude each other")
        self.assert_one_error(self.times("--cuda-architectures"), 3, "no compile_commands.json")
        self.write("build/compile_commands.json", "[{}]")
        self.assert_one_error(self.times("--cuda-architectures"), 4, "is damaged")
        self.write("build/compile_commands.json", "[]")
        self.assert_one_error(self.times("--cuda-architectures"), 3, "no CUDA files")

    def test_a_measured_build(self):
        # It compiles a.cpp again and asks nvcc for its times.
        entry = log_line(5, 1505, OUTPUTS[0]).replace("\t", "\\t").rstrip("\n")
        self.stand_in("cmake", f"""echo "$@" >> {self.folder}/calls
[ "$5" = --target ] && [ "$6" = clean ] && exit 0
printf '{entry}\\n' >> {self.build}/.ninja_log
file=${{NVCC_APPEND_FLAGS#--time=}}
[ -n "$file" ] && cat {self.folder}/nvcc.csv >> "$file"
i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done""")
        self.write("nvcc.csv", """source file name , phase name , phase input files , phase output file , arch , tool, metric , unit
a.cu , gcc (preprocessing 4) , a.cu  , /tmp/4.ii ,  , nvcc , 1000.0 , ms
a.cu , cudafe++ , /tmp/4.ii  , /tmp/a.cpp , compute_90a , nvcc , 2000.0 , ms
a.cu , cicc ,  /tmp/1.ii  , /tmp/a.ptx , compute_80 , nvcc , 3000.0 , ms
a.cu , ptxas , /tmp/a.ptx  , /tmp/a.cubin , sm_80 , nvcc , 400.0 , ms
a.cu , ptxas , /tmp/a.ptx  , /tmp/a.cubin , sm_90a , nvcc , 900.0 , ms
a.cu , ptxas , /tmp/a.ptx  , half a line
""")
        said = self.said("--run", "--clean", "--no-ccache", "--jobs", "3", "test_ops", NVCC_APPEND_FLAGS="")
        self.assertEqual((self.folder / "calls").read_text().splitlines(),
                         [f"--build {self.build} -j 3 --target clean", f"--build {self.build} -j 3 --target test_ops"])
        self.assertIn("sum 1.5 1.5", said)  # the older entries are not of this build
        measured = re.search(r"build: ([\d.]+) s wall, ([\d.]+) s CPU .* largest process ([\d.]+) GiB, 3 jobs", "\n".join(said))
        self.assertTrue(measured, said)
        self.assertGreater(float(measured[2]), 0.0)
        self.assertEqual(said[said.index("wall seconds of nvcc") + 1:],
                         ["3.4 s architecture 80", "0.9 s architecture 90a", "3.0 s once for a file"])
        self.stand_in("cmake", "exit 5")
        self.assert_one_error(self.times("--run"), 1, "the build failed")

    def test_cuda_files_by_architecture(self):
        self.stand_in("nvcc", f"""echo "$CCACHE_DISABLE $*" >> {self.folder}/calls
case "$*" in *h.cu*compute_100*) exit 1 ;; esac
i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done""")
        code = "--generate-code=arch=compute_{0},code=[compute_{0},sm_{0}]"
        commands = [{"directory": str(self.build), "file": f"/b/{name}.cu", "command":
                     f"nvcc -O3 {' '.join(code.format(a) for a in archs)} -x cu -c /b/{name}.cu -o src/{name}.o"}
                    for name, archs in (("a", ("80", "90a")), ("h", ("90a",)))]
        other = {"directory": str(self.build), "file": "/b/a.cpp", "command": "c++ -c /b/a.cpp -o a.o"}
        self.write("build/compile_commands.json", json.dumps([other, *commands]))
        said = self.said("--cuda-architectures", "--jobs", "1")
        self.assertRegex("\n".join(said), r"h\.cu - 0\.\d 0\.\d\n")
        calls = sorted(re.sub(r"-o \S+", "-o X", line) for line in (self.folder / "calls").read_text().splitlines())
        self.assertEqual(calls, [f"1 -O3 -x cu -c /b/{name}.cu --generate-code=arch=compute_{a},code=[sm_{a}] -o X"
                                 for name, a in (("a", "80"), ("a", "90a"), ("h", "90a"))])
        self.assertEqual([file.name for file in self.build.iterdir() if file.suffix == ".o"], [])
        commands[1]["command"] += " " + code.format("100")
        self.write("build/compile_commands.json", json.dumps(commands))
        self.assert_one_error(self.times("--cuda-architectures"), 1, "h.cu for 100; build it")


if __name__ == "__main__":
    unittest.main()
