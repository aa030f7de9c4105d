// The part of <metal_stdlib> that the shaders use, for the emulator's machine. Simdgroup operations and barriers are not
// inlined: the place they are called from identifies the meeting.
#define kernel static inline
#define device
#define constant const
#define threadgroup
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef unsigned long ulong;
typedef _Float16 half;
#define STRAW_VECTOR(T)                                     \
  typedef T T##2 __attribute__((ext_vector_type(2)));       \
  typedef T T##4 __attribute__((ext_vector_type(4)));
STRAW_VECTOR(float)
STRAW_VECTOR(half)
STRAW_VECTOR(char)
STRAW_VECTOR(uchar)
STRAW_VECTOR(short)
STRAW_VECTOR(ushort)
STRAW_VECTOR(int)
STRAW_VECTOR(uint)
typedef float float3 __attribute__((ext_vector_type(3)));
#define STRAW_SITE __builtin_return_address(0)
#define STRAW_MEETING static __attribute__((noinline, convergent, noduplicate))

namespace metal {
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
static inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
STRAW_MEETING void threadgroup_barrier(mem_flags) { rt::barrier(STRAW_SITE); }
STRAW_MEETING void simdgroup_barrier(mem_flags) { rt::simdgroup_barrier(STRAW_SITE); }

template <class T> static inline uint64_t packed(T v) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  memcpy(&bits, &v, sizeof(T));
  return bits;
}
template <class T> static inline T unpacked(uint64_t bits) {
  T v;
  memcpy(&v, &bits, sizeof(T));
  return v;
}
// Folds by halves, lane i with lane i + 16, 8, 4, 2, 1.
template <class T, class F> static inline T reduction(T v, const void* site, F f) {
  const uint64_t* values = rt::exchange(packed(v), site);
  uint64_t* result;
  if (rt::reduced(result)) return unpacked<T>(*result);
  T a[32];
  for (int i = 0; i < 32; ++i) a[i] = unpacked<T>(values[i]);
  for (int h = 16; h > 0; h /= 2)
    for (int i = 0; i < h; ++i) a[i] = f(a[i], a[i + h]);
  *result = packed(a[0]);
  return a[0];
}
template <class T> STRAW_MEETING T simd_sum(T v) { return reduction(v, STRAW_SITE, [](T a, T b) { return T(a + b); }); }
template <class T> STRAW_MEETING T simd_max(T v) { return reduction(v, STRAW_SITE, [](T a, T b) { return a > b ? a : b; }); }
template <class T> STRAW_MEETING T simd_min(T v) { return reduction(v, STRAW_SITE, [](T a, T b) { return a < b ? a : b; }); }
template <class T> static inline T of_lane(T v, uint lane, const void* site, bool mine_if_outside) {
  const uint64_t* values = rt::exchange(packed(v), site);
  if (lane < 32) return unpacked<T>(values[lane]);
  if (!mine_if_outside) rt::report("a shuffle reads a lane outside the simdgroup");
  return v;
}
template <class T> STRAW_MEETING T simd_shuffle(T v, ushort lane) { return of_lane(v, lane, STRAW_SITE, false); }
template <class T> STRAW_MEETING T simd_broadcast(T v, ushort lane) { return of_lane(v, lane, STRAW_SITE, false); }
template <class T> STRAW_MEETING T simd_broadcast_first(T v) { return of_lane(v, 0, STRAW_SITE, false); }
template <class T> STRAW_MEETING T simd_shuffle_xor(T v, ushort mask) { return of_lane(v, rt::place().lane ^ mask, STRAW_SITE, false); }
template <class T> STRAW_MEETING T simd_shuffle_down(T v, ushort by) { return of_lane(v, rt::place().lane + by, STRAW_SITE, true); }
template <class T> STRAW_MEETING T simd_shuffle_up(T v, ushort by) { return of_lane(v, rt::place().lane - by, STRAW_SITE, true); }
STRAW_MEETING bool simd_any(bool b) { return reduction(uint(b), STRAW_SITE, [](uint a, uint c) { return a | c; }) != 0; }
STRAW_MEETING bool simd_all(bool b) { return reduction(uint(b), STRAW_SITE, [](uint a, uint c) { return a & c; }) != 0; }

template <class T> static inline T min(T a, T b) { return a < b ? a : b; }
template <class T> static inline T max(T a, T b) { return a > b ? a : b; }
template <class T> static inline T clamp(T x, T low, T high) { return x < low ? low : x > high ? high : x; }
static inline float fabs(float x) { return __builtin_fabsf(x); }
static inline int abs(int x) { return x < 0 ? -x : x; }
static inline float rint(float x) { return __builtin_rintf(x); }
template <class T, class S> static inline T as_type(S s) {
  static_assert(sizeof(T) == sizeof(S));
  T t;
  memcpy(&t, &s, sizeof t);
  return t;
}

// 8x8 matrices, two elements a lane. Metal does not say where they lie, so nothing may depend on it.
template <class T, int R, int C> struct simdgroup_matrix { T e[2]; };
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
static inline void element(uint lane, uint& row, uint& column) {
  row = (lane / 4 & 4) + lane / 2 % 4;
  column = (lane / 4 & 2) * 2 + lane % 2 * 2;
}
template <class T, int R, int C> static inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) { return {{v, v}}; }
template <class T> STRAW_MEETING void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* p, ulong stride = 8) {
  rt::exchange(0, STRAW_SITE);
  uint r, c;
  element(rt::place().lane, r, c);
  m.e[0] = p[r * stride + c];
  m.e[1] = p[r * stride + c + 1];
}
template <class T> STRAW_MEETING void simdgroup_store(simdgroup_matrix<T, 8, 8> m, T* p, ulong stride = 8) {
  rt::exchange(0, STRAW_SITE);
  uint r, c;
  element(rt::place().lane, r, c);
  p[r * stride + c] = m.e[0];
  p[r * stride + c + 1] = m.e[1];
}
template <class T> static inline void collect(const simdgroup_matrix<T, 8, 8>& m, float (&all)[8][8], const void* site) {
  float mine[2] = {float(m.e[0]), float(m.e[1])};
  uint64_t bits;
  memcpy(&bits, mine, 8);
  const uint64_t* values = rt::exchange(bits, site);
  for (uint lane = 0; lane < 32; ++lane) {
    uint r, c;
    element(lane, r, c);
    memcpy(&all[r][c], &values[lane], 8);
  }
}
template <class D, class A, class B, class C>
STRAW_MEETING void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b,
                                                 simdgroup_matrix<C, 8, 8> c) {
  float left[8][8], right[8][8];
  collect(a, left, STRAW_SITE);
  collect(b, right, (const char*)STRAW_SITE + 1);
  uint r, q;
  element(rt::place().lane, r, q);
  float sum[2] = {float(c.e[0]), float(c.e[1])};
  for (int k = 0; k < 8; ++k)
    for (int j = 0; j < 2; ++j) sum[j] = __builtin_fmaf(left[r][k], right[k][q + j], sum[j]);
  d.e[0] = D(sum[0]);
  d.e[1] = D(sum[1]);
}
}  // namespace metal
// After all headers: a keyword of the shading language that C++ libraries use as a name.
#define thread
