"""Mends a virtual environment that was moved or copied: python3 mend_venv.py VENV

The programs and activation scripts in VENV/bin hold its absolute path. Where that is another one, it is replaced, and
printed. pyvenv.cfg stays: Python finds it by itself, and the stamps of the set-up depend on it.
"""

import os
import pathlib
import re
import shutil
import sys

# What `python -m venv` and pip write: VIRTUAL_ENV=..., #!.../bin/python, '''exec' .../bin/python for long paths.
PLACES = (("activate", rb"VIRTUAL_ENV=[\"']?(/[^\"'\n]*)"), ("pip*", rb"(?:^#!|^'''exec' \"?)(/.*)/bin/python"))


def old_paths(folder, own):
    found = set()
    for pattern, place in PLACES:
        for file in folder.glob(pattern):
            found |= set(re.findall(place, file.read_bytes(), flags=re.MULTILINE))
    # A link may lead here by another path, which is as good.
    return {old for old in found if os.path.realpath(old) != os.path.realpath(own)}


def replace(file, old, new):
    data = file.read_bytes()
    # Not inside of a longer path, whose end or beginning it may be.
    mended = re.sub(rb"(?<=[!\"' =(])" + re.escape(old) + rb"(?=[/\"'\s)])", lambda _: new, data)
    if mended != data and b"\0" not in data:
        part = file.with_name(f".{file.name}.part")
        part.write_bytes(mended)
        shutil.copymode(file, part)
        os.replace(part, file)


def main():
    venv = pathlib.Path(sys.argv[1])
    new = os.fsencode(venv)
    for old in old_paths(venv / "bin", new):
        # activate last: after an interruption it still tells the old path.
        for file in sorted((venv / "bin").iterdir(), key=lambda file: file.name == "activate"):
            if file.is_file() and not file.is_symlink():
                replace(file, old, new)
        print(os.fsdecode(old))


if __name__ == "__main__":
    main()
