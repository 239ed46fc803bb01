# Decides whether the CUDA code is built, and for which architectures.
#   HRM_CUDA=AUTO  ON where a usable GPU is present, else OFF, whatever toolkit is installed
#   HRM_CUDA=ON    builds everything, also without a GPU (then the program runs on the CPU)
#   HRM_CUDA=OFF   needs no toolkit and no CUDA part of the torch wheel
string(TOUPPER "${HRM_CUDA}" HRM_CUDA)
if(NOT HRM_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "HRM_CUDA is '${HRM_CUDA}'; use AUTO, ON or OFF")
endif()

# Architectures of the GPUs present, e.g. "90a"; empty where there is none that CUDA 13 can use, which is said.
set(_gpu_archs "")
if(NOT HRM_CUDA STREQUAL "OFF")
  execute_process(COMMAND "${CMAKE_SOURCE_DIR}/scripts/detect_gpu"
                  OUTPUT_VARIABLE _gpu_archs ERROR_VARIABLE _gpu_refused OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(_gpu_refused)
    message(WARNING "${_gpu_refused}")
  endif()
endif()

set(HRM_WITH_CUDA OFF)
if(HRM_CUDA STREQUAL "ON" OR (HRM_CUDA STREQUAL "AUTO" AND _gpu_archs))
  set(HRM_WITH_CUDA ON)
endif()

if(HRM_WITH_CUDA)
  if(HRM_CUDA_ARCHS)
    set(_archs "${HRM_CUDA_ARCHS}")
  elseif(_gpu_archs)
    set(_archs "${_gpu_archs}")
  else()
    set(_archs "80;90a;120")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES "${_archs}")
  # CMake 3.25 knows CUDA dialects up to 17.
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  # The process has one CUDA runtime, torch's (HrmTorch.cmake).
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)
  enable_language(CUDA)
  # CMake's own form, -isystem=FOLDER, hides the folder from ccache, so that another clone compiled every kernel again.
  set(CMAKE_INCLUDE_SYSTEM_FLAG_CUDA "-isystem ")
  # Not find_package(CUDAToolkit): the one of CMake 3.25 fails with toolkits that have no libnvToolsExt any more.
  if(NOT CMAKE_CUDA_COMPILER_VERSION MATCHES "^13\\.")
    message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} is of CUDA ${CMAKE_CUDA_COMPILER_VERSION}; the torch wheel needs "
                        "CUDA 13: run scripts/build, which finds or installs one, or pass -DCMAKE_CUDA_COMPILER=<nvcc>")
  endif()
endif()

# hrm/build_config.h, for the files that ask. Not a definition on every command line: the others are compiled alike with
# and without CUDA.
set(HRM_GENERATED_DIR "${CMAKE_BINARY_DIR}/generated")
if(HRM_WITH_CUDA)
  set(_with_cuda 1)
else()
  set(_with_cuda 0)
endif()
file(CONFIGURE OUTPUT "${HRM_GENERATED_DIR}/hrm/build_config.h" CONTENT [[#pragma once
// Written by cmake/HrmCuda.cmake: 1 where the CUDA kernels are built.
#define HRM_WITH_CUDA @_with_cuda@
]] @ONLY)
