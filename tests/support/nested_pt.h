#pragma once
// A .pt file with a state dict inside another dict, as programs save the whole of a training.

#include <string>
#include <vector>

#include "hrm/base/file.h"
#include "hrm/formats/zip.h"

namespace hrm::test {

// The file `flat`, of build_torch_state_dict, with its state dict as a member of that name, behind the member "step"
// and before another state dict, "optimizer", that holds the same.
inline std::vector<std::byte> nested_pt(std::span<const std::byte> flat, const std::string& member) {
  const ZipReader from(flat, "flat.pt");
  const auto text = [](const std::string& value) {
    return std::string("X") + static_cast<char>(value.size()) + std::string(3, '\0') + value;
  };
  ZipWriter zip;
  for (const std::string& name : from.names()) {
    std::string record(as_text(from.at(name)));
    if (name.ends_with("/data.pkl")) {
      const std::string dict = record.substr(2, record.size() - 3);  // without protocol and end
      record = record.substr(0, 2) + "}" + text("step") + "K\x05s" + text(member) + dict + "s" + text("optimizer") +
               dict + "s.";
    }
    zip.add(name, record);
  }
  return zip.finish();
}

}  // namespace hrm::test
