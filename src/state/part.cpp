#include "hrm/state/part.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "hrm/base/error.h"
#include "hrm/formats/dtype.h"

namespace hrm {
namespace {

constexpr const char* kScalar = "scalar";  // for the sizes of a tensor without dimensions

void require_box(bool good, const StateBox& box, const char* what) {
  if (good) return;
  StatePart text{.split = true, .sizes = {}, .boxes = {box}};
  fail(ExitCode::unexpected, "the box", part_text(text), " ", what);
}

// Whether `count` numbers from `first` on lie in 0 to `size`.
bool inside(int64_t first, int64_t count, int64_t size) {
  return first >= 0 && count >= 0 && first <= size && count <= size - first;
}

void add_runs(std::vector<StateRun>& runs, const StateBox& box, c10::IntArrayRef here, c10::IntArrayRef whole) {
  const size_t dims = box.sizes.size();
  const bool packed = box.here.size() == 1 && dims > 1;
  require_box(dims > 0 && (packed || box.here.size() == dims) && box.there.size() == dims, box,
              "has another number of places than of sizes");
  std::vector<int64_t> local(here.begin(), here.end()), all(whole.begin(), whole.end()), start = box.here;
  if (dims == 1) {
    local = {count_of(here)};
    all = {count_of(whole)};
  } else if (packed) {
    local = box.sizes;
    start.assign(dims, 0);
  }
  require_box(local.size() == dims && all.size() == dims, box, "has another number of dimensions than the tensor");
  for (size_t d = 0; d < dims; ++d) {
    require_box(inside(start[d], box.sizes[d], local[d]), box, "is not inside the part");
    require_box(inside(box.there[d], box.sizes[d], all[d]), box, "is not inside the whole tensor");
  }
  // Of a box that is inside the whole, so that the product is not too large.
  const int64_t before = packed ? box.here[0] : 0;
  require_box(!packed || inside(before, count_of(box.sizes), count_of(here)), box, "is not inside the part");
  if (count_of(box.sizes) == 0) return;
  // Dimensions from `inner` on are one run: those behind the first of them are full on both sides.
  size_t inner = dims - 1;
  int64_t length = box.sizes[inner];
  while (inner > 0 && box.sizes[inner] == local[inner] && box.sizes[inner] == all[inner]) {
    length *= box.sizes[--inner];
  }
  const auto place = [dims](const std::vector<int64_t>& of, const std::vector<int64_t>& index,
                            const std::vector<int64_t>& first) {
    int64_t offset = 0;
    for (size_t d = 0; d < dims; ++d) offset = offset * of[d] + first[d] + index[d];
    return offset;
  };
  std::vector<int64_t> index(dims, 0);
  while (true) {
    runs.push_back({before + place(local, index, start), place(all, index, box.there), length});
    size_t d = inner;
    while (d > 0 && ++index[d - 1] == box.sizes[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

std::string joined(const std::vector<int64_t>& values, char between) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i) text += (i > 0 ? std::string(1, between) : "") + std::to_string(values[i]);
  return text;
}

// Reads "4,0" or "4x64".
bool split_numbers(std::string_view text, char between, std::vector<int64_t>& values) {
  values.clear();
  while (true) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value < 0) return false;
    values.push_back(value);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (text.empty()) return true;
    if (text[0] != between) return false;
    text.remove_prefix(1);
  }
}

// What stands before the first `mark`, which is taken away with it; all if there is none.
std::string_view take_until(std::string_view& text, char mark) {
  const size_t at = std::min(text.find(mark), text.size());
  const std::string_view head = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return head;
}

}  // namespace

StatePart rows_part(c10::IntArrayRef here, int64_t first, int64_t rows) {
  std::vector<int64_t> there(here.size(), 0), sizes = here.vec();
  there.at(0) = first;
  sizes.at(0) = rows;
  return box_part(here, std::move(there), std::move(sizes));
}

StatePart box_part(c10::IntArrayRef here, std::vector<int64_t> there, std::vector<int64_t> sizes) {
  StateBox box{std::vector<int64_t>(here.size(), 0), std::move(there), here.vec()};
  return {.split = true, .sizes = std::move(sizes), .boxes = {std::move(box)}};
}

StatePart run_part(std::vector<int64_t> sizes, int64_t first, int64_t count) {
  StatePart part{.split = true, .sizes = std::move(sizes), .boxes = {}};
  if (count > 0) part.boxes.push_back({{0}, {first}, {count}});
  return part;
}

int64_t count_of(c10::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::vector<StateRun> runs_of(const StatePart& part, c10::IntArrayRef here) {
  if (!part.split) return {{0, 0, count_of(here)}};
  std::vector<StateRun> runs;
  for (const StateBox& box : part.boxes) add_runs(runs, box, here, part.sizes);
  std::sort(runs.begin(), runs.end(), [](const StateRun& a, const StateRun& b) { return a.there < b.there; });
  std::vector<StateRun> joint;
  for (const StateRun& run : runs) {
    if (joint.empty()) {
      joint.push_back(run);
      continue;
    }
    StateRun& last = joint.back();
    require(last.there + last.size <= run.there, ExitCode::unexpected, "the boxes", part_text(part), " overlap");
    if (last.there + last.size == run.there && last.here + last.size == run.here) {
      last.size += run.size;
    } else {
      joint.push_back(run);
    }
  }
  return joint;
}

bool holds_all(const StatePart& part, c10::IntArrayRef here) {
  if (!part.split) return true;
  int64_t held = 0;
  for (const StateRun& run : runs_of(part, here)) held += run.size;
  return held == count_of(part.sizes);
}

std::string part_text(const StatePart& part) {
  if (!part.split) return {};
  std::string text = part.sizes.empty() ? kScalar : joined(part.sizes, 'x');
  for (const StateBox& box : part.boxes) {
    text += " " + joined(box.here, ',') + ">" + joined(box.there, ',') + ":" + joined(box.sizes, 'x');
  }
  return text;
}

bool parse_part(std::string_view text, StatePart& part) {
  part = {.split = true, .sizes = {}, .boxes = {}};
  const std::string_view sizes = take_until(text, ' ');
  if (sizes != kScalar && !split_numbers(sizes, 'x', part.sizes)) return false;
  if (!array_bytes(DType::u8, part.sizes)) return false;
  while (!text.empty()) {
    std::string_view box = take_until(text, ' ');
    StateBox& next = part.boxes.emplace_back();
    if (!split_numbers(take_until(box, '>'), ',', next.here) || !split_numbers(take_until(box, ':'), ',', next.there) ||
        !split_numbers(box, 'x', next.sizes)) {
      return false;
    }
  }
  return true;
}

}  // namespace hrm
