#include "hrm/parallel/comm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "hrm/base/error.h"

namespace hrm::parallel {
namespace {

class SingleComm : public Comm {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
  std::string describe() const override { return "one rank"; }
  std::unique_ptr<Pending> start_all_reduce(const at::Tensor& /*tensor*/, Reduction /*reduction*/) override {
    return std::make_unique<Done>();
  }
  std::unique_ptr<Pending> start_reduce_scatter(const at::Tensor& out, const at::Tensor& in) override {
    out.copy_(in);
    return std::make_unique<Done>();
  }
  std::unique_ptr<Pending> start_all_gather(const at::Tensor& out, const at::Tensor& in) override {
    out.copy_(in);
    return std::make_unique<Done>();
  }
  void broadcast(const at::Tensor& /*tensor*/, int /*root*/) override {}
  void barrier() override {}
};

}  // namespace

std::vector<std::string> Comm::all_gather_text(const std::string& text) {
  at::Tensor length = at::zeros({1}, at::kLong), lengths = at::empty({ranks()}, at::kLong);
  length.data_ptr<int64_t>()[0] = static_cast<int64_t>(text.size());
  all_gather(lengths, length);
  const int64_t* sizes = lengths.const_data_ptr<int64_t>();
  const int64_t longest = std::max<int64_t>(*std::max_element(sizes, sizes + ranks()), 1);
  at::Tensor bytes = at::zeros({longest}, at::kByte), all = at::empty({ranks() * longest}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  all_gather(all, bytes);
  std::vector<std::string> texts;
  for (int i = 0; i < ranks(); ++i) {
    texts.emplace_back(static_cast<const char*>(all.const_data_ptr()) + i * longest, static_cast<size_t>(sizes[i]));
  }
  return texts;
}

void Comm::check_parts(const char* what, const at::Tensor& whole, const at::Tensor& part) const {
  require(whole.is_contiguous() && part.is_contiguous() && whole.scalar_type() == part.scalar_type() &&
              whole.numel() == part.numel() * ranks(),
          ExitCode::unexpected, what, " between ", ranks(), " ranks of ", whole.numel(), " elements of ",
          whole.dtype().name(), " in all and ", part.numel(), " of ", part.dtype().name(), " for each");
}

std::unique_ptr<Comm> make_single_comm() {
  return std::make_unique<SingleComm>();
}

}  // namespace hrm::parallel
