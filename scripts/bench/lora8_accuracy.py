#!/usr/bin/env python3
"""Whether a LoRA run on a base model in e4m3 ends with the pass@1 of the same run on the base model in bf16.

    scripts/bench/lora8_accuracy.py --out runs/lora8_accuracy
    scripts/bench/lora8_accuracy.py --out runs/lora8_accuracy --tiny runtime.device=cpu runtime.threads=1

The task is that of `hrm_train data answers`: split a number in two. For each seed, a base model of 0.8 million parameters
learns from 3,000 prompts (configs/polychromic/answers_cpu.json, cross-entropy alone). Each arm then trains an adapter on
it with 300 new prompts, from the same seed: with hf.quantize=none and with hf.quantize=fp8. On a GPU the first computes
in bf16, and the second multiplies in 8 bits; on a CPU both compute in fp32, and only the weights are rounded.

Evaluated on 1,000 prompts that no training saw, one completion to each, at temperature 0.01. Prints right completions of
all seeds with their 95 % interval (Wilson). Ends with code 1 if the share of e4m3 is outside of the interval of bf16.
--tiny has 60 prompts and 20 steps: a trial of the script. What is finished is not done again: run it once more to go on.
"""
import json
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402
from comparison import ROOT, say  # noqa: E402
from polychromic_quality import CONFIG, RECORDS, run  # noqa: E402

ARMS = {"bf16": "none", "e4m3": "fp8"}
COPIED = ("val.jsonl", "tokenizer.json", "tokenizer_config.json", "config.json")


def wilson(right, count, z=1.96):
    """The 95 % interval of a share."""
    share, spread = right / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0, middle - half), min(1, middle + half)


def make_data(args, out):
    """The first prompts are the base model's, the others the adapters'."""
    if (out / "tuned" / "train.jsonl").exists():
        return
    say("making the data")
    run(args, ["data", "answers", "--train", args.base_prompts + args.prompts, "--responses", RECORDS, "--validation",
               args.prompts, "--test", args.tests, "--largest", 4000, "--skew", 0.1, "--out", out / "whole"],
        out / "data.log")
    lines = (out / "whole" / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    cut = args.base_prompts * RECORDS
    for name, part in (("base", lines[:cut]), ("tuned", lines[cut:])):
        folder = out / name
        folder.mkdir(exist_ok=True)
        for other in COPIED:
            (folder / other).write_bytes((out / "whole" / other).read_bytes())
        (folder / "train.jsonl").write_text("".join(part), encoding="utf-8")


def train(args, out, name, data, seed, steps, settings):
    say(f"training {name}")
    run(args, ["train", "--config", CONFIG, f"run.dir={out / 'runs'}", f"run.name={name}", f"run.seed={seed}",
               f"hf.tokenizer={out / 'whole'}", f"data.train={out / data}", "polychromic.objective=none",
               f"train.steps={steps}", f"train.eval_every={steps}", "train.checkpoint_every=200", "eval.answers=0",
               *settings, *args.overrides], out / f"{name}.log")


def base_model(args, out, seed):
    folder, name = out / f"base_{seed}", f"base_{seed}_run"
    if not (folder / "config.json").exists():
        train(args, out, name, "base", seed, args.base_steps, [f"hf.model={out / 'whole'}"])
        run(args, ["export", "--to", "hf", "--checkpoint", out / "runs" / name, "--out", folder],
            out / f"{name}_export.log")
    return folder


def right_completions(args, out, arm, seed, base):
    """How many of the test prompts get a right completion, and their number."""
    name = f"{arm}_{seed}"
    report = out / "evaluations" / name
    if not (report / "eval.json").exists():
        train(args, out, name, "tuned", seed, args.steps, [f"hf.model={base}", "hf.weights=load", "lora.r=16",
                                                           f"hf.quantize={ARMS[arm]}", "optim.lr=1e-3",
                                                           "optim.warmup_steps=10"])
        run(args, ["eval", "--checkpoint", out / "runs" / name, "--data", out / "whole" / "test.jsonl", "--report", report,
                   "eval.answers=1", "eval.answer_temperature=0.01", *args.overrides], out / f"{name}_eval.log")
    answers = json.loads((report / "eval.json").read_text(encoding="utf-8"))["answers"]
    return round(answers["pass@1"]["mean"] * args.tests), args.tests


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="where everything is kept")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="default: build/bin/hrm_train")
    parser.add_argument("--seeds", type=command.count(), default=3, help="of base models and adapters (default: 3)")
    parser.add_argument("--base-steps", type=command.count(), default=1500, help="of each base model (default: 1500)")
    parser.add_argument("--steps", type=command.count(), default=400, help="of each adapter (default: 400)")
    parser.add_argument("--tiny", action="store_true", help="a trial that shows nothing about accuracy")
    parser.add_argument("overrides", nargs="*", help="of all runs, e.g. runtime.threads=1 runtime.device=cpu")
    args = parser.parse_args()
    args.binary = command.program(args.binary)
    args.base_prompts, args.prompts, args.tests = 3000, 300, 1000
    if args.tiny:
        args.base_prompts, args.prompts, args.tests, args.seeds, args.base_steps, args.steps = 200, 40, 60, 1, 120, 20
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    make_data(args, out)
    counts = {arm: [0, 0] for arm in ARMS}
    for seed in range(args.seeds):
        base = base_model(args, out, seed)
        for arm in ARMS:
            right, count = right_completions(args, out, arm, seed, base)
            counts[arm][0] += right
            counts[arm][1] += count
    print("| base model | right completions | pass@1 | 95 % interval |\n|---|---:|---:|---|")
    for arm, (right, count) in counts.items():
        low, high = wilson(right, count)
        print(f"| {arm} | {right:,} of {count:,} | {100 * right / count:.1f} % | {100 * low:.1f} to {100 * high:.1f} % |")
    low, high = wilson(*counts["bf16"])
    inside = low <= counts["e4m3"][0] / counts["e4m3"][1] <= high
    print(f"pass@1 of e4m3 is {'inside' if inside else 'outside'} of the interval of bf16")
    return 0 if inside else 1


if __name__ == "__main__":
    command.run(main)
