"""A flame graph as SVG, without scripts in it: each box is a function, as wide as its share of the samples, above its
caller."""

import hashlib
import html

WIDTH, ROW, MARGIN, HEAD = 1200, 17, 10, 46
LETTER = 6.7  # width of a letter of 11 pixels, generously
NARROWEST = 0.4  # pixels; narrower boxes are left out with all above them


class Node:
    def __init__(self):
        self.weight = 0
        self.children = {}

    def depth(self, scale):
        return 1 + max((child.depth(scale) for child in self.children.values() if child.weight * scale >= NARROWEST), default=0)


def tree(stacks):
    root = Node()
    for stack, weight in stacks.items():
        node = root
        node.weight += weight
        for frame in stack:
            node = node.children.setdefault(frame, Node())
            node.weight += weight
    return root


def color(name):
    """Ours are green, LibTorch's orange, the kernel's and the C library's grey, others yellow; the shade is the name's."""
    shade = int(hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:4], 16) / 65535
    if "hrm::" in name or name.startswith("hrm_"):
        hue, light = 110, 62
    elif any(part in name for part in ("at::", "c10::", "torch::", "libtorch")):
        hue, light = 25, 64
    elif name.startswith(("[", "__", "_int", "do_", "sys", "x64_", "entry_")) or "malloc" in name:
        return f"hsl(0,0%,{72 + 12 * shade:.0f}%)"
    else:
        hue, light = 48, 62
    return f"hsl({hue + 16 * (shade - 0.5):.0f},65%,{light + 10 * shade:.0f}%)"


def svg(stacks, title):
    root = tree(stacks)
    scale = (WIDTH - 2 * MARGIN) / root.weight
    height = HEAD + ROW * root.depth(scale) + MARGIN
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
           'font-family="DejaVu Sans Mono, monospace" font-size="11">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
           f'<text x="{MARGIN}" y="20" font-size="14">{html.escape(title)}</text>',
           f'<text x="{MARGIN}" y="38" fill="#555">green: hrm_train, orange: LibTorch, grey: system, yellow: others. '
           'Callers are below.</text>']

    def draw(name, node, x, level):
        wide = node.weight * scale
        if wide < NARROWEST:
            return
        y = height - MARGIN - ROW * (level + 1)
        share = 100 * node.weight / root.weight
        out.append(f'<g><title>{html.escape(name)}: {share:.2f} %</title><rect x="{x:.2f}" y="{y}" width="{wide:.2f}" '
                   f'height="{ROW - 1}" fill="{color(name)}" rx="1"/>')
        letters = int((wide - 4) / LETTER)
        if letters >= 3:
            label = name if len(name) <= letters else name[: letters - 2] + ".."
            out.append(f'<text x="{x + 2:.2f}" y="{y + 12}">{html.escape(label)}</text>')
        out.append("</g>")
        for child in sorted(node.children):
            draw(child, node.children[child], x, level + 1)
            x += node.children[child].weight * scale

    draw("all", root, MARGIN, 0)
    return "\n".join(out + ["</svg>"]) + "\n"
