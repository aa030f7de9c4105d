// Softmax attention by blocks of 64 absolute positions; a row sees committed positions, then the staged rows that its mask
// lists (its tree path, or all rows of a draft block). First every block of every query alone, then the blocks in order.
// docs/numerics.md section 7. The cache's layout is that of kv.metal.

#define ATTEND_THREADS 64u
#define ATTEND_MAX_DIM 256u

struct AttendArgs {
  uint heads;     // of queries
  uint kv_heads;
  uint dim;       // at most 256
  uint first_row; // of this call; scratch and grid count from it
  uint blocks;    // of the cache
  uint staged;
  uint staged_padded;
  uint part_blocks;  // blocks that scratch holds of each query
  Place q;
};

// Mask of row r: `rows[3 r]` committed positions, then `rows[3 r + 2]` staged rows from `list[rows[3 r + 1]]` on.
// `parts: [row of this call, head, part_blocks, dim + 2]`: o_b, m_b, l_b. Grid: blocks, heads, rows.
template <typename T>
static inline void attend_block(device const float* q, device const T* keys, device const T* values,
                                device const T* staged_keys, device const T* staged_values, device const uint* rows,
                                device const uint* list, device float* parts, AttendArgs a, uint3 group, uint thread_index,
                                threadgroup float* scaled, threadgroup float* p) {
  uint block = group.x, head = group.y, row = a.first_row + group.z;
  uint kv_head = head / (a.heads / a.kv_heads);
  uint committed = rows[3u * row], first = block * KV_BLOCK;
  uint visible = committed + rows[3u * row + 2u];
  if (first >= visible) return;
  uint n = visible - first < KV_BLOCK ? visible - first : KV_BLOCK;
  uint cached = committed > first ? (committed - first < n ? committed - first : n) : 0u;
  // Staged row of the block's position t, t >= cached, is `list[seen + t]`; unsigned, so a committed first position is fine.
  uint seen = rows[3u * row + 1u] + (first - committed);

  device const float* query = q + start_of(a.q, row * a.heads + head);
  float scale = 1.0f / root(float(a.dim));
  for (uint d = thread_index; d < a.dim; d += ATTEND_THREADS) scaled[d] = query[d] * scale;
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float score = 0.0f;
  if (thread_index < cached) {
    device const T* key = keys + key_at(kv_head, first + thread_index, 0u, a.blocks, a.dim);
    for (uint d = 0u; d < a.dim; ++d) score = fused(scaled[d], widen(key[d * KV_BLOCK]), score);
  } else if (thread_index < n) {
    device const T* key = staged_keys + kv_head * a.dim * a.staged_padded + list[seen + thread_index];
    for (uint d = 0u; d < a.dim; ++d) score = fused(scaled[d], widen(key[d * a.staged_padded]), score);
  }
  p[thread_index] = score;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float highest = NEGATIVE_INFINITY;
  for (uint t = 0u; t < n; ++t) highest = larger(p[t], highest);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  p[thread_index] = straw_exp(score - highest);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  device float* part = parts + ((group.z * a.heads + head) * a.part_blocks + block) * (a.dim + 2u);
  if (thread_index == 0u) {
    float total = 0.0f;
    for (uint t = 0u; t < n; ++t) total = total + p[t];
    part[a.dim] = highest;
    part[a.dim + 1u] = total;
  }
  for (uint d = thread_index; d < a.dim; d += ATTEND_THREADS) {
    float sum = 0.0f;
    device const T* value = values + (kv_head * a.blocks * KV_BLOCK + first) * a.dim + d;
    for (uint t = 0u; t < cached; ++t) sum = fused(p[t], widen(value[t * a.dim]), sum);
    for (uint t = cached; t < n; ++t)
      sum = fused(p[t], widen(staged_values[(kv_head * a.staged + list[seen + t]) * a.dim + d]), sum);
    part[d] = sum;
  }
}

kernel void attend_blocks_f32(device const float* q [[buffer(0)]], device const float* keys [[buffer(1)]],
                              device const float* values [[buffer(2)]], device const float* staged_keys [[buffer(3)]],
                              device const float* staged_values [[buffer(4)]], device const uint* rows [[buffer(5)]],
                              device const uint* list [[buffer(6)]], device float* parts [[buffer(7)]],
                              constant AttendArgs& a [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                              uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float scaled[ATTEND_MAX_DIM];
  TG_MEM float p[KV_BLOCK];
  attend_block(q, keys, values, staged_keys, staged_values, rows, list, parts, a, group, thread_index, scaled, p);
}

kernel void attend_blocks_bf16(device const float* q [[buffer(0)]], device const Bf16* keys [[buffer(1)]],
                               device const Bf16* values [[buffer(2)]], device const Bf16* staged_keys [[buffer(3)]],
                               device const Bf16* staged_values [[buffer(4)]], device const uint* rows [[buffer(5)]],
                               device const uint* list [[buffer(6)]], device float* parts [[buffer(7)]],
                               constant AttendArgs& a [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                               uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float scaled[ATTEND_MAX_DIM];
  TG_MEM float p[KV_BLOCK];
  attend_block(q, keys, values, staged_keys, staged_values, rows, list, parts, a, group, thread_index, scaled, p);
}

// `M = max m_b`, `c_b = exp(m_b - M)`, `L` and `O` chains over the blocks, `out = O / L`, `[row, head, dim]`.
// Grid: heads, rows.
kernel void attend_combine(device const float* parts [[buffer(0)]], device const uint* rows [[buffer(1)]],
                           device float* out [[buffer(2)]], constant AttendArgs& a [[buffer(3)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float c[ATTEND_THREADS];
  TG_MEM float sums[ATTEND_MAX_DIM];
  uint head = group.x, row = a.first_row + group.y;
  uint blocks = (rows[3u * row] + rows[3u * row + 2u] + KV_BLOCK - 1u) / KV_BLOCK;
  uint width = a.dim + 2u;
  device const float* part = parts + (group.y * a.heads + head) * a.part_blocks * width;
  float highest = NEGATIVE_INFINITY;
  for (uint b = 0u; b < blocks; ++b) highest = larger(part[b * width + a.dim], highest);
  for (uint d = thread_index; d < a.dim; d += ATTEND_THREADS) sums[d] = 0.0f;
  float total = 0.0f;
  for (uint first = 0u; first < blocks; first += ATTEND_THREADS) {
    uint n = blocks - first < ATTEND_THREADS ? blocks - first : ATTEND_THREADS;
    if (thread_index < n) c[thread_index] = straw_exp(part[(first + thread_index) * width + a.dim] - highest);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint b = 0u; b < n; ++b) total = fused(part[(first + b) * width + a.dim + 1u], c[b], total);
    for (uint d = thread_index; d < a.dim; d += ATTEND_THREADS) {
      float sum = sums[d];
      for (uint b = 0u; b < n; ++b) sum = fused(part[(first + b) * width + d], c[b], sum);
      sums[d] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint d = thread_index; d < a.dim; d += ATTEND_THREADS)
    out[(row * a.heads + head) * a.dim + d] = sums[d] / total;
}
