#!/usr/bin/env python3
"""Times a step of the contrastive trainer in PyTorch: the same equations in plain operators, the PyTorch side of
compare_contrastive.py.

    scripts/bench/contrastive_reference.py 1024 2048 --rule symmetric --mode compiled

Rule symmetric: 64 free steps, 64 nudged steps of both signs at once, and the closed-form statistics. Rule backprop: autograd
through the 64 free steps. Modes: eager; graph = one CUDA graph; compiled = the relaxation step by torch.compile, then one
CUDA graph. TF32 is on for products. A step has no optimizer here, and its inputs are already on the device.
"""
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

torch = command.need_torch()
KAPPA, GAMMA, BETA_R, EPS = 8.0, 0.125, 2.0, 0.1


def relax_step(x, o, drive, keys, norms, resilience, values, metric, rate_x, rate_o, nudge, readout, bias, onehot):
    """One step; nudge (rows, 1) is sign times beta, or None in the free phase."""
    square = norms + x.square().sum(1, keepdim=True) - 2 * x @ keys.T
    cost = (square.clamp(min=0) + EPS).sqrt()
    weights = torch.softmax(BETA_R * (GAMMA * o @ values.T - resilience * cost), 1)
    pulls = weights * resilience / cost
    pull = pulls @ keys - pulls.sum(1, keepdim=True) * x
    force = GAMMA * (weights @ values - o)
    if nudge is not None:
        force = force - nudge * ((torch.softmax(o @ readout.T + bias, 1) - onehot) @ readout)
    return x + rate_x * (KAPPA * (drive - x) + pull * metric), o + rate_o * force


def statistics_of(x, o, scales, drive, inputs, keys, norms, resilience, values, scaling, root):
    square = norms + x.square().sum(1, keepdim=True) - 2 * x @ keys.T
    cost = (square.clamp(min=0) + EPS).sqrt()
    weights = torch.softmax(BETA_R * (GAMMA * o @ values.T - resilience * cost), 1) * scales
    pulls = weights * resilience / cost
    of_slot, of_row = pulls.sum(0), pulls.sum(1, keepdim=True)
    pulled = pulls.T @ x
    residual = ((x - drive) / root) @ scaling / root.unsqueeze(0) * scales
    cross = keys.T @ pulled
    outer = keys.T @ (of_slot[:, None] * keys) + x.T @ (of_row * x) - cross - cross.T
    return (-KAPPA * residual.T @ inputs, -GAMMA * weights.T @ o, (of_slot[:, None] * keys - pulled) @ scaling,
            (weights * cost).sum(0), 0.5 * outer.diagonal(), outer)


class Step:
    def __init__(self, args):
        n, d, classes, features = args.coords, args.width, 259, 3108
        make = lambda *sizes, scale=1.0: (scale * torch.randn(*sizes, device="cuda")).requires_grad_()  # noqa: E731
        torch.manual_seed(0)
        self.args = args
        self.encoder, self.log_metric = make(n, features, scale=features ** -0.5), make(n, scale=0.3)
        self.rotor = torch.linalg.qr(torch.randn(n, n, device="cuda"))[0]
        self.keys, self.values = make(args.slots, n), make(args.slots, d, scale=0.3)
        self.resilience, self.readout, self.bias = make(args.slots, scale=0.01), make(classes, d, scale=d ** -0.5), make(classes)
        self.inputs = torch.zeros(args.rows, features, device="cuda")
        self.inputs.scatter_(1, torch.randint(0, features, (args.rows, 12), device="cuda"), 1.0)
        self.targets = torch.randint(0, classes, (args.rows,), device="cuda")
        self.onehot = torch.nn.functional.one_hot(self.targets, classes).float()
        self.step = torch.compile(relax_step, dynamic=False) if args.mode == "compiled" else relax_step

    def prepared(self):
        root = (0.5 * self.log_metric).exp()
        scaling = root[:, None] * self.rotor
        keys = self.keys @ scaling.T
        drive = self.inputs @ self.encoder.T @ scaling.T
        rate = 1 / (KAPPA + (1 + self.resilience.max()) * self.log_metric.max().exp() / EPS ** 0.5)
        return keys, keys.square().sum(1), 1 + self.resilience, scaling, root, drive, self.log_metric.exp(), rate.detach()

    def relax(self, x, o, drive, parts, metric, rate, nudge=None, onehot=None):
        for _ in range(64):
            x, o = self.step(x, o, drive, *parts, metric, rate, 0.5 / GAMMA, nudge, self.readout, self.bias, onehot)
        return x, o

    def symmetric(self):
        with torch.no_grad():
            rows = self.args.rows
            keys, norms, resilience, scaling, root, drive, metric, rate = self.prepared()
            parts = (keys, norms, resilience, self.values)
            x, o = self.relax(drive, torch.zeros(rows, self.args.width, device="cuda"), drive, parts, metric, rate)
            error = torch.softmax(o @ self.readout.T + self.bias, 1) - self.onehot
            readout = error.T @ o / rows, error.mean(0)
            beta = 0.4 * GAMMA / torch.linalg.matrix_norm(self.readout).square()
            ones = torch.ones(rows, 1, device="cuda")
            signs = torch.cat((ones, -ones))
            both = lambda t: torch.cat((t, t))  # noqa: E731
            drives, inputs = both(drive), both(self.inputs)
            x, o = self.relax(both(x), both(o), drives, parts, metric, rate, signs * beta, both(self.onehot))
            return readout, statistics_of(x, o, signs / (2 * rows * beta), drives, inputs, keys, norms, resilience, self.values,
                                          scaling, root)

    def backprop(self):
        keys, norms, resilience, _, _, drive, metric, rate = self.prepared()
        _, o = self.relax(drive, torch.zeros(self.args.rows, self.args.width, device="cuda"), drive,
                          (keys, norms, resilience, self.values), metric, rate)
        loss = torch.nn.functional.cross_entropy(o @ self.readout.T + self.bias, self.targets)
        parameters = [self.encoder, self.log_metric, self.keys, self.values, self.resilience, self.readout, self.bias]
        return torch.autograd.grad(loss, parameters)


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("rows", type=command.count())
    parser.add_argument("slots", type=command.count())
    parser.add_argument("--coords", type=command.count(), default=16)
    parser.add_argument("--width", type=command.count(), default=64)
    parser.add_argument("--rule", choices=["symmetric", "backprop"], default="symmetric")
    parser.add_argument("--mode", choices=["eager", "graph", "compiled"], default="compiled")
    parser.add_argument("--repeats", type=command.count(), default=20)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    step = Step(args)
    work = getattr(step, args.rule)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    if args.mode != "eager":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        work = graph.replay
    times = []
    for _ in range(args.repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"median_ms": statistics.median(times), "least_ms": min(times), "most_ms": max(times),
                      "peak_mib": torch.cuda.max_memory_allocated() / 2 ** 20}))


if __name__ == "__main__":
    command.run(main)
