# Decides whether the CUDA code is built, and for which architectures.
#   HRM_CUDA=AUTO  ON where a GPU is present, else OFF, whatever toolkit is installed
#   HRM_CUDA=ON    builds everything, also without a GPU (then the program runs on the CPU)
#   HRM_CUDA=OFF   needs no toolkit and no CUDA part of the torch wheel
string(TOUPPER "${HRM_CUDA}" HRM_CUDA)
if(NOT HRM_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "HRM_CUDA is '${HRM_CUDA}'; use AUTO, ON or OFF")
endif()

# The GPU's compute capability, e.g. "90", or empty where there is none.
set(_gpu_arch "")
find_program(HRM_NVIDIA_SMI nvidia-smi)
if(HRM_NVIDIA_SMI)
  execute_process(COMMAND ${HRM_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE _caps RESULT_VARIABLE _rc ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(_rc EQUAL 0 AND _caps MATCHES "^([0-9]+)\\.([0-9]+)")
    set(_gpu_arch "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
  endif()
endif()

set(HRM_WITH_CUDA OFF)
if(HRM_CUDA STREQUAL "ON" OR (HRM_CUDA STREQUAL "AUTO" AND _gpu_arch))
  set(HRM_WITH_CUDA ON)
endif()

if(HRM_WITH_CUDA)
  if(_gpu_arch AND _gpu_arch LESS 75)
    message(FATAL_ERROR "this GPU has compute capability ${_gpu_arch}; CUDA 13 needs 75 (Turing) or newer. "
                        "Configure with -DHRM_CUDA=OFF to build for the CPU")
  endif()
  if(HRM_CUDA_ARCHS)
    set(_archs "${HRM_CUDA_ARCHS}")
  elseif(_gpu_arch STREQUAL "90")
    set(_archs "90a")
  elseif(_gpu_arch)
    set(_archs "${_gpu_arch}")
  else()
    set(_archs "80;90a;120")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES "${_archs}")
  # CMake 3.25 knows CUDA dialects up to 17.
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  enable_language(CUDA)
  find_package(CUDAToolkit 13.0 REQUIRED)
endif()
