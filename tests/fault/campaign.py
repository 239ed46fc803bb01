#!/usr/bin/env python3
"""All long fault campaigns, one after the other, and the table of what came out.

    tests/fault/campaign.py --binary build/bin/hrm_train --work DIR [--only NAME ...] [--minutes M] [--out table.md]

Each keeps its state below --work: started again, everything goes on where it was. --minutes is for each of them.
"""
import argparse
import pathlib
import subprocess
import sys

NAMES = ["kill_resume", "failpoints", "fs_faults", "resume", "refuse", "soak", "stop", "numerics", "answers"]
HEAD = "| what | how many | result | seconds |\n|---|---|---|---:|\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--minutes", default="0")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    rows, failed = [], []
    for name in args.only:
        work = pathlib.Path(args.work) / name
        (work / "row.md").unlink(missing_ok=True)
        print(f"== {name}", flush=True)
        line = [sys.executable, pathlib.Path(__file__).with_name(f"{name}.py"), "--binary", args.binary, "--long", "--work", work,
                "--minutes", args.minutes]
        code = subprocess.run(line).returncode
        if (work / "row.md").exists():
            rows.append((work / "row.md").read_text())
        else:
            rows.append(f"| {name} | | {'cannot be done here' if code == 77 else 'FAILED'} | |\n")
        failed += [name] if code not in (0, 77) else []
        if args.out:
            pathlib.Path(args.out).write_text(HEAD + "".join(rows))
    print(HEAD + "".join(rows), end="")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
