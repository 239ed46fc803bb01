#!/usr/bin/env python3
"""Measures what thinking longer and wider gains: exact accuracy by segments and rollouts against FLOPs per puzzle.

    scripts/bench/think_curve.py --checkpoint runs/first --segments 8,16,32 --rollouts 1,4,16 --out runs/think
    scripts/bench/think_curve.py --checkpoint runs/first --out runs/think2 eval.noise=0.2 eval.noisy_state=z_H

Runs `hrm_train eval` for each pair and writes curve.json (all results) and curve.svg to --out, and a table to stdout. A
line of the picture has one number of rollouts, chosen by eval.selector. `any` is the share that some rollout solves: the
most that a selector can reach. What is finished is not run again. FLOPs are those of matrix products. Needs a build of
hrm_train.
"""
import html
import json
import math
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]  # told apart by the colour-blind, too
SELECTORS = ["first", "q", "majority", "residual", "settled", "any"]
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 400, 60, 30, 150, 50


def numbers(text):
    return [command.count()(word) for word in text.split(",")]


def evaluated(args, segments, rollouts):
    file = args.out / f"segments{segments}_rollouts{rollouts}.json"
    # A single rollout has no noise and nothing to choose.
    of_rollouts = ("eval.noise=", "eval.noisy_state=", "eval.selector=", "eval.residual_window=")
    overrides = [o for o in args.overrides if rollouts > 1 or not o.startswith(of_rollouts)]
    if not file.exists():
        words = [args.binary, "eval", "--checkpoint", args.checkpoint, "--segments", segments, "--rollouts", rollouts,
                 *(["--data", args.data] if args.data else []), "--json", file, *overrides]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        if done.returncode != 0:
            last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
            raise command.Failure(command.DATA, f"'hrm_train eval' ended with code {done.returncode}: {last}")
    return json.loads(file.read_text(encoding="utf-8"))


def text(x, y, content, anchor="middle", size=12):
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}'>{html.escape(content)}</text>"


def picture(results):
    flops = [math.log10(r["flops_per_puzzle"]) for r in results]
    shares = [100 * r["exact_accuracy"] for r in results]
    low, high = math.floor(min(flops) * 2) / 2, math.ceil(max(flops) * 2 + 1e-9) / 2
    step = next(s for s in (0.5, 1, 2, 5, 10, 20, 50) if (max(shares) - min(shares)) / s <= 6)
    bottom, top = math.floor(min(shares) / step) * step, math.ceil(max(shares) / step + 1e-9) * step
    top = max(top, bottom + step)
    x = lambda value: LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)  # noqa: E731
    y = lambda value: HEIGHT - BOTTOM - (value - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)  # noqa: E731
    body = [text(LEFT, 18, "Puzzles solved completely, %", "start", 13)]
    for i in range(round((top - bottom) / step) + 1):
        value = bottom + i * step
        body.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y(value):.1f}' y2='{y(value):.1f}' stroke='#dddddd'/>")
        body.append(text(LEFT - 8, y(value) + 4, f"{value:g}", "end"))
    for i in range(round((high - low) * 2) + 1):
        value = low + i / 2
        if value == int(value):
            body.append(text(x(value), HEIGHT - BOTTOM + 20, f"1e{int(value)}"))
    body.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "FLOPs per puzzle"))
    for index, rollouts in enumerate(sorted({r["rollouts"] for r in results})):
        colour = COLOURS[index % len(COLOURS)]
        line = sorted((r for r in results if r["rollouts"] == rollouts), key=lambda r: r["segments"])
        points = [(x(math.log10(r["flops_per_puzzle"])), y(100 * r["exact_accuracy"])) for r in line]
        body.append(f"<polyline fill='none' stroke='{colour}' stroke-width='2' points='"
                    + " ".join(f"{a:.1f},{b:.1f}" for a, b in points) + "'/>")
        body += [f"<circle cx='{a:.1f}' cy='{b:.1f}' r='4' fill='{colour}'/>" for a, b in points]
        place = TOP + 20 * index + 10
        body.append(f"<circle cx='{WIDTH - RIGHT + 20}' cy='{place - 4}' r='4' fill='{colour}'/>")
        body.append(text(WIDTH - RIGHT + 30, place, f"{rollouts} rollout{'s' if rollouts > 1 else ''}", "start"))
    return (f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}' "
            "font-family='DejaVu Sans, Verdana, sans-serif'>\n<rect width='100%' height='100%' fill='white'/>\n"
            + "\n".join(body) + "\n</svg>\n")


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--checkpoint", required=True, help="run folder or checkpoint of a puzzle model")
    parser.add_argument("--data", help="test puzzles (default: the run's)")
    parser.add_argument("--segments", type=numbers, default=[4, 8, 16], metavar="LIST", help="(default: 4,8,16)")
    parser.add_argument("--rollouts", type=numbers, default=[1, 4, 16], metavar="LIST", help="(default: 1,4,16)")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="where everything is kept")
    parser.add_argument("--binary", default=str(command.ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("overrides", nargs="*", help="of the evaluations, e.g. eval.noise=0.2")
    args = parser.parse_args()
    args.binary = command.program(args.binary)
    args.out.mkdir(parents=True, exist_ok=True)
    asked, kept = json.dumps([args.checkpoint, args.data, args.overrides]) + "\n", args.out / "asked.json"
    if kept.exists() and kept.read_text(encoding="utf-8") != asked:
        raise command.Failure(command.DATA, f"{args.out} holds results of another checkpoint, data or settings; give another --out")
    kept.write_text(asked, encoding="utf-8")
    results = [evaluated(args, segments, rollouts) for rollouts in args.rollouts for segments in args.segments]
    (args.out / "curve.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (args.out / "curve.svg").write_text(picture(results), encoding="utf-8")
    print("| segments | rollouts | FLOPs per puzzle | " + " | ".join(SELECTORS) + " |\n|---:|---:|---:|" + "---:|" * len(SELECTORS))
    for r in results:
        shares = [r.get(f"exact_{name}", r["exact_accuracy"]) for name in SELECTORS]
        print(f"| {r['segments']} | {r['rollouts']} | {r['flops_per_puzzle']:.2e} | "
              + " | ".join(f"{100 * share:.1f}" for share in shares) + " |")


if __name__ == "__main__":
    command.run(main)
