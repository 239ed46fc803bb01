#!/usr/bin/env python3
"""Times causal language models of hrm_train beside PEFT and transformers on one GPU, in turns: a training step with a
low-rank adapter, and generation of several answers to each prompt.

    .venv/bin/python scripts/bench/compare_causal.py --out causal.json
    .venv/bin/python scripts/bench/compare_causal.py --work generate --modes static

The model is of the shape of Qwen3-0.6B with random weights. Works: lora, a step of 4 x 512 tokens with rank 16 on all
seven projections; generate, 4 prompts x 3 samples, 100 new tokens forced, temperature 0.9 and top-p 0.9; generate_peft,
16 x 3 through an adapter, which ours merges first (`hrm_train train` does that once for each step; it is not in these
numbers and takes some 5 ms). The other side's modes: causal_reference.py. The fastest by its median counts.

Needs a GPU, a build of hrm_train, torch, transformers and peft.
"""
import json
import pathlib
import random
import statistics
import sys
import tempfile

from comparison import HERE, ROOT, Group, command, gib, known, machine, run_bench, say, step_numbers

SHAPE = dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
             num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, rms_norm_eps=1e-6, rope_theta=1000000.0,
             tie_word_embeddings=True, hidden_act="silu", model_type="qwen3", architectures=["Qwen3ForCausalLM"])
WORKS = {
    "lora": dict(title="LoRA step, 4 x 512 tokens", modes=["default", "reduce-overhead", "default+fp32"], unit="ms"),
    "generate": dict(title="generation, 4 x 3 rows", prompts=4, samples=3, modes=["dynamic", "static"], unit="tokens/s"),
    "generate_peft": dict(title="generation, 16 x 3 rows with an adapter", prompts=16, samples=3,
                          modes=["dynamic+peft"], unit="tokens/s"),
}
MODES = ["eager", "default", "reduce-overhead", "dynamic", "static"]
MODES += [f"{mode}+fp32" for mode in MODES[:3]] + [f"{mode}+peft" for mode in MODES[3:]]
PROMPT, NEW = 64, 100


def write_rows(folder):
    """Prompts and responses of random letters, longer than the rows that they are cut to; a tokenizer of characters comes
    from `hrm_train data answers`."""
    draw = random.Random(1)
    with open(folder / "train.jsonl", "w", encoding="utf-8") as file:
        for _ in range(64):
            prompt, response = ("".join(draw.choice("abcdefghij klmnop") for _ in range(n)) for n in (64, 480))
            file.write(json.dumps({"prompt": "x" + prompt, "response": "x" + response + "x"}) + "\n")


def ours(args, name, folder):
    if name == "lora":
        settings = ["task=polychromic", f"hf.model={folder / 'model'}", "hf.weights=random", f"hf.tokenizer={folder / 'tokens'}",
                    f"data.train={folder / 'rows'}", "chat.template=plain", "chat.max_length=513", "chat.val_share=0",
                    "chat.buckets=1", "polychromic.objective=none", "optim.name=adamw", "optim.warmup_steps=0",
                    "optim.grad_clip=1", "train.global_batch_size=4", "lora.r=16", "lora.alpha=16"]
        result = run_bench([args.binary, "bench", "step", "--steps", "30", "--warmup", "10", "--profile-steps", "0", *settings],
                           folder, args.limit)
        return result if "error" in result else step_numbers(result, 4)
    rows = WORKS[name]["prompts"] * WORKS[name]["samples"]
    settings = ["lm.arch=decoder", "lm.hidden_size=1024", "lm.num_heads=16", "lm.kv_heads=8", "lm.head_dim=128",
                "lm.inner=3072", "lm.layers=28", "lm.qk_norm=true", "lm.rope_theta=1000000"]
    result = run_bench([args.binary, "bench", "generate", "--rows", str(rows), "--prompt", str(PROMPT), "--new", str(NEW),
                        "--vocab-size", str(SHAPE["vocab_size"]), "--temperature", "0.9", "--top-p", "0.9", *settings],
                       folder, args.limit)
    if "error" in result:
        return result
    seconds = statistics.median(result["runs"][0]["seconds"])
    return dict(seconds=round(seconds, 4), tokens_per_s=round(rows * NEW / seconds, 1))


def start_peers(args, name, folder):
    work, peers = WORKS[name], []
    for mode in args.modes or work["modes"]:
        words = [args.python, str(HERE / "causal_reference.py"), "--model", str(folder / "model"), "--mode", mode,
                 "--work", "lora" if name == "lora" else "generate"]
        if name != "lora":
            words += ["--prompts", str(work["prompts"]), "--samples", str(work["samples"]), "--prompt", str(PROMPT),
                      "--new", str(NEW)]
        peer = Group(lambda rank, words=words: words)
        peer.mode = mode
        answer = peer.answer(args.limit)
        if "error" in answer:
            say(f"{name}, {mode}: {answer['error']}")
            peer.stop()
            continue
        say(f"{name}, {mode}: ready after {answer['ready']['warmup_s']} s, {answer['ready']}")
        peers.append(peer)
    return peers


def table(turns):
    lines = ["| work | PEFT, transformers: best mode | theirs | ours | ratio | peak GiB, theirs and ours |",
             "|---|---|---:|---:|---:|---:|"]
    for name in dict.fromkeys(t["work"] for t in turns):
        key = "ms_per_step" if name == "lora" else "tokens_per_s"

        def values(mode):
            return sorted(t[key] for t in turns if t["work"] == name and t["mode"] == mode and key in t)

        def shown(mode):
            all_of = values(mode)
            return f"{statistics.median(all_of):,.1f} ({all_of[0]:,.1f}-{all_of[-1]:,.1f})"

        modes = [m for m in dict.fromkeys(t["mode"] for t in turns if t["work"] == name) if m != "hrm_train" and values(m)]
        if not modes or not values("hrm_train"):
            continue
        median = {m: statistics.median(values(m)) for m in [*modes, "hrm_train"]}
        best = min(modes, key=lambda m: median[m]) if name == "lora" else max(modes, key=lambda m: median[m])
        ratio = median[best] / median["hrm_train"] if name == "lora" else median["hrm_train"] / median[best]
        peak = {m: max((t.get("peak_bytes") or 0) for t in turns if t["work"] == name and t["mode"] == m) for m in median}
        lines.append(f"| {WORKS[name]['title']}, {WORKS[name]['unit']} | {best} | {shown(best)} | {shown('hrm_train')} | "
                     f"**{ratio:.2f}** | {gib(peak[best])}, {gib(peak['hrm_train'])} |")
        lines += [f"| | {m} | {shown(m)} | | {(median[m] / median['hrm_train'] if name == 'lora' else median['hrm_train'] / median[m]):.2f} | |"
                  for m in modes if m != best]
    return "\n".join(lines)


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--work", default=",".join(WORKS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--modes", default="", help="of the other side, comma-separated (default: by the work)")
    parser.add_argument("--rounds", type=command.count(), default=3, help="turns of each side (default: %(default)s)")
    parser.add_argument("--limit", type=command.count(), default=600,
                        help="seconds that compiling, or a turn, may take (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable, help="with torch, transformers and peft (default: this one)")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all turns")
    args = parser.parse_args()
    names = known(args.work.split(","), list(WORKS), "work")
    args.modes = known([m for m in args.modes.split(",") if m], MODES, "mode")
    command.writable(args.out)
    args.binary = command.program(args.binary)
    about, turns = machine("cuda", args.binary), []

    def add(**record):
        turns.append(dict(**about, **record))
        say(f"{record['work']:14} {record['mode']:14} "
            f"{record.get('error') or record.get('ms_per_step') or record.get('tokens_per_s')}")
        if args.out:
            args.out.write_text(json.dumps(turns, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="compare_causal_") as scratch:
        folder = pathlib.Path(scratch)
        for part in ("model", "rows"):
            (folder / part).mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
        write_rows(folder / "rows")
        made = Group(lambda rank: [args.binary, "data", "answers", "--train", "10", "--validation", "0", "--test", "0",
                                   "--out", str(folder / "tokens")])
        error = made.ended(60)
        made.stop()
        if error:
            raise command.Failure(command.MACHINE, f"hrm_train data answers: {error}")
        for name in names:
            peers = start_peers(args, name, folder)
            try:
                for number in range(args.rounds):
                    add(work=name, mode="hrm_train", round=number, **ours(args, name, folder))
                    for peer in list(peers):
                        result = peer.ask({"run": 30 if name == "lora" else 3}, args.limit)
                        add(work=name, mode=peer.mode, round=number, **result)
                        if "error" in result:
                            peers.remove(peer)
                            peer.stop()
            finally:
                for peer in peers:
                    peer.stop()
    print(table(turns))
    return 0


if __name__ == "__main__":
    command.run(main)
