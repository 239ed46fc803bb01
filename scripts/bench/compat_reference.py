#!/usr/bin/env python3
"""Times the two-phase window of the original contrastive trainer, rewritten in PyTorch for speed: the PyTorch side of
compare_compat.py.

    scripts/bench/compat_reference.py 16 512 --width 512 --slots 2048 --mode compiled

What is constant in a window (encoder, distances) is computed once, nothing waits for the device, and the whole window is
one CUDA graph. Every step retrieves and moves the field, as in the original. Modes: eager = the operators as they are;
compiled = the steps compiled by torch.compile first; batched = compiled, and all steps of a phase retrieve in one product,
as hrm_train does. --states float16 keeps states and bank in half precision.
"""
import json
import math
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

torch = command.need_torch()

VOCABULARY = 32000


def rotor(theta, n):
    """Layers of plane rotations; angle j turns plane j mod (n/2) of layer j / (n/2)."""
    matrix = torch.eye(n, device=theta.device)
    pairs = n // 2
    for j in range(theta.numel()):
        layer, pair = divmod(j, pairs)
        a = (2 * pair + layer) % n
        b = (a + 1) % n
        c, s = theta[j].cos(), theta[j].sin()
        row_a, row_b = matrix[a].clone(), matrix[b].clone()
        matrix[a] = c * row_a - s * row_b
        matrix[b] = s * row_a + c * row_b
    return matrix


def laplacian(field):
    return (field.roll(1, 0) + field.roll(-1, 0) + field.roll(1, 1) + field.roll(-1, 1) - 4 * field)


def one_step(field, history, distance, states, bank, beta):
    """One step of a phase: resilience, retrieval, field. field (8, 8, D, D, 2), distance (B, T + M)."""
    resilience = field.square().sum(-1).sqrt().mean()
    weights = torch.softmax(-beta * resilience * distance, 1).to(states.dtype)
    tokens = states.shape[1]
    retrieved = torch.bmm(weights[:, None, :tokens], states).squeeze(1) + weights[:, tokens:] @ bank
    memory = (history.log1p() * 0.025).clamp(0, 1)
    force = laplacian(field) * ((1 - memory) * (0.1 / 2))
    field = field + (0.005 / 0.1) * torch.stack((force[..., 1], -force[..., 0]), -1)
    return field, (history + 1).clamp(max=20), resilience, retrieved


def field_step(field, history):
    resilience = field.square().sum(-1).sqrt().mean()
    memory = (history.log1p() * 0.025).clamp(0, 1)
    force = laplacian(field) * ((1 - memory) * (0.1 / 2))
    field = field + (0.005 / 0.1) * torch.stack((force[..., 1], -force[..., 0]), -1)
    return field, (history + 1).clamp(max=20), resilience


def retrieve_all(resiliences, distance, states, bank, beta):
    weights = torch.softmax(-beta * resiliences[:, None] * distance[:, None], 2).to(states.dtype)
    tokens = states.shape[1]
    return torch.bmm(weights[..., :tokens], states) + weights[..., tokens:] @ bank


class Window:
    def __init__(self, args):
        self.args = args
        n, d, slots, device = args.coords, args.width, args.slots, "cuda"
        dtype = getattr(torch, args.states)
        torch.manual_seed(0)
        self.field = torch.randn(8, 8, 16, 16, 2, device=device) / math.sqrt(2)
        self.history = torch.zeros((), device=device)
        self.g = torch.ones(n, device=device)
        self.theta = torch.zeros(6, device=device)
        self.embedding = torch.randn(VOCABULARY, d, device=device) * 0.02
        self.bank_coord = torch.zeros(slots, n, device=device)
        self.bank_state = torch.zeros(slots, d, device=device, dtype=dtype)
        self.next = torch.zeros((), device=device, dtype=torch.long)
        self.filled = torch.zeros((), device=device, dtype=torch.long)
        self.ids = torch.randint(0, VOCABULARY, (args.rows, args.tokens), device=device)
        compiled = (lambda f: torch.compile(f, dynamic=False)) if args.mode != "eager" else (lambda f: f)  # noqa: E731
        self.step, self.field_step, self.retrieve_all = compiled(one_step), compiled(field_step), compiled(retrieve_all)

    def phase(self, query, velocity, coords, states):
        candidates = torch.cat((coords, self.bank_coord.expand(query.shape[0], -1, -1)), 1)
        square = ((candidates - query[:, None]).square() * self.g).sum(-1)
        distance = (square.clamp(min=0) + 1e-8).sqrt()
        empty = torch.arange(self.args.slots, device="cuda") >= self.filled
        distance[:, coords.shape[1]:].masked_fill_(empty, 1e4)
        field, history, resiliences = self.field, self.history, []
        for _ in range(self.args.steps):
            if self.args.mode == "batched":
                field, history, resilience = self.field_step(field, history)
            else:
                field, history, resilience, retrieved = self.step(field, history, distance, states, self.bank_state, 5.0)
            resiliences.append(resilience)
        if self.args.mode == "batched":
            retrieved = self.retrieve_all(torch.stack(resiliences), distance, states, self.bank_state, 5.0)
        speed = ((velocity.square() * self.g).sum(-1) + 1e-8).sqrt()
        return field, history, torch.stack(resiliences).mean() * speed.mean(), retrieved

    def window(self):
        n, slots = self.args.coords, self.args.slots
        x = self.embedding[self.ids]
        states, coords = x.to(self.bank_state.dtype), x[..., :n].contiguous()
        query, state = coords.mean(1), x.mean(1)
        shifted = torch.cat((self.ids[:, 1:], self.ids[:, -1:]), 1)
        target = self.embedding[shifted][..., :n].mean(1)
        turn = rotor(self.theta, n)
        rotated = query @ turn.T
        _, self_history, free, _ = self.phase(rotated, rotated, coords, states)
        self.history.copy_(self_history)
        nudge = 0.1 * (target - rotated)
        field, history, nudged, _ = self.phase((query + nudge) @ turn.T, query, coords, states)
        self.field.copy_(field)
        self.history.copy_(history)
        difference = nudged - free
        eta = 1e-2 / 1e-3
        w = turn @ rotated.mean(0)
        self.g.add_(eta * difference * w.square() / (w.square().sum() + 1e-8)).clamp_(0.01, 100)
        pairs = torch.arange(6, device="cuda")
        a = (2 * (pairs % (n // 2)) + pairs // (n // 2)) % n
        b = (a + 1) % n
        length = (w[a].square() + w[b].square()).sqrt()
        self.theta.add_(0.01 * eta * -difference * torch.atan2(w[b], w[a]) * length * (length >= 1e-6))
        self.theta.copy_(torch.remainder(self.theta + math.pi, 2 * math.pi) - math.pi)
        rows = self.args.rows
        for _ in range(2):
            places = (self.next + torch.arange(rows, device="cuda")) % slots
            self.bank_coord.index_copy_(0, places, rotated)
            self.bank_state.index_copy_(0, places, state.to(self.bank_state.dtype))
            self.next.add_(rows).remainder_(slots)
            self.filled.add_(rows).clamp_(max=slots)


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("rows", type=int)
    parser.add_argument("tokens", type=int)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--slots", type=int, default=2048)
    parser.add_argument("--coords", type=int, default=8)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--mode", choices=["eager", "compiled", "batched"], default="compiled")
    parser.add_argument("--states", choices=["float32", "float16"], default="float32")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    window = Window(args)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            window.window()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        window.window()
    times = []
    for _ in range(args.repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"mode": args.mode, "states": args.states, "median_ms": statistics.median(times),
                      "least_ms": min(times), "most_ms": max(times),
                      "peak_mib": torch.cuda.max_memory_allocated() / 2 ** 20,
                      "finite": bool(torch.isfinite(window.field).all() and torch.isfinite(window.g).all())}))


if __name__ == "__main__":
    command.run(main)
