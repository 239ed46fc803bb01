#!/usr/bin/env python3
"""Times a training step of hrm_train and of the official code, eager and compiled, on the CPU with the same threads.

    .venv/bin/python scripts/bench/compare_cpu.py --hrm HRM --trm TinyRecursiveModels --threads 2 --markdown cpu.md

float32 on both sides, the same model, batch size and puzzles. The two sides take turns as in compare_official.py, which
does the work; a turn's number is the mean over its steps, the table has the median of the turns and their range. The
machine must be otherwise idle: on a busy one the ranges are wide. Needs what official_step.py needs. It works without a
GPU, where HRM_PYTHON_TESTS=ON scripts/test installs the torch that .venv/bin/python needs.
"""
import os
import pathlib

import compare_official as gpu
from compare_official import command

SMALL = dict(hidden_size=64, num_heads=4, H_layers=1, L_layers=1)
WORKS = {
    "hrm": dict(title="HRM, 27M parameters, batch 8", model="hrm", batch=8, config=gpu.HRM, steps=4),
    "hrm_small": dict(title="HRM, hidden 64, 1 + 1 layers, batch 32", model="hrm", batch=32, config=gpu.HRM,
                      shape=SMALL, steps=40),
    "trm_att": dict(title="TRM attention, hidden 128, batch 16", model="trm_att", batch=16, config=gpu.TRM_ATT,
                    shape=dict(hidden_size=128, num_heads=4), steps=6),
    "trm_mlp": dict(title="TRM MLP, hidden 128, batch 16", model="trm_mlp", batch=16, config=gpu.TRM_MLP,
                    shape=dict(hidden_size=128, num_heads=4), steps=6),
}


def table(results, modes):
    lines = ["| work, float32, ms per step | " + " | ".join(f"official code, {mode}" for mode in modes) +
             " | ours | the faster official / ours |", "|---|" + "---:|" * (len(modes) + 2)]
    for name, work in WORKS.items():
        of_work = [r for r in results if r["work"] == name]
        sides = [gpu.summary([r for r in of_work if r["variant"] == mode]) for mode in modes]
        ours = gpu.summary([r for r in of_work if r["side"] == "ours"])
        if ours and any(sides):
            best = min(s["median"] for s in sides if s)
            lines.append(f"| {work['title']} | " + " | ".join(gpu.spread(s) if s else "fails" for s in sides) +
                         f" | {gpu.spread(ours)} | **{best / ours['median']:.2f}** |")
    return "\n".join(lines) + "\n"


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--hrm", type=pathlib.Path, metavar="PATH", help="checkout of the official HRM code")
    parser.add_argument("--trm", type=pathlib.Path, metavar="PATH", help="checkout of the official TRM code")
    parser.add_argument("--work", default=",".join(WORKS), help="comma-separated; default: %(default)s")
    parser.add_argument("--modes", default="eager,default", help="of the official code; default: %(default)s")
    parser.add_argument("--threads", type=command.count(), default=len(os.sched_getaffinity(0)),
                        help="of both sides (default: one per core)")
    parser.add_argument("--rounds", type=command.count(), default=5, help="turns of each side (default: %(default)s)")
    parser.add_argument("--steps", type=command.count(0), default=0,
                        help="steps of a turn (default: chosen for each work)")
    parser.add_argument("--binary", default=str(gpu.ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all results, read and added to")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="where the table goes (default: stdout)")
    args = parser.parse_args()
    names = gpu.known(args.work.split(","), list(WORKS), "work")
    args.modes = gpu.known(args.modes.split(","), ["eager"] + gpu.MODES, "mode")
    gpu.check_checkouts(args, {name: WORKS[name] for name in names})
    results = gpu.earlier_results(args.out)
    command.writable(args.out)
    command.writable(args.markdown)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    args.binary = command.program(args.binary)
    args.machine = gpu.machine("cpu", args.binary) | dict(threads=args.threads)
    args.device, args.maze, args.batch, args.puzzles, args.limit = "cpu", "", 0, 0, 1800
    args.skip_steps, args.settle = 3, 0
    args.variants, args.together, args.all_at_once = [], len(args.modes), False
    for name in names:  # one after the other: the shape is an option of both sides
        work = WORKS[name]
        shape = work.get("shape", {})
        gpu.WORKS[name] = work | dict(variants={"fp32": []}, together=1)
        theirs = dict(shape, puzzle_emb_ndim=shape["hidden_size"]) if shape else {}
        args.official_set = [f"{key}={value}" for key, value in theirs.items()]
        args.ours_set = ["runtime.device=cpu", f"runtime.threads={args.threads}"]
        args.ours_set += [f"model.{key}={value}" for key, value in shape.items()]
        gpu.measure(args, {name: args.modes}, results)
    gpu.write_text(args.markdown, table(results, args.modes))
    gpu.need_comparison(results, names)
    return 0


if __name__ == "__main__":
    command.run(main)
