// The registry, and the helper that finds members missing from it.
#include "hrm/state/registry.h"

#include <gtest/gtest.h>

#include "support/state_check.h"

namespace hrm {
namespace {

// A toy optimizer: momentum, a step counter and a decaying rate. `forgetful` leaves one member off the list.
class Toy : public Stateful {
 public:
  enum class Forget { nothing, momentum, step, rate };
  explicit Toy(Forget forget) : forget_(forget) {}

  void train(int i) {
    const at::Tensor gradient = at::arange(6, at::kFloat).view({2, 3}).mul(0.25).add(i);
    momentum_.mul_(0.9).add_(gradient);
    ++step_;
    rate_ *= 0.5;
    weight_.sub_(momentum_.mul(rate_ / static_cast<double>(step_)));
  }
  void visit_state(StateVisitor& v) override {
    v.tensor("toy.weight", weight_, StateRole::weight);
    if (forget_ != Forget::momentum) v.tensor("toy.momentum", momentum_, StateRole::optimizer);
    if (forget_ != Forget::step) v.integer("toy.step", step_);
    if (forget_ != Forget::rate) v.real("toy.rate", rate_);
  }

  at::Tensor weight_ = at::ones({2, 3});
  at::Tensor momentum_ = at::zeros({2, 3});
  int64_t step_ = 0;
  double rate_ = 0.1;

 private:
  Forget forget_;
};

std::string check(Toy::Forget forget) {
  Toy trained(forget), fresh(forget);
  return test::unregistered_state<Toy>(trained, fresh, [](Toy& toy, int i) { toy.train(i); });
}

TEST(StateCheck, AcceptsACompleteList) {
  EXPECT_EQ(check(Toy::Forget::nothing), "");
}

TEST(StateCheck, NoticesEveryForgottenMember) {
  EXPECT_NE(check(Toy::Forget::momentum), "");
  EXPECT_NE(check(Toy::Forget::step), "");
  EXPECT_NE(check(Toy::Forget::rate), "");
}

TEST(StateCheck, NoticesThatTrainingDoesNothing) {
  Toy trained(Toy::Forget::nothing), fresh(Toy::Forget::nothing);
  EXPECT_NE(test::unregistered_state<Toy>(trained, fresh, [](Toy&, int) {}), "");
}

TEST(Registry, ListingAliasesTheObject) {
  Toy toy(Toy::Forget::nothing);
  StateListing listing = list_state(toy);
  ASSERT_EQ(listing.tensors.size(), 2u);
  EXPECT_EQ(listing.tensors[0].name, "toy.weight");
  EXPECT_EQ(listing.tensors[1].role, StateRole::optimizer);
  listing.tensors[0].tensor.fill_(7);
  EXPECT_TRUE(at::equal(toy.weight_, at::full({2, 3}, 7.0)));
  ASSERT_EQ(listing.integers.size(), 1u);
  ASSERT_EQ(listing.reals.size(), 1u);
  EXPECT_EQ(listing.reals[0].second, 0.1);
}

TEST(Registry, RefusesOneNameTwice) {
  class Twice : public Stateful {
    void visit_state(StateVisitor& v) override {
      v.tensor("same", tensor_, StateRole::weight);
      v.integer("same", number_);
    }
    at::Tensor tensor_ = at::zeros({1});
    int64_t number_ = 0;
  } twice;
  try {
    list_state(twice);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::unexpected);
    EXPECT_NE(std::string(error.what()).find("'same'"), std::string::npos);
  }
}

TEST(Registry, RefusesAnUndefinedTensor) {
  class Empty : public Stateful {
    void visit_state(StateVisitor& v) override { v.tensor("not_there", tensor_, StateRole::weight); }
    at::Tensor tensor_;
  } empty;
  EXPECT_THROW(list_state(empty), Error);
}

TEST(Registry, DigestSeesValuesNamesShapesAndScalars) {
  Toy a(Toy::Forget::nothing), b(Toy::Forget::nothing);
  EXPECT_EQ(digest_state(a), digest_state(b));
  EXPECT_EQ(digest_state(a).size(), 32u);

  const std::string start = digest_state(b);
  b.weight_.data_ptr<float>()[5] = std::nextafter(1.0f, 2.0f);
  EXPECT_NE(digest_state(b), start);
  b.weight_ = at::ones({3, 2});
  EXPECT_NE(digest_state(b), start);
  b.weight_ = at::ones({2, 3}, at::kInt);
  EXPECT_NE(digest_state(b), start);
  b.weight_ = at::ones({3, 2}).t();  // same values and shape, other strides
  EXPECT_EQ(digest_state(b), start);
  b.step_ = 1;
  EXPECT_NE(digest_state(b), start);
  b.step_ = 0;
  b.rate_ = -b.rate_;
  EXPECT_NE(digest_state(b), start);
  EXPECT_NE(digest_state(a), check(Toy::Forget::rate));
}

TEST(TensorBytes, RoundTripOfEveryType) {
  for (const at::ScalarType type : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                                    at::kFloat, at::kDouble, at::kBool}) {
    const at::Tensor tensor = at::arange(-6, 6).view({3, 4}).to(type).t();  // not contiguous
    const at::Tensor host = host_tensor(tensor);
    EXPECT_TRUE(host.is_contiguous());
    const at::Tensor back = tensor_from_bytes(dtype_of(type), host.sizes().vec(), bytes_of(host));
    EXPECT_EQ(back.scalar_type(), type);
    EXPECT_TRUE(at::equal(back, tensor)) << at::toString(type);
  }
  EXPECT_THROW(dtype_of(at::kComplexFloat), Error);
}

TEST(TensorBytes, ViewsGetAStorageOfTheirOwnSize) {
  const at::Tensor flat = at::arange(100, at::kFloat);
  const at::Tensor host = host_tensor(flat.narrow(0, 10, 5));
  EXPECT_EQ(host.storage().nbytes(), 20u);
  EXPECT_EQ(bytes_of(host).size(), 20u);
  EXPECT_TRUE(at::equal(host, flat.narrow(0, 10, 5)));
}

TEST(TensorBytes, ScalarsAndEmptyTensors) {
  const at::Tensor scalar = tensor_from_bytes(DType::f64, {}, bytes_of(host_tensor(at::full({}, 2.5, at::kDouble))));
  EXPECT_EQ(scalar.dim(), 0);
  EXPECT_EQ(scalar.item<double>(), 2.5);
  EXPECT_EQ(tensor_from_bytes(DType::i64, {0, 3}, {}).sizes().vec(), (std::vector<int64_t>{0, 3}));
  EXPECT_THROW(tensor_from_bytes(DType::f32, {2}, {}), Error);
}

}  // namespace
}  // namespace hrm
