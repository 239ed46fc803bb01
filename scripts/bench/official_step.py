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

Several ranks are started by torchrun, or as plain processes with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT:

    torchrun --nproc-per-node=2 scripts/bench/official_step.py --model hrm --checkout HRM --batch 1536 --ddp loop

--batch is that of all ranks together, of which each takes its part, as the official loader hands it out. Rank 0 broadcasts
its weights, and its seed and those of the others differ by their rank, as in the official trainer. --ddp says how gradients
become sums over the ranks:
  - loop: the official way, one all-reduce for each parameter after the backward pass;
  - coalesced: the same all-reduces as one call, which NCCL makes one kernel of;
  - bucket: torch's DistributedDataParallel around the compiled model. Its gradients come out of one compiled graph, so its
    buckets are summed when that graph is done;
  - split: the same, and torch's DDPOptimizer cuts the compiled graph into pieces of about a bucket's parameters, so that
    buckets are summed while the backward pass of the next piece runs. Needs a compiled mode.
Metrics that are read are first reduced to rank 0, as in the official trainer.

Prints one JSON object. With --serve it compiles, prints {"ready": ...}, and then answers one JSON line for each line
of the standard input (of several ranks: rank 0's): {"run": STEPS, "sync": true|false} or {"eval": PUZZLES, "sync": ...} or
{"quit": true}. "sync"
says whether metrics are read back (each step, as the official trainer does; in an evaluation the end of each batch).
"settle", in seconds, asks for steps (an evaluation: one more) before the clock starts.

Needs torch (2.11 is what our side uses), numpy for dataset directories, and for torch.compile a C++ compiler and the
headers of Python (python3-dev); pydantic and einops where they are installed (few of their functions are used, and
replaced where they are not). .venv/bin/python, which scripts/build makes where there is a GPU, has torch and numpy.
"""
import csv
import datetime
import json
import os
import pathlib
import sys
import time
import traceback
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
except ImportError:
    command.run(command.need_torch)

MODES = ["eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
DDP = ["loop", "coalesced", "bucket", "split"]
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


def read_built(folder, device, split="train"):
    """Tokens of a dataset directory that an official builder or `hrm_train data` wrote, less one: as_batch adds it."""
    import numpy
    return [torch.from_numpy(numpy.load(os.path.join(folder, split, f"all__{name}.npy"))).to(device).long() - 1
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


class Ranks:
    """This process among those that train together; one alone unless it has joined them."""

    rank, world, orders = 0, 1, None

    def join(self, device, limit):
        """Meets the other ranks, if the launcher's variables name any; `limit` in seconds, here and for each collective."""
        text = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        if not text["WORLD_SIZE"]:
            return
        try:
            rank, world = int(text["RANK"]), int(text["WORLD_SIZE"])
            local = int(text["LOCAL_RANK"] or rank)
        except ValueError:
            rank = world = local = -1
        if not (0 <= rank < world and 0 <= local <= rank):
            raise command.Failure(command.USAGE, "no rank of a group: " +
                                  ", ".join(f"{name}='{value}'" for name, value in text.items()))
        if world == 1:
            return
        if not os.environ.get("MASTER_ADDR") or not os.environ.get("MASTER_PORT"):
            raise command.Failure(command.USAGE, "several ranks meet at MASTER_ADDR and MASTER_PORT: set both")
        if device == "cuda":
            if local >= torch.cuda.device_count():
                raise command.Failure(command.MACHINE, f"LOCAL_RANK={local}, but PyTorch finds "
                                                       f"{torch.cuda.device_count()} GPU(s) here")
            torch.cuda.set_device(local)
        limit = datetime.timedelta(seconds=limit)
        try:
            dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=world, timeout=limit)
            # Between orders ranks wait by CPU, for as long as it takes: a collective of NCCL that waits keeps its GPU busy.
            self.orders = dist.new_group(backend="gloo", timeout=datetime.timedelta(days=1))
        except (RuntimeError, ValueError) as e:
            raise command.Failure(command.MACHINE, f"the ranks did not meet: {str(e).splitlines()[0]}") from None
        self.rank, self.world = rank, world

    def shared(self, value):
        """Rank 0's value, on every rank."""
        if self.world == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.orders)
        return values[0]

    def most(self, value):
        """The largest of all ranks' whole numbers, on every rank; no rank goes on before the last has come here."""
        if self.world == 1:
            return value
        value = torch.tensor(value)
        dist.all_reduce(value, dist.ReduceOp.MAX, group=self.orders)
        return int(value)

    def leave(self):
        if self.world > 1:
            dist.destroy_process_group()


class Official:
    """The official training loop for one GPU, or for one of several ranks, around the official model."""

    def __init__(self, model, checkout, batch, mode="default", grid="sudoku", device="cuda", dtype="bfloat16", seed=0,
                 lr=None, weight_decay=1.0, warmup_steps=2000, overrides=None, ranks=None, ddp="loop"):
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
        self.ranks = ranks or Ranks()
        self.device, self.batch, self.mode, self.grid, self.ddp = device, batch, mode, grid, ddp
        self.lr = lr or (7e-5 if model == "hrm" else 1e-4)
        self.warmup_steps, self.step_count, self.carry = warmup_steps, 0, None
        self.config = model_config(model, grid, batch // self.ranks.world, dtype) | (overrides or {})
        torch.manual_seed(seed + self.ranks.rank)
        with torch.device(device):
            self.head = ACTLossHead(Model(self.config), loss_type="stablemax_cross_entropy")
        self.head.train()
        compiled = mode != "eager"
        self.model = torch.compile(self.head, dynamic=False, mode=mode) if compiled else self.head
        self.graphs = device == "cuda" and mode in ("reduce-overhead", "max-autotune")
        self.params = list(self.head.parameters())
        self.divisor = batch
        if self.ranks.world > 1:
            self.join_ranks()
        self.ema = [p.detach().clone() for p in self.params] if model != "hrm" else None
        self.optimizer = AdamATan2(self.params, self.lr, weight_decay, compiled)
        self.embedding_optimizer = CastedSparseEmbeddingSignSGD_Distributed(
            self.head.model.puzzle_emb.buffers(), lr=0, weight_decay=weight_decay, world_size=self.ranks.world)

    def join_ranks(self):
        with torch.no_grad():
            for tensor in self.params + list(self.head.buffers()):
                dist.broadcast(tensor, src=0)
        if self.ddp in ("bucket", "split"):
            torch._dynamo.config.optimize_ddp = self.ddp == "split"
            self.model = torch.nn.parallel.DistributedDataParallel(self.model, broadcast_buffers=False, init_sync=False,
                                                                   gradient_as_bucket_view=True)
            self.divisor = self.batch // self.ranks.world  # it makes means, not sums, of the ranks' gradients

    def sum_gradients(self):
        if self.ranks.world == 1 or self.ddp in ("bucket", "split"):
            return
        if self.ddp == "coalesced":
            dist.all_reduce_coalesced([p.grad for p in self.params])
            return
        for p in self.params:
            dist.all_reduce(p.grad)

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
        (loss / self.divisor).backward()
        self.sum_gradients()
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
        values = torch.stack([metrics[n].float() for n in names])
        if self.ranks.world > 1:
            dist.reduce(values, dst=0)
        return dict(zip(names, values.tolist())) if self.ranks.rank == 0 else None

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
            self.batches = [as_batch(*(x[index] for x in tokens)) for index in (pick() for _ in range(pool))]
        elif train_data:
            questions, answers = read_sudoku(train_data, device)
            self.batches = [augmented(questions, answers, torch.randint(0, len(questions), (count,), device=device,
                                                                        generator=generator), uniform)
                            for _ in range(pool)]
        else:
            shape, vocabulary = (count, official.config["seq_len"]), official.config["vocab_size"]
            draw = lambda: torch.randint(0, vocabulary - 1, shape, device=device, generator=generator)  # noqa: E731
            self.batches = [as_batch(draw(), draw()) for _ in range(min(pool, 8))]
        ranks = official.ranks
        if ranks.world > 1:
            part = slice(ranks.rank * count // ranks.world, (ranks.rank + 1) * count // ranks.world)
            self.batches = [{k: v[part].clone() for k, v in batch.items()} for batch in self.batches]
        self.test = read_sudoku(test_csv, device) if test_csv else None

    def wait(self):
        if self.official.device == "cuda":
            torch.cuda.synchronize()

    def run(self, steps, sync=True):
        self.wait()
        self.official.ranks.most(0)
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
        most = self.official.ranks.most
        return dict(peak_bytes=most(torch.cuda.max_memory_allocated()),
                    reserved_bytes=most(torch.cuda.max_memory_reserved()))

    def settle(self, seconds, sync):
        """Steps for so long, as many on every rank."""
        until = time.monotonic() + seconds
        while self.official.ranks.shared(time.monotonic() < until):
            self.run(4, sync)


def orders(ranks):
    """What rank 0 reads from its standard input, on every rank."""
    while True:
        line = ranks.shared(sys.stdin.readline() if ranks.rank == 0 else None)
        if not line:
            return
        yield json.loads(line)


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
    parser.add_argument("--batch", type=command.count(), default=384, help="of all ranks (default: %(default)s)")
    parser.add_argument("--mode", choices=MODES, default="default", help="(default: %(default)s)")
    parser.add_argument("--ddp", choices=DDP, default="loop",
                        help="how several ranks sum gradients (default: %(default)s)")
    parser.add_argument("--limit", type=command.count(), default=600, metavar="SECONDS",
                        help="that a rank waits for the others in an operation (default: %(default)s)")
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
    if args.ddp == "split" and args.mode == "eager":
        raise command.Failure(command.USAGE, "--ddp split cuts a compiled graph: give another --mode than eager")
    overrides = parsed(args.set)
    command.checkout(pathlib.Path(args.checkout), "HRM" if args.model == "hrm" else "TRM")
    ranks = Ranks()
    ranks.join(args.device, args.limit)
    if ranks.world == 1:
        return measure(args, overrides, ranks)
    try:
        if args.test:
            raise command.Failure(command.USAGE, "evaluations are timed with one rank: leave out --test")
        if args.batch % ranks.world:
            raise command.Failure(command.USAGE, f"--batch {args.batch} cannot be split among {ranks.world} ranks")
        code = measure(args, overrides, ranks)
    except command.Failure:
        ranks.leave()
        raise
    except Exception:
        # At once: what this process still holds would wait for the other ranks.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    ranks.leave()
    return code


def measure(args, overrides, ranks):
    start = time.perf_counter()
    work = TimedWork(Official(args.model, args.checkout, args.batch, args.mode, args.grid, args.device, args.dtype,
                              overrides=overrides, ranks=ranks, ddp=args.ddp), args.train, args.test)
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
    if ranks.world > 1:
        about |= dict(ranks=ranks.world, ddp=args.ddp)
        ranks.most(0)  # ready is when all are

    def answer_with(result):
        if ranks.rank == 0:
            print(json.dumps(result), flush=True)

    if not args.serve:
        answer_with(about | (work.evaluate(10**9) if args.eval_only else work.run(args.steps)))
        return 0
    answer_with(dict(ready=about))
    for order in orders(ranks):
        if "quit" in order:
            return 0
        sync, settle = order.get("sync", True), order.get("settle", 0)
        if "run" in order:
            work.settle(settle, sync)
            answer = work.run(order["run"], sync)
        else:
            if settle:
                work.evaluate(order["eval"], sync)
            answer = work.evaluate(order["eval"], sync)
        answer_with(answer)
    return 0


if __name__ == "__main__":
    command.run(main)
