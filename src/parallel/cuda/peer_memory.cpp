#include "parallel/cuda/peer_memory.h"

#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <span>

#include "hrm/base/log.h"
#include "hrm/base/text.h"

namespace hrm::parallel {
namespace {

// What a rank tells the others of its memory.
struct Ticket {
  cudaIpcMemHandle_t handle{};
  void* address = nullptr;  // for ranks of the same process, which map nothing
  uint64_t process = 0;
  int device = 0;
};

// Which process this is; numbers of processes come again in containers.
uint64_t this_process() {
  static const uint64_t number = (uint64_t{std::random_device()()} << 32) + std::random_device()();
  return number;
}

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<int>(byte) >> 4];
    text += kDigits[std::to_integer<int>(byte) & 15];
  }
  return text;
}

Ticket ticket_of(const std::string& text) {
  Ticket ticket;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  auto* const to = reinterpret_cast<uint8_t*>(&ticket);
  for (size_t i = 0; i < sizeof ticket && 2 * i + 1 < text.size(); ++i) {
    to[i] = static_cast<uint8_t>(16 * digit(text[2 * i]) + digit(text[2 * i + 1]));
  }
  return ticket;
}

// Two machines may have one name, but not the same start.
std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return cat(name.data(), " ", boot);
}

std::string failed(const char* what, cudaError_t status) {
  if (status == cudaSuccess) return "";
  cudaGetLastError();  // later calls do not report it again
  return cat(what, " (", cudaGetErrorString(status), ")");
}

uint32_t check_value(int from, int to) {
  return 0x5eed0000U + static_cast<uint32_t>(16 * from + to);
}

// The first that went wrong on any rank, with its rank; empty: nothing.
std::string first_fault(Comm& cpu, const std::string& own) {
  const std::vector<std::string> all = cpu.all_gather_text(own);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) return cat("rank ", rank, ": ", all[rank]);
  }
  return "";
}

}  // namespace

std::string PeerMemory::ticket() const {
  Ticket ticket{.address = own_, .process = this_process()};
  cudaGetDevice(&ticket.device);
  if (cudaIpcGetMemHandle(&ticket.handle, own_) != cudaSuccess) cudaGetLastError();  // found out when it is opened
  return to_hex(std::as_bytes(std::span(&ticket, 1)));
}

// Not by the allocator of tensors, whose segments cannot be shared in this way.
std::string PeerMemory::allocate() {
  if (std::string fault = failed("no memory for sums", cudaMalloc(&own_, ops::peer_room_bytes())); !fault.empty()) {
    own_ = nullptr;
    return fault;
  }
  std::string fault = failed("memory for sums", cudaMemset(own_, 0, ops::peer_room_bytes()));
  return fault.empty() ? failed("memory for sums", cudaDeviceSynchronize()) : fault;
}

std::string PeerMemory::map(const std::vector<std::string>& tickets) {
  for (size_t part = 0; part < tickets.size(); ++part) {
    const Ticket ticket = ticket_of(tickets[part]);
    if (ticket.process == this_process()) {
      int device = 0;
      cudaGetDevice(&device);
      const cudaError_t status =
          ticket.device == device ? cudaSuccess : cudaDeviceEnablePeerAccess(ticket.device, /*flags=*/0);
      if (status == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
      } else if (std::string fault = failed("another GPU's memory cannot be reached", status); !fault.empty()) {
        return fault;
      }
      rooms_.rooms.push_back(ticket.address);
      continue;
    }
    void* mapped = nullptr;
    std::string fault = failed("another GPU's memory cannot be reached",
                               cudaIpcOpenMemHandle(&mapped, ticket.handle, cudaIpcMemLazyEnablePeerAccess));
    if (!fault.empty()) return fault;
    mapped_.push_back(mapped);
    rooms_.rooms.push_back(mapped);
  }
  return "";
}

std::string PeerMemory::write_to_peers() const {
  for (int part = 0; part < rooms_.parts(); ++part) {
    const uint32_t value = check_value(rooms_.part, part);
    auto* const to = static_cast<char*>(rooms_.rooms[static_cast<size_t>(part)]) + ops::peer_check_place(rooms_.part);
    std::string fault =
        failed("another GPU's memory cannot be written", cudaMemcpy(to, &value, sizeof value, cudaMemcpyHostToDevice));
    if (!fault.empty()) return fault;
  }
  return failed("another GPU's memory cannot be written", cudaDeviceSynchronize());
}

std::string PeerMemory::read_own() const {
  for (int part = 0; part < rooms_.parts(); ++part) {
    uint32_t value = 0;
    const auto* const from = static_cast<const char*>(own_) + ops::peer_check_place(part);
    std::string fault = failed("memory for sums", cudaMemcpy(&value, from, sizeof value, cudaMemcpyDeviceToHost));
    if (!fault.empty()) return fault;
    if (value != check_value(part, rooms_.part)) return cat("what rank ", part, " wrote did not arrive");
  }
  return "";
}

std::unique_ptr<PeerMemory> PeerMemory::make(Comm& cpu, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  std::unique_ptr<PeerMemory> memory(new PeerMemory());
  memory->rooms_.part = cpu.rank();
  const std::vector<std::string> hosts = cpu.all_gather_text(host_name());
  std::string fault;
  if (cpu.ranks() > ops::kMostPeers) fault = cat(cpu.ranks(), " ranks");
  if (std::any_of(hosts.begin(), hosts.end(), [&](const auto& host) { return host != hosts[0]; })) {
    fault = "ranks on several hosts";
  }
  if (fault.empty()) fault = first_fault(cpu, memory->allocate());
  if (fault.empty()) fault = first_fault(cpu, memory->map(cpu.all_gather_text(memory->ticket())));
  if (fault.empty()) fault = first_fault(cpu, memory->write_to_peers());
  if (fault.empty()) fault = first_fault(cpu, memory->read_own());
  if (cpu.main()) {
    log::info("decoding     sums of parts go ",
              fault.empty() ? "through memory that the GPUs share" : cat("by NCCL, not through memory: ", fault));
  }
  if (!fault.empty()) return nullptr;
  return memory;
}

PeerMemory::~PeerMemory() {
  for (void* const mapped : mapped_) cudaIpcCloseMemHandle(mapped);
  if (own_ != nullptr) cudaFree(own_);
}

}  // namespace hrm::parallel
