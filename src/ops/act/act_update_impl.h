#pragma once
// What the files of act_update share: the input checks and the plain ATen reference.

#include "hrm/ops/act_update.h"

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_act_begin(const ActSlots& slots, const at::Tensor& H_init, const at::Tensor& L_init, const ActRows& rows,
                     const std::optional<at::Tensor>& cursor);
void check_act_end(const ActSlots& slots, const at::Tensor& new_z_H, const at::Tensor& new_z_L, const at::Tensor& q,
                   const at::Tensor& uniform, const at::Tensor& min_steps);

namespace reference {

void act_begin_(const ActSlots& slots, const at::Tensor& H_init, const at::Tensor& L_init, const ActRows& rows,
                const std::optional<at::Tensor>& cursor);
void act_end_(const ActSlots& slots, const at::Tensor& new_z_H, const at::Tensor& new_z_L, const at::Tensor& q,
              const at::Tensor& uniform, const at::Tensor& min_steps, const ActHalting& halting);

}  // namespace reference
}  // namespace hrm::ops
