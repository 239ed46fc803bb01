"""How the Python scripts read arguments and fail: one sentence and an exit code, as hrm_train does."""

import argparse
import math
import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
USAGE, MACHINE, DATA = 2, 3, 4  # exit codes: README


class Failure(Exception):
    """Ends the script: an exit code and one sentence for the user."""

    def __init__(self, code, sentence):
        super().__init__(sentence)
        self.code = code


class Parser(argparse.ArgumentParser):
    def __init__(self, doc):
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def error(self, message):
        self.exit(USAGE, f"error: {message}; see '{self.prog} --help'\n")


def number(kind, least, above=False):
    """Converter of an argument to a finite number that is at least `least`, or above it."""
    def convert(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not (value > least if above else value >= least):
            raise argparse.ArgumentTypeError(f"'{text}' is not a {'whole ' if kind is int else ''}number "
                                             f"{'above' if above else 'of at least'} {least}")
        return value
    return convert


def count(least=1):
    return number(int, least)


def regex(text):
    """Converter of an argument to a compiled regular expression."""
    try:
        return re.compile(text)
    except re.error as e:
        raise argparse.ArgumentTypeError(f"'{text}' is no regular expression: {e}") from None


def program(path):
    """The absolute path of a program that can be started."""
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        if os.sep in str(path) or shutil.which(path) is None:
            raise Failure(MACHINE, f"'{path}' is no program: build it first (scripts/build)")
        path = shutil.which(path)
    return str(pathlib.Path(path).resolve())


def need_torch():
    """The module, which only the environment of the project has for certain."""
    try:
        import torch
    except ImportError:
        raise Failure(MACHINE, "this Python has no torch; start the script with .venv/bin/python, or with another one "
                               "that has it") from None
    return torch


def checkout(path, name):
    """Whether `path` may be a checkout of the official code."""
    if not (path / "models").is_dir():
        raise Failure(DATA, f"{path} holds no folder 'models': it is no checkout of the official {name} code "
                            "(git clone makes one, see --help)")


def writable(path):
    """Fails before the work, not after it, where a result cannot be written."""
    if path is None:
        return
    folder = pathlib.Path(path).resolve().parent
    if pathlib.Path(path).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "it is a folder" if pathlib.Path(path).is_dir() else "no permission" if folder.is_dir() else \
            f"there is no folder '{folder}'"
        raise Failure(MACHINE, f"cannot write '{path}': {why}")


def run(main):
    """Ends the process with what main() returns, or with its failure."""
    try:
        code = main()
        sys.stdout.flush()
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        code = failure.code
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = MACHINE
    except OSError as error:
        print(f"error: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        code = MACHINE
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
