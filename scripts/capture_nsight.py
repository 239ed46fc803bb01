#!/usr/bin/env python3
"""Profiles some steps of hrm_train with Nsight and keeps what is needed to understand the result later.

    scripts/capture_nsight.py --mode systems -- build/bin/hrm_train bench step --config configs/puzzle/hrm_sudoku17.json
    scripts/capture_nsight.py --mode both --steps 3 -- build/bin/hrm_train train --config ... run.name=first

--mode systems records a timeline (nsys), --mode compute the counters of every kernel of one step (ncu), both does one
after the other. Only a window of steps after the warm-up is recorded. A run of `train` stops after its window; its run
folder is inside the output folder unless run.dir is given.

The output folder gets the reports (*.nsys-rep, *.ncu-rep) and their exports, config.json (the resolved configuration),
environment.json (commit, GPU, driver, versions, command lines), the program's output, hotspots.md, a digest, and
roofline.svg, a picture of its kernels against the GPU's limits. With systems it also gets nvtx_gpu_proj_sum.csv, the GPU
time by NVTX range as nsys counts it.
"""
import argparse
import datetime
import json
import pathlib
import shlex
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import command as cli  # noqa: E402
import hotspots  # noqa: E402
import kernel_counters  # noqa: E402
import kernel_profile  # noqa: E402
import roofline  # noqa: E402

ROOT = kernel_profile.ROOT
STOPPED = 75  # exit code of a run of `train` that stopped after its window

# The program, and where people get it.
TOOLS = {
    "systems": ("nsys", "Nsight Systems", "https://developer.nvidia.com/nsight-systems"),
    "compute": ("ncu", "Nsight Compute", "https://developer.nvidia.com/nsight-compute"),
}
NO_COUNTERS = "ERR_NVGPUCTRPERM"  # in what ncu prints where a driver keeps counters for administrators
LAUNCH_FAILED = "LaunchFailed"  # the same where ncu could not run a kernel by itself, as it does with those of a graph
EAGER = "runtime.cuda_graphs=false"


def say(text):
    print(f"== {text}", file=sys.stderr, flush=True)


def output_of(*command):
    """First-hand facts for environment.json; empty where the program is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def split_command(command):
    """(program, subcommand words, rest) of `hrm_train train ...` or `hrm_train bench step ...`."""
    if not command:
        raise cli.Failure(cli.USAGE, "give the command to profile behind --, e.g. -- build/bin/hrm_train bench step --config FILE")
    if command[1:2] == ["train"]:
        return command[0], ["train"], command[2:]
    if command[1:3] == ["bench", "step"]:
        return command[0], ["bench", "step"], command[3:]
    raise cli.Failure(cli.USAGE, f"'{shlex.join(command)}' is not 'hrm_train train ...' or 'hrm_train bench step ...'")


def has_key(words, key):
    return any(word.startswith(key + "=") for word in words)


def profiled_command(command, steps, after, output):
    program, sub, rest = split_command(command)
    extra = ["profiling.nsight_window=true", "profiling.nvtx.enabled=true"]
    if sub == ["train"]:
        extra += ["profiling.trace=true", f"profiling.trace_steps={steps}", f"profiling.trace_after={after}"]
        if not has_key(rest, "run.dir"):
            extra.append(f"run.dir={output / 'runs'}")
    else:
        extra += ["--steps", "5", "--warmup", str(after), "--profile-steps", str(steps)]
    return [program, *sub, *rest, *extra]


def config_command(command):
    """The command that prints the resolved configuration of the profiled one."""
    program, _, rest = split_command(command)
    words, wants_file = [], False
    for word in rest:
        if wants_file or word == "--config" or word.startswith("--config=") or ("=" in word and word[0] != "-"):
            words.append(word)
        wants_file = word == "--config"
    return [program, "config", "--json", *words]


def run_logged(command, log):
    """Exit code; what the command prints goes to the log file and to stderr."""
    with open(log, "w", encoding="utf-8") as file:
        file.write(shlex.join(command) + "\n")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        for line in process.stdout:
            file.write(line)
            print(line, end="", file=sys.stderr, flush=True)
        return process.wait()


def check(code, log, what):
    if code not in (0, STOPPED):
        raise cli.Failure(cli.MACHINE, f"{what} ended with exit code {code}; its output is in '{log}'")


def capture_systems(args, command, output):
    report = output / "systems"
    log = output / "systems.log"
    # Without node, nsys shows a replayed graph as one block.
    line = ["nsys", "profile", "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--trace=cuda,nvtx,osrt",
            "--cuda-graph-trace=node", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true", "--output",
            str(report), *args.nsys_args, *command]
    check(run_logged(line, log), log, "nsys")
    made = report.with_suffix(".nsys-rep")
    if not made.is_file():
        raise cli.Failure(cli.MACHINE, f"nsys wrote no report: no step was recorded; its output is in '{log}'")
    export = report.with_suffix(".sqlite")
    check(run_logged(["nsys", "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(export),
                      str(made)], output / "systems_export.log"), output / "systems_export.log", "nsys export")
    projection_of(made, output)
    return line, export


def projection_of(report, output):
    """Archives nsys's own table of GPU time by NVTX range. In replayed graphs it knows no ranges: gpu_projection does."""
    table, log = output / "nvtx_gpu_proj_sum.csv", output / "nvtx_gpu_proj_sum.log"
    line = ["nsys", "stats", "--report", "nvtx_gpu_proj_sum", "--format", "csv", "--force-export=true", str(report)]
    with open(table, "w", encoding="utf-8") as out, open(log, "w", encoding="utf-8") as errors:
        code = subprocess.run(line, stdout=out, stderr=errors).returncode
    check(code, log, "nsys stats")


def capture_compute(args, command, output):
    report = output / "compute"
    log = output / "compute.log"
    listed = output_of("ncu", "--query-metrics")
    metrics = kernel_counters.on_this_gpu(kernel_counters.wanted(), listed) + args.metrics
    chosen = ["--kernel-name-base", "demangled", "--kernel-name", f"regex:{args.kernel.pattern}"] if args.kernel else []
    if args.each_once:
        chosen += ["--filter-mode", "per-launch-config", "--launch-count", "1"]
    line = ["ncu", "--profile-from-start", "off", "--graph-profiling", "node", "--clock-control", "none", "--metrics",
            ",".join(metrics), *chosen, "--force-overwrite", "--export", str(report), *args.ncu_args, *command]
    code = run_logged(line, log)
    said = log.read_text(encoding="utf-8", errors="replace")
    if NO_COUNTERS in said:
        raise cli.Failure(cli.MACHINE, "this user may not read the GPU's counters: run as root, or have the administrator load "
                                       "the driver with NVreg_RestrictProfilingToAdminUsers=0")
    if code not in (0, STOPPED) and LAUNCH_FAILED in said:
        ways = "" if EAGER in command else f"record eager steps ({EAGER}), or "
        raise cli.Failure(cli.MACHINE, f"ncu could not run a kernel by itself: {ways}leave it out with --kernel; what ncu "
                                       f"said is in '{log}'")
    check(code, log, "ncu")
    made = report.with_suffix(".ncu-rep")
    if not made.is_file():
        raise cli.Failure(cli.MACHINE, f"ncu wrote no report: no kernel was recorded; its output is in '{log}'")
    table = report.with_suffix(".csv")
    with open(table, "w", encoding="utf-8") as file:
        code = subprocess.run(["ncu", "--import", str(made), "--csv", "--page", "raw", "--print-units", "base"], stdout=file).returncode
    check(code, table, "ncu --import")
    return line, table


def archive(args, command, output):
    resolved = subprocess.run(config_command(command), capture_output=True, text=True)
    if resolved.returncode != 0:
        raise cli.Failure(cli.USAGE, resolved.stderr.strip().removeprefix("error: ") or "the configuration cannot be read")
    (output / "config.json").write_text(resolved.stdout, encoding="utf-8")
    gpu = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader").splitlines()
    facts = {
        "captured": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(command),
        "git_commit": output_of("git", "rev-parse", "HEAD"),
        "git_changes": output_of("git", "status", "--short"),
        "program": output_of(command[0], "--version"),
        "gpu": gpu[0] if gpu else "",
        "steps": args.steps,
        "steps_before": args.after,
        "tools": {},
        "profiler_commands": {},
    }
    return facts


def capture(args):
    modes = ["systems", "compute"] if args.mode == "both" else [args.mode]
    split_command(args.command)
    program = args.command[0]
    if shutil.which(program) is None:
        raise cli.Failure(cli.MACHINE, f"'{program}' is no program: build it first (scripts/build)")
    for mode in modes:
        tool, name, address = TOOLS[mode]
        if shutil.which(tool) is None:
            raise cli.Failure(cli.MACHINE, f"{name} is not installed ('{tool}' is not in the PATH): get it from {address}, or "
                                       "use profiling.trace=true, which needs nothing but hrm_train")
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    output = pathlib.Path(args.output or ROOT / "runs" / f"nsight-{stamp}").resolve()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise cli.Failure(cli.MACHINE, f"cannot make the output folder '{output}': {e.strerror}") from None

    # What an earlier capture left in this folder must not pass for this one's.
    for name in ("systems.nsys-rep", "systems.sqlite", "compute.ncu-rep", "compute.csv", "hotspots.md", "roofline.svg",
                 "nvtx_gpu_proj_sum.csv"):
        (output / name).unlink(missing_ok=True)

    facts = archive(args, args.command, output)
    parts = [f"# Hotspots of `{facts['command']}`"]
    for mode in modes:
        tool, name, _ = TOOLS[mode]
        # The counters of one step are enough, and take minutes.
        steps = args.steps if mode == "systems" else 1
        say(f"{name}: {steps} steps after {args.after}")
        command = profiled_command(args.command, steps, args.after, output)
        line, export = (capture_systems if mode == "systems" else capture_compute)(args, command, output)
        facts["tools"][tool] = output_of(tool, "--version").splitlines()[-1:]
        facts["profiler_commands"][mode] = shlex.join(line)
        head = [("profile", f"{name}, `{export.name}`"), ("GPU", facts["gpu"] or "unknown"),
                ("commit", facts["git_commit"] + (" with local changes" if facts["git_changes"] else ""))]
        if mode == "compute" and args.each_once:
            head.append(("launches", "the first of each kernel, grid and block size, so times are not those of a step"))
        profile = kernel_profile.read_profile(export)
        parts.append(hotspots.digest(profile, steps, head, metrics=args.metrics))
        if picture := roofline.svg(profile):
            (output / "roofline.svg").write_text(picture, encoding="utf-8")
            parts.append("![roofline](roofline.svg)")
    (output / "environment.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    (output / "hotspots.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(output / "hotspots.md")


def words(text):
    """The arguments in a quoted text."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}': {error}") from None


def main():
    parser = cli.Parser(__doc__)
    parser.add_argument("--mode", choices=["systems", "compute", "both"], required=True,
                        help="systems: a timeline (nsys); compute: counters of kernels (ncu)")
    parser.add_argument("--output", help="folder to write to (default: runs/nsight-<date>)")
    parser.add_argument("--steps", type=cli.count(), default=3, help="steps of the timeline (default: 3)")
    parser.add_argument("--after", type=cli.count(), default=20, help="steps before them (default: 20)")
    parser.add_argument("--kernel", type=cli.regex, metavar="REGEX",
                        help="counters only of kernels whose names hold this expression (ncu)")
    parser.add_argument("--each-once", action="store_true",
                        help="counters only of the first launch of each kernel, grid and block size (ncu)")
    parser.add_argument("--metrics", type=lambda text: [m for m in text.split(",") if m], default=[],
                        help="further metrics of ncu, separated by commas; they get a table of their own")
    parser.add_argument("--nsys-args", type=words, default=[], help="further arguments of nsys, in quotes")
    parser.add_argument("--ncu-args", type=words, default=[], help="further arguments of ncu, in quotes")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- hrm_train train ... or -- hrm_train bench step ...")
    args = parser.parse_args()
    if args.command[:1] == ["--"]:
        args.command = args.command[1:]
    for option, value in (("--kernel", args.kernel), ("--metrics", args.metrics), ("--each-once", args.each_once)):
        if value and args.mode == "systems":
            raise cli.Failure(cli.USAGE, f"{option} chooses counters, which --mode systems does not record: use --mode compute "
                                         "or both")
    try:
        capture(args)
    except kernel_profile.BadProfile as e:
        raise cli.Failure(cli.DATA, str(e)) from None
    return 0


if __name__ == "__main__":
    cli.run(main)
