"""Checks a trace against the documented fields of the format ("Trace Event Format", Google), strictly: what a viewer would
silently drop or draw wrongly is a problem. Only Python's standard library is used."""

import bisect
import collections
import math

PHASES = {"X", "M", "i", "C", "s", "f"}
ROUNDING = 2e-3  # microseconds: times have nanoseconds
NEAR = 200  # events before an arrow's end among which the one that it belongs to is looked for


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def track_of(event):
    return event.get("pid"), event.get("tid")


def bad_fields(event):
    """What is wrong with one event by itself; None where nothing is."""
    if not isinstance(event, dict) or event.get("ph") not in PHASES:
        return "an event has no known phase"
    if not isinstance(event.get("name"), str):
        return "an event has no name"
    if event["ph"] == "M":
        return None if isinstance(event.get("args"), dict) and "pid" in event else "a name of a track has no args or pid"
    if not is_number(event.get("ts")):
        return f"'{event['name']}' has no time"
    if "pid" not in event or "tid" not in event:
        return f"'{event['name']}' has no track"
    if event["ph"] == "X" and not (is_number(event.get("dur")) and event["dur"] >= 0):
        return f"'{event['name']}' has no duration"
    if event["ph"] == "C" and not (event.get("args") and all(map(is_number, event["args"].values()))):
        return f"the counter '{event['name']}' has values that are no numbers"
    if event["ph"] in "sf" and "id" not in event:
        return f"an arrow '{event['name']}' has no id"
    return None


def bad_nesting(name, events):
    """Events of a track lie in each other or beside each other, else viewers draw them wrongly."""
    out, open_ends = [], []
    for e in events:
        while open_ends and open_ends[-1] <= e["ts"] + ROUNDING:
            open_ends.pop()
        end = e["ts"] + e["dur"]
        if open_ends and end > open_ends[-1] + ROUNDING:
            out.append(f"'{e['name']}' overlaps with an event of the same track {name}")
        open_ends.append(end)
    return out


def bad_arrows(arrows, slices):
    out, ends = [], {}
    starts = [e for e in arrows if e["ph"] == "s"]
    for e in arrows:
        if e["ph"] == "f":
            key = (e.get("cat"), e["id"])
            if key in ends:
                out.append(f"arrow {key} has two ends")
            ends[key] = e
    seen = set()
    begins = {track: [e["ts"] for e in of_track] for track, of_track in slices.items()}

    def around(e):
        """The events that an arrow's end may belong to: those of its track that are open at its time."""
        at = bisect.bisect_right(begins.get(track_of(e), []), e["ts"] + ROUNDING)
        return [s for s in slices.get(track_of(e), [])[max(at - NEAR, 0) : at] if s["ts"] + s["dur"] >= e["ts"] - ROUNDING]

    for start in starts:
        key = (start.get("cat"), start["id"])
        if key in seen:
            out.append(f"arrow {key} has two starts")
        seen.add(key)
        end = ends.pop(key, None)
        if end is None:
            out.append(f"arrow {key} has no end")
            continue
        if end["ts"] < start["ts"]:
            out.append(f"arrow {key} ends before it starts")
        if end.get("bp") != "e":
            out.append(f"arrow {key} does not say that it ends at the event around it")
        sources, targets = around(start), around(end)
        if not sources or not targets:
            out.append(f"arrow {key} begins or ends in no event")
        elif key[0] == "ac2g":
            by = [{e.get("args", {}).get("correlation") for e in side} - {None} for side in (sources, targets)]
            if not by[0] & by[1]:
                out.append(f"arrow {key} joins events of different correlation ids")
    return out + [f"arrow {key} has no start" for key in ends]


def problems(trace, most=20):
    """Sentences; none for a sound trace."""
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["there is no list traceEvents"]
    out = []
    info = trace.get("distributedInfo")
    if "ranks" not in trace and not (isinstance(info, dict) and isinstance(info.get("rank"), int)):
        out.append("distributedInfo does not say the rank")
    last, slices, arrows = {}, collections.defaultdict(list), []
    for event in trace["traceEvents"]:
        if problem := bad_fields(event):
            out.append(problem)
            continue
        if event["ph"] == "M":
            continue
        track = (track_of(event), event["name"] if event["ph"] == "C" else None)
        if event["ts"] < last.get(track, -math.inf):
            out.append(f"'{event['name']}' is earlier than the event before it on track {track[0]}")
        last[track] = event["ts"]
        if event["ph"] == "X":
            slices[track_of(event)].append(event)
            if event.get("cat") == "kernel" and not {"stream", "correlation"} <= set(event.get("args", {})):
                out.append(f"kernel '{event['name']}' has no stream or correlation id")
        elif event["ph"] in "sf":
            arrows.append(event)
    for track, events in slices.items():
        out += bad_nesting(track, events)
    out += bad_arrows(arrows, slices)
    return out[:most] + ([f"and {len(out) - most} more"] if len(out) > most else [])
