#!/usr/bin/env python3
"""Greedy decoding in PyTorch, as its users write it for speed today: a pre-norm decoder (RMSNorm, rotary attention,
SwiGLU, tied head), a static cache of keys and values, a compiled step. The reference side of compare_generate.py.

    generate_reference.py --rows 1,8,64 --prompt 128 --new 256 --modes default,graph,reduce-overhead

--modes: eager; modes of torch.compile; graph: the step of mode default in one CUDA graph, recorded by hand, which
advances by itself. The prompt is read eagerly. Prints a line of JSON for each mode and number of rows: seconds of each
repetition, and of those the part until the first token. Needs torch and a GPU.
"""
import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F


class Block(torch.nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.RMSNorm(width, eps=1e-6), torch.nn.RMSNorm(width, eps=1e-6)
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.gate_up = torch.nn.Linear(width, 2 * inner, bias=False)
        self.down = torch.nn.Linear(inner, width, bias=False)

    def forward(self, h, cos, sin, mask, place, keys, values):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(h)).chunk(3, -1))

        def turn(t):
            a, b = t.float().chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(t.dtype)

        q, k = turn(q), turn(k)
        keys.index_copy_(2, place, k)
        values.index_copy_(2, place, v)
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        h = h + self.out(mixed.transpose(1, 2).flatten(-2))
        gate, up = self.gate_up(self.norm2(h)).chunk(2, -1)
        return h + self.down(F.silu(gate) * up)


class Decoder(torch.nn.Module):
    def __init__(self, o, positions):
        super().__init__()
        inner = (o.width * 8 // 3 + 255) // 256 * 256
        self.embed = torch.nn.Embedding(o.vocabulary, o.width)
        self.blocks = torch.nn.ModuleList(Block(o.width, o.heads, inner) for _ in range(o.layers))
        self.norm = torch.nn.RMSNorm(o.width, eps=1e-6)
        half = o.width // o.heads // 2
        angles = torch.arange(positions).float()[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids, place, cache):
        """ids (B, T) at the positions `place` (T) -> the best token (B, 1) behind each row."""
        h = self.embed(ids)
        cos, sin = self.cos[place].float(), self.sin[place].float()
        seen = torch.arange(cache[0][0].size(2), device=ids.device) <= place[:, None]
        for block, (keys, values) in zip(self.blocks, cache):
            h = block(h, cos, sin, seen, place, keys, values)
        return F.linear(self.norm(h[:, -1:]), self.embed.weight).argmax(-1)


class Steps:
    """The ways to make a step."""

    def __init__(self, model):
        def call(ids, place, cache):
            return model(ids, place, cache)

        self.call, self.compiled = call, {}

    def of(self, mode):
        if mode == "eager":
            return self.call
        mode = "default" if mode == "graph" else mode
        if mode not in self.compiled:
            self.compiled[mode] = torch.compile(self.call, mode=mode, dynamic=False, fullgraph=True)
        return self.compiled[mode]


def measure(steps, mode, rows, o):
    step = steps.of(mode)
    positions, head = o.prompt + o.new, o.width // o.heads
    cache = [tuple(torch.zeros(rows, o.heads, positions, head, device="cuda", dtype=torch.bfloat16) for _ in range(2))
             for _ in range(o.layers)]
    for pair in cache:
        for tensor in pair:
            torch._dynamo.mark_static_address(tensor)
    prompt = torch.randint(0, o.vocabulary, (rows, o.prompt), device="cuda")
    began = time.perf_counter()
    graph, token_in, place_in = None, torch.zeros(rows, 1, device="cuda", dtype=torch.long), torch.zeros(1, device="cuda",
                                                                                                      dtype=torch.long)
    if mode == "graph":
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step(token_in, place_in, cache)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            token_in.copy_(step(token_in, place_in, cache))
            place_in += 1

    times, firsts = [], []
    for number in range(o.repeats + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        token = steps.call(prompt, torch.arange(o.prompt, device="cuda"), cache)
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        place = torch.full((1,), o.prompt, device="cuda")
        tokens = [token]
        if graph:
            token_in.copy_(token)
            place_in.copy_(place)
        for _ in range(o.new - 1):
            if graph:
                graph.replay()
                tokens.append(token_in.clone())
            else:
                token = step(token, place, cache).clone()
                tokens.append(token)
                place += 1
        torch.cat(tokens, 1).cpu()
        if number >= 2:  # compiled, and its graph recorded
            times.append(time.perf_counter() - start)
            firsts.append(first)
    print(f"{mode}, {rows} rows: {time.perf_counter() - began:.1f} s in all", file=sys.stderr, flush=True)
    return dict(mode=mode, rows=rows, seconds=times, first_token_s=firsts, torch=torch.__version__,
                gpu=torch.cuda.get_device_name(), peak_bytes=torch.cuda.max_memory_allocated())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,8,64")
    parser.add_argument("--modes", default="default,graph,reduce-overhead")
    for name, value in (("prompt", 128), ("new", 256), ("layers", 12), ("width", 768), ("heads", 12),
                        ("vocabulary", 32000), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    o = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Decoder(o, o.prompt + o.new).to("cuda", torch.bfloat16).eval().requires_grad_(False)
    steps = Steps(model)
    for mode in o.modes.split(","):
        for rows in map(int, o.rows.split(",")):
            torch.cuda.reset_peak_memory_stats()
            with torch.inference_mode():
                try:
                    print(json.dumps(measure(steps, mode, rows, o)), flush=True)
                except Exception as error:  # one mode that fails leaves the others
                    print(f"{mode}, {rows} rows: {type(error).__name__}: {str(error).splitlines()[0]}",
                          file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
