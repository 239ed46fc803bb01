#!/usr/bin/env python3
"""scripts/check_prose, check_spelling and check_docs on pages that break a rule."""
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LONG = "This sentence " + "goes on and on " * 8 + "until nobody remembers how it began.\n"


class Prose(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hrm_prose_")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def check(self, name, text, *words):
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        said = subprocess.run([ROOT / "scripts/check_prose", "--root", self.root, *words, file], capture_output=True,
                              text=True)
        self.assertEqual(said.stderr, "")
        return said.returncode, said.stdout

    def test_good_page(self):
        self.assertEqual(self.check("a.md", "# A title\n\nA short sentence. Another one, with `code` in it.\n"), (0, ""))

    def test_lines(self):
        code, said = self.check("a.md", "Short. " * 20 + "\n")
        self.assertEqual(code, 1)
        self.assertIn("a.md:1: 140 columns", said)
        # Tables, code and links are as wide as they must be.
        wide = "x" * 130
        for text in (f"| {wide} |\n", f"```\n{wide}\n```\n", f"See [it](https://example.org/{wide}) there.\n"):
            self.assertEqual(self.check("a.md", text)[0], 0, text)

    def test_mean_sentence(self):
        code, said = self.check("a.md", "\n".join(LONG[i:i + 100] for i in range(0, len(LONG), 100)))
        self.assertEqual(code, 1)
        self.assertIn("the mean sentence has", said)
        # Comments are only reported.
        self.assertEqual(self.check("a.h", "// " + LONG[:100] + "\n")[0], 0)
        self.assertIn("1 sentences", self.check("a.h", "// This one is long enough to count.\n", "--report")[1])

    def test_sentences_are_told_apart(self):
        said = self.check("a.md", "First one here. `code` begins this one. See Fig. 3 of the paper, e.g. there.\n\n"
                          "- An item is a sentence\n- Another item is one, too\n", "--report")[1]
        self.assertIn("a.md: 5 sentences", said)

    def test_words(self):
        for name, text in (("a.md", "The step form is new.\n"), ("a.cu", "// Takes so many rows.\n")):
            code, said = self.check(name, text)
            self.assertEqual(code, 1, name)
            self.assertIn("write", said)
        self.assertEqual(self.check("a.md", "The key `so many` is code.\n")[0], 0)
        self.assertEqual(self.check("a.cu", 'const char* text = "so many";\n')[0], 0)

    def test_spelling(self):
        file = self.root / "a.md"
        file.write_text("This is teh page.\n")
        said = subprocess.run([ROOT / "scripts/check_spelling", file], capture_output=True, text=True)
        if "codespell is missing" in said.stderr:
            self.skipTest("codespell is missing")
        self.assertEqual(said.returncode, 4)
        self.assertIn("teh ==> the", said.stdout)

    def test_quoted_code(self):
        (self.root / "docs").mkdir()
        (self.root / "src").mkdir()
        (self.root / "src/a.cpp").write_text("int a = 1;  // one\nint b = 2;\n")
        for lines, code in (("int a = 1;\nint b = 2;", 0), ("int b = 2;\nint a = 1;", 1), ("int a = 2;", 1)):
            (self.root / "docs/a.md").write_text(f'# A\n\n```cpp title="src/a.cpp"\n{lines}\n```\n')
            said = subprocess.run([ROOT / "scripts/check_docs", self.root], capture_output=True, text=True)
            self.assertEqual(said.returncode, code, said.stdout)
        (self.root / "docs/a.md").write_text('# A\n\n```cpp title="src/b.cpp"\nint a = 1;\n```\n')
        said = subprocess.run([ROOT / "scripts/check_docs", self.root], capture_output=True, text=True)
        self.assertIn("src/b.cpp does not exist", said.stdout)


class Sizes(unittest.TestCase):
    """Pages that a newcomer reads stay short."""

    def lines(self, name):
        return (ROOT / name).read_text(encoding="utf-8").splitlines()

    def test_readme(self):
        lines = self.lines("README.md")
        self.assertLessEqual(len(lines), 150)
        self.assertLessEqual(len(" ".join(lines).split()), 1300)
        first = next(i for i, line in enumerate(lines, 1) if line.startswith("hrm_train train"))
        self.assertLessEqual(first, 40)

    def test_pages(self):
        self.assertLess(len(self.lines("docs/architecture.md")), 200)
        self.assertLess(len(self.lines("docs/benchmarks.md")), 300)


if __name__ == "__main__":
    unittest.main()
