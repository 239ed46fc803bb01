#!/usr/bin/env python3
"""Times the official HRM code and hrm_train side by side on several GPUs of one host: weak and strong scaling.

    git clone https://github.com/sapientinc/HRM
    .venv/bin/python scripts/bench/compare_ranks.py --hrm HRM --ranks 1,2 --out ranks.json --markdown ranks.md

Weak scaling: --batch puzzles for each GPU; strong scaling: --batch puzzles for all of them together. One GPU, where the
two are the same, is measured in the same rounds, as what efficiency refers to: of weak scaling t(1) / t(N), of strong
scaling t(1) / (N t(N)).

Both sides train the 27-million-parameter HRM in bfloat16 on the same puzzles, in turns: for each number of ranks the
official code in each of --modes, then ours, and all that --rounds times. The official side is a group of processes that
compiles once and then waits for its turns, by CPU alone (official_step.py says what stands around the official model,
and what --modes name after the colon); all groups compile at the same time. Each of our turns starts `hrm_train bench step`
once per rank. A turn goes on for --settle seconds before its clock starts; its number is the mean over its steps; the
tables have the median of the turns and their range. Each official mode is timed with metrics read after every step and
not read; the fastest counts.

Results are added to --out at once, so that a comparison can be made in several sittings. What is measured again replaces
its old numbers. Ratios and efficiencies are always of turns of the same sitting; of several sittings, the one with the
smallest ratio counts. A group that fails is recorded with its error, and the others go on. --report only writes the
tables of an existing file. Needs a GPU for each rank, a build of hrm_train with CUDA, and what official_step.py
needs. The environment (NCCL_* and the like) reaches both sides.
"""
import datetime
import os
import pathlib
import signal
import sys
import tempfile
import time

from comparison import (HERE, MODES, ROOT, Group, add_result_options, cell, command, earlier_results, gib, known,
                        machine, measured_on, run_bench, say, spread, step_numbers, summary, write_json, write_text)

TRAIN, CONFIG = "data/sudoku/train_17clue_1k.csv", "configs/puzzle/hrm_sudoku17.json"
WORKS = {"weak": "weak scaling", "strong": "strong scaling"}
DDP = ["loop", "coalesced", "bucket", "split"]  # official_step.py --ddp
VARIANTS = {"fp32 sums": ["parallel.reduce=fp32"], "bf16 sums": ["parallel.reduce=bf16"]}
ONE = "one rank"  # the variant of one rank, which sums nothing


class Task:
    """One point of the curves: so many ranks and one batch size. One rank is a point of weak and of strong scaling."""

    def __init__(self, work, ranks, per_gpu):
        self.work, self.ranks = work, ranks
        self.batch = per_gpu * ranks if work == "weak" else per_gpu
        self.name = f"{work} {ranks}"


def tasks_of(works, ranks, batch):
    one = [Task("weak", 1, batch)] if 1 in ranks else []
    return one + [Task(work, n, batch) for n in ranks if n > 1 for work in works]


class Official(Group):
    """The ranks that hold the compiled official code for one task."""

    def __init__(self, args, task, variant):
        self.variant = variant
        mode, _, ddp = variant.partition(", ")
        words = [sys.executable, str(HERE / "official_step.py"), "--model", "hrm", "--checkout", str(args.hrm),
                 "--batch", str(task.batch), "--mode", mode, "--device", args.device, "--serve",
                 "--limit", str(args.limit), "--train", str(ROOT / TRAIN)]
        words += ["--ddp", ddp] if ddp else []
        words += [word for item in args.official_set for word in ("--set", item)]
        words += ["--dtype", "float32"] if args.device == "cpu" else []
        super().__init__(lambda rank: words, task.ranks)


def official_variants(modes, ranks):
    """Names of the official code's modes for so many ranks; one rank has none for sums."""
    return [f"{mode}, {ddp}" for mode, ddp in modes] if ranks > 1 else list(dict.fromkeys(mode for mode, _ in modes))


def run_ours(args, task, overrides, scratch):
    words = [args.binary, "bench", "step", "--config", CONFIG, "--steps", str(args.steps), "--warmup",
             str(args.skip_steps), "--settle", str(args.settle), "--profile-steps", "0",
             f"train.global_batch_size={task.batch}", "train.micro_batch_size=0"]
    result = run_bench(words + overrides + args.ours_set, scratch, args.limit, task.ranks)
    return result if "error" in result else step_numbers(result, task.batch)


def one_round(args, task, groups, number, scratch, add):
    """The turns of one task: the official code's groups, then ours."""
    for group in list(groups):
        # The second follows at once, so the clocks have settled.
        for sync, settle in ((True, args.settle), (False, 0)):
            result = group.ask({"run": args.steps, "sync": sync, "settle": settle}, args.limit)
            add(**dict(result, side="official", variant=group.variant, sync=sync, round=number))
            if "error" in result:
                groups.remove(group)
                break
    for variant, overrides in ({ONE: []} if task.ranks == 1 else args.variants).items():
        add(side="ours", variant=variant, round=number, **run_ours(args, task, overrides, scratch))


def started(args, tasks, add):
    """{task's name: its groups that are ready}; what failed is reported."""
    groups = {task.name: [Official(args, task, variant) for variant in official_variants(args.modes, task.ranks)]
              for task in tasks}
    try:
        for task in tasks:
            for group in list(groups[task.name]):
                answer = group.answer(max(1.0, args.limit - (time.monotonic() - group.start)))
                if "error" in answer:
                    add(task)(side="official", variant=group.variant, round=0, **answer)
                    groups[task.name].remove(group)
                else:
                    say(f"{task.name:10} official code, {group.variant}: ready after {answer['ready']['warmup_s']} s")
    except BaseException:
        stop(groups)
        raise
    return groups


def stop(groups):
    for of_task in groups.values():
        for group in of_task:
            group.stop()


def kept(results, tasks, modes):
    """Of earlier sittings what this one does not measure again; of ours, and of one rank, what such results refer to."""
    again = {(task.work, task.ranks): official_variants(modes, task.ranks) for task in tasks}
    point = lambda r: (r["work"], r["ranks"])  # noqa: E731
    theirs = [r for r in results if r["side"] == "official"
              and (r["ranks"] > 1 or point(r) not in again) and r["variant"] not in again.get(point(r), [])]
    beside = {(point(r), r.get("sitting")) for r in theirs}
    sittings = {r.get("sitting") for r in theirs}
    return [r for r in results if r in theirs or (point(r), r.get("sitting")) in beside and r["side"] == "ours"
            or r["ranks"] == 1 and r.get("sitting") in sittings]


def measure(args, tasks, results):
    sitting = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}"
    end = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")

    def add_to(task):
        def add(**record):
            record = dict(work=task.work, ranks=task.ranks, batch=task.batch, sitting=sitting,
                          time=f"{datetime.datetime.now():%Y-%m-%d %H:%M}", **args.machine, **record)
            results.append(record)
            shown = record.get("error") or record.get("ms_per_step")
            say(f"{task.name:10} {record['side']:8} {record['variant']:28} sync {record.get('sync', '-')!s:5} {shown}")
            write_json(args.out, results)
        return add

    results[:] = kept(results, tasks, args.modes)
    groups = started(args, tasks, add_to)
    longest = 0.0
    try:
        with tempfile.TemporaryDirectory(prefix="compare_") as scratch:
            for number in range(args.rounds):
                start = time.monotonic()
                if number > 0 and start + longest > end:
                    say(f"no time for round {number + 1}: the longest took {longest:.0f} s")
                    break
                for task in tasks:
                    one_round(args, task, groups[task.name], number, scratch, add_to(task))
                longest = max(longest, time.monotonic() - start)
    finally:
        stop(groups)


# ---- tables ----

def best_official(records):
    """(summary, variant, sync) of the fastest mode among the records of one task; None without any."""
    found = []
    for variant, sync in sorted({(r["variant"], r["sync"]) for r in records if r["side"] == "official" and "sync" in r}):
        of_mode = summary([r for r in records if r["side"] == "official" and r["variant"] == variant
                           and r.get("sync") is sync])
        if of_mode:
            found.append((of_mode, variant, sync))
    return min(found, key=lambda f: f[0]["median"], default=None)


def of_task(results, work, ranks, batch, sitting):
    """One task's records. Those of one rank stand for both kinds of scaling."""
    return [r for r in results if r["ranks"] == ranks and (ranks == 1 or r["work"] == work) and r["batch"] == batch
            and r.get("sitting") == sitting]


def efficiency(work, ranks, one, several):
    if not one or not several:
        return None
    return one["median"] / several["median"] / (ranks if work == "strong" else 1)


def compared(results, work, ranks, batch, variant):
    """What the table says about one task and one variant of ours, as a dict; None where nothing was measured side by side.
    Of several sittings the one with the smallest ratio."""
    found = []
    for sitting in {r.get("sitting") for r in results}:
        here = of_task(results, work, ranks, batch, sitting)
        ours = summary([r for r in here if r["side"] == "ours" and r["variant"] == variant])
        official = best_official(here)
        if not ours or not official:
            continue
        alone = of_task(results, work, 1, batch // ranks if work == "weak" else batch, sitting)
        one = best_official(alone)
        found.append(dict(
            ratio=official[0]["median"] / ours["median"], official=official[0], mode=official[1], sync=official[2],
            ours=ours, official_efficiency=efficiency(work, ranks, one and one[0], official[0]),
            ours_efficiency=efficiency(work, ranks, summary([r for r in alone if r["side"] == "ours"]), ours)))
    return min(found, key=lambda f: f["ratio"], default=None)


def percent(value):
    return f"{100 * value:.1f} %" if value else "-"


def mode_name(variant, sync):
    return f"{variant}, metrics {'read' if sync else 'not read'}"


def points(results):
    """[(work, ranks, batch)] of all records, one rank first; of one rank weak scaling alone."""
    order = list(WORKS)
    return sorted({(r["work"], r["ranks"], r["batch"]) for r in results},
                  key=lambda p: (p[1] > 1, order.index(p[0]), p[1], p[2]))


def tables(results):
    lines = [measured_on(results), "",
             "| work | GPUs | batch, of all | official code, its best mode | ms per step | ours | ms per step | "
             "official / ours | efficiency, official | efficiency, ours | peak GiB per GPU, official | "
             "peak GiB per GPU, ours |", "|---|---:|---:|---|---:|---|---:|---:|---:|---:|---:|---:|"]
    details = ["| work | GPUs | batch, of all | official code | metrics read each step | not read | peak GiB per GPU |",
               "|---|---:|---:|---|---:|---:|---:|"]
    for work, ranks, batch in points(results):
        here = [r for r in results if (r["work"], r["ranks"], r["batch"]) == (work, ranks, batch)]
        head = f"| {'one GPU' if ranks == 1 else WORKS[work]} | {ranks} | {batch} |"
        for variant in sorted({r["variant"] for r in here if r["side"] == "official"}):
            of_mode = [r for r in here if r["side"] == "official" and r["variant"] == variant]
            by_sync = [summary([r for r in of_mode if r.get("sync") is sync]) for sync in (True, False)]
            if any(by_sync):
                peak = max(s["peak"] or 0 for s in by_sync if s)
                details.append(f"{head} {variant} | " + " | ".join(spread(s) if s else "-" for s in by_sync) +
                               f" | {gib(peak)} |")
            for error in sorted({r["error"] for r in of_mode if "error" in r}):
                details.append(f"{head} {variant} | fails: `{cell(error)}` | | |")
        for variant in [ONE, *VARIANTS]:
            of_variant = [r for r in here if r["side"] == "ours" and r["variant"] == variant]
            found = compared(results, work, ranks, batch, variant)
            if found:
                official, ours = found["official"], found["ours"]
                share = [percent(found[key]) if ranks > 1 else "" for key in ("official_efficiency", "ours_efficiency")]
                lines.append(f"{head} {mode_name(found['mode'], found['sync'])} | {spread(official)} | {variant} | "
                             f"{spread(ours)} | **{found['ratio']:.2f}** | {share[0]} | {share[1]} | "
                             f"{gib(official['peak'])} | {gib(ours['peak'])} |")
            elif summary(of_variant):
                lines.append(f"{head} | | {variant} | {spread(summary(of_variant))} | | | | | "
                             f"{gib(summary(of_variant)['peak'])} |")
            for error in sorted({r["error"] for r in of_variant if "error" in r}):
                lines.append(f"{head} | | {variant} | fails: `{cell(error)}` | | | | | |")
    return "\n".join(lines + [""] + details) + "\n"


# ---- arguments ----

def modes_of(text):
    """[(mode, ddp)] of MODE:DDP,MODE:DDP."""
    modes = []
    for item in text.split(","):
        mode, _, ddp = item.partition(":")
        known([mode], ["eager", *MODES], "mode")
        known([ddp], DDP, "way of summing (MODE:DDP)")
        modes.append((mode, ddp))
    return modes


def ranks_of(text):
    try:
        ranks = sorted({int(word) for word in text.split(",")})
    except ValueError:
        ranks = [0]
    if ranks[0] < 1:
        raise command.Failure(command.USAGE, f"--ranks '{text}' is not a list of whole numbers of at least 1")
    return ranks


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--hrm", type=pathlib.Path, metavar="PATH", help="checkout of the official HRM code")
    parser.add_argument("--ranks", default="1,2", help="numbers of GPUs, comma-separated (default: %(default)s)")
    parser.add_argument("--work", default=",".join(WORKS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--modes", default="default:loop,default:bucket", metavar="MODE:DDP,...",
                        help="of torch.compile, and how gradients are summed: " + ", ".join(DDP) +
                        " (default: %(default)s)")
    parser.add_argument("--variants", default="fp32 sums", help="of ours, comma-separated: " + ", ".join(VARIANTS) +
                        " (default: %(default)s)")
    parser.add_argument("--rounds", type=command.count(), default=3, help="turns of each side (default: %(default)s)")
    parser.add_argument("--minutes", type=command.count(0), default=0,
                        help="begin no round that would end later than this (default: no such limit)")
    parser.add_argument("--batch", type=command.count(), default=768,
                        help="of each GPU (weak scaling), of all (strong scaling); default: %(default)s")
    parser.add_argument("--steps", type=command.count(), default=30, help="steps of a turn (default: %(default)s)")
    parser.add_argument("--skip-steps", type=command.count(), default=15,
                        help="steps at the start of our turns that do not count (default: %(default)s)")
    parser.add_argument("--settle", type=command.count(0), default=2, metavar="SECONDS",
                        help="of further steps at the start of a turn that do not count (default: %(default)s)")
    parser.add_argument("--limit", type=command.count(), default=300,
                        help="seconds that compiling, or a turn, may take (default: %(default)s)")
    add_result_options(parser)
    parser.add_argument("--ours-set", action="append", default=[], metavar="KEY=VALUE", help="override of ours")
    parser.add_argument("--official-set", action="append", default=[], metavar="KEY=VALUE", help="override of theirs")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: for tests of this script")
    args = parser.parse_args()
    args.modes = modes_of(args.modes)
    names = known([name.strip() for name in args.variants.split(",")], list(VARIANTS), "variant")
    args.variants = {name: VARIANTS[name] for name in names}
    ranks, works = ranks_of(args.ranks), known(args.work.split(","), list(WORKS), "work")
    tasks = tasks_of(works, ranks, args.batch)
    for task in tasks:
        if task.batch % task.ranks:
            raise command.Failure(command.USAGE, f"--batch {args.batch} cannot be split among {task.ranks} ranks")
    if args.report and not (args.out and args.out.exists()):
        raise command.Failure(command.USAGE, "--report needs --out, an existing file of results")
    results = earlier_results(args.out, ("ranks", "batch"))
    command.writable(args.markdown)
    if args.report:
        if not results:
            raise command.Failure(command.DATA, f"{args.out} holds no results")
        write_text(args.markdown, tables(results))
        return 0
    if args.hrm is None:
        raise command.Failure(command.USAGE, "give --hrm, a checkout of the official code; see --help")
    command.checkout(args.hrm, "HRM")
    command.writable(args.out)
    args.binary = command.program(args.binary)
    args.machine = machine(args.device, args.binary, max(ranks))
    # Inductor would start a compiler for each core, in each of the processes that compile at the same time.
    processes = sum(task.ranks * len(official_variants(args.modes, task.ranks)) for task in tasks)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(2, len(os.sched_getaffinity(0)) // processes)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the blocks that end the groups
    measure(args, tasks, results)
    write_text(args.markdown, tables(results))
    for task in tasks:
        if not any(compared(results, task.work, task.ranks, task.batch, variant) for variant in (ONE, *args.variants)):
            errors = [f"{r['side']}, {r['variant']}: {r['error']}" for r in results
                      if (r["work"], r["ranks"]) == (task.work, task.ranks) and "error" in r]
            raise command.Failure(command.MACHINE, f"{WORKS[task.work]} with {task.ranks} could not be compared "
                                                   f"({(errors or ['no turn'])[-1]})")
    return 0


if __name__ == "__main__":
    command.run(main)
