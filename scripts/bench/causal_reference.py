#!/usr/bin/env python3
"""Fine-tuning with PEFT and generation with transformers, as their users run them for speed: the other side of
compare_causal.py.

    causal_reference.py --model DIR --work lora --rows 4 --tokens 512 --mode default
    causal_reference.py --model DIR --work generate --prompts 4 --samples 3 --new 100 --mode static
    causal_reference.py --model DIR --work step --rows-file F --tokenizer T --encoder E --mode default/static+merge

DIR holds the config.json of a model; its weights are random, in bf16. Work lora: a training step with an adapter on all
seven projections, or on --targets, loss from the model, clipping by the norm, fused AdamW. Of a mixture of experts PEFT
adapts the stacked weights of the experts, where --targets has gate_proj, up_proj and down_proj. Modes: eager; those of torch.compile:
default, reduce-overhead; with "+fp32" behind one the adapter's weights are float32, as PEFT makes them, under
autocast, else bf16.

Work generate: so many samples of each prompt, `--new` tokens forced, by sampling at --temperature and --top-p.
Modes: dynamic (the library's default), static (a static cache, whose step the library compiles); with "+peft" behind
one through an adapter.

Work step: a whole step of polychromic training (causal_step.py), --batch examples by accumulation. Modes: one for
training and one for generation, e.g. default/static; layers compiles each layer by itself, which takes less time than
the whole model. "+merge" merges the adapter into the weights before answers are written and takes it out behind that
(in bf16 the weights are then not quite those of before); "+fp32" as above.

Waits for orders on its standard input, one a line, {"run": N}, of step also {"run": N, "seconds": S}, and answers with
a line of JSON. Needs torch, transformers and peft, and a GPU; --device cpu is there to try it, in float32.
"""
import json
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import causal_step

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_model(torch, args):
    from transformers import AutoConfig, AutoModelForCausalLM
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(args.model)
    with torch.device(args.device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")


def with_adapter(model, args, float32):
    from peft import LoraConfig, get_peft_model
    config = LoraConfig(r=args.rank, lora_alpha=args.rank, target_modules=args.targets.split(","), lora_dropout=0.0,
                        bias="none", task_type="CAUSAL_LM")
    return get_peft_model(model, config, autocast_adapter_dtype=float32)


def synchronize(torch, args):
    if args.device == "cuda":
        torch.cuda.synchronize()


def reset_peak(torch, args):
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(torch, args):
    return torch.cuda.max_memory_allocated() if args.device == "cuda" else None


def polychromic_steps(torch, args):
    float32 = "fp32" in causal_step.parse_mode(args.mode)[2]
    return causal_step.Steps(torch, args, with_adapter(make_model(torch, args), args, float32))


class LoraSteps:
    def __init__(self, torch, args):
        mode, _, word = args.mode.partition("+")
        self.torch, self.args, self.autocast = torch, args, word == "fp32"
        model = with_adapter(make_model(torch, args), args, self.autocast)
        model.train()
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.parameters = sum(p.numel() for p in self.weights)
        self.optimizer = torch.optim.AdamW(self.weights, lr=1e-4, fused=args.device == "cuda")
        vocabulary = model.config.vocab_size
        self.ids = torch.randint(0, vocabulary, (8, args.rows, args.tokens), device=args.device)
        self.model = model if mode == "eager" else torch.compile(model, mode=None if mode == "default" else mode)

    def step(self, i):
        torch = self.torch
        ids = self.ids[i % len(self.ids)]
        with torch.autocast(self.args.device, torch.bfloat16, enabled=self.autocast):
            loss = self.model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def warm_up(self):
        for i in range(8):
            self.step(i)
        synchronize(self.torch, self.args)

    def run(self, count):
        torch = self.torch
        reset_peak(torch, self.args)
        for i in range(5):
            self.step(i)
        synchronize(torch, self.args)
        start = time.perf_counter()
        for i in range(count):
            self.step(i)
        synchronize(torch, self.args)
        return dict(ms_per_step=round((time.perf_counter() - start) / count * 1e3, 3),
                    peak_bytes=peak_bytes(torch, self.args))


class Generation:
    def __init__(self, torch, args):
        mode, _, word = args.mode.partition("+")
        self.torch, self.args = torch, args
        model = make_model(torch, args)
        if word == "peft":
            model = with_adapter(model, args, False)
        model.eval()
        self.parameters = sum(p.numel() for p in model.parameters())
        self.model = model
        self.ids = torch.randint(0, model.config.vocab_size, (args.prompts, args.prompt), device=args.device)
        self.options = dict(max_new_tokens=args.new, min_new_tokens=args.new, num_return_sequences=args.samples,
                            do_sample=args.temperature > 0, use_cache=True, pad_token_id=0, eos_token_id=None)
        if args.temperature > 0:
            self.options |= dict(temperature=args.temperature, top_p=args.top_p, top_k=0)
        if mode == "static":
            self.options["cache_implementation"] = "static"

    def once(self):
        torch = self.torch
        synchronize(torch, self.args)
        start = time.perf_counter()
        with torch.no_grad():
            out = self.model.generate(input_ids=self.ids, attention_mask=torch.ones_like(self.ids), **self.options)
        synchronize(torch, self.args)
        seconds = time.perf_counter() - start
        if out.shape != (self.args.prompts * self.args.samples, self.args.prompt + self.args.new):
            raise command.Failure(command.DATA, f"generate gave rows of {tuple(out.shape)}")
        return seconds

    def warm_up(self):
        for _ in range(3):
            self.once()

    def run(self, count):
        reset_peak(self.torch, self.args)
        seconds = statistics.median(self.once() for _ in range(count))
        rows = self.args.prompts * self.args.samples
        return dict(seconds=round(seconds, 4), tokens_per_s=round(rows * self.args.new / seconds, 1),
                    peak_bytes=peak_bytes(self.torch, self.args))


WORKS = {
    "lora": (LoraSteps, ["eager", "default", "reduce-overhead"], "fp32"),
    "generate": (Generation, ["dynamic", "static"], "peft"),
    "step": (polychromic_steps, [], ""),
}


def check_mode(args):
    _, modes, more = WORKS[args.work]
    mode, _, word = args.mode.partition("+")
    if args.work == "step" and causal_step.parse_mode(args.mode) is None:
        raise command.Failure(command.USAGE, f"no mode '{args.mode}' of step: {causal_step.MODE}")
    if args.work != "step" and (mode not in modes or word not in ("", more)):
        raise command.Failure(command.USAGE, f"no mode '{args.mode}' of {args.work}; see --help")
    if args.work == "step" and not (args.rows_file and args.tokenizer and args.encoder):
        raise command.Failure(command.USAGE, "step needs --rows-file, --tokenizer and --encoder")


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--work", required=True, choices=list(WORKS))
    parser.add_argument("--mode", required=True)
    parser.add_argument("--rows", type=command.count(), default=4, help="of a (micro-)batch (default: %(default)s)")
    parser.add_argument("--tokens", type=command.count(), default=512)
    parser.add_argument("--rank", type=command.count(), default=16)
    parser.add_argument("--targets", default=",".join(TARGETS), help="layers with an adapter (default: %(default)s)")
    parser.add_argument("--prompts", type=command.count(), default=4)
    parser.add_argument("--samples", type=command.count(), default=3)
    parser.add_argument("--prompt", type=command.count(), default=64)
    parser.add_argument("--new", type=command.count(), default=100)
    parser.add_argument("--temperature", type=command.number(float, 0), default=0.9)
    parser.add_argument("--top-p", type=command.number(float, 0), default=0.9, help="of generate; step has 1")
    parser.add_argument("--batch", type=command.count(), default=16, help="examples of a step (default: %(default)s)")
    parser.add_argument("--weight", type=command.number(float, 0), default=0.3, help="lambda of the diversity")
    parser.add_argument("--rows-file", type=pathlib.Path, metavar="JSONL", help="prompts and responses of a step")
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="DIR", help="of a step: folder of tokenizer.json")
    parser.add_argument("--encoder", type=pathlib.Path, metavar="DIR", help="of a step: a BERT and its vocab.txt")
    parser.add_argument("--warmup", type=command.count(), default=3, help="of step, steps (default: %(default)s)")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = parser.parse_args()
    check_mode(args)
    command.need_torch()
    import torch
    if args.device == "cuda" and not torch.cuda.is_available():
        raise command.Failure(command.MACHINE, "PyTorch finds no GPU here")
    start = time.perf_counter()
    work = WORKS[args.work][0](torch, args)
    work.warm_up()
    import transformers
    import peft
    print(json.dumps(dict(ready=dict(parameters=work.parameters, warmup_s=round(time.perf_counter() - start, 1),
                                     torch=torch.__version__, transformers=transformers.__version__,
                                     peft=peft.__version__))), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "quit" in order:
            break
        print(json.dumps(work.run(order.pop("run"), **order)), flush=True)
    return 0


if __name__ == "__main__":
    command.run(main)
