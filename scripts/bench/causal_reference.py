#!/usr/bin/env python3
"""Fine-tuning with PEFT and generation with transformers, as their users run them for speed: the other side of
compare_causal.py.

    causal_reference.py --model DIR --work lora --rows 4 --tokens 512 --mode default
    causal_reference.py --model DIR --work generate --prompts 4 --samples 3 --new 100 --mode static

DIR holds the config.json of a model; its weights are random, in bf16. Work lora: a training step with an adapter on all
seven projections, loss from the model, clipping by the norm, fused AdamW. Modes: eager; those of torch.compile: default,
reduce-overhead; with "+fp32" behind one the adapter's weights are float32, as PEFT makes them, under autocast, else
bf16. Work generate: so many samples of each prompt, `--new` tokens forced, by sampling at --temperature and --top-p.
Modes: dynamic (the library's default), static (a static cache, whose step the library compiles); with "+peft" behind
one through an adapter. Waits for orders on its standard input, one a line, {"run": N}, and answers with a line of JSON.
Needs torch, transformers and peft, and a GPU.
"""
import json
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_model(torch, args, dtype):
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(args.model)
    with torch.device(args.device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")


def with_adapter(model, rank, float32):
    from peft import LoraConfig, get_peft_model
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=TARGETS, lora_dropout=0.0, bias="none",
                        task_type="CAUSAL_LM")
    return get_peft_model(model, config, autocast_adapter_dtype=float32)


class LoraSteps:
    def __init__(self, torch, args):
        mode, _, word = args.mode.partition("+")
        self.torch, self.args, self.autocast = torch, args, word == "fp32"
        model = with_adapter(make_model(torch, args, torch.bfloat16), args.rank, self.autocast)
        model.train()
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.parameters = sum(p.numel() for p in self.weights)
        self.optimizer = torch.optim.AdamW(self.weights, lr=1e-4, fused=True)
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
        self.torch.cuda.synchronize()

    def run(self, count):
        torch = self.torch
        torch.cuda.reset_peak_memory_stats()
        for i in range(5):
            self.step(i)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(count):
            self.step(i)
        torch.cuda.synchronize()
        return dict(ms_per_step=round((time.perf_counter() - start) / count * 1e3, 3),
                    peak_bytes=torch.cuda.max_memory_allocated())


class Generation:
    def __init__(self, torch, args):
        mode, _, word = args.mode.partition("+")
        self.torch, self.args = torch, args
        model = make_model(torch, args, torch.bfloat16)
        if word == "peft":
            model = with_adapter(model, args.rank, False)
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
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.no_grad():
            out = self.model.generate(input_ids=self.ids, attention_mask=torch.ones_like(self.ids), **self.options)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if out.shape != (self.args.prompts * self.args.samples, self.args.prompt + self.args.new):
            raise command.Failure(command.DATA, f"generate gave rows of {tuple(out.shape)}")
        return seconds

    def warm_up(self):
        for _ in range(3):
            self.once()

    def run(self, count):
        self.torch.cuda.reset_peak_memory_stats()
        seconds = statistics.median(self.once() for _ in range(count))
        rows = self.args.prompts * self.args.samples
        return dict(seconds=round(seconds, 4), tokens_per_s=round(rows * self.args.new / seconds, 1),
                    peak_bytes=self.torch.cuda.max_memory_allocated())


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--work", required=True, choices=["lora", "generate"])
    parser.add_argument("--mode", required=True)
    parser.add_argument("--rows", type=command.count(), default=4)
    parser.add_argument("--tokens", type=command.count(), default=512)
    parser.add_argument("--rank", type=command.count(), default=16)
    parser.add_argument("--prompts", type=command.count(), default=4)
    parser.add_argument("--samples", type=command.count(), default=3)
    parser.add_argument("--prompt", type=command.count(), default=64)
    parser.add_argument("--new", type=command.count(), default=100)
    parser.add_argument("--temperature", type=command.number(float, 0), default=0.9)
    parser.add_argument("--top-p", type=command.number(float, 0), default=0.9)
    parser.add_argument("--device", default="cuda", choices=["cuda"])
    args = parser.parse_args()
    mode, _, word = args.mode.partition("+")
    modes = ["eager", "default", "reduce-overhead"] if args.work == "lora" else ["dynamic", "static"]
    if mode not in modes or word not in ("", "fp32" if args.work == "lora" else "peft"):
        raise command.Failure(command.USAGE, f"no mode '{args.mode}' of {args.work}; see --help")
    command.need_torch()
    import torch
    if not torch.cuda.is_available():
        raise command.Failure(command.MACHINE, "PyTorch finds no GPU here")
    start = time.perf_counter()
    work = (LoraSteps if args.work == "lora" else Generation)(torch, args)
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
        print(json.dumps(work.run(order["run"])), flush=True)
    return 0


if __name__ == "__main__":
    command.run(main)
