#!/usr/bin/env python3
"""Makes the stored runs that resume.py continues: one small run for each kind of state that a checkpoint can hold.

    tests/fault/make_stored_runs.py --binary PATH [--out tests/fault/stored_runs] [NAME...]

Each run trains 12 steps without an interruption. Kept are its configuration, its data, its checkpoint of step 6 and the
log of the steps behind it. Use the program of the release whose files shall stay readable. Only Python's standard
library is used.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from free_port import free_port  # noqa: E402
STEPS, KEPT = 12, 6

RUN = {
    "run": {"dir": "made", "name": "run"},
    "optim": {"lr": 1e-3, "warmup_steps": 3, "min_ratio": 1},
    "train": {"global_batch_size": 4, "micro_batch_size": 2, "steps": STEPS, "log_every": 1, "checkpoint_every": KEPT,
              "keep_checkpoints": 2, "eval_every": 4},
    "eval": {"max_samples": 4},
    "runtime": {"device": "cpu", "threads": 1},
}
PUZZLE = {
    "data": {"train": "puzzles.csv", "test": "puzzles.csv", "augmentation": "sudoku"},
    "model": {"hidden_size": 4, "num_heads": 1, "H_layers": 1, "L_layers": 1, "H_cycles": 1, "L_cycles": 2,
              "halt_max_steps": 4},
}
LANGUAGE = {
    "task": "language",
    "data": {"train": "data", "encoder_len": 16, "decoder_len": 16},
    "lm": {"arch": "hrm", "style": "modern", "hidden_size": 8, "num_heads": 1, "inner": 16, "layers": 2, "enc_layers": 1,
           "h_layers": 1, "l_layers": 1, "h_len": 2, "l_len": 4, "h_cycles": 1, "l_steps": 2, "prefix_len": 2},
}
ANSWERS = {
    "task": "polychromic",
    "hf": {"model": "data", "weights": "random"},
    "data": {"train": "data"},
    "chat": {"template": "plain", "max_length": 64},
    "polychromic": {"objective": "score_function", "n_generations": 2, "max_generation_length": 4,
                    "max_examples_for_diversity": 4, "diversity_metric": "bleu"},
    "eval": {"batch_size": 4, "answers": 2, "answer_tokens": 4},
}
GRPO = {"start_step": 4, "num_generations": 2, "max_completion_length": 4, "rewards": "answer"}

# name: (sections on top of RUN, maker of the data, ranks)
RUNS = {
    "hrm_muon": ([PUZZLE, {"optim": {"name": "muon"}}], "puzzles", 1),
    "trm_fp8": ([PUZZLE, {"precision": {"recursions": "fp8"}, "ops": {"backend": "reference"},
                          "model": {"arch": "trm", "H_layers": 0, "no_ACT_continue": True, "hidden_size": 16, "H_cycles": 2}}], "puzzles", 1),
    "hrm_two_ranks": ([PUZZLE, {"parallel": {"zero": 2}, "optim": {"ema": 0.9}}], "puzzles", 2),
    "trm_average": ([PUZZLE, {"model": {"arch": "trm", "H_layers": 0, "no_ACT_continue": True},
                              "optim": {"ema": 0.9}}], "puzzles", 1),
    "code_moe": ([LANGUAGE, {"moe": {"experts": 4, "top_k": 2, "inner": 8, "place": "decoder", "every": 2,
                                     "bias_rate": 0.01}}], "text", 1),
    "code_mamba": ([LANGUAGE, {"lm": {"encoder": "mamba2", "mamba_head_dim": 8, "mamba_state": 8}}], "text", 1),
    "arithmetic_prototype": ([LANGUAGE, {"data": {"decoder_len": 8}, "lm": {
        "style": "prototype", "hidden_size": 4, "inner": 0, "layers": 1, "h_cycles": 2, "gradient_cycles": 0},
        "objective": {"deep_supervision": 0.1, "halting": 0.01}}], "sums", 1),
    "answers_diversity": ([ANSWERS, {"lora": {"r": 2, "targets": "q_proj,v_proj"}}], "answers", 1),
    "answers_grpo": ([ANSWERS, {"lora": {"r": 2, "targets": "q_proj,v_proj"}, "grpo": GRPO}], "answers", 1),
    "chat_auto": ([ANSWERS, {"chat": {"template": "auto"}}], "chat", 1),
}


def combined(parts):
    result = json.loads(json.dumps(RUN))
    for part in parts:
        for section, values in part.items():
            if isinstance(values, dict):
                result.setdefault(section, {}).update(values)
            else:
                result[section] = values
    return result


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def make_data(kind, binary, folder):
    def call(*words):
        subprocess.run([binary, "data", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    if kind == "puzzles":
        rows = (ROOT / "data/sudoku/train_17clue_1k.csv").read_text().splitlines(keepends=True)
        (folder / "puzzles.csv").write_text("".join(rows[:17]))
    elif kind == "text":
        with tempfile.TemporaryDirectory() as texts:
            for number in range(8):
                words = " ".join(f"{number} and {k} make {number + k}." for k in range(12))
                pathlib.Path(texts, f"{number}.txt").write_text(words + "\n")
            call("text", texts, "--pattern", "*.txt", "--validation", "0.2", "--out", "data")
    elif kind == "sums":
        call("arithmetic", "--digits", "2", "--samples", "40", "--out", "data")
    else:
        call("answers", "--train", "12", "--validation", "4", "--test", "0", "--out", "data")
        model = json.loads((folder / "data/config.json").read_text())
        model.update(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                     num_key_value_heads=1, head_dim=8)
        if kind == "chat":
            tokenizer = json.loads((folder / "data/tokenizer.json").read_text())
            for token in ("<|im_start|>", "<|im_end|>", "<think>", "</think>"):
                like = dict(tokenizer["added_tokens"][-1], id=model["vocab_size"], content=token)
                tokenizer["added_tokens"].append(like)
                model["vocab_size"] += 1
            write_json(folder / "data/tokenizer.json", tokenizer)
            # It never writes thoughts. A program that guesses a template by the tokens writes some all the same.
            write_json(folder / "data/tokenizer_config.json", {
                "eos_token": "<|im_end|>", "pad_token": "<pad>",
                "chat_template": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
                                 "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
                                 "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"})
        write_json(folder / "data/config.json", model)


def train(binary, folder, ranks):
    port = str(free_port())
    processes = []
    for rank in range(ranks):
        own = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        if ranks > 1:
            own.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        processes.append(subprocess.Popen([binary, "train", "--config", "config.json"], cwd=folder, env=own,
                                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
    return [process.wait(timeout=300) for process in processes]


def make(name, binary, out):
    parts, kind, ranks = RUNS[name]
    # The kept run stays until there is another one.
    folder = out / f"{name}.new"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", combined(parts))
    make_data(kind, binary, folder)
    codes = train(binary, folder, ranks)
    if any(codes):
        sys.exit(f"error: {name}: the training ended with {codes}")
    run = folder / "made/run"
    shutil.copytree(run / "checkpoints" / f"step-{KEPT:09d}", folder / f"step-{KEPT:09d}")
    lines = []
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        if line["step"] > KEPT:
            lines.append(json.dumps({key: value for key, value in line.items() if not key.startswith("perf/")}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    shutil.rmtree(folder / "made")
    for index in folder.rglob("*.idx"):  # of the time at which a file was written, which no checkout has
        index.unlink()
    shutil.rmtree(out / name, ignore_errors=True)
    folder = folder.rename(out / name)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{name}: {size / 1000:.0f} kB", flush=True)


def program(path):
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        sys.exit(f"error: '{path}' is no program: build it first (scripts/build)")
    return str(pathlib.Path(path).resolve())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--out", default=str(ROOT / "tests/fault/stored_runs"))
    parser.add_argument("name", nargs="*", help=f"of {', '.join(RUNS)} (default: all)")
    args = parser.parse_args()
    unknown = set(args.name) - set(RUNS)
    if unknown:
        parser.error(f"there is no run {sorted(unknown)[0]}")
    for name in args.name or RUNS:
        make(name, program(args.binary), pathlib.Path(args.out).resolve())


if __name__ == "__main__":
    main()
