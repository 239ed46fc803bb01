execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12
                OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE RC ERROR_QUIET)
if(NOT RC EQUAL 0)
  set(COMMIT "unknown")
endif()
set(TEXT "#pragma once
// Written by cmake/write_version.cmake at build time.
#define HRM_VERSION \"${VERSION}\"
#define HRM_COMMIT \"${COMMIT}\"
#define HRM_TORCH_VERSION \"${TORCH}\"
#define HRM_CUDA_VERSION \"${CUDA}\"
#define HRM_CUDA_ARCHS \"${ARCHS}\"
#define HRM_BUILD_TYPE \"${BUILD_TYPE}\"
")
if(EXISTS ${OUT})
  file(READ ${OUT} OLD)
endif()
if(NOT "${OLD}" STREQUAL "${TEXT}")
  file(WRITE ${OUT} "${TEXT}")
endif()
