#!/usr/bin/env python3
"""Compares the losses of one training on one rank with those of the same training on meshes of several ranks.

    scripts/bench/compare_meshes.py --device cpu --out meshes.json --markdown meshes.md
    scripts/bench/compare_meshes.py --device cuda --precision bf16 --steps 50 --seconds 110 --out meshes.json

For each form of training (--forms) and each mesh (--meshes) it starts `hrm_train train` once per rank on this machine:
Gloo on CPUs, NCCL on GPUs, where meshes of more ranks than GPUs are left out. A cell of the table is the largest
relative difference of train/loss over all steps. Forms marked below with * are compared with the first form on one
rank, since they only compute in another way; their cells of one rank are what other sums alone change.

decoder          a plain decoder, head and embedding tied, one micro-batch
micro-batches*   the same with two micro-batches on each rank
recomputed*      the same with lm.recompute=true and two micro-batches
window           attention to 8 positions, a head of its own
hrm              an HRM language model: encoder, core and decoder
adapters         a model of transformers with frozen weights and LoRA, which refuses zero=2

The first form is run again on each mesh, and on GPUs once more without CUDA graphs. The table says whether the logged
values of these runs and all bytes of their last checkpoint are the same. In 16 bits it also says how far each mesh is
from one rank in fp32. Runs have runtime.deterministic=true. A small model, rows of numbers that are made here; nothing
is read from outside.

--out is written after each run. What it has of this device, precision, number of steps and program is not run again.
So a call that --seconds has cut short can be repeated. Exit code 1: a run has failed or was not captured, two runs or
captured and eager steps differ in a bit, or a difference is above --bound. Needs only Python's standard library and a build of hrm_train.
"""
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from comparison import ROOT, Group, command, known, say, write_json, write_text

import random_texts


@dataclasses.dataclass
class Mesh:
    ranks: int
    settings: dict = dataclasses.field(default_factory=dict)  # of section parallel

    def rows_apart(self):
        """Ranks that read different rows."""
        return self.ranks // self.settings.get("tensor", 1)

    def words(self):
        return [f"parallel.{key}={value}" for key, value in self.settings.items()]


ONE = "one rank"
MESHES = {ONE: Mesh(1), "data=2": Mesh(2)}
MESHES |= {f"zero={zero}": Mesh(2, dict(zero=zero)) for zero in (1, 2, 3)}
MESHES |= {"tensor=2": Mesh(2, dict(tensor=2)), "tensor=2 data=2": Mesh(4, dict(tensor=2))}
MESHES |= {f"tensor=2 zero={zero}": Mesh(4, dict(tensor=2, zero=zero)) for zero in (1, 2, 3)}
MESHES |= {f"replicas=2 zero={zero}": Mesh(4, dict(replicas=2, zero=zero)) for zero in (1, 2, 3)}
MESHES |= {"tensor=4": Mesh(4, dict(tensor=4)),
           "tensor=2 replicas=2 zero=3": Mesh(8, dict(tensor=2, replicas=2, zero=3))}


@dataclasses.dataclass
class Size:
    rows: int
    tokens: int
    prompt: int
    vocabulary: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    lr: float


# On GPUs large enough for the kernels that large models use.
SIZES = {"cpu": Size(16, 32, 16, 320, 3, 64, 8, 4, 128, 2e-2),
         "cuda": Size(16, 256, 64, 2048, 4, 512, 8, 4, 1536, 5e-3)}


@dataclasses.dataclass
class Form:
    settings: list = dataclasses.field(default_factory=list)
    micro_batches: int = 1
    another_way: bool = False  # of computing what the first form computes
    causal: bool = False       # a model of transformers
    refused: dict = dataclasses.field(default_factory=dict)  # of section parallel, what hrm_train refuses beside it

    def is_refused(self, mesh):
        return any(mesh.settings.get(key) == value for key, value in self.refused.items())


FORMS = {
    "decoder": Form(),
    "micro-batches": Form([], 2, True),
    "recomputed": Form(["lm.recompute=true"], 2, True),
    "window": Form(["lm.window=8", "lm.tied=false"]),
    "hrm": Form(["lm.arch=hrm", "lm.enc_layers=1", "lm.h_layers=1", "lm.l_layers=1", "lm.h_len=4", "lm.l_len=8",
                 "lm.h_cycles=2", "lm.l_steps=2", "lm.prefix_len=4"]),
    "adapters": Form(causal=True, refused=dict(zero=2)),
}
FIRST = next(iter(FORMS))
# With a smaller eps, rounding of gradients near zero becomes steps of full length.
ALWAYS = ["optim.name=adamw", "optim.eps=0.01", "optim.grad_clip=1", "optim.warmup_steps=2", "train.log_every=1", "train.eval_every=0",
          "train.checkpoint_every=0", "runtime.deterministic=true", "parallel.bucket_mb=1", "parallel.timeout_s=60"]
WAYS = {"first": [], "again": [], "eager": ["runtime.cuda_graphs=false"], "fp32": ["precision.compute=fp32"]}
VALUES = {"losses": "train/loss", "norms": "train/grad_norm_raw"}


# ---- one training ----

def write_words(folder, size):
    """Rows of numbers that go on by their own stride, so that a model learns; none comes twice in 50 steps."""
    draw = random.Random(0)
    folder.mkdir()
    meta = dict(vocab_size=size.vocabulary, pad_id=0, bos_id=-1, eos_id=-1, tokenizer_file="")
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    with open(folder / "train.jsonl", "w", encoding="utf-8") as file:
        for _ in range(64 * size.rows):
            first, stride = draw.randrange(size.vocabulary), draw.randrange(1, 64)
            text = [(first + i * stride) % size.vocabulary for i in range(size.prompt + size.tokens + 1)]
            prompt, answer = text[:size.prompt], text[size.prompt:]
            file.write(json.dumps(dict(encoder_ids=prompt, decoder_input_ids=answer[:-1], labels=answer[1:])) + "\n")


def write_inputs(folder, size):
    write_words(folder / "words", size)
    for part in ("model", "rows", "tokens"):
        (folder / part).mkdir()
    shape = dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"], vocab_size=size.vocabulary,
                 hidden_size=size.width, num_hidden_layers=size.layers, num_attention_heads=size.heads,
                 num_key_value_heads=size.kv_heads, head_dim=size.width // size.heads, intermediate_size=size.inner,
                 max_position_embeddings=4 * size.tokens, rms_norm_eps=1e-6, rope_theta=1e4, tie_word_embeddings=True,
                 bos_token_id=1, eos_token_id=1, hidden_act="silu", attention_bias=False)
    (folder / "model" / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    random_texts.write_rows(folder / "rows" / "train.jsonl", size.prompt // 2, size.tokens, 8 * size.rows)
    random_texts.write_tokenizer(folder / "tokens", size.vocabulary)


def settings_of(form, mesh, size, inputs):
    """Of a run, without what --device, --precision and --steps say."""
    rows = size.rows // (mesh.rows_apart() * form.micro_batches)
    words = [*ALWAYS, f"train.global_batch_size={size.rows}", f"train.micro_batch_size={rows}"]
    if form.causal:
        words += ["task=polychromic", "polychromic.objective=none", f"hf.model={inputs / 'model'}",
                  "hf.weights=random", f"hf.tokenizer={inputs / 'tokens'}", f"data.train={inputs / 'rows'}",
                  "chat.template=plain", f"chat.max_length={size.tokens}", "chat.val_share=0", "lora.r=4",
                  "lora.alpha=8", f"optim.lr={size.lr}"]
    else:
        prompt = size.prompt if "lm.arch=hrm" in form.settings else 0
        words += ["task=language", "data.test=none", f"data.train={inputs / 'words'}", f"data.encoder_len={prompt}",
                  f"data.decoder_len={size.tokens}", "lm.arch=decoder", f"lm.layers={size.layers}",
                  f"lm.hidden_size={size.width}", f"lm.num_heads={size.heads}", f"lm.kv_heads={size.kv_heads}",
                  f"lm.inner={size.inner}", f"optim.lr={size.lr}"]
    return words + form.settings + mesh.words()


def numbers_of(run):
    """Logged values of each step and digests of all of them and of the last checkpoint's tensors."""
    values, lines = {key: [] for key in VALUES}, []
    for line in map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()):
        lines.append({key: value for key, value in line.items() if not key.startswith("perf/")})
        if VALUES["losses"] in line:
            for key, name in VALUES.items():
                values[key].append(line[name])
    folders = sorted((run / "checkpoints").glob("step-*"))
    digest = hashlib.sha256(json.dumps(lines).encode())
    for file in sorted(folders[-1].iterdir()) if folders else []:
        if file.name.startswith(("model", "state")):
            digest.update(file.name.encode() + file.read_bytes())
    return values | dict(digest=digest.hexdigest())


class Trainer:
    def __init__(self, args, scratch):
        self.args, self.scratch = args, pathlib.Path(scratch)
        self.size = SIZES[args.device]
        self.inputs = self.scratch / "inputs"
        self.inputs.mkdir()
        write_inputs(self.inputs, self.size)
        self.free = list(range(args.jobs))  # places for trainings at the same time
        self.lock = threading.Lock()
        self.groups = set()

    def run(self, mesh_name, form_name, way):
        """A record's values, or {"error": ...}."""
        args, mesh = self.args, MESHES[mesh_name]
        with self.lock:
            place = self.free.pop()
        folder = self.scratch / f"place_{place}"
        folder.mkdir(exist_ok=True)
        began = time.monotonic()
        words = [args.binary, "train", f"run.dir={folder}", "run.name=run", f"runtime.device={args.device}",
                 f"precision.compute={args.precision}", f"train.steps={args.steps}",
                 *settings_of(FORMS[form_name], mesh, self.size, self.inputs), *WAYS[way], *args.set]
        if args.device == "cuda" and mesh.ranks == 1:  # GPUs in turns
            words = ["env", f"CUDA_VISIBLE_DEVICES={args.gpus[place % len(args.gpus)]}", *words]
        group = Group(lambda rank: words, mesh.ranks)
        with self.lock:
            self.groups.add(group)
        try:
            error = group.ended(args.limit)
            group.errors[0].seek(0)
            said = group.errors[0].read()
        finally:
            group.stop()
            with self.lock:
                self.groups.discard(group)
                self.free.append(place)
        try:
            found = dict(error=error) if error else numbers_of(folder / "run")
            if not error and len(found["losses"]) != args.steps:
                found = dict(error=f"{len(found['losses'])} of {args.steps} steps are in its log")
            if not error and None in found["losses"] + found["norms"]:
                found = dict(error="a loss or gradient is not finite")
        except (OSError, ValueError, KeyError) as wrong:
            found = dict(error=f"its log or checkpoint cannot be read ({wrong})")
        shutil.rmtree(folder / "run", ignore_errors=True)
        if not error and args.device == "cuda" and way != "eager":
            found["captured"] = "not captured" not in said
        return found | dict(seconds=round(time.monotonic() - began, 1))

    def stop(self):
        with self.lock:
            groups = list(self.groups)
        for group in groups:
            group.kill()


def wanted(args):
    """(mesh, form, way) of all runs, those first that others are compared with."""
    runs = [(ONE, form, "first") for form in args.forms]
    if FIRST not in args.forms and any(FORMS[form].another_way for form in args.forms):
        runs.insert(0, (ONE, FIRST, "first"))
    runs += [(mesh, FIRST, "first") for mesh in args.meshes if FIRST in args.forms]
    if args.precision != "fp32" and FIRST in args.forms:
        runs.append((ONE, FIRST, "fp32"))
    ways = ["eager", "again"] if args.device == "cuda" else ["again"]
    if FIRST in args.forms:
        runs += [(mesh, FIRST, way) for way in ways for mesh in args.meshes]
    runs += [(mesh, form, "first") for form in args.forms for mesh in args.meshes]
    return [run for run in dict.fromkeys(runs) if not FORMS[run[1]].is_refused(MESHES[run[0]])]


def measure(args, records, about):
    key = ("mesh", "form", "way")
    have = {tuple(r[k] for k in key) for r in records if same(r, about) and "error" not in r}
    records[:] = [r for r in records if not same(r, about) or "error" not in r]
    todo = [run for run in wanted(args) if run not in have]
    end = time.monotonic() + args.seconds if args.seconds else float("inf")
    lock, longest = threading.Lock(), [0.0]
    with tempfile.TemporaryDirectory(prefix="compare_meshes_") as scratch, \
            concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        trainer = Trainer(args, scratch)

        def one(run):
            if time.monotonic() + longest[0] > end:
                return run
            record = about | dict(zip(key, run)) | dict(ranks=MESHES[run[0]].ranks) | trainer.run(*run)
            with lock:
                longest[0] = max(longest[0], record["seconds"])
                records.append(record)
                write_json(args.out, records)
                say(f"{', '.join(run)}: " + record.get("error", f"{record['seconds']} s"))
            return None

        try:
            left = [run for run in pool.map(one, todo) if run]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            trainer.stop()
            raise
    if left:
        say(f"no time for {len(left)} of {len(todo)} runs; the same call does them")


# ---- tables ----

ABOUT = ("device", "precision", "steps", "ours", "set")


def same(record, about):
    return all(record[key] == about[key] for key in ABOUT)


def largest(one, other, key="losses"):
    """Largest relative difference over the steps."""
    return max(abs(a - b) / abs(a) if a != b else 0.0 for a, b in zip(one[key], other[key]))


def found(records, *run):
    return next((r for r in records if (r["mesh"], r["form"], r["way"]) == run), None)


def reference(records, form):
    return found(records, ONE, FIRST if FORMS[form].another_way else form, "first")


def difference(records, mesh, form, key="losses"):
    """None where a side is missing or has failed."""
    one, other = reference(records, form), found(records, mesh, form, "first")
    if not one or not other or one is other or "error" in one or "error" in other:
        return None
    return largest(one, other, key)


def from_fp32(records, mesh):
    one, other = found(records, ONE, FIRST, "fp32"), found(records, mesh, FIRST, "first")
    return largest(one, other) if one and other and "error" not in one and "error" not in other else None


def equal_bits(records, mesh, way):
    one, other = found(records, mesh, FIRST, "first"), found(records, mesh, FIRST, way)
    if not one or not other or "error" in one or "error" in other:
        return None
    return one["digest"] == other["digest"]


def number(value):
    return "0" if value == 0 else f"{value:.1e}"


def cell(records, mesh, form):
    value = difference(records, mesh, form)
    if value is not None:
        return number(value)
    if FORMS[form].is_refused(MESHES[mesh]):
        return "refused"
    record = found(records, mesh, form, "first")
    return "fails" if record and "error" in record else ""


def bits_cell(records, mesh, way):
    if way == "eager" and not (found(records, mesh, FIRST, "first") or {}).get("captured", True):
        return "not captured"
    return {None: "", True: "same bits", False: "**differ**"}[equal_bits(records, mesh, way)]


def fp32_cell(records, mesh, way):
    value = from_fp32(records, mesh)
    return "" if value is None else number(value)


# Further columns, of the first form: what a way of running says, and how.
COLUMNS = {"fp32": ("against fp32", fp32_cell), "again": ("two runs", bits_cell),
           "eager": ("captured, eager", bits_cell)}


def tables(records):
    """One for each device, precision and number of steps."""
    blocks = []
    for about in dict.fromkeys(tuple(r[key] for key in ABOUT) for r in records):
        own = [r for r in records if same(r, dict(zip(ABOUT, about)))]
        device, precision, steps, ours, _ = about
        forms = [form for form in FORMS if any(r["form"] == form for r in own)]
        ways = [way for way in COLUMNS if any(r["way"] == way for r in own)]
        heads = forms + [COLUMNS[way][0] for way in ways]
        norms = [difference(own, mesh, form, "norms") for mesh in MESHES for form in forms]
        norms = f"; norms of gradients differ by up to {number(max(n for n in norms if n is not None))}" \
            if any(n is not None for n in norms) else ""
        lines = [f"{precision}, {steps} steps, {own[0]['machine']}, {ours}{norms}", "",
                 "| mesh | ranks | " + " | ".join(heads) + " |", "|---|---:|" + "---:|" * len(heads)]
        for mesh in MESHES:
            cells = [cell(own, mesh, form) for form in forms] + [COLUMNS[way][1](own, mesh, way) for way in ways]
            if any(text not in ("", "refused") for text in cells):
                name = mesh if mesh == ONE else "`" + mesh.replace(" ", "`, `") + "`"
                lines.append(f"| {name} | {MESHES[mesh].ranks} | " + " | ".join(cells) + " |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def complaints(args, records):
    """What makes the exit code 1, one line each."""
    lines = [f"{r['mesh']}, {r['form']}, {r['way']}: {r['error']}" for r in records if "error" in r]
    lines += [f"{r['mesh']}, {r['form']}, {r['way']}: its steps were not captured" for r in records
              if not r.get("captured", True)]
    for mesh in MESHES:
        lines += [f"{mesh}: {what} differ in a bit" for way, what in
                  (("again", "two runs"), ("eager", "captured and eager steps")) if equal_bits(records, mesh, way) is False]
        for form in FORMS:
            value = difference(records, mesh, form)
            if args.bound and value is not None and not value <= args.bound:
                lines.append(f"{mesh}, {form}: a loss differs by {value:.2g}, more than --bound {args.bound:g}")
    return lines


# ---- arguments ----

def gpus():
    """Those that a process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        return os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except OSError:
        listed = ""
    return [str(i) for i in range(len(re.findall(r"^GPU ", listed, re.MULTILINE)))]


def gpu_name():
    text = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True,
                          check=False).stdout
    return text.splitlines()[0].strip() if text.strip() else "GPU"


def earlier(path):
    if not path or not path.exists():
        return []
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
        for record in records:
            for key in (*ABOUT, "mesh", "form", "way", "machine"):
                record[key]
    except (ValueError, KeyError, TypeError):
        raise command.Failure(command.DATA, f"{path} is not what this script has written; give another --out") from None
    return records


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="(default: %(default)s)")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16", "fp16"], default="fp32",
                        help="of the forward and backward pass (default: %(default)s)")
    parser.add_argument("--steps", type=command.count(2), default=5, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--meshes", default=",".join(MESHES), metavar="NAME,...",
                        help="(default: all: %(default)s); one rank is always run")
    parser.add_argument("--forms", default=",".join(FORMS), metavar="NAME,...", help="(default: all)")
    parser.add_argument("--ranks", type=command.count(), default=8, metavar="N",
                        help="leave out meshes of more ranks (default: %(default)s, or the number of GPUs)")
    parser.add_argument("--jobs", type=command.count(), default=0, metavar="N",
                        help="trainings at the same time (default: 1 on CPUs, 3 on GPUs)")
    parser.add_argument("--bound", type=command.number(float, 0), default=0, metavar="D",
                        help="exit code 1 if a loss differs by more (default: no bound)")
    parser.add_argument("--seconds", type=command.count(), default=0, metavar="N",
                        help="begin no run that would end later than this (default: no such limit)")
    parser.add_argument("--limit", type=command.count(), default=300, metavar="N",
                        help="seconds that a run may take (default: %(default)s)")
    parser.add_argument("--binary", help="(default: build/bin/hrm_train, on CPUs build-cpu/bin/hrm_train)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all runs")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all runs, read and added to")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="where the tables go (default: stdout)")
    parser.add_argument("--report", action="store_true", help="run nothing; write the tables of --out")
    args = parser.parse_args()
    args.forms = known(args.forms.split(","), list(FORMS), "form")
    args.meshes = known([ONE, *(mesh for mesh in args.meshes.split(",") if mesh != ONE)], list(MESHES), "mesh")
    command.writable(args.out)
    command.writable(args.markdown)
    if args.report and not (args.out and args.out.exists()):
        raise command.Failure(command.USAGE, "--report needs --out, an existing file of results")
    records = earlier(args.out)
    if args.report:
        write_text(args.markdown, tables(records))
        return 0
    args.binary = command.program(args.binary or str(ROOT / ("build" if args.device == "cuda" else "build-cpu") /
                                                     "bin/hrm_train"))
    if args.device == "cuda":
        args.gpus = gpus()
        if not args.gpus:
            raise command.Failure(command.MACHINE, "nvidia-smi finds no GPU here; --device cpu needs none")
    else:
        os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
        args.set.insert(0, "runtime.threads=1")
    most = min(args.ranks, len(args.gpus)) if args.device == "cuda" else args.ranks
    large = [mesh for mesh in args.meshes if MESHES[mesh].ranks > most]
    if large:
        say(f"left out, with more than {most} ranks: {'; '.join(large)}")
    args.meshes = [mesh for mesh in args.meshes if mesh not in large]
    args.jobs = args.jobs or (3 if args.device == "cuda" else 1)
    version = subprocess.run([args.binary, "--version"], capture_output=True, text=True, check=False).stdout
    about = dict(device=args.device, precision=args.precision, steps=args.steps, ours=version.split("\n")[0],
                 set=" ".join(args.set))
    machine = f"{most} x {gpu_name()}" if args.device == "cuda" else "CPU"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the blocks that end the runs
    measure(args, records, about | dict(machine=machine))
    write_text(args.markdown, tables(records))
    wrong = complaints(args, [r for r in records if same(r, about)])
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    command.run(main)
