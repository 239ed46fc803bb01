# ccache when it is there. Precompiled headers need the two sloppiness settings, else nothing is ever found again.
find_program(HRM_CCACHE ccache)
if(HRM_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime;${HRM_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${HRM_CCACHE}")
endif()
