"""What the scripts that read profiles share: events of several formats, groups of kernels, sums. Only Python's standard
library is used."""

import collections
import csv
import dataclasses
import gzip
import json
import math
import pathlib
import re
import sqlite3
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


class BadProfile(Exception):
    """A file that holds no profile; the text is one sentence for the user."""


@dataclasses.dataclass
class Event:
    """A kernel or copy on the GPU without its overlap with an earlier one, or an operation on the CPU without the
    operations inside it."""

    name: str
    start_us: float
    duration_us: float
    bytes: int = 0  # of a copy


@dataclasses.dataclass
class Profile:
    events: list
    gpu: bool
    steps: int = 0  # 0: the file does not say
    # Kernel name -> counters of Nsight Compute, mean over its launches.
    counters: dict = dataclasses.field(default_factory=dict)
    unfinished: int = 0  # launches whose counters a broken capture left without a value


def kernel_groups():
    """[(part of a name, group)], the first that fits counts: the tables that hrm_train itself is built with. Those of our
    kernels come first, the longest part before others (include/hrm/runtime/kernel_groups.h)."""
    def entries(file):
        return re.findall(r'\{"([^"]+)", "([^"]+)"\}', file.read_text(encoding="utf-8"))

    own = [entry for file in sorted((ROOT / "src/ops").rglob("*_bench.cpp")) for entry in entries(file)]
    return sorted(own, key=lambda entry: -len(entry[0])) + entries(ROOT / "src/runtime/kernel_groups.cpp")


def group_of(name, groups):
    return next((group for part, group in groups if part in name), "other")


def self_times(events):
    """CPU operations of a Chrome trace, each with the time that its inner operations did not take."""
    by_thread = collections.defaultdict(list)
    for e in events:
        by_thread[e["tid"]].append(e)
    out = []

    def close(stack):
        e, inner = stack.pop()
        out.append(Event(e["name"], e["ts"], max(e["dur"] - inner, 0.0)))

    for thread in by_thread.values():
        thread.sort(key=lambda e: (e["ts"], -e["dur"]))
        stack = []
        for e in thread:
            while stack and stack[-1][0]["ts"] + stack[-1][0]["dur"] <= e["ts"]:
                close(stack)
            if stack:
                stack[-1][1] += e["dur"]
            stack.append([e, 0.0])
        while stack:
            close(stack)
    return out


def without_overlap(events):
    """Work on a GPU, each event cut to the time in which none that started before it ran: a kernel may be started early,
    to wait on the device for the one before it, and that time belongs to the one before it."""
    out, end = [], float("-inf")
    for e in sorted(events, key=lambda e: (e.start_us, e.duration_us)):
        stop = e.start_us + e.duration_us
        start = min(max(e.start_us, end), stop)
        out.append(dataclasses.replace(e, start_us=start, duration_us=stop - start))
        end = max(end, stop)
    return out


def is_trace(file):
    return pathlib.Path(file).name.endswith((".json", ".json.gz"))


def load_trace(file):
    """All of a trace of `profiling.trace`: trace_rank_N.json.gz, or a trace.json of an earlier version."""
    data = existing(file).read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        trace = json.loads(data.decode("utf-8"))
        if not isinstance(trace["traceEvents"], list):
            raise TypeError
        return trace
    except (EOFError, OSError, zlib.error):
        raise BadProfile(f"'{file}' is damaged: it cannot be unpacked") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadProfile(f"'{file}' is no Chrome trace") from None


def chrome_events(file):
    """The events with a duration of a trace, as they stand there."""
    try:
        return [e for e in load_trace(file)["traceEvents"] if e.get("ph") == "X" and "dur" in e]
    except AttributeError:
        raise BadProfile(f"'{file}' is damaged, or no profile of this kind") from None


def read_chrome_trace(file):
    """A trace of `profiling.trace`."""
    events = chrome_events(file)
    steps = sum(e.get("cat") == "user_annotation" and e["name"] == "train.step" for e in events)
    gpu = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    if gpu:
        events = [Event(e["name"], e["ts"], e["dur"], e.get("args", {}).get("bytes", 0)) for e in gpu]
        return Profile(without_overlap(events), True, steps)
    return Profile(self_times([e for e in events if e.get("cat") == "cpu_op"]), False, steps)


def read_nsys_sqlite(file):
    """What `nsys export --type sqlite` wrote."""
    with sqlite3.connect(f"{pathlib.Path(file).resolve().as_uri()}?mode=ro", uri=True) as db:
        try:
            tables = {row[0] for row in db.execute("select name from sqlite_master where type = 'table'")}
        except sqlite3.DatabaseError:
            raise BadProfile(f"'{file}' is no export of nsys") from None
        if "StringIds" not in tables:
            raise BadProfile(f"'{file}' is no export of nsys")
        events = []
        if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
            events += [Event(name, start / 1e3, (end - start) / 1e3) for name, start, end in db.execute(
                "select value, start, end from CUPTI_ACTIVITY_KIND_KERNEL join StringIds on id = demangledName")]
        for table, what in (("MEMCPY", "Memcpy"), ("MEMSET", "Memset")):
            if f"CUPTI_ACTIVITY_KIND_{table}" in tables:
                events += [Event(what, start / 1e3, (end - start) / 1e3, size) for start, end, size in db.execute(
                    f"select start, end, bytes from CUPTI_ACTIVITY_KIND_{table}")]
        steps = 0
        if "NVTX_EVENTS" in tables:
            steps = db.execute("select count(*) from NVTX_EVENTS left join StringIds on id = textId "
                               "where coalesce(text, value) = 'train.step' and end is not null").fetchone()[0]
    if not events:
        raise BadProfile(f"'{file}' holds no work on a GPU")
    return Profile(without_overlap(events), True, steps)


# Factors to seconds, bytes and operations.
UNITS = {"": 1, "%": 1, "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1,
         "second": 1, "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12, "hz": 1,
         "Khz": 1e3, "Mhz": 1e6, "Ghz": 1e9, "GHz": 1e9}


def in_base_units(text, unit):
    """A number of Nsight Compute in seconds, bytes, or per second; None where there is none."""
    top, _, per = unit.partition("/")
    try:
        return float(text.replace(",", "")) * UNITS.get(top, 1) / UNITS.get(per, 1)
    except ValueError:
        return None


def mean(weighted):
    """Of (value, weight) pairs."""
    return sum(value * weight for value, weight in weighted) / sum(weight for _, weight in weighted)


def read_ncu_csv(file):
    """What `ncu --import REPORT --csv --page raw` prints: a line of names, a line of units, a line per launch."""
    with open(file, newline="", encoding="utf-8") as stream:
        # Messages of ncu itself may stand before the table.
        rows = list(csv.DictReader(line for line in stream if line.startswith('"')))
    if len(rows) < 2 or "Kernel Name" not in rows[0]:
        raise BadProfile(f"'{file}' is no raw page of ncu with the columns 'Kernel Name' and metrics")
    units, launches = rows[0], rows[1:]
    metrics = [column for column in units if "__" in column]
    events, sums = [], collections.defaultdict(lambda: collections.defaultdict(list))
    at, unfinished = 0.0, 0
    for launch in launches:
        values = {metric: in_base_units(launch[metric] or "", units[metric] or "") for metric in metrics}
        seconds = values.get("gpu__time_duration.sum")
        if seconds is None:
            raise BadProfile(f"'{file}' lacks the metric gpu__time_duration.sum")
        if not math.isfinite(seconds):
            unfinished += 1
            continue
        # Kernels run one by one under ncu: there are no gaps to see.
        events.append(Event(launch["Kernel Name"], at, seconds * 1e6))
        at += seconds * 1e6
        for metric, value in values.items():
            if value is not None:
                # What is counted is averaged over launches. A share or a rate is one of the time that a launch took.
                weight = 1 if metric.endswith(".sum") else seconds
                sums[launch["Kernel Name"]][metric].append((value, weight))
    counters = {name: {metric: mean(v) for metric, v in of.items()} for name, of in sums.items()}
    if not events:
        raise BadProfile(f"'{file}' has no kernel whose counters are complete")
    return Profile(events, True, 0, counters, unfinished)


def existing(file):
    file = pathlib.Path(file)
    if not file.is_file():
        raise BadProfile(f"'{file}' is a folder; give a file in it" if file.is_dir() else f"'{file}' does not exist")
    return file


def only_kernels(profile, pattern):
    """Work whose name holds the regular expression."""
    events = [e for e in profile.events if pattern.search(e.name)]
    if not events:
        raise BadProfile(f"no kernel's name fits '{pattern.pattern}'")
    return dataclasses.replace(profile, events=events,
                               counters={name: c for name, c in profile.counters.items() if pattern.search(name)})


def read_profile(file):
    file = existing(file)
    readers = {".sqlite": read_nsys_sqlite, ".csv": read_ncu_csv}
    reader = read_chrome_trace if is_trace(file) else readers.get(file.suffix)
    if reader is None:
        raise BadProfile(f"'{file}': give a trace (.json.gz, .json), an .sqlite export of nsys or a raw .csv page of ncu")
    try:
        profile = reader(file)
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error, sqlite3.Error):
        raise BadProfile(f"'{file}' is damaged, or no profile of this kind") from None
    if not profile.events:
        raise BadProfile(f"'{file}' holds no recorded work")
    return profile


@dataclasses.dataclass
class Row:
    name: str
    us: float = 0.0
    calls: int = 0
    bytes: int = 0


def sums_by(events, name_of):
    """Rows, the longest time first."""
    rows = {}
    for e in events:
        row = rows.setdefault(name_of(e), Row(name_of(e)))
        row.us += e.duration_us
        row.calls += 1
        row.bytes += e.bytes
    return sorted(rows.values(), key=lambda row: -row.us)


def busy_and_gaps(events):
    """(span, busy time, [(gap, event before, event after)]) in microseconds; the longest gap first."""
    if not events:
        return 0.0, 0.0, []
    ordered = sorted(events, key=lambda e: e.start_us)
    first = ordered[0]
    busy, end, last, gaps = 0.0, first.start_us, first, []
    for e in ordered:
        stop = e.start_us + e.duration_us
        if e.start_us > end:
            gaps.append((e.start_us - end, last, e))
        if stop > end:
            busy += stop - max(e.start_us, end)
            end, last = stop, e
    gaps.sort(key=lambda gap: -gap[0])
    return end - first.start_us, busy, gaps
