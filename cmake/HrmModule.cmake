# hrm_module(<name> [TORCH] [OBJECT] DEPS <lower modules> LIBS <libraries> [SOURCES <files>] [WITHOUT <files>])
#   A module is a folder src/<name>: all its .cpp and .cu files, recursively, as the target hrmlib_<name>. Files below a
#   folder cuda/, at any depth, are left out of a build without CUDA. SOURCES are further files, which stand in another
#   module's folder; that one leaves them out (WITHOUT). TORCH modules share one precompiled header. OBJECT is for modules
#   whose files register themselves (TORCH_LIBRARY): a static archive would drop them silently, so every program links
#   their objects by name (hrm_program).
function(hrm_module name)
  cmake_parse_arguments(M "TORCH;OBJECT" "" "DEPS;LIBS;SOURCES;WITHOUT" ${ARGN})
  # Relative, since the folder that holds the project may be called cuda.
  file(GLOB_RECURSE sources RELATIVE "${CMAKE_SOURCE_DIR}/src" CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/${name}/*.cpp"
                                                                                "${CMAKE_SOURCE_DIR}/src/${name}/*.cu")
  if(NOT HRM_WITH_CUDA)
    list(FILTER sources EXCLUDE REGEX "/cuda/")
  endif()
  list(TRANSFORM sources PREPEND "${CMAKE_SOURCE_DIR}/src/")
  list(REMOVE_ITEM sources ${M_WITHOUT})
  list(APPEND sources ${M_SOURCES})
  set(target hrmlib_${name})
  hrm_unity(sources ${target} ${sources})
  if(M_OBJECT)
    # Usage requirements travel by an interface target; the objects themselves are named by the programs.
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE "${CMAKE_SOURCE_DIR}/include")
    foreach(dep IN LISTS M_DEPS)
      target_link_libraries(${target} INTERFACE hrmlib_${dep})
    endforeach()
    set(target hrmlib_${name}_objects)
    add_library(${target} OBJECT ${sources})
    set_property(GLOBAL APPEND PROPERTY HRM_OBJECT_MODULES ${target})
  elseif(sources)
    add_library(${target} STATIC ${sources})
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE "${CMAKE_SOURCE_DIR}/include")
    foreach(dep IN LISTS M_DEPS)
      target_link_libraries(${target} INTERFACE hrmlib_${dep})
    endforeach()
    return()
  endif()
  target_include_directories(${target} PUBLIC "${CMAKE_SOURCE_DIR}/include"
                                       PRIVATE "${CMAKE_SOURCE_DIR}/src" "${CMAKE_SOURCE_DIR}" "${HRM_GENERATED_DIR}")
  target_link_libraries(${target} PRIVATE hrm_warnings)
  foreach(dep IN LISTS M_DEPS)
    target_link_libraries(${target} PUBLIC hrmlib_${dep})
  endforeach()
  target_link_libraries(${target} PUBLIC ${M_LIBS})
  if(M_TORCH)
    target_link_libraries(${target} PUBLIC hrm::torch)
    target_precompile_headers(${target} REUSE_FROM hrm_pch)
  endif()
endfunction()

# hrm_program(<target> SOURCES ... LIBS ... [TORCH])
function(hrm_program target)
  cmake_parse_arguments(P "TORCH" "" "SOURCES;LIBS" ${ARGN})
  list(TRANSFORM P_SOURCES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/" REGEX "^[^/]")
  hrm_unity(sources ${target} ${P_SOURCES})
  add_executable(${target} ${sources})
  target_include_directories(${target} PRIVATE "${CMAKE_SOURCE_DIR}/src" "${CMAKE_SOURCE_DIR}" "${HRM_GENERATED_DIR}")
  target_link_libraries(${target} PRIVATE ${P_LIBS} hrm_warnings)
  if(P_TORCH)
    get_property(objects GLOBAL PROPERTY HRM_OBJECT_MODULES)
    target_link_libraries(${target} PRIVATE ${objects})
    target_precompile_headers(${target} REUSE_FROM hrm_pch)
  endif()
endfunction()

# The tests' models are so small that threads cost more than they bring, and OpenMP's waiting threads spin: with several
# tests at a time they take the cores from those that work. Tests about threads ask for them (runtime.threads).
set(HRM_TEST_ENVIRONMENT "OMP_NUM_THREADS=1;OMP_WAIT_POLICY=PASSIVE")

# hrm_tests(<name> [TORCH] [TIMEOUT s] LIBS ...): all *_test.cpp below tests/<name>, at any depth, into one program and
# one ctest entry <name>. Files *_gpu_test.cpp and *_python_test.cpp go into programs of their own, <name>_gpu and <name>_python with labels gpu
# and python, which ctest reports as skipped where no GPU, or no Python with torch, is. Files *_cases.cpp are shared
# code, part of all of them.
function(hrm_tests name)
  cmake_parse_arguments(T "TORCH" "TIMEOUT" "LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/${name}/*_test.cpp")
  file(GLOB_RECURSE shared CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/${name}/*_cases.cpp")
  set_property(GLOBAL APPEND PROPERTY HRM_TEST_SOURCES ${sources} ${shared})
  set(gpu ${sources})
  set(python ${sources})
  list(FILTER gpu INCLUDE REGEX "_gpu_test\\.cpp$")
  list(FILTER python INCLUDE REGEX "_python_test\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_(gpu|python)_test\\.cpp$")
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  if(sources)
    _hrm_test_program(${name} unit "${sources};${shared}")
  endif()
  if(python)
    _hrm_test_program(${name}_python python "${python};${shared}")
  endif()
  if(gpu AND HRM_WITH_CUDA)
    _hrm_test_program(${name}_gpu gpu "${gpu};${shared}")
  endif()
endfunction()

# hrm_check_tests(): refuses a *_test.cpp or *_cases.cpp below tests/ that no hrm_tests has taken, which would be neither
# built nor run. To be called after the last hrm_tests.
function(hrm_check_tests)
  file(GLOB_RECURSE forgotten CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/*_test.cpp"
                                                "${CMAKE_SOURCE_DIR}/tests/*_cases.cpp")
  get_property(taken GLOBAL PROPERTY HRM_TEST_SOURCES)
  list(REMOVE_ITEM forgotten ${taken})
  if(forgotten)
    list(JOIN forgotten "\n  " forgotten)
    message(FATAL_ERROR "tests of no program; add hrm_tests to tests/CMakeLists.txt for their folder:\n  ${forgotten}")
  endif()
endfunction()

# Reads T_TORCH, T_LIBS and T_TIMEOUT of hrm_tests.
function(_hrm_test_program name label sources)
  if(NOT TARGET hrm_test_main)
    add_library(hrm_test_main STATIC "${CMAKE_SOURCE_DIR}/tests/support/main.cpp"
                                     "${CMAKE_SOURCE_DIR}/tests/support/paths.cpp"
                                     "${CMAKE_SOURCE_DIR}/tests/support/ready_program.cpp")
    target_include_directories(hrm_test_main PRIVATE "${CMAKE_SOURCE_DIR}/tests")
    target_compile_definitions(hrm_test_main PRIVATE HRM_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
      HRM_BINARY_DIR="${CMAKE_BINARY_DIR}" HRM_SITE_PACKAGES="${HRM_SITE_PACKAGES}"
      HRM_TRAIN_BINARY="${CMAKE_BINARY_DIR}/bin/hrm_train")
    target_link_libraries(hrm_test_main PUBLIC GTest::gtest PRIVATE hrm_warnings)
  endif()
  set(target test_${name})
  set(torch "")
  if(T_TORCH)
    set(torch TORCH)
    if(NOT TARGET hrm_test_seed)
      add_library(hrm_test_seed OBJECT "${CMAKE_SOURCE_DIR}/tests/support/seed.cpp")
      target_link_libraries(hrm_test_seed PRIVATE hrm::torch GTest::gtest hrm_warnings)
      target_precompile_headers(hrm_test_seed REUSE_FROM hrm_pch)
    endif()
    list(APPEND T_LIBS hrm_test_seed)
  endif()
  hrm_program(${target} ${torch} SOURCES ${sources} LIBS ${T_LIBS} hrm_test_main)
  target_include_directories(${target} PRIVATE "${CMAKE_SOURCE_DIR}/tests")
  # What the tests themselves compute takes no time; -O1 compiles a quarter faster.
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  add_test(NAME ${name} COMMAND ${target} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  # 77: all its tests were skipped (tests/support/main.cpp).
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77
    ENVIRONMENT "${HRM_TEST_ENVIRONMENT}")
endfunction()
