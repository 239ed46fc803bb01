# Unity builds: the source files of a folder are compiled several at a time, since most of a file's time goes into headers.
#
# hrm_unity(<out> <target> <sources>...) replaces the .cpp files of a list by batch files that include them.
#   - A batch has files of one folder only. A large folder is cut by the hash of each file's name, so that a new file
#     changes one batch and leaves the others alone.
#   - Batch files name their sources relative to the project, so that another clone finds them in the compiler cache.
#     CMake's own unity files hold absolute paths.
#   - Files that depend on whether CUDA is built (they include hrm/build_config.h) have batches of their own. All others
#     are compiled alike with and without CUDA, and found in the compiler cache by either build.
#   - Files with options of their own (hrm_file_options) and files that are not C++ are compiled by themselves.
# Two files of a folder must not give one name to two things at file scope: scripts/check_unity checks it.
option(HRM_UNITY "compile several source files as one" ON)
# A folder of up to this many bytes of source is one batch; more are cut into 2, 4, 8... batches. On two cores such a batch
# takes about half a minute and up to 2 GB.
set(HRM_UNITY_BYTES 160000)
# The project's folder; tests/fuzz, which is a CMake project of its own, sets it before.
if(NOT HRM_ROOT)
  set(HRM_ROOT "${CMAKE_SOURCE_DIR}")
endif()

# hrm_file_options(<file> <property> <value>...): set_source_files_properties that refuses a file that does not exist.
# To be called before the file's module is made.
function(hrm_file_options file)
  if(NOT EXISTS "${HRM_ROOT}/${file}")
    message(FATAL_ERROR "hrm_file_options: '${file}' does not exist")
  endif()
  math(EXPR last "${ARGC} - 2")
  foreach(i RANGE 1 ${last} 2)
    math(EXPR j "${i} + 1")
    set_property(SOURCE "${HRM_ROOT}/${file}" PROPERTY "${ARGV${i}}" "${ARGV${j}}")
  endforeach()
  set_property(GLOBAL APPEND PROPERTY HRM_FILES_WITH_OPTIONS "${HRM_ROOT}/${file}")
endfunction()

# Whether a source file may include the headers of the CUDA toolkit.
function(_hrm_sees_cuda out source)
  set(${out} FALSE PARENT_SCOPE)
  if(source MATCHES "^(src|tests)/.*(/cuda/|_gpu_test\\.cpp$)")
    set(${out} TRUE PARENT_SCOPE)
  else()
    file(STRINGS "${HRM_ROOT}/${source}" line REGEX "^#include \"hrm/build_config.h\"" LIMIT_COUNT 1)
    if(line)
      set(${out} TRUE PARENT_SCOPE)
    endif()
  endif()
endfunction()

# Options of a file or batch: those of the toolkit, and whatever follows.
function(_hrm_compile_options file sees_cuda)
  set(options ${ARGN})
  if(sees_cuda AND HRM_WITH_CUDA)
    foreach(folder IN LISTS CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES)
      list(APPEND options -isystem "${folder}")
    endforeach()
  endif()
  set_property(SOURCE "${file}" APPEND PROPERTY COMPILE_OPTIONS "${options}")
endfunction()

function(hrm_unity out target)
  set(result "")
  set(groups "")
  get_property(special GLOBAL PROPERTY HRM_FILES_WITH_OPTIONS)
  foreach(source IN LISTS ARGN)
    if(NOT source MATCHES "\\.cpp$")
      list(APPEND result "${source}")
      continue()
    endif()
    file(RELATIVE_PATH relative "${HRM_ROOT}" "${source}")
    _hrm_sees_cuda(sees_cuda "${relative}")
    if(NOT HRM_UNITY OR source IN_LIST special)
      _hrm_compile_options("${source}" ${sees_cuda})
      list(APPEND result "${source}")
      continue()
    endif()
    get_filename_component(group "${relative}" DIRECTORY)
    string(REPLACE "/" "_" group "${group}")
    if(sees_cuda)
      string(APPEND group "_cuda")
    endif()
    list(APPEND groups "${group}")
    list(APPEND files_${group} "${relative}")
    file(SIZE "${source}" bytes)
    if(NOT DEFINED bytes_${group})
      set(bytes_${group} 0)
    endif()
    math(EXPR bytes_${group} "${bytes_${group}} + ${bytes}")
    set(sees_cuda_${group} ${sees_cuda})
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group IN LISTS groups)
    set(parts 1)
    while(bytes_${group} GREATER HRM_UNITY_BYTES)
      math(EXPR parts "${parts} * 2")
      math(EXPR bytes_${group} "${bytes_${group}} / 2")
    endwhile()
    math(EXPR last "${parts} - 1")
    foreach(part RANGE ${last})
      set(text_${part} "")
    endforeach()
    foreach(source IN LISTS files_${group})
      string(SHA1 hash "${source}")
      string(SUBSTRING "${hash}" 0 4 hash)
      math(EXPR part "0x${hash} % ${parts}")
      string(APPEND text_${part} "#include \"${source}\"\n")
    endforeach()
    foreach(part RANGE ${last})
      set(file "${CMAKE_BINARY_DIR}/unity/${target}/${group}_${part}.cpp")
      file(CONFIGURE OUTPUT "${file}" CONTENT "${text_${part}}" @ONLY)
      # GCC counts what is included as a header, where a member of an unnamed namespace's type would be a mistake.
      _hrm_compile_options("${file}" ${sees_cuda_${group}} $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
      list(APPEND result "${file}")
    endforeach()
  endforeach()
  set(${out} "${result}" PARENT_SCOPE)
endfunction()
