"""What ninja and ctest recorded in a build folder: the seconds of each compilation, link, ctest entry and gtest case."""

import dataclasses
import os
import pathlib
import re

import command

SOURCES, TESTS, CUDA, LINK, OTHER = "C++ sources", "C++ tests", "CUDA", "link", "other"
KINDS = (SOURCES, TESTS, CUDA, LINK, OTHER)
ARCHITECTURE = re.compile(r"arch=compute_(\w+)")


@dataclasses.dataclass(frozen=True)
class Step:
    """One command of the build."""

    name: str  # the source file, or the output of a link
    module: str
    kind: str
    architectures: tuple  # of a CUDA file
    seconds: float


def _words(text):
    """The paths of a build statement; $ escapes spaces, colons and itself."""
    return [re.sub(r"\$(.)", r"\1", word) for word in re.findall(r"(?:\$.|[^\s$])+", text)]


def _target(output):
    """(name of the CMake target without prefixes, whether it is part of a test program)"""
    folder = re.search(r"CMakeFiles/([^/]+)\.dir/", output)
    name = folder[1] if folder else pathlib.PurePath(output).stem.removeprefix("lib")
    test = name.startswith(("test_", "hrm_test"))
    return name.removeprefix("hrmlib_").removesuffix("_objects").removeprefix("test_"), test


def _short(path, folder):
    """Relative to the project where the file is inside."""
    path = os.path.normpath(folder / path)
    return os.path.relpath(path, command.ROOT) if path.startswith(f"{command.ROOT}{os.sep}") else path


def read_statements(folder):
    """{output: (statement number, rule, first input, flags)} of build.ninja"""
    try:
        text = (folder / "build.ninja").read_text(errors="surrogateescape")
    except FileNotFoundError:
        raise command.Failure(command.MACHINE, f"'{folder}' is no build folder of ninja: build first (scripts/build), or "
                                               "name another one with --build") from None
    statements, outputs, number = {}, [], 0
    for line in text.split("\n"):
        if (found := re.match(r"build ((?:\$.|[^:$])+): (\S+)(.*)", line)):
            number += 1
            outputs = [word for word in _words(found[1]) if word != "|"]
            inputs = _words(found[3])
            for output in outputs:
                statements[output] = (number, found[2], inputs[0] if inputs else "", "")
        elif outputs and line.startswith("  FLAGS = "):
            for output in outputs:
                statements[output] = statements[output][:3] + (line,)
    return statements


def read_log(folder):
    """{output: fields of its last entry} of .ninja_log"""
    file = folder / ".ninja_log"
    try:
        lines = file.read_text(errors="surrogateescape").split("\n")
    except FileNotFoundError:
        raise command.Failure(command.MACHINE, f"nothing has been built in '{folder}' yet; run scripts/build") from None
    version = re.fullmatch(r"# ninja log v(\d+)", lines[0])
    if not version or int(version[1]) < 5:
        raise command.Failure(command.DATA, f"'{file}' is no log of ninja 1.5 or newer; remove it and build again")
    entries = {}
    for number, line in enumerate(lines[1:-1], 2):  # what follows the last line break was cut off while it was written
        fields = line.split("\t")
        if len(fields) != 5 or not (fields[0].isdecimal() and fields[1].isdecimal()):
            raise command.Failure(command.DATA, f"'{file}' is damaged in line {number}; remove it and build again")
        entries[fields[3]] = tuple(fields)
    return entries


def steps(folder, before=None):
    """The last run of each command of the build; with `before`, an earlier read_log, only those run since."""
    statements, entries = read_statements(folder), read_log(folder)
    modules = {_target(output)[0] for output in statements if "CMakeFiles/hrmlib_" in output}
    found = {}  # a statement with several outputs has an entry for each
    for output, fields in entries.items():
        if output not in statements or (before is not None and before.get(output) == fields):
            continue
        number, rule, source, flags = statements[output]
        name, test = _target(output)
        # test_ops_gpu and the like count for ops.
        module = next((m for m in sorted(modules, key=len, reverse=True) if name == m or name.startswith(m + "_")), name)
        compiles = "_COMPILER_" in rule
        kind = (CUDA if rule.startswith("CUDA") else TESTS if test else SOURCES) if compiles else \
            LINK if "_LINKER_" in rule else OTHER
        found[number] = Step(_short(source if compiles else output, folder), module if kind != OTHER else "no module", kind,
                             tuple(sorted(set(ARCHITECTURE.findall(flags)))) if kind == CUDA else (),
                             (int(fields[1]) - int(fields[0])) / 1e3)
    return list(found.values())


def tests(folder):
    """([(seconds, ctest entry)], [(seconds, "entry: gtest case")]) of the last run of ctest, None where there was none."""
    try:
        log = (folder / "Testing" / "Temporary" / "LastTest.log").read_text(errors="replace")
    except FileNotFoundError:
        return None
    entries, cases = [], []
    for part in re.split(r"^\d+/\d+ Test: ", log, flags=re.MULTILINE)[1:]:
        name = part.partition("\n")[0]
        time = re.search(r"^Test time = +([\d.]+) sec$", part, flags=re.MULTILINE)
        if time:
            entries.append((float(time[1]), name))
        for case in re.finditer(r"^\[ +(?:OK|FAILED) +\] ([^\s,]+)(?:, where .*)? \((\d+) ms\)$", part, flags=re.MULTILINE):
            cases.append((int(case[2]) / 1e3, f"{name}: {case[1]}"))
    return entries, cases
