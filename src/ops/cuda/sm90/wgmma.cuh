#pragma once
// wgmma for the shapes that the kernels use; see primitives.cuh for the layout of the operands.
//
//   Mma<N, Input>::shared<a_major, b_major>(d, a, b, accumulate)   A and B in shared memory
//   Mma<N, Input>::registers<b_major>(d, a, b, accumulate)         A in registers, B in shared memory
//
// With accumulate = false, D is overwritten. A in registers: a[0] row g, columns 2q, 2q+1; a[1] row g + 8; a[2] row g,
// columns 8 + 2q, ...; a[3] row g + 8, columns 8 + 2q, ... (two 16-bit values each).
//
// e4m3 operands are K-major, 32 of K by one instruction: the same bytes of shared memory and the same descriptors as 16
// of 16 bits. D is laid out alike. Their products are summed with about 14 bits.

#include "ops/cuda/sm90/primitives.cuh"

namespace hrm::ops::cuda::sm90 {

enum class Input { bf16, f16, e4m3 };

template <int N, Input kInput>
struct Mma;

// clang-format off
#define HRM_D16 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define HRM_D32 HRM_D16 ", " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HRM_D40 HRM_D32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39"
#define HRM_D44 HRM_D40 ", " \
  "%40, %41, %42, %43"
#define HRM_D48 HRM_D44 ", " \
  "%44, %45, %46, %47"
#define HRM_D52 HRM_D48 ", " \
  "%48, %49, %50, %51"
#define HRM_D56 HRM_D52 ", " \
  "%52, %53, %54, %55"
#define HRM_D64 HRM_D56 ", " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define HRM_D96 HRM_D64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define HRM_D128 HRM_D96 ", " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define HRM_F4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define HRM_F16(i) HRM_F4(i), HRM_F4((i) + 4), HRM_F4((i) + 8), HRM_F4((i) + 12)
#define HRM_F16_ALL HRM_F16(0)
#define HRM_F32_ALL HRM_F16(0), HRM_F16(16)
#define HRM_F40_ALL HRM_F16(0), HRM_F16(16), HRM_F4(32), HRM_F4(36)
#define HRM_F44_ALL HRM_F16(0), HRM_F16(16), HRM_F4(32), HRM_F4(36), HRM_F4(40)
#define HRM_F48_ALL HRM_F16(0), HRM_F16(16), HRM_F16(32)
#define HRM_F52_ALL HRM_F16(0), HRM_F16(16), HRM_F16(32), HRM_F4(48)
#define HRM_F56_ALL HRM_F16(0), HRM_F16(16), HRM_F16(32), HRM_F4(48), HRM_F4(52)
#define HRM_F64_ALL HRM_F16(0), HRM_F16(16), HRM_F16(32), HRM_F16(48)
#define HRM_F96_ALL HRM_F16(0), HRM_F16(16), HRM_F16(32), HRM_F16(48), HRM_F16(64), HRM_F16(80)
#define HRM_F128_ALL HRM_F96_ALL, HRM_F16(96), HRM_F16(112)

// OPn: the number of the n-th operand after the accumulators, as text.
#define HRM_WGMMA_16(N, INPUT, TYPE, REGS, OUTS, OP0, OP1, OP2, OP3, OP4, OP5, OP6)                                    \
  template <>                                                                                                          \
  struct Mma<N, Input::INPUT> {                                                                                        \
    template <Major kA = Major::k, Major kB = Major::k>                                                                \
    __device__ static void shared(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {                        \
      asm volatile(                                                                                                    \
          "{\n.reg .pred p;\nsetp.ne.b32 p, " OP2 ", 0;\n"                                                             \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGS "}, " OP0 ", " OP1                 \
          ", p, 1, 1, " OP3 ", " OP4 ";\n}\n"                                                                          \
          : OUTS                                                                                                       \
          : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));  \
    }                                                                                                                  \
    template <Major kB = Major::k>                                                                                     \
    __device__ static void registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {         \
      asm volatile(                                                                                                    \
          "{\n.reg .pred p;\nsetp.ne.b32 p, " OP5 ", 0;\n"                                                             \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGS "}, {" OP0 ", " OP1 ", " OP2       \
          ", " OP3 "}, " OP4 ", p, 1, 1, " OP6 ";\n}\n"                                                                \
          : OUTS                                                                                                       \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),                     \
            "n"(static_cast<int>(kB)));                                                                                \
    }                                                                                                                  \
  };

#define HRM_WGMMA_8(N, INPUT, TYPE, REGS, OUTS, OP0, OP1, OP2, OP3, OP4, OP5, OP6)                                     \
  template <>                                                                                                          \
  struct Mma<N, Input::INPUT> {                                                                                        \
    __device__ static void shared(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {                        \
      asm volatile(                                                                                                    \
          "{\n.reg .pred p;\nsetp.ne.b32 p, " OP2 ", 0;\n"                                                             \
          "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPE "." TYPE " {" REGS "}, " OP0 ", " OP1                 \
          ", p, 1, 1;\n}\n"                                                                                            \
          : OUTS                                                                                                       \
          : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                                                        \
    }                                                                                                                  \
  };

#define HRM_WGMMA_N32(MACRO, INPUT, TYPE) MACRO(32, INPUT, TYPE, HRM_D16, HRM_F16_ALL, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
#define HRM_WGMMA_N64(MACRO, INPUT, TYPE) MACRO(64, INPUT, TYPE, HRM_D32, HRM_F32_ALL, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
#define HRM_WGMMA_N80(MACRO, INPUT, TYPE) MACRO(80, INPUT, TYPE, HRM_D40, HRM_F40_ALL, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
#define HRM_WGMMA_N88(MACRO, INPUT, TYPE) MACRO(88, INPUT, TYPE, HRM_D44, HRM_F44_ALL, "%44", "%45", "%46", "%47", "%48", "%49", "%50")
#define HRM_WGMMA_N96(MACRO, INPUT, TYPE) MACRO(96, INPUT, TYPE, HRM_D48, HRM_F48_ALL, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
#define HRM_WGMMA_N104(MACRO, INPUT, TYPE) MACRO(104, INPUT, TYPE, HRM_D52, HRM_F52_ALL, "%52", "%53", "%54", "%55", "%56", "%57", "%58")
#define HRM_WGMMA_N112(MACRO, INPUT, TYPE) MACRO(112, INPUT, TYPE, HRM_D56, HRM_F56_ALL, "%56", "%57", "%58", "%59", "%60", "%61", "%62")
#define HRM_WGMMA_N128(MACRO, INPUT, TYPE) MACRO(128, INPUT, TYPE, HRM_D64, HRM_F64_ALL, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
#define HRM_WGMMA_N192(MACRO, INPUT, TYPE) MACRO(192, INPUT, TYPE, HRM_D96, HRM_F96_ALL, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
#define HRM_WGMMA_N256(MACRO, INPUT, TYPE) MACRO(256, INPUT, TYPE, HRM_D128, HRM_F128_ALL, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
#define HRM_WGMMA_ALL(MACRO, INPUT, TYPE) \
  HRM_WGMMA_N32(MACRO, INPUT, TYPE) \
  HRM_WGMMA_N64(MACRO, INPUT, TYPE) \
  HRM_WGMMA_N80(MACRO, INPUT, TYPE) \
  HRM_WGMMA_N88(MACRO, INPUT, TYPE) \
  HRM_WGMMA_N96(MACRO, INPUT, TYPE) \
  HRM_WGMMA_N104(MACRO, INPUT, TYPE) \
  HRM_WGMMA_N112(MACRO, INPUT, TYPE) \
  HRM_WGMMA_N128(MACRO, INPUT, TYPE) \
  HRM_WGMMA_N192(MACRO, INPUT, TYPE) \
  HRM_WGMMA_N256(MACRO, INPUT, TYPE)

HRM_WGMMA_ALL(HRM_WGMMA_16, bf16, "bf16")
HRM_WGMMA_ALL(HRM_WGMMA_16, f16, "f16")
HRM_WGMMA_N32(HRM_WGMMA_8, e4m3, "e4m3")
HRM_WGMMA_N64(HRM_WGMMA_8, e4m3, "e4m3")
HRM_WGMMA_N80(HRM_WGMMA_8, e4m3, "e4m3")
HRM_WGMMA_N96(HRM_WGMMA_8, e4m3, "e4m3")
HRM_WGMMA_N192(HRM_WGMMA_8, e4m3, "e4m3")
HRM_WGMMA_N256(HRM_WGMMA_8, e4m3, "e4m3")

#undef HRM_WGMMA_N32
#undef HRM_D16
#undef HRM_F16_ALL
#undef HRM_WGMMA_N64
#undef HRM_D32
#undef HRM_F32_ALL
#undef HRM_WGMMA_N80
#undef HRM_D40
#undef HRM_F40_ALL
#undef HRM_WGMMA_N88
#undef HRM_D44
#undef HRM_F44_ALL
#undef HRM_WGMMA_N96
#undef HRM_D48
#undef HRM_F48_ALL
#undef HRM_WGMMA_N104
#undef HRM_D52
#undef HRM_F52_ALL
#undef HRM_WGMMA_N112
#undef HRM_D56
#undef HRM_F56_ALL
#undef HRM_WGMMA_N128
#undef HRM_D64
#undef HRM_F64_ALL
#undef HRM_WGMMA_N192
#undef HRM_D96
#undef HRM_F96_ALL
#undef HRM_WGMMA_N256
#undef HRM_D128
#undef HRM_F128_ALL
#undef HRM_WGMMA_ALL
#undef HRM_WGMMA_16
#undef HRM_WGMMA_8
#undef HRM_F4
#undef HRM_F16
// clang-format on

}  // namespace hrm::ops::cuda::sm90
