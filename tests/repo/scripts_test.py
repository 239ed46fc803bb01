"""The scripts on machines that lack something, and the repository checks on trees that break a rule.

Of what scripts/test --quick chooses: quick_test.py; of folders with unusual names and of moved ones: any_folder_test.py.
"""

import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import time
import unittest

from script_case import CLEAN, ROOT, ScriptCase


class DetectGpu(ScriptCase):
    def detect(self, *gpus):
        self.stand_in("nvidia-smi", "\n".join(f"echo '{gpu}'" for gpu in gpus))
        result = self.run_script("detect_gpu")
        self.assertEqual(result.returncode, 0)
        return result.stdout.strip(), result.stderr.strip()

    def test_no_gpu(self):
        result = self.run_script("detect_gpu")  # nvidia-smi is there and fails, as without a driver
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        self.assertEqual(self.detect("No devices were found"), ("", ""))

    def test_architectures(self):
        self.assertEqual(self.detect("9.0, 580.95.05, NVIDIA H100 80GB HBM3"), ("90a", ""))
        self.assertEqual(self.detect("8.0, 580.65.06, A100", "8.9, 580.65.06, L4", "8.0, 580.65.06, A100"),
                         ("80;89", ""))
        self.assertEqual(self.detect("12.0, 590.1, NVIDIA GeForce RTX 5090"), ("120a", ""))

    def test_too_old(self):
        archs, said = self.detect("7.0, 580.95.05, Tesla V100-SXM2-16GB")
        self.assertEqual(archs, "")
        self.assertIn("Tesla V100-SXM2-16GB has compute capability 7.0", said)
        archs, said = self.detect("8.0, 535.216.01, NVIDIA A100-PCIE-40GB")
        self.assertEqual(archs, "")
        self.assertIn("driver 535.216.01 is too old", said)
        archs, said = self.detect("7.0, 580.95.05, Tesla V100-SXM2-16GB", "7.5, 580.95.05, Tesla T4")
        self.assertEqual(archs, "75")
        self.assertEqual(len(said.splitlines()), 1)


class Setup(ScriptCase):
    def test_unknown_values(self):
        self.assert_one_error(self.run_script("setup", HRM_CUDA="maybe"), 2, "HRM_CUDA is 'maybe'", "AUTO, ON or OFF")
        self.assert_one_error(self.run_script("setup", "everything"), 2, "usage:")

    def test_too_old_gpu_builds_for_the_cpu(self):
        self.stand_in("nvidia-smi", "echo '7.0, 580.95.05, Tesla V100-SXM2-16GB'")
        self.stand_in("dpkg-query", "exit 1")
        self.stand_in("id", "echo 1000")
        self.stand_in("sudo", "exit 1")
        result = self.run_script("setup")
        self.assertIn("no usable GPU: building for the CPU", result.stdout)
        self.assertEqual(result.stderr.count("Tesla V100"), 1)

    def test_no_root(self):
        self.stand_in("dpkg-query", '[ "$4" = cmake ] || [ "$4" = libcli11-dev ] && exit 1; echo installed')
        self.stand_in("id", "echo 1000")
        self.stand_in("sudo", "exit 1")
        self.assert_one_error(self.run_script("setup"), 3, "cannot install them",
                              "apt-get update && apt-get install -y --no-install-recommends cmake libcli11-dev")

    def test_no_network_for_apt(self):
        self.stand_in("dpkg-query", '[ "$4" = cmake ] && exit 1; echo installed')
        self.stand_in("id", "echo 0")
        self.stand_in("apt-get", "echo 'E: Unable to fetch some archives' >&2; exit 100")
        self.assert_one_error(self.run_script("setup"), 3, "could not install cmake", "network")

    def test_lists_are_fetched_only_when_needed(self):
        self.stand_in("dpkg-query", '[ "$4" = cmake ] && exit 1; echo installed')
        self.stand_in("id", "echo 0")
        calls = self.root / "calls"
        self.stand_in("apt-get", f'echo "$2" >> "{calls}"; [ -e "{calls}.ok" ]')
        self.run_script("setup", PIP_INDEX_URL="http://127.0.0.1:9", PIP_RETRIES="0", PIP_NO_INDEX="1")
        self.assertEqual(calls.read_text().split(), ["install", "update"])
        calls.unlink()
        pathlib.Path(f"{calls}.ok").touch()
        self.run_script("setup", PIP_INDEX_URL="http://127.0.0.1:9", PIP_RETRIES="0", PIP_NO_INDEX="1")
        self.assertEqual(calls.read_text().split(), ["install"])

    def test_tests_need_more_where_they_can_be_installed(self):
        self.stand_in("dpkg-query", '[ "$4" = clang ] || [ "$4" = libclang-rt-dev ] && exit 1; echo installed')
        self.stand_in("id", "echo 0")
        self.stand_in("apt-get", "exit 100")
        self.assert_one_error(self.run_script("setup", "test"), 3, "could not install clang libclang-rt-dev;")
        self.stand_in("id", "echo 1000")
        self.stand_in("sudo", "exit 1")
        result = self.run_script("setup", "test", PIP_INDEX_URL="http://127.0.0.1:9", PIP_RETRIES="0",
                                 PIP_CONFIG_FILE="/dev/null")
        self.assertIn("system packages: all there", result.stdout)

    def test_no_network_for_pip(self):
        self.stand_in("dpkg-query", "echo installed")
        result = self.run_script("setup", PIP_INDEX_URL="http://127.0.0.1:9", PIP_RETRIES="0", PIP_CONFIG_FILE="/dev/null")
        self.assert_one_error(result, 3, "torch_cpu.txt", "PyPI")
        self.assertFalse((self.root / ".venv/hrm-setup/torch_cpu").exists())

    def test_a_path_that_build_tools_stumble_over_is_refused_before_anything_is_installed(self):
        self.stand_in("dpkg-query", f"touch {self.root}.asked; echo installed")
        for name in ("my project", "a;b", "a,b", "it's", "a[1]", "tab\there"):
            with self.subTest(name):
                self.root = self.root.rename(self.root.with_name(name))
                self.assert_one_error(self.run_script("setup"), 3, f"cannot be built in '{self.root}'", "another folder")
                self.assertEqual([file.name for file in self.root.iterdir()], ["scripts"])
        self.assertEqual(list(self.root.parent.glob("*.asked")), [])

    def test_no_space(self):
        self.stand_in("dpkg-query", "echo installed")
        self.stand_in("df", "echo header; echo /dev/x 9 9 1048576 9% /")
        self.assert_one_error(self.run_script("setup"), 3, "needs about 2 GB", "1 GB are free")


class Package(ScriptCase):
    """With a cmake that installs a program of two lines: what scripts/package makes of it."""

    def setUp(self):
        super().setUp()
        self.write("build/CMakeCache.txt", "")
        self.write("build/bin/hrm_train", "")
        (self.root / "build/bin/hrm_train").chmod(0o755)
        self.installs(cuda="none, architectures none")

    def installs(self, cuda, package="libfmt9 9.1.0", program="exit 0"):
        self.stand_in("strip", "exit 0")
        # The mode that another user's umask gives must not show in the archive.
        self.stand_in("cmake", f"""[ "$1" = --install ] || exit 9
umask 077
mkdir -p "$4/bin" "$4/lib" "$4/share/doc/hrm_train/licenses" "$4/share/hrm_train/configs"
printf 'lib/libfmt.so.9\\t{package}\\n' > "$4/share/doc/hrm_train/licenses/LIBRARIES.txt"
echo "#!/bin/sh
echo 'hrm_train 1.2.3 (commit x)'; echo 'CUDA {cuda}'; {program}" > "$4/bin/hrm_train"
chmod 755 "$4/bin/hrm_train"
""")

    def pack(self, *args, **env):
        return self.run_script("package", "--build", str(self.root / "build"), *args, **env)

    def test_archive(self):
        result = self.pack("--out", str(self.root / "out"), SOURCE_DATE_EPOCH="1700000000")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(sorted(file.name for file in (self.root / "out").iterdir()),
                         ["hrm_train-1.2.3-linux-x86_64-cpu.tar.gz", "hrm_train-1.2.3-linux-x86_64-cpu.tar.gz.sha256"])
        subprocess.run(["sha256sum", "--check", "hrm_train-1.2.3-linux-x86_64-cpu.tar.gz.sha256"], check=True,
                       cwd=self.root / "out", capture_output=True)
        with tarfile.open(self.root / "out/hrm_train-1.2.3-linux-x86_64-cpu.tar.gz") as tar:
            members = tar.getmembers()
        names = [member.name for member in members]
        self.assertEqual(names, sorted(names))
        self.assertIn("hrm_train-1.2.3-linux-x86_64-cpu/README", names)
        for member in members:
            self.assertEqual((member.mtime, member.uid, member.gid), (1700000000, 0, 0), member.name)
            self.assertTrue(member.issym() or member.mode in (0o644, 0o755), f"{member.name} has mode {member.mode:o}")
        # The same again, byte for byte, although the files were made anew.
        first = (self.root / "out/hrm_train-1.2.3-linux-x86_64-cpu.tar.gz").read_bytes()
        self.pack("--out", str(self.root / "again"), SOURCE_DATE_EPOCH="1700000000")
        self.assertEqual(first, (self.root / "again/hrm_train-1.2.3-linux-x86_64-cpu.tar.gz").read_bytes())

    def test_cuda_is_in_the_name(self):
        self.installs(cuda="13.0.88, architectures 90a")
        self.pack()
        self.assertTrue((self.root / "build/hrm_train-1.2.3-linux-x86_64-cuda13.tar.gz").exists())

    def test_failures(self):
        self.assert_one_error(self.run_script("package", "--output", "x"), 2, "'--output' is not known", "usage:")
        self.assert_one_error(self.run_script("package", "--out"), 2, "--out needs a folder")
        self.assert_one_error(self.run_script("package", "--build", str(self.root)), 2, "no program in", "scripts/build")
        self.assert_one_error(self.pack(SOURCE_DATE_EPOCH="today"), 2, "SOURCE_DATE_EPOCH is 'today'")
        self.assert_one_error(self.pack("--out", "/proc/none"), 3, "no permission to write in '/proc/none'")
        self.installs(cuda="none", package="unknown")
        self.assert_one_error(self.pack(), 3, "the licences of lib/libfmt.so.9 were not found")
        self.installs(cuda="none", program="exit 3")
        self.assert_one_error(self.pack(), 1, "does not start")
        self.stand_in("cmake", "echo broken >&2; exit 1")
        self.assert_one_error(self.pack(), 3, "cmake --install failed")
        left = [file.name for file in (self.root / "build").iterdir() if "package" in file.name or "part" in file.name]
        self.assertEqual(left, [])


class CheckPackage(ScriptCase):
    def test_failures(self):
        self.assert_one_error(self.run_script("check_package", str(self.root / "none.tar.gz")), 4, "there is no archive")
        self.write("a.tar.gz", "no archive")
        self.assert_one_error(self.run_script("check_package", str(self.root / "a.tar.gz")), 4, "is no archive that")
        self.write("hrm_train-1/README", "")
        subprocess.run(["tar", "-czf", "a.tar.gz", "hrm_train-1"], cwd=self.root, check=True)
        self.assert_one_error(self.run_script("check_package", str(self.root / "a.tar.gz")), 4,
                              "must be called hrm_train-1.tar.gz")
        subprocess.run(["tar", "-czf", "hrm_train-1.tar.gz", "hrm_train-1"], cwd=self.root, check=True)
        archive = str(self.root / "hrm_train-1.tar.gz")
        self.assert_one_error(self.run_script("check_package", archive, "--root", str(self.bin)), 4,
                              "is no root folder of a system")
        self.assert_one_error(self.run_script("check_package", archive, "--system", "plan9"), 2, "invalid choice")
        self.assert_one_error(self.run_script("check_package", archive, "--runs", "0"), 2, "'0' is not a whole number")


class Fuzz(ScriptCase):
    """With a compiler that makes anything, and a cmake that "builds" fuzzers which are shell scripts."""

    def setUp(self):
        super().setUp()
        self.write("tests/fuzz/a_fuzz.cpp", "")
        self.write("tests/fuzz/b_fuzz.cpp", "")
        for name in ("a", "b"):
            self.write(f"tests/fuzz/corpus/{name}/seed", "seed")
        self.calls = self.root / "calls"
        self.stand_in("clang++", "exit 0")
        self.fuzzers("exit 0")

    def fuzzers(self, body):
        """The fuzzers that the next build makes. Each knows -runs=0, and notes the time it is given."""
        text = f"""#!/bin/sh
for argument; do case $argument in
  -runs=0) echo '#3 INITED cov: 40 ft: 50' >&2; exit 0 ;;
  -max_total_time=*) echo "$(basename $0) ${{argument#*=}}" >> {self.calls}; for last; do :; done
    echo '#8 NEW cov: 45 ft: 60 corp: 4/9b' >&2; {body} ;;
esac; done
grep -q bad "$5" && exit 77
exit 0
"""
        self.write("fuzzer", text)
        self.stand_in("cmake", f"""[ "$1" = --build ] || exit 0
mkdir -p "$2/bin" && for name in a b; do cp {self.root}/fuzzer "$2/bin/$name" && chmod 755 "$2/bin/$name"; done""")

    def called(self):
        calls = sorted(self.calls.read_text().splitlines()) if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return calls

    def test_table_and_going_on(self):
        self.fuzzers("echo 'stat::number_of_executed_units: 1234' >&2; exit 0")
        result = self.run_script("fuzz", "--seconds", "7")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"\| a \| 1,234 \| 7 \| 176 \| 40 \| 5 \| 0 \|\n\| b \|")
        self.assertEqual(self.called(), ["a 7", "b 7"])
        # Finished, so nothing runs; then two seconds more of one of them.
        self.assertIn("| a | 1,234 |", self.run_script("fuzz", "--seconds", "7").stdout)
        self.assertEqual(self.called(), [])
        self.assertIn("| a | 2,468 | 9 |", self.run_script("fuzz", "--seconds", "9", "a").stdout)
        self.assertEqual(self.called(), ["a 2"])
        # Another program begins anew, and so does --fresh.
        self.fuzzers("echo 'stat::number_of_executed_units: 99' >&2; exit 0")
        self.assertIn("| a | 99 | 9 |", self.run_script("fuzz", "--seconds", "9", "a").stdout)
        self.run_script("fuzz", "--seconds", "9", "--fresh", "a")
        self.assertEqual(self.called(), ["a 9", "a 9"])

    def test_findings(self):
        self.fuzzers('[ $(basename $0) = b ] && echo bad > findings/crash-1 && exit 77; exit 0')
        result = self.run_script("fuzz", "--seconds", "5")
        crash = self.root / "build/fuzz/work/b/findings/crash-1"
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn(f"finding: {crash}\n", result.stdout)
        # It stays one: no time is spent before it is repaired.
        self.called()
        self.assertEqual(self.run_script("fuzz", "--seconds", "5").returncode, 1)
        self.assertEqual(self.called(), [])
        # A new program that still fails on it, and one that does not.
        self.fuzzers("exit 0 # still")
        self.assertEqual(self.run_script("fuzz", "--seconds", "5", "b").returncode, 1)
        self.assertEqual(self.called(), [])
        self.write("fuzzer", (self.root / "fuzzer").read_text().replace("grep -q bad", "grep -q worse"))
        self.assertEqual(self.run_script("fuzz", "--seconds", "5", "b").returncode, 0)
        self.assertEqual(self.called(), ["b 5"])
        self.assertEqual((crash.exists(), (crash.parent.parent / "corpus/crash-1").exists()), (False, True))

    def test_an_exit_without_an_input(self):
        self.fuzzers("exit 1")
        result = self.run_script("fuzz", "--seconds", "5", "a")
        self.assertEqual(result.returncode, 1)
        self.assertIn("work/a/log (exit code 1, and no input was written)", result.stdout)

    def test_a_killed_run_goes_on(self):
        self.fuzzers("sleep 4; echo '#500 NEW cov: 46' >&2; sleep 15")
        with subprocess.Popen([self.root / "scripts/fuzz", "--seconds", "30", "a"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, start_new_session=True,
                              env={**CLEAN, "PATH": f"{self.bin}:{CLEAN['PATH']}"}) as process:
            state = self.root / "build/fuzz/work/a/state.json"
            for _ in range(200):
                if state.exists() and '"executions": 500' in state.read_text():
                    break
                time.sleep(0.1)
            self.assert_one_error(self.run_script("fuzz", "a"), 3, "another scripts/fuzz is at work")
            process.kill()
        self.assertIn('"executions": 500', state.read_text())
        self.called()
        saved = state.read_text()
        # The same program, which ends at once: it is a shell script, so its bytes may not change.
        (self.bin / "sleep").write_text("#!/bin/sh\nexit 0\n")
        (self.bin / "sleep").chmod(0o755)
        result = self.run_script("fuzz", "--seconds", "30", "a")
        self.assertEqual(result.returncode, 0, saved + result.stdout + result.stderr)
        seconds = int(self.called()[0].split()[1])
        self.assertTrue(20 <= seconds <= 26, seconds)
        self.assertIn("| a | 1,000 | 30 |", result.stdout)

    def test_a_stopped_run_keeps_its_counters(self):
        # libFuzzer, too, writes its numbers when it is asked to end.
        self.fuzzers("trap 'echo stat::number_of_executed_units: 77 >&2; exit 72' TERM; "
                     "while true; do sleep 0.1; done")
        with subprocess.Popen([self.root / "scripts/fuzz", "--seconds", "30"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, start_new_session=True,
                              env={**CLEAN, "PATH": f"{self.bin}:{CLEAN['PATH']}"}) as process:
            for _ in range(200):
                if self.calls.exists() and len(self.calls.read_text().splitlines()) == 2:
                    break
                time.sleep(0.1)
            time.sleep(0.5)
            process.terminate()
            self.assertEqual(process.wait(20), 130)
        for name in ("a", "b"):
            state = (self.root / f"build/fuzz/work/{name}/state.json").read_text()
            self.assertIn('"executions": 77', state)
            self.assertIn('"findings": []', state)

    def test_failures(self):
        self.assert_one_error(self.run_script("fuzz", "c"), 2, "there is no target 'c'", "a, b")
        self.assert_one_error(self.run_script("fuzz", "--seconds", "0"), 2, "'0' is not a whole number")
        self.stand_in("cmake", "echo broken; exit 1")
        self.assert_one_error(self.run_script("fuzz"), 3, "could not be built", "build.log")
        for name in ["clang++"] + [f"clang++-{version}" for version in range(14, 22)]:
            self.stand_in(name, "exit 1")
        self.assert_one_error(self.run_script("fuzz"), 3, "no clang++ with libFuzzer", "apt-get install clang")
        result = self.run_script("fuzz", "--optional")
        self.assertEqual((result.returncode, result.stderr), (77, ""))
        self.assertIn("skipped: no clang++", result.stdout)


class CheckLayers(ScriptCase):
    def check(self):
        result = self.run_script("check_layers", str(self.root))
        return result.returncode, result.stdout

    def test_rules(self):
        self.write("include/hrm/base/error.h", "#include <string>\n")
        self.write("include/hrm/nn/linear.h", '#include <ATen/ATen.h>\n#include "hrm/base/error.h"\n')
        self.write("src/main.cpp", '#include "hrm/nn/linear.h"\n')
        self.assertEqual(self.check()[0], 0)
        for name, text, message in [
            ("src/base/error.cpp", '#include "hrm/nn/linear.h"\n', "'base' must not know 'nn'"),
            ("src/data/batch.cpp", '#include "hrm/nn/linear.h"\n', "'data' must not know 'nn'"),
            ("src/formats/npy.cpp", "#include <c10/util/Half.h>\n", "belongs to 'formats' and must not see torch"),
            ("src/ops/cuda/a.cu", '#include "ops/cuda/a.h"\n', "is compiled by nvcc and must not see torch"),
            ("src/nn/a.cpp", "#include <spdlog/spdlog.h>\n", "includes spdlog"),
            ("src/nn/a.cpp", '#include "hrm/nn/nowhere.h"\n', "does not exist"),
            ("src/novel/a.cpp", "", "'novel' has no place"),
            ("src/nn/linear.cpp", '#include <vector>\n#include "hrm/nn/linear.h"\n', "must be included first"),
            ("src/nn/layers/linear.cpp", '#include <vector>\n#include "hrm/nn/linear.h"\n', "must be included first"),
        ]:
            with self.subTest(message):
                self.write("src/ops/cuda/a.h", "#include <torch/library.h>\n")
                self.write(name, text)
                code, output = self.check()
                self.assertEqual(code, 1, output)
                self.assertIn(message, output)
                (self.root / name).unlink()

    def test_empty_tree_fails(self):
        self.write("include/hrm/readme.txt", "")
        self.assertEqual(self.check()[0], 1)


class CheckUnity(ScriptCase):
    A = ('#include "a.h"\n#define NAME(x) {\nnamespace fs = std::filesystem;\nnamespace hrm {\nnamespace {\n'
         'using Json = nlohmann::json;\nconst char* kText = "namespace { int helper() {}";  // int helper() {\n'
         'template <class T>\nT helper(const std::map<T, int>& m) {\n  if (m.empty()) return {};\n  return 1\'000;\n}\n'
         'class Node : public Base {\n  int size() const { return 0; }\n};\n'
         'void PrintTo(const Node& node, std::ostream* out) {}\n}  // namespace\nint shared() { return 1; }\n}\n')

    def check(self, b, name="src/nn/b.cpp"):
        self.write("cmake/HrmUnity.cmake", "set(HRM_UNITY_SMALL_BYTES 1000)\n")
        self.write("src/nn/a.cpp", self.A)
        self.write(name, b)
        result = self.run_script("check_unity", str(self.root))
        (self.root / name).unlink()
        return result.returncode, result.stdout

    def test_names_that_meet(self):
        for name, text in [
            ("helper", "namespace hrm {\nnamespace {\nint helper(double x) { return 1; }\n}\n}\n"),
            ("helper", "static int helper(double x) { return 1; }\n"),
            ("Node", "namespace hrm::nn {\nnamespace {\nstruct Node {};\n}\n}\n"),
            ("Node", "namespace {\nusing Node = int;\n}\n"),
            ("kText", "namespace {\nconstexpr int kFirst = 0, kText = f(1, 2), kLast{3};\n}\n"),
            ("Json", "namespace {\nusing Json = nlohmann::ordered_json;\n}\n"),
        ]:
            with self.subTest(text):
                code, output = self.check(text)
                self.assertEqual(code, 1, output)
                self.assertIn(f"src/nn: a.cpp, b.cpp each have a '{name}'", output)
                self.assertEqual(output.count("each have"), 1, output)

    def test_names_that_do_not_meet(self):
        for text in [
            "namespace fs = std::filesystem;\nnamespace {\nusing Json = nlohmann::json;\n}\n",
            "namespace {\nvoid PrintTo(const Other& node, std::ostream* out) {}\n}\n",
            "namespace {\nstruct Other {\n  int helper() { return 0; }\n  int kText = 0;\n};\n}\n",
            "namespace hrm {\nint own() {\n  int helper = 0;\n  return helper;\n}\n}\n",
        ]:
            with self.subTest(text):
                self.assertEqual(self.check(text)[0], 0)
        other = "namespace {\nint helper() { return 0; }\n}\n"
        self.assertEqual(self.check(other, "src/models/b.cpp")[0], 0, "another module")
        self.assertEqual(self.check(other, "src/nn/cuda/b.cpp")[0], 0, "files that see CUDA")
        self.assertEqual(self.check(other + 1000 * "/", "src/nn/layers/b.cpp")[0], 0, "a large folder")

    def test_names_of_small_folders_meet(self):
        code, output = self.check("namespace {\nint helper() { return 0; }\n}\n", "src/nn/layers/b.cpp")
        self.assertEqual(code, 1, output)
        self.assertIn("src/nn, small folders: a.cpp, b.cpp each have a 'helper'", output)

    def test_empty_tree_fails(self):
        self.write("cmake/HrmUnity.cmake", "set(HRM_UNITY_SMALL_BYTES 1000)\n")
        self.assertEqual(self.run_script("check_unity", str(self.root)).returncode, 1)


class CheckDocs(ScriptCase):
    PROGRAM = ('case "$*" in "config --describe") echo "  train.steps   a number" ;; "--help-all") '
               'printf "Options:\\n  --version\\n\\ntrain\\n  Options:\\n    --config FILE\\n\\ndata\\n  Subcommands:\\n    maze\\n" ;; '
               '"data --help-all") printf "Options:\\n  --help\\n\\nmaze\\n    --out DIR\\n" ;; *) exit 2 ;; esac')

    def check(self, page):
        self.write("src/a.cpp", 'range("train.forward");\n')
        self.write("docs/other.md", "## The heading\n")
        self.write("docs/page.md", page)
        self.stand_in("hrm_train", self.PROGRAM)
        result = self.run_script("check_docs", "--program", str(self.bin / "hrm_train"), str(self.root))
        return result.returncode, result.stdout

    def test_names_that_exist(self):
        code, output = self.check("`src/a.cpp`, `src/*.cpp`, `src/NAME.cpp`, [other](other.md#the-heading), `train.steps=3`,\n"
                                  "`train.forward`, `hrm_train train --config`, src/b.cpp\n```\nhrm_train train train.steps=1\n```\n")
        self.assertEqual((code, output), (0, "check_docs: 2 pages, 0 problems\n"))

    def test_names_that_do_not(self):
        for text, message in [
            ("`src/b.cpp`", "src/b.cpp does not exist"),
            ("```\ncat src/{a,b}.cpp\n```", "src/{a,b}.cpp does not exist"),
            ("`train.step`", "train.step is no key"),
            ("```\nhrm_train train train.step=1\n```", "train.step is no key"),
            ("`hrm_train tarin`", "no subcommand 'tarin'"),
            ("`hrm_train train --configs x`", "'hrm_train train' has no option --configs"),
            ("`hrm_train data maze --into x`", "'hrm_train data maze' has no option --into"),
            ("[a](nowhere.md)", "the link nowhere.md leads nowhere"),
            ("[a](other.md#heading)", "other.md has no heading #heading"),
        ]:
            with self.subTest(text):
                code, output = self.check(text + "\n")
                self.assertEqual(code, 1, output)
                self.assertIn(f"docs/page.md:{2 if text.startswith('```') else 1}: ", output)
                self.assertIn(message, output)

    def test_empty_tree_fails(self):
        self.assert_one_error(self.run_script("check_docs", str(self.root / "scripts/lib")), 2, "has no folder docs")


class CountSeams(ScriptCase):
    def count(self):
        result = self.run_script("count_seams", str(self.root), "--list")
        self.assertEqual(result.returncode, 0, result.stderr)
        return {line[7:]: int(line[:5]) for line in result.stdout.splitlines() if line[:5].strip()}

    def test_counts(self):
        self.write("include/hrm/base/kind.h", "enum class Kind { one };\n")
        self.write("src/nn/a.cpp", "")
        self.assertEqual(set(self.count().values()), {0})
        self.write("src/tasks/a.cpp", 'bool a() { return x.task == "language"; }\n')
        self.write("src/base/a.cpp", "bool a() { return x.kind == Kind::one; }  // x.task == 1\n")
        self.assertEqual(set(self.count().values()), {0}, "of the owner")
        self.write("src/train/a.cpp", 'bool a() { return x.task == "a" || "b" != y.task() || x.kind == Kind::one; }\n'
                                      'auto text = "x.task == 1"; bool b = x.tasks == 1 || task == other;\n')
        self.assertEqual(self.count()["comparisons of kind outside its owner"], 0, "of one folder alone")
        self.write("src/optim/a.cpp", "bool a() { return x.kind != Kind::one; }\n")
        self.write("src/nn/long.cpp", "\n" * 601)
        for i in range(41):
            self.write(f"tests/nn/a{i}.cpp", "")
        self.write("include/hrm/base/one.h", '#include "hrm/base/two.h"\n')
        self.write("include/hrm/base/two.h", '#include "hrm/base/one.h"\n#include "hrm/nn/up.h"\n')
        self.write("include/hrm/nn/up.h", "")
        found = {name: number for name, number in self.count().items() if number}
        self.assertEqual(found, {
            "comparisons of task outside its owner": 2, "comparisons of kind outside its owner": 2,
            "folders of more than 40 files": 1, "files of more than 600 lines": 1, "circles of includes": 1,
            "includes that go upward": 1})


class CheckConfigs(ScriptCase):
    def test_config_without_a_smoke_test(self):
        self.write("configs/puzzle/a.json", "{}")
        self.write("configs/puzzle/b.json", "{}")
        self.stand_in("ctest", 'echo \'{"tests": [{"name": "smoke/puzzle/a.json", "command": ["x"]}]}\'')
        result = self.run_script("check_configs", "build")
        self.assertEqual(result.returncode, 1)
        self.assertIn("configs/puzzle/b.json", result.stdout)
        self.assertNotIn("configs/puzzle/a.json", result.stdout)


class Failures(ScriptCase):
    """What scripts/test ends with, of a log as ctest writes it."""

    def said(self, failed, **outputs):
        log = "".join(f'{i}/9 Testing: {name}\n{i}/9 Test: {name}\nCommand: "/bin/{name}"\n"{name}" start time: now\n'
                      f"Output:\n{'-' * 58}\n{text}<end of output>\nTest time =   0.01 sec\n{'-' * 58}\nTest Failed.\n\n"
                      for i, (name, text) in enumerate(outputs.items(), 1))
        self.write("build/Testing/Temporary/LastTest.log", "Start testing: now\n" + log)
        self.write("build/Testing/Temporary/LastTestsFailed.log", "".join(f"7:{name}\n" for name in failed))
        result = subprocess.run(["python3", self.root / "scripts" / "lib" / "failures.py", self.root / "build"],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout.splitlines()

    def test_google_test(self):
        text = """[ RUN      ] A.Good
[       OK ] A.Good (1 ms)
[ RUN      ] A.Bad
== a line of the program
/a/a_test.cpp:12: Failure
Expected: (x) < (2), actual: 3 vs 2
where it was

/a/a_test.cpp:15: Failure
a second one
[  FAILED  ] A.Bad (3 ms)
[ RUN      ] B/C.Named/0
/a/b_test.cpp:5: Failure
Value of: at::equal(a, b)
[  FAILED  ] B/C.Named/0, where GetParam() = 1 (3 ms)
[----------] Global test environment tear-down
[  FAILED  ] 2 tests, listed below:
[  FAILED  ] A.Bad
[  FAILED  ] B/C.Named/0, where GetParam() = 1
"""
        cases = ["  A.Bad", "    /a/a_test.cpp:12", "    Expected: (x) < (2), actual: 3 vs 2", "    where it was",
                 "  B/C.Named/0", "    /a/b_test.cpp:5", "    Value of: at::equal(a, b)"]
        self.assertEqual(self.said(["bad"], good="[ RUN      ] A.B\n", bad=text), ["== failed: bad", *cases])
        crashed = "[ RUN      ] A.Good\n[       OK ] A.Good (1 ms)\n[ RUN      ] A.Crashes\nsome words\n"
        self.assertEqual(self.said(["bad"], bad=crashed), ["== failed: bad", "  A.Crashes", "    not at its end"])
        many = "".join(f"[ RUN      ] A.B{i}\n/a:1: Failure\nx\n[  FAILED  ] A.B{i} (1 ms)\n" for i in range(9))
        self.assertEqual(self.said(["bad"], bad=many)[-1], "  and 3 more")

    def test_unittest(self):
        text = f"""..F.
{"=" * 70}
FAIL: test_it (__main__.Things.test_it)
{"-" * 70}
Traceback (most recent call last):
  File "/a/things_test.py", line 7, in test_it
    self.assertEqual(1, 2)
AssertionError: 1 != 2

{"-" * 70}
Ran 4 tests in 0.1s
"""
        self.assertEqual(self.said(["bad"], bad=text), [
            "== failed: bad", "  test_it (__main__.Things.test_it)", '    File "/a/things_test.py", line 7, in test_it',
            "    AssertionError: 1 != 2"])

    def test_other_programs(self):
        self.assertEqual(self.said(["bad", "absent"], bad="".join(f"line {i}\n" for i in range(9))),
                         ["== failed: bad", *(f"    line {i}" for i in range(3, 9)), "== failed: absent"])

    def test_nothing_ran(self):
        result = subprocess.run(["python3", self.root / "scripts" / "lib" / "failures.py", self.root],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))


class Demo(unittest.TestCase):
    def test_recipe_says_what_the_demo_prints(self):
        functions = (ROOT / "scripts/demo").read_text().split("recipe_data_commands()", 1)[1].split("\n# Makes", 1)[0]
        config = ROOT / "configs/puzzle/trm_sudoku6_cpu.json"
        shell = f'recipe_data_commands(){functions}\nrecipe_data_commands "$1"; echo --; recipe_what_is_easier "$1"'
        said = subprocess.run(["bash", "-c", shell, "bash", config], capture_output=True, text=True, check=True).stdout
        commands, easier = said.split("--\n", 1)[0], said.rsplit("\n--\n", 1)[1]
        self.assertRegex(commands, r"data sudoku .*--out runs/data/sudoku_demo")
        self.assertRegex(easier, r"Easier than in the full recipes: \S+")


class SameResults(unittest.TestCase):
    # In place of a training: one step, a checkpoint of one tensor; the environment says what they hold.
    PROGRAM = """#!/usr/bin/env python3
import json, os, pathlib, sys
if sys.argv[1] == "export":
    pathlib.Path(sys.argv[-1]).write_bytes(bytes([EXPORT]))
    sys.exit(0)
if sys.argv[1] == "eval":
    print(json.dumps({"loss": EVALUATION, "seconds": os.getpid()}))
    sys.exit(0)
if sys.argv[1] == "bench":
    pathlib.Path(sys.argv[-1]).write_text(json.dumps({"counts": {"calls": COUNT}} if COUNT else {}))
    sys.exit(0)
folder = next(word[8:] for word in sys.argv if word.startswith("run.dir="))
step = pathlib.Path(folder, "run/checkpoints/step-8")
step.mkdir(parents=True)
pathlib.Path(folder, "run/metrics.jsonl").write_text(json.dumps({"step": 8, "train/loss": LOSS, "perf/x": os.getpid()}))
head = json.dumps({"__metadata__": {"pid": str(os.getpid())}, "w": {"dtype": "U8", "shape": SHAPE, "data_offsets": [0, 1]}})
(step / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head.encode() + bytes([WEIGHT]))
sys.exit(CODE)
"""

    def compare(self, loss=1, weight=2, code=0, evaluation=3, export=4, shape="[1]", count=5, words=()):
        with tempfile.TemporaryDirectory() as folder:
            programs = []
            news = (loss, weight, code, evaluation, export, shape, count)
            for name, values in (("old", (1, 2, 0, 3, 4, "[1]", 5)), ("new", news)):
                text = self.PROGRAM
                for word, value in zip(("LOSS", "WEIGHT", "CODE", "EVALUATION", "EXPORT", "SHAPE", "COUNT"), values):
                    text = text.replace(word, str(value))
                file = pathlib.Path(folder, name)
                file.write_text(text)
                file.chmod(0o755)
                programs.append(file)
            done = subprocess.run([ROOT / "scripts/same_results", "--old", programs[0], "--new", programs[1],
                                   *words, "configs/puzzle/trm_att_sudoku17.json"], capture_output=True, text=True)
            return done.returncode, done.stdout + done.stderr

    def test_metrics_and_tensors(self):
        self.assertEqual(self.compare(), (0, "configs/puzzle/trm_att_sudoku17.json: 7 values and tensors are the same\n"))
        code, said = self.compare(loss=1.5)
        self.assertEqual((code, "1 of 7 differ, the first is step 8: train/loss" in said), (1, True), said)
        code, said = self.compare(weight=3)
        self.assertEqual((code, "1 of 7 differ, the first is model.safetensors: w" in said), (1, True), said)
        code, said = self.compare(shape="[1,1]")
        self.assertEqual((code, "1 of 7 differ, the first is model.safetensors: w" in said), (1, True), said)
        code, said = self.compare(evaluation=4)
        self.assertEqual((code, "1 of 7 differ, the first is evaluation: loss" in said), (1, True), said)
        code, said = self.compare(export=5)
        self.assertEqual((code, "3 of 7 differ, the first is export pt" in said), (1, True), said)
        self.assertEqual(self.compare(count=6)[0], 0)
        code, said = self.compare(count=6, words=["--counts"])
        self.assertEqual((code, "1 of 8 differ, the first is counts: calls" in said), (1, True), said)
        code, said = self.compare(count=0, words=["--counts"])
        self.assertEqual((code, "leave --counts out" in said), (1, True), said)
        code, said = self.compare(code=6)
        self.assertEqual((code, "ended with 6" in said), (1, True), said)


class CheckLinking(unittest.TestCase):
    def test_wrong_program(self):
        result = subprocess.run([ROOT / "tests/repo/check_linking.py", shutil.which("env")], capture_output=True, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("libstdc++ must be needed before libtorch_cpu", result.stdout)


if __name__ == "__main__":
    unittest.main()
