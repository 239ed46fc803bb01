#!/usr/bin/env python3
"""A mixture-of-experts layer in PyTorch, forward and backward, as its users write it today: softmax router, top-k, sort
by expert, two grouped products, GELU or SwiGLU, weighted sum. The reference side of compare_moe.py.

    moe_reference.py --tokens 16384 --dim 1024 --width 4096 --experts 8 --top-k 2 --mode default
    moe_reference.py --tokens 16384 --dim 2048 --width 768 --experts 128 --top-k 8 --activation swiglu --mode default

--mode: eager or a mode of torch.compile. Prints the median milliseconds of --repeats runs as JSON. Needs torch and a GPU.
"""
import argparse
import json
import statistics

import torch
import torch.nn.functional as F


def hidden_of(rows, activation):
    if activation == "gelu":
        return F.gelu(rows)
    gate, up = rows.chunk(2, dim=-1)  # one product for both, as transformers stores them
    return F.silu(gate) * up


def layer(x, router, up, down, experts, top_k, activation):
    scores = (x @ router.t()).float().softmax(-1)
    weights, ids = scores.topk(top_k, dim=-1)
    flat = ids.reshape(-1)
    order = flat.argsort(stable=True)
    ends = (flat.unsqueeze(1) == torch.arange(experts, device=x.device)).sum(0).cumsum(0).to(torch.int32)
    token = order // top_k
    rows = torch._grouped_mm(hidden_of(torch._grouped_mm(x[token], up, ends), activation), down, ends)
    rows = rows * weights.reshape(-1)[order].unsqueeze(1).to(x.dtype)
    return torch.zeros_like(x).index_add_(0, token, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("tokens", "dim", "width", "experts", "top-k"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--activation", default="gelu", choices=["gelu", "swiglu"])
    parser.add_argument("--mode", default="default")
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    torch.manual_seed(0)

    def leaf(*sizes, inner):
        return (torch.randn(*sizes, device="cuda") / inner**0.5).bfloat16().requires_grad_()

    x = torch.randn(args.tokens, args.dim, device="cuda").bfloat16().requires_grad_()
    grad = torch.randn(args.tokens, args.dim, device="cuda").bfloat16()
    router = leaf(args.experts, args.dim, inner=args.dim)
    up = leaf(args.experts, args.dim, args.width * (2 if args.activation == "swiglu" else 1), inner=args.dim)
    down = leaf(args.experts, args.width, args.dim, inner=args.width)
    forward = layer if args.mode == "eager" else torch.compile(layer, mode=args.mode, dynamic=False)
    leaves = (x, router, up, down)

    def step():
        for tensor in leaves:
            tensor.grad = None
        forward(x, router, up, down, args.experts, args.top_k, args.activation).backward(grad)

    for _ in range(10):
        step()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(args.repeats)]
    for begin, end in marks:
        begin.record()
        step()
        end.record()
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) for begin, end in marks]
    print(json.dumps(dict(mode=args.mode, median_ms=statistics.median(times), min_ms=min(times), max_ms=max(times))))


if __name__ == "__main__":
    main()
