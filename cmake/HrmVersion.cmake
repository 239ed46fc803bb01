# version.h for `hrm_train --version`. The commit is read at build time so that it is never stale.
if(HRM_WITH_CUDA)
  set(_cuda "${CMAKE_CUDA_COMPILER_VERSION}")
  string(REPLACE ";" "," _archs "${CMAKE_CUDA_ARCHITECTURES}")
else()
  set(_cuda "none")
  set(_archs "none")
endif()
add_custom_target(hrm_version
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DOUT=${HRM_GENERATED_DIR}/hrm/version.h
          -DVERSION=${PROJECT_VERSION} -DTORCH=${HRM_TORCH_VERSION} -DCUDA=${_cuda} -DARCHS=${_archs}
          -DBUILD_TYPE=${CMAKE_BUILD_TYPE} -P ${CMAKE_SOURCE_DIR}/cmake/write_version.cmake
  BYPRODUCTS ${HRM_GENERATED_DIR}/hrm/version.h)
