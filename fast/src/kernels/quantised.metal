// Linear layers of the schemes L (8-bit codes) and M (4-bit codes with zero points) on int8 activations: the transform and
// quantisation of a row, and the product. Integer sums are exact in any order; the float part is one chain over the groups
// of a chunk, chunks in order (docs/numerics.md). A lane takes an output, a simdgroup one chunk of a panel of 32 outputs.

#define CODED_SIMDS 8u
#define CODED_THREADS 256u
// Inputs that share a scale.
#define CODED_GROUP 64u
// Groups of a chunk: 1024 inputs.
#define CODED_CHUNK_GROUPS 16u
#define CODED_PANEL 32u
#define CODED_FEW 4u
#define CODED_MANY 16u
#define QUANTISE_THREADS 32u

struct QuantiseArgs {
  uint inputs;
  uint x_first;
  uint x_stride;
  uint hadamard;  // 1: x' = H (D x) over full blocks of 32; 0: x' = x
};

// Grid: groups, rows. `codes: [rows, groups * 64]` int8 in words, zero padded; `scales, sums: [rows, groups]`, sums of codes.
kernel void quantise(device const float* x [[buffer(0)]], device const char* signs [[buffer(1)]],
                     device char* codes [[buffer(2)]], device float* scales [[buffer(3)]], device int* sums [[buffer(4)]],
                     constant QuantiseArgs& a [[buffer(5)]], uint3 group [[threadgroup_position_in_grid]],
                     uint lane [[thread_index_in_simdgroup]]) {
  uint groups = (a.inputs + CODED_GROUP - 1u) / CODED_GROUP, first = group.x * CODED_GROUP;
  device const float* row = x + a.x_first + group.y * a.x_stride;
  float v[2];
  float highest = 0.0f;
  for (uint half_group = 0u; half_group < 2u; ++half_group) {
    uint block = first + half_group * 32u, i = block + lane;
    float value = i < a.inputs ? row[i] : 0.0f;
    if (a.hadamard != 0u && block + 32u <= a.inputs) value = hadamard32(signs[i] < 0 ? 0.0f - value : value, lane);
    v[half_group] = value;
    float size = value < 0.0f ? 0.0f - value : value;
    highest = larger(size, highest);
  }
  for (ushort stride = 1; stride < 32; stride *= 2) highest = larger(simd_shuffle_xor(highest, stride), highest);
  bool zero = highest < 7.8886091e-31f;
  float inverse = zero ? 0.0f : 127.0f / highest;
  int sum = 0;
  for (uint half_group = 0u; half_group < 2u; ++half_group) {
    // Adding 1.5 * 2^23 rounds to an integer, ties to even.
    float rounded = (v[half_group] * inverse + 12582912.0f) - 12582912.0f;
    int code = zero ? 0 : int(rounded);
    codes[(group.y * groups + group.x) * CODED_GROUP + half_group * 32u + lane] = char(code);
    sum += code;
  }
  for (ushort stride = 1; stride < 32; stride *= 2) sum += simd_shuffle_xor(sum, stride);
  if (lane == 0u) {
    scales[group.y * groups + group.x] = zero ? 0.0f : highest / 127.0f;
    sums[group.y * groups + group.x] = sum;
  }
}

struct CodedArgs {
  uint rows;
  uint inputs;
  uint outputs;  // of this part of a stacked matrix
  uint y_first;
  uint y_stride;
};

// 16 bytes of codes.
struct Word4 {
  uint w[4];
};

static inline Word4 words_at(device const uint4* at) {
  uint4 x = *at;
  Word4 words;
  words.w[0] = x.x;
  words.w[1] = x.y;
  words.w[2] = x.z;
  words.w[3] = x.w;
  return words;
}

// Codes of scheme L at a lane of a panel: `[panel][16 inputs][32 outputs][16 bytes]`; scales `[panel][group][32]`.
struct EightBits {
  device const uint4* codes;
  device const Bf16* scales;

  // The exact integer of one group for R rows; `x` are the group's codes of each row.
  template <uint R>
  inline void products(uint group, thread device const uint4** x, thread device const int** sums, thread int* to) const {
    UNROLL
    for (uint piece = 0u; piece < 4u; ++piece) {
      Word4 w = words_at(codes + (group * 4u + piece) * CODED_PANEL);
      UNROLL
      for (uint r = 0u; r < R; ++r) {
        Word4 v = words_at(x[r] + group * 4u + piece);
        UNROLL
        for (uint j = 0u; j < 4u; ++j) to[r] = dot4(w.w[j], v.w[j], to[r]);
      }
    }
  }
};

// Codes of scheme M: `[panel][32 inputs][32 outputs][16 bytes]`, byte b of a word holds input b of 8 in its low half and input
// 4 + b in its high half; zero points `[panel][group][32]`, one a byte.
struct FourBits {
  device const uint4* codes;
  device const Bf16* scales;
  device const uchar* zeros;

  template <uint R>
  inline void products(uint group, thread device const uint4** x, thread device const int** sums, thread int* to) const {
    int zero = int(zeros[group * CODED_PANEL]);
    UNROLL
    for (uint r = 0u; r < R; ++r) to[r] = 0 - zero * sums[r][group];
    UNROLL
    for (uint piece = 0u; piece < 2u; ++piece) {
      Word4 w = words_at(codes + (group * 2u + piece) * CODED_PANEL);
      UNROLL
      for (uint r = 0u; r < R; ++r) {
        Word4 v = words_at(x[r] + group * 4u + piece * 2u), z = words_at(x[r] + group * 4u + piece * 2u + 1u);
        UNROLL
        for (uint j = 0u; j < 2u; ++j) {
          to[r] = dot4(w.w[j] & 0x0f0f0f0fu, v.w[2u * j], to[r]);
          to[r] = dot4((w.w[j] >> 4) & 0x0f0f0f0fu, v.w[2u * j + 1u], to[r]);
          to[r] = dot4(w.w[2u + j] & 0x0f0f0f0fu, z.w[2u * j], to[r]);
          to[r] = dot4((w.w[2u + j] >> 4) & 0x0f0f0f0fu, z.w[2u * j + 1u], to[r]);
        }
      }
    }
  }
};

// Grid: panels, ceil(rows / R). `totals_of_chunks` has CODED_SIMDS * R * 32 floats, `totals` R * 32.
template <uint R, typename W>
static inline void coded_linear(W weights, device const uint4* x, device const float* scales, device const int* sums,
                                device float* y, CodedArgs a, uint3 group, uint thread_index,
                                threadgroup float* chunk_sums, threadgroup float* totals) {
  uint lane = thread_index % CODED_PANEL, simd = thread_index / CODED_PANEL, first_row = group.y * R;
  uint groups = (a.inputs + CODED_GROUP - 1u) / CODED_GROUP;
  uint chunks = (groups + CODED_CHUNK_GROUPS - 1u) / CODED_CHUNK_GROUPS;
  device const uint4* codes[R];
  device const float* row_scales[R];
  device const int* row_sums[R];
  UNROLL
  for (uint r = 0u; r < R; ++r) {
    uint row = first_row + r < a.rows ? first_row + r : a.rows - 1u;
    codes[r] = x + row * groups * 4u;
    row_scales[r] = scales + row * groups;
    row_sums[r] = sums + row * groups;
  }
  for (uint first = 0u; first < chunks; first += CODED_SIMDS) {
    uint chunk = first + simd;
    if (chunk < chunks) {
      uint start = chunk * CODED_CHUNK_GROUPS;
      uint end = groups - start < CODED_CHUNK_GROUPS ? groups : start + CODED_CHUNK_GROUPS;
      float sum[R];
      UNROLL
      for (uint r = 0u; r < R; ++r) sum[r] = 0.0f;
      for (uint g = start; g < end; ++g) {
        int exact[R];
        UNROLL
        for (uint r = 0u; r < R; ++r) exact[r] = 0;
        weights.template products<R>(g, codes, row_sums, exact);
        float scale = widen(weights.scales[g * CODED_PANEL]);
        UNROLL
        for (uint r = 0u; r < R; ++r) {
          float p = row_scales[r][g] * scale;
          sum[r] = fused(float(exact[r]), p, sum[r]);
        }
      }
      UNROLL
      for (uint r = 0u; r < R; ++r) chunk_sums[(simd * R + r) * CODED_PANEL + lane] = sum[r];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint here = chunks - first < CODED_SIMDS ? chunks - first : CODED_SIMDS;
    for (uint i = thread_index; i < R * CODED_PANEL; i += CODED_THREADS) {
      // The first chunk is the output, later ones are added to it.
      float total = first == 0u ? chunk_sums[i] : totals[i] + chunk_sums[i];
      for (uint s = 1u; s < here; ++s) total = total + chunk_sums[s * R * CODED_PANEL + i];
      totals[i] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint i = thread_index; i < R * CODED_PANEL; i += CODED_THREADS) {
    uint row = first_row + i / CODED_PANEL, output = group.x * CODED_PANEL + i % CODED_PANEL;
    if (row < a.rows && output < a.outputs) y[row * a.y_stride + a.y_first + output] = totals[i];
  }
}

static inline EightBits eight_bits(device const uint4* codes, device const Bf16* scales, CodedArgs a, uint panel, uint lane) {
  uint groups = (a.inputs + CODED_GROUP - 1u) / CODED_GROUP;
  EightBits weights;
  weights.codes = codes + panel * groups * 4u * CODED_PANEL + lane;
  weights.scales = scales + panel * groups * CODED_PANEL + lane;
  return weights;
}

static inline FourBits four_bits(device const uint4* codes, device const Bf16* scales, device const uchar* zeros, CodedArgs a,
                                 uint panel, uint lane) {
  uint groups = (a.inputs + CODED_GROUP - 1u) / CODED_GROUP;
  FourBits weights;
  weights.codes = codes + panel * groups * 2u * CODED_PANEL + lane;
  weights.scales = scales + panel * groups * CODED_PANEL + lane;
  weights.zeros = zeros + panel * groups * CODED_PANEL + lane;
  return weights;
}

kernel void linear_l_one(device const uint4* w [[buffer(0)]], device const Bf16* w_scales [[buffer(1)]],
                         device const uint4* x [[buffer(2)]], device const float* scales [[buffer(3)]],
                         device const int* sums [[buffer(4)]], device float* y [[buffer(5)]],
                         constant CodedArgs& a [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float chunk_sums[CODED_SIMDS * 1u * CODED_PANEL];
  TG_MEM float totals[1u * CODED_PANEL];
  coded_linear<1u>(eight_bits(w, w_scales, a, group.x, thread_index % CODED_PANEL), x, scales, sums, y, a, group,
               thread_index, chunk_sums, totals);
}

kernel void linear_m_one(device const uint4* w [[buffer(0)]], device const Bf16* w_scales [[buffer(1)]],
                         device const uchar* zeros [[buffer(2)]], device const uint4* x [[buffer(3)]],
                         device const float* scales [[buffer(4)]], device const int* sums [[buffer(5)]],
                         device float* y [[buffer(6)]], constant CodedArgs& a [[buffer(7)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float chunk_sums[CODED_SIMDS * 1u * CODED_PANEL];
  TG_MEM float totals[1u * CODED_PANEL];
  coded_linear<1u>(four_bits(w, w_scales, zeros, a, group.x, thread_index % CODED_PANEL), x, scales, sums, y, a, group,
               thread_index, chunk_sums, totals);
}

kernel void linear_l_few(device const uint4* w [[buffer(0)]], device const Bf16* w_scales [[buffer(1)]],
                         device const uint4* x [[buffer(2)]], device const float* scales [[buffer(3)]],
                         device const int* sums [[buffer(4)]], device float* y [[buffer(5)]],
                         constant CodedArgs& a [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float chunk_sums[CODED_SIMDS * CODED_FEW * CODED_PANEL];
  TG_MEM float totals[CODED_FEW * CODED_PANEL];
  coded_linear<CODED_FEW>(eight_bits(w, w_scales, a, group.x, thread_index % CODED_PANEL), x, scales, sums, y, a, group,
               thread_index, chunk_sums, totals);
}

kernel void linear_m_few(device const uint4* w [[buffer(0)]], device const Bf16* w_scales [[buffer(1)]],
                         device const uchar* zeros [[buffer(2)]], device const uint4* x [[buffer(3)]],
                         device const float* scales [[buffer(4)]], device const int* sums [[buffer(5)]],
                         device float* y [[buffer(6)]], constant CodedArgs& a [[buffer(7)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float chunk_sums[CODED_SIMDS * CODED_FEW * CODED_PANEL];
  TG_MEM float totals[CODED_FEW * CODED_PANEL];
  coded_linear<CODED_FEW>(four_bits(w, w_scales, zeros, a, group.x, thread_index % CODED_PANEL), x, scales, sums, y, a, group,
               thread_index, chunk_sums, totals);
}

kernel void linear_l_many(device const uint4* w [[buffer(0)]], device const Bf16* w_scales [[buffer(1)]],
                          device const uint4* x [[buffer(2)]], device const float* scales [[buffer(3)]],
                          device const int* sums [[buffer(4)]], device float* y [[buffer(5)]],
                          constant CodedArgs& a [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float chunk_sums[CODED_SIMDS * CODED_MANY * CODED_PANEL];
  TG_MEM float totals[CODED_MANY * CODED_PANEL];
  coded_linear<CODED_MANY>(eight_bits(w, w_scales, a, group.x, thread_index % CODED_PANEL), x, scales, sums, y, a, group,
               thread_index, chunk_sums, totals);
}

kernel void linear_m_many(device const uint4* w [[buffer(0)]], device const Bf16* w_scales [[buffer(1)]],
                          device const uchar* zeros [[buffer(2)]], device const uint4* x [[buffer(3)]],
                          device const float* scales [[buffer(4)]], device const int* sums [[buffer(5)]],
                          device float* y [[buffer(6)]], constant CodedArgs& a [[buffer(7)]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float chunk_sums[CODED_SIMDS * CODED_MANY * CODED_PANEL];
  TG_MEM float totals[CODED_MANY * CODED_PANEL];
  coded_linear<CODED_MANY>(four_bits(w, w_scales, zeros, a, group.x, thread_index % CODED_PANEL), x, scales, sums, y, a, group,
               thread_index, chunk_sums, totals);
}
