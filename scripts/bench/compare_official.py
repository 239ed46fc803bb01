#!/usr/bin/env python3
"""Times the official HRM and TRM code and hrm_train side by side on one GPU.

    git clone https://github.com/sapientinc/HRM
    git clone https://github.com/SamsungSAILMontreal/TinyRecursiveModels
    .venv/bin/python scripts/bench/compare_official.py --hrm HRM --trm TinyRecursiveModels \
        --out compare.json --markdown compare.md

Both sides train the same model with the same batch size on the same puzzles, in turns: the official code, then ours,
then the official code again, and so on for --rounds rounds. The official side is a process that compiles once and then
waits for its turns (official_step.py says what stands around the official model); each of our turns is a run of
`hrm_train bench step` or `bench eval`, which does not count its warm-up. Both run --settle seconds (an evaluation: one
pass) before their clock starts, as a GPU under load takes a while to find its clocks. A turn's number is the mean over
its steps; the table has the median of the turns and their range.

Both sides compute the same, in bfloat16, the second forward pass for the Q target included. Ours computes of that pass
only what the Q values depend on (no logits, and in the last block the first position alone): the same values.

Results are added to --out at once, so that a comparison can be made in several sittings. A mode of the official code
that is measured again replaces its old numbers. A ratio is always one of turns of the same sitting, against the mode
that was the fastest there; of several sittings, the smallest ratio counts. --report only writes the tables of an
existing file. Needs a GPU, a build of hrm_train, and what official_step.py needs; .venv/bin/python, which scripts/build
makes where there is a GPU, has all of that.
"""
import datetime
import pathlib
import subprocess
import sys
import tempfile
import time

from comparison import (HERE, MODES, ROOT, Group, add_result_options, cell, command, earlier_results, gib, known,
                        machine, measured_on, run_bench, say, spread, step_numbers, summary, write_json, write_text)

TRAIN, TEST = "data/sudoku/train_17clue_1k.csv", "data/sudoku/test_17clue_2k.csv"
HRM, TRM_ATT, TRM_MLP = (f"configs/puzzle/{name}_sudoku17.json" for name in ("hrm", "trm_att", "trm_mlp"))
MAZE = ["data.kind=maze", "data.augmentation=none", "data.box_rows=0", "data.box_cols=0"]
BF16 = {"bf16": []}
FP8 = {"bf16": [], "fp8 recursions": ["precision.recursions=fp8", "precision.fp8_warmup_steps=0"]}

# name: what it is, official model, grid, batch, our configuration, our variants (name: overrides), official processes
# that fit into the memory together, steps of a turn
WORKS = {
    "hrm384": dict(title="HRM 27M, batch 384", model="hrm", batch=384, config=HRM, variants=FP8, together=4, steps=40),
    "hrm768": dict(title="HRM 27M, batch 768", model="hrm", batch=768, config=HRM, variants=BF16, together=4, steps=30),
    "hrm64": dict(title="HRM 27M, batch 64", model="hrm", batch=64, config=HRM, variants=BF16, together=4, steps=100),
    "trm_att768": dict(title="TRM attention 7M, batch 768", model="trm_att", batch=768, config=TRM_ATT, variants=BF16,
                       together=2, steps=20),
    "trm_mlp768": dict(title="TRM MLP 5M, batch 768", model="trm_mlp", batch=768, config=TRM_MLP, variants=BF16,
                       together=2, steps=20),
    "maze_hrm128": dict(title="HRM maze 30x30 (901 tokens), batch 128", model="hrm", grid="maze", batch=128,
                        config=HRM, variants=BF16, together=2, steps=12),
    "maze_trm": dict(title="TRM maze 30x30 (916 tokens), batch 128", model="trm_att", grid="maze", batch=128,
                     config=TRM_ATT, overrides=["model.L_cycles=4"], variants=BF16, together=1, steps=12),
    "eval": dict(title="evaluation of 2,000 puzzles, 16 segments, HRM 27M, batch 1000", model="hrm", batch=1000,
                 config=HRM, variants=BF16, together=4, puzzles=2000),
    "eval384": dict(title="the same, batch 384", model="hrm", batch=384, config=HRM, variants=BF16, together=4,
                    puzzles=2000),
}
TUNED = {"max-autotune", "max-autotune-no-cudagraphs"}  # their compilation times kernels, so it must be alone


class Official(Group):
    """A process that holds the compiled official code."""

    def __init__(self, args, work, mode):
        self.mode = mode
        checkout = args.hrm if work["model"] == "hrm" else args.trm
        grid = work.get("grid", "sudoku")
        words = [sys.executable, str(HERE / "official_step.py"), "--model", work["model"], "--checkout", str(checkout),
                 "--grid", grid, "--batch", str(work["batch"]), "--mode", mode, "--device", args.device, "--serve",
                 "--train", args.maze if grid == "maze" else str(ROOT / TRAIN)]
        words += ["--test", str(ROOT / TEST)] if grid == "sudoku" else []
        words += ["--eval-only"] if "puzzles" in work else []
        words += [word for item in args.official_set for word in ("--set", item)]
        words += ["--dtype", "float32"] if args.device == "cpu" else []
        super().__init__(lambda rank: words)


def run_ours(args, work, overrides, scratch):
    """One turn of hrm_train: {"ms_per_step": ...} or {"seconds": ...}, or {"error": ...}."""
    overrides = overrides + work.get("overrides", []) + args.ours_set
    data = [f"data.train={args.maze}", f"data.test={args.maze}"] + MAZE if work.get("grid") == "maze" else []
    if "puzzles" in work:
        words = [args.binary, "bench", "eval", "--config", work["config"], "--passes", "1",
                 f"eval.max_samples={args.puzzles or work['puzzles']}", f"eval.batch_size={work['batch']}"]
    else:
        words = [args.binary, "bench", "step", "--config", work["config"], "--steps", str(args.steps or work["steps"]),
                 "--warmup", str(args.skip_steps), "--settle", str(args.settle), "--profile-steps", "0",
                 f"train.global_batch_size={work['batch']}", "train.micro_batch_size=0"]
    result = run_bench(words + data + overrides, scratch, args.limit)
    if "error" in result:
        return result
    if "puzzles" in work:
        memory = result["memory"]
        return dict(puzzles=result["samples"], seconds=round(result["pass_ms"]["mean"] / 1e3, 4),
                    peak_bytes=memory["allocated_peak_bytes"], reserved_bytes=memory["reserved_peak_bytes"])
    return step_numbers(result, work["batch"])


def turns(args, work, workers, scratch, add):
    """All rounds of one group of compiled modes, with ours in between."""
    for number in range(args.rounds):
        for worker in list(workers):
            for sync in (True, False):
                if "puzzles" in work:
                    order = {"eval": args.puzzles or work["puzzles"], "sync": sync, "settle": args.settle}
                else:
                    order = {"run": args.steps or work["steps"], "sync": sync, "settle": args.settle}
                result = worker.ask(order, args.limit)
                add(**dict(result, side="official", variant=worker.mode, sync=sync, round=number))
                if "error" in result:
                    workers.remove(worker)
                    break
        for variant, overrides in work["variants"].items():
            if args.variants and variant not in args.variants:
                continue
            add(side="ours", variant=variant, round=number, **run_ours(args, work, overrides, scratch))


def measure(args, modes, results):
    """All works, {name: modes of the official code}; results has what earlier sittings left, and gets what this one
    finds."""
    works = {name: WORKS[name] | ({"batch": args.batch} if args.batch else {}) for name in modes}
    sitting = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}"

    def add_to(name):
        def add(**record):
            record = dict(work=name, batch=works[name]["batch"], time=f"{datetime.datetime.now():%Y-%m-%d %H:%M}",
                          sitting=sitting, **args.machine, **record)
            results.append(record)
            shown = record.get("error") or record.get("ms_per_step") or record.get("seconds")
            say(f"{name:12} {record['side']:8} {record['variant']:28} sync {record.get('sync', '-')!s:5} {shown}")
            write_json(args.out, results)
        return add

    # Ours of an earlier sitting stays as long as official numbers beside which it was measured do.
    stay = [r for r in results if r["side"] == "official"
            and not (r["work"] in works and r["variant"] in modes[r["work"]])]
    sittings = {(r["work"], r.get("sitting")) for r in stay}
    results[:] = [r for r in results if r in stay
                  or (r["side"] == "ours" and (r["work"], r.get("sitting")) in sittings)]
    # Groups of compiled processes that are in the GPU's memory at the same time.
    if args.all_at_once:
        groups = [[(name, mode) for name in works for mode in modes[name]]]
    else:
        groups = []
        for name, work in works.items():
            size = args.together or work["together"]
            groups += [[(name, mode) for mode in modes[name][i:i + size]] for i in range(0, len(modes[name]), size)]
    with tempfile.TemporaryDirectory(prefix="compare_") as scratch:
        for group in groups:
            workers = compiled(args, works, group, add_to)
            try:
                for name in dict.fromkeys(name for name, _ in group):
                    turns(args, works[name], [w for n, w in workers if n == name], scratch, add_to(name))
            finally:
                for _, worker in workers:
                    worker.stop()


def compiled(args, works, group, add_to):
    """[(work's name, process that is ready)]; what failed is reported."""
    good = []

    def wait_for(started):
        for name, worker in started:
            answer = worker.answer(max(1.0, args.limit - (time.monotonic() - worker.start)))
            if "error" in answer:
                add_to(name)(side="official", variant=worker.mode, round=0, **answer)
            else:
                say(f"{name:12} official code, {worker.mode}: ready after {answer['ready']['warmup_s']} s")
                good.append((name, worker))

    wait_for([(name, Official(args, works[name], mode)) for name, mode in group if mode not in TUNED])
    for name, mode in group:
        if mode in TUNED:
            wait_for([(name, Official(args, works[name], mode))])
    return good


def official_turns(records, mode, sync):
    return [r for r in records if r["side"] == "official" and r["variant"] == mode and r.get("sync") is sync]


def compared(records, variant):
    """(ratio, mode, sync, official summary, ours) of one work and one variant of ours; None where nothing was measured
    side by side. Of several sittings the one with the smallest ratio."""
    found = []
    for sitting in {r.get("sitting") for r in records}:
        here = [r for r in records if r.get("sitting") == sitting]
        ours = summary([r for r in here if r["side"] == "ours" and r["variant"] == variant])
        official = [(summary(official_turns(here, mode, sync)), mode, sync)
                    for mode in ["eager"] + MODES for sync in (True, False)]
        official = [o for o in official if o[0]]
        if ours and official:
            best, mode, sync = min(official, key=lambda o: o[0]["median"])
            found.append((best["median"] / ours["median"], mode, sync, best, ours))
    return min(found, key=lambda f: f[0], default=None)


def tables(results):
    lines = []
    names = [name for name in WORKS if any(r["work"] == name for r in results)]
    lines += [measured_on(results), ""]
    lines += ["| work | official code, its best mode | ms per step | ours | ms per step | official / ours | "
              "peak GiB, official | peak GiB, ours |", "|---|---|---:|---|---:|---:|---:|---:|"]
    details = ["| work | official code compiled with | metrics read each step | not read | samples/s, the better | "
               "peak GiB |", "|---|---|---:|---:|---:|---:|"]
    for name in names:
        of_work = [r for r in results if r["work"] == name]
        batch = of_work[0]["batch"]
        amount = next((r["puzzles"] for r in of_work if "puzzles" in r), None)
        # What was measured at another size must not pass for the work that its title names.
        other = [f"batch {batch}"] if batch != WORKS[name]["batch"] else []
        other += [f"{amount} puzzles"] if amount and amount != WORKS[name]["puzzles"] else []
        unit = " (seconds)" if "puzzles" in WORKS[name] else ""
        title = WORKS[name]["title"] + (f" - here {', '.join(other)}" if other else "") + unit
        for mode in ["eager"] + MODES:
            by_sync = {sync: summary(official_turns(of_work, mode, sync)) for sync in (True, False)}
            error = next((r["error"] for r in of_work if r["side"] == "official" and r["variant"] == mode
                          and "error" in r), None)
            if any(by_sync.values()):
                faster = min((s for s in by_sync.values() if s), key=lambda s: s["median"])
                rate = amount / faster["median"] if amount else batch / faster["median"] * 1e3
                cells = [spread(by_sync[x]) if by_sync[x] else "-" for x in (True, False)]
                details.append(f"| {title} | {mode} | {cells[0]} | {cells[1]} | {rate:,.0f} | {gib(faster['peak'])} |")
            elif error:
                details.append(f"| {title} | {mode} | fails: `{cell(error)}` | | | |")
        for variant in WORKS[name]["variants"]:
            found = compared(of_work, variant)
            error = next((r["error"] for r in of_work if r["side"] == "ours" and r["variant"] == variant
                          and "error" in r), None)
            if found:
                ratio, mode, sync, official, ours = found
                lines.append(f"| {title} | {mode}, metrics {'read' if sync else 'not read'} | {spread(official)} | "
                             f"{variant} | {spread(ours)} | **{ratio:.2f}** | {gib(official['peak'])} | "
                             f"{gib(ours['peak'])} |")
            elif error:
                lines.append(f"| {title} | | | {variant} | fails: `{cell(error)}` | | | |")
    return "\n".join(lines + [""] + details) + "\n"


def check_checkouts(args, works):
    for name, work in works.items():
        option, path = ("--hrm", args.hrm) if work["model"] == "hrm" else ("--trm", args.trm)
        if path is None:
            raise command.Failure(command.USAGE, f"{name} needs {option}, a checkout of the official code; see --help")
        command.checkout(path, option[2:].upper())


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--hrm", type=pathlib.Path, metavar="PATH", help="checkout of the official HRM code")
    parser.add_argument("--trm", type=pathlib.Path, metavar="PATH", help="checkout of the official TRM code")
    parser.add_argument("--work", default=",".join(WORKS),
                        help="comma-separated, each with modes of its own if need be: hrm384:default+reduce-overhead; "
                        "default: %(default)s")
    parser.add_argument("--modes", default=",".join(MODES), help="of torch.compile; default: %(default)s")
    parser.add_argument("--rounds", type=command.count(), default=3, help="turns of each side (default: %(default)s)")
    add_result_options(parser)
    parser.add_argument("--steps", type=command.count(0), default=0,
                        help="steps of a turn (default: chosen for each work)")
    parser.add_argument("--skip-steps", type=command.count(), default=20,
                        help="steps at the start of our turns that do not count (default: %(default)s)")
    parser.add_argument("--settle", type=command.count(0), default=2, metavar="SECONDS",
                        help="of further steps at the start of each turn that do not count (default: %(default)s)")
    parser.add_argument("--limit", type=command.count(), default=900,
                        help="seconds that compiling, or a turn, may take (default: %(default)s)")
    parser.add_argument("--together", type=command.count(0), default=0,
                        help="compiled modes held in GPU memory at the same time (default: chosen for each work)")
    parser.add_argument("--all-at-once", action="store_true",
                        help="compile all works and modes at the same time; all must fit into the GPU's memory")
    parser.add_argument("--variants", default="", help="of ours, comma-separated: bf16, fp8 recursions (default: all)")
    parser.add_argument("--ours-set", action="append", default=[], metavar="KEY=VALUE", help="override of ours")
    parser.add_argument("--official-set", action="append", default=[], metavar="KEY=VALUE", help="override of theirs")
    parser.add_argument("--batch", type=command.count(0), default=0,
                        help="another batch size (for tests of this script)")
    parser.add_argument("--puzzles", type=command.count(0), default=0, help="evaluate fewer (for tests of this script)")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: for tests of this script")
    args = parser.parse_args()
    args.variants = known([v.strip() for v in args.variants.split(",") if v], list(FP8), "variant")
    works = {}
    for item in args.work.split(","):
        name, _, modes = item.partition(":")
        known([name], list(WORKS), "work")
        works[name] = known(modes.split("+") if modes else args.modes.split(","), ["eager"] + MODES, "mode")
    if args.report and not (args.out and args.out.exists()):
        raise command.Failure(command.USAGE, "--report needs --out, an existing file of results")
    results = earlier_results(args.out)
    command.writable(args.markdown)
    if args.report:
        if not results:
            raise command.Failure(command.DATA, f"{args.out} holds no results")
        write_text(args.markdown, tables(results))
        return 0
    check_checkouts(args, {name: WORKS[name] for name in works})
    command.writable(args.out)
    args.binary = command.program(args.binary)
    args.machine = machine(args.device, args.binary)
    with tempfile.TemporaryDirectory(prefix="maze_") as maze:
        args.maze = maze + "/maze30"
        if any(WORKS[name].get("grid") == "maze" for name in works):
            made = subprocess.run([args.binary, "data", "maze", "--generate", "--train", "1000", "--test", "16",
                                   "--out", args.maze], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if made.returncode != 0:
                why = (made.stderr.strip().splitlines() or ["no message"])[-1]
                raise command.Failure(command.MACHINE, f"no mazes could be made: {why}")
        measure(args, works, results)
    write_text(args.markdown, tables(results))
    need_comparison(results, works)
    return 0


def need_comparison(results, works):
    """A comparison that has nothing to compare is none."""
    for name in works:
        of_work = [r for r in results if r["work"] == name]
        if not any(compared(of_work, variant) for variant in {r["variant"] for r in of_work if r["side"] == "ours"}):
            errors = [f"{r['side']}, {r['variant']}: {r['error']}" for r in of_work if "error" in r]
            raise command.Failure(command.MACHINE, f"{name} could not be compared ({(errors or ['no turn'])[-1]})")


if __name__ == "__main__":
    command.run(main)
