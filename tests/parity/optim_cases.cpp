// schedules, grad_clip, optimizer.

#include <limits>

#include "hrm/optim/clip.h"
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
                                .shape = table.value("shape", std::string("1-sqrt"))};
    const at::Tensor want = loaded.at(name);
    at::Tensor got = at::empty_like(want);
    for (int64_t step = 0; step < want.numel(); ++step) {
      got[step] = optim::scheduled(table.at("kind"), table.at("base"), step, table.at("T"), table.at("warmup"),
                                   table.at("min_ratio"), wsd);
    }
    expect_close(name + " (" + table.at("kind").get<std::string>() + ")", got, want, {rtol, 0});
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

// Which of our optimizers a case is about, from its update rule; empty for those that we do not have yet.
std::string optimizer_name(const Case& loaded) {
  const std::string text = loaded.json.at("description").get<std::string>();
  if (text.starts_with("AdamATan2")) return "adam_atan2";
  if (text.starts_with("AdamW")) return "adamw";
  for (const char* known : {"Lion", "Muon", "SGD", "torch.optim.Muon"}) {
    if (text.find(known) != std::string::npos) return "";
  }
  ADD_FAILURE() << "case " << loaded.name << " describes an unknown optimizer: " << text;
  return "";
}

class StateTensors : public StateVisitor {
 public:
  void tensor(const std::string& name, at::Tensor& tensor, StateRole, StateSlice) override { found[name] = tensor; }
  void integer(const std::string&, int64_t&) override {}
  void real(const std::string&, double&) override {}
  std::map<std::string, at::Tensor> found;
};

void check_optimizer(const Case& loaded) {
  const std::string name = optimizer_name(loaded);
  if (name.empty()) GTEST_SKIP() << "this optimizer is not due yet";
  const json& config = loaded.json.at("config");
  const json& stated = loaded.json.at("tolerance");
  const Tolerance tolerance{.rtol = stated.at("rtol"), .atol = stated.at("atol")};
  std::vector<optim::ParameterGroup> groups;
  std::map<std::string, at::Tensor> params, grads;
  for (const auto& [key, value] : loaded.group("param.")) {
    params[key] = value.to(device()).clone();
    grads[key] = at::zeros_like(params[key]);
    groups.push_back({.names = {key},
                      .params = {params[key]},
                      .grads = {grads[key]},
                      .weight_decay = config.at("weight_decay").at(key)});
  }
  const auto optimizer = optim::make_optimizer({.name = name,
                                                .beta1 = config.at("betas").at(0),
                                                .beta2 = config.at("betas").at(1),
                                                .eps = config.value("eps", 1e-8)},
                                               groups);
  const auto scalar = [](double value) { return at::scalar_tensor(value, at::device(device()).dtype(at::kFloat)); };
  const at::Tensor lr = loaded.at("in.lr");
  for (int64_t step = 0; step < lr.numel(); ++step) {
    for (auto& [key, grad] : grads) grad.copy_(loaded.at("grad." + key).select(0, step));
    optimizer->step(scalar(lr[step].item<double>()), scalar(1), scalar(0));
    for (const auto& [key, param] : params) {
      expect_close("step " + std::to_string(step + 1) + ": " + key, param,
                   loaded.at("out.param." + key).select(0, step), tolerance);
    }
  }
  StateTensors state;
  optimizer->visit_state(state);
  for (const auto& [key, param] : params) {
    for (const std::string moment : {"exp_avg", "exp_avg_sq"}) {
      expect_close(moment + " " + key, state.found.at("optim." + key + "." + moment),
                   loaded.at("out.state." + moment + "." + key), tolerance);
    }
  }
}

const RegisterKind kSchedules("schedules", check_schedules);
const RegisterKind kGradClip("grad_clip", check_grad_clip);
const RegisterKind kOptimizer("optimizer", check_optimizer);

}  // namespace
}  // namespace hrm::parity
