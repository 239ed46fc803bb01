#!/usr/bin/env python3
"""Times training steps of language models of hrm_train and of PyTorch side by side on one GPU.

    .venv/bin/python scripts/bench/compare_lm.py --work decoder --out lm.json
    .venv/bin/python scripts/bench/compare_lm.py --work hrm_moe --peers default,graph,graph+copies
    .venv/bin/python scripts/bench/compare_lm.py --work decoder,decoder1024,decoder2048,decoder4096 \\
        --peers graph,graph+float8,graph+float8rowwise --ours-also precision.blocks=fp8

Both sides train the same model with the same batch on random tokens, in turns: `hrm_train bench step`, then PyTorch
(lm_reference.py) in each variant of --peers, and so on for --rounds rounds; the fastest variant by its median counts.
The PyTorch processes compile at the start, all at the same time (but those that tune kernels, one after the other),
and then wait for their turns. Its model is made of the values of ours as `hrm_train config --json` gives them, and
both must have the same number of parameters; tests/objectives/peer_python_test.cpp compares logits, loss and
gradients.

A variant joins one of each of these by +, what is not named is the first: a mode (default, eager, reduce-overhead,
max-autotune-no-cudagraphs, graph, graph-max-autotune), casts or copies, plain or chunked (the cross-entropy), auto,
cudnn, flash or efficient (attention), plain, float8 or float8rowwise (torchao's linear layers), and whole or parts (for
HRM models and float8 parts is the first). lm_reference.py explains them. Works in 8 bits have a table of their own:
each side compared with its fastest turns in 16 bits.

--out takes all turns as JSON; an error of a variant is told and it is left out. Needs a GPU, a build of hrm_train, and
torch.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from comparison import HERE, ROOT, Group, command, gib, known, machine, run_bench, say, spread, step_numbers, summary

NO_TEST = ["data.test=none", "train.eval_every=0", "train.micro_batch_size=0", "optim.name=adamw", "optim.grad_clip=1"]
PEERS = "default,graph,graph+cudnn,graph+copies,graph+chunked,reduce-overhead,graph-max-autotune"
DEFAULT_WORKS = "decoder,hrm_moe"
OURS = "hrm_train"


def decoder_of(layers, width, heads, inner, rows, tokens):
    return dict(title=f"decoder, {layers} layers, D {width:,}, {rows} x {tokens:,} tokens", vocabulary=32000,
                settings=["lm.arch=decoder", f"lm.layers={layers}", f"lm.hidden_size={width}", f"lm.num_heads={heads}",
                          f"lm.inner={inner}", "data.encoder_len=0", f"data.decoder_len={tokens}",
                          f"train.global_batch_size={rows}"])


# name: title, our settings, vocabulary
WORKS = {
    "decoder": dict(title="decoder, 12 layers, D 768, 16 x 1,024 tokens", vocabulary=32000,
                    settings=["lm.arch=decoder", "lm.layers=12", "lm.hidden_size=768", "lm.num_heads=12",
                              "data.encoder_len=0", "data.decoder_len=1024", "train.global_batch_size=16"]),
    "decoder1024": decoder_of(12, 1024, 16, 3072, 16, 1024),
    "decoder2048": decoder_of(8, 2048, 32, 6144, 8, 2048),
    "decoder4096": decoder_of(4, 4096, 32, 12288, 8, 2048),
    "hrm_moe": dict(title="HRM-LM with experts, D 512, 8 x 512 tokens, prompts of 512", vocabulary=32000,
                    settings=["lm.arch=hrm", "lm.hidden_size=512", "lm.num_heads=8", "moe.experts=8", "moe.top_k=2",
                              "data.encoder_len=512", "data.decoder_len=512", "train.global_batch_size=8"]),
}
MODES = ["default", "eager", "reduce-overhead", "max-autotune-no-cudagraphs", "graph", "graph-max-autotune"]
CHOICES = [("--mode", MODES), ("--precision", ["casts", "copies"]), ("--cross-entropy", ["plain", "chunked"]),
           ("--sdpa", ["auto", "cudnn", "flash", "efficient", "math"]),
           ("--linear", ["plain", "float8", "float8rowwise"]), ("--regions", ["whole", "parts"])]
TUNED = ("max-autotune-no-cudagraphs", "graph-max-autotune")  # their compilation times kernels, so it must be alone


def in_8_bits(variant):
    return "float8" in variant


def peer_options(variant, kind):
    """The options of lm_reference.py that a variant stands for."""
    chosen = {option: words[0] for option, words in CHOICES}
    if kind == "hrm" or in_8_bits(variant):
        chosen["--regions"] = "parts"
    for word in variant.split("+"):
        # What two options call plain is the first one of either.
        option = next((option for option, words in CHOICES if word in words), None)
        if option is None:
            raise command.Failure(command.USAGE, f"no variant '{variant}': nothing is called '{word}'; see --help")
        chosen[option] = word
    return [text for option, word in chosen.items() for text in (option, word)]


def peer_sizes(config, vocabulary):
    """What lm_model.py calls the model of this configuration. A Failure for what it has not."""
    lm, moe, objective, data = (config[section] for section in ("lm", "moe", "objective", "data"))
    no = [("style prototype", lm["style"] != "modern"), ("window", lm["window"] > 0), ("recompute", lm["recompute"]),
          ("freeze", lm["freeze"] != ""), ("document_masks", data["document_masks"])]
    hrm, experts = lm["arch"] == "hrm", moe["experts"] > 0
    if hrm:
        no += [("encoder mamba2", lm["encoder"] != "transformer"), ("bridge cross_attention", lm["bridge"] != "prefix")]
    elif data["encoder_len"]:
        no += [("prompts in front of the rows", True)]
    if experts:
        no += [(f"moe.{key}", moe[key] != 0) for key in ("capacity_factor", "bias_rate", "jitter", "shared_experts")]
        no += [("moe.score sigmoid", moe["score"] != "softmax"), ("moe.activation swiglu", moe["activation"] != "gelu")]
    for what, used in no:
        if used:
            raise command.Failure(command.USAGE, f"the PyTorch side has no {what}; compare a model without")
    sizes = dict(kind=lm["arch"], vocabulary=vocabulary, width=lm["hidden_size"], heads=lm["num_heads"],
                 positions=max(lm["positions"], 1024, data["decoder_len"]) + (lm["prefix_len"] if hrm else 0),
                 eps=lm["rms_norm_eps"])
    sizes |= {key: lm[key] for key in ("layers", "kv_heads", "head_dim", "inner", "rope_theta", "qk_norm", "tied")}
    if experts:
        place = moe["place"]
        sizes |= dict(moe_every=moe["every"] if place in ("auto", "both", "decoder") else 0,
                      enc_moe_every=moe["every"] if hrm and place in ("auto", "both", "encoder") else 0,
                      expert_inner=moe["inner"])
        sizes |= {key: moe[key] for key in ("experts", "top_k", "normalize", "load_weight", "z_weight")}
    if hrm:
        same = ["enc_layers", "h_layers", "l_layers", "h_len", "l_len", "h_cycles", "l_steps", "gradient_cycles"]
        sizes |= {key: lm[key] for key in same + ["prefix_len", "gate_scale", "gate_bias"]}
        sizes |= dict(max_prompt=max(lm["positions"], 1024, data["encoder_len"]), halting=objective["halting"] > 0,
                      deep_supervision=objective["deep_supervision"], halting_weight=objective["halting"],
                      halting_target=objective["halting_target"])
    return sizes


def write_data(folder, vocabulary, prompt, tokens, rows):
    """Triples of random ids, all rows full."""
    draw = random.Random(0)

    def ids(length):
        return [draw.randrange(vocabulary) for _ in range(length)]

    folder.mkdir()
    meta = dict(vocab_size=vocabulary, pad_id=0, bos_id=-1, eos_id=-1, tokenizer_file="")
    (folder / "meta.json").write_text(json.dumps(meta))
    with open(folder / "train.jsonl", "w", encoding="utf-8") as file:
        for _ in range(rows):
            text = ids(tokens + 1)
            record = dict(encoder_ids=ids(max(prompt, 1)), decoder_input_ids=text[:-1], labels=text[1:])
            file.write(json.dumps(record) + "\n")


class Peer(Group):
    def __init__(self, args, work, variant):
        self.variant, config = variant, work["config"]
        words = [args.python, str(HERE / "lm_reference.py"), "--sizes", json.dumps(work["sizes"]), "--serve",
                 "--device", args.device, "--rows", str(config["train"]["global_batch_size"]),
                 "--tokens", str(config["data"]["decoder_len"]), "--clip", str(config["optim"]["grad_clip"]),
                 *peer_options(variant, work["sizes"]["kind"])]
        if work["sizes"]["kind"] == "hrm":
            words += ["--prompt", str(config["data"]["encoder_len"]), "--prompt-mask"]
        if args.device == "cpu":
            words += ["--dtype", "float32"]
        super().__init__(lambda rank: words)


def compiled(args, work):
    """The variants that are ready for their turns."""
    good = []

    def wait_for(peers):
        for peer in peers:
            answer = peer.answer(args.limit)
            if "error" in answer:
                say(f"PyTorch, {peer.variant}: {answer['error']}")
                continue
            say(f"PyTorch, {peer.variant}: ready after {answer['ready']['warmup_s']} s")
            peer.parameters = answer["ready"]["parameters"]
            good.append(peer)

    tuned = [v for v in args.peers if any(word in TUNED for word in v.split("+"))]
    wait_for([Peer(args, work, v) for v in args.peers if v not in tuned])
    for variant in tuned:
        wait_for([Peer(args, work, variant)])
    return good


def run_ours(args, work, folder, more=()):
    words = [args.binary, "bench", "step", "--steps", str(args.steps), "--warmup", "10", "--settle", str(args.settle),
             "--profile-steps", "0", *work["settings"], *more]
    result = run_bench(words, folder, args.limit)
    if "error" in result:
        raise command.Failure(command.MACHINE, f"hrm_train bench step: {result['error']}")
    return step_numbers(result, work["config"]["train"]["global_batch_size"]) | dict(parameters=result["parameters"])


def measure(args, name, add):
    work = dict(WORKS[name])
    with tempfile.TemporaryDirectory(prefix="compare_lm_") as scratch:
        data = pathlib.Path(scratch) / "data"
        work["settings"] = ["task=language", f"data.train={data}", *NO_TEST, *work["settings"], *args.ours_set]
        work["config"] = ours_config(args, work["settings"])
        work["sizes"] = peer_sizes(work["config"], work["vocabulary"])
        lengths, rows = work["config"]["data"], work["config"]["train"]["global_batch_size"]
        write_data(data, work["vocabulary"], lengths["encoder_len"], lengths["decoder_len"], 8 * rows)
        peers = compiled(args, work)
        try:
            for number in range(args.rounds):
                ours = run_ours(args, work, scratch)
                for peer in peers:
                    if peer.parameters != ours["parameters"]:
                        raise command.Failure(command.DATA, f"{name}: hrm_train has {ours['parameters']} parameters, "
                                                            f"PyTorch {peer.parameters}: not the same model")
                add(side="ours", variant=OURS, round=number, **ours)
                for more in args.ours_also:
                    add(side="ours", variant=f"{OURS} {more}", round=number,
                        **run_ours(args, work, scratch, more.split()))
                for peer in list(peers):
                    result = peer.ask({"run": args.steps, "settle": args.settle}, args.limit)
                    add(side="pytorch", variant=peer.variant, round=number, **result)
                    if "error" in result:
                        peers.remove(peer)
        finally:
            for peer in peers:
                peer.stop()


def ours_config(args, settings):
    """The whole configuration as hrm_train resolves it."""
    done = subprocess.run([args.binary, "config", "--json", *settings], capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or "no words").splitlines()[-1]
        raise command.Failure(done.returncode, f"hrm_train config: {last}")
    return json.loads(done.stdout)


def table(turns):
    lines = ["| work | PyTorch, its best variant | ms per step | hrm_train, ms per step | ratio | "
             "peak GiB, PyTorch and ours |",
             "|---|---|---:|---:|---:|---:|"]
    others = []
    for name in dict.fromkeys(t["work"] for t in turns):
        mine = [t for t in turns if t["work"] == name]
        ours = summary([t for t in mine if t["variant"] == OURS])
        sides = {v: summary([t for t in mine if t["variant"] == v and t["side"] == "pytorch"])
                 for v in dict.fromkeys(t["variant"] for t in mine if t["side"] == "pytorch")}
        sides = {v: s for v, s in sides.items() if s}
        wide = {v: s for v, s in sides.items() if not in_8_bits(v)}
        others += [f"{name}, {v}: {spread(s)} ms, {gib(s['peak'])} GiB" for v, s in sides.items()]
        if not ours or not wide:
            continue
        best = min(wide, key=lambda v: wide[v]["median"])
        lines.append(f"| {mine[0]['title']} | {best} | {spread(sides[best])} | {spread(ours)} | "
                     f"**{sides[best]['median'] / ours['median']:.2f}** | "
                     f"{gib(sides[best]['peak'])}, {gib(ours['peak'])} |")
    return "\n".join(lines + [""] + others) + "\n"


def table_of_8_bits(turns):
    """What a side gains over its own fastest turns; nothing without such turns."""
    lines = ["| work | side | variant | ms per step | gain over its 16 bits | peak memory |", "|---|---|---|---:|---:|---:|"]
    for name in dict.fromkeys(t["work"] for t in turns):
        mine = [t for t in turns if t["work"] == name]
        found = {(side, variant): summary([t for t in mine if (t["side"], t["variant"]) == (side, variant)])
                 for side, variant in dict.fromkeys((t["side"], t["variant"]) for t in mine)}
        found = {key: s for key, s in found.items() if s}
        for side in ("ours", "pytorch"):
            def is_wide(variant):
                return variant == OURS if side == "ours" else not in_8_bits(variant)
            wide = [s for (at, variant), s in found.items() if at == side and is_wide(variant)]
            if not wide:
                continue
            base = min(wide, key=lambda s: s["median"])
            for (at, variant), s in found.items():
                if at != side or is_wide(variant):
                    continue
                memory = f"{100 * (s['peak'] / base['peak'] - 1):+.0f} %" if s["peak"] and base["peak"] else "-"
                lines.append(f"| {mine[0]['title']} | {side} | {variant} | {spread(s)} | "
                             f"**{base['median'] / s['median']:.2f}** | {memory} |")
    return "\n".join(["", *lines]) + "\n" if len(lines) > 2 else ""


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--work", default=DEFAULT_WORKS,
                        help=f"of {', '.join(WORKS)}, comma-separated (default: %(default)s)")
    parser.add_argument("--peers", default=PEERS, help="variants of PyTorch, comma-separated (default: %(default)s)")
    parser.add_argument("--rounds", type=command.count(), default=3, help="turns of each side (default: %(default)s)")
    parser.add_argument("--steps", type=command.count(), default=40, help="of a turn (default: %(default)s)")
    parser.add_argument("--settle", type=command.count(0), default=1, metavar="SECONDS",
                        help="of steps at the start of each turn that do not count (default: %(default)s)")
    parser.add_argument("--limit", type=command.count(), default=900,
                        help="seconds that compiling, or a turn, may take (default: %(default)s)")
    parser.add_argument("--ours-set", action="append", default=[], metavar="KEY=VALUE",
                        help="a value of our configuration; the PyTorch side follows it")
    parser.add_argument("--ours-also", action="append", default=[], metavar="'KEY=VALUE ...'",
                        help="a further turn of ours with these values, e.g. precision.blocks=fp8; may be repeated")
    parser.add_argument("--vocabulary", type=command.count(0), default=0, help="another one (for tests of this script)")
    parser.add_argument("--python", default=sys.executable, help="with torch (default: this one)")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"],
                        help="cpu: for tests of this script, in fp32")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all turns")
    args = parser.parse_args()
    names = known(args.work.split(","), list(WORKS), "work")
    args.peers = args.peers.split(",")
    for variant in args.peers:
        peer_options(variant, "hrm")
    command.writable(args.out)
    args.binary = command.program(args.binary)
    about, turns = machine(args.device, args.binary), []

    for name in names:
        if args.vocabulary:
            WORKS[name]["vocabulary"] = args.vocabulary
        # What was measured at another size must not pass for the work that its title names.
        other = args.ours_set + ([f"vocabulary {args.vocabulary}"] if args.vocabulary else [])
        title = WORKS[name]["title"] + (f" - here {', '.join(other)}" if other else "")

        def add(title=title, name=name, **record):
            turns.append(dict(work=name, title=title, **about, **record))
            say(f"{name:8} {record['side']:8} {record['variant']:28} {record.get('error') or record['ms_per_step']}")
            if args.out:
                args.out.write_text(json.dumps(turns, indent=1) + "\n", encoding="utf-8")

        measure(args, name, add)
    print(table(turns) + table_of_8_bits(turns), end="")
    return 0


if __name__ == "__main__":
    command.run(main)
