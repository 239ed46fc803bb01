#pragma once
// The configuration of a run: its sections, each in the header of its owner. Every struct gives its fields once (name,
// member, rule, unit, help, facts); defaults are the member initialisers.

#include <string>
#include <vector>

#include "hrm/config/contrastive_settings.h"
#include "hrm/config/data_settings.h"
#include "hrm/config/field.h"
#include "hrm/config/fine_tuning_settings.h"
#include "hrm/config/language_settings.h"
#include "hrm/config/optim_settings.h"
#include "hrm/config/puzzle_settings.h"
#include "hrm/config/run_settings.h"
#include "hrm/config/runtime_settings.h"

namespace hrm::config {

// Of the table of tasks (task_settings.h).
std::vector<std::string> task_names();
std::string tasks_help();

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
  ContrastiveConfig contrastive;
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
    f("task", &Config::task, OneOf{task_names()}, "", tasks_help());
    f("run", &Config::run, "the run and its folder", Resume::free);
    f("data", &Config::data, "training and test data");
    f("model", &Config::model, "the network of task=puzzle", Tasks{"puzzle"}, Resume::architecture);
    f("lm", &Config::lm, "the network of task=language", Tasks{"language"}, Resume::architecture);
    f("moe", &Config::moe, "mixtures of experts in the network of task=language", Tasks{"language"},
      Resume::architecture);
    f("hf", &Config::hf, "the model of task=polychromic", Tasks{"polychromic"});
    f("lora", &Config::lora, "low-rank adapters of the model of task=polychromic", Tasks{"polychromic"});
    f("chat", &Config::chat, "prompts and responses", Tasks{"polychromic"});
    f("polychromic", &Config::polychromic, "diversity of completions", Tasks{"polychromic"});
    f("grpo", &Config::grpo, "policy optimisation with rewards of completions", Tasks{"polychromic"});
    f("contrastive", &Config::contrastive, "the memory and the rule of task=contrastive", Tasks{"contrastive"},
      Resume::architecture);
    f("objective", &Config::objective, "the training loss");
    f("optim", &Config::optim, "optimizer, schedule, clipping and EMA", Resume::free);
    f("train", &Config::train, "the training loop", Resume::free);
    f("eval", &Config::eval, "how models are evaluated", Resume::free);
    f("precision", &Config::precision, "arithmetic of the passes and of the loss scale");
    f("runtime", &Config::runtime, "device, graphs, memory", Resume::free);
    f("ops", &Config::ops, "which kernels run", Resume::free);
    f("parallel", &Config::parallel, "several processes as one training", Resume::free);
    f("profiling", &Config::profiling, "NVTX ranges and traces", Resume::free);
  }
};

}  // namespace hrm::config
