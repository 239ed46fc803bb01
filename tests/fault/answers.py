#!/usr/bin/env python3
"""A language model that learns from its own answers: killed in between, and watched for memory.

    tests/fault/answers.py --binary build/bin/hrm_train [--long] [--work DIR] [--minutes M] [--steps 500]

objective   cross-entropy and the diversity of sampled answers: killed twice, ends as one that never was
grpo        cross-entropy, then GRPO with two updates from each batch of answers: killed between the two
adapter     the same beside a frozen model, with dropout, a KL term and 2 ranks, whose longest answers differ
memory      GRPO alone, for --steps (--long; else 150): after its first third memory does not grow by 1 %
half        the same, killed in the middle (--long): ends as the one before

Memory is resident memory, or what tensors and the allocator take (perf/memory_*) with runtime.device=cuda behind all.
"""
import json
import os
import time

from fault import ROOT, Campaign, Run, anonymous_bytes, check, metrics, same_end, tidy

SMALL = ["chat.val_share=0.05", "train.global_batch_size=4", "train.micro_batch_size=2", "train.log_every=1",
         "train.keep_checkpoints=2", "train.checkpoint_every=4", "train.eval_every=0", "train.async_checkpoints=false",
         "optim.warmup_steps=5",
         "runtime.device=cpu", "runtime.threads=1", "parallel.timeout_s=60", "parallel.meet_timeout_s=60"]
DIVERSE = ["polychromic.n_generations=3", "polychromic.max_generation_length=8"]
REWARDED = ["grpo.num_generations=4", "grpo.max_completion_length=8", "grpo.rewards=answer*2,diversity,length"]
GRPO = [*DIVERSE, *REWARDED, "grpo.start_step=6", "grpo.num_iterations=2"]
ADAPTER = ["lora.r=4", "lora.dropout=0.1", "grpo.beta=0.04", "grpo.max_completion_length=40", "chat.buckets=64",
           "train.checkpoint_every=1"]
# glibc moves this threshold by itself, after which freed blocks of some MiB stay resident or not as it happens.
FIXED = {"MALLOC_MMAP_THRESHOLD_": "131072"}
ALONE = [*REWARDED, "polychromic.objective=none", "grpo.start_step=1", "train.checkpoint_every=50"]


def main():
    campaign = Campaign(__doc__, steps=500)
    steps = campaign.args.steps if campaign.long else 150
    on_gpu = "runtime.device=cuda" in campaign.args.overrides
    data = campaign.work / "data"
    facts = campaign.state.setdefault("facts", {})
    campaign.settings = [f"hf.model={data}", f"data.train={data}", *SMALL]
    config = ["--config", str(ROOT / "configs/polychromic/answers_cpu.json")]

    def start(folder, more, ranks=1, fail="", environment=None):
        return Run(campaign, folder, more, ranks, fail, environment, arguments=config)

    def straight(name, more, ranks=1):
        folder = campaign.work / f"straight_{name}"
        if not (folder / "done").exists():
            folder = campaign.folder(f"straight_{name}")
            start(folder, more, ranks).ended()
            (folder / "done").touch()
        return folder

    def killed_at(name, more, at, ranks=1):
        undisturbed, folder, resumed = straight(name, more, ranks), campaign.folder(name), []
        for step in [*at, 0]:
            run = start(folder, more, ranks, fail=f"step.begin:{step}:kill" if step else "")
            if step:
                check(-9 in run.wait(), f"{folder}: was not killed at step {step}\n{run.said()}")
            else:
                run.ended()
            resumed.append(run.resumed_at())
        check(resumed[-1] > 0, f"{folder}: began anew\n{run.said()}")
        same_end(undisturbed, folder)
        tidy(folder)
        return len(at)

    def learned(folder, key):
        lines = metrics(folder)
        check(any(key in line for line in lines), f"{folder}: no step logged {key}")

    def objective():
        number = killed_at("objective", ["train.steps=12", *DIVERSE], [6, 3])
        learned(campaign.work / "objective", "train/diversity_loss")
        return number

    def grpo():
        # Step 7 is the first of the two that learn from the answers of step 7; a checkpoint is written in between.
        more = ["train.steps=14", "train.checkpoint_every=1", *GRPO]
        number = killed_at("grpo", more, [8, 2])
        learned(campaign.work / "grpo", "train/reward_updates")
        return number

    def adapter():
        number = killed_at("adapter", ["train.steps=16", *GRPO, *ADAPTER], [9, 5], ranks=2)
        learned(campaign.work / "adapter", "train/kl")
        return number

    def memory():
        folder = campaign.folder("straight_memory")
        run, samples = start(folder, [f"train.steps={steps}", *ALONE], environment=FIXED), []
        log = folder / "run" / "metrics.jsonl"
        while run.alive():
            time.sleep(0.05)
            try:
                done = log.read_bytes().count(b"\n")
                samples.append((done, anonymous_bytes(run.processes[0].pid)))
            except (FileNotFoundError, IndexError, ValueError):
                pass  # not begun, or just ended
        run.ended()
        (folder / "done").touch()
        if on_gpu:
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            samples = [(line["step"], line["perf/memory_reserved_bytes"]) for line in lines]
        # The last samples of a process that ends are of what it still has.
        early = [size for step, size in samples if steps / 3 <= step < steps / 2]
        late = [size for step, size in samples if steps * 5 / 6 <= step < steps]
        check(len(early) >= 5 and len(late) >= 5, f"{folder}: only {len(early)} and {len(late)} samples of memory")
        # What comes and goes within a step is not what is kept.
        grown = min(late) / min(early) - 1
        facts["memory"] = f"{min(late) / 2**20:.0f} MiB {grown:+.2%}"
        check(grown <= 0.01, f"{folder}: memory grew by {grown:.1%} from step {steps // 3} to {steps}")
        learned(folder, "train/reward")
        return steps

    def half():
        return killed_at("memory", [f"train.steps={steps}", *ALONE], [steps // 2 + 7])

    data.mkdir(exist_ok=True)
    if not (data / "train.jsonl").exists():
        done = os.spawnl(os.P_WAIT, campaign.binary, campaign.binary, "data", "answers", "--train", "200", "--validation",
                         "16", "--test", "16", "--out", str(data))
        check(done == 0, f"'hrm_train data answers' ended with {done}")
    cases = [("objective", objective), ("grpo", grpo)]
    cases += [("adapter", adapter), ("memory", memory)]
    cases += [("half", half)] if campaign.long else []
    campaign.run(cases, lambda _, count: f"a model that learns from its own answers, killed; its memory over {steps} steps of GRPO, "
                 f"`answers.py` | {count} cases | ends bit-identical; {facts.get('memory', 'memory not reached')} ")


if __name__ == "__main__":
    main()
