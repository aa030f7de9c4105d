// One layer's key/value cache: rows appended, staged beside it, and committed from there. Elements are rounded to the cache's
// type before their first use. Keys `[kv_head][block][d][64]`, values `[kv_head][position][d]`; staged keys
// `[kv_head][d][staged, padded]`, staged values `[kv_head][staged][d]`. One thread an element.

#define KV_THREADS 256u
#define KV_BLOCK 64u

struct KvPutArgs {
  uint rows;
  uint heads;
  uint dim;
  uint stride;         // floats from a row to the next
  uint k_first;
  uint v_first;
  uint first;          // position, or staged row, of row 0
  uint blocks;         // of the cache
  uint staged;         // rows that can be staged
  uint staged_padded;
};

static inline uint key_at(uint head, uint position, uint d, uint blocks, uint dim) {
  return ((head * blocks + position / KV_BLOCK) * dim + d) * KV_BLOCK + position % KV_BLOCK;
}

template <typename T>
static inline void append(device const float* rows, device T* keys, device T* values, KvPutArgs a, uint i) {
  if (i >= a.rows * a.heads * a.dim) return;
  uint d = i % a.dim, head = i / a.dim % a.heads, row = i / (a.dim * a.heads), position = a.first + row;
  uint from = row * a.stride + head * a.dim + d;
  T k, v;
  narrow(rows[a.k_first + from], k);
  narrow(rows[a.v_first + from], v);
  keys[key_at(head, position, d, a.blocks, a.dim)] = k;
  values[(head * a.blocks * KV_BLOCK + position) * a.dim + d] = v;
}

template <typename T>
static inline void stage(device const float* rows, device T* keys, device T* values, KvPutArgs a, uint i) {
  if (i >= a.rows * a.heads * a.dim) return;
  uint d = i % a.dim, head = i / a.dim % a.heads, row = i / (a.dim * a.heads), slot = a.first + row;
  uint from = row * a.stride + head * a.dim + d;
  T k, v;
  narrow(rows[a.k_first + from], k);
  narrow(rows[a.v_first + from], v);
  keys[(head * a.dim + d) * a.staged_padded + slot] = k;
  values[(head * a.staged + slot) * a.dim + d] = v;
}

kernel void kv_append_f32(device const float* rows [[buffer(0)]], device float* keys [[buffer(1)]],
                          device float* values [[buffer(2)]], constant KvPutArgs& a [[buffer(3)]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]]) {
  append(rows, keys, values, a, group.x * KV_THREADS + thread_index);
}

kernel void kv_append_bf16(device const float* rows [[buffer(0)]], device Bf16* keys [[buffer(1)]],
                           device Bf16* values [[buffer(2)]], constant KvPutArgs& a [[buffer(3)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]]) {
  append(rows, keys, values, a, group.x * KV_THREADS + thread_index);
}

kernel void kv_stage_f32(device const float* rows [[buffer(0)]], device float* keys [[buffer(1)]],
                         device float* values [[buffer(2)]], constant KvPutArgs& a [[buffer(3)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]]) {
  stage(rows, keys, values, a, group.x * KV_THREADS + thread_index);
}

kernel void kv_stage_bf16(device const float* rows [[buffer(0)]], device Bf16* keys [[buffer(1)]],
                          device Bf16* values [[buffer(2)]], constant KvPutArgs& a [[buffer(3)]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]]) {
  stage(rows, keys, values, a, group.x * KV_THREADS + thread_index);
}

struct KvCommitArgs {
  uint path_len;
  uint heads;
  uint dim;
  uint first;  // position of the path's first row
  uint blocks;
  uint staged;
  uint staged_padded;
};

template <typename T>
static inline void commit(device const uint* path, device const T* staged_keys, device const T* staged_values,
                          device T* keys, device T* values, KvCommitArgs a, uint i) {
  if (i >= a.path_len * a.heads * a.dim) return;
  uint d = i % a.dim, head = i / a.dim % a.heads, step = i / (a.dim * a.heads);
  uint row = path[step], position = a.first + step;
  keys[key_at(head, position, d, a.blocks, a.dim)] = staged_keys[(head * a.dim + d) * a.staged_padded + row];
  values[(head * a.blocks * KV_BLOCK + position) * a.dim + d] = staged_values[(head * a.staged + row) * a.dim + d];
}

kernel void kv_commit_f32(device const uint* path [[buffer(0)]], device const float* staged_keys [[buffer(1)]],
                          device const float* staged_values [[buffer(2)]], device float* keys [[buffer(3)]],
                          device float* values [[buffer(4)]], constant KvCommitArgs& a [[buffer(5)]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]]) {
  commit(path, staged_keys, staged_values, keys, values, a, group.x * KV_THREADS + thread_index);
}

kernel void kv_commit_bf16(device const uint* path [[buffer(0)]], device const Bf16* staged_keys [[buffer(1)]],
                           device const Bf16* staged_values [[buffer(2)]], device Bf16* keys [[buffer(3)]],
                           device Bf16* values [[buffer(4)]], constant KvCommitArgs& a [[buffer(5)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]]) {
  commit(path, staged_keys, staged_values, keys, values, a, group.x * KV_THREADS + thread_index);
}
