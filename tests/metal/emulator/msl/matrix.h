// 8x8 matrices that a simdgroup holds together, two elements a lane in Apple's layout. The order of
// additions inside the hardware's multiply is not known; here it is k = 0..7, fused.
#pragma once

namespace metal {

template <class T, int R, int C>
struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "simdgroup_matrix is 8x8");
  vec<T, 2> elements;

  simdgroup_matrix() { elements = poison<vec<T, 2>>(); }
  // A diagonal matrix.
  explicit simdgroup_matrix(T value) {
    const uint lane = emulator_lane();
    for (int i = 0; i < 2; i++) elements.d[i] = row(lane) == column(lane) + i ? value : (T)0;
  }
  vec<T, 2>& thread_elements() { return elements; }
  const vec<T, 2>& thread_elements() const { return elements; }
  // Where a lane's first element is; the second is to its right.
  static int row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
  static int column(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int R, int C = R>
simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, R, C> filled;
  filled.elements = vec<T, 2>(value, value);
  return filled;
}

template <class T>
void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* from, ulong stride = 8,
                    vec<ulong, 2> origin = vec<ulong, 2>(0, 0), bool transposed = false) {
  const uint lane = emulator_lane();
  const int row = m.row(lane), column = m.column(lane);
  from += origin.y * stride + origin.x;
  for (int i = 0; i < 2; i++) {
    m.elements.d[i] =
        transposed ? from[(column + i) * stride + row] : from[row * stride + column + i];
  }
}
template <class T>
void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* to, ulong stride = 8,
                     vec<ulong, 2> origin = vec<ulong, 2>(0, 0), bool transposed = false) {
  const uint lane = emulator_lane();
  const int row = m.row(lane), column = m.column(lane);
  to += origin.y * stride + origin.x;
  for (int i = 0; i < 2; i++) {
    to[transposed ? (column + i) * stride + row : row * stride + column + i] = m.elements.d[i];
  }
}

template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b,
                                   const simdgroup_matrix<C, 8, 8>& c, MSL_SITE) {
  struct Factors {
    vec<A, 2> a;
    vec<B, 2> b;
  };
  const char* operation = "simdgroup_multiply_accumulate";
  const exchanged<Factors> all({a.elements, b.elements}, operation, file_, line_);
  if (all.present != 0xffffffffu) {
    const emulator::Site site{operation, file_, line_};
    emulator_fail("simdgroup matrix", "fewer than 32 lanes at", &site);
  }
  // A lane needs one row of the left and two columns of the right.
  const uint own = emulator_lane();
  const int row = d.row(own), column = d.column(own);
  float left[8], right[8][2];
  for (uint lane = 0; lane < emulator::kSimdWidth; lane++) {
    const Factors factors = all[lane];
    for (int i = 0; i < 2; i++) {
      if (d.row(lane) == row) left[d.column(lane) + i] = (float)factors.a.d[i];
      if (d.column(lane) == column) right[d.row(lane)][i] = (float)factors.b.d[i];
    }
  }
  vec<D, 2> result;
  for (int i = 0; i < 2; i++) {
    float sum = (float)c.elements.d[i];
    for (int k = 0; k < 8; k++) sum = __builtin_fmaf(left[k], right[k][i], sum);
    result.d[i] = (D)sum;
  }
  d.elements = result;
}
template <class D, class A, class B>
void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                        const simdgroup_matrix<B, 8, 8>& b, MSL_SITE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8>((D)0), file_, line_);
}
}  // namespace metal
