#!/usr/bin/env python3
"""Times training of a Llama of 1.26 billion parameters by hrm_train and by torchtitan on one GPU, in bf16 and in fp8.

    .venv/bin/python scripts/bench/compare_titan.py --out titan.json

24 layers of width 2048, 16 heads, 8 of keys and values, inner width 5,632, vocabulary 32,000, head of its own; 4 rows
of 4,096 random tokens. Both sides have fp32 masters and AdamW. torchtitan 0.2.2 compiles model and loss; its fp8 is
torchao's tensorwise recipe, without the head. Ours is `hrm_train bench step` with precision.blocks=fp8.

A turn of torchtitan is a run of --steps steps, whose second half counts; it includes compiling, 40 to 60 s. --rounds
turns of each side, one after the other. Tokens a second by the median of all turns. Needs a GPU, a build of hrm_train,
and torch, torchtitan 0.2.2 and torchao 0.17 for --python.
"""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from comparison import HERE, ROOT, command, gib, machine, run_bench, say, step_numbers, write_json

import compare_lm

TOKENS, ROWS, VOCABULARY = 4096, 4, 32000
OURS = ["task=language", "lm.arch=decoder", "lm.layers=24", "lm.hidden_size=2048", "lm.num_heads=16", "lm.kv_heads=8",
        "lm.head_dim=128", "lm.inner=5632", "lm.tied=false", "lm.rope_theta=500000", "data.encoder_len=0",
        f"data.decoder_len={TOKENS}", f"train.global_batch_size={ROWS}", *compare_lm.NO_TEST]
FP8 = ["--model.converters", "quantize.linear.float8", "--quantize.linear.float8.recipe_name", "tensorwise",
       "--quantize.linear.float8.filter_fqns", "output"]
SIDES = {"torchtitan bf16": [], "torchtitan fp8": FP8, "hrm_train bf16": [], "hrm_train fp8": ["precision.blocks=fp8"]}
LINE = re.compile(r"step:\s*(\d+).*?memory:\s*([\d.]+)GiB.*?tps:\s*([\d,]+)")


def titan_numbers(text, steps):
    """The second half of the steps that a log tells of; memory is the peak of what torch had reserved."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    found = [(int(step), float(memory), int(tps.replace(",", ""))) for step, memory, tps in LINE.findall(plain)]
    late = [(memory, tps) for step, memory, tps in found if step > steps // 2]
    if not late:
        lines = [line for line in plain.splitlines() if line.strip()]
        return {"error": "no step in its log; its last line: " + (lines[-1][:300] if lines else "none")}
    return dict(tokens_per_s=round(statistics.median(tps for _, tps in late)),
                reserved_bytes=int(max(memory for memory, _ in late) * 2**30))


def run_titan(args, words, folder):
    line = [args.python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1", "-m", "torchtitan.train",
            "--experimental.custom_import", "titan_model", "--model.name", "hrm_bench", "--model.flavor", "1b",
            "--training.seq_len", str(TOKENS), "--training.local_batch_size", str(ROWS), "--training.steps",
            str(args.steps), "--metrics.log_freq", "4", "--compile.enable", "--compile.components", "model,loss",
            "--activation_checkpoint.mode", "none", "--lr_scheduler.warmup_steps", "2", "--job.dump_folder",
            str(folder), *words]
    path = [str(HERE), *(p for p in [os.environ.get("PYTHONPATH", "")] if p)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=args.limit, check=False,
                              env=os.environ | dict(PYTHONPATH=os.pathsep.join(path)))
    except subprocess.TimeoutExpired:
        return {"error": f"no end after {args.limit} s"}
    return titan_numbers(done.stdout + done.stderr, args.steps)


def run_ours(args, words, folder):
    result = run_bench([args.binary, "bench", "step", "--steps", str(args.steps), "--warmup", "10", "--profile-steps",
                        "0", f"data.train={folder / 'data'}", *OURS, *words], folder, args.limit)
    if "error" in result:
        return result
    numbers = step_numbers(result, ROWS)
    return dict(tokens_per_s=round(ROWS * TOKENS / numbers["ms_per_step"] * 1e3),
                reserved_bytes=numbers["reserved_bytes"], peak_bytes=numbers["peak_bytes"])


def table(turns):
    middle, memory = {}, {}
    for side in SIDES:
        own = [t for t in turns if t["side"] == side and "tokens_per_s" in t]
        if own:
            middle[side] = statistics.median(t["tokens_per_s"] for t in own)
            memory[side] = max(t["reserved_bytes"] for t in own)
    base = middle.get("torchtitan fp8")
    lines = ["| side | tokens/s | of torchtitan fp8 | reserved GiB |", "|---|---:|---:|---:|"]
    for side, tokens in middle.items():
        lines.append(f"| {side} | {tokens:,.0f} | {f'{tokens / base:.2f}' if base else ''} | {gib(memory[side])} |")
    return "\n".join(lines)


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--rounds", type=command.count(), default=1, help="turns of each side (default: %(default)s)")
    parser.add_argument("--steps", type=command.count(), default=24, help="of a turn (default: %(default)s)")
    parser.add_argument("--limit", type=command.count(), default=300, help="seconds of a turn (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable, help="with torchtitan (default: this one)")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all turns")
    args = parser.parse_args()
    command.writable(args.out)
    args.binary = command.program(args.binary)
    about, turns = machine("cuda", args.binary), []
    with tempfile.TemporaryDirectory(prefix="compare_titan_") as scratch:
        folder = pathlib.Path(scratch)
        compare_lm.write_data(folder / "data", VOCABULARY, 1, TOKENS, 4 * ROWS)
        for number in range(args.rounds):
            for side, words in SIDES.items():
                result = (run_titan if side.startswith("torchtitan") else run_ours)(args, words, folder)
                turns.append(about | dict(side=side, round=number) | result)
                say(f"{side}: {result.get('error') or result['tokens_per_s']}")
                write_json(args.out, turns)
    print(table(turns))
    return 0


if __name__ == "__main__":
    command.run(main)
