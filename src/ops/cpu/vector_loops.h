#pragma once
// Loops that the compiler turns into vectors as wide as the CPU has them. Their files are compiled without contraction
// and reordering (src/CMakeLists.txt), so the width does not change a bit of the result.

// A function that is compiled for several instruction sets; the loader chooses. What it calls must be HRM_INLINE.
// Sanitizers cannot run the function that chooses when the program is loaded.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define HRM_FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HRM_FOR_EACH_CPU
#endif
#define HRM_INLINE inline __attribute__((always_inline))
