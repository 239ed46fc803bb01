"""The pages docs/adding-*.md and their examples, tests/repo/adding/*.patch: each patch applies to the tree, and touches
the files that its page lists and no more than the limit. scripts/check_adding compiles and runs them."""

import importlib.machinery
import importlib.util
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from script_case import CLEAN, ROOT, ScriptCase

# Of each kind: its page, what the page's capitals stand for in the example, and how many existing files it may touch.
KINDS = {
    "op": ("adding-an-op.md", {"OP": "scale_rows", "FAMILY": "norm"}, 1),
    "task": ("adding-a-task.md", {"NAME": "line"}, 3),
    "model": ("adding-a-model.md", {"ARCH": "trm_once"}, 2),
    "key": ("adding-a-key.md", {"GROUP": "runtime", "MODULE": "runtime", "READER": "device", "KEY": "flush_denormals"}, 3),
}
LONGEST_PAGE = 80  # lines
ROW = re.compile(r"\| `([^`]+)`( \(optional\))? \|")


def listed_files(page, heading, names):
    """(required, optional) paths of the table below a heading, with names in place of capitals."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    paths = {True: set(), False: set()}
    for match in map(ROW.match, section.splitlines()):
        if match:
            path = re.sub(r"[A-Z]+(?![A-Za-z])", lambda capitals: names.get(capitals[0], capitals[0]), match[1])
            paths[match[2] is None].add(path)
    return paths[True], paths[False]


def touched_files(patch):
    """(new, existing) paths of a patch; one that removes or renames a file is no example."""
    new, existing = set(), set()
    for part in re.split(r"^diff --git ", patch.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        head = part.partition("\n@@")[0]
        path = re.search(r"^\+\+\+ b/(.+)$", head, re.MULTILINE)[1]
        (new if "\nnew file mode " in head else existing).add(path)
        if "\ndeleted file mode " in head or "\nrename from " in head:
            raise ValueError(f"{patch} removes or renames a file")
    return new, existing


class Examples(unittest.TestCase):
    def test_each_applies_to_the_tree(self):
        for kind in KINDS:
            patch = ROOT / f"tests/repo/adding/{kind}.patch"
            new, existing = touched_files(patch)
            with self.subTest(kind=kind), tempfile.TemporaryDirectory(prefix="hrm_adding_") as folder:
                for path in existing:
                    copy = pathlib.Path(folder, path)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / path, copy)
                result = subprocess.run(["git", "apply", "--whitespace=error-all", patch], cwd=folder, env=CLEAN,
                                        stdin=subprocess.DEVNULL, capture_output=True, text=True)
                self.assertEqual(result.returncode, 0, result.stderr + "make the patch again (docs/building.md)")
                for path in new:
                    self.assertTrue(pathlib.Path(folder, path).is_file(), path)
                    self.assertFalse((ROOT / path).exists(), f"{path} is no new file")

    def test_each_touches_what_its_page_lists(self):
        for kind, (page, names, limit) in KINDS.items():
            with self.subTest(kind=kind):
                new, existing = touched_files(ROOT / f"tests/repo/adding/{kind}.patch")
                required, optional = listed_files(page, "Files to make", names)
                self.assertTrue(required | optional, f"docs/{page} lists no files to make")
                self.assertEqual(required - new, set(), f"docs/{page} lists files that the example does not make")
                self.assertEqual(new - required - optional, set(), f"docs/{page} does not list these new files")
                self.assertEqual((existing, set()), listed_files(page, "Files to change", names))
                self.assertLessEqual(len(existing), limit)

    def test_an_op_stays_in_its_family(self):
        names = KINDS["op"][1]
        for path in touched_files(ROOT / "tests/repo/adding/op.patch")[1]:
            self.assertTrue(path.startswith(f"src/ops/{names['FAMILY']}/"), path)

    def test_each_page_is_short_and_names_its_example(self):
        for kind, (page, *_) in KINDS.items():
            text = (ROOT / "docs" / page).read_text(encoding="utf-8")
            self.assertLessEqual(text.count("\n"), LONGEST_PAGE, page)
            self.assertIn(f"`tests/repo/adding/{kind}.patch`", text, page)
            self.assertIn(f"scripts/check_adding {kind} ", text, page)

    def test_each_is_compiled_by_the_script(self):
        loader = importlib.machinery.SourceFileLoader("check_adding", str(ROOT / "scripts/check_adding"))
        script = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        loader.exec_module(script)
        patches = {file.stem for file in (ROOT / "tests/repo/adding").glob("*.patch")}
        self.assertEqual((set(script.TESTS), patches), (set(KINDS), set(KINDS)))


class Script(ScriptCase):
    """scripts/check_adding in a project made up for it; stand-ins take the place of CMake and of the checks."""

    def setUp(self):
        super().setUp()
        for name in ("check_layers", "check_unity", "check_format"):
            self.write(f"scripts/{name}", "#!/bin/sh\n")
        self.write(".gitignore", "/build/\n")
        self.write("src/a.cpp", "one\n")
        subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
        self.build_program("test -e src/new.cpp")
        self.patch("new.cpp")

    def build_program(self, body):
        """What cmake --build makes of each test program."""
        self.stand_in("cmake", f"""[ "$1" = --build ] || exit 0
mkdir -p "$2/tests"
for program in test_ops test_commands; do
  printf '#!/bin/sh\\n{body}\\n' > "$2/tests/$program"
  chmod +x "$2/tests/$program"
done""")

    def patch(self, name):
        self.write("tests/repo/adding/op.patch", f"diff --git a/src/{name} b/src/{name}\nnew file mode 100644\n"
                                                 f"--- /dev/null\n+++ b/src/{name}\n@@ -0,0 +1 @@\n+two\n")

    def check_op(self, code, *parts):
        result = self.run_script("check_adding", "op")
        self.assertEqual((result.returncode, result.stderr), (code, ""), result.stdout)
        for part in parts:
            self.assertIn(part, result.stdout)

    def test_a_patch_that_passes(self):
        self.check_op(0, "op: passes")
        self.assertFalse((self.root / "src/new.cpp").exists())
        # The next time the copy begins without the patch, and with what has changed.
        self.write("src/a.cpp", "three\n")
        self.check_op(0, "op: passes")
        self.assertEqual((self.root / "build/adding/tree/src/a.cpp").read_text(), "three\n")

    def test_failures(self):
        self.build_program("echo Running 0 tests from 0 test suites.")
        self.check_op(1, "Running 0 tests", "op: FAILS")
        self.build_program("exit 1")
        self.check_op(1, "failed: ", "op: FAILS")
        self.patch("a.cpp")
        self.check_op(1, "already exists", "op: FAILS")
        self.assert_one_error(self.run_script("check_adding", "kernel"), 2, "there is no kind 'kernel'")
        shutil.rmtree(self.root / ".git")
        self.assert_one_error(self.run_script("check_adding", "op"), 3, "is no clone")


if __name__ == "__main__":
    unittest.main()
