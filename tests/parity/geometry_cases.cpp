// geometry, metric_sync: quadratic forms, rotors, wrapped angles, retrieval, LIoR steps, resilience, metrics.

#include "hrm/base/error.h"
#include "hrm/ops/geometric_retrieval.h"
#include "hrm/ops/geometry.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

// The case's own tolerance for float64, its wider one for float32.
struct Way {
  at::ScalarType dtype;
  Tolerance tolerance;
  std::string name;
};

std::vector<Way> both_ways(const Case& loaded) {
  const auto& stated = loaded.json.at("tolerance");
  Tolerance single{.rtol = 1e-5, .atol = 1e-6};
  if (stated.contains("float32 implementations")) {
    const auto& wide = stated.at("float32 implementations");
    single = {.rtol = wide.at("rtol"), .atol = wide.at("atol")};
  }
  return {{at::kDouble, {.rtol = stated.at("rtol"), .atol = stated.at("atol")}, ", float64"},
          {at::kFloat, single, ", float32"}};
}

// The case's tensors on the device in one dtype, and comparisons in it.
class Values {
 public:
  Values(const Case& loaded, const Way& way) : case_(loaded), way_(way) {}

  at::Tensor operator()(const std::string& name) const {
    const at::Tensor& stored = case_.at(name);
    return at::isFloatingType(stored.scalar_type()) ? stored.to(device(), way_.dtype) : stored.to(device());
  }
  void compare(const std::string& name, const at::Tensor& got) const {
    EXPECT_EQ(got.scalar_type(), way_.dtype) << name;
    expect_close(name + way_.name, got, case_.at(name), way_.tolerance);
  }

 private:
  const Case& case_;
  const Way& way_;
};

void check_quadratic_forms(const Values& t, double eps, double omega) {
  const at::Tensor v = t("quad.v");
  const auto compare = [&](const std::string& name, const at::Tensor& q) {
    t.compare("quad.out." + name + ".q", q);
    t.compare("quad.out." + name + ".spd", ops::speed(q, eps));
  };
  compare("diag", ops::quadratic_form(v, t("quad.g_diag")));
  compare("dense", ops::quadratic_form(v, t("quad.G")));
  compare("batched", ops::quadratic_form(v, t("quad.G_batched")));
  compare("indefinite", ops::quadratic_form(v, t("quad.G_indefinite")));
  compare("lowrank", ops::low_rank_quadratic_form(v, t("quad.g_diag"), t("quad.U"), t("quad.Dm"), omega));
}

void check_rotors(const Case& loaded, const Values& t) {
  int rotors = 0;
  for (; loaded.has(cat("rotor", rotors, ".theta")); ++rotors) {
    const std::string name = cat("rotor", rotors);
    const at::Tensor v = t(name + ".v"), q = ops::rotor_matrix(t(name + ".theta"), v.size(1));
    t.compare(name + ".Q", q);
    t.compare(name + ".Qv", v.matmul(q.t()));
  }
  EXPECT_GT(rotors, 0) << loaded.name;
}

// Costs from their definition, weights as the mix of unit vectors. The candidates once as a row's own, and for each row
// those that are valid as the first slots of a bank.
void check_retrieval(const Values& t, double eps, double beta) {
  const at::Tensor q = t("retr.q"), cand = t("retr.cand"), state = t("retr.state"), valid = t("retr.valid"),
                   r = t("retr.R"), g = t("retr.g_diag"), theta = t("retr.theta");
  const at::Tensor turn = ops::rotor_matrix(theta, q.size(1)).t();
  const int64_t rows = cand.size(0), count = cand.size(1);
  const at::Tensor units = at::eye(count, state.options()).expand({rows, count, count});
  for (const auto form : {ops::RetrievalForm::sound, ops::RetrievalForm::compat}) {
    const bool sound = form == ops::RetrievalForm::sound;
    const std::string name = sound ? "retr.sound." : "retr.compat.";
    const at::Tensor delta = (sound ? cand.matmul(turn) : cand) - q.matmul(turn).unsqueeze(1);
    t.compare(name + "cost", r.unsqueeze(1) * ops::speed(ops::quadratic_form(delta, g), eps));
    const auto retrieve = [&](const ops::RetrievalCandidates& candidates) {
      return ops::geometric_retrieval(q, candidates, r, g, theta, form, beta, eps);
    };
    t.compare(name + "weight", retrieve({.coords = cand, .states = units, .mask = valid}));
    t.compare(name + "y", retrieve({.coords = cand, .states = state, .mask = valid}));
    std::vector<at::Tensor> by_bank;
    for (int64_t row = 0; row < rows; ++row) {
      const at::Tensor order = valid[row].to(at::kInt).argsort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
      by_bank.push_back(retrieve({.bank_coords = cand[row].index_select(0, order),
                                  .bank_states = state[row].index_select(0, order),
                                  .filled = valid[row].sum()})[row]);
    }
    t.compare(name + "y", at::stack(by_bank));
  }
}

void check_geometry(const Case& loaded) {
  const double eps = loaded.json.at("config").at("eps");
  for (const Way& way : both_ways(loaded)) {
    const Values t(loaded, way);
    check_quadratic_forms(t, eps, loaded.json.at("config").at("Omega"));
    check_rotors(loaded, t);
    check_retrieval(t, eps, loaded.json.at("config").at("beta"));
    t.compare("wrap.out", ops::wrap_angles(t("wrap.in")));
    const ops::LiorStep step = ops::lior_step(t("lior.v"), t("quad.g_diag"), t("lior.R"), eps, 0.5);
    t.compare("lior.dlior", step.action);
    t.compare("lior.spd", step.speed);
    t.compare("rsc.out", ops::resilience_from_curvature(t("rsc.R4"), t("rsc.g_inv"), eps));
  }
}

void check_metric_sync(const Case& loaded) {
  for (const Way& way : both_ways(loaded)) {
    const Values t(loaded, way);
    const ops::SyncedMetric plain = ops::metric_sync(t("theta"), t("g_diag"));
    t.compare("G", plain.metric);
    t.compare("G_inv", plain.inverse);
    t.compare("g2_vec", at::kron(plain.inverse, plain.inverse).flatten().narrow(0, 0, loaded.at("g2_vec").size(0)));
    t.compare("G_block", ops::block_metric_sync(t("theta"), t("block")).metric);
    t.compare("quad", ops::quadratic_form(t("v"), plain.metric));
  }
}

const RegisterKind kGeometry("geometry", check_geometry);
const RegisterKind kMetricSync("metric_sync", check_metric_sync);

}  // namespace
}  // namespace hrm::parity
