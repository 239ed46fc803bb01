#!/usr/bin/env python3
"""Installs the build into a folder and runs it where nothing else is.

    tests/package/install.py --build build [--work DIR]

The folder is shown, read-only and at another place, in a root that holds the C library alone: no build tree, no Python
environment, no libraries of the system, an empty environment. There the program says its version, examines the machine,
solves a puzzle with each installed model, and trains two steps of an installed configuration. Where mounts are not
permitted, the same without another root: then only what it loads is checked. Only Python's standard library is used.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/lib"))
import clean_root  # noqa: E402


def fail(text):
    sys.exit(f"FAILED: {text}")


def check(condition, text):
    if not condition:
        fail(text)


def search_paths(file):
    """(kind, path) of each search path that an ELF file carries."""
    said = subprocess.run(["readelf", "-d", "-W", file], check=True, capture_output=True, text=True).stdout
    return [(kind, path) for kind, paths in re.findall(r"\((RPATH|RUNPATH)\).*\[(.*)\]", said) for path in paths.split(":")]


def check_files(prefix):
    """What is where, before anything runs."""
    for name in ("bin/hrm_train", "share/hrm_train/configs/puzzle/hrm_sudoku17.json",
                 "share/hrm_train/data/sudoku/train_17clue_1k.csv",
                 "share/hrm_train/data/digits/train/inputs.npy", "share/doc/hrm_train/LICENSE",
                 "share/doc/hrm_train/docs/quickstart.md", "share/man/man1/hrm_train.1",
                 "share/bash-completion/completions/hrm_train", "share/zsh/site-functions/_hrm_train",
                 "share/fish/vendor_completions.d/hrm_train.fish"):
        check((prefix / name).is_file(), f"{name} was not installed")
    for card in (ROOT / "checkpoints").glob("*/README.md"):
        for file in card.parent.iterdir():
            check((prefix / "share/hrm_train" / file.relative_to(ROOT)).is_file(), f"{file} was not installed")
        check((prefix / "share/doc/hrm_train" / card.relative_to(ROOT)).is_file(), f"{card} is not among the pages")
    example = prefix / "share/hrm_train/examples/train.sbatch"
    check(os.access(example, os.X_OK), f"{example} cannot be started")

    program = search_paths(prefix / "bin/hrm_train")
    check(program and all(kind == "RPATH" and path.startswith("$ORIGIN/../lib") for kind, path in program),
          f"the program searches {program}")
    linking = subprocess.run([sys.executable, ROOT / "tests/repo/check_linking.py", prefix / "bin/hrm_train"],
                             capture_output=True, text=True)
    check(linking.returncode == 0, linking.stdout + linking.stderr)

    # Each library is named with its package, and each package has its licence.
    texts = prefix / "share/doc/hrm_train/licenses"
    table = dict(line.split("\t") for line in (texts / "LIBRARIES.txt").read_text().splitlines())
    packed = {str(file.relative_to(prefix)) for file in (prefix / "lib").rglob("*") if file.is_file()}
    check(packed == {name for name in table if name.startswith("lib/")},
          f"LIBRARIES.txt and lib/ differ: {sorted(packed ^ set(table))}")
    for name, package in table.items():
        folder = texts / re.sub(r"[^A-Za-z0-9.+_-]", "_", package.replace(" ", "-"))
        check(folder.is_dir() and any(folder.iterdir()), f"{name} is from '{package}', of which there is no licence")
    names = {pathlib.Path(name).name.split(".so")[0] for name in packed}
    if "libtorch_cuda" in names:
        opened = {"libcudnn_graph", "libcudnn_engines_precompiled", "libnvrtc", "libnvrtc-builtins", "libcaffe2_nvrtc"}
        check(opened <= names, f"opened by name, but not packed: {sorted(opened - names)}")
    for name in packed:
        check(not clean_root.OF_THE_SYSTEM.match(pathlib.Path(name).name), f"{name} belongs to the system")
    size = sum(file.stat().st_size for file in prefix.rglob("*") if file.is_file())
    print(f"{len(packed)} libraries of {len(set(table.values()))} packages, {size / 2**20:.0f} MiB", flush=True)


def run_it(root, prefix, scratch):
    """The program at `prefix` of `root`, as users start it."""
    share = f"{prefix}/share/hrm_train"
    version = root.run(f"{prefix}/bin/hrm_train", "--version")
    check(version.returncode == 0 and version.stdout.startswith("hrm_train ") and not version.stderr,
          f"--version ended with {version.returncode}\n{version.stdout}{version.stderr}")
    problems = clean_root.problems_of_loading(root, prefix) + clean_root.problems_of_models(root, prefix)
    check(not problems, "\n".join(problems))
    doctor = root.run(f"{prefix}/bin/hrm_train", "doctor", folder=share)
    check(doctor.returncode == 0, f"doctor ended with {doctor.returncode}\n{doctor.stdout}{doctor.stderr}")
    train = root.run(*clean_root.smoke_line(prefix, scratch, "smoke"), folder=share)
    check(train.returncode == 0 and "finished 2 steps" in train.stdout + train.stderr,
          f"training ended with {train.returncode}\n{train.stdout}{train.stderr}")


def check_installed(build, work, private):
    prefix = work / "prefix"
    done = subprocess.run(["cmake", "--install", build, "--prefix", prefix], stdin=subprocess.DEVNULL,
                          env={**os.environ, "HRM_INSTALL_HARD_LINKS": "1"}, capture_output=True, text=True)
    check(done.returncode == 0, f"cmake --install ended with {done.returncode}\n{done.stdout}{done.stderr}")
    check_files(prefix)

    if private:
        # On a file system of its own: nothing of it is left, however this ends.
        place = work / "root"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
        root = clean_root.root_of_the_c_library(place)
        root.bind(prefix, "/opt/hrm_train")
        run_it(root, "/opt/hrm_train", "/tmp/runs")
        print("ran with the C library alone")
    else:
        run_it(clean_root.Root("/"), str(prefix), str(work / "runs"))
        print("mounts are not permitted here: ran on this machine, with its own libraries alone")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--work", default="", help="folder to install to (default: a temporary one)")
    args = parser.parse_args()
    private = clean_root.enter_private_mounts()
    work = pathlib.Path(args.work or tempfile.mkdtemp(prefix="hrm_install_")).resolve()
    shutil.rmtree(work, ignore_errors=True)
    try:
        check_installed(args.build, work, private)
    finally:
        if private:
            # With all that is mounted in it, which must not be walked through.
            subprocess.run(["umount", "--lazy", work / "root"], stderr=subprocess.DEVNULL)
        if not os.path.ismount(work / "root"):
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
