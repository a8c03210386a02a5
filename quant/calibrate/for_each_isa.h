// A function for several instruction sets: its body, an OAR_BODY, is compiled once for each, and the best one
// that the processor has is called. Files that use it are compiled without contraction of products and sums
// (quant/CMakeLists.txt), so that every processor computes the same bits.
#pragma once

#define OAR_BODY __attribute__((always_inline)) inline
#if defined(__x86_64__)
#define OAR_FOR_EACH_ISA(name, body, Args)                                                               \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) void name##_avx512(Args& a) { body(a); } \
  __attribute__((target("avx2"))) void name##_avx2(Args& a) { body(a); }                                 \
  void name(Args& a) {                                                                                   \
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&                      \
        __builtin_cpu_supports("avx512vl")) {                                                            \
      name##_avx512(a);                                                                                  \
    } else if (__builtin_cpu_supports("avx2")) {                                                         \
      name##_avx2(a);                                                                                    \
    } else {                                                                                             \
      body(a);                                                                                           \
    }                                                                                                    \
  }
#else
#define OAR_FOR_EACH_ISA(name, body, Args) \
  void name(Args& a) { body(a); }
#endif
