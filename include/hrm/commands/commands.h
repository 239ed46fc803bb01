#pragma once
// What the subcommands of hrm_train do; main.cpp and command_line.cpp fill the options. Each returns the exit code or
// throws. Results go to stdout, everything else to stderr.

#include <cstdint>
#include <string>
#include <vector>

#include "hrm/base/build_info.h"

namespace hrm::commands {

struct TrainOptions {
  std::vector<std::string> config_files;  // later files win
  std::vector<std::string> overrides;     // key.sub=value, after the files
  std::string resume = "auto";            // auto: the newest valid checkpoint of the run; never; or a checkpoint folder
  std::string init;                       // a checkpoint whose weights a new run begins with; empty: none
  bool accept_data_change = false;        // resume although the training data are not those of the checkpoint
};
int run_train(const TrainOptions& options);

struct EvalOptions {
  // A run folder (its newest checkpoint), a checkpoint folder, or, as of task polychromic, a folder of the transformers
  // or the PEFT library.
  std::string checkpoint;
  std::string data;                    // dataset directory or CSV file; empty: the test data of the run
  std::vector<std::string> overrides;  // of the configuration in the checkpoint
  std::string json_out;                // also write the result here; empty: stdout only
  bool early_halt = false;             // as the override eval.early_halt=true
  int64_t segments = 0, rollouts = 0;  // as the overrides of section eval; 0: as configured
  // Task polychromic: folder for eval.json, with each prompt's answers, and what run_report makes of it. Empty: none.
  std::string report;
  bool blank_identifier = false;  // EvalRequest
  std::string submission = {};    // EvalRequest
  std::string pictures = {};      // EvalRequest
  std::string base = {};  // folder of the weights that an adapter is for; empty: as the run, or the adapter, says
};
int run_eval(const EvalOptions& options);

struct ReportOptions {
  // NAME=FILE or FILE: eval.json of `eval --report`, or the folder with it. Those of one name are one group; without a
  // name, the checkpoint's.
  std::vector<std::string> evaluations;
  std::string out;  // folder: report.md, answers.html, and front.svg where all have one measure of diversity
};
int run_report(const ReportOptions& options);

struct DashboardOptions {
  std::string runs = "runs";  // folder of runs, or a run
  std::string listen =
      "127.0.0.1";          // IP address, or localhost; any but a loopback address needs a token, which is made
  int64_t port = 8321;      // 0: any free one
  std::string export_file;  // write the page with the data to this file instead of serving it; empty: serve
};
int run_dashboard(const DashboardOptions& options);

struct SolveOptions {
  std::string checkpoint;  // as in EvalOptions
  std::string input;       // file; empty or "-": stdin
  bool watch = false;      // draw the grid after each segment
  double watch_delay_seconds = 0.25;
  int64_t segments = 0;     // 0: halt_max_steps of the model
  bool early_halt = false;  // a puzzle stops when the model's own rule halts it; not with watch
  int64_t rollouts = 1;     // of each puzzle, as eval.rollouts
  int64_t agreeing = 0;     // with early_halt and rollouts; 0: eval.agreeing_rollouts of the run
  double noise = -1;        // below 0: eval.noise of the run
  std::string noisy_state;  // empty: eval.noisy_state of the run
  // Empty: eval.selector of the run. valid: the valid answer with the largest Q value; if none is valid, as q.
  std::string selector;
  std::string weights = "auto";   // auto, raw, ema
  std::string device = "auto";    // auto, cpu, cuda
  int64_t batch_size = 0;         // 0: chosen by the program
  int64_t puzzle_identifier = 0;  // row of the puzzle embedding
  std::string format = "text";    // text, jsonl
};
int run_solve(const SolveOptions& options);

struct GenerateOptions {
  std::string checkpoint;     // as in EvalOptions
  std::string chat_template;  // of such a folder: chat.template; empty: what it asks for
  std::string base = {};      // as in EvalOptions
  std::string quantize = {};  // hf.quantize; empty: as in training, or none
  bool has_prompt = false;    // else input
  std::string prompt;
  std::string input;   // file of prompts, one a line or JSON Lines; "-": stdin
  std::string system;  // said in front of each prompt, to a model with a chat template that has a place for it
  int64_t max_new_tokens = 128;
  double temperature = 0;  // 0: the best token each time
  int64_t top_k = 0;
  double top_p = 1, min_p = 0;
  int64_t samples = 1;  // of each prompt
  std::vector<std::string> stop;
  int64_t seed = 0;
  int64_t batch_size = 0;        // rows at a time; 0: chosen by the program
  std::string weights = "auto";  // auto, raw, ema
  std::string device = "auto";   // auto, cpu, cuda
  std::string format = "text";   // text, jsonl
};
int run_generate(const GenerateOptions& options);

struct ImportOptions {
  std::string from;                    // hrm, trm, urm
  std::string path;                    // the official checkpoint file
  std::string config;                  // configuration that describes its model; empty: defaults and overrides
  std::vector<std::string> overrides;  // key.sub=value
  std::string out;                     // run folder to make
};
int run_import(const ImportOptions& options);

struct ExportOptions {
  std::string to;                 // torchscript, safetensors, pt, hf, peft, checkpoint
  std::string checkpoint;         // as in EvalOptions; no folder of transformers, which needs no export
  std::string out;                // file to write; hf, peft and checkpoint: folder
  std::string weights = "auto";   // auto, raw, ema
  std::string dtype = "float32";  // or bfloat16; of hf and checkpoint alone
  std::string base = {};          // as in EvalOptions; of hf and peft
};
int run_export(const ExportOptions& options);

struct ReshardOptions {
  std::string checkpoint;  // run folder or step folder
  int64_t ranks = 1;
  std::string out;  // new folder
};
int run_reshard(const ReshardOptions& options);

struct BenchStepOptions {
  std::vector<std::string> config_files;
  std::vector<std::string> overrides;
  int64_t steps = 30;         // timed
  int64_t warmup = 10;        // before them
  double settle = 1;          // seconds of further steps before them: under load a GPU's clocks take time to settle
  int64_t profile_steps = 3;  // recorded after them; 0: no table
  bool memory = false;        // also record the allocations of the warm-up
  // More than one: this process is `rank` of this many, and the others do not exist (parallel::make_fake_comm).
  int ranks = 1, rank = 0;
  std::string json_out;  // also write the result here; empty: stdout only
};
int run_bench_step(const BenchStepOptions& options);

struct BenchEvalOptions {
  std::vector<std::string> config_files;
  std::vector<std::string> overrides;
  int64_t passes = 3;          // timed, after one more
  int64_t profile_passes = 0;  // recorded after them; 0: no table
  std::string json_out;
};
int run_bench_eval(const BenchEvalOptions& options);

struct BenchGraphsOptions {
  std::vector<std::string> config_files;
  std::vector<std::string> overrides;
  std::vector<int64_t> batches;                 // train.global_batch_size; empty: that of the configuration
  std::vector<int64_t> repeats = {1, 2, 4, 8};  // steps in one graph
  int64_t steps = 40, warmup = 10;              // timed, and before them
  double settle = 1;                            // seconds of further steps before them
  std::string json_out;
};
// Lists what is captured in CUDA graphs, and times steps with and without graphs, and several steps in one graph.
int run_bench_graphs(const BenchGraphsOptions& options);

struct BenchOpsOptions {
  std::string filter;              // regular expression on "op shape"; empty: all
  std::string device = "auto";     // auto, cpu, cuda
  std::string precision = "auto";  // a value of precision.compute
  std::string json_out;
};
int run_bench_ops(const BenchOpsOptions& options);

struct BenchFp8Options {
  std::vector<int64_t> widths = {768, 1024, 2048, 4096};
  std::vector<std::string> overrides;  // of the decoders; those of precision.fp8_* of the step in 8 bits alone
  int64_t steps = 20, warmup = 10;     // as of BenchStepOptions
  double settle = 1;
  std::string json_out;
};
// Times products, quantisation and whole training steps of plain decoders in 16 and in 8 bits.
int run_bench_fp8(const BenchFp8Options& options);

struct BenchMoeOptions {
  int64_t tokens = 16384, dim = 1024, width = 4096, experts = 8, top_k = 2;
  std::string activation = "gelu";  // a value of moe.activation
  std::string device = "auto";      // auto, cpu, cuda
  std::string precision = "auto";   // a value of precision.compute
  std::string json_out;
};
int run_bench_moe(const BenchMoeOptions& options);

struct BenchScanOptions {
  int64_t rows = 1, length = 4096, heads = 24, head_dim = 64, groups = 8, state = 128, chunk = 256;
  std::string device = "auto";  // auto, cpu, cuda
  std::string json_out;
};
int run_bench_scan(const BenchScanOptions& options);

struct BenchContrastiveOptions {
  std::vector<std::string> config_files;
  std::vector<std::string> overrides;
  std::string checkpoint;  // instead of a configuration with its initial weights
  int64_t rows = 128;      // of the training data, at most as many as there are
  bool float64 = false;    // in double precision, on the CPU
  std::string json_out;
};
// Compares the contrastive gradient with backprop's, over the nudge and over the steps.
int run_bench_contrastive(const BenchContrastiveOptions& options);

struct BenchCommOptions {
  std::string device = "auto";           // auto, cpu, cuda
  std::string allocator = "expandable";  // runtime.allocator
  std::string ops = "all-reduce";        // all-reduce, reduce-scatter, all-gather, all-to-all, send-receive, all
  int64_t max_mb = 256;                  // MiB of the largest tensor; the smallest has 8 bytes
  bool urgent = false;                   // as on a tensor axis: before all compute kernels
  bool beside = false;                   // also an all-gather at the same time as matrix products
  int64_t leave = 0;                     // multiprocessors that persistent kernels leave free meanwhile
  double meet_timeout_s = 60;            // how long to wait for all ranks, and for each operation between CPUs
  std::string json_out;
};
// Run by every rank of a launch; rank 0 prints and writes. Error(usage) for a process alone.
int run_bench_comm(const BenchCommOptions& options);

struct BenchTokenizerOptions {
  std::string tokenizer;  // tokenizer.json
  std::string text;       // a file in UTF-8
  int64_t threads = 1;
  int64_t passes = 3;  // timed, after one more
  std::string json_out;
};
int run_bench_tokenizer(const BenchTokenizerOptions& options);

struct BenchGenerateOptions {
  std::vector<std::string> config_files;
  std::vector<std::string> overrides;
  std::string checkpoint;  // a run, or a folder of transformers or PEFT, instead of a configuration
  std::vector<int64_t> rows = {1, 8, 64};
  int64_t prompt = 128, new_tokens = 256;  // tokens of each row
  int64_t vocab_size = 0;                  // of a model with random weights; 0: 32,000
  double temperature = 0, top_p = 1;
  int64_t top_k = 0;
  int64_t passes = 5;  // timed, after two more
  std::string json_out;
};
int run_bench_generate(const BenchGenerateOptions& options);

struct PlanOptions {
  std::vector<std::string> config_files;
  std::vector<std::string> overrides;
  // Replace the data, which then need not exist: cells of a puzzle and its vocabulary, only the vocabulary of a
  // language model, or only the tokens of a prompt (task polychromic). 0: as data.train says.
  int64_t seq_len = 0, vocab_size = 0;
  std::string gpu;  // name of a known GPU that time and fit are estimated for; empty: the one present, or H200
  std::vector<int64_t> ranks;  // trainings with so many ranks; empty: one alone
  bool best = false;           // of one number of ranks, all meshes instead of the configured one
  bool weak = false;           // each rank has the configured batch; otherwise all have it together
  int64_t ranks_per_node = 8;
  // Links, in addition to results of bench comm; 0: as in the data sheets.
  std::vector<std::string> bandwidths;
  double link_gbs = 0, network_gbs = 0;   // 1e9 bytes per second of a GPU, in one direction
  double hop_us = 0, network_hop_us = 0;  // a message without content to the next GPU
  std::string json_out;
};
int run_plan(const PlanOptions& options);

struct DoctorOptions {
  bool ranks = false;          // test the ranks that were started together, instead of this machine
  double meet_timeout_s = 60;  // how long to wait for them
  int64_t tensor = 1;          // the mesh that they would be: parallel::MeshShape
  int64_t replicas = 1;
  bool json = false;
  bool failpoints = false;  // list the failpoints (base/failpoint.h) instead
};
int run_doctor(const DoctorOptions& options);

// Repeats the next step of a dump (of a run that stopped because its gradients were not finite), without its update.
// Names the tensors that are not finite. Returns ExitCode::diverged if a gradient is not finite here either.
struct ReplayOptions {
  std::string dump;                    // a run folder (its newest checkpoint), its folder `diverged`, or a checkpoint
  std::vector<std::string> overrides;  // of the configuration in it
  bool json = false;
};
int run_replay(const ReplayOptions& options);

}  // namespace hrm::commands
