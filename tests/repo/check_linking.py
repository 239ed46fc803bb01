#!/usr/bin/env python3
"""Checks how a program is linked: check_linking.py PROGRAM

libtorch_cpu.so exports std::filesystem symbols of its own, built with another C++ library: a program that binds to them
crashes. So libstdc++ must come before torch among the needed libraries, and every std::filesystem symbol must carry
the version that only libstdc++ gives it.
"""

import re
import subprocess
import sys


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    program = sys.argv[1]
    problems = []

    needed = re.findall(r"\(NEEDED\).*\[(.+?)\]", run("readelf", "-d", "-W", program))
    order = [name for name in needed if name.startswith(("libstdc++.so", "libtorch_cpu.so"))]
    if [name.split(".so")[0] for name in order] != ["libstdc++", "libtorch_cpu"]:
        problems.append(f"libstdc++ must be needed before libtorch_cpu; the order is {needed}")

    undefined = [line.split()[-1] for line in run("nm", "-D", "--undefined-only", program).splitlines()]
    filesystem = [symbol for symbol in undefined if "St10filesystem" in symbol]
    if not filesystem:
        problems.append("no std::filesystem symbol found: is this the right program?")
    for symbol in filesystem:
        if "@GLIBCXX_" not in symbol:
            problems.append(f"{symbol} is not bound to libstdc++")

    missing = [line.strip() for line in run("ldd", program).splitlines() if "not found" in line]
    problems += [f"needs a library that is not there: {line}" for line in missing]

    for problem in problems:
        print(f"{program}: {problem}")
    print(f"check_linking: {len(needed)} libraries, {len(filesystem)} std::filesystem symbols, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
