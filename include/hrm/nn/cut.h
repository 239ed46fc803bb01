#pragma once
// Which part of a layer this process holds, where the layers of a model are cut into equal parts (tensor parallelism;
// Shoeybi et al., "Megatron-LM", arXiv 1909.08053).

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace hrm::nn {

// One of `parts` equal parts. The default is the whole.
struct Cut {
  int64_t part = 0, parts = 1;

  bool whole() const { return parts == 1; }
  // This part's share of `size`. Throws Error(unexpected) that includes `what` if the parts are not equal.
  int64_t share(int64_t size, const char* what) const;

  // Some of `size` places, of which the parts before the last have as many as each other and the last may have fewer.
  struct Range {
    int64_t first = 0, count = 0;
  };
  Range range(int64_t size) const;

  bool operator==(const Cut&) const = default;
};

// What a parameter is cut by. Rows are outputs of a layer, columns its inputs. Heads and gate_up are rows in several
// pieces: those of q, k and v, or of gate and up, each cut by itself. Vocabulary: rows of an embedding or a head, of
// which the last part may have fewer (Cut::range).
enum class CutBy { none, rows, columns, heads, gate_up, vocabulary };

// How one parameter is cut.
struct ParameterCut {
  CutBy by = CutBy::none;
  Cut cut = {};
  std::vector<int64_t> pieces = {};  // sizes of the whole along dimension()

  bool whole() const { return by == CutBy::none || cut.whole(); }
  int64_t dimension() const { return by == CutBy::columns ? 1 : 0; }

  // Where the part is in the whole, along dimension(): `size` places from `here` in the part, from `there` in the
  // whole.
  struct Box {
    int64_t here = 0, there = 0, size = 0;
  };
  std::vector<Box> boxes() const;

  // The shape of the whole that a part of this shape belongs to.
  std::vector<int64_t> whole_sizes(at::IntArrayRef part) const;
  // This process's part of a whole tensor, a copy.
  at::Tensor part_of(const at::Tensor& whole) const;
};

// A module with parameters of its own that are cut.
class HasCutParameters {
 public:
  virtual ~HasCutParameters() = default;
  // Those that are cut; none if the module is whole.
  virtual std::vector<std::pair<at::Tensor, ParameterCut>> cut_parameters() const = 0;
};

// A module that computes its part of rows or heads. The gradient of each parameter below it that is not cut is a
// partial sum: that of the whole is the sum over the parts.
class HasPartialGradients {
 public:
  virtual ~HasPartialGradients() = default;
  virtual bool has_partial_gradients() const = 0;
};

// The cut parameters of `module` and of all modules below it.
class ParameterCuts {
 public:
  explicit ParameterCuts(const torch::nn::Module& module);

  // The default ParameterCut if the parameter is whole.
  ParameterCut of(const at::Tensor& parameter) const;
  // Whether the gradient of a parameter is a partial sum.
  bool sums_over_parts(const at::Tensor& parameter) const;

 private:
  void find(const torch::nn::Module& module, bool partial);

  std::unordered_map<const void*, ParameterCut> cuts_;
  std::unordered_set<const void*> partial_;
};

}  // namespace hrm::nn
