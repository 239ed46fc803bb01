#include "support/paths.h"

namespace hrm::test {

std::string source_dir() {
  return HRM_SOURCE_DIR;
}

std::string binary_dir() {
  return HRM_BINARY_DIR;
}

std::string site_packages() {
  return HRM_SITE_PACKAGES;
}

std::string train_binary() {
  return HRM_TRAIN_BINARY;
}

}  // namespace hrm::test
