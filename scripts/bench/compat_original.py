#!/usr/bin/env python3
"""Times the two-phase window of the original contrastive trainer, as it is, with an encoder that is the embedding alone:
the other side of compare_compat.py.

    git clone https://github.com/JewJitsu11B/Liorhybrid && git -C Liorhybrid checkout 9450d00
    scripts/bench/compat_original.py Liorhybrid 16 512 --width 512 --slots 2048

The checkout's folder must be called Liorhybrid, for its modules import each other by this name. --network takes its own
network in place of the embedding (commit 2b922e8; at 9450d00 it fails).
"""
import contextlib
import io
import json
import pathlib
import statistics
import sys
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

VOCABULARY = 32000
COUNTED = {"cudaLaunchKernel": "launches", "cudaLaunchKernelExC": "launches", "cuLaunchKernel": "launches",
           "cuLaunchKernelEx": "launches", "cudaMemcpyAsync": "copies", "cudaStreamSynchronize": "waits",
           "cudaDeviceSynchronize": "waits"}


def quiet():
    return contextlib.redirect_stdout(io.StringIO())


class Original:
    def __init__(self, args):
        torch = command.need_torch()
        if args.checkout.name != "Liorhybrid" or not (args.checkout / "training" / "trainer2.py").is_file():
            raise command.Failure(command.DATA, f"{args.checkout} is no checkout of Liorhybrid in a folder of that name")
        sys.path.insert(0, str(args.checkout.resolve().parent))
        for name in ("matplotlib", "matplotlib.pyplot", "matplotlib.animation"):  # imported for pictures alone
            sys.modules.setdefault(name, types.ModuleType(name))
        sys.modules["matplotlib"].pyplot = sys.modules["matplotlib.pyplot"]
        if not hasattr(sys.modules["matplotlib.pyplot"], "Figure"):
            sys.modules["matplotlib.pyplot"].Figure = object
        with quiet():
            from Liorhybrid.core import CognitiveTensorField, FieldConfig
            from Liorhybrid.training import trainer2
            from Liorhybrid.training.embeddings import MultimodalEmbedding
        self.torch, self.t2, self.args = torch, trainer2, args
        torch.manual_seed(0)

        class Embedding(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.unused = torch.nn.Parameter(torch.zeros(1))

            def forward(self, x, field_state, time=None, attention_mask=None):
                return x, None

        with quiet():
            self.field = CognitiveTensorField(FieldConfig(spatial_size=(8, 8), tensor_dim=16, adaptive_learning=True,
                                                          device="cuda"))
            if args.network:
                from Liorhybrid.inference.geometric_stack import GeometricTransformerWithMamba
                self.model = GeometricTransformerWithMamba(d_model=args.width, n_mamba_layers=4, n_attention_layers=2,
                                                           n_heads=8, field_dim=16, max_seq_len=args.tokens).cuda()
            else:
                self.model = Embedding().cuda()
            self.model.input_embedding = MultimodalEmbedding(vocab_size=VOCABULARY, d_model=args.width,
                                                             max_seq_len=args.tokens).cuda()
        self.settings = trainer2.TrainConfig(telemetry_jsonl=False, save_every_windows=0)
        self.memory = trainer2.SimpleSDMMemory(coord_dim_n=8, capacity=args.slots, static_shapes=True)
        self.geometry = trainer2.precompute_geometry(self.settings)
        self.hooks = trainer2.build_sdm_hooks(self.model, self.field, self.memory)
        self.rotor = trainer2.RotorState(theta=torch.zeros(6, device="cuda"), theta2=torch.zeros(6, device="cuda"))
        torch.set_grad_enabled(False)
        trainer2.disable_gradients(self.model, self.field, self.memory, self.rotor)
        trainer2.apply_backend_flags(self.settings)
        self.model.train()
        self.batch = {"input_ids": torch.randint(0, VOCABULARY, (args.rows, args.tokens)).cuda(),
                      "attention_mask": torch.ones(args.rows, args.tokens, dtype=torch.long).cuda(), "modality": "text"}
        self.windows = 1  # window 0 saves and prints

    def window(self, steps):
        self.settings.tbptt_window_steps = steps
        with quiet():
            free, _ = self.t2.run_two_phase_and_update(
                model=self.model, field=self.field, memory=self.memory, rotor_state=self.rotor, batch=self.batch,
                cfg=self.settings, geom=self.geometry, hooks=self.hooks, window_idx=self.windows)
            self.t2._maybe_update_memory(self.memory, free)
        self.windows += 1

    def counts(self):
        """Of a step, from a window of 8 free and 8 nudged ones."""
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            self.window(8)
            self.torch.cuda.synchronize()
        totals = {"launches": 0, "copies": 0, "waits": 0}
        for event in found.events():
            if event.name in COUNTED:
                totals[COUNTED[event.name]] += 1
        return {f"{name}_per_step": count / 16 for name, count in totals.items()}


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("rows", type=command.count())
    parser.add_argument("tokens", type=command.count())
    parser.add_argument("--width", type=command.count(), default=512)
    parser.add_argument("--slots", type=command.count(), default=2048)
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--repeats", type=command.count(), default=3)
    args = parser.parse_args()
    original = Original(args)
    torch = original.torch
    original.window(4)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(args.repeats + 1):
        start = time.perf_counter()
        original.window(64)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    times = times[1:]
    print(json.dumps({"median_ms": statistics.median(times), "least_ms": min(times), "most_ms": max(times),
                      "peak_mib": torch.cuda.max_memory_allocated() / 2 ** 20, **original.counts()}))


if __name__ == "__main__":
    command.run(main)
