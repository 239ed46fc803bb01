#include "hrm/formats/dtype.h"

#include <gtest/gtest.h>

#include <limits>

namespace hrm {
namespace {

TEST(DType, NamesGoBothWays) {
  for (const DType dtype : {DType::u8, DType::i8, DType::i16, DType::i32, DType::i64, DType::f16, DType::bf16,
                            DType::f32, DType::f64, DType::boolean, DType::u16, DType::u32, DType::f8_e4m3}) {
    EXPECT_EQ(dtype_from_name(name(dtype)), dtype);
  }
  EXPECT_STREQ(name(DType::boolean), "BOOL");
  EXPECT_EQ(item_size(DType::bf16), 2u);
  EXPECT_EQ(item_size(DType::i64), 8u);
  EXPECT_FALSE(dtype_from_name("U64").has_value());
  EXPECT_FALSE(dtype_from_name("f32").has_value());
}

TEST(DType, SizesAreCheckedForOverflow) {
  EXPECT_EQ(array_bytes(DType::f32, {}), 4);
  EXPECT_EQ(array_bytes(DType::f32, {2, 3}), 24);
  EXPECT_EQ(array_bytes(DType::f32, {2, 0}), 0);
  EXPECT_FALSE(array_bytes(DType::u8, {2, -1}).has_value());
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(array_bytes(DType::u8, {kMax}), kMax);
  EXPECT_FALSE(array_bytes(DType::i16, {kMax}).has_value());
  EXPECT_FALSE(array_bytes(DType::u8, {0, kMax, 2}).has_value());
}

TEST(DType, ShapesAsText) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({3, 4}), "[3, 4]");
}

}  // namespace
}  // namespace hrm
