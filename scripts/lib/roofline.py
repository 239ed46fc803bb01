"""The roofline picture: arithmetic intensity of kernels against the FLOP/s that they reach, with the GPU's limits. SVG."""

import html
import math

import hotspots
import kernel_counters
import kernel_profile

WIDTH, HEIGHT = 900, 560
LEFT, RIGHT, TOP, BOTTOM = 90, 20, 40, 60
COLORS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#e377c2", "#bcbd22", "#7f7f7f"]


def points(profile, top):
    """[(name, intensity in FLOP/byte, FLOP/s, microseconds in all)] of the longest kernels that compute anything."""
    out = []
    for row in kernel_profile.sums_by(profile.events, lambda e: e.name)[:top]:
        counters = profile.counters.get(row.name, {})
        ops, size = kernel_counters.operations(counters), counters.get(kernel_counters.BYTES)
        seconds = counters.get(kernel_counters.SECONDS)
        if ops and size and seconds:
            out.append((row.name, ops / size, ops / seconds, row.us))
    return out


def decades(low, high):
    return range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)


def power(exponent):
    """10^9 as a number with a prefix."""
    prefixes = {-3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
    base = 3 * (exponent // 3)
    return f"{10 ** (exponent - base)}{' ' + prefixes[base] if prefixes.get(base) else ''}" if base in prefixes else f"1e{exponent}"


class Axes:
    def __init__(self, xs, ys):
        self.x0, self.x1 = decades(min(xs), max(xs))[0], decades(min(xs), max(xs))[-1]
        self.y0, self.y1 = decades(min(ys), max(ys))[0], decades(min(ys), max(ys))[-1]
        self.x1, self.y1 = max(self.x1, self.x0 + 1), max(self.y1, self.y0 + 1)

    def x(self, value):
        return LEFT + (math.log10(value) - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        return HEIGHT - BOTTOM - (math.log10(value) - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)


def text(x, y, words, anchor="start", size=12, color="#222", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}"{more}>{html.escape(words)}</text>'


def line(x0, y0, x1, y1, color="#ddd", width=1, more=""):
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{color}" stroke-width="{width}"{more}/>'


def roof(axes, memory, peak, label, color):
    """The slope of the memory up to the flat limit, then that. The label is at its right end."""
    left, right = 10.0 ** axes.x0, 10.0 ** axes.x1
    ridge = peak / memory if memory else left
    out = []
    if memory:
        begin = max(left, 10.0 ** axes.y0 / memory)
        if ridge > begin:
            out.append(line(axes.x(begin), axes.y(begin * memory), axes.x(min(ridge, right)),
                            axes.y(min(ridge, right) * memory), color, 2))
    if ridge < right:
        out.append(line(axes.x(max(ridge, left)), axes.y(peak), axes.x(right), axes.y(peak), color, 2))
    out.append(text(axes.x(right) - 4, axes.y(peak) - 6, label, "end", 12, color))
    return out


def svg(profile, top=10):
    """The picture's text; None where no kernel's operations and bytes were counted."""
    kernels = points(profile, top)
    if not kernels:
        return None
    memory, tensor, fp32 = kernel_counters.limits(profile)
    peaks = [peak for peak in (tensor, fp32) if peak]
    ridges = [peak / memory for peak in peaks if memory]
    axes = Axes([k[1] for k in kernels] + ridges, [k[2] for k in kernels] + peaks)
    legend = 20 * len(kernels) + 20
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT + legend}" '
           f'viewBox="0 0 {WIDTH} {HEIGHT + legend}" font-family="sans-serif">',
           f'<rect width="{WIDTH}" height="{HEIGHT + legend}" fill="white"/>',
           text(LEFT, 24, "Roofline: area of a circle = time in all launches", size=15)]
    for exponent in range(axes.x0, axes.x1 + 1):
        x = axes.x(10.0 ** exponent)
        out += [line(x, TOP, x, HEIGHT - BOTTOM), text(x, HEIGHT - BOTTOM + 18, f"{10.0 ** exponent:g}", "middle")]
    for exponent in range(axes.y0, axes.y1 + 1):
        y = axes.y(10.0 ** exponent)
        out += [line(LEFT, y, WIDTH - RIGHT, y), text(LEFT - 8, y + 4, power(exponent), "end")]
    out += [text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 42, "arithmetic intensity, FLOP per byte of DRAM", "middle", 13),
            text(24, (TOP + HEIGHT - BOTTOM) / 2, "FLOP/s", "middle", 13,
                 more=f' transform="rotate(-90 24 {(TOP + HEIGHT - BOTTOM) / 2:.1f})"')]
    if tensor:
        out += roof(axes, memory, tensor, f"tensor cores {tensor / 1e12:.0f} TFLOP/s", "#444")
    if fp32:
        out += roof(axes, memory, fp32, f"fp32 {fp32 / 1e12:.0f} TFLOP/s", "#888")
    if memory:
        # Along the slope, a third of the way up.
        low = max(10.0 ** axes.x0, 10.0 ** axes.y0 / memory)
        high = min(10.0 ** axes.x1, (max(peaks) if peaks else 10.0 ** axes.y1) / memory)
        at = low ** 0.6 * high ** 0.4
        x, y = axes.x(at), axes.y(at * memory)
        angle = math.degrees(math.atan2(axes.y(high * memory) - axes.y(low * memory), axes.x(high) - axes.x(low)))
        out.append(text(x, y - 8, f"memory {memory / 1e9:.0f} GB/s", "middle", 12, "#444",
                        f' transform="rotate({angle:.1f} {x:.1f} {y - 8:.1f})"'))
        if not peaks:
            out.append(line(axes.x(low), axes.y(low * memory), axes.x(high), axes.y(high * memory), "#444", 2))
    longest = max(k[3] for k in kernels)
    for i, (name, intensity, rate, us) in enumerate(kernels):
        color = COLORS[i % len(COLORS)]
        radius = 4 + 14 * math.sqrt(us / longest)
        x, y = axes.x(intensity), axes.y(rate)
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{color}" fill-opacity="0.55" stroke="{color}">'
                f'<title>{html.escape(name)}</title></circle>', text(x, y + 4, str(i + 1), "middle", 11, "#000")]
        row = HEIGHT + 20 * i + 8
        out += [f'<circle cx="{LEFT}" cy="{row - 4}" r="6" fill="{color}"/>',
                text(LEFT + 14, row, f"{i + 1}  {rate / 1e12:.2f} TFLOP/s, {intensity:.4g} FLOP/byte, {us:.0f} us: "
                     f"{hotspots.short(name, 80)}")]
    return "\n".join(out + ["</svg>"]) + "\n"
