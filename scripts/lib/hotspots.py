"""The hotspot digest: where the time of recorded steps went, as Markdown."""

import kernel_counters
import kernel_profile
from kernel_counters import BYTES, ELIGIBLE, INSTRUCTIONS, L2_SHARE, MEMORY_SHARE, OCCUPANCY, SECONDS, SM_SHARE

MS, US = 1e-3, 1.0


def short(name, width=90):
    """A kernel's name for a table: one line, no Markdown of its own, without what only a compiler needs."""
    for part in ("void ", "(anonymous namespace)::", "hrm::ops::cuda::", "at::native::"):
        name = name.replace(part, "")
    name = " ".join(name.replace("|", "¦").replace("`", "'").split())
    return name if len(name) <= width else name[: width - 3] + "..."


def table(head, rows):
    """A Markdown table; all columns but the last are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---:|" * (len(head) - 1) + "---|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def time_table(rows, steps, total, top):
    body = [[f"{row.us * MS / steps:.3f}", f"{100 * row.us / total:.1f} %", f"{row.calls / steps:.1f}",
             f"{row.us / row.calls:.1f}", short(row.name)] for row in rows[:top]]
    left = rows[top:]
    if left:
        us = sum(row.us for row in left)
        body.append([f"{us * MS / steps:.3f}", f"{100 * us / total:.1f} %",
                     f"{sum(row.calls for row in left) / steps:.1f}", "", f"{len(left)} others"])
    return table(["ms/step", "share", "calls/step", "us/call", "what"], body)


def counter_table(profile, top):
    rows = []
    for row in kernel_profile.sums_by(profile.events, lambda e: e.name)[:top]:
        counters = profile.counters.get(row.name, {})
        seconds, size = counters.get(SECONDS), counters.get(BYTES)
        memory, sm, ops = counters.get(MEMORY_SHARE), counters.get(SM_SHARE), kernel_counters.tensor_ops(counters)
        bound = "" if memory is None or sm is None else kernel_counters.bound_by(counters) or \
            "neither: latency or too little work"
        rows.append([f"{row.us / row.calls:.1f}",
                     f"{size / seconds / 1e9:.0f}" if size is not None and seconds else "",
                     f"{memory:.0f} %" if memory is not None else "",
                     f"{ops / seconds / 1e12:.1f}" if ops is not None and seconds else "",
                     f"{sm:.0f} %" if sm is not None else "", bound, short(row.name, 70)])
    return table(["us/call", "GB/s", "of the memory's limit", "tensor TFLOP/s", "of the SMs' limit", "bound by", "kernel"],
                 rows)


def percent(value):
    return "" if value is None else f"{value:.0f} %"


def warp_table(profile, top):
    """What the warps of each kernel do."""
    rows = []
    for row in kernel_profile.sums_by(profile.events, lambda e: e.name)[:top]:
        counters = profile.counters.get(row.name, {})
        instructions, eligible = counters.get(INSTRUCTIONS), counters.get(ELIGIBLE)
        waits = ", ".join(f"{kernel_counters.STALLS[reason][0]} {warps:.1f}"
                          for reason, warps in kernel_counters.stalls(counters)[:2] if warps >= 0.05)
        rows.append([percent(counters.get(OCCUPANCY)), "" if eligible is None else f"{eligible:.2f}",
                     percent(kernel_counters.tensor_share(counters)), percent(counters.get(L2_SHARE)),
                     percent(counters.get(MEMORY_SHARE)),
                     "" if instructions is None else f"{instructions / 1e6:.2f}", waits, short(row.name, 60)])
    return table(["occupancy", "eligible warps", "tensor cores", "L2", "DRAM", "million instructions",
                  "warps wait for", "kernel"], rows)


def verdicts(profile, top):
    """One sentence for each of the longest kernels."""
    out = []
    for row in kernel_profile.sums_by(profile.events, lambda e: e.name)[:top]:
        sentence = kernel_counters.verdict(profile.counters.get(row.name, {}))
        if sentence:
            out.append(f"- {short(row.name, 60)}: {sentence}")
    return out


def other_counters(profile, top, names):
    """A table of the metrics `names`, those that a page has: it holds hundreds that nobody asked for."""
    names = [name for name in names if any(name in counters for counters in profile.counters.values())]
    rows = [[*(f"{profile.counters[row.name][name]:.6g}" if name in profile.counters.get(row.name, {}) else ""
               for name in names), short(row.name, 60)]
            for row in kernel_profile.sums_by(profile.events, lambda e: e.name)[:top]]
    return ["", "## Further metrics", "", *table([*names, "kernel"], rows)] if names else []


def digest(profile, steps, facts, top=15, metrics=()):
    """Markdown of one profile. facts: [(name, text)] for its head. metrics: counters that get a table of their own."""
    groups = kernel_profile.kernel_groups()
    events = profile.events
    total = sum(e.duration_us for e in events)
    lines = [f"- {name}: {text}" for name, text in facts]
    lines += [f"- steps recorded: {steps}", ""]
    if not events:
        return "\n".join(lines + ["No work was recorded."])

    where = "GPU" if profile.gpu else "CPU"
    if profile.counters:
        lines += ["Nsight Compute runs the kernels one by one and repeats each, so the times are those of kernels alone.",
                  ""]
        if profile.unfinished:
            lines += [f"The capture broke off. Launches without a time, which are left out: {profile.unfinished}.", ""]
    elif profile.gpu:
        span, busy, gaps = kernel_profile.busy_and_gaps(events)
        idle = span - busy
        lines += [f"One step takes {span * MS / steps:.3f} ms from first to last kernel. The GPU works in "
                  f"{100 * busy / span:.1f} % of it; {idle * MS / steps:.3f} ms per step are gaps between kernels, in which "
                  f"it waits for launches or for data ({len(gaps) / steps:.0f} gaps per step).", ""]
    lines += [f"## {where} time by kind", ""]
    by_group = kernel_profile.sums_by(events, lambda e: kernel_profile.group_of(e.name, groups))
    lines += time_table(by_group, steps, total, len(by_group))
    title = "Longest kernels" if profile.gpu else "Longest operations, without those inside them"
    lines += ["", f"## {title}", ""]
    lines += time_table(kernel_profile.sums_by(events, lambda e: e.name), steps, total, top)
    if profile.counters:
        lines += ["", "## Against the limits of the GPU", ""] + counter_table(profile, top)
        if any(OCCUPANCY in counters for counters in profile.counters.values()):
            lines += ["", "## What the warps do", ""] + warp_table(profile, top)
        lines += ["", "## Verdicts", "", *verdicts(profile, top)] + other_counters(profile, top, metrics)
    elif profile.gpu and gaps:
        lines += ["", "## Longest gaps", ""]
        lines += table(["us", "after", "before"],
                       [[f"{gap:.1f}", short(a.name, 60), short(b.name, 60)] for gap, a, b in gaps[:10]])
    copies = [row for row in kernel_profile.sums_by(events, lambda e: e.name) if row.bytes]
    if copies:
        lines += ["", "## Copies", ""]
        lines += table(["MB/step", "GB/s", "what"],
                       [[f"{row.bytes / 1e6 / steps:.2f}", f"{row.bytes / 1e3 / max(row.us, 1e-9):.1f}", short(row.name)]
                        for row in copies[:top]])
    return "\n".join(lines)
