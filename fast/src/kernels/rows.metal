// Rows in and out: embedding rows of a packed matrix, rows gathered by index, vectors copied between rows of unlike widths.
// Knows nothing of what the numbers mean.

#define ROWS_THREADS 256u

struct EmbedArgs {
  uint inputs;
  uint tokens;
  uint first_row;  // of the table among the matrix' rows: a stacked matrix' part
  uint part_rows;  // rows of this part; tokens outside it are left alone
  uint group;      // inputs that share a scale (8-bit codes)
};

// Element (row, k) of panels of 32 outputs, `[panel][input][32]`.
static inline uint place_of(uint row, uint k, uint inputs) { return (row / 32u * inputs + k) * 32u + row % 32u; }

template <typename T>
static inline void embed(device const T* table, device const uint* tokens, device float* out, EmbedArgs a, uint at) {
  if (at >= a.tokens * a.inputs) return;
  uint row = tokens[at / a.inputs] - a.first_row;
  if (row < a.part_rows) out[at] = widen(table[place_of(row, at % a.inputs, a.inputs)]);
}

kernel void embed_f32(device const float* table [[buffer(0)]], device const uint* tokens [[buffer(1)]],
                      device float* out [[buffer(2)]], constant EmbedArgs& a [[buffer(3)]],
                      uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  embed(table, tokens, out, a, group.x * ROWS_THREADS + thread_index);
}

kernel void embed_bf16(device const Bf16* table [[buffer(0)]], device const uint* tokens [[buffer(1)]],
                       device float* out [[buffer(2)]], constant EmbedArgs& a [[buffer(3)]],
                       uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  embed(table, tokens, out, a, group.x * ROWS_THREADS + thread_index);
}

kernel void embed_f16(device const F16* table [[buffer(0)]], device const uint* tokens [[buffer(1)]],
                      device float* out [[buffer(2)]], constant EmbedArgs& a [[buffer(3)]],
                      uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  embed(table, tokens, out, a, group.x * ROWS_THREADS + thread_index);
}

// A weight is `scale * code`, exact in f32.
kernel void embed_q8(device const char* codes [[buffer(0)]], device const Bf16* scales [[buffer(1)]],
                     device const uint* tokens [[buffer(2)]], device float* out [[buffer(3)]],
                     constant EmbedArgs& a [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]]) {
  uint at = group.x * ROWS_THREADS + thread_index;
  if (at >= a.tokens * a.inputs) return;
  uint row = tokens[at / a.inputs] - a.first_row;
  uint k = at % a.inputs;
  uint groups = (a.inputs + a.group - 1u) / a.group;
  if (row < a.part_rows) out[at] = widen(scales[place_of(row, k / a.group, groups)]) * widen(codes[place_of(row, k, a.inputs)]);
}

struct GatherArgs {
  uint width;
  uint rows;
  uint to_row;  // first row written
};

// Rows `indices` of `from` behind one another.
kernel void gather_rows(device const float* from [[buffer(0)]], device const uint* indices [[buffer(1)]],
                        device float* to [[buffer(2)]], constant GatherArgs& a [[buffer(3)]],
                        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint at = group.x * ROWS_THREADS + thread_index;
  if (at < a.width * a.rows) to[a.to_row * a.width + at] = from[indices[at / a.width] * a.width + at % a.width];
}

struct CopyArgs {
  uint rows;
  uint width;
  uint from_first;
  uint from_stride;
  uint to_first;
  uint to_stride;
};

// `width` elements of every row.
kernel void copy_rows(device const float* from [[buffer(0)]], device float* to [[buffer(1)]],
                      constant CopyArgs& a [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                      uint thread_index [[thread_index_in_threadgroup]]) {
  uint at = group.x * ROWS_THREADS + thread_index;
  if (at >= a.rows * a.width) return;
  uint row = at / a.width, column = at % a.width;
  to[a.to_first + row * a.to_stride + column] = from[a.from_first + row * a.from_stride + column];
}
