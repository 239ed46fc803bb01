"""scripts/test --quick: what it builds, runs and leaves out after changes of several kinds."""

import shutil
import subprocess
import unittest

from script_case import Installed


class QuickTests(Installed):
    """scripts/test --quick in a repository made up for it; stand-ins note what would be built and tested."""

    def setUp(self):
        super().setUp()
        self.calls = self.root.parent / "calls"
        self.commands(4)
        self.stand_in("cmake", f'[ "$1" = --build ] && echo "build $*" >> {self.calls}; exit 0')
        self.stand_in("ctest", f"""case "$*" in
  *-N*unit*) printf '  Test #%s: %s\\n' 1 ops 22 ops_more 3 nn 4 optim ;;
  *-N*program*) echo '  Test  #9: repo_linking' ;;
  *--print-labels*) printf 'All Labels:\\n  gpu\\n  program\\n  repo\\n  smoke\\n  unit\\n' ;;
  *) echo "test $*" >> {self.calls} ;;
esac""")
        self.write(".gitignore", "/.venv/\n/build/\n")
        for name in ("src/ops/a.cpp", "include/hrm/nn/b.h", "src/main.cpp", "tests/optim/c_test.cpp"):
            self.write(name, "")
        self.git("init", "-q", "-b", "main")
        self.commit()
        self.write("docs/a.md", "")
        self.commit()

    def commands(self, count):
        """As ninja, which only says that it would run CMake again when it is asked about build.ninja itself."""
        self.write("build/build.ninja", "")
        self.stand_in("ninja", '[ "$3" = -f ] && [ "$4" != build.ninja ] && [ -e "$2/$4" ] || { echo "[1/2] Re-running"; exit; }\n'
                      "echo 'ninja: Entering'; " + "echo '[1/9] x'; " * count)

    def git(self, *arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=self.root, check=True,
                       capture_output=True)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")

    def quick(self, *arguments):
        """What it said, the targets built, and the entries that were left out."""
        self.calls.unlink(missing_ok=True)
        result = self.run_script("test", "--quick", *arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        calls = self.calls.read_text().splitlines()
        built = [call.partition("--target ")[2].split() for call in calls if call.startswith("build")]
        tested = [call.split() for call in calls if call.startswith("test")]
        self.assertEqual((len(built) < 2, len(tested)), (True, 1), calls)
        self.assertEqual(tested[0][tested[0].index("-L") + 1], "^(repo|unit)$")
        left_out = tested[0][tested[0].index("-E") + 1].removeprefix("^(").removesuffix(")$").split("|")
        return result.stdout, built[0] if built else None, left_out, tested[0]

    def test_rules_alone_where_no_code_changed(self):
        said, built, left_out, _ = self.quick()
        self.assertEqual((built, left_out), (None, ["ops", "ops_more", "nn", "optim", "repo_linking"]))
        self.assertIn("since the commit before the last one", said)
        self.assertIn("not run: units of ops ops_more nn optim; the labels gpu smoke", said)
        self.assertIn("not run: repo_linking, which needs hrm_train", said)

    def test_units_of_what_changed_since_the_base(self):
        self.git("update-ref", "refs/remotes/origin/main", "HEAD")
        self.write("src/ops/cuda/sm90/a.cu", "committed")
        self.commit()
        self.write("include/hrm/nn/b.h", "not committed")
        self.write("tests/support/new.h", "unknown to git")
        self.write("CMakeLists.txt", "")
        said, built, left_out, call = self.quick("-R", "o")
        self.assertEqual((built, left_out), (["test_ops", "test_ops_more", "test_nn", "hrm_train"], ["optim"]))
        self.assertEqual(call[-2:], ["-R", "o"])
        self.assertIn("since origin/main (", said)
        self.assertIn("4 files", said)
        self.assertIn("changed, but not tested here: CMakeLists.txt, C++ of support", said)
        self.assertIn("scripts/test runs everything", said)
        # hrm_train is left to the whole build where most of it would have to be compiled.
        self.commands(40)
        said, built, left_out, _ = self.quick()
        self.assertEqual((built, left_out), (["test_ops", "test_ops_more", "test_nn"], ["optim", "repo_linking"]))
        # A branch without a remote.
        self.git("update-ref", "-d", "refs/remotes/origin/main")
        self.git("switch", "-q", "-c", "mine")
        self.commit()
        said, built, *_ = self.quick()
        self.assertIn("since main (", said)
        self.assertEqual(built, ["test_nn"])

    def test_failures(self):
        self.assert_one_error(self.run_script("test", "--quick", "-E", "x"), 2, "use -R or -L")
        self.write("src/ops/a.cpp", "changed")
        quick = self.root / "scripts/lib/quick.sh"
        quick.write_text(quick.read_text().replace("QUICK_SECONDS=300", "QUICK_SECONDS=5"))
        self.stand_in("cmake", '[ "$1" = --build ] && sleep 60; exit 0')
        self.assert_one_error(self.run_script("test", "--quick"), 75, "did not end in time")
        self.stand_in("cmake", '[ "$1" = --build ] && exit 7; exit 0')
        self.assertEqual(self.run_script("test", "--quick").returncode, 7)
        self.stand_in("cmake", "exit 0")
        self.stand_in("ctest", "[ \"$3\" = -N ] || [ \"$3\" = --print-labels ] || exit 8")
        result = self.run_script("test", "--quick")
        self.assertEqual(result.returncode, 8)
        self.assertIn("not run", result.stdout)
        shutil.rmtree(self.root / ".git")
        self.assert_one_error(self.run_script("test", "--quick"), 3, "is no clone with a commit")


if __name__ == "__main__":
    unittest.main()
