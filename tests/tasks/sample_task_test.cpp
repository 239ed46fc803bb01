// The evaluation that the models of task=contrastive share.
#include "hrm/tasks/sample_task.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace hrm::tasks {
namespace {

// Row i holds i, and i + 1; its class is i modulo 3.
class CountedRows : public ContrastiveSource {
 public:
  explicit CountedRows(int64_t rows) : rows_(rows) {}
  int64_t rows() const override { return rows_; }
  int64_t features() const override { return 2; }
  int64_t classes() const override { return 3; }
  bool is_text() const override { return true; }
  const std::string& origin() const override { return origin_; }
  std::string digest() const override { return ""; }
  std::string batch_digest(const data::VectorStreamOptions&, int64_t) const override { return ""; }
  void load(const at::Tensor& picks, const data::VectorBatch& batch) const override {
    batch.inputs.copy_(at::stack({picks, picks + 1}, 1));
    batch.labels.copy_(picks.remainder(3));
  }

 private:
  int64_t rows_;
  std::string origin_ = "counted";
};

at::Tensor wavy_logits(const at::Tensor& inputs) {
  return at::stack({inputs.select(1, 0).sin(), inputs.select(1, 1).cos(), inputs.sum(1).sin()}, 1);
}

// As a training does, the ranks meet between batches, to stop together: a rank with fewer rows must come as often.
TEST(EvaluateSamples, RanksMeetEquallyOftenAndFindWhatOneFinds) {
  for (const int ranks : {1, 2, 3}) {
    for (const int64_t rows : {1, 2, 15, 16, 17, 33, 35, 48}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, " << ranks << " ranks");
      const CountedRows source(rows);
      test::on_ranks({test::Kind::threads, ranks}, [&](parallel::Comm& comm) {
        int64_t done = 0;
        const NamedValues found =
            evaluate_samples(source, 8, at::kCPU, comm, wavy_logits, [&](const EvalProgress& progress) {
              const at::Tensor both = at::tensor({progress.done, -progress.done});
              comm.all_reduce(both, parallel::Reduction::max);
              EXPECT_EQ(both[0].item<int64_t>(), -both[1].item<int64_t>());
              EXPECT_EQ(progress.total, rows);
              EXPECT_GT(progress.done, done);
              done = progress.done;
            });
        EXPECT_EQ(done, rows);
        const at::Tensor all = at::arange(rows);
        const at::Tensor logits = wavy_logits(at::stack({all, all + 1}, 1).to(at::kFloat));
        EXPECT_EQ(value_of(found, "rows"), static_cast<double>(rows));
        EXPECT_NEAR(value_of(found, "loss"), at::cross_entropy_loss(logits, all.remainder(3)).item<double>(), 1e-6);
        EXPECT_NEAR(value_of(found, "accuracy"),
                    logits.argmax(1).eq(all.remainder(3)).to(at::kDouble).mean().item<double>(), 1e-12);
      });
    }
  }
}

}  // namespace
}  // namespace hrm::tasks
