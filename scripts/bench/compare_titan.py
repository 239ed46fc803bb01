#!/usr/bin/env python3
"""Times training of a Llama by hrm_train and by torchtitan 0.2.2 on one or two GPUs of a host.

    .venv/bin/python scripts/bench/compare_titan.py --out titan.json
    .venv/bin/python scripts/bench/compare_titan.py --work two_gpus --out two.json

--work precision: one GPU, in bf16 and in fp8 (torchao's tensorwise recipe without the head; precision.blocks=fp8).
--work two_gpus: one GPU in bf16, then two by FSDP2 and parallel.zero=3, and by tensor parallelism. torchtitan 0.2.2
computes tensor parallelism in float32 unless weights and optimizer are bf16, so its are; ours stay fp32.
--work large: two GPUs, the shape of Llama-2-7B with full recomputation, FSDP2 and parallel.zero=3.
--alone does both with one GPU, on which rank 0 runs without the other: torchtitan with its fake backend, which sends
nothing and leaves what it would receive as it is, and bench step --ranks, which copies its own part there.

The model has 24 layers of width 2048, 16 heads, 8 of keys and values, inner width 5,632, vocabulary 32,000, head of its
own: 1.26 billion parameters. Rows have 4,096 random tokens, 4 rows for each model. Both sides have fp32 masters and
AdamW but for what is said above. torchtitan compiles model and loss. Ours is `hrm_train bench step`.

A turn of torchtitan is a run of --steps steps, whose second half counts; it includes compiling, 40 to 60 s. --rounds
turns of each side, one after the other; --sides tensor takes only those by tensor parallelism. Tokens a second of each
GPU by the median of all turns. Needs the GPUs, a build of hrm_train, and torch, torchtitan 0.2.2 and torchao 0.17 for
--python.
"""
import dataclasses
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from comparison import HERE, ROOT, command, gib, machine, run_bench, say, step_numbers, write_json

import compare_lm

TOKENS, VOCABULARY = 4096, 32000
FP8 = ["--model.converters", "quantize.linear.float8", "--quantize.linear.float8.recipe_name", "tensorwise",
       "--quantize.linear.float8.filter_fqns", "output"]
TENSOR_2 = ["--training.dtype", "bfloat16", "--parallelism.tensor_parallel_degree", "2"]


@dataclasses.dataclass
class Shape:
    flavor: str      # of titan_model.py
    rows: int        # of a micro-batch of one model
    recompute: bool
    settings: list   # of hrm_train


SMALL = Shape("1b", 4, False, ["lm.layers=24", "lm.hidden_size=2048", "lm.num_heads=16", "lm.kv_heads=8", "lm.inner=5632",
                               "lm.rope_theta=500000"])
LARGE = Shape("7b", 1, True, ["lm.layers=32", "lm.hidden_size=4096", "lm.num_heads=32", "lm.kv_heads=32",
                              "lm.inner=11008", "lm.rope_theta=10000", "lm.recompute=true"])


@dataclasses.dataclass
class Side:
    words: list      # more arguments
    gpus: int = 1
    models: int = 1  # whole models that the GPUs hold between them: each has rows of its own

    def rows(self, shape):
        return shape.rows * self.models


# By work: the shape, the side that ratios refer to, and the sides.
WORKS = {
    "precision": (SMALL, "torchtitan fp8", {
        "torchtitan bf16": Side([]), "torchtitan fp8": Side(FP8),
        "hrm_train bf16": Side([]), "hrm_train fp8": Side(["precision.blocks=fp8"])}),
    "two_gpus": (SMALL, "torchtitan, one GPU", {
        "torchtitan, one GPU": Side([]), "hrm_train, one GPU": Side([]),
        "torchtitan, FSDP2": Side([], 2, 2), "hrm_train, zero=3": Side(["parallel.zero=3"], 2, 2),
        "torchtitan, tensor 2 (bf16 weights)": Side(TENSOR_2, 2), "hrm_train, tensor 2": Side(["parallel.tensor=2"], 2)}),
    "large": (LARGE, "torchtitan, FSDP2", {
        "torchtitan, FSDP2": Side([], 2, 2), "hrm_train, zero=3": Side(["parallel.zero=3"], 2, 2)}),
}
OURS = ["task=language", "lm.arch=decoder", "lm.head_dim=128", "lm.tied=false", "data.encoder_len=0",
        f"data.decoder_len={TOKENS}", *compare_lm.NO_TEST]
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


def run_titan(args, shape, side, folder):
    alone = args.alone and side.gpus > 1
    launcher = [] if alone else ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={side.gpus}"]
    line = [args.python, *launcher, "-m", "torchtitan.train", "--experimental.custom_import", "titan_model",
            "--model.name", "hrm_bench", "--model.flavor", shape.flavor, "--training.seq_len", str(TOKENS),
            "--training.local_batch_size", str(shape.rows), "--training.steps", str(args.steps), "--metrics.log_freq", "4", "--compile.enable",
            "--compile.components", "model,loss", "--activation_checkpoint.mode",
            "full" if shape.recompute else "none", "--lr_scheduler.warmup_steps", "2", "--job.dump_folder",
            str(folder), *side.words]
    environment = dict(os.environ)
    if alone:
        line += ["--comm.mode", "fake_backend"]
        environment |= dict(NGPU=str(side.gpus), WORLD_SIZE=str(side.gpus), RANK="0", LOCAL_RANK="0")
    path = [str(HERE), *(p for p in [os.environ.get("PYTHONPATH", "")] if p)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=args.limit, check=False,
                              env=environment | dict(PYTHONPATH=os.pathsep.join(path)))
    except subprocess.TimeoutExpired:
        return {"error": f"no end after {args.limit} s"}
    return titan_numbers(done.stdout + done.stderr, args.steps)


def run_ours(args, shape, side, folder):
    rows = side.rows(shape)
    alone = args.alone and side.gpus > 1
    result = run_bench([args.binary, "bench", "step", "--steps", str(args.steps), "--warmup", "10", "--profile-steps",
                        "0", f"data.train={folder / 'data'}", *OURS, *shape.settings,
                        f"train.global_batch_size={rows}", *side.words,
                        *(["--ranks", str(side.gpus)] if alone else [])], folder, args.limit, 1 if alone else side.gpus)
    if "error" in result:
        return result
    numbers = step_numbers(result, rows)
    return dict(tokens_per_s=round(rows * TOKENS / side.gpus / numbers["ms_per_step"] * 1e3),
                reserved_bytes=numbers["reserved_bytes"], peak_bytes=numbers["peak_bytes"])


def table(turns, work="precision"):
    _, base_side, sides = WORKS[work]
    middle, memory = {}, {}
    for side in sides:
        own = [t for t in turns if t["side"] == side and "tokens_per_s" in t]
        if own:
            middle[side] = statistics.median(t["tokens_per_s"] for t in own)
            memory[side] = max(t["reserved_bytes"] for t in own)
    base = middle.get(base_side)
    lines = [f"| side | tokens/s of a GPU | of {base_side} | reserved GiB |", "|---|---:|---:|---:|"]
    for side, tokens in middle.items():
        lines.append(f"| {side} | {tokens:,.0f} | {f'{tokens / base:.2f}' if base else ''} | {gib(memory[side])} |")
    return "\n".join(lines)


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--work", choices=WORKS, default="precision", help="see above (default: %(default)s)")
    parser.add_argument("--alone", action="store_true", help="of sides with several GPUs, run rank 0 alone on one: what it "
                        "holds, and how fast it is without exchanges")
    parser.add_argument("--sides", default="", metavar="TEXT,...", help="only sides whose names hold one of these texts")
    parser.add_argument("--rounds", type=command.count(), default=1, help="turns of each side (default: %(default)s)")
    parser.add_argument("--steps", type=command.count(), default=24, help="of a turn (default: %(default)s)")
    parser.add_argument("--limit", type=command.count(), default=300, help="seconds of a turn (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable, help="with torchtitan (default: this one)")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all turns")
    args = parser.parse_args()
    command.writable(args.out)
    shape, _, sides = WORKS[args.work]
    chosen = {name: side for name, side in sides.items() if any(text in name for text in args.sides.split(","))}
    if not chosen:
        parser.error(f"--sides {args.sides}: --work {args.work} has " + "; ".join(sides))
    args.binary = command.program(args.binary)
    about, turns = machine("cuda", args.binary), []
    with tempfile.TemporaryDirectory(prefix="compare_titan_") as scratch:
        folder = pathlib.Path(scratch)
        compare_lm.write_data(folder / "data", VOCABULARY, 1, TOKENS, 16)
        for number in range(args.rounds):
            for name, side in chosen.items():
                result = (run_titan if name.startswith("torchtitan") else run_ours)(args, shape, side, folder)
                turns.append(about | dict(work=args.work, side=name, round=number) | result)
                say(f"{name}: {result.get('error') or result['tokens_per_s']}")
                write_json(args.out, turns)
    print(table(turns, args.work))
    return 0


if __name__ == "__main__":
    command.run(main)
