#!/usr/bin/env python3
"""The examples for several ranks, as far as one machine allows: two ranks on its CPU, stopped or killed, and gone on with.

    tests/package/examples.py --binary build/bin/hrm_train sbatch|torchrun|mpirun [--work DIR]

sbatch     examples/train.sbatch with stand-ins for srun (two local tasks with Slurm's variables, the highest exit code)
           and scontrol: at its time limit it is queued again and finishes; so too when a rank is killed, but not for ever;
           not when the configuration is wrong
torchrun   a rank is killed: torchrun starts all again, and they finish
mpirun     SIGTERM saves, with code 75; the same command finishes

Exit code 77: this launcher is not installed. Only Python's standard library is used.
"""
import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/ranks"))
import ranks  # noqa: E402
from ranks import check, fail  # noqa: E402

# Starts two tasks of its command, as srun would, and ends with their highest code. STUB_SIGNAL="TERM all 'step 5/'" sends
# a signal to all tasks, or to the last one, when the first one has printed that text.
SRUN = r'''#!/usr/bin/env python3
import os, shlex, signal, subprocess, sys
command = sys.argv[1:]
while command[0].startswith("--"):
    command.pop(0)
number, victims, text = shlex.split(os.environ["STUB_SIGNAL"]) or ("", "", "")
slurm = dict(SLURM_STEP_ID="0", SLURM_NTASKS="2", SLURM_NNODES="1", SLURM_NODEID="0", SLURM_TASKS_PER_NODE="2",
             SLURM_JOB_NODELIST="localhost")
tasks = [subprocess.Popen(command, env={**os.environ, **slurm, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)},
                          stdout=subprocess.PIPE if i == 0 else None, stderr=subprocess.STDOUT, text=True) for i in (0, 1)]
for line in tasks[0].stdout:
    print(line, end="", flush=True)
    if text and text in line:
        for task in tasks if victims == "all" else tasks[1:]:
            task.send_signal(getattr(signal, f"SIG{number}"))
        text = ""
codes = [task.wait() for task in tasks]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
'''


class Example:
    def __init__(self, args):
        self.work = pathlib.Path(args.work or tempfile.mkdtemp(prefix="hrm_examples_")).resolve()
        shutil.rmtree(self.work, ignore_errors=True)
        (self.work / "bin").mkdir(parents=True)
        self.binary = str(pathlib.Path(args.binary).resolve())

    def stand_in(self, name, text):
        file = self.work / "bin" / name
        file.write_text(text)
        file.chmod(0o755)

    def start(self, script, more=(), **env):
        """The example as a process, its output in a file; the run is always the same one."""
        self.output = self.work / f"output_{len(list(self.work.glob('output_*')))}.txt"
        line = [ROOT / "examples" / script, f"run.dir={self.work}", "run.name=run", *ranks.small(self.work), "runtime.device=cpu", *more]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        with open(self.output, "w") as out:
            return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.work,
                                    env={**clean, "HRM_TRAIN": self.binary, "RANKS": "2", "OMP_NUM_THREADS": "1", **env,
                                         "PATH": f"{self.work}/bin:{ROOT}/.venv/bin:{os.environ['PATH']}"})

    def ends(self, process, code, *parts, seconds=120):
        try:
            got = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            got = "no end"
        said = self.output.read_text()
        check(got == code, f"ended with {got}, not {code}\n{said}")
        for part in parts:
            check(part in said, f"does not say '{part}'\n{said}")
        return said

    def until(self, process, done, what, seconds=60):
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end or process.poll() is not None:
                process.kill()
                fail(f"{what} never came\n{self.output.read_text()}")
            time.sleep(0.01)

    def when(self, process, text):
        self.until(process, lambda: text in self.output.read_text(), f"'{text}'")

    def when_there(self, process, pattern):
        self.until(process, lambda: any(self.work.glob(pattern)), pattern)

    def sbatch(self):
        self.stand_in("srun", SRUN)
        calls = self.work / "scontrol.txt"
        self.stand_in("scontrol", f'#!/bin/sh\necho "$@" >> {calls}\n')

        def job(code, queued, *parts, stop="", more=()):
            calls.unlink(missing_ok=True)
            process = self.start("train.sbatch", more, SLURM_JOB_ID="42", HRM_MOST_LOST="1", STUB_SIGNAL=stop)
            self.ends(process, code, *parts)
            asked = calls.read_text().splitlines() if calls.exists() else []
            check(asked == (["requeue 42"] if queued else []), f"scontrol was asked for {asked}\n{self.output.read_text()}")

        job(75, True, "of 2 by srun", stop="TERM all 'step 3/24'")
        job(137, True, "resumed", "loss 1 of 1", stop="KILL last 'step 11/24'")
        job(137, False, "resumed", "not queued again", stop="KILL last 'step 14/24'")
        job(0, False, "resumed", "finished 24 steps")
        check(not list(self.work.glob("*.lost")), "the count of losses is left behind")
        job(2, False, "a restart would not change", more=["optim.lr=fast"])
        print("train.sbatch: stopped, queued again, killed, queued again, killed too often, finished")

    def torchrun(self):
        if subprocess.run(["torchrun", "--help"], capture_output=True, env={**os.environ, "PATH":
                          f"{ROOT}/.venv/bin:{os.environ['PATH']}"}).returncode != 0:
            print("torchrun is not installed")
            sys.exit(77)
        process = self.start("torchrun.sh")
        self.when(process, "step 8/24")
        self.when_there(process, "run/checkpoints/step-*/manifest.json")  # written beside the steps that follow
        os.kill(self.tasks()[-1], signal.SIGKILL)
        self.ends(process, 0, "of 2 by torchrun", "resumed", "finished 24 steps")
        print("torchrun.sh: a rank killed, all started again, finished")

    def mpirun(self):
        if not shutil.which("mpirun"):
            print("mpirun is not installed")
            sys.exit(77)
        # Root in a container, and more ranks than cores.
        here = dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
        process = self.start("mpirun.sh", **here)
        self.when(process, "step 10/24")
        process.send_signal(signal.SIGTERM)
        self.ends(process, 75, "of 2 by mpirun", "start it again to resume")
        self.ends(self.start("mpirun.sh", **here), 0, "resumed", "finished 24 steps")
        early = self.start("mpirun.sh", **here)
        time.sleep(0.3)
        early.send_signal(signal.SIGTERM)
        early.wait(60)
        check(not self.tasks(), "a SIGTERM at the start leaves ranks running")
        print("mpirun.sh: stopped, gone on with, finished")

    def tasks(self):
        """The ranks that run, by their program."""
        out = []
        for folder in pathlib.Path("/proc").iterdir():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if folder.name.isdigit() and words[0] == self.binary.encode() and f"run.dir={self.work}".encode() in words:
                out.append(int(folder.name))
        return sorted(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--work", default="", help="folder for the runs (default: a temporary one, removed afterwards)")
    parser.add_argument("example", choices=["sbatch", "torchrun", "mpirun"])
    args = parser.parse_args()
    example = Example(args)
    getattr(example, args.example)()
    if not args.work:
        shutil.rmtree(example.work)


if __name__ == "__main__":
    main()
