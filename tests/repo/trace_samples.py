"""Small traces of two ranks on GPUs, as hrm_train writes them."""

import gzip
import json

STEPS = 3
STEP_US = 2000.0


def rank_events(rank, late):
    """Each step: a product, an all-reduce that waits for the rank that is `late` microseconds late, an elementwise kernel."""
    events = [{"ph": "M", "name": "process_name", "ts": 0, "pid": 100, "tid": 0, "args": {"name": "hrm_train"}},
              {"ph": "M", "name": "process_name", "ts": 0, "pid": rank, "tid": 0, "args": {"name": f"GPU {rank}"}}]
    number = 0

    def slice_of(cat, name, pid, tid, ts, dur, **args):
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args})

    def arrow(phase, pid, tid, ts, **more):
        events.append({"ph": phase, "id": number, "pid": pid, "tid": tid, "ts": ts, "cat": "ac2g", "name": "ac2g", **more})

    for step in range(STEPS):
        t = 1000.0 + step * STEP_US
        slice_of("user_annotation", f"ProfilerStep#{step + 9}", 100, 100, t, 1990.0)
        slice_of("user_annotation", "train.step", 100, 100, t + 1, 1900.0)
        for i, (name, stream, begin, duration) in enumerate((
                ("nvjet_tst_128x256", 7, 100 + late, 600),
                ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 20, 500 + late, 500 - late),
                ("void at::native::vectorized_elementwise_kernel<4>", 7, 1200, 300))):
            number += 1
            slice_of("cpu_op", "aten::mm", 100, 100, t + 8 + i * 20, 15.0)
            slice_of("cuda_runtime", "cudaLaunchKernel", 100, 100, t + 10 + i * 20, 10.0, correlation=number)
            arrow("s", 100, 100, t + 10 + i * 20)
            slice_of("kernel", name, rank, stream, t + begin, duration, device=rank, context=1, stream=stream,
                     correlation=number)
            arrow("f", rank, stream, t + begin, bp="e")
        events.append({"ph": "C", "cat": "counter", "name": f"memory of GPU {rank}", "pid": 100, "tid": 0, "ts": t + 5,
                       "args": {"allocated": 1 << 20, "reserved": 1 << 21}})
    return sorted(events, key=lambda e: (e["ph"] != "M", e["ts"], -e.get("dur", 0)))


def trace_of(rank, ranks=2, late=0.0, base=1790857026000000000):
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks}, "schemaVersion": 1,
            "deviceProperties": [{"id": rank, "name": "a GPU", "totalGlobalMem": 1}], "displayTimeUnit": "ms",
            "baseTimeNanoseconds": base, "traceEvents": rank_events(rank, late)}


def write(file, trace):
    with gzip.open(file, "wt", encoding="utf-8") as out:
        out.write(json.dumps(trace).replace('"traceEvents"', '\n"traceEvents"'))
    return file
