#include "hrm/models/make_language_model.h"

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/philox.h"
#include "hrm/base/text.h"
#include "hrm/models/decoder_lm.h"
#include "hrm/models/hrm_lm.h"
#include "hrm/nn/swiglu.h"

namespace hrm::models {
namespace {

constexpr int64_t kUsualPositions = 1024;

bool swiglu_experts(const config::MoeConfig& moe) {
  return moe.activation == config::ExpertActivation::swiglu;
}

nn::MoeOptions moe_options(const config::MoeConfig& moe, int64_t width, int64_t jitter_seed) {
  return {.experts = moe.experts,
          .top_k = moe.top_k,
          .inner = expert_inner(moe, width),
          .activation = swiglu_experts(moe) ? ops::ExpertActivation::swiglu : ops::ExpertActivation::gelu,
          .score = moe.score == config::RouterScore::sigmoid ? ops::MoeScore::sigmoid : ops::MoeScore::softmax,
          .normalize = moe.normalize,
          .capacity_factor = moe.capacity_factor,
          .load_weight = moe.load_weight,
          .z_weight = moe.z_weight,
          .bias_rate = moe.bias_rate,
          .jitter = moe.jitter,
          .jitter_seed = jitter_seed,
          .shared_experts = moe.shared_experts};
}

bool has_experts(const config::Config& config, BlockPlace place) {
  using config::MoePlace;
  const MoePlace wanted = config.moe.place;
  if (config.moe.experts == 0) return false;
  if (wanted == MoePlace::automatic) {
    if (is_prototype(config.lm)) return place == BlockPlace::encoder;
    return place == BlockPlace::decoder ||
           (reads_prompts(config.lm) && config.lm.encoder == config::LmEncoder::transformer);
  }
  return wanted == MoePlace::both || (wanted == MoePlace::encoder) == (place == BlockPlace::encoder);
}

// Empty if all layers are dense. `dense` creates the layers without experts.
template <class Dense>
nn::FeedForwardFactory feed_forward(const config::Config& config, BlockPlace place, at::Device device, Dense dense) {
  if (!has_experts(config, place)) return {};
  const int64_t width = config.lm.hidden_size;
  const auto seed = static_cast<uint64_t>(config.run.seed);
  return [config, width, device, dense, place, seed](int64_t layer) -> std::shared_ptr<nn::FeedForward> {
    if (!is_expert_block(config, place, layer)) return dense();
    const uint64_t own = hash_name(cat(place == BlockPlace::encoder ? "encoder." : "decoder.", layer)) ^ seed;
    return std::make_shared<nn::MoeFeedForward>(width, moe_options(config.moe, width, static_cast<int64_t>(own)),
                                                device);
  };
}

nn::FeedForwardFactory modern_feed_forward(const config::Config& config, BlockPlace place, at::Device device) {
  const int64_t width = config.lm.hidden_size, inner = swiglu_inner(config.lm);
  return feed_forward(config, place, device,
                      [=] { return std::make_shared<nn::SwigluFeedForward>(width, inner, device); });
}

DecoderOptions decoder_options(const config::Config& config, const LanguageSizes& sizes, int64_t prefix,
                               at::Device device) {
  const config::LmConfig& lm = config.lm;
  return {.vocabulary = sizes.vocabulary,
          .width = lm.hidden_size,
          .layers = lm.layers,
          .heads = lm.num_heads,
          .kv_heads = lm.kv_heads,
          .head_dim = lm.head_dim,
          .inner = swiglu_inner(lm),
          .positions = decoder_positions(lm, sizes) + prefix,
          .window = lm.window,
          .rope_theta = lm.rope_theta,
          .eps = lm.rms_norm_eps,
          .qk_norm = lm.qk_norm,
          .tied = lm.tied,
          .recompute = lm.recompute,
          .feed_forward = modern_feed_forward(config, BlockPlace::decoder, device)};
}

HrmLmOptions hrm_options(const config::Config& config) {
  const config::LmConfig& lm = config.lm;
  return {.core = {.width = lm.hidden_size,
                   .h_len = lm.h_len,
                   .l_len = lm.l_len,
                   .h_cycles = lm.h_cycles,
                   .l_steps = lm.l_steps,
                   .gradient_cycles = lm.gradient_cycles,
                   .halting = config.objective.halting > 0},
          .bridge = lm.bridge == config::LmBridge::prefix ? Bridge::prefix : Bridge::cross_attention,
          .prefix_len = lm.prefix_len,
          .gate_scale = lm.gate_scale,
          .gate_bias = lm.gate_bias};
}

std::shared_ptr<LanguageModel> build(const config::Config& config, const LanguageSizes& sizes, at::Device device,
                                     std::shared_ptr<const nn::TensorAcross> across = nullptr) {
  const config::LmConfig& lm = config.lm;
  if (!reads_prompts(lm)) {
    DecoderOptions decoder = decoder_options(config, sizes, 0, device);
    decoder.across = std::move(across);
    return std::make_shared<DecoderLm>(decoder, device);
  }
  const HrmLmOptions options = hrm_options(config);
  if (is_prototype(lm)) {
    require(!across, ExitCode::usage, "parallel.tensor cannot cut models of lm.style = prototype; set it to 1");
    const int64_t width = lm.hidden_size;
    PrototypeOptions prototype{.lm = options,
                               .vocabulary = sizes.vocabulary,
                               .heads = lm.num_heads,
                               .enc_layers = lm.enc_layers,
                               .dec_layers = lm.layers,
                               .h_layers = lm.h_layers,
                               .l_layers = lm.l_layers,
                               .max_prompt = prompt_positions(lm, sizes),
                               .max_answer = decoder_positions(lm, sizes)};
    prototype.feed_forward = feed_forward(config, BlockPlace::encoder, device, [=] {
      return std::make_shared<nn::GeluFeedForward>(width, 4 * width, device);
    });
    return make_prototype_lm(prototype, device);
  }
  ModernLmOptions modern;
  modern.lm = options;
  modern.decoder = decoder_options(config, sizes, options.bridge == Bridge::prefix ? options.prefix_len : 0, device);
  modern.decoder.across = std::move(across);
  modern.encoder = lm.encoder == config::LmEncoder::mamba2 ? EncoderKind::mamba2 : EncoderKind::transformer;
  modern.mamba2 = mamba2_options(lm);
  modern.enc_layers = lm.enc_layers;
  modern.h_layers = lm.h_layers;
  modern.l_layers = lm.l_layers;
  modern.max_prompt = prompt_positions(lm, sizes);
  modern.enc_feed_forward = modern_feed_forward(config, BlockPlace::encoder, device);
  return make_modern_lm(modern, device);
}

}  // namespace

bool is_expert_block(const config::Config& config, BlockPlace place, int64_t layer) {
  return has_experts(config, place) && layer % config.moe.every == config.moe.every - 1;
}

nn::MoeOptions expert_options(const config::Config& config) {
  return moe_options(config.moe, config.lm.hidden_size, /*jitter_seed=*/0);
}

nn::Mamba2Options mamba2_options(const config::LmConfig& config) {
  return {.width = config.hidden_size,
          .expand = config.mamba_expand,
          .head_dim = config.mamba_head_dim,
          .state = config.mamba_state,
          .groups = config.mamba_groups,
          .kernel = config.mamba_kernel,
          .chunk = config.mamba_chunk};
}

int64_t swiglu_inner(const config::LmConfig& config) {
  return config.inner > 0 ? config.inner : nn::swiglu_width(config.hidden_size, 4);
}

int64_t expert_inner(const config::MoeConfig& config, int64_t width) {
  if (config.inner > 0) return config.inner;
  return swiglu_experts(config) ? nn::swiglu_width(width, 4) : 4 * width;
}

double expert_matrices(const config::MoeConfig& config) {
  return swiglu_experts(config) ? 3 : 2;
}

LanguageSizes language_sizes(const config::DataConfig& data, int64_t vocabulary) {
  return {vocabulary, data.encoder_len, data.decoder_len};
}

DecoderOptions plain_decoder_options(const config::Config& config, const LanguageSizes& sizes) {
  DecoderOptions options = decoder_options(config, sizes, /*prefix=*/0, at::kCPU);
  options.feed_forward = {};
  return resolve(options);
}

DecoderOptions family_decoder_options(const config::Config& config, const LanguageSizes& sizes) {
  DecoderOptions options = plain_decoder_options(config, sizes);
  const config::MoeConfig& moe = config.moe;
  if (!has_experts(config, BlockPlace::decoder) || !swiglu_experts(moe) || moe.score != config::RouterScore::softmax ||
      moe.capacity_factor > 0 || moe.bias_rate > 0 || moe.shared_experts > 0) {
    return options;
  }
  options.experts = {.count = moe.experts,
                     .top_k = moe.top_k,
                     .inner = expert_inner(moe, config.lm.hidden_size),
                     .normalize = moe.normalize,
                     .load_weight = moe.load_weight};
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    if (!is_expert_block(config, BlockPlace::decoder, layer)) options.experts.dense_layers.push_back(layer);
  }
  options.form.mixtral_names = !options.qk_norm;
  return options;
}

bool reads_prompts(const config::LmConfig& config) {
  return config.has_core();
}

bool is_prototype(const config::LmConfig& config) {
  return config.is_prototype();
}

int64_t decoder_positions(const config::LmConfig& config, const LanguageSizes& sizes) {
  const int64_t row = sizes.decoder_len + (reads_prompts(config) ? 0 : sizes.encoder_len);
  require(config.positions == 0 || config.positions >= row, ExitCode::usage, "lm.positions = ", config.positions,
          " is too small for training rows of ", row, " tokens (data.decoder_len",
          reads_prompts(config) ? "" : " and data.encoder_len", "); set it to ", row, " or more, or to 0");
  return config.positions > 0 ? config.positions : std::max(row, kUsualPositions);
}

int64_t prompt_positions(const config::LmConfig& config, const LanguageSizes& sizes) {
  return std::max(sizes.encoder_len, config.positions > 0 ? config.positions : kUsualPositions);
}

std::shared_ptr<LanguageModel> make_language_model(const config::Config& config, const LanguageSizes& sizes,
                                                   uint64_t seed, at::Device device, at::ScalarType compute_dtype,
                                                   std::shared_ptr<const nn::TensorAcross> across) {
  auto model = build(config, sizes, device, std::move(across));
  model->initialise(seed, compute_dtype, split_list(config.lm.freeze));
  fake_quantize(*model, config.precision.fake_quantize);
  return model;
}

std::shared_ptr<LanguageModel> make_language_model_outline(const config::Config& config, const LanguageSizes& sizes,
                                                           std::shared_ptr<const nn::TensorAcross> across) {
  auto model = build(config, sizes, at::kMeta, std::move(across));
  model->freeze(split_list(config.lm.freeze));
  return model;
}

std::vector<std::pair<std::string, nn::MoeFeedForward*>> mixtures_of(torch::nn::Module& model) {
  std::vector<std::pair<std::string, nn::MoeFeedForward*>> found;
  for (const auto& item : model.named_modules()) {
    if (auto* mixture = dynamic_cast<nn::MoeFeedForward*>(item.value().get())) found.emplace_back(item.key(), mixture);
  }
  return found;
}

namespace {

void add_token_linears(const std::shared_ptr<torch::nn::Module>& module, const std::string& name, bool in_block,
                       std::vector<nn::NamedLinear>& found) {
  if (dynamic_cast<nn::MoeFeedForward*>(module.get()) != nullptr || dynamic_cast<HrmCore*>(module.get()) != nullptr) {
    return;
  }
  auto* linear = dynamic_cast<nn::Linear*>(module.get());
  const bool of_memory = name.ends_with(".cross_attn.kv_proj");
  if (in_block && linear != nullptr && !of_memory) found.push_back({name, linear});
  const bool block = in_block || dynamic_cast<nn::TransformerBlock*>(module.get()) != nullptr;
  for (const auto& child : module->named_children()) {
    add_token_linears(child.value(), name.empty() ? child.key() : cat(name, ".", child.key()), block, found);
  }
}

}  // namespace

std::vector<nn::NamedLinear> token_linears(torch::nn::Module& model) {
  std::vector<nn::NamedLinear> found;
  for (const auto& child : model.named_children()) add_token_linears(child.value(), child.key(), false, found);
  return found;
}

at::ScalarType fake_quantized_type(config::FakeQuantization format) {
  require(format != config::FakeQuantization::none, ExitCode::unexpected, "precision.fake_quantize is none");
  return format == config::FakeQuantization::int8 ? at::kChar : at::kFloat8_e4m3fn;
}

void fake_quantize(LanguageModel& model, config::FakeQuantization format) {
  if (format == config::FakeQuantization::none) return;
  std::vector<nn::HasComputeWeight*> linears;
  for (const nn::NamedLinear& layer : token_linears(model)) linears.push_back(layer.linear);
  model.parameter_set().fake_quantize(linears, fake_quantized_type(format));
}

namespace {

// Multiplications and additions of one forward pass.
class Flops {
 public:
  explicit Flops(const config::Config& config) : c_(config), lm_(config.lm) {}

  // A stack of blocks over `positions` positions, each attending to `keys` positions on average.
  double blocks(int64_t layers, double positions, double keys, BlockPlace place, bool may_have_experts,
                bool cross) const {
    double sum = 0;
    for (int64_t layer = 0; layer < layers; ++layer) {
      const bool experts = may_have_experts && is_expert_block(c_, place, layer);
      sum += block(positions, keys, experts, cross);
    }
    return sum;
  }

  double linear(double positions, double in, double out) const { return 2 * positions * in * out; }

  double mamba(double positions) const {
    const double D = width(), inner = static_cast<double>(lm_.mamba_expand) * D,
                 state = static_cast<double>(lm_.mamba_state), groups = static_cast<double>(lm_.mamba_groups),
                 heads = inner / static_cast<double>(lm_.mamba_head_dim);
    const double chunk = std::min(positions, static_cast<double>(lm_.mamba_chunk));
    const double products = linear(positions, D, 2 * inner + 2 * groups * state + heads) + linear(positions, inner, D);
    // Within chunks: C B^T (per group) and its product with x. Between chunks: states in and out.
    return products + 2 * positions * chunk * (groups * state + inner) + 4 * positions * inner * state;
  }

  double width() const { return static_cast<double>(lm_.hidden_size); }

 private:
  double block(double positions, double keys, bool experts, bool cross) const {
    const double D = width();
    const auto heads = static_cast<double>(lm_.num_heads);
    const double head = lm_.head_dim > 0 ? static_cast<double>(lm_.head_dim) : D / heads;
    const double kv_heads = lm_.kv_heads > 0 ? static_cast<double>(lm_.kv_heads) : heads;
    double sum = linear(positions, D, (heads + 2 * kv_heads) * head) + linear(positions, heads * head, D);
    sum += 4 * positions * keys * heads * head;
    if (cross) sum += 2 * linear(positions, D, heads * head);
    if (!experts) {
      const bool gelu = is_prototype(lm_);
      return sum + (gelu ? 2 * linear(positions, D, 4 * D)
                         : 3 * linear(positions, D, static_cast<double>(swiglu_inner(lm_))));
    }
    const config::MoeConfig& moe = c_.moe;
    const auto inner = static_cast<double>(expert_inner(moe, lm_.hidden_size));
    return sum + linear(positions, D, static_cast<double>(moe.experts)) +
           expert_matrices(moe) * static_cast<double>(moe.top_k + moe.shared_experts) * linear(positions, D, inner);
  }

  const config::Config& c_;
  const config::LmConfig& lm_;
};

}  // namespace

double training_flops_per_row(const config::Config& config, const LanguageSizes& sizes) {
  const config::LmConfig& lm = config.lm;
  const Flops flops(config);
  const double D = flops.width(), V = static_cast<double>(sizes.vocabulary);
  const bool prompts = reads_prompts(lm),
             prefix = prompts && !is_prototype(lm) && lm.bridge == config::LmBridge::prefix;
  const double row = static_cast<double>(sizes.decoder_len + (prompts ? 0 : sizes.encoder_len));
  const double positions = row + (prefix ? static_cast<double>(lm.prefix_len) : 0);
  const double keys = lm.window > 0 ? std::min(static_cast<double>(lm.window), positions / 2) : positions / 2;
  const bool cross = prompts && !prefix;
  const double decoder = flops.blocks(lm.layers, positions, keys, BlockPlace::decoder, true, cross);
  const double head = flops.linear(row, D, V);
  if (!prompts) return 3 * (decoder + head);

  // Deep supervision decodes the output of every cycle.
  const auto cycles = static_cast<double>(lm.h_cycles);
  const double answers = config.objective.deep_supervision > 0 ? cycles : 1;
  const auto S = static_cast<double>(sizes.encoder_len), H = static_cast<double>(lm.h_len),
             L = static_cast<double>(lm.l_len);
  const double encoder = lm.encoder == config::LmEncoder::mamba2
                             ? static_cast<double>(lm.enc_layers) * flops.mamba(S)
                             : flops.blocks(lm.enc_layers, S, S, BlockPlace::encoder, true, false);
  const double cycle =
      static_cast<double>(lm.l_steps) * flops.blocks(lm.l_layers, L, L, BlockPlace::encoder, false, false) +
      flops.blocks(lm.h_layers, H, H, BlockPlace::encoder, false, false);
  const double recorded = config.objective.halting > 0 || lm.gradient_cycles == 0
                              ? cycles
                              : std::min(cycles, static_cast<double>(lm.gradient_cycles));
  return 3 * (encoder + answers * (decoder + head)) + cycle * (cycles - recorded + 3 * recorded);
}

}  // namespace hrm::models
