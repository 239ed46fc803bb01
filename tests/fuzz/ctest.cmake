# The short campaign of scripts/fuzz on every target; label fuzz. Skipped (77) where no clang++ with libFuzzer is installed.
# The fuzzers themselves are a project of their own: CMakeLists.txt beside this file.
find_package(Python3 3.11 REQUIRED COMPONENTS Interpreter)

add_test(NAME fuzz COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/fuzz --seconds 3 --optional)
set_tests_properties(fuzz PROPERTIES LABELS fuzz TIMEOUT 1800 SKIP_RETURN_CODE 77 PROCESSORS 2 COST 150)
