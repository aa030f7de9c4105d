// The arithmetic of docs/numerics.md for shaders: the functions of kernels/math.rs in the same operations, and how stored
// numbers widen to f32. Knows nothing of any operator. Every shader file is compiled behind this text.
//
// One source for three compilers: Metal, CUDA (NVRTC) and the emulator's C++. Hence: every pointer names its address space;
// threadgroup arrays are declared with TG_MEM and only in kernels; kernels are plain functions `kernel void name(...)` over
// template bodies; constants are one struct of 4-byte fields; sizes that the host needs are `#define NAME 123u`;
// no double literals, no maths function but those below. Fused multiply-adds are written `fused`; nothing else is contracted.
#include <metal_stdlib>
using namespace metal;

#ifndef TG_MEM
#define TG_MEM threadgroup
#endif

#if defined(__METAL_VERSION__)
#pragma STDC FP_CONTRACT OFF
static inline float fused(float a, float b, float c) { return metal::fma(a, b, c); }
static inline float root(float x) { return metal::precise::sqrt(x); }
#define UNROLL _Pragma("unroll")
#elif defined(__CUDACC__)
static inline float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
static inline float root(float x) { return __fsqrt_rn(x); }
#define UNROLL _Pragma("unroll")
#else
static inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float root(float x) { return __builtin_sqrtf(x); }
#define UNROLL
#endif

#define NEGATIVE_INFINITY as_type<float>(0xff800000u)

// a > b ? a : b, which passes over a NaN in a.
static inline float larger(float a, float b) { return a > b ? a : b; }

// e^x: 0 below ln(2^-126), constant above 88.376, NaN stays NaN.
static inline float straw_exp(float x) {
  x = 88.376f < x ? 88.376f : x;
  float shifted = fused(x, 1.44269504f, 12582912.0f);
  float n = shifted - 12582912.0f;
  float high = fused(n, -0.693359375f, x);
  float low = n * -2.1219444e-4f;
  float r = high - low;
  // What roundings of r and of 1 + r lost.
  float near = 1.0f + r;
  float lost = ((high - r) - low) + (r - (near - 1.0f));
  float q = 0.0013814539f;
  q = fused(q, r, 0.008368745f);
  q = fused(q, r, 0.04166839f);
  q = fused(q, r, 0.16666521f);
  q = fused(q, r, 0.49999994f);
  float p = near + fused(q, r * r, lost);
  float scale = as_type<float>((as_type<uint>(shifted) << 23) + 0x3f800000u);
  return x < -87.33654f ? 0.0f : p * scale;
}

// ln x; minus infinity below 2^-126 and for negative x.
static inline float straw_log(float x) {
  uint above = as_type<uint>(x) - 0x3f3504f3u;
  float e = float(int(above) >> 23);
  float m = as_type<float>((above & 0x007fffffu) + 0x3f3504f3u);
  float f = m - 1.0f;
  float q = 0.067466415f;
  q = fused(q, f, -0.11675657f);
  q = fused(q, f, 0.11888165f);
  q = fused(q, f, -0.124055885f);
  q = fused(q, f, 0.14219552f);
  q = fused(q, f, -0.16667996f);
  q = fused(q, f, 0.20002119f);
  q = fused(q, f, -0.2500001f);
  q = fused(q, f, 0.33333313f);
  float f2 = f * f;
  float small = fused(e, -2.1219444e-4f, q * (f2 * f));
  small = fused(f2, -0.5f, small);
  float y = fused(e, 0.693359375f, small + f);
  return x < 1.17549435e-38f ? NEGATIVE_INFINITY : y;
}

// 1 / (1 + e^-x).
static inline float straw_sigmoid(float x) { return 1.0f / (1.0f + straw_exp(0.0f - x)); }

// x / (1 + e^-x); 0 below -88.
static inline float straw_silu(float x) {
  float y = x / (1.0f + straw_exp(0.0f - x));
  return x < -88.0f ? 0.0f : y;
}

// ln(1 + e^x); x above 20.
static inline float straw_softplus(float x) {
  float e = straw_exp(x);
  float w = 1.0f + e;
  // What rounding lost of e when 1 was added.
  float lost = e - (w - 1.0f);
  float y = straw_log(w) + lost / w;
  return 20.0f < x ? x : y;
}

// 1 / sqrt(x), both correctly rounded.
static inline float straw_rsqrt(float x) { return 1.0f / root(x); }

// Stored numbers as f32, exactly. bf16 and f16 travel as their bits.
struct Bf16 {
  ushort bits;
};
struct F16 {
  ushort bits;
};

static inline float widen(float x) { return x; }
static inline float widen(char x) { return float(x); }
static inline float widen(Bf16 x) { return as_type<float>(uint(x.bits) << 16); }
static inline float widen(F16 x) {
  uint exponent = (x.bits >> 10) & 31u;
  uint fraction = x.bits & 0x3ffu;
  float magnitude = exponent == 0u    ? float(fraction) * 5.9604645e-8f
                    : exponent == 31u ? as_type<float>(0x7f800000u | (fraction << 13))
                                      : as_type<float>(((exponent + 112u) << 23) | (fraction << 13));
  return as_type<float>(as_type<uint>(magnitude) | (uint(x.bits & 0x8000u) << 16));
}

// f32 rounded to a cache's type: to nearest, ties to even; a NaN stays one.
static inline void narrow(float x, thread float& to) { to = x; }
static inline void narrow(float x, thread Bf16& to) {
  uint bits = as_type<uint>(x);
  uint rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to.bits = ushort((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

// c + the four products of signed bytes, exactly.
static inline int dot4(uint a, uint b, int c) {
#if defined(__CUDACC__)
  return __dp4a(int(a), int(b), c);
#else
  for (uint shift = 0u; shift < 32u; shift += 8u) c += (int(a << (24u - shift)) >> 24) * (int(b << (24u - shift)) >> 24);
  return c;
#endif
}

// The unnormalised Hadamard transform of 32 values, one a lane of a simdgroup: strides 1, 2, 4, 8, 16, pairs (a + b, a - b).
static inline float hadamard32(float x, uint lane) {
  for (ushort stride = 1; stride < 32; stride *= 2) {
    float other = simd_shuffle_xor(x, stride);
    x = (lane & uint(stride)) != 0u ? other - x : x + other;
  }
  return x;
}

// Vectors inside wider rows: vector i of `heads` a row starts at `first + row * row_stride + head * head_stride`.
struct Place {
  uint first;
  uint row_stride;
  uint heads;
  uint head_stride;
};

static inline uint start_of(Place at, uint vector) {
  return at.first + vector / at.heads * at.row_stride + vector % at.heads * at.head_stride;
}

// The sum of docs/numerics.md section 4: 128 threads bring their lane's sum, all receive the fold. `lanes` has 128 floats and
// may be used again after the next barrier.
#define FOLD_THREADS 128u

static inline float fold(float lane_sum, threadgroup float* lanes, uint thread_index) {
  lanes[thread_index] = lane_sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index < 64u) lanes[thread_index] = lanes[thread_index] + lanes[thread_index + 64u];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index < 32u) {
    float sum = lanes[thread_index] + lanes[thread_index + 32u];
    for (ushort half_width = 16; half_width > 0; half_width /= 2) sum = sum + simd_shuffle_down(sum, half_width);
    if (thread_index == 0u) lanes[0] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return lanes[0];
}
