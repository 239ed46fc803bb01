"""What Linux perf recorded: stacks of `perf script`, counters of `perf stat`, a table of host hotspots. Only Python's standard
library is used."""

import collections
import re

from kernel_profile import BadProfile

UNKNOWN = "[unknown]"
HEAD = re.compile(r"^(?P<thread>\S.*?)\s+\d+(?:/\d+)?\s+(?:\[\d+\]\s+)?[\d.]+:\s+(?:(?P<period>\d+)\s+)?(?P<event>[\w:.\-/]+):")
FRAME = re.compile(r"^\s+[0-9a-f]+\s+(?P<symbol>.*?)(?:\+0x[0-9a-f]+)?\s+\((?P<file>.*)\)\s*$")
# Code without a file: on a CPU, oneDNN makes its matrix products at run time.
JIT = re.compile(r"perf-\d+\.map")

# (what, expression, whether any frame of the stack counts or only the innermost one, what usually mends it). The first that
# fits counts.
KINDS = [
    ("page faults", r"page_fault|clear_page|do_anonymous_page|handle_mm_fault|__alloc_pages", "innermost",
     "unset MALLOC_* and GLIBC_TUNABLES: then hrm_train keeps freed memory"),
    ("preparation of data", r"hrm::data::|inflate|ZSTD_", "any", "a free core for the data thread; data.prefetch_batches"),
    ("saving and logging", r"fsync|vfs_write|ext4_|hrm::checkpoint::", "any", "a larger train.checkpoint_every, a faster disk"),
    ("waiting for the GPU", r"cu(da)?(Stream|Event|Device|Ctx)Synchronize|cuEventQuery", "any",
     "nothing: the GPU is what limits; see its kernels"),
    ("starting work on the GPU", r"cu(da)?LaunchKernel|cu(da)?GraphLaunch|cu(da)?Memcpy|libcuda\.so", "any",
     "runtime.cuda_graphs=true, a larger train.micro_batch_size"),
    ("exchange between ranks", r"nccl|gloo::|c10d::|tcp_sendmsg|tcp_recvmsg", "any", "a larger parallel.bucket_mb, fewer ranks"),
    ("threads that wait for each other", r"gomp_|omp_|kmp_|futex|sched_yield|pthread_cond_wait|pthread_mutex", "innermost",
     "a smaller runtime.threads: at most the physical cores"),
    ("matrix products", r"gemm|mkl_|dnnl|cblas_|oneapi", "any", "runtime.threads = physical cores; a smaller model or batch"),
    ("allocation of host memory", r"malloc|calloc|cfree|_int_free|operator new|operator delete|^free$|mmap|munmap|brk",
     "innermost", "runtime.cuda_graphs=true; fewer, larger steps"),
    ("copies", r"memcpy|memmove|memset|copy_|clear_user", "innermost", "larger batches, data without augmentation on the host"),
    ("dispatch and autograd", r"c10::|at::_ops|Dispatcher|torch::autograd|at::RecordFunction|TensorIterator", "innermost",
     "runtime.cuda_graphs=true, a larger train.micro_batch_size"),
    ("elementwise operations on the CPU", r"at::native|hrm::ops", "any", "runtime.threads, ops.backend left at its default"),
]


def short_symbol(symbol):
    """A function without its arguments and template arguments, for a picture."""
    symbol = symbol.replace("(anonymous namespace)", "anonymous").replace("(inlined)", "")
    for opening, closing in ("<>", "()"):
        out, depth = [], 0
        for i, c in enumerate(symbol):
            # operator<, operator-> and their like are names.
            if c == opening and not symbol[:i].endswith(("operator", "operator" + opening)):
                depth += 1
            elif c == closing and depth:
                depth -= 1
            elif not depth:
                out.append(c)
        symbol = "".join(out)
    return " ".join(symbol.split()).replace(";", ":") or UNKNOWN


def read_script(text, origin):
    """{stack: weight} of what `perf script` prints: a stack is (thread, outermost function, ..., innermost one); and the
    event's name. A weight is the event's count, or a sample where it has none."""
    stacks, events = collections.Counter(), collections.Counter()
    head, frames = None, []

    def close():
        if head is not None:
            stacks[(head["thread"], *reversed(frames or [UNKNOWN]))] += int(head["period"] or 1)
            events[head["event"].split(":")[0]] += 1

    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace():
            frame = FRAME.match(line)
            if frame is None or head is None:
                raise BadProfile(f"'{origin}' is damaged, or not what perf script prints: '{line.strip()[:60]}'")
            symbol = frame["symbol"].strip()
            if symbol in ("", UNKNOWN):
                library = frame["file"].rpartition("/")[2].strip("[]")
                symbol = "[gemm made at run time]" if JIT.fullmatch(library) else f"[{library or 'unknown'}]"
            name = short_symbol(symbol)
            # Where frame pointers are missing, a stack may hold a hundred of them.
            if not (frames and name == frames[-1] == UNKNOWN):
                frames.append(name)
            continue
        close()
        head, frames = HEAD.match(line), []
        if head is None:
            raise BadProfile(f"'{origin}' is damaged, or not what perf script prints: '{line.strip()[:60]}'")
    close()
    if not stacks:
        raise BadProfile(f"'{origin}' holds no samples: the program ran too briefly")
    return stacks, events.most_common(1)[0][0]


def folded(stacks):
    """Text for any flame-graph tool: frames joined by ';', a blank, the weight."""
    return "".join(f"{';'.join(stack)} {weight}\n" for stack, weight in sorted(stacks.items()))


def kind_of(stack):
    for number, (_, pattern, which, _) in enumerate(KINDS):
        frames = stack[1:] if which == "any" else stack[-1:]
        if any(re.search(pattern, frame) for frame in frames):
            return number
    return None


def kinds(stacks):
    """[(kind, weight, what mends it)], the most first."""
    sums = collections.Counter()
    for stack, weight in stacks.items():
        sums[kind_of(stack)] += weight
    return [("other" if number is None else KINDS[number][0], weight, "" if number is None else KINDS[number][3])
            for number, weight in sums.most_common()]


def functions(stacks):
    """[(function, weight in itself, weight with what it calls)], the most in itself first."""
    alone, total = collections.Counter(), collections.Counter()
    for stack, weight in stacks.items():
        alone[stack[-1]] += weight
        for frame in set(stack[1:]):
            total[frame] += weight
    return [(name, weight, total[name]) for name, weight in alone.most_common()]


def read_stat(text, origin):
    """{event: count, None where this machine has no such counter} of `perf stat -x ';'`."""
    counts = {}
    for line in text.splitlines():
        fields = line.split(";")
        if line.startswith("#") or len(fields) < 3:
            continue
        try:
            counts[fields[2].split(":")[0]] = None if fields[0].startswith("<") else float(fields[0])
        except ValueError:
            raise BadProfile(f"'{origin}' is damaged, or not what perf stat -x prints: '{line[:60]}'") from None
    if not counts:
        raise BadProfile(f"'{origin}' is damaged, or not what perf stat -x prints")
    return counts


NO_HARDWARE = ("This machine gives perf no hardware events (a virtual machine, or kernel.perf_event_paranoid): there is no IPC and "
               "there are no misses, and stacks are sampled by the clock.")


def stat_lines(counts):
    """[(what, value, what it means)]."""
    def ratio(a, b, scale=1.0):
        return scale * counts[a] / counts[b] if counts.get(a) is not None and counts.get(b) else None

    out = []
    if (ipc := ratio("instructions", "cycles")) is not None:
        out.append(("instructions per cycle", f"{ipc:.2f}", "below 1, cores wait: for memory, or for each other" if ipc < 1 else
                    "cores are busy with instructions"))
    if (misses := ratio("cache-misses", "cache-references", 100)) is not None:
        out.append(("cache misses", f"{misses:.1f} %", "data do not fit the caches: smaller micro-batches, fewer copies"
                    if misses > 20 else "most data are in the caches"))
    if (misses := ratio("branch-misses", "branches", 100)) is not None:
        out.append(("branch misses", f"{misses:.1f} %", "unusual for this program: look at the functions below"
                    if misses > 3 else "usual"))
    if (cores := ratio("task-clock", "duration_time", 1e6)) is not None:
        out.append(("cores in use", f"{cores:.1f}", "mean over the run"))
    clock = counts.get("task-clock")
    for event, name, most, remedy in (
            ("page-faults", "page faults per second", 10_000, "memory is returned and fetched again: unset MALLOC_*"),
            ("context-switches", "context switches per second", 10_000, "threads wait for each other: smaller runtime.threads"),
            ("cpu-migrations", "migrations per second", 100, "threads change cores: taskset or numactl")):
        if clock and counts.get(event) is not None:
            rate = counts[event] / (clock / 1e3)
            out.append((name, f"{rate:.0f}", remedy if rate > most else "usual"))
    return out
