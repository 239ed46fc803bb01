#!/usr/bin/env python3
"""Times causal language models of hrm_train beside PEFT and transformers on one GPU, in turns: a training step with a
low-rank adapter, generation of several answers to each prompt, and whole steps of polychromic training.

    .venv/bin/python scripts/bench/compare_causal.py --out causal.json
    .venv/bin/python scripts/bench/compare_causal.py --work generate --modes static
    .venv/bin/python scripts/bench/compare_causal.py --work step8b --modes layers/static+merge --limit 400
    .venv/bin/python scripts/bench/compare_causal.py --work step --ours polychromic.share_prompts=off --only-ours
    .venv/bin/python scripts/bench/compare_causal.py --work step --modes eager/dynamic --tiny --steps 2 --rounds 1
    .venv/bin/python scripts/bench/compare_causal.py --work lora_moe,lora_experts --modes eager,default

The models are of the shapes of Qwen3-0.6B and Qwen3-8B with random weights. Works: lora, a step of 4 x 512 tokens with
rank 16 on all seven projections; generate, 4 prompts x 3 samples, 100 new tokens forced, temperature 0.9 and top-p 0.9;
generate_peft, 16 x 3 through an adapter, which ours merges first (`hrm_train train` does that once for each step; it is
not in these numbers and takes some 5 ms); step, a whole step of `hrm_train train task=polychromic`: 16 examples of 512
tokens by accumulation of 4, three answers of 100 tokens to each, a sentence encoder of the shape of MiniLM-L6,
diversity, both losses, AdamW. Tokens of answers are drawn from the whole vocabulary, one of whose words is <eos>: next
to no answer of ours ends early, and the number of their tokens is in the result. lora8b and step8b: the same with 8
billion parameters, the sides one after the other, since both may not fit.

lora_moe, lora_experts, generate_moe: 6 of the 48 layers of Qwen3-30B-A3B (width 2048, 128 experts of 768, top 8), which
are 4.4 billion parameters with embedding and head, one side after the other. Steps of 16 x 512 tokens: lora_moe with
adapters on the four projections of attention, lora_experts on those of each expert as well. --tiny has 2 layers of 8
experts.

The other side's modes: causal_reference.py. The fastest by its median counts. Where a step's mode does not compile
within --limit, the same is tried without compiling. Of steps also their parts, and the hours that 4,446 examples x 2
epochs (556 steps) take.

Needs a GPU, a build of hrm_train, torch, transformers and peft. --tiny tries the script on the CPU with a model of a
few thousand weights, whose times say nothing.
"""
import json
import pathlib
import shutil
import statistics
import sys
import tempfile

import causal_step
import random_texts
from comparison import HERE, ROOT, Group, command, gib, known, machine, run_bench, say, step_numbers

SMALL = dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
             num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, rms_norm_eps=1e-6,
             rope_theta=1000000.0, tie_word_embeddings=True, hidden_act="silu", model_type="qwen3",
             architectures=["Qwen3ForCausalLM"])
LARGE = SMALL | dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
                     tie_word_embeddings=False)
TINY = SMALL | dict(vocab_size=2048, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=16)
MOE = SMALL | dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_size=2048,
                   intermediate_size=6144, num_hidden_layers=6, num_attention_heads=32, num_key_value_heads=4,
                   tie_word_embeddings=False, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
                   norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
TINY_MOE = MOE | TINY | dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], num_experts=8,
                             num_experts_per_tok=2, moe_intermediate_size=32, tie_word_embeddings=False)
TINY_ENCODER = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
LORA = dict(kind="lora", shape=SMALL, title="LoRA step, 4 x 512 tokens",
            modes=["default", "reduce-overhead", "default+fp32"], unit="ms", runs=30)
STEP = dict(kind="step", shape=SMALL, title="polychromic step, 16 examples x 3 answers",
            modes=["default/static+merge", "layers/static+merge", "eager/dynamic"], unit="ms", runs=10)
ALONE = dict(shape=LARGE, alone=True, rounds=1)
ONE_BY_ONE = dict(shape=MOE, tiny=TINY_MOE, alone=True)
ATTENTION = "q_proj,k_proj,v_proj,o_proj"
WORKS = {
    "lora": LORA,
    "generate": dict(kind="generate", shape=SMALL, title="generation, 4 x 3 rows", prompts=4, samples=3,
                     modes=["dynamic", "static"], unit="tokens/s", runs=3),
    "generate_peft": dict(kind="generate", shape=SMALL, title="generation, 16 x 3 rows with an adapter", prompts=16,
                          samples=3, modes=["dynamic+peft"], unit="tokens/s", runs=3),
    "step": STEP,
    "lora8b": LORA | ALONE | dict(title="LoRA step of 8B, 4 x 512 tokens", modes=["default"]),
    "step8b": STEP | ALONE | dict(title="polychromic step of 8B", modes=["layers/static+merge", "layers/dynamic+merge"],
                                  runs=20),
    "lora_moe": LORA | ONE_BY_ONE | dict(title="LoRA step of Qwen3-MoE, attention, 16 x 512 tokens", rows=16,
                                         targets=ATTENTION, modes=["eager", "default"]),
    "lora_experts": LORA | ONE_BY_ONE | dict(title="LoRA step of Qwen3-MoE, attention and experts, 16 x 512 tokens",
                                             rows=16, modes=["eager", "default"]),
    "generate_moe": ONE_BY_ONE | dict(kind="generate", title="generation of Qwen3-MoE, 16 x 3 rows", prompts=16,
                                      samples=3, modes=["dynamic"], unit="tokens/s", runs=3),
}
MODES = {"lora": ["eager", "default", "reduce-overhead", "eager+fp32", "default+fp32", "reduce-overhead+fp32"],
         "generate": ["dynamic", "static", "dynamic+peft", "static+peft"]}  # and those of causal_step.py
PROMPT, NEW, TOKENS = 64, 100, 512
WARMUP = 10  # steps of ours, in which graphs are captured
LONG_RUN = 556  # steps of 16 examples: 4,446 of them, twice
PARTS = ["merge_ms", "generate_ms", "encode_ms", "diversity_ms", "train_ms"]


def write_inputs(folder, shape, encoder):
    for part in ("model", "rows", "tokens", "encoder"):
        (folder / part).mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    random_texts.write_rows(folder / "rows" / "train.jsonl", PROMPT, TOKENS)  # cut to what is left of a row
    random_texts.write_tokenizer(folder / "tokens", shape["vocab_size"])
    random_texts.write_encoder(folder / "encoder", encoder)


# ---- hrm_train ----

def training_settings(folder):
    return ["task=polychromic", f"hf.model={folder / 'model'}", "hf.weights=random",
            f"hf.tokenizer={folder / 'tokens'}", f"data.train={folder / 'rows'}", "chat.template=plain",
            f"chat.max_length={TOKENS + 1}", "chat.val_share=0", "optim.name=adamw", "optim.warmup_steps=0",
            "optim.grad_clip=1", "lora.r=16", "lora.alpha=16"]


def our_generation(args, work, folder):
    shape, rows = work["shape"], work["prompts"] * work["samples"]
    if "num_experts" in shape:
        settings = ["task=polychromic", f"hf.model={folder / 'model'}", "hf.weights=random",
                    "polychromic.objective=none"]
    else:
        settings = ["--vocab-size", str(shape["vocab_size"]), "lm.arch=decoder", "lm.qk_norm=true",
                    "lm.rope_theta=1000000"]
        for name, other in (("hidden_size", "hidden_size"), ("num_heads", "num_attention_heads"),
                            ("head_dim", "head_dim"), ("kv_heads", "num_key_value_heads"),
                            ("inner", "intermediate_size"), ("layers", "num_hidden_layers")):
            settings.append(f"lm.{name}={shape[other]}")
    result = run_bench([args.binary, "bench", "generate", "--rows", str(rows), "--prompt", str(PROMPT), "--new",
                        str(NEW), "--temperature", "0.9", "--top-p", "0.9", *settings], folder, args.limit)
    if "error" in result:
        return result
    seconds = statistics.median(result["runs"][0]["seconds"])
    return dict(seconds=round(seconds, 4), tokens_per_s=round(rows * NEW / seconds, 1))


def our_steps(args, steps, folder, more):
    """A run of hrm_train, whose log has the parts of each step."""
    warmup = 1 if args.tiny else WARMUP
    settings = [*training_settings(folder), "chat.buckets=64", "train.global_batch_size=16", "train.micro_batch_size=4",
                "polychromic.n_generations=3", f"polychromic.max_generation_length={NEW}",
                "polychromic.diversity_temperature=0.9", "polychromic.diversity_top_p=1",
                f"polychromic.diversity_encoder_model={folder / 'encoder'}", "optim.lr=2e-4", "optim.weight_decay=0.01",
                f"train.steps={warmup + steps + 1}", "train.log_every=1", f"run.dir={folder}", "run.name=run", *more]
    shutil.rmtree(folder / "run", ignore_errors=True)
    made = Group(lambda rank: [args.binary, "train", *settings], cwd=ROOT)
    try:
        error = made.ended(args.limit)
    finally:
        made.stop()
    if error:
        return {"error": error}
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return numbers_of_run([json.loads(line) for line in lines][warmup:warmup + steps])


def numbers_of_run(lines):
    """A turn's numbers from the lines of its steps: neither those of the warm-up nor the last, which ends the run."""
    def middle(name):
        return round(statistics.median(line["perf/" + name] for line in lines), 3)

    def mean(value):
        return round(statistics.mean(value(line) for line in lines), 1)

    generated = statistics.median(line["perf/prefill_ms"] + line["perf/decode_ms"] for line in lines)
    parts = {part: round(generated, 3) if part == "generate_ms" else middle(part) for part in PARTS}
    return dict(ms_per_step=middle("step_ms"), steps=len(lines), **parts,
                ms_each=[round(line["perf/step_ms"], 1) for line in lines],
                answer_tokens=mean(lambda line: line["train/answer_tokens"]),
                encoded_tokens=mean(lambda line: line["perf/encode_tokens_per_s"] * line["perf/encode_ms"] / 1e3),
                label_tokens=mean(lambda line: line["train/tokens"]),
                peak_bytes=int(max(line["perf/memory_peak_bytes"] for line in lines)),
                reserved_bytes=int(max(line["perf/memory_reserved_bytes"] for line in lines)))


def ours(args, work, folder, more=()):
    if work["kind"] == "generate":
        return our_generation(args, work, folder)
    if work["kind"] == "step":
        return our_steps(args, work["runs"], folder, more)
    rows = work.get("rows", 4)
    settings = [*training_settings(folder), "chat.buckets=1", "polychromic.objective=none",
                f"train.global_batch_size={rows}", *more]
    if "targets" in work:
        settings.append(f"lora.targets={work['targets']}")
    result = run_bench([args.binary, "bench", "step", "--steps", str(work["runs"]), "--warmup", "10",
                        "--profile-steps", "0", *settings], folder, args.limit)
    return result if "error" in result else step_numbers(result, rows)


# ---- the other side ----

def peer_words(args, work, mode, folder):
    words = [args.python, str(HERE / "causal_reference.py"), "--model", str(folder / "model"), "--mode", mode,
             "--work", work["kind"], "--prompt", str(PROMPT), "--new", str(NEW), "--tokens", str(TOKENS),
             "--device", "cpu" if args.tiny else "cuda"]
    if work["kind"] == "generate":
        words += ["--prompts", str(work["prompts"]), "--samples", str(work["samples"])]
    if work["kind"] == "lora":
        words += ["--rows", str(work.get("rows", 4))]
    if "targets" in work:
        words += ["--targets", work["targets"]]
    if work["kind"] == "step":
        words += ["--rows-file", str(folder / "rows" / "train.jsonl"), "--tokenizer", str(folder / "tokens"),
                  "--encoder", str(folder / "encoder"), "--warmup", "1" if args.tiny else "3"]
    return words


def modes_of(args, work):
    """Those asked for that this work has, else its own."""
    return [mode for mode in args.modes if has_mode(work["kind"], mode)] or list(work["modes"])


def has_mode(kind, mode):
    return causal_step.parse_mode(mode) is not None if kind == "step" else mode in MODES[kind]


def started(args, name, folder):
    """The modes' processes, each when it is ready."""
    work = WORKS[name]
    modes = modes_of(args, work)
    for mode in modes:  # which may become more
        words = peer_words(args, work, mode, folder)
        peer = Group(lambda rank, words=words: words)
        peer.mode = mode
        answer = peer.answer(args.limit)
        if "error" not in answer:
            say(f"{name}, {mode}: ready after {answer['ready']['warmup_s']} s, {answer['ready']}")
            yield peer
            continue
        say(f"{name}, {mode}: {answer['error']}")
        peer.stop()
        if work["kind"] == "step" and causal_step.uncompiled(mode) not in modes:
            modes.append(causal_step.uncompiled(mode))


def theirs(args, work, peer):
    order = dict(run=work["runs"])
    if work["kind"] == "step":
        order["seconds"] = args.limit / 2
    return peer.ask(order, args.limit)


# ---- tables ----

def key_of(name):
    return "ms_per_step" if WORKS[name]["unit"] == "ms" else "tokens_per_s"


def table(turns):
    lines = ["| work | PEFT, transformers: best mode | theirs | ours | ratio | peak GiB, theirs and ours |",
             "|---|---|---:|---:|---:|---:|"]
    for name in dict.fromkeys(t["work"] for t in turns):
        key, title = key_of(name), f"{WORKS[name]['title']}, {WORKS[name]['unit']}"
        less = key == "ms_per_step"
        own = [t for t in turns if t["work"] == name]

        def values(mode):
            return sorted(t[key] for t in own if t["mode"] == mode and key in t)

        def shown(mode):
            all_of = values(mode)
            return f"{statistics.median(all_of):,.1f} ({all_of[0]:,.1f}-{all_of[-1]:,.1f})"

        modes = [m for m in dict.fromkeys(t["mode"] for t in own) if not m.startswith("hrm_train") and values(m)]
        if not modes or not values("hrm_train"):
            continue
        median = {m: statistics.median(values(m)) for m in [*modes, "hrm_train"]}
        ratio = {m: median[m] / median["hrm_train"] if less else median["hrm_train"] / median[m] for m in modes}
        best = min(modes, key=lambda m: ratio[m])
        peak = {m: max((t.get("peak_bytes") or 0) for t in own if t["mode"] == m) for m in median}
        lines.append(f"| {title} | {best} | {shown(best)} | {shown('hrm_train')} | **{ratio[best]:.2f}** | "
                     f"{gib(peak[best])}, {gib(peak['hrm_train'])} |")
        lines += [f"| | {m} | {shown(m)} | | {ratio[m]:.2f} | |" for m in modes if m != best]
    return "\n".join(lines)


def parts_table(turns):
    """Of whole steps: medians of their parts, and the hours of a long run."""
    turns = [t for t in turns if WORKS[t["work"]]["kind"] == "step" and "ms_per_step" in t]
    if not turns:
        return ""
    names = [part.removesuffix("_ms") for part in PARTS]
    lines = [f"| work | side | steps | ms | {' | '.join(names)} | tokens of answers | hours of {LONG_RUN} steps |",
             f"|---|---|---:|---:|{'---:|' * len(PARTS)}---:|---:|"]
    for work, mode in dict.fromkeys((t["work"], t["mode"]) for t in turns):
        own = [t for t in turns if (t["work"], t["mode"]) == (work, mode)]

        def middle(key):
            return statistics.median(t[key] for t in own)

        parts = " | ".join(f"{middle(part):,.1f}" for part in PARTS)
        lines.append(f"| {work} | {mode} | {sum(t['steps'] for t in own)} | {middle('ms_per_step'):,.1f} | {parts} | "
                     f"{middle('answer_tokens'):,.0f} | {hours(middle('ms_per_step')):.2f} |")
    return "\n" + "\n".join(lines)


def hours(ms):
    return ms * LONG_RUN / 3.6e6


def check_modes(modes):
    for mode in modes:
        if not any(has_mode(kind, mode) for kind in (*MODES, "step")):
            raise command.Failure(command.USAGE, f"no mode '{mode}'; there are {', '.join(sum(MODES.values(), []))}; "
                                                 f"of steps {causal_step.MODE}")


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--work", default="lora,generate,generate_peft,step",
                        help=f"comma-separated, of {', '.join(WORKS)} (default: %(default)s)")
    parser.add_argument("--modes", default="", help="of the other side, comma-separated (default: by the work)")
    parser.add_argument("--rounds", type=command.count(), help="turns of each side (default: 3, of 8B 1)")
    parser.add_argument("--steps", type=command.count(), help="timed steps of a turn of step (default: 10, of 8B 20)")
    parser.add_argument("--ours", default="", metavar="KEY=VALUE,...",
                        help="settings of ours, each of which gets turns of its own (lora, step)")
    parser.add_argument("--only-ours", action="store_true", help="without the other side")
    parser.add_argument("--limit", type=command.count(), default=600,
                        help="seconds that compiling, or a turn, may take; steps of the other side begin in half of "
                             "them (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable,
                        help="with torch, transformers and peft (default: this one)")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--tiny", action="store_true", help="a model of a few thousand weights on the CPU")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all turns")
    args = parser.parse_args()
    names = known(args.work.split(","), list(WORKS), "work")
    args.modes = [m for m in args.modes.split(",") if m]
    check_modes(args.modes)
    variants = [[], *([setting] for setting in args.ours.split(",") if setting)]
    if len(variants) > 1 and any(WORKS[name]["kind"] == "generate" for name in names):
        raise command.Failure(command.USAGE, "--ours has settings of training: name works with --work lora,step")
    command.writable(args.out)
    args.binary = command.program(args.binary)
    about, turns = machine("cpu" if args.tiny else "cuda", args.binary), []
    for name in names:
        if args.tiny:
            WORKS[name] |= dict(shape=WORKS[name].get("tiny", TINY))
        if args.steps and WORKS[name]["kind"] == "step":
            WORKS[name] |= dict(runs=args.steps)

    def add(name, mode, number, numbers):
        record = dict(**about, work=name, mode=mode, round=number, **numbers)
        if WORKS[name]["kind"] == "step" and "ms_per_step" in record:
            record["hours"] = round(hours(record["ms_per_step"]), 3)
        turns.append(record)
        say(f"{name:14} {mode:14} {record.get('error') or record.get('ms_per_step') or record.get('tokens_per_s')}")
        if args.out:
            args.out.write_text(json.dumps(turns, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="compare_causal_") as scratch:
        folder = pathlib.Path(scratch)
        for name in names:
            work = WORKS[name]
            write_inputs(folder, work["shape"], TINY_ENCODER if args.tiny else {})
            peers = []
            try:
                if not work.get("alone") and not args.only_ours:
                    peers += started(args, name, folder)
                for number in range(args.rounds or work.get("rounds", 3)):
                    for more in variants:
                        add(name, " ".join(["hrm_train", *more]), number, ours(args, work, folder, more))
                    alone = work.get("alone") and not args.only_ours
                    for peer in started(args, name, folder) if alone else list(peers):
                        if peer not in peers:
                            peers.append(peer)
                        result = theirs(args, work, peer)
                        add(name, peer.mode, number, result)
                        if "error" in result or work.get("alone"):
                            peers.remove(peer)
                            peer.stop()
            finally:
                for peer in peers:
                    peer.stop()
    print(table(turns) + "\n" + parts_table(turns))
    return 0


if __name__ == "__main__":
    command.run(main)
