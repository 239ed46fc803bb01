#include "hrm/base/hash.h"

#include <gtest/gtest.h>

#include "hrm/base/file.h"

namespace hrm {
namespace {

TEST(Hash, KnownDigests) {
  // As `xxhsum -H128` prints them.
  EXPECT_EQ(digest_hex({}), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest_hex(as_bytes("abc")), "06b05ab6733a618578af5f94892f3950");
}

TEST(Hash, PiecesGiveTheDigestOfTheWhole) {
  std::string text(5000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31);
  Hasher hasher;
  hasher.update(std::string_view(text).substr(0, 7));
  hasher.update(std::string_view{});
  hasher.update(as_bytes(std::string_view(text).substr(7)));
  EXPECT_EQ(hasher.hex(), digest_hex(as_bytes(text)));
  Hasher moved(std::move(hasher));
  moved.update("!");
  EXPECT_EQ(moved.hex(), digest_hex(as_bytes(text + "!")));
  text[4999] ^= 1;
  EXPECT_NE(moved.hex(), digest_hex(as_bytes(text + "!")));
}

}  // namespace
}  // namespace hrm
