#pragma once
// XXH3-128 digests of files and buffers: fast integrity checks, not protection against forgery. The hex form is the
// canonical one that `xxhsum -H128` prints.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace hrm {

class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);

  // 32 hex digits of everything so far; more may follow.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The digest of one buffer, equal to that of a Hasher fed with the same bytes in any pieces.
std::string digest_hex(std::span<const std::byte> bytes);

}  // namespace hrm
