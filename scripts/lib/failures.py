"""What failed in ctest's last run, in a few lines each: python3 failures.py BUILD_FOLDER.

Of a program with GoogleTest its failed cases, each with where and what its first failed check was; of Python's unittest the
same; of anything else the end of what it printed. All output is in BUILD_FOLDER/Testing/Temporary/LastTest.log.
"""

import pathlib
import re
import sys

CASES, LINES = 6, 6  # the most of a program, of a case


def outputs(log):
    """What each test printed, by name."""
    found = {}
    for part in re.split(r"^\d+/\d+ Test: ", log, flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        found[name] = rest.partition("\nOutput:\n")[2].partition("\n")[2].partition("<end of output>")[0]
    return found


def google_cases(lines):
    """[(case, lines of its first failure)], in order; a case that ended the program has no closing line of its own."""
    cases, case, failure, inside = [], None, [], False
    for line in lines:
        mark = re.match(r"\[ *(RUN|OK|FAILED|SKIPPED) *\] ([^\s,]+)", line)
        if mark:
            if mark[1] == "RUN":
                case, failure = mark[2], []
            elif mark[1] == "FAILED" and case == mark[2]:
                cases.append((case, failure))
                case = None
            else:
                case = None
            inside = False
        elif case and not failure and (at := re.match(r"(\S+:\d+): Failure$", line)):
            failure, inside = [at[1]], True
        elif inside and line.strip():
            failure.append(line.strip())
            inside = len(failure) < LINES
        else:
            inside = False
    return cases + ([(case, failure or ["not at its end"])] if case else [])


def unittest_cases(lines):
    """[(case, [where, error])]"""
    cases = []
    for i, line in enumerate(lines):
        if not re.match(r"(FAIL|ERROR): ", line):
            continue
        block = []
        for text in lines[i + 2:]:
            if text.startswith(("=" * 70, "-" * 70)):
                break
            block.append(text)
        where = [text.strip() for text in block if text.startswith("  File ")]
        error = [text for text in block if re.match(r"[\w.]+(Error|Exception|Failure|Expired)\b", text)]
        cases.append((line.partition(": ")[2], where[-1:] + error[-1:]))
    return cases


def summary(folder):
    folder = pathlib.Path(folder, "Testing", "Temporary")
    try:
        failed = (folder / "LastTestsFailed.log").read_text().split()
        printed = outputs((folder / "LastTest.log").read_text(errors="replace"))
    except OSError:
        return []  # ctest ended before a test began, and has said why
    out = []
    for name in (entry.partition(":")[2] for entry in failed):
        lines = printed.get(name, "").splitlines()
        cases = google_cases(lines) + unittest_cases(lines)
        out.append(f"== failed: {name}")
        for case, failure in cases[:CASES]:
            out += [f"  {case}", *(f"    {line}" for line in failure)]
        if len(cases) > CASES:
            out.append(f"  and {len(cases) - CASES} more")
        if not cases:
            out += [f"    {line}" for line in lines if line.strip()][-LINES:]
    return out


if __name__ == "__main__":
    for line in summary(sys.argv[1]):
        print(line)
