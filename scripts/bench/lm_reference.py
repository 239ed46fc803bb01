#!/usr/bin/env python3
"""A training step of a language model in PyTorch, as fast as its users get it: the reference side of compare_lm.py.

    lm_reference.py --rows 16 --tokens 1024 --mode graph                                     # decoder, 12 layers, D 768
    lm_reference.py --kind hrm --rows 8 --tokens 512 --prompt 512 --width 512 --heads 8 --layers 2 --moe-every 1

The models stand in lm_model.py: scaled_dot_product_attention, experts by torch._grouped_mm. A step is forward,
backward, clipping of the gradients' norm, and fused AdamW; its loss is read back at the end of the timed steps alone.

--mode: eager; torch.compile's default, reduce-overhead, max-autotune-no-cudagraphs; graph and graph-max-autotune:
compiled in mode default or max-autotune-no-cudagraphs, and the whole step, the optimizer's included, captured as one
CUDA graph.
--regions: whole compiles model and loss as one graph; parts compiles each memory's network, encoder, decoder and loss
on their own, which for HRM models takes a fraction of the time (their recursion is not unrolled).
--linear: float8 and float8rowwise let torchao (recipes tensorwise and rowwise) multiply in 8 bits in the linear layers
of a decoder's blocks, which parts compiles with fullgraph=True; the head stays as it is. A CPU emulates it.
--precision: casts keeps fp32 weights and converts them where they are used, as autocast does; copies keeps bf16
weights beside fp32 masters that AdamW updates.

Prints one JSON object: milliseconds of a step (mean, of --steps steps), peak memory, number of parameters, loss. With
--serve it compiles, prints {"ready": ...}, and answers a line of JSON for each line {"run": STEPS, "settle": SECONDS}
of the standard input, as official_step.py does. --check FILE computes what hrm_train has written there
(tests/objectives/peer_python_test.cpp) and prints how far both are apart. Needs torch (2.11 is what our side uses);
for torch.compile a C++ compiler and the headers of Python.
"""
import contextlib
import dataclasses
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    command.run(command.need_torch)

import lm_model  # noqa: E402

RECIPES = dict(plain=None, float8="tensorwise", float8rowwise="rowwise")  # torchao's
MODES = {"eager": None, "default": "default", "reduce-overhead": "reduce-overhead",
         "max-autotune-no-cudagraphs": "max-autotune-no-cudagraphs", "graph": "default",
         "graph-max-autotune": "max-autotune-no-cudagraphs"}
SDPA = dict(auto=None, cudnn=SDPBackend.CUDNN_ATTENTION, flash=SDPBackend.FLASH_ATTENTION,
            efficient=SDPBackend.EFFICIENT_ATTENTION, math=SDPBackend.MATH)


def convert(model, sizes, recipe, device):
    """The linear layers of the blocks become torchao's, with the same parameters."""
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        raise command.Failure(command.MACHINE, "there is no torchao for Python here; '.venv/bin/python -m pip install "
                                               "torchao==0.17.0' installs it") from None
    if sizes.kind != "decoder" or sizes.moe_every:
        raise command.Failure(command.USAGE, "torchao's linear layers are for decoders without experts; use --linear plain")
    config = Float8LinearConfig.from_recipe_name(recipe)
    if device == "cpu":
        config = dataclasses.replace(config, emulate=True)
    convert_to_float8_training(model.model.layers, config=config)


class Trainer:
    def __init__(self, sizes, mode, regions="whole", precision="casts", clip=1.0, device="cuda", lr=3e-4,
                 linear="plain"):
        torch.set_float32_matmul_precision("high")
        torch.manual_seed(0)
        self.sizes, self.mode, self.device, self.lr, self.clip = sizes, mode, device, lr, clip
        self.model = lm_model.make_model(sizes).to(device)
        self.linear = linear
        if RECIPES[linear]:
            convert(self.model, sizes, RECIPES[linear], device)
        self.params = list(self.model.parameters())
        self.masters = self.params
        if precision == "copies":
            self.masters = [p.detach().clone() for p in self.params]
            for p in self.params:
                p.data = p.data.to(sizes.dtype)
        self.rate = torch.tensor(lr, device=device)
        self.optimizer = torch.optim.AdamW(self.masters, lr=self.rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True,
                                           capturable=device == "cuda")
        self.loss_of = self.compiled(MODES[mode], regions)
        self.graph = self.inputs = self.loss = None
        self.count = 0

    def compiled(self, mode, regions):
        def loss_of(batch):
            return lm_model.language_loss(self.model, batch, self.sizes)

        if mode is None:
            return loss_of
        if regions == "whole":
            return torch.compile(loss_of, mode=mode, dynamic=False)
        if self.sizes.kind == "hrm":
            for part in (self.model.core.h_mod, self.model.core.l_mod, self.model.enc, self.model.dec.model):
                part.compile(mode=mode, dynamic=False)
        else:
            for part in self.model.model.layers:
                part.compile(mode=mode, dynamic=False, fullgraph=self.linear != "plain")
        lm_model.cross_entropy = torch.compile(lm_model.cross_entropy, mode=mode, dynamic=False)
        return loss_of

    def parameter_count(self):
        return sum(p.numel() for p in self.params)

    def plain_step(self, batch):
        for p in self.params:
            p.grad = None
        if self.mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        loss = self.loss_of(batch)
        loss.backward()
        if self.masters is not self.params:
            with torch.no_grad():
                used = [(m, p) for m, p in zip(self.masters, self.params) if p.grad is not None]
                for master, p in used:
                    master.grad = torch.empty_like(master)
                torch._foreach_copy_([m.grad for m, _ in used], [p.grad for _, p in used])
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.masters, self.clip, foreach=True)
        self.optimizer.step()
        if self.masters is not self.params:
            with torch.no_grad():
                torch._foreach_copy_(self.params, self.masters)
        return loss.detach()

    def capture(self, batch):
        """Warm-up runs on a stream of their own, as capturing wants it, then the graph."""
        self.inputs = {name: tensor.clone() for name, tensor in batch.items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.plain_step(self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()  # replays allocate nothing: what is counted is the recording
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.plain_step(self.inputs)

    def step(self, batch):
        self.count += 1
        self.rate.fill_(self.lr * min(1.0, self.count / 100))
        if not self.mode.startswith("graph"):
            return self.plain_step(batch)
        if self.graph is None:
            self.capture(batch)
        for name, tensor in batch.items():
            self.inputs[name].copy_(tensor, non_blocking=True)
        self.graph.replay()
        return self.loss


def random_batches(sizes, rows, tokens, prompt, mask, device, count=8):
    def ids(length):
        return torch.randint(0, sizes.vocabulary, (rows, length), device=device)

    batches = []
    for _ in range(count):
        text = ids(tokens + 1)
        batch = dict(ids=text[:, :-1].contiguous(), labels=text[:, 1:].contiguous())
        if sizes.kind == "hrm":
            batch["prompt_ids"] = ids(prompt)
            if mask:
                batch["prompt_mask"] = torch.ones(rows, prompt, dtype=torch.bool, device=device)
        batches.append(batch)
    return batches


class TimedSteps:
    def __init__(self, trainer, batches):
        self.trainer, self.batches, self.next = trainer, batches, 0
        self.tokens = batches[0]["ids"].numel()

    def wait(self):
        if self.trainer.device == "cuda":
            torch.cuda.synchronize()

    def run(self, steps):
        self.wait()
        start = time.perf_counter()
        for _ in range(steps):
            loss = self.trainer.step(self.batches[self.next % len(self.batches)])
            self.next += 1
        loss = loss.clone()
        self.wait()
        ms = (time.perf_counter() - start) / steps * 1e3
        result = dict(steps=steps, ms_per_step=round(ms, 3), tokens_per_s=round(self.tokens / ms * 1e3),
                      loss=round(float(loss), 4))
        if self.trainer.device == "cuda":
            result["peak_bytes"] = torch.cuda.max_memory_allocated()
            result["reserved_bytes"] = torch.cuda.max_memory_reserved()
        return result

    def settle(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.run(4)


def check(file, sizes):
    """How far this model is from what hrm_train has computed: {name: largest difference}, gradients relative to the
    largest entry of each."""
    saved = torch.load(file)
    weights = {k[7:]: v for k, v in saved.items() if k.startswith("weight/")}
    model = lm_model.make_model(sizes)
    own = dict(model.named_parameters())
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in weights.items()}:
        different = sorted(k for k in own.keys() | weights.keys()
                           if k not in own or k not in weights or own[k].shape != weights[k].shape)
        raise command.Failure(command.DATA, f"{file} and this model differ in {', '.join(different[:6])}")
    model.load_state_dict(weights)
    batch = {k: saved[k] for k in ("ids", "labels", "prompt_ids", "prompt_mask") if k in saved}
    if "prompt_mask" in batch:
        batch["prompt_mask"] = batch["prompt_mask"].bool()
    result = dict(parameters=sum(p.numel() for p in own.values()))
    with torch.no_grad():
        hidden = model(batch, [])["hidden"][0]
        result["logits"] = float((hidden @ model.head.t() - saved["logits"]).abs().max())
    for way in ("plain", "chunked"):
        s = dataclasses.replace(sizes, cross_entropy=way)
        model.zero_grad()
        loss = lm_model.language_loss(model, batch, s)
        loss.backward()
        worst = 0.0
        for name, p in own.items():
            want = saved["grad/" + name]
            got = torch.zeros_like(want) if p.grad is None else p.grad
            worst = max(worst, float((got - want).abs().max() / want.abs().max().clamp_min(1e-6)))
        result[way] = dict(loss=abs(float(loss) - float(saved["loss"])), gradients=worst)
    return result


def sizes_of(args):
    values = {}
    if args.sizes:
        try:
            values = dict(json.loads(args.sizes))
        except (ValueError, TypeError):
            raise command.Failure(command.USAGE, f"--sizes '{args.sizes[:60]}' is not a JSON object") from None
    names = {field.name for field in dataclasses.fields(lm_model.Sizes)} - {"dtype", "cross_entropy"}
    if unknown := sorted(set(values) - names):
        raise command.Failure(command.USAGE, f"--sizes: no size '{unknown[0]}'; there are {', '.join(sorted(names))}")
    values |= {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
    dtype = "float32" if args.check else args.dtype
    return lm_model.Sizes(**values, dtype=getattr(torch, dtype), cross_entropy=args.cross_entropy)


def measure(args, sizes):
    start = time.perf_counter()
    trainer = Trainer(sizes, args.mode, args.regions, args.precision, args.clip, args.device, linear=args.linear)
    work = TimedSteps(trainer, random_batches(sizes, args.rows, args.tokens, args.prompt, args.prompt_mask,
                                              args.device))
    with sdpa_kernel(SDPA[args.sdpa]) if SDPA[args.sdpa] else contextlib.nullcontext():
        work.run(1)
        if args.device == "cuda" and trainer.graph is None:
            torch.cuda.reset_peak_memory_stats()  # without what compiling took
        work.run(max(args.warmup - 1, 3))
        about = dict(kind=sizes.kind, mode=args.mode, regions=args.regions, precision=args.precision, sdpa=args.sdpa,
                     linear=args.linear, cross_entropy=args.cross_entropy, rows=args.rows, tokens=args.tokens,
                     parameters=trainer.parameter_count(), warmup_s=round(time.perf_counter() - start, 1),
                     torch=torch.__version__)
        if not args.serve:
            work.settle(args.settle)
            print(json.dumps(about | work.run(args.steps)), flush=True)
            return 0
        print(json.dumps(dict(ready=about)), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            if "quit" in order:
                break
            work.settle(order.get("settle", 0))
            print(json.dumps(work.run(order["run"])), flush=True)
    return 0


def main():
    parser = command.Parser(__doc__)
    for field in dataclasses.fields(lm_model.Sizes):
        name = "--" + field.name.replace("_", "-")
        if field.name == "kind":
            parser.add_argument(name, choices=["decoder", "hrm"])
        elif field.type in (int, float):
            parser.add_argument(name, type=command.number(field.type, 0), help=f"(default: {field.default})")
        elif field.type is bool:
            parser.add_argument(name, type=lambda text: text == "true", metavar="true|false")
    parser.add_argument("--sizes", metavar="JSON", help="the same as one object, with _ for -")
    parser.add_argument("--rows", type=command.count(), default=16, help="of a batch (default: %(default)s)")
    parser.add_argument("--tokens", type=command.count(), default=1024,
                        help="of a row's text or answer (default: %(default)s)")
    parser.add_argument("--prompt", type=command.count(), default=512, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--prompt-mask", action="store_true",
                        help="give a mask of the prompt's tokens, all of them real")
    parser.add_argument("--mode", choices=list(MODES), default="default", help="(default: %(default)s)")
    parser.add_argument("--regions", choices=["whole", "parts"], default="whole", help="(default: %(default)s)")
    parser.add_argument("--precision", choices=["casts", "copies"], default="casts", help="(default: %(default)s)")
    parser.add_argument("--linear", choices=list(RECIPES), default="plain", help="(default: %(default)s)")
    parser.add_argument("--cross-entropy", choices=["plain", "chunked"], default="plain", help="(default: %(default)s)")
    parser.add_argument("--sdpa", choices=list(SDPA), default="auto", help="(default: %(default)s)")
    parser.add_argument("--clip", type=command.number(float, 0), default=1.0,
                        help="largest norm of the gradients; 0 = any (default: %(default)s)")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="(default: %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"], help="(default: %(default)s)")
    parser.add_argument("--warmup", type=command.count(), default=12,
                        help="steps before the clock starts, compilation included (default: %(default)s)")
    parser.add_argument("--settle", type=command.count(0), default=0, metavar="SECONDS",
                        help="of further steps before the clock starts (default: %(default)s)")
    parser.add_argument("--steps", type=command.count(), default=40, help="timed steps (default: %(default)s)")
    parser.add_argument("--serve", action="store_true", help="wait for orders on the standard input")
    parser.add_argument("--check", type=pathlib.Path, metavar="FILE", help="compare with what hrm_train has computed")
    args = parser.parse_args()
    sizes = sizes_of(args)
    if args.check:
        print(json.dumps(check(args.check, sizes)))
        return 0
    if args.device == "cuda" and not torch.cuda.is_available():
        raise command.Failure(command.MACHINE, "PyTorch finds no GPU here; --device cpu goes on without")
    if args.device == "cpu" and args.mode not in ("eager", "default"):
        raise command.Failure(command.USAGE, f"--mode {args.mode} needs a GPU")
    return measure(args, sizes)


if __name__ == "__main__":
    command.run(main)
