"""Counters of Nsight Compute: which are asked for, and what they say about a kernel in one sentence."""

SECONDS = "gpu__time_duration.sum"
BYTES = "dram__bytes.sum"
MEMORY_SHARE = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
SM_SHARE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
L2_SHARE = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
ELIGIBLE = "smsp__warps_eligible.avg.per_cycle_active"
INSTRUCTIONS = "smsp__inst_executed.sum"
# Share of the time in which the tensor cores work: the first that the GPU has.
TENSOR_SHARES = ["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
                 "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed"]
# Operations of the tensor cores, two for each multiply-add, one metric for each type of input.
TENSOR_OPS = "sm__ops_path_tensor_src"
TENSOR_TYPES = ["bf16_dst_fp32", "fp16", "fp16_dst_fp32", "tf32_dst_fp32", "fp8", "fp8_dst_fp32"]
# fp32 instructions of a thread, with their operations.
FP32 = {"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 2, "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": 1,
        "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": 1}
# The limits of the GPU at its clocks: per cycle, and cycles per second.
BYTES_PER_CYCLE, MEMORY_CLOCK = "dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second"
FFMA_PER_CYCLE = "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained"
SM_CLOCK = "sm__cycles_elapsed.avg.per_second"

STALL, STALL_END = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
# What warps wait for, and what usually mends it.
STALLS = {
    "long_scoreboard": ("loads from memory", "keep more bytes in flight: wider loads, more of them before their use"),
    "short_scoreboard": ("shared memory and special functions", "fewer bank conflicts, fewer exp and division"),
    "barrier": ("other warps at a barrier", "smaller blocks, fewer barriers"),
    "membar": ("memory barriers", "fewer fences"),
    "wait": ("a fixed latency of the instruction before", "more independent instructions or warps"),
    "math_pipe_throttle": ("a busy arithmetic unit", "fewer operations"),
    "mio_throttle": ("a full queue of shared memory instructions", "wider accesses of shared memory"),
    "lg_throttle": ("a full queue of global memory instructions", "wider loads and stores"),
    "tex_throttle": ("a full queue of texture instructions", "wider accesses"),
    "dispatch_stall": ("the dispatcher", "fewer conflicts of register banks"),
    "drain": ("stores at their end", "store earlier, or less"),
    "no_instruction": ("instructions to be fetched", "shorter loops, less unrolling"),
    "branch_resolve": ("branches", "fewer branches"),
    "imc_miss": ("constants that are not cached", "fewer constants"),
    "sleeping": ("themselves: they sleep", "shorter sleeps"),
    "gmma": ("a matrix product in flight", "deeper pipelines of products"),
}
SHORT = 4e-6  # seconds: a kernel that takes hardly longer than its launch
ENOUGH = 60.0  # percent of a limit from which on a kernel counts as bound by it


def wanted():
    """All metrics that the digest reads."""
    return [SECONDS, BYTES, MEMORY_SHARE, SM_SHARE, L2_SHARE, OCCUPANCY, ELIGIBLE, INSTRUCTIONS, *TENSOR_SHARES,
            *(f"{TENSOR_OPS}_{kind}.sum" for kind in TENSOR_TYPES),
            *FP32, BYTES_PER_CYCLE, MEMORY_CLOCK,
            FFMA_PER_CYCLE, SM_CLOCK, *(f"{STALL}{reason}{STALL_END}" for reason in STALLS)]


def on_this_gpu(metrics, listed):
    """Those whose base `ncu --query-metrics` lists: not every GPU counts each, and ncu refuses unknown ones. All where it
    lists nothing."""
    known = {word for line in listed.splitlines() for word in line.split()[:1] if "__" in word}
    return [metric for metric in metrics if metric.partition(".")[0] in known] if known else list(metrics)


def tensor_ops(counters):
    """Operations of the tensor cores in one launch; None where they were not counted."""
    counted = [value for metric, value in counters.items() if metric.startswith(TENSOR_OPS) and metric.endswith(".sum")]
    return sum(counted) if counted else None


def operations(counters):
    """Floating-point operations of one launch, those of tensor cores and those in fp32; None where neither was counted."""
    fp32 = [factor * counters[metric] for metric, factor in FP32.items() if metric in counters]
    tensor = tensor_ops(counters)
    return None if tensor is None and not fp32 else (tensor or 0) + sum(fp32)


def tensor_share(counters):
    return next((counters[metric] for metric in TENSOR_SHARES if metric in counters), None)


def stalls(counters):
    """[(reason, warps that wait for it at each issue)], the most first."""
    found = [(reason, counters[f"{STALL}{reason}{STALL_END}"]) for reason in STALLS
             if f"{STALL}{reason}{STALL_END}" in counters]
    return sorted(found, key=lambda pair: -pair[1])


def bound_by(counters):
    """The limit that a kernel is near: its name, or None."""
    shares = [(counters.get(MEMORY_SHARE), "memory"), (counters.get(L2_SHARE), "L2"), (counters.get(SM_SHARE), "computing")]
    share, name = max(((share, name) for share, name in shares if share is not None), default=(0.0, None),
                      key=lambda pair: pair[0])
    if share < ENOUGH:
        return None
    # What DRAM moves passes through L2: where both are as busy, the memory is the limit.
    memory = counters.get(MEMORY_SHARE)
    if name == "L2" and memory is not None and memory >= share - 5:
        return "memory"
    # The share of the SMs is that of their busiest unit, often the tensor cores.
    tensor = tensor_share(counters)
    return "tensor cores" if name == "computing" and tensor is not None and tensor >= share - 5 else name


def verdict(counters):
    """One sentence; None where too little was counted."""
    if MEMORY_SHARE not in counters or SM_SHARE not in counters:
        return None
    bound = bound_by(counters)
    if bound is None and 0 < counters.get(SECONDS, 0) < SHORT:
        return f"It takes {counters[SECONDS] * 1e6:.1f} us, hardly more than a launch: only a kernel less makes it faster."
    if bound == "memory":
        return f"It moves {counters[MEMORY_SHARE]:.0f} % of what DRAM can: only fewer bytes make it faster (fusion, narrower dtypes)."
    if bound == "L2":
        return f"L2 is {counters[L2_SHARE]:.0f} % busy: reuse what is in registers and shared memory, or read less."
    if bound == "tensor cores":
        return f"Tensor cores work {tensor_share(counters):.0f} % of the time: only fewer or narrower operations make it faster."
    if bound == "computing":
        return f"A unit of the SMs is {counters[SM_SHARE]:.0f} % busy: fewer instructions make it faster."
    shares = f"Neither memory ({counters[MEMORY_SHARE]:.0f} %) nor SMs ({counters[SM_SHARE]:.0f} %) are busy"
    waits = stalls(counters)
    occupancy, eligible = counters.get(OCCUPANCY), counters.get(ELIGIBLE)
    few = f" at {occupancy:.0f} % occupancy" if occupancy is not None else ""
    few += f" with {eligible:.1f} eligible warps" if eligible is not None else ""
    if not waits or waits[0][1] <= 0:
        return f"{shares}{few}: it has too little work, or waits."
    what, remedy = STALLS[waits[0][0]]
    return f"{shares}{few}: most warps wait for {what}; {remedy}."


def limits(profile):
    """(bytes/s of the memory, FLOP/s of the tensor cores, FLOP/s in fp32) of the GPU at the clocks of the capture; None
    for what was not counted."""
    def best(values):
        return max((v for v in values if v), default=None)

    every = list(profile.counters.values())
    memory = best(c[BYTES_PER_CYCLE] * c[MEMORY_CLOCK] for c in every if BYTES_PER_CYCLE in c and MEMORY_CLOCK in c)
    if memory is None:  # from what a kernel reached, and the share that this is
        memory = best(c[BYTES] / c[SECONDS] / c[MEMORY_SHARE] * 100 for c in every
                      if c.get(SECONDS) and BYTES in c and c.get(MEMORY_SHARE, 0) >= 20)
    # From what kernels reached, and the share of cycles in which the tensor cores worked: ncu's own peak of operations
    # counts sparse matrices, twice as many.
    tensor = best(tensor_ops(c) / c[SECONDS] / c[TENSOR_SHARES[0]] * 100 for c in every
                  if c.get(SECONDS) and tensor_ops(c) and c.get(TENSOR_SHARES[0], 0) >= 20)
    fp32 = best(2 * c[FFMA_PER_CYCLE] * c[SM_CLOCK] for c in every if FFMA_PER_CYCLE in c and SM_CLOCK in c)
    return memory, tensor, fp32
