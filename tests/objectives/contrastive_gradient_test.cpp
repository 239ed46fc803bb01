// How close the contrastive gradient is to backprop's in the course of a training, and that the comparison notices a
// rule that is wrong.
#include <algorithm>

#include "hrm/base/error.h"
#include "objectives/contrastive_gradient_cases.h"

namespace hrm::objectives {
namespace {

using namespace test;  // NOLINT

// Trained once for all tests, in float64.
const GeometricMemory& trained_memory() {
  static const auto memory = [] {
    auto fresh = make_memory(without_beta_cap(small_memory()), at::kDouble);
    train_memory(*fresh, 100);
    return fresh;
  }();
  return *memory;
}

TEST(ContrastiveGradients, PointWhereBackpropDoesAfterTraining) {
  const GeometricMemory& trained = trained_memory();
  const LabelledBatch batch(trained.options(), 64);
  const auto loss = [&](const GeometricMemory& memory) {
    const at::NoGradGuard no_grad;
    return memory.backprop_loss(batch.inputs, batch.labels, 64).item<double>();
  };
  ASSERT_LT(loss(trained), 0.7 * loss(*make_memory(trained.options(), at::kDouble))) << "it has learned";
  for (const auto& [dtype, least] : {std::pair{at::kDouble, 0.9999}, std::pair{at::kFloat, 0.999}}) {
    const auto memory = copy_of(trained, at::kCPU, dtype);
    const LabelledBatch rows = batch.to(at::kCPU, dtype);
    const auto ours = contrastive_gradients(*memory, window_of(*memory, 0.1), rows.inputs, rows.labels, {}).gradients;
    const auto all = cosines(*memory, ours, backprop_gradients(*memory, rows));
    EXPECT_EQ(all.size(), memory->parameter_names().size()) << "every parameter has a gradient";
    for (const auto& [name, value] : all) EXPECT_GE(value, least) << name << ", " << dtype;
  }
}

// What a gradient is made of, so that a test can put it together wrongly.
struct Phases {
  Phases(const GeometricMemory& memory, const LabelledBatch& batch, double beta_share, bool half_values = false)
      : memory(memory) {
    const at::NoGradGuard no_grad;
    window = window_of(memory, beta_share, half_values);
    drive = memory.drive(window, batch.inputs);
    const int64_t rows = batch.inputs.size(0);
    ones = at::ones({rows}, batch.inputs.options());
    free = memory.free_phase(window, drive, 64);
    plus = memory.nudged_phase(window, drive, free, batch.labels, ones, 64);
    minus = memory.nudged_phase(window, drive, free, batch.labels, -ones, 64);
    scale = ones / (2 * static_cast<double>(rows) * window.rates.select(0, 2));
    const at::Tensor probabilities = memory.logits(free.o).softmax(-1);
    error = probabilities - at::zeros_like(probabilities).scatter_(1, batch.labels.unsqueeze(1), 1);
  }

  // The difference of the phases; `sign` of the second one.
  models::Gradients gradients(double sign = -1) const {
    const at::NoGradGuard no_grad;
    models::Gradients sum = memory.energy_gradients(window, drive, plus, scale);
    const models::Gradients other = memory.energy_gradients(window, drive, minus, sign * scale);
    for (size_t i = 0; i < sum.size(); ++i) {
      if (sum[i].defined()) sum[i] = sum[i] + other[i];
    }
    memory.place(sum, "readout.weight", error.t().matmul(free.o) / error.size(0));
    memory.place(sum, "readout.bias", error.mean(0));
    return sum;
  }

  const GeometricMemory& memory;
  GeometricMemory::Window window;
  GeometricMemory::Drive drive;
  ops::GeometricState free, plus, minus;
  at::Tensor ones, scale, error;
};

std::vector<std::string> names_but_readout(const GeometricMemory& memory) {
  std::vector<std::string> names;
  for (const std::string& name : memory.parameter_names()) {
    if (!name.starts_with("readout")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(ContrastiveGradients, ComparisonNoticesWrongGradients) {
  const GeometricMemory& memory = trained_memory();
  const LabelledBatch batch(memory.options(), 64);
  const models::Gradients exact = backprop_gradients(memory, batch);
  const Phases phases(memory, batch, 0.1);
  EXPECT_TRUE(below(cosines(memory, phases.gradients(), exact), 0.9999).empty()) << "put together here it is right";
  // The sign of one phase turned: both are added.
  EXPECT_EQ(below(cosines(memory, phases.gradients(+1), exact), 0.9999), names_but_readout(memory));
  // The statistic of one parameter left out.
  for (size_t i = 0; i < exact.size(); ++i) {
    models::Gradients partial = phases.gradients();
    partial[i] = at::Tensor();
    EXPECT_EQ(below(cosines(memory, partial, exact), 0.9999), std::vector<std::string>{memory.parameter_names()[i]});
  }
}

// Where a second equilibrium is about to appear, the relaxation of some rows is slow. Far beyond, each row has settled
// at one slot.
TEST(ContrastiveGradients, NeedTheProjectionOfTheValues) {
  const auto memory = copy_of(trained_memory(), at::kCPU, at::kDouble);
  const LabelledBatch batch(memory->options(), 64);
  const auto worst = [&] {
    const auto all = cosines(*memory, Phases(*memory, batch, 0.1).gradients(), backprop_gradients(*memory, batch));
    return std::min_element(all.begin(), all.end(), [](auto& a, auto& b) { return a.second < b.second; })->second;
  };
  const at::Tensor values = *memory->named_parameters().find("values"), projected = values.detach().clone();
  double worst_of_all = 1;
  for (const double factor : {1.5, 1.75, 2.0}) {
    {
      const at::NoGradGuard no_grad;
      values.copy_(factor * projected);
    }
    EXPECT_GT(memory->contraction(window_of(*memory, 0.1)).item<double>(), 1);
    worst_of_all = std::min(worst_of_all, worst());
  }
  EXPECT_LT(worst_of_all, 0.9997) << "long values, not projected";
  memory->project({});
  EXPECT_GE(worst(), 0.9999);
}

at::Tensor in_half(const at::Tensor& tensor) {
  return tensor.to(at::kHalf).to(tensor.scalar_type());
}

// Values in float16 change no direction. A state in float16 does: the phases differ by less than its spacing.
TEST(ContrastiveGradients, ValuesMayBeFloat16AndStatesMayNot) {
  const auto memory = copy_of(trained_memory(), at::kCPU, at::kFloat);
  const LabelledBatch batch = LabelledBatch(memory->options(), 64).to(at::kCPU, at::kFloat);
  const models::Gradients exact = Phases(*memory, batch, 0.1).gradients();
  Phases half(*memory, batch, 0.1, /*half_values=*/true);
  for (const auto& [name, value] : cosines(*memory, half.gradients(), exact)) EXPECT_GE(value, 0.9999) << name;
  for (ops::GeometricState* state : {&half.plus, &half.minus}) {
    state->offset = in_half(half.drive.drive + state->offset) - half.drive.drive;
    state->o = in_half(state->o);
  }
  const auto rounded = cosines(*memory, half.gradients(), exact);
  for (const char* name : {"encoder.weight", "keys", "log_metric", "angles"})
    EXPECT_LT(rounded.at(name), 0.9999) << name;
}

// A row's part of the gradient does not depend on the rows beside it.
TEST(ContrastiveGradients, OfEveryBatchSize) {
  const auto memory = copy_of(trained_memory(), at::kCPU, at::kDouble);
  const LabelledBatch all(memory->options(), 100);
  const auto window = window_of(*memory, 0.1);
  const ContrastiveOptions options{.steps = 8, .nudge_steps = 8};
  models::Gradients sum;
  for (int64_t row = 0; row < 100; ++row) {
    const auto one =
        contrastive_gradients(*memory, window, all.inputs.narrow(0, row, 1), all.labels.narrow(0, row, 1), options);
    for (size_t i = 0; i < one.gradients.size(); ++i) {
      if (row == 0) sum.push_back(at::zeros_like(one.gradients[i]));
      sum[i] += one.gradients[i];
    }
    const int64_t rows = row + 1;
    if (rows > 64 && rows != 100) continue;
    const auto batch =
        contrastive_gradients(*memory, window, all.inputs.narrow(0, 0, rows), all.labels.narrow(0, 0, rows), options);
    for (size_t i = 0; i < sum.size(); ++i) {
      const at::Tensor want = sum[i] / rows;
      const double size = want.abs().max().item<double>();
      EXPECT_LT((batch.gradients[i] - want).abs().max().item<double>(), 1e-9 * size + 1e-12)
          << rows << " rows, " << memory->parameter_names()[i];
    }
  }
}

// The ring beside one written out on the host: empty, with one entry, one less than full, full, and wrapped. Places
// that were never written hold NaN.
TEST(GeometricMemory, RingOfEpisodes) {
  constexpr int64_t kCapacity = 6;
  GeometricMemoryOptions options = small_memory();
  options.episodes = kCapacity;
  const at::NoGradGuard no_grad;
  const auto memory = make_memory(options, at::kDouble);
  const auto clean = make_memory(options, at::kDouble);
  const auto buffers = memory->named_buffers(), clean_buffers = clean->named_buffers();
  for (const char* name : {"ring_keys", "ring_values"}) at::Tensor(*buffers.find(name)).fill_(NAN);
  const LabelledBatch batch(options, 9);
  std::vector<at::Tensor> want(kCapacity);  // the key at each place
  int64_t written = 0;
  const auto expect_unread = [&](int64_t filled) {
    SCOPED_TRACE(cat(filled, " of ", kCapacity, " places filled"));
    EXPECT_EQ(buffers.find("filled")->item<int64_t>(), options.slots + filled);
    EXPECT_EQ(buffers.find("ring_keys")->isnan().any(-1).sum().item<int64_t>(), kCapacity - filled);
    const auto got = contrastive_gradients(*memory, memory->prepare(false), batch.inputs, batch.labels, {});
    const auto other = contrastive_gradients(*clean, clean->prepare(false), batch.inputs, batch.labels, {});
    for (size_t i = 0; i < got.gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(got.gradients[i], other.gradients[i])) << memory->parameter_names()[i];
    }
  };
  expect_unread(0);
  for (const int64_t rows : {1, 4, 1, 4, 9}) {  // 1, 5, 6 filled; wrapped; more rows than places
    const LabelledBatch more(options, rows, 70 + static_cast<uint64_t>(written));
    for (const auto& one : {memory, clean}) {
      const auto window = one->prepare(false);
      const auto drive = one->drive(window, more.inputs);
      const at::Tensor x = drive.drive + one->free_phase(window, drive, 8).offset;
      one->commit_episodes(window, x, more.labels, at::zeros({}));
      if (one != memory) continue;
      const at::Tensor chart = (x / window.root_metric).matmul(window.rotor);
      for (int64_t row = 0; row < std::min(rows, kCapacity); ++row) {
        want[static_cast<size_t>(written++ % kCapacity)] = chart[row];
      }
    }
    for (int64_t place = 0; place < std::min(written, kCapacity); ++place) {
      EXPECT_TRUE(
          at::allclose(buffers.find("ring_keys")->select(0, place), want[static_cast<size_t>(place)], 1e-12, 1e-12))
          << "place " << place << " after " << written;
    }
    EXPECT_EQ(buffers.find("ring_position")->item<int64_t>(), written % kCapacity);
    expect_unread(std::min(written, kCapacity));
  }
}

}  // namespace
}  // namespace hrm::objectives
