"""The tables of scripts/bench: which mode is compared, and with what. And the groups of processes that take turns."""

import contextlib
import io
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts/bench"))
import causal_step  # noqa: E402
import compare_causal  # noqa: E402
import compare_lm  # noqa: E402
import compare_meshes  # noqa: E402
import compare_official  # noqa: E402
import compare_parts  # noqa: E402
import compare_ranks  # noqa: E402
import compare_titan  # noqa: E402
import comparison  # noqa: E402
import lm_quality  # noqa: E402
import polychromic_quality  # noqa: E402
import random_texts  # noqa: E402
import seed_spread  # noqa: E402
import time_to_accuracy  # noqa: E402

HERE = dict(work="hrm384", batch=384, gpu="NVIDIA H200", torch="2.11", ours="hrm_train 0.1.0", peak_bytes=2**30)


def official(mode, ms, sync=False, sitting="1"):
    return dict(HERE, side="official", variant=mode, sync=sync, ms_per_step=ms, sitting=sitting)


def ours(ms, variant="bf16", sitting="1"):
    return dict(HERE, side="ours", variant=variant, ms_per_step=ms, sitting=sitting)


class Tables(unittest.TestCase):
    def test_the_fastest_mode_counts_by_the_median_of_its_turns(self):
        records = [official("default", ms) for ms in (41, 40, 90)]
        records += [official("max-autotune", ms, sync=True) for ms in (39, 45, 44)]
        records += [ours(ms) for ms in (20, 21, 20.5)]
        ratio, mode, sync, theirs, mine = compare_official.compared(records, "bf16")
        self.assertEqual((mode, sync, theirs["median"], mine["median"]), ("default", False, 41, 20.5))
        self.assertAlmostEqual(ratio, 2.0)

    def test_a_ratio_never_mixes_sittings(self):
        records = [official("default", 40), ours(20), official("max-autotune", 30, sitting="2"), ours(25, sitting="2")]
        ratio, mode, _, _, mine = compare_official.compared(records, "bf16")
        self.assertEqual((mode, mine["median"]), ("max-autotune", 25))
        self.assertAlmostEqual(ratio, 1.2)
        self.assertIsNone(compare_official.compared([official("default", 40), ours(20, sitting="2")], "bf16"))

    def test_another_size_is_named(self):
        small = [dict(official("default", 40), batch=2), dict(ours(20), batch=2)]
        self.assertIn("HRM 27M, batch 384 - here batch 2 |", compare_official.tables(small))
        record = dict(HERE, work="eval384", variant="default", side="official", sync=True, seconds=2.0, puzzles=4)
        text = compare_official.tables([record, dict(record, side="ours", variant="bf16")])
        self.assertIn("here 4 puzzles (seconds) | default | 2 (2-2) | - | 2 |", text)
        self.assertNotIn("here", compare_official.tables([official("default", 40), ours(20)]))

    def test_failures_stand_in_the_table(self):
        failed = dict(HERE, side="ours", variant="fp8 recursions", error="no | fp8", sitting="1")
        broken = dict(HERE, side="official", variant="max-autotune", error="out of memory", sitting="1")
        text = compare_official.tables([official("default", 40), ours(20), failed, broken])
        self.assertIn("**2.00**", text)
        self.assertIn("fails: `no \\| fp8`", text)
        self.assertIn("max-autotune | fails: `out of memory`", text)


class Titan(unittest.TestCase):
    LOG = ("\x1b[31mstep:  8  loss: 11.1  memory: 39.00GiB(27.9%)  tps: 5,000  mfu: 4%\x1b[0m\n"
           "step: 16  loss: 10.2  memory: 40.25GiB(28.8%)  tps: 62,600  tflops: 500\n"
           "step: 20  loss: 10.1  memory: 41.50GiB(29.7%)  tps: 62,000  tflops: 498\n")

    def test_the_second_half_of_a_log_counts(self):
        numbers = compare_titan.titan_numbers(self.LOG, 24)
        self.assertEqual(numbers, dict(tokens_per_s=62300, reserved_bytes=int(41.5 * 2**30)))
        self.assertEqual(compare_titan.titan_numbers("first\nModuleNotFoundError: torchtitan\n", 24)["error"],
                         "no step in its log; its last line: ModuleNotFoundError: torchtitan")

    def test_ratios_are_to_its_fp8(self):
        turns = [dict(side=side, tokens_per_s=tokens, reserved_bytes=2**30) for side, tokens in
                 (("torchtitan fp8", 60000), ("torchtitan fp8", 62000), ("hrm_train fp8", 73200))]
        text = compare_titan.table(turns + [dict(side="torchtitan bf16", error="out of memory")])
        self.assertIn("| hrm_train fp8 | 73,200 | 1.20 | 1.0 |", text)
        self.assertNotIn("bf16", text)
        turns = [dict(side=side, tokens_per_s=tokens, reserved_bytes=2**31) for side, tokens in
                 (("torchtitan, one GPU", 50000), ("hrm_train, zero=3", 55000))]
        self.assertIn("| hrm_train, zero=3 | 55,000 | 1.10 | 2.0 |", compare_titan.table(turns, "two_gpus"))

    def test_tokens_are_of_each_gpu(self):
        said = {}

        def run_bench(words, folder, limit, ranks):
            said["words"], said["ranks"] = words, ranks
            return {"steps": 10, "step_ms": {"mean": 1000}, "memory": dict(allocated_peak_bytes=1, reserved_peak_bytes=2)}

        shape, _, sides = compare_titan.WORKS["two_gpus"]
        args = types.SimpleNamespace(binary="hrm_train", steps=10, limit=1, alone=False)
        with unittest.mock.patch.object(compare_titan, "run_bench", run_bench):
            for side, rows in (("hrm_train, one GPU", 4), ("hrm_train, zero=3", 8), ("hrm_train, tensor 2", 4)):
                numbers = compare_titan.run_ours(args, shape, sides[side], pathlib.Path("."))
                self.assertEqual(said["ranks"], sides[side].gpus)
                self.assertIn(f"train.global_batch_size={rows}", said["words"])
                self.assertEqual(numbers["tokens_per_s"], rows * 4096 // said["ranks"])
                self.assertNotIn("--ranks", said["words"])
            args.alone = True
            for side, lone in (("hrm_train, one GPU", []), ("hrm_train, zero=3", ["--ranks", "2"])):
                compare_titan.run_ours(args, shape, sides[side], pathlib.Path("."))
                self.assertEqual((said["ranks"], said["words"][-2:] == ["--ranks", "2"]), (1, bool(lone)))


class Meshes(unittest.TestCase):
    ABOUT = dict(device="cuda", precision="bf16", steps=2, ours="hrm_train 0.1.0", set="", machine="2 x GPU")

    def run_of(self, mesh, losses, form="decoder", way="first", digest="a", **more):
        return self.ABOUT | dict(mesh=mesh, form=form, way=way, losses=losses, norms=losses, digest=digest, **more)

    def records(self):
        one = compare_meshes.ONE
        return [self.run_of(one, [4, 2]), self.run_of(one, [4, 2.02], way="fp32", digest="b"),
                self.run_of(one, [4, 2.002], form="micro-batches", digest="c"), self.run_of(one, [5, 5], form="window"),
                self.run_of(one, [4, 2], way="again"), self.run_of(one, [4, 2], way="eager"),
                self.run_of("tensor=2 zero=1", [4.04, 2]), self.run_of("tensor=2 zero=1", [4.04, 2], way="again"),
                self.run_of("tensor=2 zero=1", [4.04, 2], way="eager", digest="d"),
                self.run_of("tensor=2 zero=1", [4, 2], form="micro-batches"),
                self.run_of("zero=3", [5, 5.5], form="window"), self.ABOUT
                | dict(mesh="data=2", form="decoder", way="first", error="rank 1: no memory")]

    def test_differences_are_to_one_rank(self):
        lines = compare_meshes.tables(self.records()).splitlines()
        self.assertEqual(lines[0], "bf16, 2 steps, 2 x GPU, hrm_train 0.1.0; norms of gradients differ by up to 1.0e-01")
        self.assertEqual(lines[2], "| mesh | ranks | decoder | micro-batches | window | against fp32 | two runs | "
                                   "captured, eager |")
        self.assertEqual(lines[4], "| one rank | 1 |  | 1.0e-03 |  | 9.9e-03 | same bits | same bits |")
        self.assertEqual(lines[5], "| `data=2` | 2 | fails |  |  |  |  |  |")
        self.assertEqual(lines[6], "| `zero=3` | 2 |  |  | 1.0e-01 |  |  |  |")
        self.assertEqual(lines[7], "| `tensor=2`, `zero=1` | 4 | 1.0e-02 | 0 |  | 1.0e-02 | same bits | **differ** |")
        other = [dict(record, steps=3, losses=[1, 1, 1]) for record in self.records()[:3] if "error" not in record]
        text = compare_meshes.tables(self.records() + other)
        self.assertEqual(text.split("\n\n")[:2], ["\n".join(lines[:1]), "\n".join(lines[2:])])
        self.assertIn("| one rank | 1 |  | 0 | 0 |", text.split("\n\n")[3], "a table of its own")

    def test_what_is_wrong_is_told(self):
        wrong = compare_meshes.complaints(types.SimpleNamespace(bound=0.05), self.records())
        self.assertEqual(wrong, ["data=2, decoder, first: rank 1: no memory",
                                 "zero=3, window: a loss differs by 0.1, more than --bound 0.05",
                                 "tensor=2 zero=1: captured and eager steps differ in a bit"])
        records = [dict(record, captured=record["mesh"] != "tensor=2 zero=1") for record in self.records()]
        self.assertEqual(len(compare_meshes.complaints(types.SimpleNamespace(bound=0), records)), 2 + 4)
        self.assertIn("| `tensor=2`, `zero=1` | 4 | 1.0e-02 | 0 |  | 1.0e-02 | same bits | not captured |",
                      compare_meshes.tables(records))

    def test_references_come_first_and_each_run_once(self):
        args = types.SimpleNamespace(device="cuda", precision="bf16", meshes=[compare_meshes.ONE, "zero=3"],
                                     forms=["micro-batches", "window"])
        runs = compare_meshes.wanted(args)
        self.assertEqual(runs[0], (compare_meshes.ONE, "decoder", "first"))
        self.assertEqual(len(runs), len(set(runs)))
        args.forms, args.meshes = ["adapters"], ["zero=1", "zero=2"]
        self.assertEqual({mesh for mesh, _, _ in compare_meshes.wanted(args)}, {compare_meshes.ONE, "zero=1"})
        args.forms = ["decoder"]
        self.assertEqual({way for _, _, way in compare_meshes.wanted(args)}, {"first", "again", "eager", "fp32"})
        args.device, args.precision = "cpu", "fp32"
        self.assertEqual({way for _, _, way in compare_meshes.wanted(args)}, {"first", "again"})

    def test_rows_of_micro_batches_divide(self):
        size = compare_meshes.SIZES["cpu"]
        for mesh in compare_meshes.MESHES.values():
            for form in compare_meshes.FORMS.values():
                words = compare_meshes.settings_of(form, mesh, size, pathlib.Path("."))
                rows = int(next(w for w in words if w.startswith("train.micro_batch_size=")).split("=")[1])
                self.assertEqual(rows * form.micro_batches * mesh.rows_apart(), size.rows)


class PartsTable(unittest.TestCase):
    def test_parts_are_beside_one_gpu(self):
        turns = [dict(side=side, step_ms=ms, peak_bytes=2**30) for side, ms in
                 (("one", 3.0), ("one", 5.0), ("one", 4.0), ("memory", 2.5), ("nccl", 3.2))]
        text = compare_parts.table(turns + [dict(side="nccl", error="out of memory")])
        self.assertIn("| one | 1 | 4.000 | 1.00 | 1.0 |", text)
        self.assertIn("| memory | 2 | 2.500 | 1.60 | 1.0 |", text)
        self.assertIn("| nccl | 2 | 3.200 | 1.25 | 1.0 |", text)

    def test_each_side_is_timed_by_its_ranks(self):
        said = []

        def run_bench(words, folder, limit, ranks):
            said.append((ranks, words))
            run = dict(step_ms=2.0, tokens_per_s=6000.0)
            return dict(runs=[run], memory_peak_bytes=5, memory_of_ranks=[dict(memory_peak_bytes=n) for n in (5, 7)])

        args = types.SimpleNamespace(binary="hrm_train", rows=12, limit=1, device="cuda", ours=["hf.quantize=int8"])
        with unittest.mock.patch.object(compare_parts, "run_bench", run_bench):
            for side in compare_parts.SIDES:
                numbers = compare_parts.run_side(args, side, pathlib.Path("."))
                self.assertEqual(numbers, dict(step_ms=2.0, tokens_per_s=6000.0, peak_bytes=7))
        self.assertEqual([ranks for ranks, _ in said], [1, 2, 2])
        self.assertEqual([("parallel.tensor=2" in w, "parallel.peer_memory=false" in w, w[-1]) for _, w in said],
                         [(False, False, "hf.quantize=int8"), (True, False, "hf.quantize=int8"),
                          (True, True, "hf.quantize=int8")])


def at(work, ranks, batch, side, variant, ms, sync=False, sitting="1", **more):
    record = dict(HERE, work=work, ranks=ranks, batch=batch, side=side, variant=variant, sitting=sitting, **more)
    if ms:
        record["ms_per_step"] = ms
    if side == "official" and ms:
        record["sync"] = sync
    return record


class CausalTable(unittest.TestCase):
    def turns(self, work, key, **values):
        return [{"work": work, "mode": mode, key: value, "peak_bytes": 2**30} for mode, all_of in values.items()
                for value in all_of]

    def test_medians_and_ranges(self):
        turns = self.turns("lora", "ms_per_step", default=[60, 40, 50], eager=[90])
        turns += self.turns("generate", "tokens_per_s", dynamic=[400], static=[2000, 3000])
        turns += [dict(work="lora", mode="hrm_train", ms_per_step=25, peak_bytes=2**30),
                  dict(work="generate", mode="hrm_train", tokens_per_s=5000)]
        lines = compare_causal.table(turns).splitlines()
        self.assertIn("| default | 50.0 (40.0-60.0) | 25.0 (25.0-25.0) | **2.00** |", lines[2])
        self.assertEqual(lines[3], "| | eager | 90.0 (90.0-90.0) | | 3.60 | |")
        self.assertIn("| static | 2,500.0 (2,000.0-3,000.0) | 5,000.0 (5,000.0-5,000.0) | **2.00** |", lines[4])
        self.assertEqual(lines[5], "| | dynamic | 400.0 (400.0-400.0) | | 12.50 | |")

    def test_a_work_that_one_side_did_not_do_is_left_out(self):
        turns = [dict(work="lora", mode="hrm_train", ms_per_step=25), dict(work="lora", mode="default", error="x")]
        self.assertEqual(len(compare_causal.table(turns).splitlines()), 2)
        self.assertEqual(compare_causal.parts_table(turns), "")

    def test_parts_of_steps_and_hours_of_a_long_run(self):
        def turn(mode, ms):
            parts = dict.fromkeys(compare_causal.PARTS, ms / 10)
            return dict(work="step8b", mode=mode, ms_per_step=ms, steps=20, answer_tokens=4800, peak_bytes=2**34,
                        **parts)
        turns = [turn("hrm_train", 1500), turn("hrm_train", 1600), turn("eager/dynamic", 9000)]
        turns.append(dict(work="step8b", mode="default/static", error="no answer after 10 s"))
        turns.append(turn("hrm_train polychromic.share_prompts=off", 1700))  # not the other side
        self.assertIn("| eager/dynamic | 9,000.0 (9,000.0-9,000.0) | 1,550.0 (1,500.0-1,600.0) | **5.81** | "
                      "16.0, 16.0 |", compare_causal.table(turns))
        lines = compare_causal.parts_table(turns).splitlines()
        self.assertEqual(lines[3], "| step8b | hrm_train | 40 | 1,550.0 | " + "155.0 | " * 5 + "4,800 | 0.24 |")
        self.assertEqual(lines[5], "| step8b | hrm_train polychromic.share_prompts=off | 20 | 1,700.0 | "
                         + "170.0 | " * 5 + "4,800 | 0.26 |")
        self.assertEqual(lines[4], "| step8b | eager/dynamic | 20 | 9,000.0 | " + "900.0 | " * 5 + "4,800 | 1.39 |")
        self.assertEqual(len({line.count("|") for line in lines[1:]}), 1)


class CausalSteps(unittest.TestCase):
    def test_modes(self):
        parse = causal_step.parse_mode
        self.assertEqual(parse("default/static+merge+fp32"), ("default", "static", {"merge", "fp32"}))
        self.assertEqual(parse("eager/dynamic"), ("eager", "dynamic", set()))
        for wrong in ("default", "static/default", "default/static+peft", "default/static+merge+merge", "/",
                      "default/static+"):
            self.assertIsNone(parse(wrong), wrong)
        self.assertEqual(causal_step.uncompiled("layers/static+fp32+merge"), "eager/dynamic+merge+fp32")
        for work in compare_causal.WORKS.values():
            for mode in work["modes"]:
                kinds = [kind for kind in ("lora", "generate", "step") if compare_causal.has_mode(kind, mode)]
                self.assertEqual(kinds, [work["kind"]])

    def test_modes_go_to_the_works_that_have_them(self):
        args = types.SimpleNamespace(modes=["static", "eager/dynamic"])
        modes = {name: compare_causal.modes_of(args, work) for name, work in compare_causal.WORKS.items()}
        self.assertEqual((modes["generate"], modes["step"], modes["step8b"]), (["static"], *[["eager/dynamic"]] * 2))
        self.assertEqual(modes["lora"], compare_causal.WORKS["lora"]["modes"])

    def test_what_does_not_compile_is_tried_without(self):
        args = types.SimpleNamespace(modes=["default/static+merge", "layers/dynamic+merge"], limit=30)
        ready = "import json, sys; print(json.dumps({'ready': {'warmup_s': 1}}), flush=True); sys.stdin.read()"
        fails = "import sys; sys.exit('RuntimeError: no compiler')"

        def words(args, work, mode, folder):
            return [sys.executable, "-c", ready if mode.startswith("eager") else fails]
        with unittest.mock.patch.object(compare_causal, "peer_words", words), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            peers = list(compare_causal.started(args, "step", None))
        for peer in peers:
            peer.stop()
        self.assertEqual([peer.mode for peer in peers], ["eager/dynamic+merge"])
        self.assertEqual(said.getvalue().count("RuntimeError: no compiler"), 2)

    def test_numbers_of_a_run(self):
        def line(ms, tokens):
            names = ("merge_ms", "encode_ms", "diversity_ms", "train_ms", "prefill_ms", "decode_ms", "step_ms")
            perf = {"perf/" + name: ms for name in names}
            return perf | {"train/answer_tokens": tokens, "train/tokens": 7184, "perf/encode_tokens_per_s": 2e3,
                           "perf/memory_peak_bytes": 1e9 + ms, "perf/memory_reserved_bytes": 2e9}
        got = compare_causal.numbers_of_run([line(10, 4800), line(30, 4797), line(20, 4800)])
        self.assertEqual((got["ms_per_step"], got["generate_ms"], got["steps"]), (20, 40, 3))
        self.assertEqual((got["answer_tokens"], got["encoded_tokens"], got["label_tokens"]), (4799, 40, 7184))
        self.assertEqual((got["peak_bytes"], got["ms_each"]), (10**9 + 30, [10, 30, 20]))
        self.assertTrue(set(compare_causal.PARTS) <= set(got))


class RandomTexts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def test_rows(self):
        random_texts.write_rows(self.dir / "x.jsonl", 64, 480, count=20)
        rows = [json.loads(line) for line in (self.dir / "x.jsonl").read_text().splitlines()]
        self.assertEqual({(len(row["prompt"]), len(row["response"])) for row in rows}, {(64, 480)})
        self.assertEqual(len({row["prompt"] for row in rows}), 20)

    def test_tokens_of_any_number_are_single_words_of_the_encoder(self):
        random_texts.write_tokenizer(self.dir, 151936)
        vocabulary = json.loads((self.dir / "tokenizer.json").read_text())["model"]["vocab"]
        self.assertEqual((len(vocabulary), max(vocabulary.values()), vocabulary["<eos>"]), (151936, 151935, 1))
        self.assertEqual(len(random_texts.tokens(300)), 300)
        random_texts.write_encoder(self.dir, dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
        words = (self.dir / "vocab.txt").read_text().split("\n")
        self.assertEqual((len(words), words[-1], len(set(words))), (30523, "", 30523))
        of_words = {token.lstrip("\u0120").lower() for token in random_texts.tokens(151936)[258:]}
        self.assertLessEqual(of_words, set(words))

    def test_bytes(self):
        letters = random_texts.byte_letters()
        self.assertEqual((len(set(letters)), letters[ord("a")], letters[ord(" ")], letters[0]),
                         (256, "a", "\u0120", "\u0100"))

    def test_the_encoder_is_whole(self):
        random_texts.write_encoder(self.dir, dict(hidden_size=8, num_hidden_layers=2, intermediate_size=16))
        data = (self.dir / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        self.assertEqual(len(header), 3 + 2 + 2 * 16)
        end = 0
        for entry in header.values():
            count = 1
            for length in entry["shape"]:
                count *= length
            self.assertEqual(entry["data_offsets"], [end, end + 2 * count])
            end += 2 * count
        self.assertEqual((size % 8, len(data)), (0, 8 + size + end))
        values = [struct.unpack("<f", b"\0\0" + data[8 + size + i:8 + size + i + 2])[0] for i in range(0, 2000, 2)]
        self.assertTrue(all(1 / 64 <= abs(value) < 1 / 32 for value in values))
        self.assertTrue(400 < sum(value > 0 for value in values) < 600)


class RankTables(unittest.TestCase):
    """Turns of one and of two ranks, 8 puzzles each in weak scaling."""

    ONE = [at("weak", 1, 8, "official", "default", 100), at("weak", 1, 8, "official", "default", 90, sync=True),
           at("weak", 1, 8, "ours", "one rank", 60)]
    WEAK = [at("weak", 2, 16, "official", "default, loop", 125), at("weak", 2, 16, "official", "default, bucket", 100),
            at("weak", 2, 16, "ours", "fp32 sums", 64)]
    STRONG = [at("strong", 2, 8, "official", "default, loop", 60), at("strong", 2, 8, "ours", "fp32 sums", 40)]

    def test_ratios_and_efficiencies(self):
        results = self.ONE + self.WEAK + self.STRONG
        weak = compare_ranks.compared(results, "weak", 2, 16, "fp32 sums")
        self.assertEqual((weak["mode"], weak["sync"]), ("default, bucket", False))
        self.assertAlmostEqual(weak["ratio"], 100 / 64)
        self.assertAlmostEqual(weak["official_efficiency"], 0.9)  # of the best mode of one rank: 90
        self.assertAlmostEqual(weak["ours_efficiency"], 60 / 64)
        strong = compare_ranks.compared(results, "strong", 2, 8, "fp32 sums")
        self.assertAlmostEqual(strong["official_efficiency"], 90 / 120)
        self.assertAlmostEqual(strong["ours_efficiency"], 60 / 80)
        text = compare_ranks.tables(results)
        self.assertIn("| one GPU | 1 | 8 | default, metrics read | 90.0 (90.0-90.0) | one rank | 60.0 (60.0-60.0) | "
                      "**1.50** |  |  | 1.0 | 1.0 |", text)
        self.assertIn("| weak scaling | 2 | 16 | default, bucket, metrics not read | 100.0 (100.0-100.0) | fp32 sums | "
                      "64.0 (64.0-64.0) | **1.56** | 90.0 % | 93.8 % |", text)
        self.assertIn("| strong scaling | 2 | 8 | default, loop | - | 60.0 (60.0-60.0) | 1.0 |", text)
        widths = {line.count("|") for line in text.split("\n\n")[1].splitlines()}
        self.assertEqual(len(widths), 1, text)

    def test_never_of_two_sittings(self):
        other = [dict(record, sitting="2") for record in self.WEAK]
        weak = compare_ranks.compared(self.ONE + other, "weak", 2, 16, "fp32 sums")
        self.assertIsNone(weak["ours_efficiency"])
        self.assertIn("| - | - |", compare_ranks.tables(self.ONE + other))
        self.assertIsNone(compare_ranks.compared(self.ONE + self.WEAK[:2] + other[2:], "weak", 2, 16, "fp32 sums"))

    def test_nor_of_another_batch(self):
        other = [dict(record, batch=32) for record in self.WEAK]
        self.assertIsNone(compare_ranks.compared(self.ONE + other, "weak", 2, 32, "fp32 sums")["ours_efficiency"])

    def test_failures_stand_in_the_table(self):
        text = compare_ranks.tables(self.ONE + [at("weak", 2, 16, "official", "default, loop", None, error="no | peer"),
                                                at("weak", 2, 16, "ours", "fp32 sums", 64),
                                                at("weak", 2, 16, "ours", "bf16 sums", None, error="rank 1: late")])
        self.assertIn("default, loop | fails: `no \\| peer` |", text)
        self.assertIn("| weak scaling | 2 | 16 | | | fp32 sums | 64.0 (64.0-64.0) | | | | |", text)
        self.assertIn("bf16 sums | fails: `rank 1: late` |", text)
        for table in text.rstrip("\n").split("\n\n")[1:]:
            self.assertEqual(len({line.replace("\\|", "").count("|") for line in table.splitlines()}), 1, table)

    def test_what_is_measured_again_replaces(self):
        results = self.ONE + self.WEAK + self.STRONG
        modes = [("default", "loop"), ("default", "bucket")]
        self.assertEqual(compare_ranks.kept(results, compare_ranks.tasks_of(["weak", "strong"], [1, 2], 8), modes), [])
        # One rank stays, as what strong scaling refers to; the same batch of another number of ranks is another task.
        left = compare_ranks.kept(results, compare_ranks.tasks_of(["weak"], [1, 2], 8), modes)
        self.assertEqual(left, self.ONE + self.STRONG)
        self.assertEqual(compare_ranks.kept(results, compare_ranks.tasks_of(["weak"], [4], 8), modes), results)
        left = compare_ranks.kept(results, compare_ranks.tasks_of(["weak"], [2], 8), [("default", "loop")])
        self.assertEqual(left, self.ONE + self.WEAK[1:] + self.STRONG)


LM = {  # what `hrm_train config --json` says of a language model, as far as the comparison reads it
    "lm": dict(arch="hrm", style="modern", hidden_size=512, num_heads=8, kv_heads=0, head_dim=0, inner=0, layers=6,
               positions=0, window=0, rope_theta=10000, rms_norm_eps=1e-6, qk_norm=False, tied=True, recompute=False,
               encoder="transformer", enc_layers=2, h_layers=2, l_layers=2, h_len=8, l_len=64, h_cycles=4, l_steps=8,
               gradient_cycles=1, bridge="prefix", prefix_len=8, gate_scale=1, gate_bias=0, freeze=""),
    "moe": dict(experts=8, top_k=2, inner=0, activation="gelu", place="auto", every=2, score="softmax", normalize=False,
                load_weight=0.01, z_weight=0, capacity_factor=0, bias_rate=0, jitter=0, shared_experts=0),
    "objective": dict(deep_supervision=0, halting=0.5, halting_target=1),
    "data": dict(encoder_len=512, decoder_len=2048, document_masks=False),
}


class LanguageModels(unittest.TestCase):
    def changed(self, section, **values):
        return LM | {section: LM[section] | values}

    def test_the_peer_is_the_configured_model(self):
        sizes = compare_lm.peer_sizes(LM, 99)
        self.assertEqual((sizes["kind"], sizes["vocabulary"], sizes["width"], sizes["layers"]), ("hrm", 99, 512, 6))
        self.assertEqual((sizes["positions"], sizes["max_prompt"]), (2048 + 8, 1024))
        self.assertEqual((sizes["moe_every"], sizes["enc_moe_every"], sizes["halting"]), (2, 2, True))
        sizes = compare_lm.peer_sizes(self.changed("moe", place="decoder"), 99)
        self.assertEqual((sizes["moe_every"], sizes["enc_moe_every"]), (2, 0))
        plain = self.changed("lm", arch="decoder") | {"data": dict(LM["data"], encoder_len=0)}
        sizes = compare_lm.peer_sizes(plain, 99)
        self.assertEqual((sizes["moe_every"], sizes["enc_moe_every"], "h_cycles" in sizes), (2, 0, False))
        self.assertNotIn("experts", compare_lm.peer_sizes(self.changed("moe", experts=0), 99))

    def test_what_the_peer_has_not(self):
        for section, values, word in (("lm", dict(window=4), "window"), ("lm", dict(encoder="mamba2"), "mamba2"),
                                      ("moe", dict(jitter=0.1), "moe.jitter"),
                                      ("moe", dict(score="sigmoid"), "sigmoid"),
                                      ("moe", dict(activation="swiglu"), "swiglu"),
                                      ("lm", dict(arch="decoder"), "prompts")):
            with self.assertRaisesRegex(compare_lm.command.Failure, word):
                compare_lm.peer_sizes(self.changed(section, **values), 99)

    def test_variants(self):
        options = compare_lm.peer_options("graph+copies", "hrm")
        self.assertEqual(dict(zip(options[::2], options[1::2])),
                         {"--mode": "graph", "--precision": "copies", "--cross-entropy": "plain", "--sdpa": "auto",
                          "--linear": "plain", "--regions": "parts"})
        self.assertIn("whole", compare_lm.peer_options("eager", "decoder"))
        options = compare_lm.peer_options("graph+float8rowwise", "decoder")
        self.assertEqual(options[options.index("--linear") + 1], "float8rowwise")
        self.assertIn("parts", options, "torchao's blocks are compiled one by one")
        self.assertIn("whole", compare_lm.peer_options("graph+float8+whole", "decoder"))
        with self.assertRaisesRegex(compare_lm.command.Failure, "nothing is called 'best'"):
            compare_lm.peer_options("graph+best", "decoder")

    def test_the_fastest_variant_counts_by_its_median(self):
        def turn(side, variant, ms):
            return dict(work="decoder", title="small", side=side, variant=variant, ms_per_step=ms, peak_bytes=2**30)
        turns = [turn("ours", "hrm_train", ms) for ms in (20, 21, 20.5)]
        turns += [turn("pytorch", "default", ms) for ms in (41, 40, 90)]
        turns += [turn("pytorch", "graph", ms) for ms in (39, 45, 44)]
        turns += [dict(work="decoder", title="small", side="pytorch", variant="eager", error="no memory")]
        text = compare_lm.table(turns)
        self.assertIn("| small | default | 41.0 (40.0-90.0) | 20.5 (20.0-21.0) | **2.00** | 1.0, 1.0 |", text)
        self.assertIn("decoder, graph: 44.0 (39.0-45.0) ms, 1.0 GiB", text)
        self.assertEqual(compare_lm.table_of_8_bits(turns), "")

    def test_8_bits_are_compared_with_16_bits_of_the_same_side(self):
        def turn(side, variant, ms, peak=2**30):
            return dict(work="decoder", title="small", side=side, variant=variant, ms_per_step=ms, peak_bytes=peak)
        turns = [turn("ours", "hrm_train", 20), turn("ours", "hrm_train precision.blocks=fp8", 16, 2**29)]
        turns += [turn("pytorch", "default", 60), turn("pytorch", "graph", 30), turn("pytorch", "graph+float8", 24)]
        self.assertIn("| small | graph | 30.0 (30.0-30.0) | 20.0 (20.0-20.0) | **1.50** |", compare_lm.table(turns),
                      "the fastest variant in 16 bits, and ours in 16 bits")
        text = compare_lm.table_of_8_bits(turns)
        self.assertIn("| small | ours | hrm_train precision.blocks=fp8 | 16.0 (16.0-16.0) | **1.25** | -50 % |", text)
        self.assertIn("| small | pytorch | graph+float8 | 24.0 (24.0-24.0) | **1.25** | +0 % |", text)
        self.assertEqual(text.count("small"), 2)


class Groups(unittest.TestCase):
    """Processes that live and end together."""

    SERVE = "import sys, os, json\nfor line in sys.stdin: print(json.dumps(dict(os.environ, order=line)), flush=True)"

    def group(self, *programs):
        group = comparison.Group(lambda rank: [sys.executable, "-c", programs[rank]], len(programs))
        self.addCleanup(group.stop)
        return group

    def assert_all_ended_soon(self, group):
        end = time.monotonic() + 10
        while any(process.poll() is None for process in group.processes):
            self.assertLess(time.monotonic(), end, "a process goes on")
            time.sleep(0.05)

    def test_orders_and_variables(self):
        group = self.group(self.SERVE, "import time; time.sleep(60)")
        answer = group.ask({"run": 3}, 30)
        self.assertEqual({key: answer[key] for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")},
                         {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
        self.assertEqual(json.loads(answer["order"]), {"run": 3})
        group.stop()
        self.assert_all_ended_soon(group)
        self.assertNotIn("WORLD_SIZE", self.group(self.SERVE).ask({}, 30))

    def test_one_that_fails_ends_all(self):
        fails = "import sys, time; time.sleep(0.3); print('[rank1]: ValueError: no link', file=sys.stderr); sys.exit(1)"
        group = self.group("import time; time.sleep(60)", fails, "import time; time.sleep(60)")
        begin = time.monotonic()
        self.assertEqual(group.answer(30), {"error": "rank 1: ValueError: no link"})
        self.assert_all_ended_soon(group)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(group.ask({}, 30), {"error": "rank 1: ValueError: no link"})

    def test_none_waits_for_ever(self):
        group = self.group("import time; time.sleep(60)", "import time; time.sleep(60)")
        self.assertEqual(group.answer(1), {"error": "no answer after 1 s"})
        self.assert_all_ended_soon(group)
        self.assertEqual(self.group("pass", "import time; time.sleep(60)").ended(1), "no end after 1 s")
        self.assertIsNone(self.group("pass", "pass").ended(30))
        self.assertEqual(self.group("import sys; sys.exit('error: no rows')").ended(30), "error: no rows")


    def test_what_bench_has_written(self):
        write = "import json, os, sys; json.dump({%s}, open(sys.argv[sys.argv.index('--json') + 1], 'w'))"
        with tempfile.TemporaryDirectory() as folder:
            def bench(program, ranks):
                return comparison.run_bench([sys.executable, "-c", program], folder, 30, ranks)
            both = write % "'ranks': int(os.environ['WORLD_SIZE']), 'by': os.environ['RANK']"
            self.assertEqual(bench(both, 2), {"ranks": 2, "by": "0"})
            self.assertEqual(bench(write % "'steps': 3", 1), {"steps": 3})
            # A program that knows no ranks would be two trainings, each of the whole batch.
            self.assertEqual(bench(write % "'steps': 3", 2), {"error": "not one training of 2 ranks: bench says 1"})
            self.assertEqual(bench("pass", 1), {"error": "bench has written no result"})


class Report(unittest.TestCase):
    def report(self, **steps):
        with tempfile.TemporaryDirectory() as folder:
            for name, step in steps.items():
                record = time_to_accuracy.record_of(name, 0, step, step / 10, 0.9, 0.8, "GPU")
                pathlib.Path(folder, f"{name}_seed0.jsonl").write_text(json.dumps(record) + "\n")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                code = time_to_accuracy.report(types.SimpleNamespace(dir=pathlib.Path(folder), picture=None))
        return code, out.getvalue()

    def test_runs_that_have_come_equally_far_are_compared(self):
        code, text = self.report(official=200, ours=200)
        self.assertEqual(code, 0)
        self.assertIn("| ours | 20 | 80.0 % | 1.00 | +0.0 |", text)

    def test_others_are_not(self):
        self.assertIn("| ours | 10 | 80.0 % | - | - |", self.report(official=200, ours=100)[1])


class SeedSpread(unittest.TestCase):
    PROGRAM = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
if words[0] == "config":
    print(json.dumps(dict(train=dict(global_batch_size=8))))
    sys.exit()
keys = dict(word.split("=", 1) for word in words if "=" in word)
folder = pathlib.Path(keys["run.dir"], keys["run.name"])
(folder / "checkpoints/step-000000001").mkdir(parents=True, exist_ok=True)
with open(pathlib.Path(keys["run.dir"], "calls"), "a") as file:
    file.write(json.dumps(words) + "\\n")
if "train.micro_batch_size" in keys and pathlib.Path(keys["run.dir"], "stop").exists():
    sys.exit(75)
late = 10 * int(keys["run.seed"])
with open(folder / "metrics.jsonl", "w") as file:
    for step in range(100, int(keys["train.steps"]) + 1, 100):
        solved = min(1.0, max(0.0, (step - 100 - late) / 200))
        file.write(json.dumps(dict([("step", step), ("eval/exact_accuracy", solved)])) + "\\n")
"""

    def run_script(self, folder, *more):
        program = pathlib.Path(folder, "hrm_train")
        program.write_text(self.PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
        config = pathlib.Path(folder, "config.json")
        config.write_text("{}")
        return subprocess.run([sys.executable, "-B", ROOT / "scripts/bench/seed_spread.py", "--config", config, "--out",
                               pathlib.Path(folder, "out"), "--binary", program, "--steps", "400", "--eval-every", "100",
                               "--runs", "2", *more], capture_output=True, text=True, timeout=120)

    def test_one_source_of_chance_at_a_time(self):
        with tempfile.TemporaryDirectory(prefix="hrm_spread_test_") as folder:
            out = pathlib.Path(folder, "out")
            out.mkdir()
            (out / "stop").touch()
            done = self.run_script(folder)
            self.assertEqual(done.returncode, 75, done.stderr)
            self.assertIn("rounding_2 was stopped", done.stderr)
            (out / "stop").unlink()
            done = self.run_script(folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            calls = [json.loads(line) for line in (out / "calls").read_text().splitlines()]
            self.assertEqual(len(calls), 3 + 7 + 1)  # initial weights, runs, and one that went on
            by_name = {next(w for w in words if w.startswith("run.name="))[9:]: words for words in calls[::-1]}
            for name, seed, weights, micro in (("base", 0, 0, None), ("weights_2", 0, 2, None), ("data_2", 2, 0, None),
                                               ("rounding_2", 0, 0, 4), ("rounding_4", 0, 0, 2)):
                words = by_name[name]
                self.assertIn(f"run.seed={seed}", words)
                self.assertEqual(words[words.index("--init") + 1], str(out.resolve() / f"initial_seed{weights}"))
                self.assertEqual([w for w in words if "micro" in w], [f"train.micro_batch_size={micro}"] if micro else [])
            again = [words for words in calls if "run.name=rounding_2" in words][1]
            self.assertNotIn("--init", again)  # it goes on from its own checkpoint
            self.assertIn("| data_2 | 0.0 | 40.0 | 90.0 | 100.0 | 220 |", done.stdout)
            self.assertIn("| data | 3 | 0.0 | 10.0 | 200 | 20 |", done.stdout)
            self.assertIn("| rounding | 3 | 0.0 | 0.0 | 100 | 0 |", done.stdout)
            self.assertTrue((out / "spread.svg").exists())
            found = json.loads((out / "spread.json").read_text())
            self.assertEqual(found["runs"]["base"]["300"], 1.0)
            self.assertEqual(self.run_script(folder).returncode, 0)
            self.assertEqual(len((out / "calls").read_text().splitlines()), len(calls))  # nothing again

    def test_the_step_of_a_level_lies_between_evaluations(self):
        self.assertEqual(seed_spread.reached({100: 0.0, 200: 0.4, 300: 0.6}, 0.5), 250)
        self.assertEqual(seed_spread.reached({100: 0.8}, 0.4), 50)
        self.assertIsNone(seed_spread.reached({100: 0.0, 200: 0.4}, 0.5))

    def test_refuses(self):
        with tempfile.TemporaryDirectory(prefix="hrm_spread_test_") as folder:
            for words, part in ((("--kinds", "luck"), "none of weights"), (("--runs", "4"), "no 16 equal micro-batches"),
                                (("--config", "/no.json"), "does not exist"), (("--binary", "/no/x"), "is no program")):
                done = self.run_script(folder, *words)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(part, done.stderr)
                self.assertEqual(len(done.stderr.strip().splitlines()), 1)


class LanguageQuality(unittest.TestCase):
    def test_a_run_is_its_last_evaluation_its_best_one_and_its_worst_mixture(self):
        lines = [dict(zip(("step", "perf/step_ms", "train/moe/a/load_entropy", "train/moe/b/load_entropy", "train/moe/a/load_max"),
                          (step, ms, a, b, 1.5))) for step, ms, a, b in
                 ((10, 900, 0.1, 0.9), (20, 12, 0.99, 0.9), (30, 10, 0.99, 0.97), (40, 11, 0.98, 0.99))]
        lines += [{"step": step, "eval/loss": loss, "eval/bits_per_byte": loss / 2, "eval/accuracy": 0.5, "eval/tokens": 7}
                  for step, loss in ((20, 2.0), (40, 3.0))]
        got = lm_quality.read(lines)
        self.assertEqual((got["loss"], got["step"], got["best_loss"], got["best_step"]), (3.0, 40, 2.0, 20))
        self.assertEqual(got["step_ms"], 11)  # without the first line, in which steps are captured
        self.assertEqual((got["load_entropy"], got["load_entropy_worst"], got["load_max"]), (0.98, 0.1, 1.5))
        self.assertNotIn("dropped", got)


class Fp8Quality(unittest.TestCase):
    """With a stand-in for hrm_train that keeps a list of its calls, and waits to be stopped where a file says so."""

    PROGRAM = """#!{python}
import json, os, pathlib, signal, sys, time
keys = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
runs = pathlib.Path(keys["run.dir"])
folder = runs / keys["run.name"]
folder.mkdir(parents=True, exist_ok=True)
with open(runs / "calls", "a") as file:
    print(keys["run.name"], os.environ.get("CUDA_VISIBLE_DEVICES"), keys.get("precision.fp8_scaling"), keys.get("x.y"), file=file)
if (runs / "fail").exists():
    sys.exit("error: no room")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
while (runs / "wait").exists():
    time.sleep(0.01)
bits = 2.0 + 0.1 * int(keys["run.seed"]) + (0.01 if "precision.blocks" in keys else 0)
end = dict([("step", int(keys["train.steps"])), ("perf/step_ms", 7), ("train/fp8/input/saturated", 0.25),
            ("train/fp8/layers.0.mlp/input/saturated", 0.00125)])
for key in ("loss", "bits_per_byte", "accuracy", "tokens"):
    end["eval/" + key] = bits
(folder / "metrics.jsonl").write_text(json.dumps(end))
"""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="hrm_fp8_quality_test_")))
        self.runs, self.program = self.folder / "runs", self.folder / "hrm_train"
        self.runs.mkdir()
        self.program.write_text(self.PROGRAM.format(python=sys.executable))
        self.program.chmod(0o755)

    def start(self, *more):
        (self.runs / "calls").write_text("")
        done = subprocess.run([sys.executable, "-B", ROOT / "scripts/bench/fp8_quality.py", "--binary", self.program,
                               "--work", self.runs, "--data", self.folder, "--out", self.folder / "table.md", *more],
                              capture_output=True, text=True, timeout=60,
                              env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "3,5"})
        return done, sorted((self.runs / "calls").read_text().splitlines())

    def test_it_stops_goes_on_and_compares_equal_seeds(self):
        (self.runs / "wait").touch()
        done, calls = self.start("--which", "decoder", "--minutes", "0.01")
        self.assertEqual(done.returncode, 75, done.stderr)
        self.assertIn("stopped with 6 of 6 runs to finish, decoder_bf16_1000_0 next", done.stderr)
        self.assertEqual({call.split()[1] for call in calls}, {"3", "5"}, "one run on each GPU")
        self.assertEqual(len(calls), 2)
        (self.runs / "wait").unlink()
        done, calls = self.start("--which", "decoder,wide", "--fp8-set", "x.y=1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(len(calls), 6 + 3, "wide has one seed")
        self.assertEqual({tuple(call.split()[2:]) for call in calls},
                         {("None", "None"), ("delayed", "1"), ("current", "1")})
        self.assertIn("| decoder, 1,000 steps | bf16 | 2.0000, 2.1000 | - | - | 25.0 % | 0.125 % | 7.0 |", done.stdout)
        self.assertIn("| decoder, 1,000 steps | delayed | 2.0100, 2.1100 | +0.49 % | +0.0100 | 25.0 % | 0.125 % | 7.0 |",
                      done.stdout)
        self.assertIn("| wide, 3,000 steps | current | 2.0100 | +0.50 % |", done.stdout)
        self.assertEqual((self.folder / "table.md").read_text(), done.stdout)
        done, calls = self.start("--which", "decoder,wide")
        self.assertEqual((done.returncode, calls), (0, []), "nothing is done twice")

    def test_one_that_fails_ends_all(self):
        (self.runs / "fail").touch()
        done, _ = self.start("--jobs", "2")
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertRegex(done.stderr, "^error: decoder_.* ended with 1: error: no room\n$")


class Lora8Accuracy(unittest.TestCase):
    """With a stand-in for hrm_train that writes what the script reads."""

    STAND_IN = """#!{python}
import json, os, pathlib, sys
words = sys.argv[1:]
value = lambda name: pathlib.Path(words[words.index(name) + 1])
of = dict(w.split("=", 1) for w in words if "=" in w)
with open(os.environ["CALLS"], "a") as calls:
    print(" ".join([words[0], of.get("run.name", ""), of.get("run.seed", ""), of.get("hf.quantize", "")]), file=calls)
if words[0] == "data":
    value("--out").mkdir()
    for name in ("val.jsonl", "tokenizer.json", "tokenizer_config.json", "config.json"):
        (value("--out") / name).write_text("x")
    (value("--out") / "train.jsonl").write_text("".join(str(i) + chr(10) for i in range(int(value("--train").name) * 4)))
elif words[0] == "export":
    value("--out").mkdir()
    (value("--out") / "config.json").write_text("x")
elif words[0] == "eval":
    value("--report").mkdir(parents=True)
    share = float(os.environ["E4M3"]) if "e4m3" in value("--report").name else 0.5
    (value("--report") / "eval.json").write_text(json.dumps(dict(answers=dict([("pass@1", dict(mean=share))]))))
"""

    def start(self, share):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="hrm_lora8_test_")))
        program = folder / "hrm_train"
        program.write_text(self.STAND_IN.format(python=sys.executable))
        program.chmod(0o755)
        done = None
        for _ in range(2):  # the second time it only reads
            done = subprocess.run([sys.executable, "-B", ROOT / "scripts/bench/lora8_accuracy.py", "--binary", program, "--out",
                                   folder / "out", "--seeds", "2"], capture_output=True, text=True, timeout=60,
                                  env={"PATH": "/usr/bin:/bin", "CALLS": str(folder / "calls"), "E4M3": share})
        return done, (folder / "calls").read_text().splitlines(), folder / "out"

    def test_arms_of_equal_seeds_inside_and_outside(self):
        done, calls, out = self.start("0.505")
        self.assertEqual(done.returncode, 0, done.stderr)
        trained = [call.split()[1:] for call in calls if call.startswith("train")]
        self.assertEqual(trained, [[f"base_{seed}_run", seed] if arm is None else [f"{arm}_{seed}", seed, quantize]
                                   for seed in "01" for arm, quantize in ((None, ""), ("bf16", "none"), ("e4m3", "fp8"))])
        self.assertEqual(len(out.joinpath("tuned/train.jsonl").read_text().splitlines()), 300 * 4)
        # 1,000 of 2,000: 0.5 +- 0.0219.
        self.assertIn("| bf16 | 1,000 of 2,000 | 50.0 % | 47.8 to 52.2 % |", done.stdout)
        self.assertIn("| e4m3 | 1,010 of 2,000 | 50.5 % |", done.stdout)
        self.assertIn("pass@1 of e4m3 is inside of", done.stdout)
        done, _, _ = self.start("0.53")
        self.assertEqual(done.returncode, 1)
        self.assertIn("pass@1 of e4m3 is outside of", done.stdout)


class PolychromicQuality(unittest.TestCase):
    """With a stand-in for hrm_train that writes what the script reads and keeps a list of its calls."""

    STAND_IN = """#!/usr/bin/env python3
import json, os, pathlib, sys
words = sys.argv[1:]
value = lambda name: pathlib.Path(words[words.index(name) + 1])
of = {w.split("=", 1)[0]: w.split("=", 1)[1] for w in words if "=" in w}
with open(os.environ["CALLS"], "a") as calls:
    print(" ".join([words[0], of.get("run.name", "")]), file=calls)
if os.environ.get("FAIL") == of.get("run.name"):
    sys.exit("error: no room")
if words[0] == "data":
    value("--out").mkdir()
    for name in ("val.jsonl", "tokenizer.json", "tokenizer_config.json", "config.json"):
        (value("--out") / name).write_text("{}")
    (value("--out") / "train.jsonl").write_text("".join(f"{i}\\n" for i in range(int(value("--train").name) * 4)))
elif words[0] == "train":
    folder = pathlib.Path(of["run.dir"], of["run.name"])
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1}\\n{"train/reward": 0.25}\\n{"train/reward": 0.5}\\n')
elif words[0] == "export":
    value("--out").mkdir()
    (value("--out") / "config.json").write_text("{}")
elif words[0] == "eval":
    value("--report").mkdir(parents=True)
    loss = 1.02 if "ours" in str(value("--report")) else 1.0
    (value("--report") / "eval.json").write_text(json.dumps(dict(loss=loss)))
elif words[0] == "report":
    (value("--out") / "report.md").write_text("| metric | a |\\n|---|---|\\n| pass@10 | 0.5 |\\n| rouge_l | 1 |\\n")
"""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.program = self.folder / "stand_in"
        self.program.write_text(self.STAND_IN.replace("\\\\", "\\"))
        self.program.chmod(0o755)

    def start(self, *more, fail=""):
        calls = self.folder / "calls"
        calls.write_text("")
        done = subprocess.run([sys.executable, "-B", str(ROOT / "scripts/bench/polychromic_quality.py"), "--out",
                               str(self.folder / "out"), "--binary", str(self.program), "--seeds", "2", *more],
                              capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "CALLS": str(calls), "FAIL": fail})
        return done, calls.read_text().split("\n")[:-1]

    def test_goes_on_where_it_was_and_compares_all_seeds(self):
        done, calls = self.start("--arms", "cross-entropy,ours,grpo", fail="ours_1")
        self.assertEqual(done.returncode, 4)
        self.assertIn("error: 'hrm_train train' ended with code 1", done.stderr)
        self.assertIn("no room", done.stderr.splitlines()[-1])
        self.assertIn("train ours_0", calls)
        done, calls = self.start("--arms", "cross-entropy,ours,grpo")
        self.assertEqual(done.returncode, 0, done.stderr)
        trained = [call for call in calls if call.startswith("train ")]
        self.assertEqual(trained, ["train ours_1", "train grpo_1"], "nothing is done twice")
        summary = json.loads((self.folder / "out/summary.json").read_text())
        self.assertEqual(summary["loss_change_percent"], {"cross-entropy": 0, "ours": 2.0, "grpo": 0})
        self.assertEqual(summary["grpo_reward_first_and_last_window"], [[0.25, 0.5]] * 2)
        self.assertIn("| pass@10 | 0.5 |", done.stdout)
        self.assertNotIn("rouge_l", done.stdout)
        lines = [len((self.folder / "out" / part / "train.jsonl").read_text().split()) for part in ("base", "tuned")]
        self.assertEqual(lines, [12000, 1200])

    def test_wrong_arguments(self):
        done, calls = self.start("--arms", "ours,other")
        self.assertEqual((done.returncode, calls), (2, []))
        self.assertIn("'other' is none of", done.stderr)


class WrongInput(unittest.TestCase):
    """One sentence and an exit code, before anything is measured."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        (self.dir / "HRM/models").mkdir(parents=True)

    def refused(self, script, code, part, *arguments):
        done = subprocess.run([sys.executable, "-B", ROOT / "scripts/bench" / script, *map(str, arguments)],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (code, 1), done.stderr)
        self.assertTrue(done.stderr.startswith("error: ") and part in done.stderr, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_compare_official(self):
        script, hrm = "compare_official.py", ("--hrm", self.dir / "HRM", "--work", "hrm64")
        self.refused(script, 2, "hrm384 needs --hrm")
        self.refused(script, 4, "holds no folder 'models'", "--hrm", self.dir, "--work", "hrm64")
        self.refused(script, 2, "no work 'hrm65'", "--work", "hrm65")
        self.refused(script, 2, "no mode 'best'", *hrm, "--modes", "best")
        self.refused(script, 2, "no mode 'best'", "--hrm", self.dir / "HRM", "--work", "hrm64:best")
        self.refused(script, 2, "no variant 'fp9'", *hrm, "--variants", "fp9")
        self.refused(script, 2, "'0' is not a whole number of at least 1", *hrm, "--rounds", "0")
        self.refused(script, 3, "'/no/hrm_train' is no program", *hrm, "--binary", "/no/hrm_train")
        self.refused(script, 3, "cannot write", *hrm, "--out", self.dir / "no/x.json")
        self.refused(script, 2, "--report needs --out", "--report")
        file = self.dir / "r.json"
        for text, part in (("", "not what this script"), ('[{"work": 1}]', "not what"), ("[]", "no results")):
            file.write_text(text)
            self.refused(script, 4, part, "--report", "--out", file)

    def test_compare_lm(self):
        script = "compare_lm.py"
        self.refused(script, 2, "no work 'lm'", "--work", "lm")
        self.refused(script, 2, "nothing is called 'best'", "--peers", "default,best")
        self.refused(script, 3, "'/no/hrm_train' is no program", "--binary", "/no/hrm_train")
        self.refused(script, 3, "cannot write", "--out", self.dir / "no/x.json")

    def test_compare_causal(self):
        script = "compare_causal.py"
        self.refused(script, 2, "no work 'sft'", "--work", "lora,sft")
        self.refused(script, 2, "no mode 'best'", "--modes", "default,best")
        self.refused(script, 2, "no mode 'default/best'", "--modes", "default,default/best")
        self.refused(script, 2, "'0' is not a whole number of at least 1", "--rounds", "0")
        self.refused(script, 2, "'0' is not a whole number of at least 1", "--steps", "0")
        self.refused(script, 3, "'/no/hrm_train' is no program", "--binary", "/no/hrm_train")
        self.refused(script, 3, "cannot write", "--out", self.dir / "no/x.json")

    def test_causal_reference(self):
        script, model = "causal_reference.py", ("--model", self.dir)
        self.refused(script, 2, "no mode 'static' of lora", *model, "--work", "lora", "--mode", "static")
        self.refused(script, 2, "no mode 'static+fp32' of generate", *model, "--work", "generate", "--mode",
                     "static+fp32")
        self.refused(script, 2, "no mode 'default' of step", *model, "--work", "step", "--mode", "default")
        self.refused(script, 2, "step needs --rows-file", *model, "--work", "step", "--mode", "eager/dynamic")

    def test_compare_ranks(self):
        script, hrm = "compare_ranks.py", ("--hrm", self.dir / "HRM")
        self.refused(script, 2, "give --hrm")
        self.refused(script, 4, "holds no folder 'models'", "--hrm", self.dir)
        self.refused(script, 2, "no mode 'best'", *hrm, "--modes", "best:loop")
        self.refused(script, 2, "no way of summing (MODE:DDP) ''", *hrm, "--modes", "default")
        self.refused(script, 2, "no variant 'fp16 sums'", *hrm, "--variants", "fp16 sums")
        self.refused(script, 2, "no work 'strange'", *hrm, "--work", "strange")
        self.refused(script, 2, "not a list of whole numbers", *hrm, "--ranks", "1,two")
        self.refused(script, 2, "not a list of whole numbers", *hrm, "--ranks", "0,1")
        self.refused(script, 2, "cannot be split among 3 ranks", *hrm, "--ranks", "3", "--batch", "8")
        self.refused(script, 3, "'/no/hrm_train' is no program", *hrm, "--binary", "/no/hrm_train")
        self.refused(script, 3, "cannot write", *hrm, "--out", self.dir / "no/x.json")
        self.refused(script, 2, "--report needs --out", "--report")
        file = self.dir / "r.json"
        of_one_gpu = json.dumps([official("default", 4)])  # compare_official.py's
        for text, part in (("", "not what this script"), (of_one_gpu, "not what"), ("[]", "no results")):
            file.write_text(text)
            self.refused(script, 4, part, "--report", "--out", file)
        file.write_text(json.dumps(RankTables.ONE + RankTables.WEAK))
        done = subprocess.run([sys.executable, "-B", ROOT / "scripts/bench" / script, "--report", "--out", file],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("**1.56**", done.stdout)

    def test_compare_cpu(self):
        self.refused("compare_cpu.py", 2, "trm_att needs --trm", "--hrm", self.dir / "HRM")
        self.refused("compare_cpu.py", 2, "--threads", "--threads", "0")
        self.refused("compare_cpu.py", 2, "unrecognized", "--therads", "2")

    def test_lm_quality(self):
        script = "lm_quality.py"
        self.refused(script, 2, "no run 'nothing'", "--which", "decoder,nothing", "--binary", "/bin/true")
        self.refused(script, 3, "'/no/hrm_train' is no program", "--binary", "/no/hrm_train")
        self.refused(script, 3, "cannot write", "--binary", "/bin/true", "--out", self.dir / "no/x.json")

    def test_fp8_quality(self):
        script = "fp8_quality.py"
        self.refused(script, 2, "no work 'nothing'", "--which", "decoder,nothing", "--binary", "/bin/true")
        self.refused(script, 3, "'/no/hrm_train' is no program", "--binary", "/no/hrm_train")
        self.refused(script, 3, "cannot write", "--binary", "/bin/true", "--out", self.dir / "no/x.md")
        self.refused(script, 4, "there is no folder", "--binary", "/bin/true", "--data", self.dir / "no")
        self.refused(script, 2, "above 0", "--minutes", "0")

    def test_lora8_accuracy(self):
        script = "lora8_accuracy.py"
        self.refused(script, 3, "'/no/hrm_train' is no program", "--binary", "/no/hrm_train", "--out", self.dir / "x")
        self.refused(script, 2, "at least 1", "--seeds", "0", "--out", self.dir / "x")

    def test_save_cost(self):
        script = "save_cost.py"
        self.refused(script, 2, "at least 40", "--every", "1")
        self.refused(script, 2, "at least 1", "--rounds", "0")
        self.refused(script, 2, "unrecognized", "--evry", "50")
        self.refused(script, 3, "is no program", "--binary", "/no/hrm_train")
        self.refused(script, 3, "cannot write", "--binary", sys.executable, "--out", self.dir / "no/x.json")
        self.refused(script, 3, "No such file", "--binary", sys.executable, "--folder", self.dir / "no")

    def test_time_to_accuracy(self):
        script, ours = "time_to_accuracy.py", ("--dir", self.dir / "tta", "--sides", "ours")
        self.refused(script, 2, "--dir")
        self.refused(script, 2, "needs --checkout", "--dir", self.dir)
        self.refused(script, 2, "whole numbers", *ours, "--seeds", "a")
        self.refused(script, 2, "no time for training", *ours, "--minutes", "0.1")
        self.refused(script, 2, "--picture needs --report", *ours, "--picture", "x.svg")
        self.refused(script, 2, "a name of its own", "--dir", self.dir, "--sides", "ours,ours")
        self.refused(script, 3, "is no program", *ours, "--binary", "/no/hrm_train")
        self.refused(script, 4, "no.csv does not exist", *ours, "--train", "no.csv")
        self.refused(script, 2, "no recipe for --grid maze; give hrm or trm_att", *ours, "--grid", "maze", "--model", "trm_mlp")
        self.refused(script, 4, "hrm_train data maze", *ours, "--grid", "maze", "--test", "configs")
        self.refused(script, 4, "holds no results", "--dir", self.dir, "--report")
        (self.dir / "ours_seed0.jsonl").write_text('{"step": 1}\n{\n')
        self.refused(script, 4, "line 2", "--dir", self.dir, "--report")


class BusyCpu(unittest.TestCase):
    """scripts/bench/busy_cpu with a stand-in for hrm_train that takes longer the more busy processes there are."""

    PROGRAM = """#!{python}
import json, pathlib, subprocess, sys
words = sys.argv
busy = sum("while True: pass" in pathlib.Path(p, "cmdline").read_text(errors="replace").split(chr(0))
           for p in pathlib.Path("/proc").glob("[0-9]*") if pathlib.Path(p, "stat").exists()
           and pathlib.Path(p, "stat").read_text().rsplit(")", 1)[1].split()[1] == "{parent}")
if "bad=1" in words:
    sys.exit("error: there is no key 'bad'")
json.dump(dict(step_ms=dict(mean=10.0 * (1 + busy))), open(words[words.index("--json") + 1], "w"))
"""

    def run_script(self, *arguments):
        with tempfile.TemporaryDirectory(prefix="hrm_busy_test_") as folder:
            program = pathlib.Path(folder, "hrm_train")
            done = subprocess.Popen(["/bin/sh", "-c", 'read go; exec "$@"', "sh", sys.executable,
                                     ROOT / "scripts/bench/busy_cpu", "--binary", program, *arguments],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            program.write_text(self.PROGRAM.format(python=sys.executable, parent=done.pid))
            program.chmod(0o755)
            out, err = done.communicate("go\n", timeout=60)
            return done.returncode, out, err

    def test_shares(self):
        code, out, err = self.run_script("--busy", "0,1,3", "--turns", "2")
        self.assertEqual(code, 0, err)
        for row in ("| 0 | 10.0 (10.0 to 10.0) | 100 % |", "| 1 | 20.0 (20.0 to 20.0) | 50 % |",
                    "| 3 | 40.0 (40.0 to 40.0) | 25 % |"):
            self.assertIn(row, out)

    def test_failures(self):
        code, _, err = self.run_script("bad=1")
        self.assertEqual((code, err), (1, "error: there is no key 'bad'\n"))
        code, _, err = self.run_script("--busy", "one")
        self.assertEqual((code, err.count("\n")), (2, 1))


if __name__ == "__main__":
    unittest.main()
