// hrm_train bench, hrm_train plan.
#include <memory>

#include "commands/line/command_line_parts.h"
#include "hrm/commands/commands.h"

namespace hrm {
namespace {

// A size of what a benchmark times.
void add_size(CLI::App& sub, const char* name, int64_t& value, const char* what) {
  sub.add_option(name, value, what)->type_name("N")->capture_default_str()->check(CLI::Range(1, 1 << 20));
}

void add_precision(CLI::App& sub, std::string& precision) {
  sub.add_option("--precision", precision, "arithmetic, as precision.compute; auto = bf16 on a GPU and fp32 on a CPU")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "bf16", "fp16", "tf32", "fp32"}));
}

void add_bench_step(CLI::App& bench, Action& action) {
  CLI::App* sub =
      bench.add_subcommand("step", "time the training step of a configuration and show where its time goes");
  auto o = std::make_shared<commands::BenchStepOptions>();
  add_config_files(*sub, o->config_files);
  add_overrides(*sub, o->overrides);
  sub->add_option("--steps", o->steps, "number of timed steps")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 100000));
  sub->add_option("--warmup", o->warmup, "steps before them that are not timed")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 100000));
  sub->add_option("--settle", o->settle,
                  "then run untimed steps for this long, so that clocks settle under load. With fp8 recursions, "
                  "--warmup must exceed precision.fp8_warmup_steps")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 600.0));
  sub->add_option("--profile-steps", o->profile_steps, "steps recorded afterwards for the table; 0 = no table")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 100));
  sub->add_flag("--memory", o->memory,
                "also list what takes most GPU memory at the peak, by phase and operation. Recording slows only the "
                "warm-up");
  CLI::Option* ranks =
      sub->add_option("--ranks", o->ranks,
                      "measure one of N ranks on this one device, without the others: its memory, and its time without "
                      "exchanges. Nothing is sent, so its losses mean nothing")
          ->type_name("N")
          ->check(CLI::Range(2, 1 << 20));
  sub->add_option("--rank", o->rank, "with --ranks: which one")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20))
      ->needs(ranks);
  add_json_out(*sub, o->json_out);
  sub->footer(
      "examples: hrm_train bench step --config configs/puzzle/hrm_sudoku17.json train.global_batch_size=768\n"
      "          hrm_train bench step --config configs/language/text_decoder.json --ranks 8 parallel.zero=3");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return commands::run_bench_step(*o);
    };
  });
}

void add_bench_graphs(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand(
      "graphs", "list what a configuration captures in CUDA graphs, and time steps with and without them");
  auto o = std::make_shared<commands::BenchGraphsOptions>();
  add_config_files(*sub, o->config_files);
  add_overrides(*sub, o->overrides);
  sub->add_option("--batches", o->batches, "values of train.global_batch_size; by default the configuration's")
      ->type_name("N,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1 << 20));
  sub->add_option("--repeats", o->repeats, "steps in one graph, all on the same batch")
      ->type_name("N,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  add_size(*sub, "--steps", o->steps, "timed steps of each case");
  add_size(*sub, "--warmup", o->warmup, "steps before them that are not timed");
  sub->add_option("--settle", o->settle, "then run untimed steps for this long, so that clocks settle under load")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 600.0));
  add_json_out(*sub, o->json_out);
  sub->footer("example: hrm_train bench graphs --config configs/puzzle/hrm_sudoku17.json --batches 64,128,384");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return commands::run_bench_graphs(*o);
    };
  });
}

void add_bench_eval(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("eval", "time an evaluation of a configuration's test data");
  auto o = std::make_shared<commands::BenchEvalOptions>();
  add_config_files(*sub, o->config_files);
  add_overrides(*sub, o->overrides);
  sub->add_option("--passes", o->passes, "timed evaluations, after an untimed one")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  sub->add_option("--profile-passes", o->profile_passes, "evaluations recorded afterwards for the table; 0 = no table")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 100));
  add_json_out(*sub, o->json_out);
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return commands::run_bench_eval(*o);
    };
  });
}

void add_bench_ops(CLI::App& bench, Action& action) {
  CLI::App* sub =
      bench.add_subcommand("ops", "time each of our ops in the shapes of the recipes, compared with plain ATen");
  auto o = std::make_shared<commands::BenchOpsOptions>();
  sub->add_option("--filter", o->filter,
                  "only rows whose op and recipe match this regular expression, e.g. 'swiglu.*384'")
      ->type_name("REGEX");
  add_device(*sub, o->device);
  add_precision(*sub, o->precision);
  add_json_out(*sub, o->json_out);
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return commands::run_bench_ops(*o);
    };
  });
}

void add_bench_fp8(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand(
      "fp8", "time the products and the training step of plain decoders in bf16 and in 8 bits, by width");
  auto o = std::make_shared<commands::BenchFp8Options>();
  sub->add_option("--widths", o->widths, "widths of the decoders (lm.hidden_size), each a multiple of 16")
      ->type_name("N,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str()
      ->check(CLI::Range(16, 1 << 16));
  const auto add = [&](const char* name, int64_t& value, const char* what) { add_size(*sub, name, value, what); };
  add("--steps", o->steps, "timed steps of each decoder and precision");
  add("--warmup", o->warmup, "steps before them that are not timed");
  sub->add_option("--settle", o->settle, "then run untimed steps for this long, so that clocks settle under load")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 600.0));
  add_overrides(*sub, o->overrides);
  add_json_out(*sub, o->json_out);
  sub->footer(
      "examples: hrm_train bench fp8 --widths 1024,2048 precision.fp8_scaling=current\n"
      "          hrm_train bench fp8 --widths 64 --steps 2 runtime.device=cpu lm.layers=1 data.decoder_len=32");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return commands::run_bench_fp8(*o);
    };
  });
}

void add_bench_moe(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("moe", "time a mixture-of-experts layer, forward and backward, and its parts");
  auto o = std::make_shared<commands::BenchMoeOptions>();
  const auto add = [&](const char* name, int64_t& value, const char* what) { add_size(*sub, name, value, what); };
  add("--tokens", o->tokens, "tokens in a batch");
  add("--dim", o->dim, "width of the model");
  add("--width", o->width, "inner width of an expert");
  add("--experts", o->experts, "number of experts");
  add("--top-k", o->top_k, "experts per token");
  sub->add_option("--activation", o->activation, "what an expert is, as moe.activation")
      ->capture_default_str()
      ->check(CLI::IsMember({"gelu", "swiglu"}));
  add_device(*sub, o->device);
  add_precision(*sub, o->precision);
  add_json_out(*sub, o->json_out);
  sub->footer("example: hrm_train bench moe --dim 512 --width 2048 --experts 32 --top-k 2");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return commands::run_bench_moe(*o);
    };
  });
}

void add_bench_scan(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("scan", "time the recurrence of Mamba2, forward and backward");
  auto o = std::make_shared<commands::BenchScanOptions>();
  const auto add = [&](const char* name, int64_t& value, const char* what) { add_size(*sub, name, value, what); };
  add("--rows", o->rows, "rows in a batch");
  add("--length", o->length, "positions in a row");
  add("--heads", o->heads, "number of heads");
  add("--head-dim", o->head_dim, "channels per head");
  add("--groups", o->groups, "groups of heads that share B and C");
  add("--state", o->state, "state size of a channel");
  add("--chunk", o->chunk, "positions in a chunk of the ATen version");
  add_device(*sub, o->device);
  add_json_out(*sub, o->json_out);
  sub->footer("example: hrm_train bench scan --rows 16 --length 1024");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return commands::run_bench_scan(*o);
    };
  });
}

void add_bench_contrastive(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand(
      "contrastive",
      "compare the gradient of task=contrastive with backprop's, over the nudge and the number of steps");
  auto o = std::make_shared<commands::BenchContrastiveOptions>();
  add_config_files(*sub, o->config_files);
  add_overrides(*sub, o->overrides);
  sub->add_option("--checkpoint", o->checkpoint, "run folder or checkpoint folder to use instead of initial weights")
      ->type_name("PATH")
      ->check(not_empty);
  add_size(*sub, "--rows", o->rows, "training rows in the batch, at most as many as there are");
  sub->add_flag("--float64", o->float64, "compute in double precision, on the CPU");
  add_json_out(*sub, o->json_out);
  sub->footer("example: hrm_train bench contrastive --config configs/contrastive/digits_cpu.json --float64");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return commands::run_bench_contrastive(*o);
    };
  });
}

void add_bench_comm(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("comm", "time collective operations between the ranks of a launcher");
  auto o = std::make_shared<commands::BenchCommOptions>();
  sub->add_option("--device", o->device, "auto = GPUs with NCCL if usable ones are present; cpu = CPUs with Gloo")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  sub->add_option("--allocator", o->allocator, "how GPU memory is allocated, as runtime.allocator says")
      ->capture_default_str()
      ->check(CLI::IsMember({"expandable", "native"}));
  sub->add_option("--ops", o->ops, "which operations; 'plan --bandwidths' needs all-reduce")
      ->capture_default_str()
      ->check(CLI::IsMember({"all-reduce", "reduce-scatter", "all-gather", "all-to-all", "send-receive", "all"}));
  sub->add_flag("--urgent", o->urgent, "on a GPU: before compute kernels that could start, as tensor parallelism does");
  sub->add_flag("--beside", o->beside, "also time an all-gather at the same time as matrix products");
  sub->add_option("--leave", o->leave,
                  "with --beside: multiprocessors that this program's persistent kernels leave free")
      ->capture_default_str()
      ->check(CLI::Range(0, 64));
  sub->add_option("--max-mb", o->max_mb, "largest tensor; sizes start at 8 bytes")
      ->capture_default_str()
      ->type_name("MIB")
      ->check(CLI::Range(1, 4096));
  sub->add_option("--meet-timeout", o->meet_timeout_s, "time to wait for all ranks")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(1.0, 86400.0));
  add_json_out(*sub, o->json_out);
  sub->footer("example: torchrun --no-python --nproc-per-node=8 hrm_train bench comm --json node.json");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return commands::run_bench_comm(*o);
    };
  });
}

void add_bench_tokenizer(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("tokenizer", "time a tokenizer that turns text into ids on the CPU");
  auto o = std::make_shared<commands::BenchTokenizerOptions>();
  sub->add_option("--tokenizer", o->tokenizer, "tokenizer.json, or the folder that holds it")
      ->type_name("FILE")
      ->required()
      ->check(not_empty);
  sub->add_option("--text", o->text, "UTF-8 text, which is cut at line ends into documents of 64 KiB")
      ->type_name("FILE")
      ->required()
      ->check(not_empty);
  sub->add_option("--threads", o->threads, "number of threads, each with documents of its own")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  sub->add_option("--passes", o->passes, "timed passes over the text, after an untimed one")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  add_json_out(*sub, o->json_out);
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return commands::run_bench_tokenizer(*o);
    };
  });
}

void add_bench_generate(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("generate", "time text generation in tokens per second");
  auto o = std::make_shared<commands::BenchGenerateOptions>();
  add_config_files(*sub, o->config_files);
  add_overrides(*sub, o->overrides);
  sub->add_option("--checkpoint", o->checkpoint,
                  "run folder or checkpoint folder, or a folder that transformers or PEFT saved, instead of a "
                  "configuration")
      ->type_name("PATH")
      ->check(not_empty);
  sub->add_option("--rows", o->rows, "rows in a batch; several numbers are timed one after the other")
      ->type_name("N,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  const auto add = [&](const char* name, int64_t& value, const char* what) { add_size(*sub, name, value, what); };
  add("--prompt", o->prompt, "tokens in each prompt");
  add("--new", o->new_tokens, "new tokens per row");
  sub->add_option("--vocab-size", o->vocab_size, "vocabulary of a language model with random weights (default: 32000)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  add("--passes", o->passes, "timed passes, after two untimed ones");
  add_sampling(*sub, o->temperature, o->top_k, o->top_p);
  add_json_out(*sub, o->json_out);
  sub->footer(
      "examples: hrm_train bench generate --rows 1,64 lm.arch=decoder lm.layers=12 lm.hidden_size=768\n"
      "          hrm_train bench generate --rows 16 --checkpoint models/Qwen3-0.6B\n"
      "          hrm_train bench generate task=polychromic hf.model=models/Qwen3-0.6B hf.weights=random\n"
      "          torchrun --no-python --nproc-per-node=2 hrm_train bench generate lm.arch=decoder parallel.tensor=2");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return commands::run_bench_generate(*o);
    };
  });
}

// What is asked of `plan` for several ranks.
void add_plan_ranks(CLI::App& sub, commands::PlanOptions& o) {
  CLI::Option* ranks =
      sub.add_option("--ranks", o.ranks,
                     "plan trainings with this many ranks, one GPU each, e.g. 8,64,1024, on the mesh that "
                     "parallel.tensor and parallel.zero make of them")
          ->type_name("N,...")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->check(CLI::Range(1, 1 << 20));
  sub.add_flag("--weak", o.weak,
               "with --ranks: train.global_batch_size is the batch of each rank, or of each group of parallel.tensor "
               "ranks (default: of all together)")
      ->needs(ranks);
  sub.add_flag("--best", o.best,
               "with --ranks: try the meshes of that many ranks: parallel.tensor in all divisors, parallel.zero from 0 "
               "to 3, parallel.replicas 1 or groups within a node; list the ten fastest that fit")
      ->needs(ranks);
  sub.add_option("--ranks-per-node", o.ranks_per_node, "with --ranks: GPUs per node")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20))
      ->needs(ranks);
  sub.add_option("--bandwidths", o.bandwidths,
                 "with --ranks: result of 'bench comm --json' on one node, or with one rank per node for the network; "
                 "may be repeated for both")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->check(not_empty)
      ->needs(ranks);
  const auto rate = [&](const char* name, double& value, const char* what) {
    sub.add_option(name, value, what)->type_name("GB/S")->check(CLI::Range(1e-3, 1e6))->needs(ranks);
  };
  rate("--link-gbs", o.link_gbs,
       "with --ranks: bus bandwidth between GPUs of a node, in 1e9 bytes per second (default: data sheet)");
  rate("--network-gbs", o.network_gbs, "with --ranks: the same between nodes (default: 50, one 400 Gbit/s adapter)");
  const auto hop = [&](const char* name, double& value, const char* what) {
    sub.add_option(name, value, what)->type_name("US")->check(CLI::Range(1e-3, 1e6))->needs(ranks);
  };
  hop("--hop-us", o.hop_us,
      "with --ranks: latency of an empty message to the next GPU of a node, in microseconds (default: as NCCL "
      "assumes)");
  hop("--network-hop-us", o.network_hop_us, "with --ranks: the same to another node");
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand(
      "bench",
      "measure the speed of steps, ops, 8-bit products, evaluations, all-reduce, tokenizers and generation, and the "
      "error of contrastive gradients");
  sub->require_subcommand(1);
  add_bench_step(*sub, action);
  add_bench_graphs(*sub, action);
  add_bench_ops(*sub, action);
  add_bench_fp8(*sub, action);
  add_bench_moe(*sub, action);
  add_bench_scan(*sub, action);
  add_bench_contrastive(*sub, action);
  add_bench_eval(*sub, action);
  add_bench_comm(*sub, action);
  add_bench_tokenizer(*sub, action);
  add_bench_generate(*sub, action);
}

void add_plan(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("plan", "estimate memory and time of a configuration before a run, without a GPU");
  auto o = std::make_shared<commands::PlanOptions>();
  add_config_files(*sub, o->config_files);
  add_overrides(*sub, o->overrides);
  sub->add_option("--gpu", o->gpu,
                  "GPU to plan for, e.g. H200, A100, 'RTX 4090' (default: this machine's GPU, or H200)")
      ->type_name("NAME")
      ->check(not_empty);
  sub->add_option("--seq-len", o->seq_len,
                  "if the data do not exist yet: cells of a puzzle (with --vocab-size), or tokens of a prompt that "
                  "task polychromic answers")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  sub->add_option("--vocab-size", o->vocab_size,
                  "vocabulary of those data (Sudoku 11, mazes 6); task language needs only this")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  add_plan_ranks(*sub, *o);
  add_json_out(*sub, o->json_out);
  sub->footer(
      "examples: hrm_train plan --config configs/puzzle/trm_att_sudoku17.json --gpu A100\n"
      "          hrm_train plan --config configs/language/code_hrm.json --vocab-size 8192\n"
      "          hrm_train plan task=polychromic hf.model=models/Qwen3-8B lora.r=16 polychromic.objective=none\n"
      "          hrm_train plan --config configs/puzzle/hrm_sudoku17.json --ranks 8,64,1024 --weak");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return commands::run_plan(*o);
    };
  });
}

}  // namespace hrm
