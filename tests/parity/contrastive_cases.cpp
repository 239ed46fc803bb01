// contrastive: statistics of the speed energy, one window of free and nudged phases, the readout's gradient, SPSA and
// the scalar rule.

#include "hrm/base/error.h"
#include "hrm/objectives/contrastive_rules.h"
#include "hrm/ops/geometric_retrieval.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

// The case in one dtype.
class ContrastiveCase {
 public:
  ContrastiveCase(const Case& loaded, at::ScalarType dtype, Tolerance tolerance)
      : case_(loaded), dtype_(dtype), tolerance_(tolerance), eps_(loaded.json.at("config").at("eps")) {}

  void check() const {
    int statistics = 0;
    for (; case_.has(cat("stat", statistics, ".E")); ++statistics) check_statistics(cat("stat", statistics, "."));
    EXPECT_GT(statistics, 0) << case_.name;
    check_window();
    check_rules();
  }

 private:
  at::Tensor operator()(const std::string& name) const {
    const at::Tensor& stored = case_.at(name);
    return at::isFloatingType(stored.scalar_type()) ? stored.to(device(), dtype_) : stored.to(device());
  }

  void compare(const std::string& name, const at::Tensor& got) const {
    EXPECT_EQ(got.scalar_type(), dtype_) << name;
    expect_close(cat(name, ", ", dtype_), got, case_.at(name), tolerance_);
  }

  void check_statistics(const std::string& name) const {
    const auto in = [&](const char* tensor) { return (*this)(name + "in." + tensor); };
    const ops::SpeedStatistics got =
        ops::speed_statistics(in("v"), in("R"), in("g"), in("theta"), eps_, in("U"), in("Dm"));
    compare(name + "E", got.energy);
    compare(name + "Phi_g", got.g);
    compare(name + "Phi_theta", got.theta);
    compare(name + "Phi_U", got.vectors);
    compare(name + "Phi_Dm", got.weights);
  }

  // x moves to what it retrieves and, by sign * beta, to the target; its moves are what the energy measures.
  ops::SpeedStatistics check_phase(const std::string& name, double sign) const {
    const auto& config = case_.json.at("config").at("window");
    const auto in = [&](const char* tensor) { return (*this)(std::string("win.in.") + tensor); };
    const at::Tensor g = in("g"), theta = in("theta"), r = in("R"), target = in("target");
    const ops::RetrievalCandidates bank{
        .bank_coords = in("bank_coord"),
        .bank_states = in("bank_state"),
        .filled = at::full({}, case_.at("win.in.bank_coord").size(0), at::device(device()).dtype(at::kLong))};
    const int64_t steps = config.at("steps");
    const double dt = config.at("dt"), pull = sign * config.at("beta").get<double>();
    at::Tensor x = in("x0");
    std::vector<at::Tensor> energies, states{x}, g_statistics, theta_statistics;
    for (int64_t step = 0; step < steps; ++step) {
      const at::Tensor y =
          ops::geometric_retrieval(x, bank, r, g, theta, ops::RetrievalForm::sound, config.at("retrieval_beta"), eps_);
      const at::Tensor v = dt * (y.narrow(1, 0, x.size(1)) - x) + pull * (target - x);
      x = x + v;
      const ops::SpeedStatistics at_step = ops::speed_statistics(v, r, g, theta, eps_);
      energies.push_back(at_step.energy);
      states.push_back(x);
      g_statistics.push_back(at_step.g);
      theta_statistics.push_back(at_step.theta);
    }
    ops::SpeedStatistics mean;
    mean.g = at::stack(g_statistics).mean(0);
    mean.theta = at::stack(theta_statistics).mean(0);
    compare(name + "E", at::stack(energies));
    compare(name + "x", at::stack(states));
    compare(name + "Phi_g", mean.g);
    compare(name + "Phi_theta", mean.theta);
    return mean;
  }

  void check_window() const {
    const auto& config = case_.json.at("config").at("window");
    check_phase("win.free.", 0);
    const ops::SpeedStatistics plus = check_phase("win.plus.", 1), minus = check_phase("win.minus.", -1);
    const double scale = config.at("eta").get<double>() / (2 * config.at("beta").get<double>());
    const at::Tensor g = (*this)("win.in.g"), g_step = scale * (plus.g - minus.g);
    // Differences of statistics, enlarged by eta / (2 beta).
    compare("win.new_g_linear", g - g_step);
    compare("win.new_g_log", (g.log() - g * g_step).exp());
    compare("win.new_theta", (*this)("win.in.theta") - scale * (plus.theta - minus.theta));
  }

  void check_rules() const {
    const at::Tensor y = (*this)("readout.y");
    const objectives::ReadoutGradient readout = objectives::readout_gradient(
        y.matmul((*this)("readout.W").t()) + (*this)("readout.b"), y, (*this)("readout.target"));
    // The case has the direction of descent.
    compare("readout.dW", -readout.weight);
    compare("readout.db", -readout.bias);

    const double sigma = case_.json.at("config").at("spsa").at("sigma");
    const at::Tensor p = (*this)("spsa.p"), matrix = (*this)("spsa.A"), delta = (*this)("spsa.delta");
    // In float64 in both ways: the difference of two values of J in float32 would measure rounding.
    const auto objective = [&](const at::Tensor& at_p) {
      const at::Tensor x = at_p.to(at::kDouble);
      return (x.matmul(matrix.to(at::kDouble)) * x).sum(-1) / 2 + x.sin().sum(-1);
    };
    compare("spsa.J", objective(p).to(dtype_));
    const at::Tensor wide = p.to(at::kDouble), step = sigma * delta.to(at::kDouble);
    const at::Tensor above = objective(wide + step), below = objective(wide - step);
    at::Tensor gradient = at::zeros_like(wide);
    for (int64_t i = 0; i < delta.size(0); ++i) {
      gradient += objectives::spsa_part(above.select(0, i), below.select(0, i), delta.select(0, i).to(at::kDouble),
                                        sigma, delta.size(0));
    }
    compare("spsa.grad", gradient.to(dtype_));

    const auto& rule = case_.json.at("config").at("scalar_rule");
    const double factor = rule.at("eta").get<double>() * rule.at("dL").get<double>();
    const at::Tensor v = (*this)("scalar_rule.v_mean"), g = (*this)("scalar_rule.g").clone(),
                     theta = (*this)("scalar_rule.theta").clone();
    const at::Tensor w = ops::rotor_matrix(theta, v.size(0)).matmul(v);
    const objectives::ScalarDirection direction = objectives::scalar_direction(w, v, theta.size(0));
    g.add_(factor * direction.g);
    theta.add_(factor * direction.theta);
    objectives::project_metric_(g, theta);
    compare("scalar_rule.new_g", g);
    compare("scalar_rule.new_theta", theta);
  }

  const Case& case_;
  at::ScalarType dtype_;
  Tolerance tolerance_;
  double eps_;
};

void check_contrastive(const Case& loaded) {
  const auto tolerance = [](const nlohmann::json& stated) {
    return Tolerance{.rtol = stated.at("rtol"), .atol = stated.at("atol")};
  };
  const auto& stated = loaded.json.at("tolerance");
  ContrastiveCase(loaded, at::kDouble, tolerance(stated)).check();
  ContrastiveCase(loaded, at::kFloat, tolerance(stated.at("float32 implementations"))).check();
}

const RegisterKind kContrastive("contrastive", check_contrastive);

}  // namespace
}  // namespace hrm::parity
