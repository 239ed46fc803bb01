"""GPU time by range, from a trace of ours or an nsys export. Only Python's standard library is used."""

import bisect
import collections
import dataclasses
import pathlib
import re
import sqlite3

import kernel_profile

HEADER = kernel_profile.ROOT / "include/hrm/runtime/phase.h"
# The kernels that PhaseClock puts at the borders of phases (src/runtime/cuda/phase_clock.cu).
MARK = re.compile(r"phase_(?:begin|end<(?:[\w:]*::)?(\w+)>)")
STEP = "train.step"
# Ranges that only say how a step was started: what is inside a replay is told by the marks.
WITHOUT_MARKS = "(no range)"


def phase_names():
    """identifier -> name, from the list that hrm_train is built with."""
    return dict(re.findall(r'X\((\w+), "([^"]+)"\)', HEADER.read_text(encoding="utf-8")))


@dataclasses.dataclass
class Work:
    """A kernel, copy or memset."""

    name: str
    stream: object
    start: float  # microseconds, as all times here
    end: float
    correlation: object = None


@dataclasses.dataclass
class Range:
    name: str
    start: float
    end: float
    thread: object = None


@dataclasses.dataclass
class Row:
    name: str
    us: float = 0.0  # from the phase's begin to its end on its stream; 0 for ranges without marks
    busy_us: float = 0.0  # of that, with a kernel running
    kernels: int = 0


def read_chrome(file):
    """(work, ranges, launches by correlation) of a trace.json."""
    events = kernel_profile.chrome_events(file)
    work, ranges, launches = [], [], {}
    for e in events:
        category, arguments = e.get("cat"), e.get("args", {})
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            work.append(Work(e["name"], (e.get("pid"), e.get("tid")), e["ts"], e["ts"] + e["dur"],
                             arguments.get("correlation")))
        elif category == "user_annotation":
            ranges.append(Range(e["name"], e["ts"], e["ts"] + e["dur"], e.get("tid")))
        elif category in ("cuda_runtime", "cuda_driver") and "correlation" in arguments:
            launches[arguments["correlation"]] = e["ts"]
    return work, ranges, launches


def read_nsys(file):
    kernel_profile.existing(file)
    with sqlite3.connect(f"{pathlib.Path(file).resolve().as_uri()}?mode=ro", uri=True) as db:
        try:
            tables = {row[0] for row in db.execute("select name from sqlite_master where type = 'table'")}
        except sqlite3.DatabaseError:
            raise kernel_profile.BadProfile(f"'{file}' is no export of nsys") from None
        if "StringIds" not in tables:
            raise kernel_profile.BadProfile(f"'{file}' is no export of nsys")

        def columns(table):
            return {row[1] for row in db.execute(f"pragma table_info({table})")}

        def rows(table, *wanted):
            """Columns that an export lacks are null."""
            if table not in tables:
                return []
            there = columns(table)
            return db.execute("select " + ", ".join(c if c in there else "null" for c in wanted) + f" from {table}")

        strings = dict(db.execute("select id, value from StringIds"))
        work = [Work(strings.get(name, ""), stream, start / 1e3, end / 1e3, correlation)
                for name, stream, start, end, correlation in rows(
                    "CUPTI_ACTIVITY_KIND_KERNEL", "demangledName", "streamId", "start", "end", "correlationId")]
        for table in ("MEMCPY", "MEMSET"):
            work += [Work(table.capitalize(), stream, start / 1e3, end / 1e3, correlation)
                     for stream, start, end, correlation in rows(
                         f"CUPTI_ACTIVITY_KIND_{table}", "streamId", "start", "end", "correlationId")]
        launches = {correlation: start / 1e3 for start, correlation in
                    rows("CUPTI_ACTIVITY_KIND_RUNTIME", "start", "correlationId")}
        ranges = [Range(text or strings.get(text_id, ""), start / 1e3, end / 1e3, thread)
                  for text, text_id, start, end, thread in rows(
                      "NVTX_EVENTS", "text", "textId", "start", "end", "globalTid") if end is not None]
    return work, ranges, launches


def own_intervals(work):
    """[(work, begin, end)]: each cut to the time in which none that started before it on its stream ran."""
    out, ends = [], collections.defaultdict(lambda: float("-inf"))
    for w in sorted(work, key=lambda w: (w.start, w.end)):
        begin = min(max(w.start, ends[w.stream]), w.end)
        out.append((w, begin, w.end))
        ends[w.stream] = max(ends[w.stream], w.end)
    return out


class Innermost:
    """The innermost range at a moment. Ranges of the thread that makes the steps: backward kernels are started by
    another one."""

    def __init__(self, ranges):
        threads = {r.thread for r in ranges if r.name == STEP}
        self.ranges = sorted((r for r in ranges if not threads or r.thread in threads), key=lambda r: (r.start, -r.end))
        self.starts = [r.start for r in self.ranges]
        # The range around each, by its place.
        self.parents, stack = [], []
        for i, r in enumerate(self.ranges):
            while stack and self.ranges[stack[-1]].end < r.end:
                stack.pop()
            self.parents.append(stack[-1] if stack else -1)
            stack.append(i)

    def at(self, moment):
        i = bisect.bisect_right(self.starts, moment) - 1
        while i >= 0 and self.ranges[i].end < moment:
            i = self.parents[i]
        return self.ranges[i].name if i >= 0 else None


def project(work, ranges, launches):
    """(rows in the order of their first work, number of steps). Work between two marks of a stream belongs to the phase
    that the second one ends. Other work belongs to the innermost range that started it."""
    names = phase_names()
    steps = sum(r.name == STEP for r in ranges)
    innermost = Innermost(ranges)
    rows = {}

    def row(name):
        return rows.setdefault(name, Row(name))

    # Of each stream: the moments of its marks, and what ends there (None: a phase_begin).
    marks = collections.defaultdict(list)
    for w in sorted(work, key=lambda w: w.end):
        mark = MARK.search(w.name)
        if mark:
            marks[w.stream].append((w.end, names.get(mark[1], mark[1])))
    # The stream of eager and replayed steps may differ; one clock marks both, so all marks are one sequence.
    sequence = sorted(m for of_stream in marks.values() for m in of_stream)
    moments = [moment for moment, _ in sequence]
    streams = set(marks)
    for (begin, _), (end, name) in zip(sequence, sequence[1:]):
        if name is not None:
            row(name).us += end - begin

    for w, begin, end in own_intervals(work):
        name = None
        if w.stream in streams:
            at = bisect.bisect_left(moments, w.end)
            name = sequence[at][1] if 0 < at < len(sequence) else None
        if name is None:
            started = launches.get(w.correlation)
            name = innermost.at(started) if started is not None else None
        r = row(name or WITHOUT_MARKS)
        r.busy_us += end - begin
        r.kernels += 1
    return list(rows.values()), steps


def read(file):
    """(rows, steps) of a trace.json or an nsys export; BadProfile says what is wrong with it."""
    suffix = pathlib.Path(str(file).removesuffix(".gz")).suffix
    readers = {".json": read_chrome, ".sqlite": read_nsys}
    if suffix not in readers:
        raise kernel_profile.BadProfile(f"'{file}': give a trace.json or an .sqlite export of nsys")
    try:
        work, ranges, launches = readers[suffix](file)
        if not work:
            raise kernel_profile.BadProfile(f"'{file}' holds no work on a GPU")
        return project(work, ranges, launches)
    except (ValueError, KeyError, TypeError, AttributeError, sqlite3.Error):
        raise kernel_profile.BadProfile(f"'{file}' is damaged, or no profile of this kind") from None
