"""Programs that see another root folder and none of this machine's files, libraries or environment: for the checks of
the archive. Only Python's standard library is used."""

import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

_ENTERED = "HRM_PRIVATE_MOUNTS"
LIBRARY_FOLDERS = ("/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib")
# What hrm_train may take from the system: the C library and the dynamic loader.
OF_THE_SYSTEM = re.compile(r"^(ld-linux-x86-64|lib(c|m|dl|rt|pthread|util))\.so\.\d+$|^linux-vdso\.so\.1$")
# hrm_sudoku17 made small enough for a CPU.
SMOKE = ["model.hidden_size=64", "model.num_heads=2", "model.H_layers=1", "model.L_layers=1", "model.halt_max_steps=2",
         "train.global_batch_size=16", "train.steps=2", "train.log_every=1", "train.eval_every=0",
         "optim.warmup_steps=0", "eval.max_samples=16", "runtime.device=cpu"]


def enter_private_mounts():
    """Starts this script again where mounts are its own and end with it. False where the system does not permit that."""
    if os.environ.get(_ENTERED):
        return True
    line = ["unshare", "--mount", "--propagation", "private", *([] if os.getuid() == 0 else ["--map-root-user"])]
    if not shutil.which("unshare") or subprocess.run([*line, "true"], capture_output=True).returncode != 0:
        return False
    os.environ[_ENTERED] = "1"
    os.execvp(line[0], [*line, sys.executable, *sys.argv])


class Root:
    """A folder as the root of processes, after enter_private_mounts(); "/" is this machine's own, and needs nothing."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        if self.folder == pathlib.Path("/"):
            return
        for name in ("proc", "dev", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)
        subprocess.run(["mount", "--rbind", "/proc", self.folder / "proc"], check=True)

    def bind(self, source, place):
        """Shows a folder of this machine at `place`, read-only."""
        target = self.folder / place.lstrip("/")
        target.mkdir(parents=True)
        subprocess.run(["mount", "--bind", source, target], check=True)
        # Flags that the mount has already must stay, where the user is no real root.
        subprocess.run(["mount", "-o", "remount,bind,ro", target], capture_output=True)

    def start(self, *line, folder="/", env=None, **options):
        """A process with this root and no environment but `env`."""
        def enter():
            if self.folder != pathlib.Path("/"):
                os.chroot(self.folder)
            os.chdir(folder)
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(line, env=env or {}, preexec_fn=enter, text=True, **options)

    def run(self, *line, text=None, **options):
        """`text`: its stdin."""
        if text is not None:
            options["stdin"] = subprocess.PIPE
        process = self.start(*line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        out, err = process.communicate(text, timeout=600)
        return subprocess.CompletedProcess(line, process.returncode, out, err)


def root_of_the_c_library(folder):
    """A new root that holds the C library, the loader and nothing else."""
    folder = pathlib.Path(folder)
    for place in LIBRARY_FOLDERS[:2]:
        (folder / place.lstrip("/")).mkdir(parents=True)
    for name in ("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0",
                 "libutil.so.1"):
        source = next(file for file in (pathlib.Path(place, name) for place in LIBRARY_FOLDERS) if file.exists())
        place = LIBRARY_FOLDERS[1] if name.startswith("ld-") else LIBRARY_FOLDERS[0]
        shutil.copy(source, folder / place.lstrip("/") / name)
    return Root(folder)


def problems_of_loading(root, prefix):
    """Sentences about libraries that the program at `prefix` takes from outside of it, or does not find."""
    binary = f"{prefix}/bin/hrm_train"
    traced = root.run(binary, env={"LD_TRACE_LOADED_OBJECTS": "1"})
    out = []
    found = re.findall(r"^\s*(\S+)(?: => (.+?))?(?: \(0x[0-9a-f]+\))?$", traced.stdout, re.MULTILINE)
    if not any(name.startswith("libtorch_cpu") for name, _ in found):
        out.append(f"the loader says\n{traced.stdout}{traced.stderr}")
    for name, path in found:
        name = pathlib.Path(name).name
        if not path.startswith(f"{prefix}/") and not OF_THE_SYSTEM.match(name):
            out.append(f"{name} comes from '{path or name}'")
    # What is opened by name later, and all that it needs, in one go. The driver's library is no part of an archive.
    packed = [f"{prefix}/{file.relative_to(root.folder / prefix.lstrip('/'))}"
              for file in sorted((root.folder / prefix.lstrip("/") / "lib").rglob("*.so*"))]
    packed = [file for file in packed if "libcaffe2_nvrtc" not in file]
    loaded = root.run(binary, "--version", env={"LD_PRELOAD": ":".join(packed)})
    if loaded.returncode != 0 or loaded.stderr:
        out.append(f"with all packed libraries loaded it says\n{loaded.stderr}")
    return out


def problems_of_models(root, prefix):
    """Sentences about trained models of the program at `prefix` that do not solve the puzzles of their cards."""
    models = root.folder / prefix.lstrip("/") / "share/hrm_train/checkpoints"
    out, solved = [], 0
    for card in sorted(models.glob("*/README.md")):
        for puzzle, name in re.findall(r"^echo (\S+) \| hrm_train solve --checkpoint checkpoints/(\w+)",
                                       card.read_text(encoding="utf-8"), re.MULTILINE):
            result = root.run(f"{prefix}/bin/hrm_train", "solve", "--checkpoint", f"checkpoints/{name}",
                              folder=f"{prefix}/share/hrm_train", text=puzzle + "\n")
            if result.returncode != 0 or not result.stdout.endswith("\tvalid\n"):
                out.append(f"solving with {name} ended with {result.returncode}\n{result.stdout}{result.stderr}")
            solved += 1
    return out if solved else [f"{models} holds no model whose card shows a puzzle"]


def seconds_of(root, line, until=None, folder="/"):
    """From the start of a process to its end, or to the first line of its output with `until` in it."""
    began = time.monotonic()
    process = root.start(*line, folder=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, took = "", None
    for text in process.stdout:
        said += text
        if until and took is None and until in text:
            took = time.monotonic() - began
    code = process.wait()
    if until is None:
        took = time.monotonic() - began
    if code != 0 or took is None:
        raise RuntimeError(f"{' '.join(line)} ended with code {code}\n{said}")
    return took


def smoke_line(prefix, run_dir, name):
    return [f"{prefix}/bin/hrm_train", "train", "--config", "configs/puzzle/hrm_sudoku17.json", f"run.dir={run_dir}",
            f"run.name={name}", *SMOKE]


def start_up(root, prefix, share, runs):
    """Median seconds: `--version`, and from the start of a small training to its first step."""
    version = [seconds_of(root, [f"{prefix}/bin/hrm_train", "--version"]) for _ in range(runs)]
    step = [seconds_of(root, smoke_line(prefix, "/tmp/runs", f"start{i}"), until="step 1/", folder=share)
            for i in range(runs)]
    return statistics.median(version), statistics.median(step)
