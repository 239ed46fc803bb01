#!/usr/bin/env python3
"""Compares what the contrastive trainer learns with backprop and with simpler rules, over several seeds.

    scripts/bench/contrastive_learning.py --out runs/contrastive_learning
    scripts/bench/contrastive_learning.py --out runs/contrastive_learning --data digits --arms symmetric,backprop --jobs 2

Data: digits (data/digits), mnist5k (scripts/digits_data), headers (scripts/code_data), and digits with layered networks of
one and two hidden layers (mlp1, mlp2). Arms:

    symmetric   the trainer's rule
    backprop    autograd through the same steps of the same model
    one_sided   the free phase and one nudged phase
    spsa        random perturbations of all parameters at once
    scalar      the original's rule: one number for metric and angles, and an exact readout
    readout     nothing but the readout learns
    linear      a softmax regression on the same inputs, in PyTorch, with the same batches' size, steps and optimizer; on
                digits and mnist5k with the learning rate and the weight decay that were best on training rows held out

All arms but linear start from the same weights of a seed and see the same batches. spsa, scalar and readout have no
weight decay, which only harms them. A run's figure is that of its last weights on the test rows. Prints a table with
means and standard errors and writes summary.json. What is finished is not done again. Needs a build of hrm_train;
`linear` needs a Python with torch.
"""
import concurrent.futures
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402
from comparison import ROOT, say  # noqa: E402

CONFIGS = ROOT / "configs/contrastive"
ARMS = ["symmetric", "backprop", "one_sided", "spsa", "scalar", "readout", "linear"]


class Data:
    def __init__(self, config, folder, steps, batch, metric, settings=(), arms=ARMS, linear=(1e-2, 0)):
        self.config, self.folder, self.steps, self.batch, self.metric = CONFIGS / config, folder, steps, batch, metric
        self.settings, self.arms, self.linear = list(settings), arms, linear

    @property
    def is_text(self):
        return self.metric == "bits_per_token"


DIGITS_LINEAR = (2e-2, 0.3)
MNIST = ["contrastive.coord_dim_n=32", "contrastive.rotor_k=32", "contrastive.state_dim=64", "contrastive.learned_slots=256",
         "optim.lr=8e-3", "optim.weight_decay=0.3"]
UNDECAYED = ["spsa", "scalar", "readout"]  # which weight decay only harms
LAYERED = ["symmetric", "backprop", "one_sided", "readout", "linear"]
DATA = {
    "digits": Data("digits_cpu.json", "data/digits", 420, 64, "accuracy", linear=DIGITS_LINEAR),
    "mnist5k": Data("digits_cpu.json", "runs/data/mnist5k", 1240, 64, "accuracy", MNIST, linear=(1e-2, 3)),
    "headers": Data("headers.json", "runs/data/code_bytes", 6000, 128, "bits_per_token"),
    "mlp1": Data("mlp_cpu.json", "data/digits", 420, 64, "accuracy", ["contrastive.layer_count=1"], LAYERED,
                 DIGITS_LINEAR),
    "mlp2": Data("mlp_cpu.json", "data/digits", 420, 64, "accuracy", ["contrastive.layer_count=2"], LAYERED,
                 DIGITS_LINEAR),
}


def run(args, words, log):
    with open(log, "a", encoding="utf-8") as file:
        done = subprocess.run([args.binary, *map(str, words)], stdout=subprocess.PIPE, stderr=file, text=True)
    if done.returncode != 0:
        lines = log.read_text(encoding="utf-8").splitlines() or ["it said nothing"]
        raise command.Failure(command.DATA, f"'hrm_train {words[0]}' ended with code {done.returncode} ({log}): {lines[-1]}")
    return done.stdout


def trained(args, name, arm, seed):
    """Figure and seconds of one run of hrm_train."""
    data, folder, title = DATA[name], args.out / "runs", f"{name}_{arm}_{seed}"
    log = args.out / f"{title}.log"
    start = time.monotonic()
    run(args, ["train", "--config", data.config, f"run.dir={folder}", f"run.name={title}", f"run.seed={seed}",
               f"data.train={data.folder}", *([] if data.is_text else [f"data.test={data.folder}"]), "train.eval_every=0",
               f"train.steps={data.steps}", "train.checkpoint_every=0", f"contrastive.rule={arm}", *data.settings,
               *(["optim.weight_decay=0"] if arm in UNDECAYED else []), *args.overrides], log)
    seconds = time.monotonic() - start
    out = run(args, ["eval", "--checkpoint", folder / title, *[o for o in args.overrides if o.startswith("runtime.")]], log)
    return json.loads(out)[data.metric], seconds


def linear(args, name, seed):
    torch = command.need_torch()
    torch.set_num_threads(1)
    data = DATA[name]
    rows, labels, test_rows, test_labels, width, classes = (text_rows if data.is_text else vector_rows)(data.folder)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    if data.is_text:  # one row of the table for each place and token: a product with one-hot inputs
        table = torch.zeros(width, classes, requires_grad=True)
        bias = torch.zeros(classes, requires_grad=True)
        logits = lambda x: torch.nn.functional.embedding_bag(x, table, mode="sum") + bias  # noqa: E731
    else:
        table = torch.zeros(classes, width, requires_grad=True)
        bias = torch.zeros(classes, requires_grad=True)
        logits = lambda x: x @ table.T + bias  # noqa: E731
    lr, decay = data.linear
    optimizer = torch.optim.AdamW([{"params": [table], "weight_decay": decay}, {"params": [bias], "weight_decay": 0}],
                                  lr=lr, betas=(0.9, 0.99))
    start = time.monotonic()
    order, at = torch.randperm(len(labels), generator=generator), 0
    for step in range(data.steps):
        if at + data.batch > len(order):
            order, at = torch.randperm(len(labels), generator=generator), 0
        picks, at = order[at:at + data.batch], at + data.batch
        for group in optimizer.param_groups:
            group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / data.steps))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits(rows(picks)), labels[picks]).backward()
        optimizer.step()
    seconds = time.monotonic() - start
    with torch.no_grad():
        losses, right = 0.0, 0
        for chunk in torch.arange(len(test_labels)).split(8192):
            out = logits(test_rows(chunk))
            losses += float(torch.nn.functional.cross_entropy(out, test_labels[chunk], reduction="sum"))
            right += int((out.argmax(1) == test_labels[chunk]).sum())
    value = losses / len(test_labels) / math.log(2) if data.is_text else right / len(test_labels)
    return value, seconds


def vector_rows(folder):
    import numpy
    torch = command.need_torch()
    load = lambda part, kind: torch.from_numpy(numpy.load(ROOT / folder / part / f"{kind}.npy"))  # noqa: E731
    inputs, labels = load("train", "inputs").float(), load("train", "labels").long()
    test_inputs, test_labels = load("test", "inputs").float(), load("test", "labels").long()
    inputs, test_inputs = inputs.flatten(1), test_inputs.flatten(1)
    mean = inputs.mean(0)
    deviation = (inputs - mean).square().mean().sqrt()
    inputs, test_inputs = (inputs - mean) / deviation, (test_inputs - mean) / deviation
    return (lambda p: inputs[p]), labels, (lambda p: test_inputs[p]), test_labels, inputs.shape[1], int(labels.max()) + 1


def text_rows(folder, context=12):
    import numpy
    torch = command.need_torch()
    vocabulary = json.loads((ROOT / folder / "meta.json").read_text(encoding="utf-8"))["vocab_size"]
    load = lambda split: torch.from_numpy(numpy.load(ROOT / folder / f"{split}-00000.npy").astype("int64"))  # noqa: E731
    train, test = load("train"), load("val")
    offsets = torch.arange(context)

    def rows(tokens):
        return lambda picks: tokens[picks[:, None] + context - 1 - offsets] + offsets * vocabulary
    return rows(train), train[context:], rows(test), test[context:], context * vocabulary, vocabulary


def one(args, name, arm, seed):
    file = args.out / f"{name}_{arm}_{seed}.json"
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    value, seconds = linear(args, name, seed) if arm == "linear" else trained(args, name, arm, seed)
    found = {"value": value, "seconds": round(seconds, 2)}
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")
    say(f"{name} {arm} seed {seed}: {value:.4f} in {seconds:.1f} s")
    return found


def mean_and_error(values):
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="where everything is kept")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="default: build/bin/hrm_train")
    parser.add_argument("--seeds", type=command.count(), default=5)
    parser.add_argument("--data", default="digits,mnist5k,headers,mlp1,mlp2")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--jobs", type=command.count(), default=1, help="runs at a time (default: %(default)s)")
    parser.add_argument("overrides", nargs="*", help="of all runs, e.g. runtime.device=cpu")
    args = parser.parse_args()
    names, arms = args.data.split(","), args.arms.split(",")
    for given, known, option in ((names, DATA, "--data"), (arms, ARMS, "--arms")):
        for word in given:
            if word not in known:
                parser.error(f"{option}: '{word}' is none of {', '.join(known)}")
    args.binary = command.program(args.binary)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    work = [(name, arm, seed) for name in names for arm in arms if arm in DATA[name].arms for seed in range(args.seeds)]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        found = dict(zip(work, pool.map(lambda item: one(args, *item), work)))
    summary = {}
    print("| data | arm | mean | standard error | to backprop | seconds |\n|---|---|---:|---:|---:|---:|")
    for name in names:
        scale, unit = (1, "bits/byte") if DATA[name].is_text else (100, "%")
        for arm in arms:
            if arm not in DATA[name].arms:
                continue
            values = [scale * found[name, arm, seed]["value"] for seed in range(args.seeds)]
            mean, error = mean_and_error(values)
            difference = ""
            if "backprop" in arms and arm != "backprop":
                pairs = [scale * (found[name, arm, s]["value"] - found[name, "backprop", s]["value"]) for s in range(args.seeds)]
                difference = "{:+.3f} ± {:.3f}".format(*mean_and_error(pairs))
            seconds = statistics.median(found[name, arm, seed]["seconds"] for seed in range(args.seeds))
            summary[f"{name} {arm}"] = {"values": values, "mean": mean, "error": error, "seconds": seconds}
            print(f"| {name}, {unit} | {arm} | {mean:.3f} | {error:.3f} | {difference} | {seconds:.1f} |")
    (args.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    command.run(main)
