// Attention of a few query rows over a long context: one part of it, one block of keys at a time.
// What it computes, its arrays and its traffic: verify_attention.py.
//
// A simdgroup has `Rows` query rows of one key head, and each lane D / 32 elements of them. It takes
// eight keys at a time: every lane multiplies its elements, and a butterfly that halves the number
// of keys with each step leaves the score of key (lane % 8) in each lane. What a row does depends on
// its position alone: the blocks and the groups of eight begin at fixed positions, keys behind the
// row are left out one by one, and every multiply-add is an fma.

// Half as many values, each the sum of two lanes' for the half whose number has bit `Step` as the
// lane has it.
template <int Step>
inline void halve(thread float (&part)[8], uint lane) {
  for (int i = 0; i < 4 / Step; ++i) {
    const bool odd = (lane & Step) != 0;
    const float stays = odd ? part[2 * i + 1] : part[2 * i];
    const float goes = odd ? part[2 * i] : part[2 * i + 1];
    part[i] = stays + simd_shuffle_xor(goes, Step);
  }
}

// The sum over all lanes of each of eight values; that of value (lane % 8) is returned.
inline float sum_of_eight(thread float (&part)[8], uint lane) {
  halve<1>(part, lane);
  halve<2>(part, lane);
  halve<4>(part, lane);
  float sum = part[0];
  sum += simd_shuffle_xor(sum, 8);
  sum += simd_shuffle_xor(sum, 16);
  return sum;
}

// body
constexpr int width = D / 32;
constexpr float lowest = -3.4028234663852886e38f;

const int queries = q_shape[2];
const int keys = k_shape[2];
const int groups = q_shape[1] / k_shape[1];
const int blocks = (keys + Block - 1) / Block;
const int block = thread_position_in_grid.z % blocks;
const int batch_head = thread_position_in_grid.z / blocks;
const int batch = batch_head / k_shape[1];
const int key_head = batch_head % k_shape[1];
const uint lane = thread_index_in_simdgroup;
const int begin = block * Block;
const int end = min(keys, begin + Block);

const auto first_key = k + batch * k_strides[0] + key_head * k_strides[1] + lane * width;
const auto first_value = v + batch * v_strides[0] + key_head * v_strides[1] + lane * width;

// Row r is query r / groups of head r % groups: neighbours see the same keys.
float query[Rows][width];
float sum[Rows][width];
float top[Rows];
float weight[Rows];
int row_at[Rows];
int last[Rows];
int furthest = -1;
for (int r = 0; r < Rows; ++r) {
  const int row = thread_position_in_grid.y * Rows + r;
  const int position = row / groups;
  const int head = key_head * groups + row % groups;
  const bool there = position < queries;
  row_at[r] = (batch * q_shape[1] + head) * queries + position;
  last[r] = there ? keys - queries + position : -1;
  furthest = max(furthest, last[r]);
  top[r] = lowest;
  weight[r] = 0.0f;
  const auto from = q + batch * q_strides[0] + head * q_strides[1] + position * q_strides[2];
  for (int i = 0; i < width; ++i) {
    query[r][i] = there ? static_cast<float>(from[(lane * width + i) * q_strides[3]]) * scale : 0.0f;
    sum[r][i] = 0.0f;
  }
}

for (int start = begin; start < end && start <= furthest; start += 8) {
  float part[Rows][8];
  for (int j = 0; j < 8; ++j) {
    // Behind the last key its row is read again, and left out below.
    const auto at = first_key + min(start + j, keys - 1) * k_strides[2];
    float key[width];
    for (int i = 0; i < width; ++i) {
      key[i] = static_cast<float>(at[i]);
    }
    for (int r = 0; r < Rows; ++r) {
      part[r][j] = query[r][0] * key[0];
      for (int i = 1; i < width; ++i) {
        part[r][j] = fma(query[r][i], key[i], part[r][j]);
      }
    }
  }
  float share[Rows];
  for (int r = 0; r < Rows; ++r) {
    if (start > last[r]) {
      continue;
    }
    const bool seen = start + int(lane % 8) <= last[r];
    const float score = sum_of_eight(part[r], lane);
    float highest = seen ? score : lowest;
    highest = max(highest, simd_shuffle_xor(highest, 1));
    highest = max(highest, simd_shuffle_xor(highest, 2));
    highest = max(highest, simd_shuffle_xor(highest, 4));
    highest = max(highest, top[r]);
    const float shrink = precise::exp2(top[r] - highest);
    top[r] = highest;
    share[r] = seen ? precise::exp2(score - highest) : 0.0f;
    float shares = share[r];
    shares += simd_shuffle_xor(shares, 1);
    shares += simd_shuffle_xor(shares, 2);
    shares += simd_shuffle_xor(shares, 4);
    weight[r] = fma(weight[r], shrink, shares);
    for (int i = 0; i < width; ++i) {
      sum[r][i] *= shrink;
    }
  }
  for (int j = 0; j < 8; ++j) {
    const auto at = first_value + min(start + j, keys - 1) * v_strides[2];
    float value[width];
    for (int i = 0; i < width; ++i) {
      value[i] = static_cast<float>(at[i]);
    }
    for (int r = 0; r < Rows; ++r) {
      if (start + j > last[r]) {
        continue;
      }
      const float part_of_key = simd_shuffle(share[r], j);
      for (int i = 0; i < width; ++i) {
        sum[r][i] = fma(part_of_key, value[i], sum[r][i]);
      }
    }
  }
}

for (int r = 0; r < Rows; ++r) {
  if (last[r] < 0) {
    continue;
  }
  const int at = row_at[r] * blocks + block;
  for (int i = 0; i < width; ++i) {
    sums[at * D + lane * width + i] = sum[r][i];
  }
  if (lane == 0) {
    tops[at] = top[r];
    weights[at] = weight[r];
  }
}
