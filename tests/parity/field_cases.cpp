// field_step: dissipative and Verlet steps of a complex field, and its energies.

#include "hrm/ops/backend.h"
#include "hrm/ops/complex_field.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

class FieldCase {
 public:
  FieldCase(const Case& loaded, at::ScalarType dtype, std::string way)
      : loaded_(loaded), dtype_(dtype), way_(std::move(way)) {
    const auto& stated = loaded.json.at("tolerance");
    const auto& own = dtype == at::kDouble ? stated : stated.at("float32 implementations");
    tolerance_ = {.rtol = own.at("rtol"), .atol = own.at("atol")};
    const auto& config = loaded.json.at("config");
    verlet_ = {.dt = config.at("dt"),
               .mass = config.at("mass"),
               .hbar = config.at("hbar"),
               .stiffness = config.at("stiffness")};
    dissipative_ = {.dt = verlet_.dt, .mass = verlet_.mass, .hbar = verlet_.hbar};
  }

  void check() const {
    const at::Tensor source = input("in.J");
    check_dissipative("out.diss_plain", {}, {}, {}, 0, 1);
    check_dissipative("out.diss_hist7", source, {}, {}, 7, 1);
    check_dissipative("out.diss_collapse", source, input("in.T_prev"), input("in.E"), 20, 1);
    check_dissipative("out.diss_5steps", source, {}, {}, 0, 5);
    for (const bool periodic : {true, false}) {
      for (const int64_t steps : {1, 10}) check_verlet(periodic, steps);
    }
    check_energies();
  }

 private:
  at::Tensor input(const std::string& name) const { return loaded_.at(name).to(device(), dtype_); }

  void compare(const std::string& name, const at::Tensor& got) const {
    expect_close(name + way_, got, loaded_.at(name), tolerance_);
  }

  void check_dissipative(const std::string& name, const std::optional<at::Tensor>& source,
                         const std::optional<at::Tensor>& previous, const std::optional<at::Tensor>& evidence,
                         int64_t past, int64_t steps) const {
    const at::Tensor field = input("in.T").clone();
    const at::Tensor history = at::full({}, past, at::device(device()).dtype(at::kLong));
    ops::complex_field_dissipative_(field, history, source, previous, evidence, {}, steps, dissipative_);
    compare(name, field);
    EXPECT_EQ(history.item<int64_t>(), std::min<int64_t>(past + steps, 20)) << name << way_;
  }

  void check_verlet(bool periodic, int64_t steps) const {
    const std::string name = "out.verlet_" + std::string(periodic ? "periodic_" : "zero_") + std::to_string(steps);
    const at::Tensor start = input("in.T"), field = start.clone(), momentum = at::zeros_like(field);
    ops::FieldVerlet settings = verlet_;
    settings.periodic = periodic;
    ops::complex_field_verlet_(field, momentum, start, input("in.J") * 0.3, {}, steps, settings);
    compare(name + ".T", field);
    compare(name + ".P", momentum);
  }

  // The pairs across the edge count in this case, although the steps before had zeros outside.
  void check_energies() const {
    compare("energy", ops::complex_field_energies(input("out.verlet_zero_10.T"), input("out.verlet_zero_10.P"),
                                                  input("in.T"), verlet_));
  }

  const Case& loaded_;
  at::ScalarType dtype_;
  std::string way_;
  Tolerance tolerance_;
  ops::FieldVerlet verlet_;
  ops::FieldDissipative dissipative_;
};

void check_field_step(const Case& loaded) {
  FieldCase(loaded, at::kDouble, ", float64").check();
  FieldCase(loaded, at::kFloat, ", float32").check();
  ops::set_backend(ops::Backend::reference);
  FieldCase(loaded, at::kFloat, ", float32, reference").check();
  ops::set_backend(ops::Backend::fused);
}

const RegisterKind kFieldStep("field_step", check_field_step);

}  // namespace
}  // namespace hrm::parity
