"""The project in folders whose names mean something to a tool, and in one that it was moved to: any_folder_test.py BUILD

BUILD is a configured build, whose torch is used. Copies of the project are configured without CUDA.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from script_case import CLEAN, ROOT, Installed

BUILD = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else ROOT / "build"


class UnusualFolder(unittest.TestCase):
    def test_a_module_is_built_and_tested(self):
        temporary = tempfile.TemporaryDirectory(prefix="hrm_any_folder_")
        self.addCleanup(temporary.cleanup)
        # A folder of kernels, an operator of regular expressions, and a name that is not ASCII.
        root = pathlib.Path(temporary.name, "cuda", "a+b", "bäume")
        for name in ("cmake", "configs", "include", "scripts", "src", "tests"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("fixtures", "corpus", "__pycache__"))
        shutil.copy(ROOT / "CMakeLists.txt", root)
        cache = (BUILD / "CMakeCache.txt").read_text().splitlines()
        site = next((line.partition("=")[2] for line in cache if line.startswith("HRM_SITE_PACKAGES:")), "")
        self.run_command(root, "cmake", "-S", root, "-B", root / "build", "-G", "Ninja", "-DHRM_CUDA=OFF",
                         f"-DHRM_SITE_PACKAGES={site or next(ROOT.glob('.venv/lib/python3*/site-packages'))}")
        rules = (root / "build/CMakeFiles/rules.ninja").read_text()
        for module in sorted({file.relative_to(root / "src").parts[0] for file in root.glob("src/*/*.cpp")}):
            self.assertIn(f"rule CXX_COMPILER__hrmlib_{module}_", rules)
        self.run_command(root, "cmake", "--build", root / "build", "-j2", "--target", "test_base")
        self.assertIn("100% tests passed", self.run_command(
            root, "ctest", "--test-dir", root / "build", "--no-tests=error", "-R", "^base$"))

    def run_command(self, root, *command):
        env = dict(CLEAN, LC_ALL="C", CCACHE_BASEDIR=str(root), CCACHE_NOHASHDIR="1")  # as scripts/lib/build.sh
        result = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(result.returncode, 0, os.fsdecode(result.stdout))
        return os.fsdecode(result.stdout)


class MovedEnvironment(Installed):
    def started(self, name):
        return subprocess.run([self.root / ".venv/bin" / name], capture_output=True, text=True, check=True).stdout.strip()

    def test_it_is_mended_without_an_installation(self):
        result = self.run_script("setup")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertNotIn("mended", result.stdout)
        first = old = self.root
        for name in ("bä+u", "another"):
            new = old.with_name(name)
            self.root = self.root.rename(new)
            with self.assertRaises(OSError):
                self.started("pip")
            result = self.run_script("setup")
            self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
            self.assertIn(f"was moved here from {old}/.venv: its programs have been mended", result.stdout)
            self.assertIn("the part that runs on a CPU: all there", result.stdout)
            for program in ("pip", "torchrun"):
                self.assertEqual(self.started(program), f"{self.root}/.venv")
                self.assertIn(f"/other{first}/.venv/", (self.root / ".venv/bin" / program).read_text())
            self.assertIn(f"{self.root}/.venv", (self.root / ".venv/bin/activate").read_text())
            self.assertNotIn("mended", self.run_script("setup").stdout)
            old = self.root
        # The same folder by another path.
        link = self.bin / "link"
        link.symlink_to(self.root)
        self.root = link
        self.assertNotIn("mended", self.run_script("setup").stdout)


if __name__ == "__main__":
    unittest.main()
