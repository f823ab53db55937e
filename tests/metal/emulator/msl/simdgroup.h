// Barriers, and what the lanes of a simdgroup or a quad tell each other. Every operation is a
// rendezvous of the whole simdgroup; the caller's line is where it happens.
#pragma once

#define MSL_SITE const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()

namespace metal {

enum class mem_flags : int {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }

inline void threadgroup_barrier(mem_flags flags, MSL_SITE) {
  const emulator::Site site{"threadgroup_barrier", file_, line_};
  emulator_barrier(emulator::Wait::kThreadgroupBarrier, (int)flags, &site);
}
inline void simdgroup_barrier(mem_flags flags, MSL_SITE) {
  const emulator::Site site{"simdgroup_barrier", file_, line_};
  emulator_barrier(emulator::Wait::kSimdgroupBarrier, (int)flags, &site);
}

// Bytes of ones: NaN as a float, so that whoever uses what nobody wrote shows it.
template <class T>
inline T poison() {
  T value;
  __builtin_memset(&value, 0xFF, sizeof(T));
  return value;
}

// One value from each lane.
template <class T>
struct exchanged {
  const unsigned char* table;
  uint32_t present;

  exchanged(const T& own, const char* operation, const char* file, int line) {
    static_assert(sizeof(T) <= emulator::kSlot);
    const emulator::Site site{operation, file, line};
    table = emulator_exchange(&own, sizeof(T), &site, &present);
  }
  T operator[](uint lane) const {
    T value;
    __builtin_memcpy(&value, table + emulator::kSlot * lane, sizeof(T));
    return value;
  }
  bool has(uint lane) const { return lane < emulator::kSimdWidth && (present >> lane & 1); }
  // What a lane that does not exist has to say is undefined.
  T from(uint lane) const { return has(lane) ? (*this)[lane] : poison<T>(); }
};

// The order in which the hardware adds is not documented: three are offered, and what is claimed
// to the bit must hold in each. All operations here commute, so every lane gets the same bits.
template <class T, class F>
T reduce(const exchanged<T>& all, F combine) {
  constexpr uint kLanes = emulator::kSimdWidth;
  T values[kLanes];
  uint count = 0;
  for (uint i = 0; i < kLanes; i++) {
    if (all.has(i)) values[count++] = all[i];
  }
  const uint32_t order = emulator_sum_order();
  if (order == emulator::kSequential) {
    for (uint i = 1; i < count; i++) values[0] = combine(values[0], values[i]);
  } else if (order == emulator::kAscending) {
    for (uint step = 1; step < kLanes; step *= 2) {
      for (uint i = 0; i + step < count; i += 2 * step)
        values[i] = combine(values[i], values[i + step]);
    }
  } else {
    for (uint step = kLanes / 2; step > 0; step /= 2) {
      for (uint i = 0; i < step && i + step < count; i++)
        values[i] = combine(values[i], values[i + step]);
    }
  }
  return values[0];
}

#define MSL_REDUCTION(name, expression)                           \
  template <class T>                                              \
  T name(T value, MSL_SITE) {                                     \
    const exchanged<T> all(value, #name, file_, line_);           \
    return reduce(all, [](T x, T y) { return (T)(expression); }); \
  }
// A NaN wins in max and min too: poison must not get lost.
#define MSL_MAX (x != x ? x : y != y ? y : x < y ? y : x)
#define MSL_MIN (x != x ? x : y != y ? y : y < x ? y : x)
MSL_REDUCTION(simd_sum, x + y)
MSL_REDUCTION(simd_product, x* y)
MSL_REDUCTION(simd_max, MSL_MAX)
MSL_REDUCTION(simd_min, MSL_MIN)
MSL_REDUCTION(simd_and, x& y)
MSL_REDUCTION(simd_or, x | y)
MSL_REDUCTION(simd_xor, x ^ y)
#undef MSL_REDUCTION

#define MSL_QUAD_REDUCTION(name, expression)                         \
  template <class T>                                                 \
  T name(T value, MSL_SITE) {                                        \
    const exchanged<T> all(value, #name, file_, line_);              \
    const auto combine = [](T x, T y) { return (T)(expression); };   \
    const uint base = emulator_lane() & ~3u;                         \
    return combine(combine(all.from(base), all.from(base + 1)),      \
                   combine(all.from(base + 2), all.from(base + 3))); \
  }
MSL_QUAD_REDUCTION(quad_sum, x + y)
MSL_QUAD_REDUCTION(quad_max, MSL_MAX)
MSL_QUAD_REDUCTION(quad_min, MSL_MIN)
#undef MSL_QUAD_REDUCTION
#undef MSL_MAX
#undef MSL_MIN

// `lane` and `delta` are in scope of the index.
#define MSL_SHUFFLE(name, index)                        \
  template <class T>                                    \
  T name(T value, ushort delta, MSL_SITE) {             \
    const exchanged<T> all(value, #name, file_, line_); \
    [[maybe_unused]] const uint lane = emulator_lane(); \
    return all.from(index);                             \
  }
MSL_SHUFFLE(simd_shuffle, delta)
MSL_SHUFFLE(simd_broadcast, delta)
MSL_SHUFFLE(simd_shuffle_xor, lane ^ delta)
MSL_SHUFFLE(simd_shuffle_down, lane + delta)
MSL_SHUFFLE(simd_shuffle_up, lane - delta)
MSL_SHUFFLE(simd_shuffle_rotate_down, (lane + delta) & 31)
MSL_SHUFFLE(simd_shuffle_rotate_up, (lane - delta) & 31)
MSL_SHUFFLE(quad_shuffle, delta < 4 ? (lane & ~3u) | delta : 99)
MSL_SHUFFLE(quad_broadcast, delta < 4 ? (lane & ~3u) | delta : 99)
MSL_SHUFFLE(quad_shuffle_xor, ((lane & 3) ^ delta) < 4 ? lane ^ delta : 99)
MSL_SHUFFLE(quad_shuffle_down, (lane & 3) + delta < 4 ? lane + delta : 99)
MSL_SHUFFLE(quad_shuffle_up, (lane & 3) >= delta ? lane - delta : 99)
#undef MSL_SHUFFLE

template <class T>
T simd_shuffle_and_fill_down(T value, T fill, ushort delta, MSL_SITE) {
  const exchanged<T> all(value, "simd_shuffle_and_fill_down", file_, line_);
  const uint from = emulator_lane() + delta;
  return from < emulator::kSimdWidth ? all.from(from) : fill;
}
template <class T>
T simd_shuffle_and_fill_up(T value, T fill, ushort delta, MSL_SITE) {
  const exchanged<T> all(value, "simd_shuffle_and_fill_up", file_, line_);
  const uint from = emulator_lane() - delta;
  return from < emulator::kSimdWidth ? all.from(from) : fill;
}
template <class T>
T simd_broadcast_first(T value, MSL_SITE) {
  const exchanged<T> all(value, "simd_broadcast_first", file_, line_);
  return all[__builtin_ctz(all.present)];
}
template <class T>
T prefix_sum(const exchanged<T>& all, uint end) {
  T sum = 0;
  for (uint i = 0; i < end; i++) {
    if (all.has(i)) sum = (T)(sum + all[i]);
  }
  return sum;
}
template <class T>
T simd_prefix_inclusive_sum(T value, MSL_SITE) {
  return prefix_sum(exchanged<T>(value, "simd_prefix_inclusive_sum", file_, line_),
                    emulator_lane() + 1);
}
template <class T>
T simd_prefix_exclusive_sum(T value, MSL_SITE) {
  return prefix_sum(exchanged<T>(value, "simd_prefix_exclusive_sum", file_, line_),
                    emulator_lane());
}

inline uint64_t votes(bool vote, const char* operation, const char* file, int line,
                      uint32_t* present) {
  const exchanged<bool> all(vote, operation, file, line);
  *present = all.present;
  uint64_t mask = 0;
  for (uint i = 0; i < emulator::kSimdWidth; i++) mask |= uint64_t(all.has(i) && all[i]) << i;
  return mask;
}
struct simd_vote {
  using vote_t = uint64_t;
  vote_t mask;
  explicit operator vote_t() const { return mask; }
  bool all() const { return mask == 0xffffffffull; }
  bool any() const { return mask != 0; }
};
inline simd_vote simd_ballot(bool vote, MSL_SITE) {
  uint32_t present;
  return {votes(vote, "simd_ballot", file_, line_, &present)};
}
inline bool simd_all(bool vote, MSL_SITE) {
  uint32_t present;
  return votes(vote, "simd_all", file_, line_, &present) == present;
}
inline bool simd_any(bool vote, MSL_SITE) {
  uint32_t present;
  return votes(vote, "simd_any", file_, line_, &present) != 0;
}
inline bool simd_is_first(MSL_SITE) {
  const exchanged<bool> all(true, "simd_is_first", file_, line_);
  return emulator_lane() == (uint)__builtin_ctz(all.present);
}
}  // namespace metal
