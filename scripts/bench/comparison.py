"""What the comparisons with the official code share: processes that take turns, files of their results, numbers for
tables."""
import datetime
import json
import os
import pathlib
import queue
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODES = ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
LAST_WORDS_S = 0.5  # between the end of one rank with an error and that of the others, which may have something to say


def say(text):
    print(f"[{datetime.datetime.now():%H:%M:%S}] {text}", file=sys.stderr, flush=True)


# ---- processes ----

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def environments(ranks):
    """The environment of each rank: this process's own, without what a launcher set for it."""
    mine = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    if ranks == 1:
        return [mine]
    mine.setdefault("GLOO_SOCKET_IFNAME", "lo")  # this machine's name may lead nowhere
    port = str(free_port())
    return [mine | dict(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                        MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for rank in range(ranks)]


class Group:
    """The ranks of one program as processes. They end together: when one fails, the others are killed.

    words: function of the rank that gives its command line. Rank 0 is served through ask(), where it is a program that
    reads orders and answers each with a line of JSON; else ended() waits for all ranks."""

    def __init__(self, words, ranks=1, cwd=None):
        self.start, self.killed, self.failure = time.monotonic(), set(), None
        self.processes, self.errors = [], []
        self.answers = queue.Queue()
        for rank, environment in enumerate(environments(ranks)):
            self.errors.append(tempfile.TemporaryFile(mode="w+", errors="replace"))
            served = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            # A session of its own, so that what a process has started can be killed with it.
            self.processes.append(subprocess.Popen(words(rank), stdin=served, stdout=served, stderr=self.errors[-1],
                                                   text=True, cwd=cwd, env=environment, start_new_session=True))
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def listen(self):
        for line in self.processes[0].stdout:
            if line.startswith("{"):
                try:
                    self.answers.put(json.loads(line))
                except ValueError:
                    self.answers.put({"error": f"no JSON: {line.strip()[:200]}"})
        self.answers.put(None)

    def watch(self):
        while any([process.poll() is None for process in self.processes]):
            if any(process.returncode for process in self.processes):
                time.sleep(LAST_WORDS_S)
                self.kill()
            time.sleep(0.05)

    def kill(self):
        for rank, process in enumerate(self.processes):
            if process.poll() is None:
                self.killed.add(rank)
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it has just ended

    def stop(self):
        self.kill()
        for process in self.processes:
            process.wait()
        self.watcher.join()
        self.listener.join(1)  # not for long: what a process has started may still hold its output
        try:
            self.processes[0].stdin.close()
        except BrokenPipeError:
            pass  # an order that was never read
        if not self.listener.is_alive():
            self.processes[0].stdout.close()
        for file in self.errors:
            file.close()

    def answer(self, limit):
        """Rank 0's next answer, within `limit` seconds; of a group that fails, or has failed: {"error": ...}."""
        try:
            answer = self.answers.get(timeout=limit)
        except queue.Empty:
            answer = {"error": f"no answer after {limit:.0f} s"}
        if answer is None:
            answer = {"error": self.last_error()}
        if "error" in answer:
            self.failure = answer["error"]
            self.stop()
        return answer

    def ask(self, order, limit):
        if self.failure:
            return {"error": self.failure}
        try:
            self.processes[0].stdin.write(json.dumps(order) + "\n")
            self.processes[0].stdin.flush()
        except BrokenPipeError:
            self.answers.put(None)
        return self.answer(limit)

    def ended(self, limit):
        """None when all ranks have ended well within `limit` seconds, else what went wrong."""
        self.processes[0].stdin.close()
        self.watcher.join(limit)
        if self.watcher.is_alive():
            self.stop()
            return f"no end after {limit:.0f} s"
        return self.last_error() if any(process.returncode for process in self.processes) else None

    def last_error(self):
        """Of each rank that failed by itself the exception's own line, else the last line of its messages."""
        self.watcher.join(60)
        said = {}
        for rank, (process, file) in enumerate(zip(self.processes, self.errors)):
            if process.poll() and rank not in self.killed:
                file.seek(0)
                lines = [re.sub(r"^\[rank\d+\]: ?", "", line.strip()) for line in file if line.strip()]
                named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit|error)\b", line)]
                said[rank] = (named or lines or [f"ended with code {process.returncode}"])[-1][:400]
        if len(self.processes) == 1:
            return said.get(0, f"ended with code {self.processes[0].returncode}")
        text = "; ".join(f"rank {rank}: {words}" for rank, words in said.items())
        return text or "ended with codes " + ", ".join(str(process.returncode) for process in self.processes)


def run_bench(words, folder, limit, ranks=1):
    """What `hrm_train bench ... --json` by so many ranks has written, rank 0's of several; {"error": ...} of a failure."""
    folder = pathlib.Path(folder)
    result = folder / "turn.json"
    result.unlink(missing_ok=True)
    files = [result] + [folder / f"turn_rank_{rank}.json" for rank in range(1, ranks)]
    group = Group(lambda rank: [*words, "--json", str(files[rank])], ranks, cwd=ROOT)
    try:
        error = group.ended(limit)
    finally:
        group.stop()
    if error:
        return {"error": error}
    try:
        written = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"error": "bench has written no result"}
    told = 1 if "lone_rank" in written else written.get("ranks", 1)  # processes
    if told != ranks:
        return {"error": f"not one training of {ranks} ranks: bench says {told}"}
    return written


def step_numbers(result, batch):
    """Of what `bench step` has written: a turn's numbers."""
    ms, memory = result["step_ms"]["mean"], result["memory"]
    return dict(steps=result["steps"], ms_per_step=round(ms, 3), samples_per_s=round(batch / ms * 1e3),
                peak_bytes=memory["allocated_peak_bytes"], reserved_bytes=memory["reserved_peak_bytes"])


# ---- results ----

def write_json(path, results):
    if path:
        temporary = path.with_suffix(".tmp")
        temporary.write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n", encoding="utf-8")
        os.replace(temporary, path)


def earlier_results(path, more_keys=()):
    """What --out holds already; every record has `more_keys`, too."""
    if not path or not path.exists():
        return []
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        for record in results:
            for key in ("work", "side", "variant", "gpu", "torch", "ours", *more_keys):
                record[key]
    except (ValueError, KeyError, TypeError):
        raise command.Failure(command.DATA, f"{path} is not what this script has written; give another --out") from None
    return results


def write_text(path, text):
    if path:
        path.write_text(text, encoding="utf-8")
    else:
        print(text)


# ---- numbers ----

def time_of(record):
    return record.get("ms_per_step") or record.get("seconds")


def summary(records):
    """Median, range and peak memory of one side's turns; None without any."""
    times = sorted(time_of(r) for r in records if time_of(r))
    if not times:
        return None
    peaks = [r["peak_bytes"] for r in records if r.get("peak_bytes")]
    return dict(median=statistics.median(times), low=times[0], high=times[-1], rounds=len(times),
                peak=max(peaks) if peaks else None)


def number(value):
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"


def spread(s):
    return f"{number(s['median'])} ({number(s['low'])}-{number(s['high'])})"


def gib(value):
    return f"{value / 2**30:.1f}" if value else "-"


def cell(text):
    return text.replace("|", "\\|")


def measured_on(results):
    return "Measured on: " + "; ".join(sorted({f"{r['gpu']}, torch {r['torch']}, {r['ours']}" for r in results})) + "."


# ---- what a comparison needs ----

def add_result_options(parser):
    """What is compared with the reference, and where the results go."""
    parser.add_argument("--binary", default=str(ROOT / "build/bin/hrm_train"), help="(default: build/bin/hrm_train)")
    parser.add_argument("--out", type=pathlib.Path, metavar="JSON", help="file of all results, read and added to")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="where the tables go (default: stdout)")
    parser.add_argument("--report", action="store_true", help="measure nothing; write the tables of --out")


def machine(device, binary, gpus=1):
    """What stands in every record about the machine, which must have so many GPUs."""
    torch = command.need_torch()
    if device == "cuda":
        if not torch.cuda.is_available():
            raise command.Failure(command.MACHINE, "PyTorch finds no GPU here; compare_cpu.py compares on the CPU")
        if torch.cuda.device_count() < gpus:
            raise command.Failure(command.MACHINE, f"{gpus} ranks need as many GPUs; PyTorch finds "
                                                   f"{torch.cuda.device_count()}")
    about = dict(torch=torch.__version__, gpu=torch.cuda.get_device_name() if device == "cuda" else "CPU")
    return about | dict(ours=subprocess.run([binary, "--version"], capture_output=True, text=True).stdout.split("\n")[0])


def known(names, of, what):
    """The names, each of which must be one of `of`."""
    for name in names:
        if name not in of:
            raise command.Failure(command.USAGE, f"no {what} '{name}'; there are {', '.join(of)}")
    return names
