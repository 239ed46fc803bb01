#!/usr/bin/env python3
"""Runs the official HRM or TRM code: the reference side of our comparisons.

    git clone https://github.com/sapientinc/HRM
    .venv/bin/python scripts/bench/official_step.py --model hrm --checkout HRM --batch 384 --mode default \
        --train data/sudoku/train_17clue_1k.csv

The official model and loss are imported unchanged from their checkout. Around them stand the parts of the official
trainer, chosen so that the reference is as fast as it can be:
  - PyTorch's scaled_dot_product_attention in place of the flash_attn package (HRM; TRM calls it itself);
  - AdamATan2 as foreach operations, compiled together into a few kernels; its own package does not build everywhere;
  - batches wait on the device; its own loader copies each from the host;
  - matrix products in float32 may use tf32 (there are hardly any: the model computes in bfloat16);
  - CUDA graph modes mark the start of a step and clone the carry, which they need.
Modes: eager, or torch.compile's default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs.

Prints one JSON object. With --serve it compiles, prints {"ready": ...}, and then answers one JSON line for each line
of the standard input: {"run": STEPS, "sync": true|false} or {"eval": PUZZLES, "sync": ...} or {"quit": true}. "sync"
says whether metrics are read back (each step, as the official trainer does; in an evaluation the end of each batch).
"settle", in seconds, asks for steps (an evaluation: one more) before the clock starts.

Needs torch (2.11 is what our side uses), numpy for dataset directories, and for torch.compile a C++ compiler and the
headers of Python (python3-dev); pydantic and einops where they are installed (few of their functions are used, and
replaced where they are not). .venv/bin/python, which scripts/build makes where there is a GPU, has torch and numpy.
"""
import csv
import json
import os
import pathlib
import sys
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    command.run(command.need_torch)

MODES = ["eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
MODELS = ["hrm", "trm_att", "trm_mlp"]
GRIDS = {"sudoku": dict(seq_len=81, vocab_size=11), "maze": dict(seq_len=900, vocab_size=6)}


def stand_in_for_packages():
    """Modules that the official files import and that may be missing."""
    sys.modules["flash_attn_interface"] = None  # would be preferred where it is installed
    flash = types.ModuleType("flash_attn")
    flash.flash_attn_func = lambda q, k, v, causal=False: F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal).transpose(1, 2).contiguous()
    sys.modules["flash_attn"] = flash
    try:
        import pydantic  # noqa: F401
    except ImportError:
        class BaseModel:  # the official files only read declared fields
            def __init__(self, **values):
                for name in self.__annotations__:
                    if name not in values and not hasattr(type(self), name):
                        raise TypeError(f"{name} is missing")
                self.__dict__.update({k: v for k, v in values.items() if k in self.__annotations__})

        sys.modules["pydantic"] = types.ModuleType("pydantic")
        sys.modules["pydantic"].BaseModel = BaseModel
    try:
        import einops  # noqa: F401
    except ImportError:
        swaps = {"B S H D -> B H S D", "B H S D -> B S H D"}

        def rearrange(tensor, pattern):
            if pattern not in swaps:
                raise NotImplementedError(f"einops is not installed, and '{pattern}' needs it")
            return tensor.transpose(1, 2)

        sys.modules["einops"] = types.ModuleType("einops")
        sys.modules["einops"].rearrange = rearrange


def model_config(model, grid, batch, dtype):
    config = dict(batch_size=batch, num_puzzle_identifiers=1, hidden_size=512, num_heads=8, expansion=4,
                  puzzle_emb_ndim=512, halt_max_steps=16, halt_exploration_prob=0.1, rms_norm_eps=1e-5,
                  rope_theta=10000.0, forward_dtype=dtype, causal=False, **GRIDS[grid])
    if model == "hrm":
        config |= dict(H_cycles=2, L_cycles=2, H_layers=4, L_layers=4, pos_encodings="rope")
    else:
        mlp = model == "trm_mlp"
        config |= dict(H_cycles=3, L_cycles=4 if grid == "maze" else 6, H_layers=0, L_layers=2,
                       pos_encodings="none" if mlp else "rope", mlp_t=mlp, puzzle_emb_len=16, no_ACT_continue=True)
    return config


def read_sudoku(path, device):
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [torch.tensor([[0 if c == "." else int(c) for c in row[key]] for row in rows], device=device)
            for key in ("question", "answer")]


def read_built(folder, device):
    """Tokens of a dataset directory that an official builder or `hrm_train data` wrote."""
    import numpy
    return [torch.from_numpy(numpy.load(os.path.join(folder, "train", f"all__{name}.npy"))).to(device).long()
            for name in ("inputs", "labels")]


def as_batch(question, answer):
    """Tokens as the official builder stores them: 0 is padding, digits 0..9 become 1..10."""
    return dict(inputs=(question + 1).int(), labels=(answer + 1).int(),
                puzzle_identifiers=torch.zeros(len(question), dtype=torch.int32, device=question.device))


def augmented(questions, answers, index, uniform):
    """The official transformations of Sudoku puzzles: digits, bands, rows, stacks, columns, transposition."""
    count, device = len(index), questions.device
    digits = torch.cat([torch.zeros(count, 1, device=device, dtype=torch.long), 1 + uniform(count, 9).argsort(1)], 1)

    def lines():
        return (uniform(count, 3).argsort(1).unsqueeze(2) * 3 + uniform(count, 3, 3).argsort(2)).reshape(count, 9)

    cells = (lines().unsqueeze(2) * 9 + lines().unsqueeze(1)).reshape(count, 81)
    cells = torch.where(uniform(count, 1) < 0.5, (cells % 9) * 9 + cells // 9, cells)
    return as_batch(*(digits.gather(1, x[index].gather(1, cells)) for x in (questions, answers)))


class AdamATan2:
    def __init__(self, params, lr, weight_decay, compile_it, beta1=0.9, beta2=0.95):
        self.params, self.weight_decay, self.beta1, self.beta2, self.t = params, weight_decay, beta1, beta2, 0
        self.m = [torch.zeros_like(p) for p in params]
        self.v = [torch.zeros_like(p) for p in params]
        self.update = torch.compile(self._update, dynamic=False) if compile_it else self._update

    def _update(self, grads, decay, rate, correction2):
        torch._foreach_mul_(self.params, decay)
        torch._foreach_lerp_(self.m, grads, 1 - self.beta1)
        torch._foreach_mul_(self.v, self.beta2)
        torch._foreach_addcmul_(self.v, grads, grads, 1 - self.beta2)
        for p, m, v in zip(self.params, self.m, self.v):
            p.sub_(torch.atan2(m, v.sqrt() / correction2.sqrt()) * rate)

    @torch.no_grad()
    def step(self, lr):
        self.t += 1
        values = torch.tensor([1 - lr * self.weight_decay, lr / (1 - self.beta1 ** self.t), 1 - self.beta2 ** self.t])
        if self.params[0].is_cuda:
            values = values.pin_memory().to(self.params[0].device, non_blocking=True)
        self.update([p.grad for p in self.params], *values.unbind())
        for p in self.params:
            p.grad = None


class Official:
    """The official training loop for one GPU, around the official model."""

    def __init__(self, model, checkout, batch, mode="default", grid="sudoku", device="cuda", dtype="bfloat16", seed=0,
                 lr=None, weight_decay=1.0, warmup_steps=2000, overrides=None):
        command.checkout(pathlib.Path(checkout), "HRM" if model == "hrm" else "TRM")
        stand_in_for_packages()
        sys.path.insert(0, checkout)
        from models.losses import ACTLossHead
        from models.sparse_embedding import CastedSparseEmbeddingSignSGD_Distributed
        if model == "hrm":
            from models.hrm.hrm_act_v1 import HierarchicalReasoningModel_ACTV1 as Model
        else:
            from models.recursive_reasoning.trm import TinyRecursiveReasoningModel_ACTV1 as Model
        torch.set_float32_matmul_precision("high")
        self.device, self.batch, self.mode, self.grid = device, batch, mode, grid
        self.lr = lr or (7e-5 if model == "hrm" else 1e-4)
        self.warmup_steps, self.step_count, self.carry = warmup_steps, 0, None
        self.config = model_config(model, grid, batch, dtype) | (overrides or {})
        torch.manual_seed(seed)
        with torch.device(device):
            self.head = ACTLossHead(Model(self.config), loss_type="stablemax_cross_entropy")
        self.head.train()
        compiled = mode != "eager"
        self.model = torch.compile(self.head, dynamic=False, mode=mode) if compiled else self.head
        self.graphs = device == "cuda" and mode in ("reduce-overhead", "max-autotune")
        self.params = list(self.head.parameters())
        self.ema = [p.detach().clone() for p in self.params] if model != "hrm" else None
        self.optimizer = AdamATan2(self.params, self.lr, weight_decay, compiled)
        self.embedding_optimizer = CastedSparseEmbeddingSignSGD_Distributed(
            self.head.model.puzzle_emb.buffers(), lr=0, weight_decay=weight_decay, world_size=1)

    def parameter_count(self):
        return sum(p.numel() for p in self.params)

    def own(self, carry):
        """Copies what a replayed graph would overwrite."""
        if not self.graphs:
            return carry
        carry.inner_carry.z_H, carry.inner_carry.z_L = carry.inner_carry.z_H.clone(), carry.inner_carry.z_L.clone()
        carry.steps, carry.halted = carry.steps.clone(), carry.halted.clone()
        carry.current_data = {k: v.clone() for k, v in carry.current_data.items()}
        return carry

    def train_step(self, batch, read_metrics=True):
        self.step_count += 1
        if self.carry is None:
            with torch.device(self.device):
                self.carry = self.head.initial_carry(batch)
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()
        carry, loss, metrics, _, _ = self.model(carry=self.carry, batch=batch, return_keys=[])
        (loss / self.batch).backward()
        self.carry = self.own(carry)
        lr = self.lr * min(1.0, self.step_count / self.warmup_steps)
        for group in self.embedding_optimizer.param_groups:
            group["lr"] = lr
        self.embedding_optimizer.step()
        self.embedding_optimizer.zero_grad()
        self.optimizer.step(lr)
        if self.ema:
            torch._foreach_lerp_(self.ema, [p.detach() for p in self.params], 1 - 0.999)
        if not read_metrics:
            return None
        names = sorted(metrics)
        return dict(zip(names, torch.stack([metrics[n].float() for n in names]).tolist()))

    @torch.inference_mode()
    def evaluate(self, question, answer, read_metrics=True):
        """All 16 segments for every puzzle; the last batch is filled up with copies and counts only its own rows when
        it is full (as the official loader, which pads). read_metrics: ask after each segment whether all are done,
        as the official loop; else run the known number of segments."""
        self.head.eval()
        raw = None
        if self.ema:
            raw = [p.detach().clone() for p in self.params]
            for p, average in zip(self.params, self.ema):
                p.data.copy_(average)
        exact = cells = torch.zeros((), device=self.device)
        segments = self.config["halt_max_steps"]
        for begin in range(0, len(question), self.batch):
            rows = torch.arange(begin, begin + self.batch, device=self.device)
            missing = rows >= len(question)
            batch = as_batch(question[rows % len(question)], answer[rows % len(question)])
            batch["labels"][missing] = -100  # ignored, and a sample without labels is not counted
            with torch.device(self.device):
                carry = self.head.initial_carry(batch)
            for segment in range(segments):
                if self.graphs:
                    torch.compiler.cudagraph_mark_step_begin()
                carry, _, metrics, _, done = self.model(carry=carry, batch=batch, return_keys=[])
                carry = self.own(carry)
                if read_metrics and bool(done):
                    break
            exact, cells = exact + metrics["exact_accuracy"], cells + metrics["accuracy"]
        if raw:
            for p, value in zip(self.params, raw):
                p.data.copy_(value)
        self.head.train()
        return dict(exact=round(float(exact) / len(question), 4), cells=round(float(cells) / len(question), 4),
                    puzzles=len(question))

    def state(self):
        """All that a resumed run needs."""
        return dict(head=self.head.state_dict(), ema=self.ema, m=self.optimizer.m, v=self.optimizer.v,
                    t=self.optimizer.t, step=self.step_count, carry=self.carry)

    def load_state(self, state):
        self.head.load_state_dict(state["head"])
        for name, to in (("ema", self.ema or []), ("m", self.optimizer.m), ("v", self.optimizer.v)):
            for target, value in zip(to, state[name] or []):
                target.copy_(value)
        self.optimizer.t, self.step_count, self.carry = state["t"], state["step"], state["carry"]


class TimedWork:
    """Steps and evaluations of an Official on ready batches, with their times."""

    def __init__(self, official, train_data=None, test_csv=None, pool=32):
        self.official, device = official, official.device
        generator = torch.Generator(device=device)
        generator.manual_seed(1)
        self.next, count = 0, official.batch

        def uniform(*shape):
            return torch.rand(*shape, device=device, generator=generator)

        if train_data and os.path.isdir(train_data):
            tokens = read_built(train_data, device)
            pick = lambda: torch.randint(0, len(tokens[0]), (count,), device=device, generator=generator)  # noqa: E731
            self.batches = [as_batch(*(x[index] - 1 for x in tokens)) for index in (pick() for _ in range(pool))]
        elif train_data:
            questions, answers = read_sudoku(train_data, device)
            self.batches = [augmented(questions, answers, torch.randint(0, len(questions), (count,), device=device,
                                                                        generator=generator), uniform)
                            for _ in range(pool)]
        else:
            shape, vocabulary = (count, official.config["seq_len"]), official.config["vocab_size"]
            draw = lambda: torch.randint(0, vocabulary - 1, shape, device=device, generator=generator)  # noqa: E731
            self.batches = [as_batch(draw(), draw()) for _ in range(min(pool, 8))]
        self.test = read_sudoku(test_csv, device) if test_csv else None

    def wait(self):
        if self.official.device == "cuda":
            torch.cuda.synchronize()

    def run(self, steps, sync=True):
        self.wait()
        start = time.perf_counter()
        for _ in range(steps):
            metrics = self.official.train_step(self.batches[self.next % len(self.batches)], sync)
            self.next += 1
        self.wait()
        ms = (time.perf_counter() - start) / steps * 1e3
        result = dict(steps=steps, sync=sync, ms_per_step=round(ms, 3),
                      samples_per_s=round(self.official.batch / ms * 1e3))
        if metrics:
            result["lm_loss"] = round(metrics["lm_loss"] / self.official.batch, 4)
        return result | self.memory()

    def evaluate(self, puzzles, sync=True):
        question, answer = (x[:puzzles] for x in self.test)
        self.wait()
        start = time.perf_counter()
        accuracy = self.official.evaluate(question, answer, sync)
        self.wait()
        seconds = time.perf_counter() - start
        return dict(sync=sync, seconds=round(seconds, 4), **accuracy) | self.memory()

    def memory(self):
        if self.official.device != "cuda":
            return {}
        return dict(peak_bytes=torch.cuda.max_memory_allocated(), reserved_bytes=torch.cuda.max_memory_reserved())


def parsed(overrides):
    """{key: value} of KEY=VALUE arguments."""
    out = {}
    for item in overrides:
        key, _, value = item.partition("=")
        try:
            out[key] = json.loads(value)
        except ValueError:
            raise command.Failure(command.USAGE, f"'{item}' is not KEY=VALUE with a JSON value") from None
    return out


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--checkout", required=True, metavar="PATH", help="folder of the official repository")
    parser.add_argument("--grid", choices=sorted(GRIDS), default="sudoku")
    parser.add_argument("--train", metavar="PATH",
                        help="training puzzles: a CSV file of Sudoku or a dataset directory (default: random tokens)")
    parser.add_argument("--test", metavar="CSV", help="test puzzles, for evaluations")
    parser.add_argument("--batch", type=command.count(), default=384, help="(default: %(default)s)")
    parser.add_argument("--mode", choices=MODES, default="default", help="(default: %(default)s)")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="(default: %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"],
                        help="of the model (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="a value of the official model's configuration, as JSON")
    parser.add_argument("--threads", type=command.count(0), default=0, help="threads of a CPU run (default: torch's)")
    parser.add_argument("--warmup", type=command.count(), default=12,
                        help="steps before the clock starts, compilation included (default: %(default)s)")
    parser.add_argument("--steps", type=command.count(), default=40, help="timed steps (default: %(default)s)")
    parser.add_argument("--eval-only", action="store_true", help="warm up evaluation instead of training steps")
    parser.add_argument("--serve", action="store_true", help="wait for orders on the standard input")
    args = parser.parse_args()
    if args.eval_only and not args.test:
        parser.error("--eval-only needs --test")
    for path in filter(None, (args.train, args.test)):
        if not os.path.exists(path):
            raise command.Failure(command.DATA, f"{path} does not exist; give puzzles")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise command.Failure(command.MACHINE, "PyTorch finds no GPU here; --device cpu goes on without")
    if args.threads:
        torch.set_num_threads(args.threads)
    overrides = parsed(args.set)
    start = time.perf_counter()
    work = TimedWork(Official(args.model, args.checkout, args.batch, args.mode, args.grid, args.device, args.dtype,
                              overrides=overrides), args.train, args.test)
    if args.eval_only:
        work.evaluate(args.batch)
        if args.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        work.evaluate(args.batch)
    else:
        work.run(1)
        if args.device == "cuda":  # without what compiling took, but with the recording of graphs, in the next steps
            torch.cuda.reset_peak_memory_stats()
        work.run(max(args.warmup - 1, 3))
    about = dict(model=args.model, grid=args.grid, mode=args.mode, batch=args.batch,
                 parameters=work.official.parameter_count(), warmup_s=round(time.perf_counter() - start, 1),
                 torch=torch.__version__)
    if not args.serve:
        result = work.evaluate(10**9) if args.eval_only else work.run(args.steps)
        print(json.dumps(about | result), flush=True)
        return 0
    print(json.dumps(dict(ready=about)), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "quit" in order:
            return 0
        sync, settle = order.get("sync", True), order.get("settle", 0)
        if "run" in order:
            until = time.monotonic() + settle
            while time.monotonic() < until:
                work.run(4, sync)
            answer = work.run(order["run"], sync)
        else:
            if settle:
                work.evaluate(order["eval"], sync)
            answer = work.evaluate(order["eval"], sync)
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    command.run(main)
