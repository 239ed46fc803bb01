# Libraries whose packages have no CMake files: hrm_pcre2 (regular expressions), hrm_utf8proc (Unicode), hrm_zlib and
# hrm_zstd (compressed data files).
foreach(_entry "pcre2;pcre2-8;pcre2.h;libpcre2-dev" "utf8proc;utf8proc;utf8proc.h;libutf8proc-dev"
               "zlib;z;zlib.h;zlib1g-dev" "zstd;zstd;zstd.h;libzstd-dev")
  list(GET _entry 0 _name)
  list(GET _entry 1 _library)
  list(GET _entry 2 _header)
  list(GET _entry 3 _package)
  find_library(HRM_${_name}_LIBRARY ${_library})
  find_path(HRM_${_name}_INCLUDE ${_header})
  mark_as_advanced(HRM_${_name}_LIBRARY HRM_${_name}_INCLUDE)
  if(NOT HRM_${_name}_LIBRARY OR NOT HRM_${_name}_INCLUDE)
    message(FATAL_ERROR "lib${_library} and its header ${_header} were not found; run scripts/setup, or install ${_package}")
  endif()
  add_library(hrm_${_name} INTERFACE)
  target_link_libraries(hrm_${_name} INTERFACE "${HRM_${_name}_LIBRARY}")
  target_include_directories(hrm_${_name} SYSTEM INTERFACE "${HRM_${_name}_INCLUDE}")
endforeach()
