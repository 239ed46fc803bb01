#!/usr/bin/env python3
"""Measures what each optimisation of the contrastive trainer gains, and how far it moves the losses, one at a time.

    scripts/bench/contrastive_switches.py --out runs/contrastive_switches

Trains the same 100 steps (configs/contrastive/headers.json, 2,048 slots, 1,024 rows) with everything on and with one
optimisation off, times both by `hrm_train bench step`, and compares the losses step by step. The window of the original
(contrastive.mode=compat) has its own switch. Needs a GPU and packed text (scripts/code_data).
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402
from compare_compat import ROOT, run  # noqa: E402

SOUND = ["--config", ROOT / "configs/contrastive/headers.json", "contrastive.learned_slots=2048", "train.global_batch_size=1024"]
COMPAT = ["--config", ROOT / "configs/contrastive/compat_cpu.json", "contrastive.context=512", "contrastive.state_dim=512",
          "contrastive.sdm_capacity=2048"]
SWITCHES = [
    ("everything on", SOUND, []),
    ("no CUDA graph", SOUND, ["runtime.cuda_graphs=false"]),
    ("values in float32, which the kernel does not take", SOUND, ["contrastive.bank_dtype=float32"]),
    ("plain ATen in place of the kernels", SOUND, ["ops.backend=reference"]),
    ("progress of the relaxation, every 10 steps", SOUND, ["contrastive.progress_every=10"]),
    ("compat, everything on", COMPAT, []),
    ("compat, no CUDA graph", COMPAT, ["runtime.cuda_graphs=false"]),
    ("compat, plain ATen in place of the kernels", COMPAT, ["ops.backend=reference"]),
    ("compat, retrieval in the last step alone", COMPAT, ["contrastive.retrieve_each_step=false"]),
]


def losses(args, name, words, settings):
    run([args.binary, "train", *words, f"run.dir={args.out}", f"run.name={name}", f"data.train={args.text}",
         f"train.steps={args.steps}", "train.log_every=1", "train.checkpoint_every=0", "train.eval_every=0",
         "optim.schedule=constant", *([] if words is COMPAT else ["data.test=none"]), *settings])
    lines = (args.out / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record["train/loss"] for record in map(json.loads, lines) if "train/loss" in record]


def milliseconds(args, name, words, settings):
    file = args.out / f"{name}.json"
    run([args.binary, "bench", "step", *words, f"data.train={args.text}", "--json", file, *settings])
    return json.loads(file.read_text(encoding="utf-8"))["step_ms"]["median"]


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="a new folder for the runs")
    parser.add_argument("--steps", type=command.count(), default=100, help="(default: %(default)s)")
    parser.add_argument("--text", default="runs/data/code_bytes", help="packed text (default: %(default)s)")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    args = parser.parse_args()
    args.binary = command.program(args.binary)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True)
    base = {}
    print("| switch | ms a step | times everything on | largest difference of losses |\n|---|---:|---:|---:|")
    for number, (title, words, settings) in enumerate(SWITCHES):
        found = losses(args, f"switch_{number}", words, settings)
        ms = milliseconds(args, f"step_{number}", words, settings)
        kind = words is COMPAT
        base.setdefault(kind, (found, ms))
        largest = max(abs(a - b) for a, b in zip(found, base[kind][0], strict=True))
        print(f"| {title} | {ms:.2f} | {ms / base[kind][1]:.2f} | {largest:.1e} |", flush=True)


if __name__ == "__main__":
    command.run(main)
