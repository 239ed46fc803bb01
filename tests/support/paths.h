#pragma once
// Where the tests find things. The folders are compiled into paths.cpp only, so that another clone finds all other
// files in the compiler cache.

#include <string>

namespace hrm::test {

std::string source_dir();     // the project
std::string binary_dir();     // the build folder
std::string site_packages();  // the Python packages that the build uses
std::string train_binary();   // hrm_train

}  // namespace hrm::test
