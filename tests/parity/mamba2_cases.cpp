// mamba2_block: the block with and without padding, token by token and in pieces, against float32 and float64 numbers.

#include "hrm/nn/mamba2.h"
#include "hrm/ops/backend.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

using nlohmann::json;

struct ReferenceBackend {
  ReferenceBackend() { ops::set_backend(ops::Backend::reference); }
  ~ReferenceBackend() { ops::set_backend(ops::Backend::fused); }
};

class Subcase {
 public:
  Subcase(const Case& loaded, size_t number)
      : loaded_(loaded), config_(loaded.json.at("subcases").at(number)), prefix_(std::to_string(number) + ".") {}

  void check() const {
    const auto block = make_block();
    check_pieces(*block);
    check_gradients(*block, "", {});
    check_gradients(*block, "mask.", "in.mask");
    {
      const at::NoGradGuard no_grad;
      const at::Tensor y = run(*block, at("in.x"), at("in.mask_left"));
      close("mask_left.out.y", y);
      close("mask_left.out.loss", (y * at("in.dy") * at("in.mask_left").unsqueeze(-1)).sum());
      if (config_.at("decode").get<bool>()) check_decoding(*block);
    }
    check_float64();
  }

 private:
  at::Tensor at(const std::string& name) const { return loaded_.at(prefix_ + name).to(device()); }

  std::shared_ptr<nn::Mamba2Block> make_block() const {
    const auto limit = [&](size_t i) {
      const json& value = config_.at("time_step_limit").at(i);
      return value.is_string() ? std::numeric_limits<double>::infinity() : value.get<double>();
    };
    const auto block = std::make_shared<nn::Mamba2Block>(nn::Mamba2Options{.width = config_.at("hidden"),
                                                                           .expand = config_.at("expand"),
                                                                           .head_dim = config_.at("head_dim"),
                                                                           .state = config_.at("state"),
                                                                           .groups = config_.at("n_groups"),
                                                                           .kernel = config_.at("conv_kernel"),
                                                                           .chunk = config_.at("chunk"),
                                                                           .eps = config_.at("eps"),
                                                                           .bias = config_.at("use_bias"),
                                                                           .conv_bias = config_.at("use_conv_bias"),
                                                                           .dt_min = limit(0),
                                                                           .dt_max = limit(1)},
                                                         device());
    const at::NoGradGuard no_grad;
    const auto weights = loaded_.group(prefix_ + "param.");
    auto parameters = block->named_parameters();
    EXPECT_EQ(parameters.size(), weights.size());
    for (const auto& [name, value] : weights) {
      EXPECT_NE(parameters.find(name), nullptr) << name;
      EXPECT_EQ(parameters[name].sizes(), value.sizes()) << name;
      parameters[name].copy_(value);
    }
    return block;
  }

  static at::Tensor run(const nn::Mamba2Block& block, const at::Tensor& x, const at::Tensor& mask,
                        nn::Mamba2State* state = nullptr) {
    return block.forward(x, mask, x.scalar_type(), state);
  }

  // The rule of the case: atol + rtol * the largest value, or ten times the stated noise. `noise`: name of the noise.
  void close(const std::string& name, const at::Tensor& got, const std::string& noise = "") const {
    const at::Tensor want = at(name);
    const json& tolerance = loaded_.json.at("tolerance");
    double allowed =
        tolerance.at("atol").get<double>() + tolerance.at("rtol").get<double>() * want.abs().max().item<double>();
    const json& stated = config_.at("rounding_noise");
    const std::string key = noise.empty() ? name : noise;
    if (stated.contains(key)) allowed = std::max(allowed, 10 * stated.at(key).get<double>());
    expect_close(prefix_ + name, got, want, {.rtol = 0, .atol = allowed});
  }

  void check_pieces(const nn::Mamba2Block& block) const {
    const at::NoGradGuard no_grad;
    const at::Tensor normed = block.norm().forward(at("in.x"));
    nn::Mamba2Trace trace;
    const at::Tensor mixed = block.mixer().forward(normed, {}, nullptr, &trace);
    close("dbg.normed", normed);
    close("dbg.in_proj", trace.in_proj);
    close("dbg.dt", trace.dt);
    close("dbg.conv", trace.conv);
    close("dbg.scan", trace.scan);
    close("dbg.gated_norm", trace.gated_norm);
    close("dbg.mixer", mixed);
  }

  void check_gradients(nn::Mamba2Block& block, const std::string& group, const std::string& mask_name) const {
    block.zero_grad();
    const at::Tensor x = at("in.x").clone().requires_grad_();
    const at::Tensor mask = mask_name.empty() ? at::Tensor() : at(mask_name);
    const at::Tensor y = run(block, x, mask);
    const at::Tensor weighted = y * at("in.dy");
    const at::Tensor loss = (mask.defined() ? weighted * mask.unsqueeze(-1) : weighted).sum();
    close(group + "out.y", y);
    close(group + "out.loss", loss);
    loss.backward();
    const auto parameters = block.named_parameters();
    const auto wanted = loaded_.group(prefix_ + group + "grad.");
    EXPECT_EQ(wanted.size(), parameters.size() + 1);
    for (const auto& [name, want] : wanted) {
      close(group + "grad." + name, name == "x" ? x.grad() : parameters[name].grad(), group + "grad");
    }
  }

  void check_decoding(const nn::Mamba2Block& block) const {
    const at::Tensor x = at("in.x");
    const int64_t T = x.size(1), piece = config_.at("prefill");
    const auto decode = [&](nn::Mamba2State& state, int64_t first, const auto& after_step) {
      std::vector<at::Tensor> y;
      for (int64_t t = first; t < T; ++t) {
        y.push_back(run(block, x.narrow(1, t, 1), {}, &state));
        after_step(t + 1);
      }
      return at::cat(y, 1);
    };
    nn::Mamba2State state = block.mixer().make_state(x.size(0), at::kFloat);
    const at::Tensor y = decode(state, 0, [&](int64_t tokens) {
      const std::string number = std::to_string(tokens);
      if (!loaded_.has(prefix_ + "decode.ssm_state." + number)) return;
      close("decode.ssm_state." + number, state.ssm);
      close("decode.conv_state." + number, state.conv);
    });
    close("decode.y", y);
    for (const std::string group : {"prefill", "prefill_left"}) {
      nn::Mamba2State after = block.mixer().make_state(x.size(0), at::kFloat);
      const at::Tensor mask = group == "prefill" ? at::Tensor() : at("in.mask_left").narrow(1, 0, piece);
      const at::Tensor first = run(block, x.narrow(1, 0, piece), mask, &after);
      close(group + ".ssm_state", after.ssm);
      close(group + ".conv_state", after.conv);
      close(group + ".y", at::cat({first, decode(after, piece, [](int64_t) {})}, 1));
    }
  }

  // Both forms in float64 give the stored float64 numbers; the sequential one is what made them.
  void check_float64() const {
    const at::NoGradGuard no_grad;
    const auto block = make_block();
    block->to(at::kDouble);
    const at::Tensor x = at("in.x").to(at::kDouble);
    const auto compare = [&](const std::string& form) {
      const Tolerance tolerance{.rtol = 1e-9, .atol = 1e-9};
      const auto one = [&](const std::string& name, const at::Tensor& mask) {
        expect_close(prefix_ + name + ", " + form, run(*block, x, mask), at(name), tolerance);
      };
      one("ref64.y", {});
      one("mask.ref64.y", at("in.mask"));
      one("mask_left.ref64.y", at("in.mask_left"));
    };
    compare("chunked");
    const ReferenceBackend sequential;
    compare("sequential");
  }

  const Case& loaded_;
  const json& config_;
  std::string prefix_;
};

void check_mamba2(const Case& loaded) {
  for (size_t i = 0; i < loaded.json.at("subcases").size(); ++i) Subcase(loaded, i).check();
}

const RegisterKind kMamba2("mamba2_block", check_mamba2);

}  // namespace
}  // namespace hrm::parity
