#pragma once
// Room for what runs on a GPU beside this program's persistent kernels.

namespace hrm::ops {

// While it lives, persistent kernels and cuBLASLt's products that start, or are captured, leave `count` multiprocessors
// of a GPU to others. A fixed list of tiles takes up to twice as long where NCCL's blocks hold a multiprocessor: the last
// tiles wait for the first ones to end. For all threads of the process; the innermost one counts.
class LeaveMultiprocessors {
 public:
  explicit LeaveMultiprocessors(int count);
  ~LeaveMultiprocessors();
  LeaveMultiprocessors(const LeaveMultiprocessors&) = delete;
  LeaveMultiprocessors& operator=(const LeaveMultiprocessors&) = delete;

 private:
  int before_;
};

// What is left now; 0 where no LeaveMultiprocessors lives.
int multiprocessors_left();

}  // namespace hrm::ops
