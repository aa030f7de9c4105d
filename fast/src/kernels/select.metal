// Choices from rows of logits: the largest, log-sum-exp, the k largest, Gumbel noise and the sampled token. Equal values go to
// the lowest id, NaN never wins. One threadgroup a row; its 128 threads are the lanes of the sums (docs/numerics.md 4 and 8).

// Larger than every id: no candidate yet.
#define NO_ID 0xffffffffu

struct SelectArgs {
  uint width;
};

struct Best {
  float value;
  uint id;
};

// Whether a ranks before b: falling values, then rising ids. NaN ranks before nothing.
static inline bool before(Best a, Best b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

static inline Best no_candidate() {
  Best none;
  none.value = NEGATIVE_INFINITY;
  none.id = NO_ID;
  return none;
}

// The first of all threads' candidates, to every thread. `values` and `ids` have 128 elements each.
static inline Best first_of(Best mine, threadgroup float* values, threadgroup uint* ids, uint thread_index) {
  values[thread_index] = mine.value;
  ids[thread_index] = mine.id;
  for (uint half_width = FOLD_THREADS / 2u; half_width > 0u; half_width /= 2u) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index < half_width) {
      Best other;
      other.value = values[thread_index + half_width];
      other.id = ids[thread_index + half_width];
      if (before(other, mine)) mine = other;
      values[thread_index] = mine.value;
      ids[thread_index] = mine.id;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Best best;
  best.value = values[0];
  best.id = ids[0];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return best;
}

// Rows without a number give id 0.
kernel void argmax(device const float* x [[buffer(0)]], device uint* ids [[buffer(1)]], constant SelectArgs& a [[buffer(2)]],
                   uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float values[FOLD_THREADS];
  TG_MEM uint candidates[FOLD_THREADS];
  device const float* row = x + group.x * a.width;
  Best best = no_candidate();
  for (uint i = thread_index; i < a.width; i += FOLD_THREADS) {
    Best here;
    here.value = row[i];
    here.id = i;
    if (before(here, best)) best = here;
  }
  best = first_of(best, values, candidates, thread_index);
  if (thread_index == 0u) ids[group.x] = best.id == NO_ID ? 0u : best.id;
}

// `M + log(sum exp(x - M))`.
kernel void log_sum_exp(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                        constant SelectArgs& a [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float lanes[FOLD_THREADS];
  device const float* row = x + group.x * a.width;
  float highest = NEGATIVE_INFINITY;
  for (uint i = thread_index; i < a.width; i += FOLD_THREADS) highest = larger(row[i], highest);
  lanes[thread_index] = highest;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0u; i < FOLD_THREADS; ++i) highest = larger(lanes[i], highest);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float lane = 0.0f;
  for (uint i = thread_index; i < a.width; i += FOLD_THREADS) lane = lane + straw_exp(row[i] - highest);
  float total = fold(lane, lanes, thread_index);
  if (thread_index == 0u) out[group.x] = highest + straw_log(total);
}

struct TopKArgs {
  uint width;
  uint k;
};

// The k largest of every row in falling order, equal values by rising id, NaN left out: `ids, values: [rows, k]`. Slots beyond
// what was found have the id NO_ID.
kernel void top_k(device const float* x [[buffer(0)]], device uint* ids [[buffer(1)]], device float* values [[buffer(2)]],
                  constant TopKArgs& a [[buffer(3)]], uint3 group [[threadgroup_position_in_grid]],
                  uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float best_values[FOLD_THREADS];
  TG_MEM uint best_ids[FOLD_THREADS];
  device const float* row = x + group.x * a.width;
  Best last = no_candidate();
  for (uint slot = 0u; slot < a.k; ++slot) {
    Best best = no_candidate();
    for (uint i = thread_index; i < a.width; i += FOLD_THREADS) {
      Best here;
      here.value = row[i];
      here.id = i;
      if ((slot == 0u || before(last, here)) && before(here, best)) best = here;
    }
    best = first_of(best, best_values, best_ids, thread_index);
    if (thread_index == 0u) {
      ids[group.x * a.k + slot] = best.id;
      values[group.x * a.k + slot] = best.value;
    }
    last = best;
  }
}

// Ten rounds of Philox4x32; the uniform of a word is ((word >> 9) + 1/2) / 2^23, as specdec::philox.
static inline uint high_product(uint a, uint b) {
  uint a0 = a & 0xffffu, a1 = a >> 16, b0 = b & 0xffffu, b1 = b >> 16;
  uint low = a0 * b0;
  uint middle = a1 * b0 + (low >> 16);
  uint other = a0 * b1 + (middle & 0xffffu);
  return a1 * b1 + (middle >> 16) + (other >> 16);
}

// Gumbel noise of a token at a position: `0 - log(0 - log(u))`.
static inline float gumbel_of(uint seed_low, uint seed_high, uint position_low, uint position_high, uint token) {
  uint c0 = token / 4u, c1 = position_low, c2 = position_high, c3 = 0u, k0 = seed_low, k1 = seed_high;
  for (uint round = 0u; round < 10u; ++round) {
    uint high_a = high_product(0xd2511f53u, c0), low_a = 0xd2511f53u * c0;
    uint high_b = high_product(0xcd9e8d57u, c2), low_b = 0xcd9e8d57u * c2;
    c0 = high_b ^ c1 ^ k0;
    c1 = low_b;
    c2 = high_a ^ c3 ^ k1;
    c3 = low_a;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  uint word = token % 4u == 0u ? c0 : token % 4u == 1u ? c1 : token % 4u == 2u ? c2 : c3;
  float u = (float(word >> 9) + 0.5f) * 1.1920929e-7f;
  return 0.0f - straw_log(0.0f - straw_log(u));
}

struct SampleArgs {
  uint width;
  uint seed_low;
  uint seed_high;
  float inverse_temperature;
  float min_p;  // 0: keep all
};

// Gumbel-max of every row: `x * (1 / T) + noise` over the ids that min-p keeps. `positions[2 r ..]`: low and high word of the
// position that row r's token will occupy.
kernel void sample(device const float* x [[buffer(0)]], device const uint* positions [[buffer(1)]],
                   device uint* ids [[buffer(2)]], constant SampleArgs& a [[buffer(3)]],
                   uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float values[FOLD_THREADS];
  TG_MEM uint candidates[FOLD_THREADS];
  device const float* row = x + group.x * a.width;
  uint low = positions[2u * group.x], high = positions[2u * group.x + 1u];
  float highest = NEGATIVE_INFINITY;
  if (a.min_p > 0.0f) {
    Best best = no_candidate();
    for (uint i = thread_index; i < a.width; i += FOLD_THREADS) {
      Best here;
      here.value = row[i] * a.inverse_temperature;
      here.id = i;
      if (before(here, best)) best = here;
    }
    highest = first_of(best, values, candidates, thread_index).value;
  }
  Best best = no_candidate();
  for (uint i = thread_index; i < a.width; i += FOLD_THREADS) {
    float value = row[i] * a.inverse_temperature;
    if (a.min_p > 0.0f && straw_exp(value - highest) < a.min_p) value = NEGATIVE_INFINITY;
    Best here;
    here.value = value + gumbel_of(a.seed_low, a.seed_high, low, high, i);
    here.id = i;
    if (before(here, best)) best = here;
  }
  best = first_of(best, values, candidates, thread_index);
  if (thread_index == 0u) ids[group.x] = best.id == NO_ID ? 0u : best.id;
}

struct GumbelArgs {
  uint tokens;
  uint seed_low;
  uint seed_high;
  uint position_low;
  uint position_high;
};

// The noise of tokens 0 to `tokens - 1` at one position.
kernel void gumbel(device float* out [[buffer(0)]], constant GumbelArgs& a [[buffer(1)]],
                   uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint token = group.x * FOLD_THREADS + thread_index;
  if (token < a.tokens) out[token] = gumbel_of(a.seed_low, a.seed_high, a.position_low, a.position_high, token);
}
