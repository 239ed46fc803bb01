// schedules, grad_clip, optimizer.

#include <limits>

#include "hrm/base/error.h"
#include "hrm/optim/clip.h"
#include "hrm/optim/muon.h"
#include "hrm/optim/optimizer.h"
#include "hrm/optim/schedules.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

using nlohmann::json;

void check_schedules(const Case& loaded) {
  const double rtol = loaded.json.at("tolerance").at("rtol");
  int64_t index = 0;
  for (const json& table : loaded.json.at("tables")) {
    const std::string name = "table" + std::to_string(index++);
    const optim::WsdOptions wsd{.stable = table.value("stable", int64_t{-1}),
                                .decay = table.value("decay", int64_t{-1}),
                                .shape = config::value_of_name<config::WsdShape>(table.value("shape", "1-sqrt"))};
    const at::Tensor want = loaded.at(name);
    const auto kind = config::value_of_name<config::Schedule>(table.at("kind").get<std::string>());
    at::Tensor got = at::empty_like(want);
    for (int64_t step = 0; step < want.numel(); ++step) {
      got[step] =
          optim::scheduled(kind, table.at("base"), step, table.at("T"), table.at("warmup"), table.at("min_ratio"), wsd);
    }
    expect_close(cat(name, " (", kind, ")"), got, want, {rtol, 0});
  }
  EXPECT_GT(index, 0);
}

void check_grad_clip(const Case& loaded) {
  const double rtol = loaded.json.at("tolerance").at("rtol");
  int subcases = 0;
  for (const json& subcase : loaded.json.at("subcases")) {
    const std::string name = subcase.at("name");
    std::vector<at::Tensor> grads;
    std::vector<std::string> names;
    for (const auto& [key, value] : loaded.group(name + ".in.")) {
      names.push_back(key);
      grads.push_back(value.to(device()).clone());
    }
    const json& type = subcase.at("norm_type");
    const double norm_type = type.is_string() ? std::numeric_limits<double>::infinity() : type.get<double>();
    std::vector<at::Tensor> flat;
    for (const at::Tensor& grad : grads) flat.push_back(grad.reshape({-1}));
    const optim::GradNorm norm = optim::global_norm(at::cat(flat), subcase.at("max_norm"), norm_type);
    for (at::Tensor& grad : grads) grad.mul_(norm.coef);
    expect_close(name + ".norm", norm.norm, loaded.at(name + ".out.norm"), {rtol, 0});
    expect_close(name + ".coef", norm.coef, loaded.at(name + ".out.coef"), {rtol, 0});
    EXPECT_EQ(norm.nonfinite.item<double>() == 0, loaded.at(name + ".out.finite").item<bool>()) << name;
    for (size_t i = 0; i < names.size(); ++i) {
      expect_close(name + "." + names[i], grads[i], loaded.at(name + ".out." + names[i]), {rtol, 0});
    }
    ++subcases;
  }
  EXPECT_GT(subcases, 0);
}

// Which of our optimizers a case is about, from its update rule; torch's own Muon is checked by itself.
std::string optimizer_name(const Case& loaded) {
  const std::string text = loaded.json.at("description").get<std::string>();
  for (const auto& [begin, name] : {std::pair{"AdamATan2", "adam_atan2"}, std::pair{"AdamW", "adamw"},
                                    std::pair{"Lion", "lion"}, std::pair{"SGD", "sgd"}, std::pair{"Muon", "muon"}}) {
    if (text.starts_with(begin)) return name;
  }
  ADD_FAILURE() << "case " << loaded.name << " describes an unknown optimizer: " << text;
  return "";
}

class StateTensors : public StateVisitor {
 public:
  void tensor(const std::string& name, at::Tensor& tensor, StateRole, const StatePart&) override {
    found[name] = tensor;
  }
  void integer(const std::string&, int64_t&) override {}
  void real(const std::string&, double&) override {}
  std::map<std::string, at::Tensor> found;
};

optim::OptimizerOptions optimizer_options(const std::string& name, const json& config) {
  optim::OptimizerOptions options{.name = config::value_of_name<config::OptimizerKind>(name)};
  const char* betas = name == "muon" ? "adamw_betas" : "betas";
  if (config.contains(betas)) {
    options.beta1 = config.at(betas).at(0);
    options.beta2 = config.at(betas).at(1);
  }
  options.eps = config.value(name == "muon" ? "adamw_eps" : "eps", 1e-8);
  options.momentum = config.value("momentum", options.momentum);
  options.adamw_lr_ratio = config.value("adamw_lr_ratio", 1.0);
  options.muon_precision = config::MuonPrecision::fp32;
  return options;
}

// A case's parameters in training.
struct Trained {
  Trained(const Case& loaded, const optim::OptimizerOptions& options) {
    for (const auto& [key, value] : loaded.group("param.")) {
      params[key] = value.to(device()).clone();
      grads[key] = at::zeros_like(params[key]);
      groups.push_back({.names = {key},
                        .params = {params[key]},
                        .grads = {grads[key]},
                        .weight_decay = loaded.json.at("config").at("weight_decay").at(key),
                        .matrices = options.name == config::OptimizerKind::muon && value.dim() >= 2});
    }
    optimizer = optim::make_optimizer(options, groups);
  }
  void step(const Case& loaded, int64_t step) {
    const auto scalar = [](double value) { return at::scalar_tensor(value, at::device(device()).dtype(at::kFloat)); };
    for (auto& [key, grad] : grads) grad.copy_(loaded.at("grad." + key).select(0, step));
    optimizer->step(scalar(loaded.at("in.lr")[step].item<double>()), scalar(1), scalar(0));
  }
  // "<moment>.<parameter>" as the cases call it.
  at::Tensor state(const std::string& moment_and_key) const {
    StateTensors all;
    optimizer->visit_state(all);
    const size_t dot = moment_and_key.find('.');
    return all.found.at("optim." + moment_and_key.substr(dot + 1) + "." + moment_and_key.substr(0, dot));
  }
  std::map<std::string, at::Tensor> params, grads;
  std::vector<optim::ParameterGroup> groups;
  std::unique_ptr<optim::Optimizer> optimizer;
};

// torch.optim.Muon: the float32 iteration against the same in float32, the bfloat16 one by its distance from that.
void check_torch_muon(const Case& loaded) {
  const json& config = loaded.json.at("config");
  const Tolerance tolerance{.rtol = 1e-5, .atol = 2e-6};  // as the case says in words
  for (const auto which : {config::MuonScale::original, config::MuonScale::match_rms_adamw}) {
    const std::string scale = config::name_of(which);
    optim::OptimizerOptions options = optimizer_options("muon", config);
    options.muon_scale = which;
    Trained exact(loaded, options);
    options.muon_precision = config::MuonPrecision::bf16;
    Trained low(loaded, options);
    const int64_t steps = loaded.at("in.lr").numel();
    for (int64_t step = 0; step < steps; ++step) {
      exact.step(loaded, step);
      low.step(loaded, step);
      for (const auto& [key, param] : exact.params) {
        const at::Tensor want = loaded.at(scale + ".ref32.param." + key).select(0, step);
        expect_close(cat(scale, " step ", step + 1, ": ", key), param, want, tolerance);
        expect_within_twice(cat(scale, " in bfloat16: ", key), low.params.at(key), want,
                            loaded.json.at("bf16_error_vs_f32").at(scale + "." + key));
      }
    }
    const json& stated = loaded.json.at("tolerance").at("state.momentum");
    for (const auto& [key, param] : exact.params) {
      expect_close("momentum " + key, exact.state("momentum." + key), loaded.at(scale + ".out.state.momentum." + key),
                   {.rtol = stated.at("rtol"), .atol = stated.at("atol")});
    }
  }
}

void check_optimizer(const Case& loaded) {
  if (loaded.json.at("description").get<std::string>().starts_with("torch.optim.Muon")) return check_torch_muon(loaded);
  const std::string name = optimizer_name(loaded);
  const json& stated = loaded.json.at("tolerance");
  const Tolerance tolerance{.rtol = stated.at("rtol"), .atol = stated.at("atol")};
  Trained trained(loaded, optimizer_options(name, loaded.json.at("config")));
  for (int64_t step = 0; step < loaded.at("in.lr").numel(); ++step) {
    trained.step(loaded, step);
    for (const auto& [key, param] : trained.params) {
      expect_close("step " + std::to_string(step + 1) + ": " + key, param,
                   loaded.at("out.param." + key).select(0, step), tolerance);
    }
  }
  const auto states = loaded.group("out.state.");
  EXPECT_GE(states.size(), trained.params.size());
  for (const auto& [key, want] : states) expect_close(key, trained.state(key), want, tolerance);
  for (const auto& [key, input] : loaded.group("ns.in.")) {
    expect_close("Newton-Schulz of " + key, optim::newton_schulz(input.to(device()), at::kFloat),
                 loaded.at("ns.out." + key), tolerance);
  }
}

const RegisterKind kSchedules("schedules", check_schedules);
const RegisterKind kGradClip("grad_clip", check_grad_clip);
const RegisterKind kOptimizer("optimizer", check_optimizer);

}  // namespace
}  // namespace hrm::parity
