#!/usr/bin/env python3
"""What weights in 8 bits and NF4 cost a small model, with and without training for them.

    scripts/bench/weight8_accuracy.py --out runs/weight8_accuracy
    scripts/bench/weight8_accuracy.py --out runs/weight8_accuracy --steps 100 runtime.threads=1

The model is that of configs/polychromic/answers_cpu.json (0.8 million parameters), trained with cross-entropy alone.
One run trains as usual. It is exported to float32 and evaluated with each hf.quantize. Two more runs train with
precision.fake_quantize=int8 and fp8, for the same number of steps. Each is exported to its format
(export --to hf --dtype), and that folder is evaluated. All are evaluated on 200 unseen prompts, with 20 completions to
each. Prints the table. What is finished is not done again: run it once more to go on. A CPU is enough.
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402
from comparison import ROOT  # noqa: E402
from polychromic_quality import CONFIG, run  # noqa: E402

EVALUATION = ["chat.template=plain", "chat.max_length=60", "eval.answers=20", "eval.answer_temperature=1",
              "eval.answer_top_p=1", "eval.answer_tokens=12"]


def exported(args, out, trained_for):
    """The folder of the run that was trained for this format."""
    folder = out / f"{trained_for}_hf"
    if (folder / "config.json").exists():
        return folder
    name, qat = f"trained_{trained_for}", trained_for != "none"
    run(args, ["train", "--config", CONFIG, f"run.dir={out / 'runs'}", f"run.name={name}", f"hf.model={out / 'data'}",
               f"data.train={out / 'data'}", "polychromic.objective=none", f"train.steps={args.steps}",
               f"train.eval_every={args.steps}", f"train.checkpoint_every={args.steps}", "eval.answers=0",
               f"precision.fake_quantize={trained_for}", *args.overrides], out / f"{name}.log")
    run(args, ["export", "--to", "hf", "--dtype", trained_for if qat else "float32", "--checkpoint", out / "runs" / name,
               "--out", folder], out / f"{name}_export.log")
    return folder


def evaluated(args, out, trained_for, quantize):
    report = out / "evaluations" / f"{trained_for}_{quantize}"
    if not (report / "eval.json").exists():
        folder = exported(args, out, trained_for)
        run(args, ["eval", "--checkpoint", folder, "--report", report, f"data.train={out / 'data'}",
                   f"data.test={out / 'data' / 'test.jsonl'}", f"hf.quantize={quantize}", *EVALUATION, *args.overrides],
            out / f"eval_{trained_for}_{quantize}.log")
    return json.loads((report / "eval.json").read_text(encoding="utf-8"))


def row(name, result):
    best = {key: 100 * value for key, value in result["answers"]["pass@1"].items()}
    return (f"| {name} | {result['loss']:.4f} | {100 * result['accuracy']:.1f} % | {best['mean']:.1f} % "
            f"({best['low']:.1f} to {best['high']:.1f}) |")


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="where everything is kept")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="default: build/bin/hrm_train")
    parser.add_argument("--steps", type=command.count(), default=600, help="of each run")
    parser.add_argument("overrides", nargs="*", help="of all runs, e.g. runtime.threads=1 runtime.device=cpu")
    args = parser.parse_args()
    args.binary = command.program(args.binary)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "data" / "test.jsonl").exists():
        run(args, ["data", "answers", "--train", 2000, "--validation", 200, "--test", 200, "--out", out / "data"],
            out / "data.log")
    rows = [row(f"`{quantize}`", evaluated(args, out, "none", quantize)) for quantize in ("none", "int8", "fp8", "nf4")]
    rows += [row(f"`{form}`, trained for it", evaluated(args, out, form, form)) for form in ("int8", "fp8")]
    print("| weights | loss | right tokens | pass@1 |\n|---|---:|---:|---:|", *rows, sep="\n")


if __name__ == "__main__":
    command.run(main)
