#!/usr/bin/env python3
"""The recurrence of Mamba2 in PyTorch, forward and backward, in the chunked form that is made of matrix products (Dao
and Gu, arXiv 2405.21060, section 6), under torch.compile. The reference side of compare_ssd.py.

    ssd_reference.py --rows 1 --length 4096 --heads 24 --groups 8 --state 128 --chunk 64 --mode default

Products of bfloat16 with float32 sums, decays in float32; the states are handed on by one product with the decays
between all chunks. --mode: eager or a mode of torch.compile. --launch graph replays the step from a CUDA graph; eager
launches it each time. Prints the median milliseconds of --repeats runs as JSON. Needs torch and a GPU.
"""
import argparse
import json
import statistics

import torch
import torch.nn.functional as F


def decays(a):
    """exp of the sums of a over (j, i] for all j <= i of the last dimension, else 0."""
    size = a.size(-1)
    sums = a.cumsum(-1)
    between = sums.unsqueeze(-1) - sums.unsqueeze(-2)
    below = torch.ones(size, size, dtype=torch.bool, device=a.device).tril()
    return between.masked_fill(~below, float("-inf")).exp()


def scan(x, dt, A, B, C, D, chunk):
    rows, length, heads, channels = x.shape
    groups, state = B.shape[2:]
    inside = heads // groups  # heads of a group
    count, kind = length // chunk, x.dtype
    # c: chunk, i, j: positions of it, g: group, r: head of the group, p: channel, n: place in the state
    X = (x * dt.unsqueeze(-1)).to(kind).view(rows, count, chunk, groups, inside, channels)
    B = B.view(rows, count, chunk, groups, state)
    C = C.view(rows, count, chunk, groups, state)
    a = (dt * A).view(rows, count, chunk, groups, inside).permute(0, 3, 4, 1, 2)  # (b, g, r, c, i)
    sums = a.cumsum(-1)

    scores = torch.einsum("bcign,bcjgn->bgcij", C, B)
    M = (scores.unsqueeze(2) * decays(a)).to(kind)  # (b, g, r, c, i, j)
    y = torch.einsum("bgrcij,bcjgrp->bcigrp", M, X)

    to_end = (sums[..., -1:] - sums).exp().permute(0, 3, 4, 1, 2)  # (b, c, i, g, r)
    adds = torch.einsum("bcjgrp,bcjgn->bcgrpn", (X * to_end.unsqueeze(-1)).to(kind), B)
    total = F.pad(sums[..., -1], (1, 0))  # of each chunk, (b, g, r, c + 1)
    carry = decays(total)[..., :-1, 1:].to(kind)  # from chunk d to the state before chunk c
    before = torch.einsum("bgrcd,bdgrpn->bcgrpn", carry, adds)
    from_start = sums.exp().permute(0, 3, 4, 1, 2)
    y = y + torch.einsum("bcign,bcgrpn->bcigrp", C, before) * from_start.unsqueeze(-1)
    return (y.reshape(x.shape) + x * D.unsqueeze(-1)).to(kind)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("rows", "length", "heads", "groups", "state", "chunk"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--mode", default="default")
    parser.add_argument("--launch", choices=("graph", "eager"), default="graph")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--check", action="store_true", help="compare with the recurrence in float64 instead")
    args = parser.parse_args()
    torch.manual_seed(0)
    rows, length, heads, chunk = args.rows, args.length, args.heads, args.chunk
    if length % chunk:
        parser.error(f"--length {length} is no multiple of --chunk {chunk}")

    def leaf(*sizes):
        return torch.randn(*sizes, device="cuda").bfloat16().requires_grad_()

    x = leaf(rows, length, heads, args.head_dim)
    B, C = leaf(rows, length, args.groups, args.state), leaf(rows, length, args.groups, args.state)
    dt = F.softplus(torch.randn(rows, length, heads, device="cuda") - 3).requires_grad_()
    A = (-torch.randn(heads, device="cuda").exp()).requires_grad_()
    D = torch.ones(heads, device="cuda").requires_grad_()
    grad = torch.randn(rows, length, heads, args.head_dim, device="cuda").bfloat16()
    leaves = (x, dt, A, B, C, D)
    forward = scan
    if args.mode != "eager":
        forward = torch.compile(scan, mode=None if args.mode == "default" else args.mode, fullgraph=True, dynamic=False)
    if args.check:
        with torch.no_grad():
            print(json.dumps(dict(largest_difference=check(forward, leaves, chunk))))
        return

    def step():
        return torch.autograd.grad(forward(*leaves, chunk), leaves, grad)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.synchronize()
    run = step
    if args.launch == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        run = graph.replay
    for _ in range(5):
        run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(args.repeats + 1)]
    for mark in marks[:-1]:
        mark.record()
        run()
    marks[-1].record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
    print(json.dumps(dict(mode=args.mode, chunk=chunk, launch=args.launch, median_ms=statistics.median(times),
                          min_ms=min(times), max_ms=max(times))))


def check(forward, leaves, chunk):
    """Largest difference from the recurrence position by position, as a share of the largest output."""
    y = forward(*leaves, chunk).double()
    x, dt, A, B, C, D = (leaf.double() for leaf in leaves)
    B, C = (t.repeat_interleave(x.size(2) // t.size(2), 2) for t in (B, C))
    state, out = 0, []
    for t in range(x.size(1)):
        add = (x[:, t] * dt[:, t].unsqueeze(-1)).unsqueeze(-1) * B[:, t].unsqueeze(-2)
        state = (dt[:, t] * A).exp()[..., None, None] * state + add
        out.append((state * C[:, t].unsqueeze(-2)).sum(-1) + x[:, t] * D.unsqueeze(-1))
    exact = torch.stack(out, 1)
    return ((y - exact).abs().max() / exact.abs().max()).item()


if __name__ == "__main__":
    main()
