#pragma once
// The configuration of a run. Each struct gives its fields once (name, member, rule, unit, help); defaults are the
// member initialisers. Names and defaults follow the official HRM and TRM configurations where those have them.

#include <cstdint>
#include <string>
#include <vector>

#include "hrm/config/field.h"
#include "hrm/config/fine_tuning.h"

namespace hrm::config {

struct RunConfig {
  std::string name = "run";
  std::string dir = "runs";
  int64_t seed = 0;
  bool group_readable = false;

  template <class F>
  static void describe(F&& f) {
    f("name", &RunConfig::name, AnyText{}, "", "name of the run; its folder is <dir>/<name>");
    f("dir", &RunConfig::dir, PathText{}, "", "folder that holds all runs");
    f("group_readable", &RunConfig::group_readable, Flag{}, "",
      "let the user's group read what the run writes; false = nobody else does (0700)");
    f("seed", &RunConfig::seed, IntRange{0}, "", "seed of initialisation, sample order, augmentation and exploration");
  }
};

struct DataConfig {
  std::string train = "data/sudoku/train_17clue_1k.csv";
  std::string test = "data/sudoku/test_17clue_2k.csv";
  std::string kind = "auto";
  std::string question_field = "";
  std::string answer_field = "";
  std::string augmentation = "none";
  int64_t box_rows = 0;
  int64_t box_cols = 0;
  int64_t subsample = 0;
  int64_t min_rating = 0;
  std::string augmentation_device = "auto";
  bool reference_semantics = true;
  int64_t encoder_len = 0;
  int64_t decoder_len = 256;
  bool document_masks = false;
  int64_t max_malformed = 0;
  std::string cache = "auto";
  int64_t prefetch_batches = 4;

  template <class F>
  static void describe(F&& f) {
    f("train", &DataConfig::train, PathText{.list = true}, "",
      "training data: a dataset directory in the official layout (its train split) or a CSV file, also compressed "
      "(.csv.gz, .csv.zst); the default ships with the project. task=language: one or several folders of language data "
      "with commas between, e.g. books or "
      "books*3,code: three rows of books for each of code. task=polychromic: a file of JSON lines or "
      "of one JSON array, also compressed (.gz, .zst), or a folder of such files");
    f("test", &DataConfig::test, PathText{.list = true}, "",
      "test data: a dataset directory (its test split) or a CSV file; empty, and the default of a run that sets "
      "data.train: no evaluation. task=language: folders whose val split is evaluated, each with a name before a colon "
      "if it shall have one, e.g. old:books,code; empty: those of data.train, as far as they have one; none: no "
      "evaluation. task=polychromic: as data.train; empty: chat.val_share of the prompts of data.train");
    f("kind", &DataConfig::kind, OneOf{{"auto", "sudoku", "maze"}}, "",
      "what a CSV file holds; auto tells by the characters");
    f("question_field", &DataConfig::question_field, AnyText{}, "",
      "column of a CSV file that holds the puzzles; empty = q, question, quizzes or puzzle");
    f("answer_field", &DataConfig::answer_field, AnyText{}, "",
      "column that holds their solutions; empty = a, answer, solutions or solution");
    f("augmentation", &DataConfig::augmentation, OneOf{{"none", "sudoku", "dihedral"}}, "",
      "new random symmetric copy of each training sample, drawn on the fly: sudoku = digits, bands, rows, stacks, "
      "columns, and transposition where boxes are square; dihedral = the 8 rotations and reflections of a square grid");
    f("augmentation_device", &DataConfig::augmentation_device, OneOf{{"auto", "host", "device"}}, "",
      "where the copies are drawn; both give the same ones. auto = on the GPU where it can, else by the prefetch "
      "thread");
    f("box_rows", &DataConfig::box_rows, IntRange{0, 16}, "rows",
      "rows of a Sudoku box; 0 = square boxes, or 2x3 for 6x6");
    f("box_cols", &DataConfig::box_cols, IntRange{0, 16}, "columns", "columns of a Sudoku box; 0 as for box_rows");
    f("subsample", &DataConfig::subsample, IntRange{0}, "puzzles",
      "take this many training puzzles at random from a CSV file; 0 = all");
    f("min_rating", &DataConfig::min_rating, IntRange{0}, "", "drop CSV training puzzles rated below this");
    f("reference_semantics", &DataConfig::reference_semantics, Flag{}, "",
      "true: as the official loader, a batch row offered to a slot that has not halted is discarded; "
      "false: slots take rows in slot order as they halt, and no row is lost");
    f("encoder_len", &DataConfig::encoder_len, IntRange{0, 1 << 20}, "tokens",
      "task=language: longest prompt S; longer ones are cut. lm.arch=hrm needs one; a plain decoder reads it in front "
      "of the answer. 0 = no prompts");
    f("decoder_len", &DataConfig::decoder_len, IntRange{1, 1 << 20}, "tokens",
      "task=language: length T of a row, or of an answer; longer ones are cut");
    f("document_masks", &DataConfig::document_masks, Flag{}, "",
      "task=language, packed text: positions see their own document alone");
    f("max_malformed", &DataConfig::max_malformed, IntRange{0}, "lines",
      "task=language, triples, and task=polychromic: so many malformed lines are passed over before it is an error");
    f("cache", &DataConfig::cache, OneOf{{"auto", "memory", "stream"}}, "",
      "task=language, triples: memory = ids are read at the start, stream = when they are needed, auto = memory up to "
      "1 GiB; the batches are the same");
    f("prefetch_batches", &DataConfig::prefetch_batches, IntRange{1, 64}, "batches",
      "batches that the prefetch thread prepares ahead");
  }
};

struct ModelConfig {
  std::string arch = "hrm";
  int64_t hidden_size = 512;
  int64_t num_heads = 8;
  double expansion = 4;
  int64_t H_cycles = 2;
  int64_t L_cycles = 2;
  int64_t H_layers = 4;
  int64_t L_layers = 4;
  std::string pos_encodings = "rope";
  int64_t puzzle_emb_ndim = -1;
  int64_t puzzle_emb_len = 0;
  bool mlp_t = false;
  bool no_ACT_continue = false;
  int64_t halt_max_steps = 16;
  double halt_exploration_prob = 0.1;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000;

  template <class F>
  static void describe(F&& f) {
    f("arch", &ModelConfig::arch, OneOf{{"hrm", "trm", "transformer"}}, "",
      "hrm = Hierarchical Reasoning Model, trm = Tiny Recursive Model, transformer = plain baseline of L_layers "
      "blocks");
    f("hidden_size", &ModelConfig::hidden_size, IntRange{2, 65536}, "", "width D of the model");
    f("num_heads", &ModelConfig::num_heads, IntRange{1, 1024}, "heads", "attention heads; must divide hidden_size");
    f("expansion", &ModelConfig::expansion, RealRange{0, 64, true}, "",
      "SwiGLU width = expansion * D * 2/3, rounded up to a multiple of 256");
    f("H_cycles", &ModelConfig::H_cycles, IntRange{1, 1024}, "cycles",
      "high-level cycles of one segment (transformer: 1)");
    f("L_cycles", &ModelConfig::L_cycles, IntRange{1, 1024}, "cycles",
      "low-level cycles of one high-level cycle (transformer: 1)");
    f("H_layers", &ModelConfig::H_layers, IntRange{0, 1024}, "blocks",
      "blocks of the H module (trm and transformer have none: 0)");
    f("L_layers", &ModelConfig::L_layers, IntRange{1, 1024}, "blocks", "blocks of the L module");
    f("pos_encodings", &ModelConfig::pos_encodings, OneOf{{"rope", "learned", "none"}}, "", "position encoding");
    f("puzzle_emb_ndim", &ModelConfig::puzzle_emb_ndim, IntRange{-1, 1 << 20}, "",
      "width of the puzzle embedding; -1 = hidden_size, 0 = no puzzle embedding");
    f("puzzle_emb_len", &ModelConfig::puzzle_emb_len, IntRange{0, 1024}, "tokens",
      "prefix slots for the puzzle embedding, zero-padded; 0 = as many as puzzle_emb_ndim needs");
    f("mlp_t", &ModelConfig::mlp_t, Flag{}, "", "replace attention by a SwiGLU over the sequence axis (TRM-MLP)");
    f("no_ACT_continue", &ModelConfig::no_ACT_continue, Flag{}, "",
      "halt when q_halt > 0 and do without the Q-continue head's second forward pass (TRM's setting)");
    f("halt_max_steps", &ModelConfig::halt_max_steps, IntRange{1, 65535}, "segments",
      "a sample halts at the latest after this many segments; evaluation always runs all of them");
    f("halt_exploration_prob", &ModelConfig::halt_exploration_prob, RealRange{0, 1}, "",
      "probability that a sample must take a random minimum number of segments");
    f("rms_norm_eps", &ModelConfig::rms_norm_eps, RealRange{0, 1, true}, "", "epsilon of RMSNorm");
    f("rope_theta", &ModelConfig::rope_theta, RealRange{0, 1e12, true}, "", "base of the rotary frequencies");
  }
};

// Language models (task=language). Defaults of the modern style; the prototype's are in configs/language.
struct LmConfig {
  std::string arch = "hrm";
  std::string style = "modern";
  int64_t hidden_size = 512;
  int64_t num_heads = 8;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t inner = 0;
  int64_t layers = 6;
  int64_t positions = 0;
  int64_t window = 0;
  double rope_theta = 10000;
  double rms_norm_eps = 1e-6;
  bool qk_norm = false;
  bool tied = true;
  std::string encoder = "transformer";
  int64_t enc_layers = 2;
  int64_t h_layers = 2;
  int64_t l_layers = 2;
  int64_t h_len = 8;
  int64_t l_len = 64;
  int64_t h_cycles = 4;
  int64_t l_steps = 8;
  int64_t gradient_cycles = 1;
  std::string bridge = "prefix";
  int64_t prefix_len = 8;
  double gate_scale = 1;
  double gate_bias = 0;
  int64_t gate_warmup_steps = 0;
  int64_t mamba_expand = 2;
  int64_t mamba_head_dim = 64;
  int64_t mamba_state = 128;
  int64_t mamba_groups = 1;
  int64_t mamba_kernel = 4;
  int64_t mamba_chunk = 256;
  bool recompute = false;
  std::string freeze;

  template <class F>
  static void describe(F&& f) {
    f("arch", &LmConfig::arch, OneOf{{"hrm", "decoder"}}, "",
      "hrm = an encoder reads the prompt, a reasoning core works on it, a decoder writes the answer; decoder = a plain "
      "causal decoder");
    f("style", &LmConfig::style, OneOf{{"modern", "prototype"}}, "",
      "modern = RMSNorm, rotary positions, SwiGLU; prototype = LayerNorm, sinusoidal positions, GELU, as the first "
      "HRM-LM (arch hrm alone)");
    f("hidden_size", &LmConfig::hidden_size, IntRange{2, 65536}, "", "width D of the model");
    f("num_heads", &LmConfig::num_heads, IntRange{1, 1024}, "heads", "attention heads of queries");
    f("kv_heads", &LmConfig::kv_heads, IntRange{0, 1024}, "heads",
      "heads of keys and values; must divide num_heads; 0 = as many (modern)");
    f("head_dim", &LmConfig::head_dim, IntRange{0, 65536}, "", "width of a head; 0 = hidden_size / num_heads (modern)");
    f("inner", &LmConfig::inner, IntRange{0, 1 << 20}, "",
      "width of the SwiGLU; 0 = 4 D * 2/3, rounded up to a multiple of 256 (modern)");
    f("layers", &LmConfig::layers, IntRange{1, 1024}, "blocks", "blocks of the decoder");
    f("positions", &LmConfig::positions, IntRange{0, 1 << 24}, "tokens",
      "longest row that the decoder is made for; 0 = as long as the training rows, or 1024 where they are shorter");
    f("window", &LmConfig::window, IntRange{0, 1 << 24}, "tokens",
      "sliding window: a position sees itself and so many less one before it; 0 = all before it (modern)");
    f("rope_theta", &LmConfig::rope_theta, RealRange{0, 1e12, true}, "", "base of the rotary frequencies (modern)");
    f("rms_norm_eps", &LmConfig::rms_norm_eps, RealRange{0, 1, true}, "", "epsilon of RMSNorm (modern)");
    f("qk_norm", &LmConfig::qk_norm, Flag{}, "", "RMSNorm of queries and keys, as Qwen3 has (modern)");
    f("tied", &LmConfig::tied, Flag{}, "", "the head reads the embedding's weight (modern)");
    f("encoder", &LmConfig::encoder, OneOf{{"transformer", "mamba2"}}, "", "what reads the prompt (arch hrm)");
    f("enc_layers", &LmConfig::enc_layers, IntRange{1, 1024}, "blocks", "blocks of the encoder");
    f("h_layers", &LmConfig::h_layers, IntRange{1, 1024}, "blocks", "blocks of the slow memory");
    f("l_layers", &LmConfig::l_layers, IntRange{1, 1024}, "blocks", "blocks of the fast memory");
    f("h_len", &LmConfig::h_len, IntRange{1, 65536}, "vectors", "length of the slow memory");
    f("l_len", &LmConfig::l_len, IntRange{1, 65536}, "vectors", "length of the fast memory");
    f("h_cycles", &LmConfig::h_cycles, IntRange{1, 1024}, "cycles", "cycles of the reasoning core");
    f("l_steps", &LmConfig::l_steps, IntRange{1, 1024}, "steps", "steps of the fast memory in each cycle");
    f("gradient_cycles", &LmConfig::gradient_cycles, IntRange{0, 1024}, "cycles",
      "cycles that are differentiated, from the last one back: 1 = the one-step gradient, 0 = all");
    f("bridge", &LmConfig::bridge, OneOf{{"prefix", "cross_attention"}}, "",
      "how the core's result enters the decoder: as vectors in front of the answer, or as one that every block attends "
      "to");
    f("prefix_len", &LmConfig::prefix_len, IntRange{1, 65536}, "vectors", "vectors of the prefix bridge");
    f("gate_scale", &LmConfig::gate_scale, RealRange{0, 1e3}, "",
      "the result is multiplied by clamp(gate_scale * sigmoid(gate) + gate_bias, 0, 1)");
    f("gate_bias", &LmConfig::gate_bias, RealRange{-1e3, 1e3}, "", "see gate_scale");
    f("gate_warmup_steps", &LmConfig::gate_warmup_steps, IntRange{0}, "steps",
      "steps in which gate_scale is 0: the decoder learns without the core first");
    f("mamba_expand", &LmConfig::mamba_expand, IntRange{1, 64}, "", "inner width of a mamba2 block / D");
    f("mamba_head_dim", &LmConfig::mamba_head_dim, IntRange{1, 4096}, "", "channels of a head of mamba2");
    f("mamba_state", &LmConfig::mamba_state, IntRange{1, 4096}, "", "state of each channel of mamba2");
    f("mamba_groups", &LmConfig::mamba_groups, IntRange{1, 1024}, "", "groups of heads that share B and C of mamba2");
    f("mamba_kernel", &LmConfig::mamba_kernel, IntRange{1, 64}, "tokens", "width of mamba2's convolution");
    f("mamba_chunk", &LmConfig::mamba_chunk, IntRange{1, 65536}, "tokens",
      "positions of one matrix product of mamba2's scan; changes rounding alone");
    f("recompute", &LmConfig::recompute, Flag{}, "",
      "activation checkpointing: blocks keep their input alone and compute the rest again in the backward pass "
      "(modern)");
    f("freeze", &LmConfig::freeze, AnyText{}, "",
      "parts that are not trained, by name with commas between, e.g. enc,core.h_init");
  }
};

// Mixtures of experts in language models.
struct MoeConfig {
  int64_t experts = 0;
  int64_t top_k = 2;
  int64_t inner = 0;
  std::string place = "auto";
  int64_t every = 1;
  std::string score = "softmax";
  bool normalize = false;
  double capacity_factor = 0;
  double load_weight = 0.01;
  double z_weight = 0;
  double bias_rate = 0;
  double jitter = 0;
  int64_t shared_experts = 0;

  template <class F>
  static void describe(F&& f) {
    f("experts", &MoeConfig::experts, IntRange{0, 1024}, "experts",
      "experts in place of the feed-forward part of a block; 0 = none, all blocks are dense");
    f("top_k", &MoeConfig::top_k, IntRange{1, 32}, "experts", "experts that each token goes through");
    f("inner", &MoeConfig::inner, IntRange{0, 1 << 20}, "", "width inside of an expert (GELU); 0 = 4 D");
    f("place", &MoeConfig::place, OneOf{{"auto", "encoder", "decoder", "both"}}, "",
      "where experts stand; auto = encoder of the prototype, else every part of blocks that reads tokens (a mamba2 "
      "encoder has none)");
    f("every", &MoeConfig::every, IntRange{1, 1024}, "blocks",
      "every so many blocks one with experts, beginning with the last of the first so many");
    f("score", &MoeConfig::score, OneOf{{"softmax", "sigmoid"}}, "", "scores of the router");
    f("normalize", &MoeConfig::normalize, Flag{}, "", "divide the weights of a token's experts by their sum");
    f("capacity_factor", &MoeConfig::capacity_factor, RealRange{0, 1e3}, "",
      "an expert takes at most so many times its fair share of the tokens, the rest is dropped; 0 = all are taken");
    f("load_weight", &MoeConfig::load_weight, RealRange{0, 1e3}, "",
      "weight of the load-balancing loss (Switch Transformer); 0 = none");
    f("z_weight", &MoeConfig::z_weight, RealRange{0, 1e3}, "", "weight of the router z-loss (ST-MoE); 0 = none");
    f("bias_rate", &MoeConfig::bias_rate, RealRange{0, 1}, "",
      "balancing without a loss: each step moves a bias of every expert's choice so far, up for experts with less "
      "than the mean load (DeepSeek-V3); 0 = no bias, e.g. 0.001");
    f("jitter", &MoeConfig::jitter, RealRange{0, 1, false, true}, "",
      "in training the router sees its input multiplied by random numbers in 1 - jitter .. 1 + jitter (Switch "
      "Transformer); 0 = none");
    f("shared_experts", &MoeConfig::shared_experts, IntRange{0, 1024}, "experts",
      "experts that every token goes through, beside the others");
  }
};

struct ObjectiveConfig {
  std::string loss = "stablemax";
  std::string loss_precision = "f64";
  double deep_supervision = 0;
  double halting = 0;
  double halting_target = 1;
  int64_t chunk = 2048;

  template <class F>
  static void describe(F&& f) {
    f("loss", &ObjectiveConfig::loss, OneOf{{"stablemax", "softmax"}}, "", "cross-entropy over tokens");
    f("loss_precision", &ObjectiveConfig::loss_precision, OneOf{{"f64", "f32"}}, "",
      "arithmetic of the stablemax loss; f64 is the official exact mode (softmax is always f32)");
    f("deep_supervision", &ObjectiveConfig::deep_supervision, RealRange{0, 1e3}, "",
      "lm.arch=hrm: weight of the cross-entropy of the answers of earlier cycles (mean over them)");
    f("halting", &ObjectiveConfig::halting, RealRange{0, 1e3}, "",
      "lm.arch=hrm: weight of the squared distance of the expected number of halts from halting_target; 0 = the model "
      "has no probability of halting");
    f("halting_target", &ObjectiveConfig::halting_target, RealRange{0, 1e3}, "", "see halting");
    f("chunk", &ObjectiveConfig::chunk, IntRange{1, 1 << 24}, "tokens",
      "task=language and polychromic: tokens whose logits exist at one time");
  }
};

struct OptimConfig {
  std::string name = "adam_atan2";
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double momentum = 0.95;
  double weight_decay = 0.1;
  std::string groups;
  std::string muon_scale = "original";
  std::string muon_precision = "bf16";
  double adamw_lr = 3e-4;
  double puzzle_emb_lr = 1e-2;
  double puzzle_emb_weight_decay = 0.1;
  double grad_clip = 0;
  std::string schedule = "cosine";
  int64_t warmup_steps = 2000;
  int64_t wsd_stable_steps = -1;
  int64_t wsd_decay_steps = -1;
  std::string wsd_shape = "1-sqrt";
  double min_ratio = 1.0;
  double ema = 0;

  template <class F>
  static void describe(F&& f) {
    f("name", &OptimConfig::name, OneOf{{"adam_atan2", "adamw", "lion", "sgd", "muon"}}, "",
      "optimizer of all dense parameters; sgd = with Nesterov's momentum and coupled weight decay; muon = of matrices, "
      "beside adamw for vectors, embeddings and output heads");
    f("lr", &OptimConfig::lr, RealRange{0, 1e3}, "", "learning rate");
    f("beta1", &OptimConfig::beta1, RealRange{0, 1, false, true}, "",
      "decay of the first moment; lion: its share in the blend whose sign is taken");
    f("beta2", &OptimConfig::beta2, RealRange{0, 1, false, true}, "",
      "decay of the second moment; lion: of its only one");
    f("eps", &OptimConfig::eps, RealRange{0, 1}, "", "epsilon (adamw, also beside muon; no other has one)");
    f("momentum", &OptimConfig::momentum, RealRange{0, 1, false, true}, "", "momentum of muon and sgd");
    f("weight_decay", &OptimConfig::weight_decay, RealRange{0, 1e3}, "", "decoupled weight decay (sgd: coupled)");
    f("groups", &OptimConfig::groups, AnyText{}, "",
      "parameters with a weight decay, learning rate or optimizer of their own, by name: pattern=decay, "
      "pattern=decay:factor of the rate, or pattern=decay:factor:adamw (beside muon), with commas between; the first "
      "pattern that matches counts, e.g. *.bias=0,*embed*=0:0.5");
    f("muon_scale", &OptimConfig::muon_scale, OneOf{{"original", "match_rms_adamw"}}, "",
      "size of muon's update: original = sqrt(max(1, rows / columns)); match_rms_adamw = 0.2 sqrt(max(rows, columns)), "
      "which takes adamw's lr and weight_decay");
    f("muon_precision", &OptimConfig::muon_precision, OneOf{{"bf16", "fp32"}}, "",
      "arithmetic of the matrix products of muon's iteration");
    f("adamw_lr", &OptimConfig::adamw_lr, RealRange{0, 1e3}, "",
      "learning rate of what adamw updates beside muon; follows the same schedule");
    f("puzzle_emb_lr", &OptimConfig::puzzle_emb_lr, RealRange{0, 1e3}, "",
      "learning rate of the puzzle embeddings (sparse SignSGD)");
    f("puzzle_emb_weight_decay", &OptimConfig::puzzle_emb_weight_decay, RealRange{0, 1e3}, "",
      "decoupled weight decay of the puzzle embeddings");
    f("grad_clip", &OptimConfig::grad_clip, RealRange{0, 1e9}, "", "largest global gradient norm; 0 = no clipping");
    f("schedule", &OptimConfig::schedule, OneOf{{"cosine", "constant", "linear", "wsd"}}, "",
      "learning rate after the warm-up; wsd = flat, then a decay (wsd_*)");
    f("warmup_steps", &OptimConfig::warmup_steps, IntRange{0}, "steps", "steps of linear warm-up");
    f("wsd_stable_steps", &OptimConfig::wsd_stable_steps, IntRange{-1}, "steps",
      "flat steps of wsd after the warm-up; -1 = what the decay leaves, or half of the rest");
    f("wsd_decay_steps", &OptimConfig::wsd_decay_steps, IntRange{-1}, "steps", "steps of wsd's decay; -1 = the rest");
    f("wsd_shape", &OptimConfig::wsd_shape, OneOf{{"1-sqrt", "linear", "cosine"}}, "", "how wsd decays");
    f("min_ratio", &OptimConfig::min_ratio, RealRange{0, 1}, "",
      "the learning rate ends at this fraction of lr (cosine, linear, wsd)");
    f("ema", &OptimConfig::ema, RealRange{0, 1, false, true}, "",
      "decay of the moving average of the weights; 0 = none. Evaluation uses the average, both are saved");
  }
};

struct TrainConfig {
  int64_t global_batch_size = 768;
  int64_t micro_batch_size = 0;
  int64_t steps = 0;
  double epochs = 0;
  double max_seconds = 0;
  int64_t log_every = 10;
  int64_t eval_every = 0;
  int64_t checkpoint_every = 0;
  int64_t keep_checkpoints = 3;
  int64_t keep_every = 0;
  bool keep_best = false;
  int64_t early_stop_evals = 0;
  double early_stop_delta = 0;
  bool async_checkpoints = true;
  int64_t max_lost_checkpoints = 10;
  int64_t max_nonfinite_steps = 20;
  double spike_score = 0;
  int64_t spike_window = 128;
  std::string spike_action = "skip";
  int64_t spike_rewind_steps = 100;
  double stuck_after_s = 900;

  template <class F>
  static void describe(F&& f) {
    f("global_batch_size", &TrainConfig::global_batch_size, IntRange{1, 1 << 24}, "samples",
      "samples of one optimizer step = micro_batch_size * accumulation * ranks");
    f("micro_batch_size", &TrainConfig::micro_batch_size, IntRange{0, 1 << 24}, "samples",
      "samples of one forward and backward pass; must divide global_batch_size; 0 = all of them");
    f("steps", &TrainConfig::steps, IntRange{0}, "steps", "optimizer steps of the whole run; 0 = from epochs");
    f("epochs", &TrainConfig::epochs, RealRange{0, 1e12}, "epochs",
      "passes over the training groups; used when steps is 0");
    f("max_seconds", &TrainConfig::max_seconds, RealRange{0, 1e9}, "s",
      "stop and save after this much training time in this process, exit code 75; 0 = no limit");
    f("log_every", &TrainConfig::log_every, IntRange{1}, "steps", "steps between two lines of metrics");
    f("eval_every", &TrainConfig::eval_every, IntRange{0}, "steps",
      "steps between two evaluations; the end of the run is always evaluated; 0 = only there");
    f("checkpoint_every", &TrainConfig::checkpoint_every, IntRange{0}, "steps",
      "steps between two checkpoints; the end of the run is always saved; 0 = only there");
    f("keep_checkpoints", &TrainConfig::keep_checkpoints, IntRange{1}, "checkpoints", "newest checkpoints to keep");
    f("keep_every", &TrainConfig::keep_every, IntRange{0}, "steps",
      "also keep the checkpoints whose step is a multiple of this; 0 = none");
    f("keep_best", &TrainConfig::keep_best, Flag{}, "",
      "also save after an evaluation that is better than all before, and keep that checkpoint (puzzles: exact "
      "accuracy, language and polychromic: loss, of the weights that eval.weights names first)");
    f("early_stop_evals", &TrainConfig::early_stop_evals, IntRange{0}, "evaluations",
      "end the run when so many evaluations in a row were no better than the best before; 0 = never");
    f("early_stop_delta", &TrainConfig::early_stop_delta, RealRange{0, 1e9}, "",
      "how much better an evaluation must be to count for early_stop_evals");
    f("async_checkpoints", &TrainConfig::async_checkpoints, Flag{}, "",
      "copy the state between two steps and write the copy while training goes on (a second copy of the state in host "
      "memory); false = training waits for the disk");
    f("max_lost_checkpoints", &TrainConfig::max_lost_checkpoints, IntRange{0}, "checkpoints",
      "a checkpoint that cannot be written (full disk) is tried again until the next one is due; stop with code 3 when "
      "so many in a row could not; 0 = train on whatever happens");
    f("max_nonfinite_steps", &TrainConfig::max_nonfinite_steps, IntRange{1}, "steps",
      "a step whose gradient is infinite or NaN is left out; stop with code 6 and a dump when so many in a row were, "
      "or the last one was; 1 = at the first");
    f("spike_score", &TrainConfig::spike_score, RealRange{0, 1e6}, "standard deviations",
      "a step is a spike when its loss stands this far above the mean of the last spike_window losses, e.g. 6; 0 = "
      "nothing is one");
    f("spike_window", &TrainConfig::spike_window, IntRange{8, 100000}, "steps",
      "losses that a spike is measured against");
    f("spike_action", &TrainConfig::spike_action, OneOf{{"skip", "rewind"}}, "",
      "skip = a spike's update is left out; rewind = also go back to a checkpoint of at least spike_rewind_steps "
      "before and on without the batches from there to the spike (three times at most)");
    f("spike_rewind_steps", &TrainConfig::spike_rewind_steps, IntRange{0}, "steps",
      "how far before the spike the checkpoint must lie, at least");
    f("stuck_after_s", &TrainConfig::stuck_after_s, RealRange{0, 1e6}, "s",
      "a step, an evaluation's batch or a checkpoint that takes longer is stuck: log where the program hangs and end "
      "it with code 7; 0 = wait for ever. With several ranks also parallel.timeout_s");
  }
};

struct EvalConfig {
  int64_t batch_size = 0;
  int64_t max_samples = 0;
  int64_t segments = 0;
  bool early_halt = false;
  std::string weights = "auto";
  int64_t answers = 10;
  double answer_temperature = 0.7;
  double answer_top_p = 0.9;
  int64_t answer_tokens = 100;

  template <class F>
  static void describe(F&& f) {
    f("batch_size", &EvalConfig::batch_size, IntRange{0, 1 << 24}, "samples",
      "rows of one evaluation batch. 0 = for puzzles up to 2048 on a GPU as far as its memory allows, 256 on the CPU, "
      "half as many with early_halt; for other tasks the micro-batch of training, 8 for 'hrm_train eval' of task "
      "polychromic");
    f("max_samples", &EvalConfig::max_samples, IntRange{0}, "samples",
      "evaluate this many test samples, spread evenly over the set; 0 = all");
    f("segments", &EvalConfig::segments, IntRange{0, 65535}, "segments", "reasoning segments; 0 = halt_max_steps");
    f("early_halt", &EvalConfig::early_halt, Flag{}, "",
      "a sample stops as soon as the model's own rule halts it, and the next one takes its place; false = every sample "
      "runs all segments, as the published numbers do");
    f("weights", &EvalConfig::weights, OneOf{{"auto", "raw", "ema", "both"}}, "",
      "which weights to evaluate; auto = the average where there is one");
    f("answers", &EvalConfig::answers, IntRange{0, 1024}, "answers",
      "task=polychromic, 'hrm_train eval' alone: sampled to each prompt, for pass@k and diversity; 0 = none");
    f("answer_temperature", &EvalConfig::answer_temperature, RealRange{0, 1e3, true}, "", "of these answers");
    f("answer_top_p", &EvalConfig::answer_top_p, RealRange{0, 1, true}, "",
      "sample them from the fewest tokens of this probability");
    f("answer_tokens", &EvalConfig::answer_tokens, IntRange{1, 1 << 20}, "tokens", "the longest of them");
  }
};

// Arithmetic. Weights, gradients, optimizer and losses are float32 whatever is chosen here.
struct PrecisionConfig {
  std::string compute = "auto";
  std::string recursions = "same";
  int64_t fp8_amax_history = 16;
  int64_t fp8_margin = 0;
  int64_t fp8_warmup_steps = 0;
  double loss_scale = 65536;
  int64_t loss_scale_growth_interval = 2000;

  template <class F>
  static void describe(F&& f) {
    f("compute", &PrecisionConfig::compute, OneOf{{"auto", "bf16", "fp16", "tf32", "fp32"}}, "",
      "arithmetic of the forward and backward pass; auto = bf16 on a GPU, fp32 on the CPU; tf32 = fp32 whose matrix "
      "products on a GPU round their inputs to TF32; fp32 = exact products");
    f("recursions", &PrecisionConfig::recursions, OneOf{{"same", "fp8"}}, "",
      "matrix products of the recursions that are not differentiated; fp8 = e4m3 with scales by delayed maximum (on a "
      "GPU of compute capability 8.9 or later; with ops.backend=reference anywhere, slowly), same = as compute");
    f("fp8_amax_history", &PrecisionConfig::fp8_amax_history, IntRange{1, 1024}, "steps",
      "the scale of an fp8 tensor follows the largest magnitude of so many past steps");
    f("fp8_margin", &PrecisionConfig::fp8_margin, IntRange{0, 8}, "",
      "headroom of the fp8 scales: divide them by 2^margin");
    f("fp8_warmup_steps", &PrecisionConfig::fp8_warmup_steps, IntRange{0}, "steps",
      "optimizer steps before fp8 begins; their recursions run as precision.compute");
    f("loss_scale", &PrecisionConfig::loss_scale, RealRange{1, 16777216}, "",
      "scale of the loss at the start of an fp16 run; it halves when a gradient overflows, and that step is left out");
    f("loss_scale_growth_interval", &PrecisionConfig::loss_scale_growth_interval, IntRange{0, 1 << 24}, "steps",
      "finite steps after which the loss scale doubles; 0 = it never grows");
  }
};

struct RuntimeConfig {
  std::string device = "auto";
  int64_t threads = 0;
  bool deterministic = false;
  bool cuda_graphs = true;
  int64_t graph_warmup_steps = 3;
  std::string sdpa = "auto";
  bool cudnn_benchmark = false;
  std::string allocator = "expandable";

  template <class F>
  static void describe(F&& f) {
    f("device", &RuntimeConfig::device, OneOf{{"auto", "cpu", "cuda"}}, "",
      "auto = the GPU when there is a usable one");
    f("threads", &RuntimeConfig::threads, IntRange{0, 4096}, "threads", "CPU threads; 0 = one per core");
    f("deterministic", &RuntimeConfig::deterministic, Flag{}, "",
      "bit-identical results from run to run on the same device and build");
    f("cuda_graphs", &RuntimeConfig::cuda_graphs, Flag{}, "",
      "capture whole training steps and evaluation segments in CUDA graphs and replay them; the results are the same");
    f("graph_warmup_steps", &RuntimeConfig::graph_warmup_steps, IntRange{1, 1000}, "steps",
      "eager runs of a step before it is captured");
    f("sdpa", &RuntimeConfig::sdpa, OneOf{{"auto", "cudnn", "flash", "efficient", "math"}}, "",
      "backend of scaled dot-product attention where our own kernel does not apply; auto = LibTorch chooses");
    f("cudnn_benchmark", &RuntimeConfig::cudnn_benchmark, Flag{}, "",
      "cuDNN tries its algorithms at the first call of each shape and keeps the fastest");
    f("allocator", &RuntimeConfig::allocator, OneOf{{"expandable", "native", "cuda_malloc_async"}}, "",
      "GPU memory: expandable = LibTorch's caching allocator with growing segments, native = with fixed ones, "
      "cuda_malloc_async = CUDA's own pool");
  }
};

struct OpsConfig {
  std::string backend = "fused";
  std::string attention = "auto";
  std::string gemm_tuning = "auto";
  std::string gemm_cache = "";

  template <class F>
  static void describe(F&& f) {
    f("backend", &OpsConfig::backend, OneOf{{"fused", "reference"}}, "",
      "fused = our kernels where the device has them; reference = plain ATen everywhere");
    f("attention", &OpsConfig::attention, OneOf{{"auto", "sdpa"}}, "",
      "auto = our kernel for short sequences where it fits, else scaled dot-product attention; sdpa = always the "
      "latter");
    f("gemm_tuning", &OpsConfig::gemm_tuning, OneOf{{"auto", "off"}}, "",
      "matrix products of a GPU that none of our kernels does: auto = cuBLASLt's algorithms are timed at the first use "
      "of a shape and the fastest is kept in a file; off, and with runtime.deterministic = cuBLAS chooses");
    f("gemm_cache", &OpsConfig::gemm_cache, PathText{}, "",
      "folder of the file with the chosen algorithms; empty = $XDG_CACHE_HOME/hrm_train, or ~/.cache/hrm_train");
  }
};

// Several processes as one training (parallel/launch.h says how they are started).
struct ParallelConfig {
  int64_t meet_timeout_s = 300;
  int64_t timeout_s = 120;
  double heartbeat_s = 1;
  std::string interface = "";
  int64_t bucket_mb = 8;
  std::string reduce = "fp32";
  int64_t zero = 0;
  int64_t check_replicas_every = 0;

  template <class F>
  static void describe(F&& f) {
    f("meet_timeout_s", &ParallelConfig::meet_timeout_s, IntRange{1, 86400}, "s",
      "how long the ranks wait for each other at the start");
    f("timeout_s", &ParallelConfig::timeout_s, IntRange{1, 86400}, "s",
      "how long a rank waits for the others in one operation, or for a sign of life, before the training ends");
    f("heartbeat_s", &ParallelConfig::heartbeat_s, RealRange{0.01, 60}, "s",
      "each rank shows the others so often that it lives; at most half of timeout_s");
    f("interface", &ParallelConfig::interface, AnyText{}, "",
      "network interface for connections between CPUs, e.g. eth0; empty = GLOO_SOCKET_IFNAME, else the one that leads "
      "to the meeting place");
    f("bucket_mb", &ParallelConfig::bucket_mb, IntRange{1, 4096}, "MiB",
      "gradients are summed in parts of about this size, while the backward pass goes on");
    f("reduce", &ParallelConfig::reduce, OneOf{{"fp32", "bf16"}}, "",
      "what gradients are sent and summed in; bf16 halves the bytes and rounds every sum to 8 bits");
    f("zero", &ParallelConfig::zero, IntRange{0, 2}, "",
      "ZeRO stage: 0 = every rank has the whole optimizer state; 1 = each has and updates its share of moments and "
      "averages, the weights are gathered after the step; 2 = gradients of a model whose blocks run once (HRM) live no "
      "longer than their reduction, too, which follows every micro-batch");
    f("check_replicas_every", &ParallelConfig::check_replicas_every, IntRange{0}, "steps",
      "compare weights and optimizer state of all ranks every so many steps, at the start and before each checkpoint; "
      "0 = only at these two");
  }
};

struct ProfilingConfig {
  bool nvtx_enabled = false;
  bool nvtx_include_data = true;
  bool nvtx_include_eval = true;
  bool trace = false;
  int64_t trace_steps = 5;
  int64_t trace_after = 20;
  bool trace_shapes = true;
  bool trace_flops = false;
  bool trace_memory = false;
  bool trace_stacks = false;
  bool nsight_window = false;

  template <class F>
  static void describe(F&& f) {
    f("nvtx.enabled", &ProfilingConfig::nvtx_enabled, Flag{}, "", "name the phases of a step for Nsight (NVTX ranges)");
    f("nvtx.include_data", &ProfilingConfig::nvtx_include_data, Flag{}, "", "also the loading of batches");
    f("nvtx.include_eval", &ProfilingConfig::nvtx_include_eval, Flag{}, "", "also evaluations");
    f("trace", &ProfilingConfig::trace, Flag{}, "",
      "record some steps with LibTorch's profiler into <run folder>/trace.json (Perfetto, scripts/trace_table); giving "
      "trace_steps alone switches it on, too");
    f("trace_steps", &ProfilingConfig::trace_steps, IntRange{0, 1000}, "steps", "steps to record; 0 = no trace");
    f("trace_after", &ProfilingConfig::trace_after, IntRange{0}, "steps",
      "steps of this process before the recording starts");
    f("trace_shapes", &ProfilingConfig::trace_shapes, Flag{}, "", "record the shapes of every operation's inputs");
    f("trace_flops", &ProfilingConfig::trace_flops, Flag{}, "", "estimate every operation's FLOPs");
    f("trace_memory", &ProfilingConfig::trace_memory, Flag{}, "", "record allocations");
    f("trace_stacks", &ProfilingConfig::trace_stacks, Flag{}, "",
      "also write <run folder>/trace_stacks.txt: the C++ call stacks of the operations with their time on the CPU, as "
      "flame-graph tools read them");
    f("nsight_window", &ProfilingConfig::nsight_window, Flag{}, "",
      "instead of recording a trace, tell Nsight where these steps begin and end (scripts/capture_nsight.py sets it)");
  }
};

// The whole configuration; the names here are the sections of the JSON file.
struct Config {
  std::string task = "puzzle";
  RunConfig run;
  DataConfig data;
  ModelConfig model;
  LmConfig lm;
  MoeConfig moe;
  HfConfig hf;
  LoraConfig lora;
  ChatConfig chat;
  PolychromicConfig polychromic;
  GrpoConfig grpo;
  ObjectiveConfig objective;
  OptimConfig optim;
  TrainConfig train;
  EvalConfig eval;
  PrecisionConfig precision;
  RuntimeConfig runtime;
  OpsConfig ops;
  ParallelConfig parallel;
  ProfilingConfig profiling;

  template <class F>
  static void describe(F&& f) {
    f("task", &Config::task, OneOf{{"puzzle", "language", "polychromic"}}, "",
      "what is trained: puzzle = models of section model on grids; language = models of sections lm and moe on text; "
      "polychromic = a causal language model of section hf on prompts and responses, and on answers that it samples");
    f("run", &Config::run, "the run and its folder");
    f("data", &Config::data, "training and test data");
    f("model", &Config::model, "the network of task=puzzle");
    f("lm", &Config::lm, "the network of task=language");
    f("moe", &Config::moe, "mixtures of experts in the network of task=language");
    f("hf", &Config::hf, "the model of task=polychromic");
    f("lora", &Config::lora, "its low-rank adapter");
    f("chat", &Config::chat, "prompts and responses");
    f("polychromic", &Config::polychromic, "diversity of sampled answers");
    f("grpo", &Config::grpo, "rewards of sampled answers");
    f("objective", &Config::objective, "the loss");
    f("optim", &Config::optim, "optimizer, schedule, clipping, averaging");
    f("train", &Config::train, "the loop");
    f("eval", &Config::eval, "evaluation");
    f("precision", &Config::precision, "arithmetic");
    f("runtime", &Config::runtime, "device, graphs, memory");
    f("ops", &Config::ops, "kernels");
    f("parallel", &Config::parallel, "several processes as one training");
    f("profiling", &Config::profiling, "NVTX ranges and traces");
  }
};

}  // namespace hrm::config
