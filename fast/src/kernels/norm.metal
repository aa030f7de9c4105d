// RMSNorm with and without a residual, the delta rule's gated norm, the l2 norm of its queries and keys.
// One threadgroup of 128 threads a vector: a thread is a lane of the fold. docs/numerics.md section 4.

struct NormArgs {
  uint dim;
  float eps;
  Place x;
  Place y;
};

// Sum of squares of a vector, folded.
template <typename P>
static inline float squares(P x, uint dim, threadgroup float* lanes, uint thread_index) {
  float lane = 0.0f;
  for (uint i = thread_index; i < dim; i += FOLD_THREADS) lane = fused(x[i], x[i], lane);
  return fold(lane, lanes, thread_index);
}

static inline float rms(float sum, uint dim, float eps) { return straw_rsqrt(sum / float(dim) + eps); }

// `y = (x * r) * scale`.
kernel void rms_norm(device const float* x [[buffer(0)]], device const float* scale [[buffer(1)]],
                     device float* y [[buffer(2)]], constant NormArgs& a [[buffer(3)]],
                     uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float lanes[FOLD_THREADS];
  device const float* from = x + start_of(a.x, group.x);
  device float* to = y + start_of(a.y, group.x);
  float r = rms(squares(from, a.dim, lanes, thread_index), a.dim, a.eps);
  for (uint i = thread_index; i < a.dim; i += FOLD_THREADS) to[i] = (from[i] * r) * scale[i];
}

// The same where the vectors are: query and key heads. `a.y` is not read.
kernel void rms_norm_in_place(device float* x [[buffer(0)]], device const float* scale [[buffer(1)]],
                              constant NormArgs& a [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                              uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float lanes[FOLD_THREADS];
  device float* at = x + start_of(a.x, group.x);
  float r = rms(squares(at, a.dim, lanes, thread_index), a.dim, a.eps);
  for (uint i = thread_index; i < a.dim; i += FOLD_THREADS) at[i] = (at[i] * r) * scale[i];
}

struct AddNormArgs {
  uint dim;
  float eps;
};

// `x = x + delta; y = norm(x)` for rows of `dim`.
kernel void add_rms_norm(device float* x [[buffer(0)]], device const float* delta [[buffer(1)]],
                         device const float* scale [[buffer(2)]], device float* y [[buffer(3)]],
                         constant AddNormArgs& a [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float lanes[FOLD_THREADS];
  device float* row = x + group.x * a.dim;
  float lane = 0.0f;
  for (uint i = thread_index; i < a.dim; i += FOLD_THREADS) {
    float sum = row[i] + delta[group.x * a.dim + i];
    row[i] = sum;
    lane = fused(sum, sum, lane);
  }
  float r = rms(fold(lane, lanes, thread_index), a.dim, a.eps);
  // A thread reads what it wrote itself.
  for (uint i = thread_index; i < a.dim; i += FOLD_THREADS) y[group.x * a.dim + i] = (row[i] * r) * scale[i];
}

struct GatedNormArgs {
  uint dim;
  float eps;
  Place o;
  Place z;
};

// `o = ((o * r) * scale) * silu(z)`.
kernel void gated_norm(device float* o [[buffer(0)]], device const float* z [[buffer(1)]],
                       device const float* scale [[buffer(2)]], constant GatedNormArgs& a [[buffer(3)]],
                       uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float lanes[FOLD_THREADS];
  device float* at = o + start_of(a.o, group.x);
  device const float* gate = z + start_of(a.z, group.x);
  float r = rms(squares(at, a.dim, lanes, thread_index), a.dim, a.eps);
  for (uint i = thread_index; i < a.dim; i += FOLD_THREADS) at[i] = ((at[i] * r) * scale[i]) * straw_silu(gate[i]);
}

struct UnitArgs {
  uint dim;
  float scale;
  Place x;
};

// `x = (x * 1 / sqrt(sum + 1e-6)) * scale`, whatever the config says of other norms.
kernel void unit_norm(device float* x [[buffer(0)]], constant UnitArgs& a [[buffer(1)]],
                      uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float lanes[FOLD_THREADS];
  device float* at = x + start_of(a.x, group.x);
  float r = straw_rsqrt(squares(at, a.dim, lanes, thread_index) + 1e-6f);
  for (uint i = thread_index; i < a.dim; i += FOLD_THREADS) at[i] = (at[i] * r) * a.scale;
}
