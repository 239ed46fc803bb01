#!/usr/bin/env python3
"""The man page, the generated pages and the completion scripts of hrm_train: reference_test.py PROGRAM

Only Python's standard library is used. Checks that need zsh, fish or groff are skipped where these are missing.
"""
import functools
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/bin/hrm_train"


@functools.cache  # a start loads LibTorch: half a second
def run(*words):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=60, check=True).stdout


def options_of_help(words):
    columns = re.findall(r"^  ((?:-\w,)?--[\w,-]+)", run(*words, "--help"), re.MULTILINE)
    return {name for column in columns for name in column.split(",") if name.startswith("--")} - {"--help-all"}


@functools.cache
def commands():
    """Words of every subcommand, by --help alone."""
    out, left = [], [()]
    while left:
        words = left.pop()
        out.append(words)
        block = run(*words, "--help").partition("\nSubcommands:\n")[2]
        left += [(*words, name) for name in re.findall(r"^  ([a-z]+) ", block, re.MULTILINE)]
    return sorted(out)


class Pages(unittest.TestCase):
    def test_pages_are_those_of_the_program(self):
        for name in ("cli", "config"):
            page = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
            self.assertEqual(page, run("reference", name), f"docs/{name}.md is out of date; run scripts/reference")

    def test_every_option_is_on_the_page_and_in_the_man_page(self):
        page, man = run("reference", "cli"), run("reference", "man")
        blocks = {block.split("`")[0]: block for block in re.split(r"^##+ `hrm_train ?", page, flags=re.MULTILINE)[1:]}
        found = commands()
        self.assertGreater(len(found), 25)
        for words in found:
            name = " ".join(words)
            self.assertIn(name, blocks)
            for option in options_of_help(words) - ({"--help"} if words else set()):
                self.assertIn(f"{option}", blocks[name], f"hrm_train {name} {option}")
                if words:
                    self.assertIn(option.replace("-", "\\-"), man)
            if words:
                self.assertIn(f".SS {name}\n", man)

    def test_every_key_is_on_the_page(self):
        page = run("reference", "config")
        keys = re.findall(r"^  ([a-z]\w*(?:\.\w+)?) {2,}", run("config", "--describe"), re.MULTILINE)
        self.assertGreater(len(keys), 200)
        for key in keys:
            self.assertIn(f"| `{key}` |", page)

    @unittest.skipUnless(shutil.which("groff"), "groff is missing")
    def test_man_page_has_no_warnings(self):
        result = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=run("reference", "man"), text=True,
                                capture_output=True)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_unknown_page(self):
        result = subprocess.run([PROGRAM, "reference", "nothing"], capture_output=True, text=True)
        self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), result.stderr)


class Bash(unittest.TestCase):
    def complete(self, line, wordbreaks=" \t\n\"'><=;|&(:"):
        script = ('COMP_WORDBREAKS="$3"; source "$1"; compopt() { :; }; COMP_LINE=$2 COMP_POINT=${#2}; _hrm_train; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        with tempfile.NamedTemporaryFile("w", suffix=".bash") as file:
            file.write(self.script)
            file.flush()
            said = subprocess.run(["bash", "-c", script, "-", file.name, line, wordbreaks], capture_output=True,
                                  text=True, cwd=ROOT, check=True)
        self.assertEqual(said.stderr, "")
        return set(said.stdout.split())

    @classmethod
    def setUpClass(cls):
        cls.script = run("completion", "bash")

    def test_subcommands(self):
        self.assertLessEqual({"train", "solve", "completion"}, self.complete("hrm_train "))
        self.assertEqual(self.complete("hrm_train tr"), {"train"})
        self.assertLessEqual({"sudoku", "tokenizer"}, self.complete("hrm_train data "))
        self.assertEqual(self.complete("hrm_train completion "), {"bash", "zsh", "fish"})

    def test_options_and_their_values(self):
        for words in commands():
            line = " ".join(("hrm_train", *words, "--"))
            self.assertEqual(self.complete(line) - {"--help-all", "--version", "--help"},
                             options_of_help(words) - {"--version", "--help"}, line)
        self.assertEqual(self.complete("hrm_train solve --weights "), {"auto", "raw", "ema"})
        self.assertEqual(self.complete("hrm_train train --config confi"), {"configs"})

    def test_keys_and_their_values(self):
        self.assertEqual(self.complete("hrm_train train --config x.json optim.lr"), {"optim.lr="})
        self.assertEqual(self.complete("hrm_train train optim.name=li"), {"lion"})
        self.assertEqual(self.complete("hrm_train train optim.name=li", wordbreaks=" "), {"optim.name=lion"})
        self.assertEqual(self.complete("hrm_train train runtime.cuda_graphs="), {"true", "false"})


class OtherShells(unittest.TestCase):
    @unittest.skipUnless(shutil.which("zsh"), "zsh is missing")
    def test_zsh_parses_it(self):
        result = subprocess.run(["zsh", "-n"], input=run("completion", "zsh"), text=True, capture_output=True)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    @unittest.skipUnless(shutil.which("fish"), "fish is missing")
    def test_fish_completes(self):
        with tempfile.NamedTemporaryFile("w", suffix=".fish") as file:
            file.write(run("completion", "fish"))
            file.flush()
            said = subprocess.run(["fish", "--no-config", "-c", f"source {file.name}; complete -C 'hrm_train train optim.name=a'; "
                                   "complete -C 'hrm_train data su'; complete -C 'hrm_train solve --weights e'"],
                                  capture_output=True, text=True, cwd=ROOT)
        self.assertEqual(said.stderr, "")
        words = {line.split("\t")[0] for line in said.stdout.splitlines()}
        self.assertLessEqual({"optim.name=adamw", "sudoku", "ema"}, words)

    def test_every_subcommand_and_option_is_named(self):
        for shell in ("zsh", "fish"):
            script = run("completion", shell)
            for words in commands():
                for option in options_of_help(words):
                    self.assertIn(f"-l {option[2:]}" if shell == "fish" else option, script)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
