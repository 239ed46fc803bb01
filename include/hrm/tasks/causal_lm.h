#pragma once
// A causal language model from a Hugging Face folder, as a configuration describes it: weights, adapter, tokenizer.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/chat_open.h"
#include "hrm/data/chat_template.h"
#include "hrm/formats/hf_config.h"
#include "hrm/models/decoder_lm.h"
#include "hrm/nn/lora.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/polychromic_plan.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

struct CausalLm {
  HfModelConfig facts;
  std::shared_ptr<models::DecoderLm> model;
  std::unique_ptr<nn::LoraSet> lora;  // null: all weights are trained
};

// Positions that rows need: hf.positions, or the length of prompts, responses and completions of this configuration.
// Error(usage) where that is more than the model was made for (max_position_embeddings).
int64_t causal_positions(const config::Config& config, const HfModelConfig& facts);
// The same as passes of `plan` pad them. Error(usage) likewise.
int64_t padded_causal_positions(const config::Config& config, const HfModelConfig& facts, const PolychromicPlan& plan);

// Builds the model, fills it from hf.model or draws it by run.seed (hf.weights), and adds its adapter, which starts
// from lora.adapter. Frozen weights beside an adapter are kept only in the compute dtype; those of the blocks' linear
// layers as hf.quantize says. Rows have causal_positions(), or `positions` if these are more and the model supports
// them. Error(checkpoint) for files that do not fit the model, Error(usage) for contradicting values, and for a model
// that asks for a loss of its routers' load. `across`: not null for a part of the model (models::DecoderOptions).
// `outline`: large weights stay outlines (nn/outline.h) until ParameterSet::materialise() or parallel::ParameterShards.
CausalLm open_causal_lm(const config::Config& config, const Runtime& runtime, int64_t positions = 0,
                        std::shared_ptr<const nn::TensorAcross> across = nullptr, bool outline = false);

// The same for only reading and writing text: nothing is trained, and rows have `positions`. Without an adapter all
// weights are kept only in the compute dtype. `across`: as above.
CausalLm open_frozen_lm(const config::Config& config, const Runtime& runtime, int64_t positions,
                        std::shared_ptr<const nn::TensorAcross> across = nullptr);

// Names, shapes and dtypes of the same model and its adapter, on the meta device: of hf.model only config.json is read.
// Frozen weights beside an adapter have the dtype that they are kept in on a GPU; those stored as NF4 appear in fp32
// with the shape that they stand for. Errors and `across` as of open_causal_lm().
CausalLm outline_causal_lm(const config::Config& config, std::shared_ptr<const nn::TensorAcross> across = nullptr);

// Elements of the matrices that a token is multiplied with: of the linear layers and the head, and of the experts that
// it goes to.
double matrix_elements(const CausalLm& lm);

// Model, adapter and quantised base, a line each, for the start of the log.
std::string describe_causal_lm(const config::Config& config, const CausalLm& lm);

// The tokenizer of hf.tokenizer, or hf.model, with chat.template. Error(usage) where ids do not fit the model: its
// vocabulary is smaller than the tokenizer's.
data::ChatEncoder open_causal_tokenizer(const config::Config& config, const HfModelConfig& facts);

// The sides of data.train. Throws as data::open_chat_sides.
data::ChatSides open_chat_data(const config::Config& config, const data::ChatEncoder& encoder, bool need_response);

// What training changes: the adapter, or all.
class TrainedWeights : public Stateful {
 public:
  explicit TrainedWeights(CausalLm& lm) : lm_(lm) {}
  void visit_state(StateVisitor& visitor) override;

 private:
  CausalLm& lm_;
};

// Files beside weights and tokenizer.json that say how transformers writes, stops and asks. These are the existing ones
// of generation_config.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json, chat_template.jinja and
// additional_chat_templates/*.jinja.
std::vector<std::filesystem::path> hf_files_beside_weights(const config::HfConfig& hf);

// Copies config.json, the tokenizer and hf_files_beside_weights() into `folder`, which is created if needed. With them
// a checkpoint, of an adapter or of all weights, opens without hf.model and hf.tokenizer.
void write_hf_files(const config::HfConfig& hf, const std::filesystem::path& folder);

// Digest of the frozen weights beside an adapter: XXH3-128, hex, of the tensors of hf.model, which are read, or the
// seed that drew the weights; and hf.quantize, which changes them. Empty if all weights are trained.
std::string base_digest(const config::Config& config);

}  // namespace hrm::tasks
