#!/usr/bin/env python3
"""What the diversity term and GRPO do to a small model's answers, over several seeds, beside cross-entropy alone.

    scripts/bench/polychromic_quality.py --out runs/polychromic_quality
    scripts/bench/polychromic_quality.py --out runs/polychromic_quality --seeds 1 --arms cross-entropy,ours

The task is that of `hrm_train data answers`: split a number in two, the first part a multiple of another; 4 to 12
answers are right, and the data shows the first ones far more often. A base model of 0.8 million parameters learns from
3,000 prompts (configs/polychromic/answers_cpu.json, cross-entropy alone); then each arm goes on from it with 300 new
prompts, their 1,200 records about eight times, which is where fine-tuning makes answers alike:

    cross-entropy   objective=none
    compat          objective=compat, the constant term of the reference trainer
    ours            objective=score_function
    grpo            GRPO with reward `answer`, its loss in place of cross-entropy: 150 steps of 16 prompts, 8 answers each

All are evaluated on 1,000 prompts that no training saw, 20 answers each. Writes report.md, answers.html, front.svg and
summary.json (differences to cross-entropy, prompt by prompt, 95 % intervals), and prints the table. What is finished is
not done again: run it once more to go on. Needs a build of hrm_train, a CPU is enough.
"""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402
from comparison import ROOT, say  # noqa: E402

CONFIG = ROOT / "configs/polychromic/answers_cpu.json"
BASE_PROMPTS, TUNED_PROMPTS, RECORDS = 3000, 300, 4
ARMS = {
    "cross-entropy": ["polychromic.objective=none"],
    "compat": ["polychromic.objective=compat"],
    "ours": ["polychromic.objective=score_function"],
    "grpo": ["polychromic.objective=none", "grpo.start_step=1", "grpo.rewards=answer", "grpo.num_generations=8",
             "grpo.max_completion_length=12", "train.global_batch_size=16", "train.steps=150", "train.log_every=10",
             "optim.lr=1e-4"],
}
SHOWN = ["pass@1", "pass@10", "pass@20", "covered", "diversity", "different"]


def run(args, words, log):
    """Runs hrm_train; its stdout. What it said is in `log`, and at its end in the failure's sentence."""
    with open(log, "w", encoding="utf-8") as file:
        done = subprocess.run([args.binary, *map(str, words)], stdout=subprocess.PIPE, stderr=file, text=True)
    if done.returncode != 0:
        lines = log.read_text(encoding="utf-8").splitlines() or ["it said nothing"]
        raise command.Failure(command.DATA, f"'hrm_train {words[0]}' ended with code {done.returncode} ({log}): {lines[-1]}")
    return done.stdout


def make_data(args, out):
    """One set of prompts, of which the first are the base model's and the others those of the arms."""
    whole = out / "whole"
    if (out / "tuned" / "train.jsonl").exists():
        return
    say("making the data")
    run(args, ["data", "answers", "--largest", 4000, "--skew", 0.1, "--train", BASE_PROMPTS + TUNED_PROMPTS, "--responses",
               RECORDS, "--validation", 200, "--test", 1000, "--out", whole], out / "data.log")
    lines = (whole / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    cut = BASE_PROMPTS * RECORDS
    for name, part in (("base", lines[:cut]), ("tuned", lines[cut:])):
        folder = out / name
        folder.mkdir(exist_ok=True)
        for other in ("val.jsonl", "tokenizer.json", "tokenizer_config.json", "config.json"):
            (folder / other).write_bytes((whole / other).read_bytes())
        (folder / "train.jsonl").write_text("".join(part), encoding="utf-8")


def train(args, out, name, data, seed, settings):
    log = out / f"{name}.log"
    say(f"training {name}")
    run(args, ["train", "--config", CONFIG, f"run.dir={out / 'runs'}", f"run.name={name}", f"run.seed={seed}",
               f"hf.tokenizer={out / 'whole'}", f"data.train={out / data}", *args.overrides, *settings], log)


def base_model(args, out, seed):
    folder = out / f"base_{seed}"
    if (folder / "config.json").exists():
        return folder
    name = f"base_{seed}_run"
    train(args, out, name, "base", seed, [f"hf.model={out / 'whole'}", "polychromic.objective=none", "train.steps=1500",
                                          "train.eval_every=500", "train.checkpoint_every=500"])
    run(args, ["export", "--to", "hf", "--checkpoint", out / "runs" / name, "--out", folder], out / f"{name}_export.log")
    return folder


def evaluation(args, out, arm, seed, base):
    folder = out / "answers" / f"{arm}_{seed}"
    if (folder / "eval.json").exists():
        return folder
    name = f"{arm}_{seed}"
    settings = [f"hf.model={base}", "hf.weights=load", "optim.lr=3e-4", "optim.warmup_steps=10", f"train.steps={args.steps}",
                "train.eval_every=100", "train.checkpoint_every=100"]
    if "polychromic.objective=none" not in ARMS[arm]:  # a weight of nothing would be refused
        settings.append(f"polychromic.diversity_weight={args.weight}")
    train(args, out, name, "tuned", seed, settings + ARMS[arm])
    run(args, ["eval", "--checkpoint", out / "runs" / name, "--data", out / "whole" / "test.jsonl", "--report", folder,
               *args.overrides], out / f"{name}_eval.log")
    return folder


def losses(folders):
    return [json.loads((folder / "eval.json").read_text(encoding="utf-8"))["loss"] for folder in folders]


def rewards(out, seeds):
    """Of each GRPO run: the mean reward of its first and its last window of steps."""
    found = []
    for seed in seeds:
        file = out / "runs" / f"grpo_{seed}" / "metrics.jsonl"
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        seen = [line["train/reward"] for line in lines if "train/reward" in line]
        found.append((seen[0], seen[-1]))
    return found


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="where everything is kept")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="default: build/bin/hrm_train")
    parser.add_argument("--seeds", type=command.count(), default=3)
    parser.add_argument("--arms", default=",".join(ARMS), help="of cross-entropy, compat, ours, grpo; the first is compared with")
    parser.add_argument("--weight", type=command.number(float, 0), default=1.0, help="polychromic.diversity_weight")
    parser.add_argument("--steps", type=command.count(), default=300, help="of each arm but grpo")
    parser.add_argument("overrides", nargs="*", help="of all runs, e.g. runtime.threads=1 runtime.device=cpu")
    args = parser.parse_args()
    arms = args.arms.split(",")
    for arm in arms:
        if arm not in ARMS:
            parser.error(f"--arms: '{arm}' is none of {', '.join(ARMS)}")
    args.binary = command.program(args.binary)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    make_data(args, out)
    folders = {arm: [] for arm in arms}
    for seed in range(args.seeds):
        base = base_model(args, out, seed)
        for arm in arms:
            folders[arm].append(evaluation(args, out, arm, seed, base))
    (out / "report.md").unlink(missing_ok=True)  # of an earlier start, which 'report' would not replace
    run(args, ["report", *(f"{arm}={folder}" for arm in arms for folder in folders[arm]), "--out", out], out / "report.log")
    first = sum(losses(folders[arms[0]]))
    summary = dict(seeds=args.seeds, steps=args.steps, weight=args.weight, loss={}, loss_change_percent={})
    for arm in arms:
        summary["loss"][arm] = losses(folders[arm])
        summary["loss_change_percent"][arm] = round(100 * (sum(losses(folders[arm])) / first - 1), 2)
    if "grpo" in arms:
        summary["grpo_reward_first_and_last_window"] = rewards(out, range(args.seeds))
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary))
    report = (out / "report.md").read_text(encoding="utf-8").splitlines()
    for line in report:
        if line.startswith(("| metric", "|---|---|")) or line.split("|")[1:2] and line.split("|")[1].strip() in SHOWN:
            print(line)


if __name__ == "__main__":
    command.run(main)
