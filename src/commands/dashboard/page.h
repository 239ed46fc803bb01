#pragma once
// The page: files of src/commands/dashboard/page, embedded when CMake configures.

#include <string>

namespace hrm::dashboard {

// index.html for the server, which loads the other files by their names.
std::string served_page();
const std::string& style_file();
const std::string& script_file();

// One file with everything in it. `data`: a JSON text, which is escaped so that no part of it can be markup.
std::string exported_page(const std::string& data);

// Of every answer of the server.
extern const char* const kContentPolicy;

}  // namespace hrm::dashboard
