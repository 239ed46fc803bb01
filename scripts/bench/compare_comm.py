#!/usr/bin/env python3
"""Times collective operations of torch.distributed and of hrm_train side by side, by the same launcher, in turns.

    .venv/bin/python scripts/bench/compare_comm.py --ranks 2 --rounds 3 --out comm.json --markdown comm.md

On GPUs both sides use NCCL and replay the operations from a CUDA graph, one after the other; hrm_train by
`bench comm --ops all`, with and without --urgent. On CPUs (--device cpu) both use Gloo, without graphs. A size is the
whole tensor's, float32. A time is the slowest rank's, the median of the rounds; the tables have the range behind it.
Prints a line for each turn and writes --out after each; the environment (NCCL_* and the like) reaches both sides.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

from comparison import ROOT, Group, run_bench, say, write_json, write_text

KINDS = {"all_reduce": "all-reduce", "reduce_scatter": "reduce-scatter", "all_gather": "all-gather",
         "all_to_all": "all-to-all", "send_receive": "send and receive"}
SIDES = ("torch", "ours", "ours, urgent")


# ---- the side of torch: one of the ranks ----

def operations(dist, torch, whole, other, rank, ranks):
    size = whole.numel() // ranks

    def send_receive():
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, whole, (rank + 1) % ranks),
                                        dist.P2POp(dist.irecv, other, (rank - 1) % ranks)])
        for work in works:
            work.wait()

    part = other[rank * size:(rank + 1) * size]
    return {"all_reduce": lambda: dist.all_reduce(whole),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
            "all_gather": lambda: dist.all_gather_into_tensor(other, whole[:size]),
            "all_to_all": lambda: dist.all_to_all_single(other, whole),
            "send_receive": send_receive}


def time_torch(work, torch, dist, device, calls):
    def several():
        for _ in range(calls):
            work()

    run = several
    if device.type == "cuda":
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            several()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            several()
        run = graph.replay
    seconds = []
    for turn in range(6):
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        longest = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        if turn > 0:
            seconds.append(longest.item() / calls)
    return 1e6 * statistics.median(seconds)


def torch_rank(args):
    import torch
    import torch.distributed as dist
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    if args.device == "cuda":
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    result = {kind: [] for kind in KINDS}
    for size in sizes_of(args):
        for kind in KINDS:
            count = size // 4 if kind in ("all_reduce", "send_receive") else -(-size // 4 // ranks) * ranks
            whole, other = torch.zeros(count, device=device), torch.zeros(count, device=device)
            most, volume = (200, 1 << 30) if args.device == "cuda" else (10, 1 << 24)
            calls = max(4, min(most, volume // (4 * count)))
            work = operations(dist, torch, whole, other, rank, ranks)[kind]
            result[kind].append({"bytes": 4 * count, "time_us": time_torch(work, torch, dist, device, calls)})
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


# ---- both sides in turns ----

def sizes_of(args):
    return [8 << i for i in range(64) if 8 << i <= args.max_mb << 20]


def one_turn(args, side, scratch):
    if side == "torch":
        words = [sys.executable, str(pathlib.Path(__file__).resolve()), "--torch-rank", "--device", args.device,
                 "--max-mb", str(args.max_mb)]
        group = Group(lambda rank: words, args.ranks)
        try:
            return group.answer(args.limit)
        finally:
            group.stop()
    words = [args.binary, "bench", "comm", "--device", args.device, "--ops", "all", "--max-mb", str(args.max_mb)]
    return run_bench(words + (["--urgent"] if side != "ours" else []), scratch, args.limit, args.ranks)


def table(turns):
    """A row for each operation and size: the medians of each side, with their ranges, and the ratio."""
    lines = []
    for kind, name in KINDS.items():
        rows = [[turn[kind] for turn in turns[side]] for side in SIDES]
        lines += [f"\n{name}, us\n", "| bytes | torch | hrm_train | hrm_train, urgent | torch / urgent |",
                  "|---:|---:|---:|---:|---:|"]
        for i, row in enumerate(rows[0][0]):
            cells, medians = [], []
            for side in rows:
                times = [turn[i]["time_us"] for turn in side]
                medians.append(statistics.median(times))
                cells.append(f"{medians[-1]:.1f} ({min(times):.1f} to {max(times):.1f})")
            lines.append(f"| {row['bytes']:,} | " + " | ".join(cells) + f" | {medians[0] / medians[2]:.2f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--max-mb", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300, help="seconds of one turn")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("comm.json"))
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--torch-rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch_rank:
        return torch_rank(args)
    turns = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as scratch:
        for round_ in range(args.rounds):
            for side in SIDES:
                result = one_turn(args, side, scratch)
                if "error" in result:
                    sys.exit(f"compare_comm: {side} failed: {result['error']}")
                turns[side].append(result)
                say(f"round {round_ + 1}, {side}: all-reduce of 8 bytes {result['all_reduce'][0]['time_us']:.1f} us")
                write_json(args.out, [{"side": name, **turn} for name in SIDES for turn in turns[name]])
    text = table(turns)
    print(text)
    if args.markdown:
        write_text(args.markdown, text)


if __name__ == "__main__":
    main()
