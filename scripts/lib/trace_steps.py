"""Steps of a trace: which kernels belong to which step, and how much of their time is computing, communication, idle. Only
Python's standard library is used."""

import bisect
import collections
import dataclasses
import re

COMMUNICATION = re.compile(r"nccl\w*Kernel")  # ncclDevKernel_AllReduce_Sum_f32_RING_LL(...) and its like
# Without a GPU: the ranges in which the host exchanges with other ranks.
HOST_COMMUNICATION = re.compile(r"all_reduce$|gloo:|c10d::")


@dataclasses.dataclass
class Sums:
    """Of one step, or of the mean of several, in microseconds."""

    span: float = 0.0
    computing: float = 0.0
    communication: float = 0.0
    summed: float = 0.0
    hidden: float = 0.0
    same_stream: float = 0.0
    kernels: float = 0

    @property
    def exposed(self):
        return self.communication - self.hidden

    @property
    def idle(self):
        return max(self.span - self.computing - self.exposed + self.same_stream, 0.0)


def union(intervals):
    """The same time in intervals that do not touch, in order."""
    out = []
    for begin, end in sorted(intervals):
        if out and begin <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([begin, end])
    return out


def length(intervals):
    return sum(end - begin for begin, end in intervals)


def common(a, b):
    """The time that is in both of two unions."""
    out, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if begin < end:
            out.append([begin, end])
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return out


def sums_of(kernels):
    """kernels: [(name, stream, begin, end)] of one step."""
    sums = Sums(span=max(k[3] for k in kernels) - min(k[2] for k in kernels))
    ours, streams = collections.defaultdict(list), collections.defaultdict(list)
    for name, stream, begin, end in kernels:
        (streams if COMMUNICATION.match(name) else ours)[stream].append((begin, end))
    every = union(x for of_stream in ours.values() for x in of_stream)
    sums.computing = length(every)
    sums.kernels = sum(map(len, streams.values()))
    sums.summed = sum(length(x) for x in streams.values())
    sums.communication = length(union(x for of_stream in streams.values() for x in of_stream))
    hidden, same = [], []
    for stream, intervals in streams.items():
        # A kernel of the same stream that was started early only waits for the one of NCCL.
        others = union(x for other, of_stream in ours.items() if other != stream for x in of_stream)
        hidden += common(union(intervals), others)
        same += common(union(intervals), union(ours.get(stream, [])))
    sums.hidden = length(union(hidden))
    sums.same_stream = length(union(same)) - length(common(union(same), union(hidden)))
    return sums


def ranges_of_steps(events):
    """[(begin, end)] of the train.step ranges, in order."""
    return sorted((e["ts"], e["ts"] + e["dur"]) for e in events
                  if e.get("cat") == "user_annotation" and e["name"] == "train.step")


def steps_of(events):
    """[the kernels that each train.step range started], and how many kernels none of them started."""
    ranges = ranges_of_steps(events)
    begins, ends = [begin for begin, _ in ranges], [end for _, end in ranges]
    started = {e["args"]["correlation"]: e["ts"] for e in events
               if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})}
    steps, outside = [[] for _ in begins], 0
    for e in events:
        if e.get("cat") != "kernel":
            continue
        args = e.get("args", {})
        at = started.get(args.get("correlation"))
        index = bisect.bisect_right(begins, at) - 1 if at is not None else -1
        if index < 0 or at > ends[index]:
            outside += 1
        else:
            # The track may be one beside the stream's, for kernels that overlap on it.
            stream = (e.get("pid"), args.get("stream", e.get("tid")))
            steps[index].append((e["name"], stream, e["ts"], e["ts"] + e["dur"]))
    return [step for step in steps if step], outside


def host_steps(events):
    """Sums of each train.step range of a trace without a GPU: operations compute, ranges of exchanges communicate, the
    rest is idle."""
    out = []
    work = [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in ("cpu_op", "user_annotation")]
    operations = union((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "cpu_op")
    exchanges = union((begin, end) for name, begin, end in work if HOST_COMMUNICATION.match(name))
    for begin, end in ranges_of_steps(events):
        step = [[begin, end]]
        communication = common(exchanges, step)
        computing = common(operations, step)
        both = length(common(computing, communication))
        # The host waits inside the operation that exchanges: nothing of it is hidden.
        out.append(Sums(span=end - begin, computing=length(computing) - both, communication=length(communication),
                        summed=length(communication), kernels=len(communication)))
    return out


def mean(rows):
    names = [field.name for field in dataclasses.fields(Sums)]
    return Sums(**{name: sum(getattr(row, name) for row in rows) / len(rows) for name in names})
