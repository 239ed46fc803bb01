#pragma once

namespace gloo::transport {
class Device;
// Complete, because a std::unique_ptr to it is destroyed in inline code.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};
}  // namespace gloo::transport
