# hrm::torch from the PyPI wheel. find_package(Torch) is not used: with the CUDA wheel it stops where no toolkit is
# installed, and it forces CUDA dialects that CMake 3.25 does not know. The libraries below are all that we link.
if(NOT HRM_SITE_PACKAGES)
  file(GLOB HRM_SITE_PACKAGES "${CMAKE_SOURCE_DIR}/.venv/lib/python3.*/site-packages")
endif()
if(NOT EXISTS "${HRM_SITE_PACKAGES}/torch/version.py")
  message(FATAL_ERROR "no torch wheel under HRM_SITE_PACKAGES='${HRM_SITE_PACKAGES}': run scripts/setup, "
                      "or pass -DHRM_SITE_PACKAGES=<site-packages folder that holds torch>")
endif()
set(HRM_TORCH_ROOT "${HRM_SITE_PACKAGES}/torch")
file(STRINGS "${HRM_TORCH_ROOT}/version.py" _line REGEX "^__version__ = ")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" HRM_TORCH_VERSION "${_line}")
if(NOT HRM_TORCH_VERSION MATCHES "^2\\.11\\.0")
  message(FATAL_ERROR "torch ${HRM_TORCH_VERSION} found, 2.11.0 needed: run scripts/setup")
endif()

function(_hrm_import name file)
  if(NOT EXISTS "${file}")
    message(FATAL_ERROR "'${file}' is missing from the torch set-up: run scripts/setup")
  endif()
  add_library(${name} SHARED IMPORTED)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION "${file}")
endfunction()

_hrm_import(hrm_torch_cpu "${HRM_TORCH_ROOT}/lib/libtorch_cpu.so")
_hrm_import(hrm_c10 "${HRM_TORCH_ROOT}/lib/libc10.so")

add_library(hrm_torch INTERFACE)
add_library(hrm::torch ALIAS hrm_torch)
target_include_directories(hrm_torch SYSTEM INTERFACE
  "${HRM_TORCH_ROOT}/include" "${HRM_TORCH_ROOT}/include/torch/csrc/api/include")
# libtorch_cpu.so exports std::filesystem symbols of its own: libstdc++ must come first among the needed libraries, or
# programs that use std::filesystem crash. Link options stand before all objects and libraries. A test checks it.
target_link_options(hrm_torch INTERFACE "LINKER:--push-state,--no-as-needed,-lstdc++,--pop-state")
# torch finds its kernels by static registration: its libraries must stay although no symbol of them may be used.
target_link_libraries(hrm_torch INTERFACE "-Wl,--no-as-needed" hrm_torch_cpu hrm_c10)

set(HRM_RUNTIME_PATHS "${HRM_TORCH_ROOT}/lib")
if(HRM_WITH_CUDA)
  _hrm_import(hrm_torch_cuda "${HRM_TORCH_ROOT}/lib/libtorch_cuda.so")
  _hrm_import(hrm_c10_cuda "${HRM_TORCH_ROOT}/lib/libc10_cuda.so")
  # The one CUDA runtime of the process is torch's; the toolkit's own would be a second one.
  _hrm_import(hrm_cudart "${HRM_SITE_PACKAGES}/nvidia/cu13/lib/libcudart.so.13")
  # So is its cuBLASLt, for the matrix products whose algorithm we choose.
  _hrm_import(hrm_cublaslt "${HRM_SITE_PACKAGES}/nvidia/cu13/lib/libcublasLt.so.13")
  # And its NCCL, for module parallel.
  _hrm_import(hrm_nccl "${HRM_SITE_PACKAGES}/nvidia/nccl/lib/libnccl.so.2")
  target_link_libraries(hrm_torch INTERFACE hrm_torch_cuda hrm_c10_cuda hrm_cudart hrm_cublaslt)
endif()
file(GLOB _nvidia_libs "${HRM_SITE_PACKAGES}/nvidia/*/lib")
list(APPEND HRM_RUNTIME_PATHS ${_nvidia_libs})
set(CMAKE_BUILD_RPATH "${HRM_RUNTIME_PATHS}")
