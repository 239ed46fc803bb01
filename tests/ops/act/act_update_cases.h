#pragma once
// Checks of the ACT state update that hold on every device.

#include "hrm/ops/act_update.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct ActCase {
  ActSlots slots;
  at::Tensor H_init, L_init, cursor;
  ActRows rows;

  ActCase clone() const {
    ActCase out = *this;
    for (at::Tensor* t : {&out.slots.z_H, &out.slots.z_L, &out.slots.steps, &out.slots.halted, &out.slots.inputs,
                          &out.slots.labels, &out.slots.puzzle_identifiers, &out.cursor}) {
      *t = t->clone();
    }
    return out;
  }
};

inline at::Tensor integers(at::IntArrayRef sizes, int64_t below, uint64_t seed, at::Device device) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randint(0, below, sizes, generator, at::kInt).to(device);
}

inline at::Tensor uniform_numbers(at::IntArrayRef sizes, uint64_t seed, at::Device device) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::rand(sizes, generator, at::kFloat).to(device);
}

inline ActCase make_act(int64_t slots, int64_t tokens, int64_t positions, int64_t width, int64_t rows,
                        at::ScalarType dtype, at::Device device) {
  ActCase c;
  c.slots = {normal({slots, positions, width}, 1, dtype, device),
             normal({slots, positions, width}, 2, dtype, device),
             integers({slots}, 3, 3, device),
             uniform_numbers({slots}, 4, device).lt(0.4),
             integers({slots, tokens}, 11, 5, device),
             integers({slots, tokens}, 11, 6, device),
             integers({slots}, 100, 7, device)};
  c.H_init = normal({width}, 8, at::kFloat, device);
  c.L_init = normal({width}, 9, at::kFloat, device);
  c.rows = {integers({rows, tokens}, 11, 10, device), integers({rows, tokens}, 11, 11, device),
            integers({rows}, 100, 12, device)};
  c.cursor = at::full({}, rows - 3, at::device(device).dtype(at::kLong));  // soon around the end
  return c;
}

inline void expect_same_state(const ActCase& got, const ActCase& want, const std::string& what) {
  expect_same_bits(got.slots.z_H, want.slots.z_H, what + ", z_H");
  expect_same_bits(got.slots.z_L, want.slots.z_L, what + ", z_L");
  expect_same_bits(got.slots.steps, want.slots.steps, what + ", steps");
  expect_same_bits(got.slots.halted, want.slots.halted, what + ", halted");
  expect_same_bits(got.slots.inputs, want.slots.inputs, what + ", inputs");
  expect_same_bits(got.slots.labels, want.slots.labels, what + ", labels");
  expect_same_bits(got.slots.puzzle_identifiers, want.slots.puzzle_identifiers, what + ", identifiers");
  expect_same_bits(got.cursor, want.cursor, what + ", cursor");
}

// A slot of the state by hand, after act_begin_: what stood there before, or the start values and row `row`.
inline void expect_slot(const ActCase& after, const ActCase& before, int64_t slot, int64_t row,
                        const std::string& what) {
  const at::ScalarType dtype = before.slots.z_H.scalar_type();
  const bool fresh = row >= 0;
  const at::Tensor z_H = fresh ? before.H_init.to(dtype).expand_as(before.slots.z_H[slot]) : before.slots.z_H[slot];
  const at::Tensor z_L = fresh ? before.L_init.to(dtype).expand_as(before.slots.z_L[slot]) : before.slots.z_L[slot];
  expect_same_bits(after.slots.z_H[slot], z_H, what);
  expect_same_bits(after.slots.z_L[slot], z_L, what);
  expect_same_bits(after.slots.inputs[slot], fresh ? before.rows.inputs[row] : before.slots.inputs[slot], what);
  expect_same_bits(after.slots.labels[slot], fresh ? before.rows.labels[row] : before.slots.labels[slot], what);
  EXPECT_EQ(after.slots.puzzle_identifiers[slot].item<int>(),
            (fresh ? before.rows.puzzle_identifiers[row] : before.slots.puzzle_identifiers[slot]).item<int>())
      << what;
  EXPECT_EQ(after.slots.steps[slot].item<int>(), fresh ? 0 : before.slots.steps[slot].item<int>()) << what;
}

// With and without a cursor, slot by slot.
inline void expect_good_begin(at::ScalarType dtype, int64_t width, at::Device device) {
  for (const bool pool : {true, false}) {
    const ActCase before = make_act(7, 5, 3, width, pool ? 9 : 7, dtype, device);
    ActCase after = before.clone();
    act_begin_(after.slots, after.H_init, after.L_init, after.rows, pool ? std::optional(after.cursor) : std::nullopt);
    const at::Tensor halted = before.slots.halted.cpu();
    int64_t next = before.cursor.item<int64_t>();
    for (int64_t slot = 0; slot < 7; ++slot) {
      int64_t row = -1;
      if (halted[slot].item<bool>()) row = pool ? next++ % 9 : slot;
      expect_slot(after, before, slot, row, cat(dtype, " width ", width, " slot ", slot, pool ? ", pool" : ""));
    }
    EXPECT_EQ(after.cursor.item<int64_t>(), pool ? next : before.cursor.item<int64_t>());
    expect_same_bits(after.slots.halted, before.slots.halted, "halted stays until the segment ends");
  }
}

struct ActInputs {
  at::Tensor z_H, z_L, q, uniform, min_steps;
};

inline ActInputs make_inputs(const ActCase& c, uint64_t seed) {
  const auto& z = c.slots.z_H;
  const int64_t slots = z.size(0);
  return {normal(z.sizes(), seed, z.scalar_type(), z.device()),
          normal(z.sizes(), seed + 1, z.scalar_type(), z.device()),
          normal({slots, 2}, seed + 2, at::kFloat, z.device()), uniform_numbers({slots}, seed + 3, z.device()),
          integers({slots}, 4, seed + 4, z.device())};
}

// The device's implementation beside the reference over several steps: the same bits in the whole state.
inline void expect_good_sequence(const ActCase& start, const std::string& what) {
  for (const bool pool : {true, false}) {
    for (const ActHalting halting : {ActHalting{4, 0.3, true, false}, ActHalting{4, 0.3, true, true},
                                     ActHalting{4, 0.3, false, false}, ActHalting{1, 0.3, true, false}}) {
      ActCase ours = start.clone(), reference = start.clone();
      for (uint64_t step = 0; step < 6; ++step) {
        const ActInputs in = make_inputs(start, 100 * step);
        const auto run = [&](ActCase& c) {
          act_begin_(c.slots, c.H_init, c.L_init, c.rows, pool ? std::optional(c.cursor) : std::nullopt);
          act_end_(c.slots, in.z_H, in.z_L, in.q, in.uniform, in.min_steps, halting);
        };
        run(ours);
        {
          const WithReference with_reference;
          run(reference);
        }
        expect_same_state(ours, reference,
                          cat(what, pool ? ", pool" : "", ", max_steps ", halting.max_steps,
                              halting.training ? ", training" : "", ", step ", step));
      }
      EXPECT_EQ(ours.cursor.item<int64_t>() > start.cursor.item<int64_t>(), pool) << what;
    }
  }
}

// Only the halted slots' bytes change: a narrow() of a bigger state leaves the rest alone.
inline void expect_views(at::Device device) {
  const ActCase whole = make_act(12, 9, 4, 16, 12, at::kBFloat16, device);
  ActCase part = whole.clone();
  const ActCase kept = part.clone();
  const auto view = [](const at::Tensor& t) { return t.narrow(0, 5, 3); };
  const ActSlots slots{view(part.slots.z_H),
                       view(part.slots.z_L),
                       view(part.slots.steps),
                       view(part.slots.halted),
                       view(part.slots.inputs),
                       view(part.slots.labels),
                       view(part.slots.puzzle_identifiers)};
  const ActInputs in = make_inputs(whole, 50);
  act_begin_(slots, part.H_init, part.L_init, part.rows, part.cursor);
  act_end_(slots, view(in.z_H), view(in.z_L), view(in.q), view(in.uniform), view(in.min_steps), {4, 0.3, true, false});
  for (const auto& [first, count] : {std::pair(0, 5), std::pair(8, 4)}) {
    expect_same_bits(part.slots.z_H.narrow(0, first, count), kept.slots.z_H.narrow(0, first, count));
    expect_same_bits(part.slots.inputs.narrow(0, first, count), kept.slots.inputs.narrow(0, first, count));
    expect_same_bits(part.slots.halted.narrow(0, first, count), kept.slots.halted.narrow(0, first, count));
  }
  expect_same_bits(view(part.slots.z_L), view(in.z_L));
}

}  // namespace hrm::ops::testing
