#pragma once
// Objects of an exported TorchScript module for a decoder of the modern style, whose blocks may have the switches of
// DecoderForm (hrm/formats/hf_family.h). The reference is src/models/decoder.cpp.

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/torchscript_blocks.h"
#include "checkpoint/torchscript_builder.h"
#include "hrm/models/decoder.h"

namespace hrm::checkpoint {

// Token type 4 is int64.
inline constexpr const char* kEmbedTokens = "torch.embedding(self.embed_tokens.weight, ids.to(4))";

class DecoderExporter : protected TorchscriptBuilder {
 public:
  // `longest`: positions that a row may have; 0: any number.
  DecoderExporter(models::DecoderOptions options, const std::vector<std::pair<std::string, at::Tensor>>& weights,
                  int64_t longest = 0)
      : TorchscriptBuilder(weights), options_(std::move(options)), longest_(longest) {}
  virtual ~DecoderExporter() = default;

  // forward(ids), or forward(ids, memory): as a prefix, or attended to.
  torch::jit::Module decoder(const std::string& name, bool prefix, bool cross);

 protected:
  const models::DecoderOptions& options() const { return options_; }
  torch::jit::Module embedding(const std::string& name);
  torch::jit::Module rms_norm(const std::string& name);
  Member frequencies() const;
  // Blocks as members layer0, layer1, ..., and the lines that call them.
  std::string add_blocks(Members& members, const std::string& name, int64_t layers, StackKind kind, bool cross);

  // What a block computes behind attention, forward(x), and whether it has experts. Error(usage) for layers without a
  // form in TorchScript.
  virtual torch::jit::Module feed_forward(const std::string& name);
  bool has_experts(const std::string& name) const { return has(name + ".router.weight"); }

 private:
  torch::jit::Module block(const std::string& name, StackKind kind, bool cross);

  models::DecoderOptions options_;
  int64_t longest_;
};

}  // namespace hrm::checkpoint
