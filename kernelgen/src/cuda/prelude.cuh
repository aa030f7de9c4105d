// The part of <metal_stdlib> that the shaders use, as CUDA for NVRTC without any header. A warp is a simdgroup.
#define kernel static __forceinline__
#define device
#define thread
#define constant const
#define threadgroup
#define TG_MEM __shared__
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef unsigned long long ulong;

namespace metal {
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
inline void threadgroup_barrier(mem_flags) { __syncthreads(); }
inline void simdgroup_barrier(mem_flags) { __syncwarp(); }
// Folds by halves: lane i with lane i + 16, 8, 4, 2, 1. Addition commutes, so every lane gets the same bits.
template <class T, class F> inline T reduction(T v, F f) {
  for (int h = 16; h > 0; h /= 2) v = f(v, __shfl_xor_sync(~0u, v, h));
  return v;
}
template <class T> inline T simd_sum(T v) { return reduction(v, [](T a, T b) { return T(a + b); }); }
template <class T> inline T simd_max(T v) { return reduction(v, [](T a, T b) { return a > b ? a : b; }); }
template <class T> inline T simd_min(T v) { return reduction(v, [](T a, T b) { return a < b ? a : b; }); }
template <class T> inline T simd_shuffle(T v, ushort lane) { return __shfl_sync(~0u, v, lane); }
template <class T> inline T simd_broadcast(T v, ushort lane) { return __shfl_sync(~0u, v, lane); }
template <class T> inline T simd_broadcast_first(T v) { return __shfl_sync(~0u, v, 0); }
template <class T> inline T simd_shuffle_xor(T v, ushort mask) { return __shfl_xor_sync(~0u, v, mask); }
template <class T> inline T simd_shuffle_down(T v, ushort by) { return __shfl_down_sync(~0u, v, by); }
template <class T> inline T simd_shuffle_up(T v, ushort by) { return __shfl_up_sync(~0u, v, by); }
inline bool simd_any(bool b) { return __any_sync(~0u, b); }
inline bool simd_all(bool b) { return __all_sync(~0u, b); }
template <class T> inline T clamp(T x, T low, T high) { return x < low ? low : x > high ? high : x; }
template <class T, class S> inline T as_type(S s) {
  static_assert(sizeof(T) == sizeof(S), "equal sizes");
  union Both {
    S s;
    T t;
    inline Both() {}
  } both;
  both.s = s;
  return both.t;
}
}  // namespace metal
