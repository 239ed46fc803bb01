#!/usr/bin/env python3
"""Tokenizers beside each other: hrm_train and Hugging Face's `tokenizers`, with the same file, text and threads.

    scripts/bench/tokenizer_speed.py --tokenizer tokenizer.json --text book.txt --threads 2 --megabytes 50

The text is repeated until there are so many megabytes, and cut at line ends into documents of 64 KiB, of which 64
are encoded at a time. The two sides take turns; shown are medians. Their ids must be the same. CPU time is that of all threads
together: on a machine that others use, too, it is what can be compared. Needs a Python that has `tokenizers` (pip).
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT, TOGETHER = 64 << 10, 64  # as in src/commands/bench/tokenizer.cpp


def cut(text):
    documents, begin = [], 0
    while begin < len(text):
        end = text.find(b"\n", begin + DOCUMENT) + 1 if begin + DOCUMENT < len(text) else 0
        end = end or len(text)
        documents.append(text[begin:end].decode())
        begin = end
    return documents


def ours(args, text):
    with tempfile.TemporaryDirectory(prefix="hrm_tokenizer_") as folder:
        result = pathlib.Path(folder, "result.json")
        words = [args.binary, "bench", "tokenizer", "--tokenizer", args.tokenizer, "--text", text, "--threads",
                 str(args.threads), "--passes", "1", "--json", result]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            raise command.Failure(done.returncode, f"hrm_train failed: {done.stderr.strip().splitlines()[-1]}")
        data = json.loads(result.read_text())
    return dict(seconds=data["seconds_each"][0], cpu=data["cpu_seconds_each"][0], tokens=data["tokens"],
                ids=data["ids_crc32"])


def theirs(tokenizer, documents):
    seconds = cpu = 0.0
    tokens = checksum = 0
    for begin in range(0, len(documents), TOGETHER):
        wall, work = time.perf_counter(), time.process_time()
        encoded = tokenizer.encode_batch_fast(documents[begin:begin + TOGETHER], add_special_tokens=False)
        seconds += time.perf_counter() - wall
        cpu += time.process_time() - work
        for document in encoded:
            tokens += len(document.ids)
            checksum = zlib.crc32(b"".join(i.to_bytes(4, "little") for i in document.ids), checksum)
    return dict(seconds=seconds, cpu=cpu, tokens=tokens, ids=checksum)


def main():
    parser = command.Parser(__doc__)
    parser.add_argument("--tokenizer", required=True, metavar="FILE", help="tokenizer.json of a byte-level BPE")
    parser.add_argument("--text", required=True, metavar="FILE", help="text in UTF-8")
    parser.add_argument("--threads", type=command.count(), default=1, metavar="N", help="of both sides (1)")
    parser.add_argument("--megabytes", type=command.number(float, 0, above=True), default=50, metavar="MB",
                        help="of text (50)")
    parser.add_argument("--rounds", type=command.count(), default=3, metavar="N", help="turns of each side (3)")
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), metavar="FILE",
                        help="hrm_train (build/bin/hrm_train)")
    parser.add_argument("--json", metavar="FILE", help="also write all turns to this file")
    args = parser.parse_args()
    args.binary = command.program(args.binary)
    command.writable(args.json)
    # Before the library is loaded, which makes its threads then.
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if args.threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(args.threads)
    try:
        import tokenizers
    except ImportError:
        raise command.Failure(command.MACHINE, "this Python has no `tokenizers`; install it into an environment of its "
                              "own (pip install tokenizers) and start the script with that Python") from None
    try:
        part = pathlib.Path(args.text).read_bytes()
        part.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise command.Failure(command.DATA, f"{args.text} cannot be read as UTF-8: {error}") from None
    if not part:
        raise command.Failure(command.DATA, f"{args.text} is empty")
    text = part * max(1, round(args.megabytes * 1e6 / len(part)))
    documents = cut(text)
    turns = dict(hrm_train=[], tokenizers=[])
    with tempfile.NamedTemporaryFile(prefix="hrm_text_") as file:
        file.write(text)
        file.flush()
        try:
            tokenizer = tokenizers.Tokenizer.from_file(args.tokenizer)
        except Exception as error:  # the library throws nothing more exact
            raise command.Failure(command.DATA, f"{args.tokenizer} cannot be loaded: {error}") from None
        for _ in range(args.rounds):
            turns["hrm_train"].append(ours(args, file.name))
            turns["tokenizers"].append(theirs(tokenizer, documents))
    if len({(turn["tokens"], turn["ids"]) for side in turns.values() for turn in side}) != 1:
        raise command.Failure(1, "the two sides do not give the same ids")
    size = len(text) / 1e6
    print(f"{size:.1f} MB, {turns['hrm_train'][0]['tokens']} tokens, {args.threads} thread(s), medians of {args.rounds}, "
          f"tokenizers {tokenizers.__version__}, the same ids\n\n| | MB/s | MB per second of CPU time |\n|---|---:|---:|")
    rates = {}
    for side, results in turns.items():
        rates[side] = [size / statistics.median(turn[kind] for turn in results) for kind in ("seconds", "cpu")]
        print(f"| {side} | {rates[side][0]:.1f} | {rates[side][1]:.1f} |")
    ratios = [mine / other for mine, other in zip(rates["hrm_train"], rates["tokenizers"])]
    print(f"| ratio | {ratios[0]:.1f} | {ratios[1]:.1f} |")
    if args.json:
        result = dict(megabytes=size, threads=args.threads, turns=turns)
        pathlib.Path(args.json).write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    command.run(main)
