// hrm_train export: the weights of a checkpoint as a file for other programs.
#include <iostream>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/commands/commands.h"
#include "hrm/tasks/registry.h"

namespace hrm::commands {

int run_export(const ExportOptions& options) {
  const bool known = options.to == "torchscript" || options.to == "safetensors" || options.to == "pt" ||
                     options.to == "hf" || options.to == "peft" || options.to == "checkpoint";
  require(known, ExitCode::usage, "'", options.to,
          "' is not an export format; use torchscript, safetensors, pt, hf, peft or checkpoint");
  require(options.weights == "auto" || options.weights == "raw" || options.weights == "ema", ExitCode::usage, "'",
          options.weights, "' is not a set of weights; use auto, raw or ema");
  const bool in_8_bits = options.dtype == "fp8" || options.dtype == "int8";
  require(options.dtype == "float32" || options.dtype == "bfloat16" || in_8_bits, ExitCode::usage, "'", options.dtype,
          "' is not a dtype of weights; use float32, bfloat16, fp8 or int8");
  require(!in_8_bits || options.to == "hf", ExitCode::usage, "--dtype ", options.dtype,
          " is for --to hf; use float32 or bfloat16 with --to ", options.to);
  const bool has_dtype = options.to == "hf" || options.to == "checkpoint";
  require(options.dtype == "float32" || has_dtype, ExitCode::usage, "--dtype ", options.dtype,
          " is for --to hf and checkpoint alone; ", options.to, " has the dtype of the checkpoint");
  require(!options.out.empty(), ExitCode::usage, "--out needs the file or folder to write");

  const tasks::StoredModel stored = tasks::open_stored_model(options.checkpoint, {}, options.base);
  const tasks::TaskSpec& spec = tasks::task_spec(stored.config);
  require(options.to != "peft" || stored.foreign || tasks::has_adapter(stored.config), ExitCode::usage,
          "PEFT's folders hold adapters, and this model has none; use --to safetensors or hf");
  require(spec.export_as != nullptr, ExitCode::usage, "models of task ", spec.settings->name, " cannot be exported");
  const std::string written = spec.export_as(
      stored,
      {.to = options.to, .out = options.out, .weights = options.weights, .dtype = options.dtype, .base = options.base});
  log::info("wrote ", written, " to ", options.out);
  std::cout << options.out << "\n";
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
